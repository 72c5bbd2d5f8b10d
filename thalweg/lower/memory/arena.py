"""Where temporaries live: in place of what dies as they are made, or at an offset in the arena.

Lifetimes are those of the order of launches. A buffer may take over the memory of one that its
kernel reads for the last time, at exactly the places it writes. Everything else gets a piece of the
arena that nobody has during its life: the smallest that is free when it begins, or, where that
leaves holes, the lowest one, those of the largest buffers chosen first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg.ir.target import Target
from thalweg.lower.memory.buffers import Buffer, BufferKind
from thalweg.lower.nests.bufferize import Launch
from thalweg.lower.nests.loop_nest import LoopNest
from thalweg.lower.passes.merge_reductions import Pieces

_NEAR = 1.02  # times the least memory that there can be, which is not worth a second attempt

Array = NDArray[Any]


def in_place(drafts: Sequence[LoopNest], pieces: Pieces) -> dict[Buffer, Buffer]:
    """For each temporary that takes over another one's memory, whose it is."""
    last: dict[Buffer, int] = {}
    first: dict[Buffer, int] = {}
    for position, draft in enumerate(drafts):
        for buffer in draft.reads | draft.written:
            last[buffer] = position
            first.setdefault(buffer, position)
    memory: dict[Buffer, Buffer] = {}
    taken = {home for home, _ in pieces.values()}  # whose pieces may be read when they are not
    for position, draft in enumerate(drafts):
        for target, place in draft.places:
            if target.kind is not BufferKind.TEMPORARY or first[target] != position:
                continue
            if target in pieces:
                continue
            for buffer in draft.loaded:
                if (
                    buffer.kind is BufferKind.TEMPORARY
                    and buffer not in taken
                    and buffer not in draft.written
                    and buffer not in pieces
                    and last[buffer] == position
                    and (buffer.dtype, buffer.size) == (target.dtype, target.size)
                    and all(offset == place for offset in draft.loads[buffer])
                    and _may_replace(draft, buffer)
                ):
                    taken.add(buffer)
                    memory[target] = memory.get(buffer, buffer)
                    break
    return memory


def _may_replace(draft: LoopNest, buffer: Buffer) -> bool:
    """A factor of a product, and what a reduction sees, is read at other places than its own."""
    if draft.has_reductions or any(write.combine != "set" for write in draft.nest.writes):
        return False
    product = draft.product
    return product is None or buffer not in (product.a.buffer, product.b.buffer)


@dataclass(frozen=True)
class Arena:
    """The memory of a step in flight: its size, where temporaries lie in it, and each launch's
    scratch."""

    size: int
    offsets: dict[Buffer, int]
    scratch: tuple[int, ...]


def arrange(
    launches: Sequence[Launch], scratch: Sequence[int], pieces: Pieces, target: Target
) -> Arena:
    """Offsets for all temporaries and for the scratch memory of each launch."""
    lives = _lives(launches, pieces)
    homes = list(lives)
    needed = [
        *(Need(*lives[home], rounded(home.bytes, target.alignment)) for home in homes),
        *(Need(at, at, rounded(size, target.alignment)) for at, size in enumerate(scratch) if size),
    ]
    found = placed(needed)
    end = max((start + need.size for start, need in zip(found, needed, strict=True)), default=0)
    starts = iter(found)
    places = {home: next(starts) for home in homes}
    scratches = tuple([next(starts) if size else 0 for size in scratch])
    offsets = dict(places)
    for buffer, (home, start) in pieces.items():
        if home in places:
            offsets[buffer] = places[home] + start * np.dtype(home.dtype).itemsize
    return Arena(end, offsets, scratches)


class Need(NamedTuple):
    """So many bytes from the beginning of one launch to the end of another."""

    first: int
    last: int
    size: int


def _lives(launches: Sequence[Launch], pieces: Pieces) -> dict[Buffer, tuple[int, int]]:
    """The first and the last launch that touch each temporary, be it in pieces."""
    lives: dict[Buffer, tuple[int, int]] = {}
    for position, launch in enumerate(launches):
        for buffer in launch.buffers:
            if buffer.kind is BufferKind.TEMPORARY:
                home = pieces.get(buffer, (buffer, 0))[0]
                first, _ = lives.get(home, (position, position))
                lives[home] = first, position
    return lives


