"""Values computed again instead of kept: less memory between the two halves of a training step.

A temporary that is read again only after much else was made has left the caches long before, and
takes up memory all the while. Where it is cheap to compute from values that are kept until then
anyway (an activation from what it was made of, a layer norm's scale from its rows' deviations), its
late readers compute it themselves. A late factor of a product is stored again, by a nest before the
product that reads those values at the same places. The rule is in `thalweg.lower.cost`.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from thalweg.ir.expr import Accumulated, Const, Expr, Load, Reduce, Scan, constant
from thalweg.ir.index import Affine, floor_mod
from thalweg.ir.loop import Variable
from thalweg.ir.rewrite import Replace, free_variables, walk
from thalweg.ir.target import Target
from thalweg.lower.cost import element_cost, worth_rematerializing
from thalweg.lower.memory.buffers import Buffer, BufferKind
from thalweg.lower.nests.loop_nest import (
    Factor,
    LoopNest,
    Renaming,
    Write,
    is_float,
    users_of,
)
from thalweg.lower.nests.reductions import outermost
from thalweg.lower.passes.merge_reductions import Pieces

_SMALL = 8  # a value of so many times fewer bytes may be kept longer for a larger one's sake
_CHANGES = (BufferKind.VARIABLE, BufferKind.CARRIED)


def rematerialize(drafts: Sequence[LoopNest], pieces: Pieces, target: Target) -> list[LoopNest]:
    """The drafts, with what need not be kept computed again where it is read late."""
    made = [_temporary_bytes(draft) for draft in drafts]
    if sum(made) < target.far_bytes:
        return list(drafts)
    return _Recomputing(drafts, made, pieces, target).run()


def _temporary_bytes(draft: LoopNest) -> int:
    return sum(b.bytes for b in draft.written if b.kind is BufferKind.TEMPORARY)


@dataclass(frozen=True)
class _Value:
    """What a buffer holds at each place, by the variables that count its places."""

    buffer: Buffer
    expression: Expr
    offset: Affine
    variables: tuple[Variable, ...]  # those that count places, the innermost first

    def at(self, place: Affine) -> Expr | None:
        """The value at a place, or None where that is more than plain sums of variables."""
        rename: dict[Variable, Affine] = {}
        rest = place
        for variable in self.variables:
            rename[variable] = floor_mod(rest, 1, variable.extent)
            rest = floor_mod(rest, variable.extent, 0)
        moved = Renaming(rename).of(self.expression)
        return moved if _is_plain(moved) else None


class _Recomputing:
    def __init__(
        self, drafts: Sequence[LoopNest], made: Sequence[int], pieces: Pieces, target: Target
    ) -> None:
        self._drafts, self._target = list(drafts), target
        self._made = [0, *accumulate(made)]  # bytes before each draft
        self._fixed = {*pieces, *(home for home, _ in pieces.values())}
        self._writers, self._readers = users_of(drafts)

    def run(self) -> list[LoopNest]:
        for position in range(len(self._drafts)):
            while self._look_at_one(position):
                pass  # what goes may have been in the way of another value of the same nest
        return [draft for draft in self._drafts if draft.nest.writes or draft.needed]

    def _look_at_one(self, position: int) -> bool:
        """Whether one of a draft's values goes."""
        draft = self._drafts[position]
        targets = zip(draft.targets, draft.nest.writes, strict=True)
        return any(
            self._may_go(buffer, write) and self._look_at(position, draft.writes[number])
            for number, (buffer, write) in enumerate(targets)
        )

    def _may_go(self, buffer: Buffer, write: Write) -> bool:
        return (
            buffer.kind is BufferKind.TEMPORARY
            and buffer.bytes >= self._target.min_rematerialized_bytes
            and is_float(buffer.dtype)
            and buffer not in self._fixed
            and len(self._writers[buffer]) == 1
            and write.combine == "set"
            and write.inside is None
        )

    def _look_at(self, position: int, write: Write) -> bool:
        """Have a value computed again after the longest time that nobody reads it, if possible."""
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
        """The longest time without a reader, if that is long: who is before it, who after it."""
        uses = [position, *self._readers[buffer]]
        gaps = [self._made[after] - self._made[before + 1] for before, after in pairwise(uses)]
        longest = max(gaps, default=0)
        if longest < self._target.far_bytes:
            return uses[-1], []
        place = gaps.index(longest)
        return uses[place], uses[place + 1 :]

    def _value(self, position: int, write: Write) -> _Value | None:
        """How a draft's value follows from memory, other values of the draft among it."""
        variables = _counting(write.offset, write.buffer.size)
        if variables is None or isinstance(write.value, Const):
            return None
        stored = {
            other.value: Load(other.buffer, other.offset)
            for other in self._drafts[position].writes
            if other is not write and other.combine == "set" and other.inside is None
        }
        stored.pop(write.value, None)
        expression = Replace(stored.get).of(write.value)
        found = _Value(write.buffer, expression, write.offset, variables)
        return found if _is_plain(expression) else None

    def _is_there(self, position: int, value: _Value, changed: dict[int, LoopNest]) -> bool:
        """Whether all that a value follows from is kept, unchanged, until it is computed."""
        loads = _loads(value.expression) or set()
        last = max(place for place, draft in changed.items() if loads <= draft.reads)
        return all(self._is_kept(buffer, position, last, value.buffer.bytes) for buffer in loads)

    def _is_kept(self, buffer: Buffer, position: int, last: int, size: int) -> bool:
        if buffer.kind in _CHANGES:
            return not any(position <= place <= last for place in self._writers[buffer])
        if buffer.kind is not BufferKind.TEMPORARY:
            return all(place <= position for place in self._writers[buffer])
        if any(place > position for place in self._writers[buffer]):
            return False
        return self._readers[buffer][-1:] >= [last] or buffer.bytes * _SMALL <= size

    def _changed(
        self, value: _Value, last_early: int, late: Sequence[int]
    ) -> dict[int, LoopNest] | None:
        """The late readers, computing the value themselves; None if one of them cannot."""
        changed: dict[int, LoopNest] = {}
        for number, position in enumerate(late):
            draft = self._fitting(_computing(self._drafts[position], value))
            if draft is None:
                return self._stored_again(value, last_early, late[number:], changed)
            changed[position] = draft
        return changed

    def _fitting(self, draft: LoopNest | None) -> LoopNest | None:
        """A draft, unless it is more than one nest should be."""
        if draft is None or draft.parts > self._target.max_expressions:
            return None
        streams, writes = len(draft.reads) + len(draft.writes), len(draft.writes)
        fits = writes <= self._target.max_writes and streams <= self._target.max_streams
        return draft if fits else None

    def _stored_again(
        self, value: _Value, last_early: int, late: Sequence[int], changed: dict[int, LoopNest]
    ) -> dict[int, LoopNest] | None:
        """The same where some need the value in memory: a nest before them stores it again."""
        again = replace(value.buffer)
        for position in range(late[0] - 1, last_early, -1):
            if self._made[late[0]] - self._made[position + 1] >= self._target.far_bytes:
                return None
            before = changed.get(position, self._drafts[position])
            host = self._fitting(_storing(before, value, again))
            if host is not None:
                readers = {place: _reading(self._drafts[place], value, again) for place in late}
                self._fixed.add(again)
                return {**changed, position: host, **readers}
        return None

    def _put(self, position: int, buffer: Buffer, changed: dict[int, LoopNest]) -> None:
        for place, draft in changed.items():
            self._replace(place, draft)
        if not self._readers[buffer]:
            draft = self._drafts[position]
            kept = tuple(write for write in draft.writes if write.buffer is not buffer)
            self._replace(position, draft.writing(kept))

    def _replace(self, place: int, draft: LoopNest) -> None:
        old, self._drafts[place] = self._drafts[place], draft
        for before, after, places in (
            (old.reads, draft.reads, self._readers),
            (old.written, draft.written, self._writers),
        ):
            for buffer in before - after:
                places[buffer].remove(place)
            for buffer in after - before:
                insort(places[buffer], place)


