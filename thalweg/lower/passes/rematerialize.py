"""Rematerializes cheap temporaries instead of keeping them from the forward to the backward pass.

A temporary that is read again only after many other bytes were written has left the caches, and
takes up memory meanwhile. Where it is cheap to compute from values that are live until then anyway
(an activation from its argument, a layer norm's scale from its rows' deviations), its late readers
compute it themselves. A late factor of a contraction is stored again, by an earlier nest that reads
those values at the same offsets. The rule is in `thalweg.lower.cost`.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from thalweg.ir.expr import Accumulated, Const, Expr, Load, Reduce, Scan, constant, converted
from thalweg.ir.index import Affine, floor_mod
from thalweg.ir.kernel import Store
from thalweg.ir.loop import Variable, iterations
from thalweg.ir.rewrite import Replace, free_variables, loads_in, walk
from thalweg.ir.target import Target
from thalweg.lower.cost import element_cost, worth_rematerializing
from thalweg.lower.memory.buffers import Buffer, BufferKind, Pieces
from thalweg.lower.nests.loop_nest import LoopNest, Renaming, is_float, users_of
from thalweg.lower.nests.reductions import outermost
from thalweg.platform.dtype_traits import is_narrow_float

_ROW_READERS = 2  # of a row that is reduced and then used: they become one kernel
_SMALL = 8  # a value so many times smaller than what it rematerializes may be kept live for that


def rematerialize(nests: Sequence[LoopNest], pieces: Pieces, target: Target) -> list[LoopNest]:
    """The nests, with temporaries rematerialized for late readers."""
    made = [_temporary_bytes(nest) for nest in nests]
    if sum(made) < target.far_bytes:
        return list(nests)
    return _Rematerialization(nests, made, pieces, target).run()


def inline_into_rows(nests: Sequence[LoopNest], pieces: Pieces, target: Target) -> list[LoopNest]:
    """The nests, with temporaries whose rows are reduced computed by the nests that read them:
    threads that share a row have at hand what they are computed from."""
    if not target.fuses_rows:
        return list(nests)
    return _RowInlining(nests, [0] * len(nests), pieces, target).run()


def _temporary_bytes(nest: LoopNest) -> int:
    return sum(b.bytes for b in nest.written if b.kind is BufferKind.TEMPORARY)


@dataclass(frozen=True)
class _Value:
    """The expression of a buffer's elements, over the variables of their offset."""

    buffer: Buffer
    expression: Expr
    offset: Affine
    variables: tuple[Variable, ...]  # of the offset, the innermost first

    def at(self, place: Affine) -> Expr | None:
        """The value at an offset, or None where its loads are not at sums of variables."""
        rename: dict[Variable, Affine] = {}
        rest = place
        for variable in self.variables:
            rename[variable] = floor_mod(rest, 1, variable.extent)
            rest = floor_mod(rest, variable.extent, 0)
        renamed = Renaming(rename).of(self.expression)
        return renamed if _is_plain(renamed) else None


