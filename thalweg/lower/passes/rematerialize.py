"""Rematerializes cheap temporaries instead of keeping them from the forward to the backward pass.

A temporary that is read again only after many other bytes were written has left the caches, and
occupies memory meanwhile. If it is cheap to compute from values that are live until then anyway (an
activation from its argument, a layer norm's scale from its rows' deviations), its late readers
recompute it. A factor of a late contraction is stored a second time, by an earlier nest that reads
those values at the same offsets. The cost rule is in `thalweg.lower.cost`.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from thalweg.ir.expr import Accumulated, Const, Expr, Load, Reduce, Scan, Variable, converted
from thalweg.ir.index import Affine, unraveled
from thalweg.ir.kernel import Store
from thalweg.ir.loop import iterations
from thalweg.ir.rewrite import Replace, free_variables, loads_in, outside_reductions, walk
from thalweg.ir.target import Target
from thalweg.lower.cost import element_cost, worth_rematerializing
from thalweg.lower.memory.buffers import Buffer, BufferKind, Pieces, nested_buffers, temporary_bytes
from thalweg.lower.nests.loop_nest import LoopNest, Renaming, dense_variables, users_of
from thalweg.lower.nests.reductions import outermost
from thalweg.platform.dtype_traits import is_narrow_float

_MAX_ROW_READERS = 2  # of a row that is reduced and then used: they are fused
_MIN_SHRINKAGE = 8  # of an operand, relative to the value, for its lifetime to be extended


def rematerialize(nests: Sequence[LoopNest], pieces: Pieces, target: Target) -> list[LoopNest]:
    """The nests, with temporaries rematerialized for late readers."""
    if sum(temporary_bytes(nest.written) for nest in nests) < target.far_bytes:
        return list(nests)
    return _Rematerialization(nests, pieces, target).run()


def inline_into_rows(nests: Sequence[LoopNest], pieces: Pieces, target: Target) -> list[LoopNest]:
    """The nests, with temporaries whose rows are reduced inlined into their readers: threads that
    share a row keep the operands."""
    if not target.fuses_rows:
        return list(nests)
    return _RowInlining(nests, pieces, target).run()


@dataclass(frozen=True)
class _Value:
    """The expression of a buffer's elements, over the variables of their offset."""

    buffer: Buffer
    expression: Expr
    offset: Affine
    variables: tuple[Variable, ...]  # of the offset, the outermost first

    def at(self, offset: Affine) -> Expr | None:
        """The value at an offset; None where its loads would not be at sums of variables."""
        renamed = Renaming(unraveled(offset, self.variables)).of(self.expression)
        return renamed if _is_plain(renamed) else None


