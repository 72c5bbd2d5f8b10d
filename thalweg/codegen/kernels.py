"""Cache requests for kernels: a key, and how to emit the kernel on a miss.

The key is the kernel's structure and integers plus a digest of the generators' own code, so a hit
emits nothing. The generators are imported on the first miss.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from thalweg.codegen.contraction.tune import winners
from thalweg.codegen.llvm.emitted import Emitted, Request
from thalweg.codegen.machine import SLOTS, CpuTarget
from thalweg.codegen.sources import own_digest
from thalweg.codegen.winograd import ENABLED
from thalweg.ir.dynamic import Dynamic
from thalweg.ir.fingerprint import summary
from thalweg.ir.kernel import Contraction, Kernel, Loops
from thalweg.ir.target import Target

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from thalweg.codegen.contraction.schedule import Schedule

#: Approximate seconds to emit and compile a kernel, measured.
_SECONDS = {Contraction: 20e-3, Loops: 8e-3}
_SECONDS_PER_INTEGER = 0.2e-3


def request(kernel: Kernel, target: CpuTarget, schedule: Schedule | None = None) -> Request:
    """The cache request for a kernel; without a `schedule`, a contraction uses its tuned one."""
    key = key_of(kernel)
    if schedule is None and isinstance(kernel, Contraction):
        schedule = tuned_schedule(kernel, target)
    if schedule is not None:
        key = f"{key} {schedule}"
    cost = _SECONDS[type(kernel)] + _SECONDS_PER_INTEGER * len(summary(kernel).integers)
    passes = "tiles" if isinstance(kernel, Contraction) else "loops"
    return Request(key, partial(_emit, kernel, target, schedule), cost, passes)


@dataclass(frozen=True)
class Iteration:
    """Kernels that together are one iteration of a loop. They repeat while a byte that one of them
    writes is not zero, at most `max_iterations` times in one call.

    Their argument words are concatenated. Arguments are identified by the number of their memory,
    which several kernels may share.
    """

    kernels: tuple[Loops, ...]
    word_starts: tuple[int, ...]  # where each kernel's words begin
    memory: tuple[tuple[int, ...], ...]  # of each kernel's arguments
    overlapping: frozenset[int]  # memory that may alias other memory
    condition: int  # the memory whose first byte is the loop condition
    max_iterations: int


def iteration_request(body: Iteration, target: CpuTarget) -> Request:
    """The cache request for a loop whose body is a sequence of kernels."""
    keys = [key_of(kernel) for kernel in body.kernels]
    memory = body.word_starts, body.memory, sorted(body.overlapping)
    key = f"{keys} {memory} {body.condition} {body.max_iterations}"
    cost = _SECONDS[Loops] * len(keys)
    return Request(key, partial(_emit_iteration, body, target), cost, "iterations")


def tuned_schedule(kernel: Contraction, target: CpuTarget) -> Schedule | None:
    """The schedule that measured fastest for a contraction, if it was tuned."""
    # Imported late: a process that finds its programs on disk needs no compiler.
    compiler = importlib.import_module("thalweg.codegen.contraction.schedule")
    return winners().find(key_of(kernel), target, compiler.Schedule(1, 0, 1))


def keep_schedule(kernel: Contraction, target: Target, schedule: DataclassInstance) -> None:
    """Use this schedule for a contraction, in this process and in later ones."""
    winners().keep(key_of(kernel), target, schedule)


def key_of(kernel: Kernel) -> str:
    """The key of a kernel: the generators' digest, its structure and its integers."""
    fingerprint, integers, _ = summary(kernel)
    words = [f"w{n.word}" if isinstance(n, Dynamic) else n for n in integers]
    return f"{_generator_digest()} {fingerprint.hex()} {words}"


@cache
def _generator_digest() -> str:
    """A digest of the generators' code and switches: other versions' kernels are misses."""
    return f"{own_digest(('codegen', 'ir'))} {SLOTS}" + ("" if ENABLED else " plain")


def _emit(kernel: Kernel, target: CpuTarget, schedule: Schedule | None) -> Emitted:
    return importlib.import_module("thalweg.codegen.emit").emit(kernel, target, schedule)


def _emit_iteration(body: Iteration, target: CpuTarget) -> Emitted:
    return importlib.import_module("thalweg.codegen.loops.kernel").emit_iteration(body, target)