class _Rematerialization:
    """The nests so far, and who writes and reads their buffers."""

    def __init__(
        self, nests: Sequence[LoopNest], made: Sequence[int], pieces: Pieces, target: Target
    ) -> None:
        self._nests, self._target = list(nests), target
        self._made = [0, *accumulate(made)]  # bytes that are written before each nest
        self._fixed = {*pieces, *(whole for whole, _ in pieces.values())}
        self._writers, self._readers = users_of(nests)

    def run(self) -> list[LoopNest]:
        for position in range(len(self._nests)):
            while self._rematerialize_one(position):
                pass  # removing one write may allow another of the same nest to be removed
        return [nest for nest in self._nests if nest.template.writes or nest.checks]

    def _rematerialize_one(self, position: int) -> bool:
        """Rematerialize one of a nest's values; whether there was one."""
        nest = self._nests[position]
        if nest.template.is_sealed:
            return False
        targets = zip(nest.targets, nest.template.writes, strict=True)
        return any(
            self._may_go(buffer, write) and self._rematerialize(position, nest.writes[number])
            for number, (buffer, write) in enumerate(targets)
        )

    def _may_go(self, buffer: Buffer, write: Store) -> bool:
        return (
            buffer.kind is BufferKind.TEMPORARY
            and buffer.bytes >= self._target.min_rematerialized_bytes
            and self._computes(buffer)
            and buffer not in self._fixed
            and len(self._writers[buffer]) == 1
            and write.is_plain
        )

    def _computes(self, buffer: Buffer) -> bool:
        """Whether values of a buffer's dtype may be computed again: a narrow float is rounded
        again, which is free where conversions are."""
        is_narrow = is_narrow_float(buffer.dtype) and self._target.widens_freely
        return is_narrow or is_float(buffer.dtype)

    def _rematerialize(self, position: int, write: Store) -> bool:
        """Rematerialize a value after the longest gap between its uses; whether that is
        possible."""
        last_early, late = self._gap(position, write.buffer)
        value = self._value(position, write) if late else None
        if value is None:
            return False
        cost = element_cost(value.expression, self._target)
        if not worth_rematerializing(cost, len(late), self._target):
            return False
        changed = self._changed(value, last_early, late)
        if not changed or not self._is_there(position, value, changed):
            return False
        self._put(position, value.buffer, changed)
        return True

    def _gap(self, position: int, buffer: Buffer) -> tuple[int, list[int]]:
        """The last use before the longest gap between uses, and the readers after a long one."""
        uses = [position, *self._readers[buffer]]
        gaps = [self._made[after] - self._made[before + 1] for before, after in pairwise(uses)]
        longest = max(gaps, default=0)
        if longest < self._target.far_bytes:
            return uses[-1], []
        place = gaps.index(longest)
        return uses[place], uses[place + 1 :]

    def _value(self, position: int, write: Store) -> _Value | None:
        """The value of a write as an expression over buffers, the nest's other results included."""
        variables = _counting(write.offset, write.buffer.size)
        if variables is None or isinstance(write.value, Const):
            return None
        stored = {
            other.value: Load(other.buffer, other.offset)
            for other in self._nests[position].writes
            if other is not write and other.is_plain and other.value.dtype == other.buffer.dtype
        }
        stored.pop(write.value, None)
        expression = converted(Replace(stored.get).of(write.value), write.buffer.dtype)
        found = _Value(write.buffer, expression, write.offset, variables)
        return found if _is_plain(expression) else None

    def _is_there(self, position: int, value: _Value, changed: dict[int, LoopNest]) -> bool:
        """Whether all that a value is computed from stays live and unchanged until the last use."""
        loads = _loads(value.expression) or set()
        last = max(place for place, nest in changed.items() if loads <= nest.reads)
        return all(self._is_kept(buffer, position, last, value.buffer.bytes) for buffer in loads)

    def _is_kept(self, buffer: Buffer, position: int, last: int, size: int) -> bool:
        if buffer.is_variable:
            return not any(position <= place <= last for place in self._writers[buffer])
        if buffer.kind is not BufferKind.TEMPORARY:
            return all(place <= position for place in self._writers[buffer])
        if any(place > position for place in self._writers[buffer]):
            return False
        return self._readers[buffer][-1:] >= [last] or buffer.bytes * _SMALL <= size

    def _changed(
        self, value: _Value, last_early: int, late: Sequence[int]
    ) -> dict[int, LoopNest] | None:
        """The late readers, computing the value themselves or loading it from where a nest before
        them stores it again; None where neither is possible."""
        changed: dict[int, LoopNest] = {}
        for number, position in enumerate(late):
            nest = self._fitting(_computing(self._nests[position], value))
            if nest is None:
                return self._stored_again(value, last_early, late[number:], changed)
            changed[position] = nest
        return changed

    def _fitting(self, nest: LoopNest | None) -> LoopNest | None:
        """A nest, unless it is too large for one kernel."""
        if nest is None or nest.expr_size > self._target.max_expressions:
            return None
        streams, writes = len(nest.reads) + len(nest.writes), len(nest.writes)
        fits = writes <= self._target.max_writes and streams <= self._target.max_streams
        return nest if fits else None

    def _stored_again(
        self, value: _Value, last_early: int, late: Sequence[int], changed: dict[int, LoopNest]
    ) -> dict[int, LoopNest] | None:
        """The same where some load the value: a nest before them stores it again."""
        if not self._target.stores_again:
            return None
        again = replace(value.buffer)
        for position in range(late[0] - 1, last_early, -1):
            if self._made[late[0]] - self._made[position + 1] >= self._target.far_bytes:
                return None
            before = changed.get(position, self._nests[position])
            host = self._fitting(_storing(before, value, again))
            if host is not None:
                readers = {place: _reading(self._nests[place], value, again) for place in late}
                self._fixed.add(again)
                return {**changed, position: host, **readers}
        return None

    def _put(self, position: int, buffer: Buffer, changed: dict[int, LoopNest]) -> None:
        for place, nest in changed.items():
            self._replace(place, nest)
        if not self._readers[buffer]:
            nest = self._nests[position]
            kept = tuple(write for write in nest.writes if write.buffer is not buffer)
            self._replace(position, nest.with_writes(kept))

    def _replace(self, place: int, nest: LoopNest) -> None:
        old, self._nests[place] = self._nests[place], nest
        for before, after, places in (
            (old.reads, nest.reads, self._readers),
            (old.written, nest.written, self._writers),
        ):
            for buffer in before - after:
                places[buffer].remove(place)
            for buffer in after - before:
                insort(places[buffer], place)