def placed(needed: Sequence[Need]) -> list[int]:
    """A place for each need: as launches come to them, or the largest ones first, whichever takes
    less memory in all."""
    first, size = in_time(needed)
    if size <= most_at_once(needed) * _NEAR:
        return first
    second, other = by_size(needed)
    return second if other < size else first


def most_at_once(needed: Sequence[Need]) -> int:
    """The most bytes that are in use at a time: no arrangement takes less."""
    changes: dict[int, int] = defaultdict(int)
    for need in needed:
        changes[need.first] += need.size
        changes[need.last + 1] -= need.size
    return max(accumulate(changes[at] for at in sorted(changes)), default=0)


def in_time(needed: Sequence[Need]) -> tuple[list[int], int]:
    """Each takes the smallest piece that is free when its life begins."""
    space = _Space()
    starts = [0] * len(needed)
    dying: list[tuple[int, int, int]] = []  # when, in which order they were born, which
    order = sorted(range(len(needed)), key=lambda number: needed[number].first)
    births = iter(range(len(needed)))
    for at, born in groupby(order, key=lambda number: needed[number].first):
        while dying and dying[0][0] < at:
            _, _, number = heappop(dying)
            space.give(starts[number], needed[number].size)
        for number in born:
            starts[number] = space.take(needed[number].size)
            heappush(dying, (needed[number].last, next(births), number))
    return starts, space.size


def by_size(needed: Sequence[Need]) -> tuple[list[int], int]:
    """Each, the largest first, goes to the lowest place where nobody is during its life."""
    starts = [0] * len(needed)
    order = sorted(range(len(needed)), key=lambda n: (-needed[n].size, needed[n].first))
    firsts, lasts, begins, ends = np.zeros((4, len(needed)), np.int64)
    for count, number in enumerate(order):
        first, last, size = needed[number]
        meets = (firsts[:count] <= last) & (lasts[:count] >= first)
        start = _lowest(begins[:count][meets], ends[:count][meets], size)
        firsts[count], lasts[count] = first, last
        begins[count], ends[count] = start, start + size
        starts[number] = start
    return starts, int(ends.max(initial=0))


def _lowest(begins: Array, ends: Array, size: int) -> int:
    """The lowest place for so many bytes beside pieces that are taken."""
    order = np.argsort(begins)
    below = np.maximum.accumulate(np.concatenate([[0], ends[order]]))
    fits = np.flatnonzero(begins[order] - below[:-1] >= size)
    return int(below[fits[0]] if len(fits) else below[-1])


def rounded(count: int, alignment: int) -> int:
    """So many bytes, and as many more as the next buffer's alignment takes."""
    return max(-(-count // alignment), 1) * alignment


class _Space:
    """Free pieces of an arena that grows as needed; the smallest that fits is taken."""

    def __init__(self) -> None:
        self.size = 0
        self._free: dict[int, int] = {}  # start -> length
        self._ends: dict[int, int] = {}  # end -> start

    def take(self, length: int) -> int:
        fitting = [(size, start) for start, size in self._free.items() if size >= length]
        if fitting:
            size, start = min(fitting)
            self._remove(start)
            if size > length:
                self._enter(start + length, size - length)
            return start
        start = self._ends.get(self.size, self.size)
        if start < self.size:
            self._remove(start)
        self.size = start + length
        return start

    def give(self, start: int, length: int) -> None:
        """Free a piece, joined with those beside it."""
        before, after = self._ends.get(start), start + length
        if after in self._free:
            length += self._remove(after)
        if before is not None:
            length += self._remove(before)
            start = before
        self._enter(start, length)

    def _enter(self, start: int, length: int) -> None:
        self._free[start], self._ends[start + length] = length, start

    def _remove(self, start: int) -> int:
        length = self._free.pop(start)
        del self._ends[start + length]
        return length
