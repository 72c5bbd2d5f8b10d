"""Loads a lowered region as a program: compiles its kernels and builds its template."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from thalweg.codegen.cache import Loaded, load_all, name_of
from thalweg.codegen.kernels import request
from thalweg.codegen.llvm.emitted import Request
from thalweg.codegen.machine import CpuTarget
from thalweg.device import tuning
from thalweg.device.cpu.invocation import PACKED
from thalweg.device.cpu.listing import Call, build_listing
from thalweg.device.cpu.prepacking import prepacked_launches
from thalweg.device.cpu.program import Program
from thalweg.device.cpu.table_template import Entry, Jump, Signal, TableTemplate
from thalweg.device.program_template import FAULT, Output, compile_error, template_of
from thalweg.ir.kernel import Kernel
from thalweg.lower.dynamic_shapes import SpecializedKernel
from thalweg.lower.lowered import Launch, Lowered
from thalweg.lower.memory.barriers import threads_for, work_of

if TYPE_CHECKING:
    from thalweg.device.cpu.device import CpuDevice

#: Vector instructions of a program with early outputs. A shorter program ends before the woken
#: thread could deliver as much as its own thread does afterwards.
_MIN_WORK_SIGNALLED = 1_000_000


def make_program(
    lowered: Lowered, kernels: Sequence[SpecializedKernel], device: CpuDevice
) -> Program:
    """The program of a region, lowered for the target of a device."""
    pool, target, threads = device.pool, device.target, device.threads
    if tuning.TUNES:
        tuner = importlib.import_module("thalweg.device.cpu.tuner")  # few processes need it
        tuner.tune_new(kernels, pool, threads)
    launches = lowered.launches
    # Launches may share a kernel, and different kernels may have the same name and code.
    launch_of = {k.kernel: launch for launch, k in zip(launches, kernels, strict=True)}
    requests = [kernel_request(launch, kernel, target) for kernel, launch in launch_of.items()]
    code_of = dict(zip(launch_of, load_all(requests, target), strict=True))
    names = [name_of(request, target) for request in requests]
    loaded = dict(zip(names, code_of.values(), strict=True))
    code = [code_of[k.kernel] for k in kernels]
    prepacked = prepacked_launches(lowered, [k.kernel for k in kernels], code)
    listing = build_listing(lowered, kernels, code, target, prepacked)
    template = template_of(loaded, lowered, listing)
    work = sum(work_of(launch.kernel, target) for launch in launches)
    signalled = template.outputs if work >= _MIN_WORK_SIGNALLED else ()
    template = TableTemplate(
        **vars(template),
        calls=table_of(listing.calls, function_numbers(loaded), signalled),
        threads=threads_for(launches, threads, target),
        work=work,
        packed_references=sorted({n for call in listing.calls for n in call.packed_from or ()}),
    )
    return Program(template, list(loaded.values()), lowered.spec.region, lambda: listing, pool)


def function_numbers(kernels: Mapping[str, Loaded]) -> dict[int, int]:
    """The numbers of the functions of all kernels, by their addresses."""
    functions = chain.from_iterable(kernel.functions for kernel in kernels.values())
    return {function: number for number, function in enumerate(functions)}


def table_of(
    calls: Sequence[Call], functions: Mapping[int, int], outputs: Sequence[Output]
) -> list[Entry | Jump | Signal]:
    """The calls in order. What packs is jumped over if the packed factors are up to date. An early
    output is signalled after the call that computes it, but not amid an update of a variable.
    `functions`: their numbers by address."""
    table: list[Entry | Jump | Signal] = []
    computed: list[Signal] = []  # what is not signalled yet
    for number, call in enumerate(calls):
        if not call.entry.no_pause:
            table += computed
            computed.clear()
        if call.packed_from is not None:
            after = len(table) + 2
            table.append(Jump(after, PACKED, True, False, call.entry.no_pause, FAULT))
        table += call.entries(functions)
        computed += [Signal(n) for n, output in enumerate(outputs) if output.producer == number]
    return table


def kernel_request(launch: Launch, kernel: Kernel, target: CpuTarget) -> Request:
    """The request to compile a kernel of a launch."""
    return replace(request(kernel, target), explain=partial(compile_error, launch))