def _counting(offset: Affine, size: int) -> tuple[Variable, ...] | None:
    """The variables that together count all places of a buffer, the innermost first."""
    found: list[Variable] = []
    expected = 1
    for atom, factor in sorted(offset.terms.items(), key=lambda term: term[1]):
        if not isinstance(atom, Variable) or factor != expected:
            return None
        found.append(atom)
        expected *= atom.extent
    return tuple(found) if offset.constant == 0 and expected == size else None


def _loads(value: Expr) -> set[Buffer] | None:
    """The buffers an expression reads element by element; None if it does more than that."""
    found: set[Buffer] = set()
    for part in walk([value]):
        if isinstance(part, Accumulated | Reduce | Scan):
            return None
        if isinstance(part, Load):
            found.add(part.buffer)
            if not all(isinstance(atom, Variable) for atom in part.offset.terms):
                return None
    return found


def _is_plain(value: Expr) -> bool:
    return not isinstance(value, Const) and _loads(value) is not None


def _computing(draft: LoopNest, value: _Value) -> LoopNest | None:
    """A reader that computes a value where it loaded it; None if that is wrong or too much."""
    buffer = value.buffer
    if draft.serial or buffer in draft.behind or _in_memory(draft, buffer):
        return None
    if _turns(draft, buffer) > buffer.size:
        return None
    at = {place: value.at(place) for place in draft.loads[buffer]}
    if any(found is None for found in at.values()):
        return None

    def instead(part: Expr) -> Expr | None:
        return at[part.offset] if isinstance(part, Load) and part.buffer is buffer else None

    return _with_values(draft, Replace(instead))


