"""From a lowered region to a program: kernels compiled or found, argument words laid out."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from thalweg.codegen.cache import load_all, name_of
from thalweg.codegen.kernels import request
from thalweg.codegen.llvm.emitted import Request
from thalweg.codegen.machine import CpuTarget
from thalweg.device import tuning
from thalweg.device.cpu.listing import Call, listed
from thalweg.device.cpu.pool import Pool
from thalweg.device.cpu.program import Program
from thalweg.device.cpu.table_template import PlacedCall, TableTemplate
from thalweg.device.program_template import explained, template_of
from thalweg.ir.kernel import Kernel
from thalweg.lower.dynamic_shapes import SpecializedKernel
from thalweg.lower.lowered import Launch, Lowered
from thalweg.lower.memory.barriers import threads_for, work_of

_MAX_WORK_WITH_GIL = 20_000.0  # of a step that keeps the GIL: it is done in a few microseconds


def make_program(
    lowered: Lowered,
    kernels: Sequence[SpecializedKernel],
    pool: Pool,
    target: CpuTarget,
    threads: int,
) -> Program:
    """A region, lowered for a target, as a program of a pool on at most so many of its threads."""
    if tuning.TUNES:
        tuner = importlib.import_module("thalweg.device.cpu.tuner")  # few processes need it
        tuner.tune_new(kernels, pool, threads)
    launches = lowered.launches
    pairs = zip(launches, kernels, strict=True)
    users = {kernel.kernel: launch for launch, kernel in pairs}  # many launches are of one kernel
    requests = [kernel_request(launch, kernel, target) for kernel, launch in users.items()]
    of_kernel = dict(zip(users, [name_of(request, target) for request in requests], strict=True))
    names = [of_kernel[kernel.kernel] for kernel in kernels]
    loaded = dict(zip(of_kernel.values(), load_all(requests, target), strict=True))
    listing = listed(lowered, kernels, [loaded[name] for name in names], target, keeps=True)
    work = sum(work_of(launch.kernel, target) for launch in launches)
    template = TableTemplate(
        **vars(template_of(list(loaded), lowered, listing)),
        calls=_placed(listing.calls, names, list(loaded)),
        threads=threads_for(launches, threads, target),
        holds_gil=work < _MAX_WORK_WITH_GIL,
        kept=sorted({place for call in listing.calls for place in call.kept or ()}),
    )
    return Program(template, list(loaded.values()), lowered.spec.region, lambda: listing, pool)


def kernel_request(launch: Launch, kernel: Kernel, target: CpuTarget) -> Request:
    """A kernel to compile, on behalf of a launch."""
    return replace(request(kernel, target), explain=partial(explained, launch))


def _placed(
    calls: Sequence[Call], names: Sequence[str], kernels: Sequence[str]
) -> list[PlacedCall]:
    numbers = {name: number for number, name in enumerate(kernels)}
    return [
        PlacedCall(
            numbers[name],
            call.words,
            call.barrier,
            call.thread,
            call.no_pause,
            call.work,
            call.kept is not None,
        )
        for call, name in zip(calls, names, strict=True)
    ]
