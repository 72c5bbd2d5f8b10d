"""Kernels as the cache is asked for them: by a key, and how to make what is not there yet.

A kernel's key is its structure, its integers and the text of the generators themselves: what was
made before is found without being emitted again. The generators are imported when the first kernel
is to be made.
"""

from __future__ import annotations

import importlib
from functools import cache, partial
from typing import TYPE_CHECKING

from thalweg.codegen.contraction.tune import winners
from thalweg.codegen.llvm.emitted import Emitted, Request
from thalweg.codegen.loops.iteration import Iteration
from thalweg.codegen.machine import SLOTS, CpuTarget
from thalweg.codegen.sources import own_digest
from thalweg.codegen.winograd import ENABLED
from thalweg.ir.dynamic import Dynamic
from thalweg.ir.fingerprint import fingerprint, integers
from thalweg.ir.kernel import Contraction, Kernel, Loops

if TYPE_CHECKING:
    from thalweg.codegen.contraction.schedule import Schedule

#: About what a kernel takes to make and compile, measured.
_SECONDS = {Contraction: 20e-3, Loops: 8e-3}
_SECONDS_PER_INTEGER = 0.2e-3


def request(kernel: Kernel, target: CpuTarget, schedule: Schedule | None = None) -> Request:
    """The kernel as the cache is asked for it: by a schedule that is given, or was tuned."""
    key = key_of(kernel)
    if schedule is None and isinstance(kernel, Contraction):
        schedule = tuned_schedule(kernel, target)
    chosen = key if schedule is None else f"{key} {schedule}"
    cost = _SECONDS[type(kernel)] + _SECONDS_PER_INTEGER * len(integers(kernel))
    passes = "tiles" if isinstance(kernel, Contraction) else "loops"
    return Request(chosen, partial(_emit, kernel, target, schedule), cost, passes)


def iteration_request(body: Iteration, target: CpuTarget) -> Request:
    """An iteration that repeats itself, as the cache is asked for it."""
    keys = [key_of(kernel) for kernel in body.kernels]
    rest = body.starts, body.memory, sorted(body.overlapping), body.deciding, body.most
    cost = _SECONDS[Loops] * len(keys)
    return Request(f"{keys} {rest}", partial(_emit_iteration, body, target), cost, "iterations")


def tuned_schedule(kernel: Contraction, target: CpuTarget) -> Schedule | None:
    """The schedule that was found best for a contraction, if it was ever measured."""
    return winners().find(key_of(kernel), target)


def keep_schedule(kernel: Contraction, target: CpuTarget, schedule: Schedule) -> None:
    """From now on, and in later processes, make a contraction by this schedule."""
    winners().keep(key_of(kernel), target, schedule)


def key_of(kernel: Kernel) -> str:
    """What a kernel is: its structure and its integers, and who makes code of it."""
    words = [f"w{n.word}" if isinstance(n, Dynamic) else n for n in integers(kernel)]
    return f"{_generators()} {fingerprint(kernel).hex()} {words}"


@cache
def _generators() -> str:
    """A digest of the code that makes code, and what was switched off of it: kernels made by other
    versions of it do not count."""
    return f"{own_digest(('codegen', 'ir'))} {SLOTS}" + ("" if ENABLED else " plain")


def _emit(kernel: Kernel, target: CpuTarget, schedule: Schedule | None) -> Emitted:
    return importlib.import_module("thalweg.codegen.emit").emit(kernel, target, schedule)


def _emit_iteration(body: Iteration, target: CpuTarget) -> Emitted:
    return importlib.import_module("thalweg.codegen.loops.kernel").emit_iteration(body, target)
