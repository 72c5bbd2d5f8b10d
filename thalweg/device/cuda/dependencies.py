"""The dependencies between launches of a region: the edges of its CUDA graph.

A launch depends on those with which it has a memory hazard. A guarded one, which writes a variable,
depends on all checks. Transitive edges are omitted. Launches are distributed over a few serial
lanes: the driver is slow to launch wide graphs.
"""

from __future__ import annotations

from collections.abc import Sequence

from thalweg.ir.kernel import Loops
from thalweg.lower.lowered import Launch
from thalweg.lower.memory.arena import Arena
from thalweg.lower.memory.buffers import Buffer, BufferKind

_MAX_LANES = 8  # a hundred parallel kernels took 70 microseconds longer to launch

#: A range of the arena, or a buffer outside of it.
Extent = Buffer | tuple[int, int]


def is_check(launch: Launch) -> bool:
    """Whether a launch may set the fault word."""
    return isinstance(launch.kernel, Loops) and bool(launch.kernel.checks)


def writes_variable(launch: Launch) -> bool:
    """Whether a launch writes a variable."""
    return any(buffer.kind is BufferKind.VARIABLE for buffer in launch.written)


def edges(
    launches: Sequence[Launch], arena: Arena, scratch: Sequence[int]
) -> list[tuple[int, ...]]:
    """The earlier launches that each launch depends on; `scratch` is the size of each launch's
    scratch memory in the arena."""
    tracked = _Accesses()
    checks: list[int] = []
    before: list[int] = []  # the transitive dependencies of each launch, as bits
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
        direct, reached = _transitive_reduction(needed, before)
        found.append(direct)
        before.append(reached)
    return limit_lanes(found)


def serial_edges(count: int) -> list[tuple[int, ...]]:
    """Edges that serialize launches: each depends on the previous one."""
    return [(number - 1,) if number else () for number in range(count)]


def limit_lanes(after: Sequence[tuple[int, ...]], most: int = _MAX_LANES) -> list[tuple[int, ...]]:
    """Add edges so that launches form at most `most` serial lanes: a launch continues a lane that
    it depends on, a new one, or else the lane whose last launch is the oldest."""
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


def _transitive_reduction(needed: set[int], before: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """The dependencies that are not implied by others; and all transitive ones, as bits."""
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
    """The last launches that wrote and read each buffer and range of the arena."""

    def __init__(self) -> None:
        self._whole: dict[Buffer, tuple[int, list[int]]] = {}  # the writer (or -1), the readers
        self._ranges: list[tuple[int, int, int, bool]] = []  # (start, end, launch, writes)

    def add_launch(
        self, number: int, read: Sequence[Extent], written: Sequence[Extent]
    ) -> set[int]:
        """Record the accesses of a launch; returns the launches with which it has a hazard."""
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
                kept.append(one)  # unless it is overwritten: later hazards are with this launch
        self._ranges = [*kept, (start, end, number, writes)]
        return result
