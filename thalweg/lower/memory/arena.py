"""The memory plan: temporaries reuse the buffers of others, or get an offset in the arena.

Lifetimes are intervals of launches. A buffer may reuse one that its kernel reads for the last time,
at exactly the offsets that it writes, or row by row where all threads of a row have read it before
they write. All others are allocated in the arena, the largest first at
the lowest free offset: for the benchmarks' steps that takes at most 4 % more than what lives at
once, and for all but one of them nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg.ir.dynamic import is_static
from thalweg.ir.expr import Load, Reduce
from thalweg.ir.index import Affine
from thalweg.ir.rewrite import walk
from thalweg.ir.target import Target
from thalweg.lower.memory.buffers import Buffer, BufferKind, Pieces

if TYPE_CHECKING:
    from thalweg.lower.lowered import Launch
    from thalweg.lower.nests.loop_nest import LoopNest

Array = NDArray[Any]


def in_place(nests: Sequence[LoopNest], pieces: Pieces, target: Target) -> dict[Buffer, Buffer]:
    """The buffer whose memory each temporary reuses, for those that reuse one."""
    last: dict[Buffer, int] = {}
    first: dict[Buffer, int] = {}
    for position, nest in enumerate(nests):
        for buffer in nest.reads | nest.written:
            last[buffer] = position
            first.setdefault(buffer, position)
    memory: dict[Buffer, Buffer] = {}
    taken = {whole for whole, _ in pieces.values()}  # read through their sub-buffers
    for position, nest in enumerate(nests):
        for made, place in nest.places:
            is_new = made.kind is BufferKind.TEMPORARY and first[made] == position
            if not is_new or made in pieces:
                continue
            for buffer in nest.loaded:
                if (
                    buffer.kind is BufferKind.TEMPORARY
                    and buffer not in taken
                    and buffer not in nest.written
                    and buffer not in pieces
                    and last[buffer] == position
                    and (buffer.dtype, buffer.size) == (made.dtype, made.size)
                    and _may_replace(nest, buffer, place, target)
                ):
                    taken.add(buffer)
                    memory[made] = memory.get(buffer, buffer)
                    break
    return memory


def _may_replace(nest: LoopNest, buffer: Buffer, place: Affine, target: Target) -> bool:
    """Whether a nest may write where it loads from a buffer: factors of contractions and arguments
    of reductions are read in other iterations, too."""
    if any(write.combine != "set" for write in nest.template.writes) or nest.factors(buffer):
        return False
    if nest.has_reductions:
        return _keeps_row(nest, buffer, place, target)
    return all(offset == place for offset in nest.loads[buffer])


def _keeps_row(nest: LoopNest, buffer: Buffer, place: Affine, target: Target) -> bool:
    """Whether a nest writes rows that the target keeps, other than in registers, where it has read
    them: threads that share a row read all of it before they write any. What they find of other
    elements of it once for the row is found before as well."""
    if not nest.variables or nest.serial or not all(is_static(v.extent) for v in nest.variables):
        return False
    along = nest.variables[-1]
    if along.extent <= target.max_row_at_hand or not target.keeps_row(along.extent):
        return False
    if place.factor(along) != 1:
        return False
    before = place.without({along}).scaled(-1)
    spans = [(offset + before).bounds for offset in nest.loads[buffer]]
    if not all(low >= 0 and high < along.extent for low, high in spans):
        return False
    shared = [write.value for write in nest.writes if along in write.variables]
    outside = walk(shared, lambda part: () if isinstance(part, Reduce) else part.parts)
    return all(p.offset == place for p in outside if isinstance(p, Load) and p.buffer is buffer)


@dataclass(frozen=True)
class Arena:
    """The memory of a running step: its size, the offset of each temporary, and that of each
    launch's scratch memory."""

    size: int
    offsets: dict[Buffer, int]
    scratch: tuple[int, ...]


def arrange(
    launches: Sequence[Launch],
    scratch: Sequence[int],
    pieces: Pieces,
    target: Target,
    kept: Collection[int] = (),
) -> Arena:
    """Offsets for all temporaries and for the scratch memory of each launch; that of launches that
    are `kept` is theirs from call to call."""
    lives = lifetimes(launches, pieces)
    last = len(launches) - 1
    requests = [
        *(Request(*lives[whole], rounded(whole.bytes, target.alignment)) for whole in lives),
        *(
            Request(*((0, last) if at in kept else (at, at)), rounded(size, target.alignment))
            for at, size in enumerate(scratch)
            if size
        ),
    ]
    found, end = by_size(requests)
    starts = iter(found)
    offsets = {whole: next(starts) for whole in lives}
    scratches = tuple([next(starts) if size else 0 for size in scratch])
    for buffer, (whole, start) in pieces.items():
        if whole in lives:
            offsets[buffer] = offsets[whole] + start * np.dtype(whole.dtype).itemsize
    return Arena(end, offsets, scratches)


class Request(NamedTuple):
    """Bytes that are live from the beginning of one launch to the end of another."""

    first: int
    last: int
    size: int


def lifetimes(launches: Sequence[Launch], pieces: Pieces) -> dict[Buffer, tuple[int, int]]:
    """The first and the last launch that access each temporary or a sub-buffer of it."""
    lives: dict[Buffer, tuple[int, int]] = {}
    for position, launch in enumerate(launches):
        for buffer in launch.buffers:
            if buffer.kind is BufferKind.TEMPORARY:
                whole = pieces.get(buffer, (buffer, 0))[0]
                first, _ = lives.get(whole, (position, position))
                lives[whole] = first, position
    return lives


def by_size(requests: Sequence[Request]) -> tuple[list[int], int]:
    """The largest request first, at the lowest offset that is free in its lifetime: offsets,
    size."""
    starts = [0] * len(requests)
    order = sorted(range(len(requests)), key=lambda n: (-requests[n].size, requests[n].first))
    firsts, lasts, begins, ends = np.zeros((4, len(requests)), np.int64)
    for count, number in enumerate(order):
        first, last, size = requests[number]
        meets = (firsts[:count] <= last) & (lasts[:count] >= first)
        start = _lowest(begins[:count][meets], ends[:count][meets], size)
        firsts[count], lasts[count] = first, last
        begins[count], ends[count] = start, start + size
        starts[number] = start
    return starts, int(ends.max(initial=0))


def _lowest(begins: Array, ends: Array, size: int) -> int:
    """The lowest offset of `size` free bytes between allocated ranges."""
    order = np.argsort(begins)
    below = np.maximum.accumulate(np.concatenate([[0], ends[order]]))
    fits = np.flatnonzero(begins[order] - below[:-1] >= size)
    return int(below[fits[0]] if len(fits) else below[-1])


def rounded(count: int, alignment: int) -> int:
    """A number of bytes, rounded up to the alignment."""
    return max(-(-count // alignment), 1) * alignment