class _RowInlining(_Rematerialization):
    """The same for temporaries whose rows are reduced, and then read by the nest that this is for,
    however soon."""

    def _gap(self, position: int, buffer: Buffer) -> tuple[int, list[int]]:
        readers = self._readers[buffer]
        return position, list(readers) if self._are_of_rows(readers, buffer) else []

    def _are_of_rows(self, readers: Sequence[int], buffer: Buffer) -> bool:
        if not 0 < len(readers) <= _ROW_READERS:
            return False
        first, *others = readers
        return self._reduces_rows(self._nests[first], buffer) and all(
            self._follows(first, other, buffer.bytes) for other in others
        )

    def _follows(self, first: int, place: int, size: int) -> bool:
        """Whether a nest reads what another one makes of rows, or what little is made of that."""
        made = set(self._nests[first].written)
        for nest in self._nests[first + 1 : place]:
            if nest.product is None and sum(b.bytes for b in nest.written) * _SMALL <= size:
                made |= nest.written if made & nest.reads else set()
        return not made.isdisjoint(self._nests[place].reads)

    def _reduces_rows(self, nest: LoopNest, buffer: Buffer) -> bool:
        over = [p.variables for p in outermost(nest.values) if _reads([p], buffer)]
        lengths = [iterations(variables) for variables in over]
        longest = max(lengths, default=0)
        return nest.product is None and longest > 0 and self._target.keeps_row(longest)

    def _is_kept(self, buffer: Buffer, position: int, last: int, size: int) -> bool:
        """What is kept longer takes no more memory than what is no longer stored."""
        is_same = not any(position <= place <= last for place in self._writers[buffer])
        return is_same and (buffer.bytes <= size or super()._is_kept(buffer, position, last, size))

    def _stored_again(
        self, value: _Value, last_early: int, late: Sequence[int], changed: dict[int, LoopNest]
    ) -> dict[int, LoopNest] | None:
        return None


def _counting(offset: Affine, size: int) -> tuple[Variable, ...] | None:
    """The variables of an offset that visits each element of a buffer once, the innermost first."""
    found: list[Variable] = []
    expected = 1
    for atom, factor in sorted(offset.terms.items(), key=lambda term: term[1]):
        if not isinstance(atom, Variable) or factor != expected:
            return None
        found.append(atom)
        expected *= atom.extent
    return tuple(found) if offset.constant == 0 and expected == size else None


