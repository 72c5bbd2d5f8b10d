"""Which launches of a region come after which: the edges of its CUDA graph.

A launch comes after those that wrote what it accesses, and after those that accessed what it
writes. One that is guarded, because it writes a variable, comes after all checks. What follows from
other edges is left out. All launches are on a few lanes, in each of which one comes after another:
a graph that is wide takes its driver long to launch.
"""

from __future__ import annotations

from collections.abc import Sequence

from thalweg.ir.kernel import Loops
from thalweg.lower.lowered import Launch
from thalweg.lower.memory.arena import Arena
from thalweg.lower.memory.buffers import Buffer, BufferKind

_MAX_LANES = 8  # a hundred kernels side by side took 70 microseconds longer to launch

#: A range of the arena, or a buffer outside of it.
Extent = Buffer | tuple[int, int]


def is_check(launch: Launch) -> bool:
    """Whether a launch may find a fault."""
    return isinstance(launch.kernel, Loops) and bool(launch.kernel.checks)


def writes_variable(launch: Launch) -> bool:
    """Whether a launch writes what lasts."""
    return any(buffer.kind is BufferKind.VARIABLE for buffer in launch.written)


def edges(
    launches: Sequence[Launch], arena: Arena, scratch: Sequence[int]
) -> list[tuple[int, ...]]:
    """For each launch the earlier ones that it comes after; `scratch` is how much memory each one
    has at its place in the arena."""
    tracked = _Accesses()
    checks: list[int] = []
    before: list[int] = []  # all that each launch comes after, as bits
    found: list[tuple[int, ...]] = []
    for number, launch in enumerate(launches):
        written = [_extent(buffer, arena) for buffer in launch.written]
        if scratch[number]:
            start = arena.scratch[number]
            written.append((start, start + scratch[number]))
        read = [_extent(buffer, arena) for buffer in launch.buffers]
        needed = tracked.add_launch(number, read, written)
        if checks and writes_variable(launch):
            needed.update(checks)
        if is_check(launch):
            checks.append(number)
        direct, reached = _reduced(needed, before)
        found.append(direct)
        before.append(reached)
    return in_lanes(found)


def chained(count: int) -> list[tuple[int, ...]]:
    """Edges by which each launch comes after the one before."""
    return [(number - 1,) if number else () for number in range(count)]


def in_lanes(after: Sequence[tuple[int, ...]], most: int = _MAX_LANES) -> list[tuple[int, ...]]:
    """Edges with more of them, so that at most so many launches wait for nothing but what they
    need: one that continues no lane comes after the lane that has waited longest."""
    tails: list[int] = []  # the last launch of each lane
    result: list[tuple[int, ...]] = []
    for number, needed in enumerate(after):
        continued = [lane for lane, tail in enumerate(tails) if tail in needed]
        if continued:
            tails[continued[0]] = number
        elif len(tails) < most:
            tails.append(number)
        else:
            lane = min(range(most), key=tails.__getitem__)
            needed, tails[lane] = (*needed, tails[lane]), number
        result.append(needed)
    return result


def _reduced(needed: set[int], before: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Those of some launches that no other one of them comes after, and all that come before."""
    direct: list[int] = []
    reached = 0
    for number in sorted(needed, reverse=True):
        if not reached >> number & 1:
            direct.append(number)
            reached |= before[number] | 1 << number
    return tuple(direct), reached


def _extent(buffer: Buffer, arena: Arena) -> Extent:
    if buffer.kind is not BufferKind.TEMPORARY:
        return buffer
    start = arena.offsets[buffer]
    return start, start + max(buffer.bytes, 1)


class _Accesses:
    """The last launches that wrote and read each piece of memory."""

    def __init__(self) -> None:
        self._whole: dict[Buffer, tuple[int, list[int]]] = {}  # the writer (or -1), the readers
        self._ranges: list[tuple[int, int, int, bool]] = []  # (start, end, launch, writes)

    def add_launch(
        self, number: int, read: Sequence[Extent], written: Sequence[Extent]
    ) -> set[int]:
        """Note what a launch accesses; the launches that it must come after."""
        result: set[int] = set()
        for extents, writes in ((read, False), (written, True)):
            for extent in extents:
                if isinstance(extent, Buffer):
                    result |= self._add_buffer_access(number, extent, writes)
                else:
                    result |= self._add_range_access(number, *extent, writes)
        result.discard(number)
        return result

    def _add_buffer_access(self, number: int, buffer: Buffer, writes: bool) -> set[int]:
        writer, readers = self._whole.get(buffer, (-1, []))
        if writes:
            self._whole[buffer] = number, []
            return {writer, *readers} - {-1}
        self._whole[buffer] = writer, [*readers, number]
        return {writer} - {-1}

    def _add_range_access(self, number: int, start: int, end: int, writes: bool) -> set[int]:
        kept: list[tuple[int, int, int, bool]] = []
        result: set[int] = set()
        for one in self._ranges:
            first, last, launch, wrote = one
            meets = first < end and start < last
            if meets and (writes or wrote):
                result.add(launch)
            if not (meets and writes and start <= first and last <= end and launch != number):
                kept.append(one)  # unless it is overwritten: who comes later comes after us
        self._ranges = [*kept, (start, end, number, writes)]
        return result
