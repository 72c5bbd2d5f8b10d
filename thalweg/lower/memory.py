"""Where temporaries live: in place of what dies as they are made, or at an offset in the arena.

Lifetimes are those of the order of launches. A buffer may take over the memory of one that its
kernel reads for the last time, at exactly the places it writes. Everything else gets the smallest
free piece of the arena that holds it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from thalweg.lower.buffers import Buffer, Kind
from thalweg.lower.drafts import Draft
from thalweg.lower.finish import Launch
from thalweg.lower.stack import Pieces

ALIGNMENT = 64


def in_place(drafts: Sequence[Draft], pieces: Pieces) -> dict[Buffer, Buffer]:
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
        for write in draft.writes:
            if write.buffer.kind is not Kind.TEMPORARY or first[write.buffer] != position:
                continue
            if write.buffer in pieces:
                continue
            for buffer, offsets in draft.loads.items():
                if (
                    buffer.kind is Kind.TEMPORARY
                    and buffer not in taken
                    and buffer not in draft.written
                    and buffer not in pieces
                    and last[buffer] == position
                    and (buffer.dtype, buffer.size) == (write.buffer.dtype, write.buffer.size)
                    and all(offset == write.offset for offset in offsets)
                    and _may_replace(draft, buffer)
                ):
                    taken.add(buffer)
                    memory[write.buffer] = memory.get(buffer, buffer)
                    break
    return memory


def _may_replace(draft: Draft, buffer: Buffer) -> bool:
    """A factor of a product, and what a reduction sees, is read at other places than its own."""
    if draft.has_reductions or any(write.combine != "set" for write in draft.writes):
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


def arrange(launches: Sequence[Launch], scratch: Sequence[int], pieces: Pieces) -> Arena:
    """Offsets for all temporaries and for the scratch memory of each launch."""
    space = _Space()
    dying = _dying(launches, pieces)
    offsets: dict[Buffer, int] = {}
    scratches: list[int] = []
    for position, launch in enumerate(launches):
        for buffer in launch.buffers:
            if buffer.kind is Kind.TEMPORARY and buffer not in offsets:
                home, start = pieces.get(buffer, (buffer, 0))
                if home not in offsets:
                    offsets[home] = space.take(home.bytes)
                offsets[buffer] = offsets[home] + start * np.dtype(home.dtype).itemsize
        scratches.append(space.take(scratch[position]) if scratch[position] else 0)
        if scratch[position]:
            space.give(scratches[-1], scratch[position])
        for buffer in dying[position]:
            space.give(offsets[buffer], buffer.bytes)
    return Arena(space.size, offsets, tuple(scratches))


def _dying(launches: Sequence[Launch], pieces: Pieces) -> dict[int, list[Buffer]]:
    """After each launch, the temporaries that no later one touches, not even in pieces."""
    last: dict[Buffer, int] = {}
    for position, launch in enumerate(launches):
        for buffer in launch.buffers:
            if buffer.kind is Kind.TEMPORARY:
                last[pieces.get(buffer, (buffer, 0))[0]] = position
    dying: dict[int, list[Buffer]] = defaultdict(list)
    for buffer, position in last.items():
        dying[position].append(buffer)
    return dying


class _Space:
    """Free pieces of an arena that grows as needed; the smallest that fits is taken."""

    def __init__(self) -> None:
        self.size = 0
        self._free: dict[int, int] = {}  # start -> length

    def take(self, count: int) -> int:
        length = max(-(-count // ALIGNMENT), 1) * ALIGNMENT
        fitting = [(size, start) for start, size in self._free.items() if size >= length]
        if fitting:
            size, start = min(fitting)
            del self._free[start]
            if size > length:
                self._free[start + length] = size - length
            return start
        start = self.size
        tail = max(self._free, default=-1)
        if tail >= 0 and tail + self._free[tail] == self.size:
            start = tail
            del self._free[tail]
        self.size = start + length
        return start

    def give(self, start: int, count: int) -> None:
        length = max(-(-count // ALIGNMENT), 1) * ALIGNMENT
        for other, size in list(self._free.items()):
            if other + size == start:
                start, length = other, size + length
                del self._free[other]
            elif start + length == other:
                length += size
                del self._free[other]
        self._free[start] = length
