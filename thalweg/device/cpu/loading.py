"""Loads a lowered region as a program: compiles its kernels and builds its template."""

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
from thalweg.device.cpu.listing import build_listing
from thalweg.device.cpu.pool import Pool
from thalweg.device.cpu.program import Program
from thalweg.device.cpu.table_template import PlacedCall, TableTemplate
from thalweg.device.program_template import compile_error, template_of
from thalweg.ir.kernel import Kernel
from thalweg.lower.dynamic_shapes import SpecializedKernel
from thalweg.lower.lowered import Launch, Lowered
from thalweg.lower.memory.barriers import threads_for, work_of


def make_program(
    lowered: Lowered,
    kernels: Sequence[SpecializedKernel],
    pool: Pool,
    target: CpuTarget,
    threads: int,
) -> Program:
    """The program of a region, lowered for a target, on at most `threads` threads of a pool."""
    if tuning.TUNES:
        tuner = importlib.import_module("thalweg.device.cpu.tuner")  # few processes need it
        tuner.tune_new(kernels, pool, threads)
    launches = lowered.launches
    # Launches may share a kernel, and different kernels may have the same name and code.
    launch_of = {k.kernel: launch for k, launch in zip(kernels, launches, strict=True)}
    requests = [kernel_request(launch, kernel, target) for kernel, launch in launch_of.items()]
    names = [name_of(request, target) for request in requests]
    loaded = dict(zip(names, load_all(requests, target), strict=True))
    name_of_kernel = dict(zip(launch_of, names, strict=True))
    launch_names = [name_of_kernel[k.kernel] for k in kernels]
    code = [loaded[name] for name in launch_names]
    listing = build_listing(lowered, kernels, code, target, prepacks=True)
    numbers = {name: number for number, name in enumerate(loaded)}
    calls = [
        PlacedCall(numbers[name], call.words, call.dispatch, call.packed_from is not None)
        for call, name in zip(listing.calls, launch_names, strict=True)
    ]
    template = TableTemplate(
        **vars(template_of(loaded, lowered, listing)),
        calls=calls,
        threads=threads_for(launches, threads, target),
        work=sum(work_of(launch.kernel, target) for launch in launches),
        packed_references=sorted({n for call in listing.calls for n in call.packed_from or ()}),
    )
    return Program(template, list(loaded.values()), lowered.spec.region, lambda: listing, pool)


def kernel_request(launch: Launch, kernel: Kernel, target: CpuTarget) -> Request:
    """The request to compile a kernel of a launch."""
    return replace(request(kernel, target), explain=partial(compile_error, launch))