def _loads(value: Expr) -> set[Buffer] | None:
    """The buffers that an expression loads from; None if it reduces, or loads at other offsets than
    sums of variables."""
    found: set[Buffer] = set()
    for part in walk([value]):
        if isinstance(part, Accumulated | Reduce | Scan):
            return None
        if isinstance(part, Load):
            found.add(part.buffer)
            if not part.offset.is_plain:
                return None
    return found


def _is_plain(value: Expr) -> bool:
    return not isinstance(value, Const) and _loads(value) is not None


def _computing(nest: LoopNest, value: _Value) -> LoopNest | None:
    """A reader that computes a value instead of loading it; None if that is wrong or too costly."""
    buffer = value.buffer
    if nest.serial or nest.template.is_sealed:
        return None
    if buffer in nest.aliases or _in_memory(nest, buffer):
        return None
    if _load_count(nest, buffer) > buffer.size:
        return None
    at = {place: value.at(place) for place in nest.loads[buffer]}
    if any(found is None for found in at.values()):
        return None

    def instead(part: Expr) -> Expr | None:
        return at[part.offset] if isinstance(part, Load) and part.buffer is buffer else None

    computed = Replace(instead)
    writes = [replace(write, value=computed.of(write.value)) for write in nest.writes]
    return nest.with_writes(tuple(writes))


def _in_memory(nest: LoopNest, buffer: Buffer) -> bool:
    """Whether a nest loads a buffer elsewhere than in its values: as a factor, in an offset."""
    product = nest.product
    roots: list[Expr | None] = [] if product is None else [product.a.value, product.b.value]
    roots += [part for write in nest.writes for part in (*write.offset.parts, write.inside)]
    return _reads([*roots, *(check.condition for check in nest.checks)], buffer)


def _load_count(nest: LoopNest, buffer: Buffer) -> int:
    """How often a nest loads from a buffer, at most, in its loops or in a reduction."""
    reductions = [part for part in outermost(nest.values) if _reads([part], buffer)]
    counts = [iterations(free_variables(part).union(part.variables)) for part in reductions]
    nothing = constant(0)
    outside = Replace(lambda part: nothing if isinstance(part, Reduce) else None)
    if _reads([outside.of(value) for value in nest.values], buffer):
        counts.append(iterations(nest.variables))
    return max(counts, default=0)


def _reads(values: Sequence[Expr | None], buffer: Buffer) -> bool:
    return any(load.buffer is buffer for load in loads_in(values))


def _storing(nest: LoopNest, value: _Value, again: Buffer) -> LoopNest | None:
    """A nest that stores a value as well, if it reads what that is computed from at its offsets."""
    first = nest.writes[0] if nest.writes else None
    if first is None or nest.serial or nest.template.is_sealed:
        return None
    if len(first.variables) != len(nest.variables):
        return None
    if not all(write.is_plain for write in nest.writes):
        return None
    for place in _places(nest, value):
        counting = _counting(place, again.size)
        if counting is None or set(counting) != {v for v in first.variables if v.extent > 1}:
            continue
        found = value.at(place)
        if found is not None:
            write = Store(again, first.variables, place, found)
            return nest.with_writes((*nest.writes, write))
    return None


def _places(nest: LoopNest, value: _Value) -> list[Affine]:
    """The offsets at which a nest loads the buffers that a value is computed from elementwise."""
    aligned = [load for load in loads_in([value.expression]) if load.offset == value.offset]
    buffers = [load.buffer for load in aligned if not _in_memory(nest, load.buffer)]
    return [place for buffer in buffers for place in nest.loads.get(buffer, ())]


def _reading(nest: LoopNest, value: _Value, again: Buffer) -> LoopNest:
    """A reader that loads a value from where it was stored again."""
    views = [(again, at) if buffer is value.buffer else (buffer, at) for buffer, at in nest.views]
    return replace(nest, bindings=tuple(views))