class _Rematerialization:
    """The nests so far, and the positions of the writers and readers of each buffer."""

    def __init__(self, nests: Sequence[LoopNest], pieces: Pieces, target: Target) -> None:
        self._nests, self._target = list(nests), target
        written = [temporary_bytes(nest.written) for nest in nests]
        self._bytes_before = [0, *accumulate(written)]  # written before each nest
        self._fixed = nested_buffers(pieces)
        self._writers, self._readers = users_of(nests)

    def run(self) -> list[LoopNest]:
        for position in range(len(self._nests)):
            while self._rematerialize_one(position):
                pass  # removing one write may allow removing another
        return [nest for nest in self._nests if nest.template.roots]

    def _rematerialize_one(self, position: int) -> bool:
        """Rematerialize one of a nest's values, if possible."""
        nest = self._nests[position]
        if nest.template.is_sealed:
            return False
        targets = zip(nest.targets, nest.template.writes, strict=True)
        return any(
            self._is_candidate(buffer, write) and self._rematerialize(position, nest.writes[number])
            for number, (buffer, write) in enumerate(targets)
        )

    def _is_candidate(self, buffer: Buffer, write: Store) -> bool:
        return (
            buffer.kind is BufferKind.TEMPORARY
            and buffer.bytes >= self._target.min_rematerialized_bytes
            and self._is_recomputable(buffer)
            and buffer not in self._fixed
            and len(self._writers[buffer]) == 1
            and write.is_plain
        )

    def _is_recomputable(self, buffer: Buffer) -> bool:
        """Whether values of a buffer's dtype may be recomputed. A narrow float is rounded again,
        which must be free."""
        is_narrow = is_narrow_float(buffer.dtype) and self._target.widens_freely
        return is_narrow or np.dtype(buffer.dtype).name in ("float32", "float64")

    def _rematerialize(self, position: int, write: Store) -> bool:
        """Rematerialize a value for the readers after the longest gap between its uses, if
        possible."""
        last_early, late = self._gap(position, write.buffer)
        value = self._value(position, write) if late else None
        if value is None:
            return False
        cost = element_cost(value.expression, self._target)
        if not worth_rematerializing(cost, len(late), self._target):
            return False
        changed = self._changed(value, last_early, late)
        if not changed or not self._is_computable(position, value, changed):
            return False
        self._apply(position, value.buffer, changed)
        return True

    def _bytes_between(self, first: int, last: int) -> int:
        return self._bytes_before[last] - self._bytes_before[first + 1]

    def _gap(self, position: int, buffer: Buffer) -> tuple[int, list[int]]:
        """The last use before the longest gap between uses, and the readers after it if it is
        long."""
        uses = [position, *self._readers[buffer]]
        gaps = [self._bytes_between(*pair) for pair in pairwise(uses)]
        longest = max(gaps, default=0)
        if longest < self._target.far_bytes:
            return uses[-1], []
        longest_at = gaps.index(longest)
        return uses[longest_at], uses[longest_at + 1 :]

    def _value(self, position: int, write: Store) -> _Value | None:
        """The value of a write as an expression over buffers, including the nest's other
        results."""
        variables = dense_variables(write.offset, write.buffer.size)
        if variables is None or isinstance(write.value, Const):
            return None
        stored = {
            other.value: Load(other.buffer, other.offset)
            for other in self._nests[position].writes
            if other is not write and other.is_plain and other.value.dtype == other.buffer.dtype
        }
        stored.pop(write.value, None)
        expression = converted(Replace(stored.get).of(write.value), write.buffer.dtype)
        value = _Value(write.buffer, expression, write.offset, variables)
        return value if _is_plain(expression) else None

    def _is_computable(self, position: int, value: _Value, changed: dict[int, LoopNest]) -> bool:
        """Whether all operands of a value are live and unchanged until its last use."""
        loads = {load.buffer for load in loads_in([value.expression])}
        last = max(reader for reader, nest in changed.items() if loads <= nest.reads)
        return all(self._is_kept(buffer, position, last, value.buffer.bytes) for buffer in loads)

    def _is_kept(self, buffer: Buffer, position: int, last: int, size: int) -> bool:
        if buffer.is_variable:
            return not any(position <= writer <= last for writer in self._writers[buffer])
        if buffer.kind is not BufferKind.TEMPORARY:
            return all(writer <= position for writer in self._writers[buffer])
        if any(writer > position for writer in self._writers[buffer]):
            return False
        return self._readers[buffer][-1:] >= [last] or buffer.bytes * _MIN_SHRINKAGE <= size

    def _changed(
        self, value: _Value, last_early: int, late: Sequence[int]
    ) -> dict[int, LoopNest] | None:
        """The late readers, rewritten to recompute the value or to load a second copy of it; None
        where neither is possible."""
        changed: dict[int, LoopNest] = {}
        for number, position in enumerate(late):
            nest = self._fitting(_recomputing(self._nests[position], value))
            if nest is None:
                return self._with_second_store(value, last_early, late[number:], changed)
            changed[position] = nest
        return changed

    def _fitting(self, nest: LoopNest | None) -> LoopNest | None:
        """A nest, unless it is too large for one kernel."""
        if nest is None:
            return None
        size, writes = nest.template.expr_size, len(nest.writes)
        return nest if self._target.holds(size, len(nest.reads) + writes, writes) else None

    def _with_second_store(
        self, value: _Value, last_early: int, late: Sequence[int], changed: dict[int, LoopNest]
    ) -> dict[int, LoopNest] | None:
        """The same, where some readers load a copy that a nest shortly before them stores."""
        if not self._target.stores_again:
            return None
        copy = replace(value.buffer)
        for position in range(late[0] - 1, last_early, -1):
            if self._bytes_between(position, late[0]) >= self._target.far_bytes:
                return None
            host_nest = changed.get(position, self._nests[position])
            host = self._fitting(_storing(host_nest, value, copy))
            if host is not None:
                readers = {n: _reading_copy(self._nests[n], value, copy) for n in late}
                self._fixed.add(copy)
                return {**changed, position: host, **readers}
        return None

    def _apply(self, position: int, buffer: Buffer, changed: dict[int, LoopNest]) -> None:
        for reader, nest in changed.items():
            self._replace(reader, nest)
        if not self._readers[buffer]:
            nest = self._nests[position]
            kept = tuple(write for write in nest.writes if write.buffer is not buffer)
            self._replace(position, nest.with_writes(kept))

    def _replace(self, position: int, nest: LoopNest) -> None:
        old, self._nests[position] = self._nests[position], nest
        for before, after, positions in (
            (old.reads, nest.reads, self._readers),
            (old.written, nest.written, self._writers),
        ):
            for buffer in before - after:
                positions[buffer].remove(position)
            for buffer in after - before:
                insort(positions[buffer], position)


