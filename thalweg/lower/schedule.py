"""When launches wait for one another, who runs them, and what they amount to.

Threads walk the launches together. A launch waits only where it touches memory that a launch since
the last wait wrote, or writes memory that one of those touched; launches between two waits run in
any order. A launch too small to share is one thread's.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from thalweg.loops.kernel import Kernel, Loops
from thalweg.lower.amounts import moved_bytes, operations
from thalweg.lower.buffers import Buffer, Kind
from thalweg.lower.finish import Launch
from thalweg.lower.memory import Arena

#: Work, in vector instructions, below which a launch is one thread's: sharing costs more.
SMALL = 1_500.0

Extent = Buffer | tuple[int, int]

_known_work = WeakKeyDictionary[Kernel, float]()


def work_of(kernel: Kernel) -> float:
    """About how many vector instructions of 16 lanes a call takes."""
    if kernel not in _known_work:
        _known_work[kernel] = max(operations(kernel) / 24, moved_bytes(kernel) / 48)
    return _known_work[kernel]


def is_small(launch: Launch) -> bool:
    """Whether a launch is better left to one thread."""
    return work_of(launch.kernel) < SMALL


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