def _in_memory(draft: LoopNest, buffer: Buffer) -> bool:
    """Whether a draft reads a buffer elsewhere than in its values: as a factor, to find a place."""
    product = draft.product
    roots: list[Expr | None] = [] if product is None else [product.a.value, product.b.value]
    roots += [part for write in draft.writes for part in (*write.offset.parts, write.inside)]
    return _reads([*roots, *(need.condition for need in draft.needed)], buffer)


def _turns(draft: LoopNest, buffer: Buffer) -> int:
    """How often a draft reads an element of a buffer, at most, in its nest or in a reduction."""
    roots = [write.value for write in draft.writes]
    reductions = [part for part in outermost(roots) if _reads([part], buffer)]
    turns = [
        math.prod(v.extent for v in free_variables(part).union(part.variables))
        for part in reductions
    ]
    nothing = constant(0)
    outside = Replace(lambda part: nothing if isinstance(part, Reduce) else None)
    if _reads([outside.of(root) for root in roots], buffer):
        turns.append(math.prod(draft.domain))
    return max(turns, default=0)


def _reads(values: Sequence[Expr | None], buffer: Buffer) -> bool:
    return any(isinstance(part, Load) and part.buffer is buffer for part in walk(values))


def _storing(draft: LoopNest, value: _Value, again: Buffer) -> LoopNest | None:
    """A nest that stores a value as well: it reads what that is made of at the same places."""
    first = draft.writes[0] if draft.writes else None
    if first is None or draft.serial or len(first.variables) != len(draft.variables):
        return None
    if any(write.combine != "set" or write.inside is not None for write in draft.writes):
        return None
    for place in _places(draft, value):
        counting = _counting(place, again.size)
        if counting is None or set(counting) != {v for v in first.variables if v.extent > 1}:
            continue
        found = value.at(place)
        if found is not None:
            write = Write(again, first.variables, place, found)
            return draft.writing((*draft.writes, write))
    return None


def _places(draft: LoopNest, value: _Value) -> list[Affine]:
    """Where a draft reads the large buffers that a value is made of, one element for each."""
    found: list[Affine] = []
    for part in walk([value.expression]):
        is_aligned = isinstance(part, Load) and part.offset == value.offset
        if isinstance(part, Load) and is_aligned and not _in_memory(draft, part.buffer):
            found.extend(draft.loads.get(part.buffer, ()))
    return found


def _reading(draft: LoopNest, value: _Value, again: Buffer) -> LoopNest:
    """A reader of a value that was stored again."""

    def instead(part: Expr) -> Expr | None:
        is_it = isinstance(part, Load) and part.buffer is value.buffer
        return Load(again, part.offset) if isinstance(part, Load) and is_it else None

    moved = Replace(instead)
    changed = _with_values(draft, moved)
    product = draft.product
    if product is None:
        return changed
    a, b = (Factor(moved.of(side.value), side.bounds) for side in (product.a, product.b))
    return changed.multiplying(replace(product, a=a, b=b))


def _with_values(draft: LoopNest, rewriter: Replace) -> LoopNest:
    """A draft with other values."""
    writes = [replace(write, value=rewriter.of(write.value)) for write in draft.writes]
    return draft.writing(tuple(writes))
