"""The memory plan: temporaries reuse the buffers of others, or get an offset in the arena.

Lifetimes are intervals of launches. A temporary may reuse the buffer that its kernel reads for the
last time, if the kernel reads it at the offsets that it writes, or if the threads of a row read the
whole row before they write. All others are allocated in the arena, the largest first, at the lowest
free offset. For the benchmarks' steps that takes at most 4 % more than the most bytes live at once,
and for all but one of them no more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from thalweg.ir.expr import Load
from thalweg.ir.index import Affine
from thalweg.ir.rewrite import outside_reductions
from thalweg.ir.target import Target
from thalweg.lower.memory.buffers import Buffer, BufferKind, Pieces
from thalweg.platform.arrays import Array

if TYPE_CHECKING:
    from thalweg.lower.lowered import Launch
    from thalweg.lower.nests.loop_nest import LoopNest


def in_place(nests: Sequence[LoopNest], pieces: Pieces, target: Target) -> dict[Buffer, Buffer]:
    """The buffer whose memory each temporary reuses, for those that reuse one."""
    last_use: dict[Buffer, int] = {}
    first_use: dict[Buffer, int] = {}
    for position, nest in enumerate(nests):
        for buffer in nest.reads | nest.written:
            last_use[buffer] = position
            first_use.setdefault(buffer, position)
    memory: dict[Buffer, Buffer] = {}
    reused = {whole for whole, _ in pieces.values()}  # read through their sub-buffers
    for position, nest in enumerate(nests):
        for written, offset in nest.write_offsets:
            is_new = written.kind is BufferKind.TEMPORARY and first_use[written] == position
            if not is_new or written in pieces:
                continue
            for buffer in nest.loaded:
                if (
                    buffer.kind is BufferKind.TEMPORARY
                    and buffer not in reused
                    and buffer not in nest.written
                    and buffer not in pieces
                    and last_use[buffer] == position
                    and (buffer.dtype, buffer.size) == (written.dtype, written.size)
                    and _may_replace(nest, buffer, offset, target)
                ):
                    reused.add(buffer)
                    memory[written] = memory.get(buffer, buffer)
                    break
    return memory


def _may_replace(nest: LoopNest, buffer: Buffer, written_at: Affine, target: Target) -> bool:
    """Whether a nest may write its output over a buffer that it loads from. Factors of contractions
    and operands of reductions are read in other iterations, too."""
    if any(write.combine != "set" for write in nest.template.writes) or nest.has_factor(buffer):
        return False
    if nest.template.has_reductions:
        return _keeps_row(nest, buffer, written_at, target)
    return all(offset == written_at for offset in nest.loads[buffer])


def _keeps_row(nest: LoopNest, buffer: Buffer, written_at: Affine, target: Target) -> bool:
    """Whether a nest overwrites rows that the target keeps outside registers: threads that share a
    row load all of it before they write any. Outside reductions, which run before the writes, each
    element may depend only on the element that it overwrites."""
    if not nest.variables or nest.template.serial:
        return False
    along = nest.variables[-1]
    if along.extent <= target.max_row_at_hand or not target.keeps_row(along.extent):
        return False
    if written_at.factor(along) != 1:
        return False
    row_start = written_at.without({along}).scaled(-1)
    if not all((offset + row_start).is_within(along.extent) for offset in nest.loads[buffer]):
        return False
    values = [write.value for write in nest.writes if along in write.variables]
    outside = [part for part in outside_reductions(values) if isinstance(part, Load)]
    return all(load.offset == written_at for load in outside if load.buffer is buffer)


@dataclass(frozen=True)
class Arena:
    """The memory of a running step: its size, and the offsets of temporaries and of the scratch
    memory of each launch."""

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
    """Offsets for all temporaries and for the scratch memory of each launch. The scratch memory of
    `kept` launches lives through the whole step and to the next call."""
    lives = lifetimes(launches, pieces)
    requests = [Request(*lives[root], rounded(root.bytes, target.alignment)) for root in lives]
    for position, size in enumerate(scratch):
        if size:
            life = (0, len(launches) - 1) if position in kept else (position, position)
            requests.append(Request(*life, rounded(size, target.alignment)))
    starts, end = by_size(requests)
    next_start = iter(starts)
    offsets = {root: next(next_start) for root in lives}
    scratches = tuple([next(next_start) if size else 0 for size in scratch])
    for piece, (root, start) in pieces.items():
        if root in lives:
            offsets[piece] = offsets[root] + start * np.dtype(root.dtype).itemsize
    return Arena(end, offsets, scratches)


class Request(NamedTuple):
    """Bytes that are live from the launch `first` to the launch `last`."""

    first: int
    last: int
    size: int


def lifetimes(launches: Sequence[Launch], pieces: Pieces) -> dict[Buffer, tuple[int, int]]:
    """The first and the last launch that access each temporary or a sub-buffer of it."""
    lives: dict[Buffer, tuple[int, int]] = {}
    for position, launch in enumerate(launches):
        for buffer in launch.buffers:
            if buffer.kind is BufferKind.TEMPORARY:
                root = pieces.get(buffer, (buffer, 0))[0]
                first, _ = lives.get(root, (position, position))
                lives[root] = first, position
    return lives


def by_size(requests: Sequence[Request]) -> tuple[list[int], int]:
    """Allocates the largest request first, at the lowest offset that is free in its lifetime.
    Returns the offsets, and the size of the arena."""
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
    free_from = np.maximum.accumulate(np.concatenate([[0], ends[order]]))
    fits = np.flatnonzero(begins[order] - free_from[:-1] >= size)
    return int(free_from[fits[0]] if len(fits) else free_from[-1])


def rounded(count: int, alignment: int) -> int:
    """A number of bytes, rounded up to the alignment."""
    return max(-(-count // alignment), 1) * alignment
