"""When launches wait for one another, who runs them, and what they amount to.

Threads walk the launches together. A launch waits only where it touches memory that a launch since
the last wait wrote, or writes memory that one of those touched; launches between two waits run in
any order. A launch too small to share is one thread's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from thalweg.loops.expr import Expr
from thalweg.loops.kernel import Contraction, Kernel, Loops
from thalweg.lower.buffers import Buffer, Kind
from thalweg.lower.finish import Launch
from thalweg.lower.memory import Arena

#: Work, in vector instructions, below which a launch is one thread's: sharing costs more.
SMALL = 1_500.0

Extent = Buffer | tuple[int, int]


@dataclass(frozen=True, eq=False)
class Amount:
    """What a kernel computes and moves."""

    kernel: Kernel

    @cached_property
    def flops(self) -> float:
        """Arithmetic operations, a multiplication with its addition counting as two."""
        kernel = self.kernel
        if isinstance(kernel, Contraction):
            nest = (*kernel.batch, *kernel.rows, *kernel.columns)
            results = _count(nest)
            products = results * _count(kernel.reduced)
            return 2.0 * products + results * _weight([s.value for s in kernel.stores])
        roots = [*(s.value for s in kernel.stores), *(c.condition for c in kernel.checks)]
        return _count(kernel.variables) * _weight(roots)

    @cached_property
    def bytes(self) -> int:
        """What is read and written, each buffer counted once."""
        return sum(int(a.size) * np.dtype(a.dtype).itemsize for a in self.kernel.arguments)

    @property
    def work(self) -> float:
        """About how many vector instructions of 16 lanes it takes."""
        return max(self.flops / 24, self.bytes / 48)


def _count(variables: Sequence[Any]) -> int:
    return math.prod(int(variable.extent) for variable in variables)


def _weight(roots: Sequence[Any]) -> float:
    """Operations per element, those of reductions counted as often as they are done."""
    total, seen = 0.0, set[int]()
    pending: list[tuple[Any, float]] = [(root, 1.0) for root in roots]
    while pending:
        part, times = pending.pop()
        if not isinstance(part, Expr) or id(part) in seen:
            continue
        seen.add(id(part))
        if part.function == "load":
            continue
        if part.function == "reduce":
            times *= _count(part.arguments[1])
            pending.append((part.arguments[2], times))
        else:
            pending += [(piece, times) for piece in part.arguments]
        total += times if part.function not in ("index", "sum") else 0.0
    return total


def is_small(launch: Launch) -> bool:
    """Whether a launch is better left to one thread."""
    return Amount(launch.kernel).work < SMALL


class Waits:
    """Which launches wait, asked one after the other."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._read: list[Extent] = []
        self._written: list[Extent] = []
        self._unsettled = False  # checks have run whose verdict nobody has looked at

    def before(self, launch: Launch, scratch: tuple[int, int]) -> bool:
        """Whether the next launch waits. `scratch` is its piece of the arena: (start, end)."""
        written = [self._extent(buffer) for buffer in launch.written]
        written += [scratch] if scratch[1] > scratch[0] else []
        touched = [*(self._extent(buffer) for buffer in launch.buffers), *written]
        waits = _meet(self._written, touched) or _meet(self._read, written)
        if self._unsettled and any(b.kind is Kind.VARIABLE for b in launch.written):
            waits = True  # nothing that lasts is written before all checks have held
        if waits:
            self._read, self._written, self._unsettled = [], [], False
        if isinstance(launch.kernel, Loops) and launch.kernel.checks:
            self._unsettled = True
        self._read += touched
        self._written += written
        return waits

    def _extent(self, buffer: Buffer) -> Extent:
        if buffer.kind is not Kind.TEMPORARY:
            return buffer
        start = self._arena.offsets[buffer]
        return start, start + max(buffer.bytes, 1)


def _meet(ones: Sequence[Extent], others: Sequence[Extent]) -> bool:
    return any(_overlap(one, other) for one in ones for other in others)


def _overlap(one: Extent, other: Extent) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return one[0] < other[1] and other[0] < one[1]
    return one is other