class _RowInlining(_Rematerialization):
    """The same for temporaries whose rows are reduced and then read by the nest that uses the
    reduction, however short the gap."""

    def _gap(self, position: int, buffer: Buffer) -> tuple[int, list[int]]:
        readers = self._readers[buffer]
        return position, list(readers) if self._are_of_rows(readers, buffer) else []

    def _are_of_rows(self, readers: Sequence[int], buffer: Buffer) -> bool:
        if not 0 < len(readers) <= _MAX_ROW_READERS:
            return False
        first, *others = readers
        return self._reduces_rows(self._nests[first], buffer) and all(
            self._follows(first, other, buffer.bytes) for other in others
        )

    def _follows(self, first: int, reader: int, size: int) -> bool:
        """Whether a nest reads the results of another one, or small values derived from these."""
        derived = set(self._nests[first].written)
        for nest in self._nests[first + 1 : reader]:
            if nest.product is None and sum(b.bytes for b in nest.written) * _MIN_SHRINKAGE <= size:
                derived |= nest.written if derived & nest.reads else set()
        return not derived.isdisjoint(self._nests[reader].reads)

    def _reduces_rows(self, nest: LoopNest, buffer: Buffer) -> bool:
        over = [p.variables for p in outermost(nest.values) if _reads([p], buffer)]
        lengths = [iterations(variables) for variables in over]
        longest = max(lengths, default=0)
        return nest.product is None and longest > 0 and self._target.keeps_row(longest)

    def _is_kept(self, buffer: Buffer, position: int, last: int, size: int) -> bool:
        """Operands whose lifetime grows must not be larger than the value that is not stored."""
        is_same = not any(position <= writer <= last for writer in self._writers[buffer])
        return is_same and (buffer.bytes <= size or super()._is_kept(buffer, position, last, size))


def _is_plain(value: Expr) -> bool:
    """Whether an expression has no reductions, and loads at sums of variables."""
    parts = walk([value])
    reduces = any(isinstance(part, Accumulated | Reduce | Scan) for part in parts)
    loads = [part for part in parts if isinstance(part, Load)]
    is_constant = isinstance(value, Const)
    return not (is_constant or reduces) and all(load.offset.is_plain for load in loads)


def _recomputing(nest: LoopNest, value: _Value) -> LoopNest | None:
    """A reader that recomputes a value; None if that is impossible or too costly."""
    buffer = value.buffer
    if nest.template.serial or nest.template.is_sealed:
        return None
    if buffer in nest.aliases or _loads_elsewhere(nest, buffer):
        return None
    if _load_count(nest, buffer) > buffer.size:
        return None
    loads = [load for load in loads_in(nest.values) if load.buffer is buffer]
    values: dict[Expr, Expr | None] = {load: value.at(load.offset) for load in loads}
    if None in values.values():
        return None
    replaced = Replace(values.get)
    writes = [replace(write, value=replaced.of(write.value)) for write in nest.writes]
    return nest.with_writes(tuple(writes))


def _loads_elsewhere(nest: LoopNest, buffer: Buffer) -> bool:
    """Whether a nest loads a buffer outside its values: in a factor or an offset."""
    roots = [part for write in nest.writes for part in (*write.offset.parts, write.inside)]
    return nest.has_factor(buffer) or _reads(roots, buffer)


def _load_count(nest: LoopNest, buffer: Buffer) -> int:
    """The most loads of a nest from a buffer, in its loops or in one reduction."""
    reductions = [part for part in outermost(nest.values) if _reads([part], buffer)]
    counts = [iterations(free_variables(part).union(part.variables)) for part in reductions]
    outside = outside_reductions(nest.values)
    if any(isinstance(part, Load) and part.buffer is buffer for part in outside):
        counts.append(iterations(nest.variables))
    return max(counts, default=0)


def _reads(values: Sequence[Expr | None], buffer: Buffer) -> bool:
    return any(load.buffer is buffer for load in loads_in(values))


def _storing(nest: LoopNest, value: _Value, copy: Buffer) -> LoopNest | None:
    """A nest that stores a value as well, if it reads an operand of it at the same offsets."""
    first = nest.writes[0] if nest.writes else None
    if first is None or nest.template.serial or nest.template.is_sealed:
        return None
    if len(first.variables) != len(nest.variables):
        return None
    if not all(write.is_plain for write in nest.writes):
        return None
    for offset in _aligned_offsets(nest, value):
        variables = dense_variables(offset, copy.size)
        if variables is None or set(variables) != {v for v in first.variables if v.extent > 1}:
            continue
        expression = value.at(offset)
        if expression is not None:
            write = Store(copy, first.variables, offset, expression)
            return nest.with_writes((*nest.writes, write))
    return None


def _aligned_offsets(nest: LoopNest, value: _Value) -> list[Affine]:
    """The offsets at which a nest loads elementwise operands of a value."""
    aligned = [load for load in loads_in([value.expression]) if load.offset == value.offset]
    buffers = [load.buffer for load in aligned if not _loads_elsewhere(nest, load.buffer)]
    return [offset for buffer in buffers for offset in nest.loads.get(buffer, ())]


def _reading_copy(nest: LoopNest, value: _Value, copy: Buffer) -> LoopNest:
    """A reader that loads a value from its second copy."""
    views = [(copy if buffer is value.buffer else buffer, shift) for buffer, shift in nest.views]
    return replace(nest, bindings=tuple(views))
