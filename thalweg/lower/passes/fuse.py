"""Joining drafts: what reads a result at the place it was made goes into the nest that makes it.

A draft joins an earlier one with the same loops when it reads its results only at their own place
(an activation into the product before it, an optimizer's update into the gradient's product), or
when both read the same memory (the moments of Adam, several reductions of one input), and when
nothing between the two stands in the way of moving one to the other. Then writes that nobody reads
are dropped.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

from thalweg.graph.node import Node
from thalweg.ir.expr import Expr, Index, Load
from thalweg.ir.index import Affine, FloorMod, floor_mod, number, row_major
from thalweg.ir.index import variable as index_of
from thalweg.ir.loop import Variable
from thalweg.ir.rewrite import walk
from thalweg.ir.target import Target
from thalweg.lower.memory.buffers import Buffer, BufferKind
from thalweg.lower.nests.loop_nest import Home, LoopNest, NestTemplate, Renaming, Write, renaming

_CANDIDATES = 8


def fuse(drafts: Sequence[LoopNest], target: Target) -> list[LoopNest]:
    """The drafts joined as far as that is right and worth it, in an order that runs."""
    joining = _Joining(target)
    for draft in drafts:
        joining.add(draft)
    return _without_dead([draft for draft in joining.drafts if draft is not None])


class _Joining:
    def __init__(self, target: Target) -> None:
        self.drafts: list[LoopNest | None] = []
        self._written_at: dict[Buffer, int] = defaultdict(lambda: -1)
        self._used_at: dict[Buffer, int] = defaultdict(lambda: -1)
        self._joints = _Joints(target)

    def add(self, draft: LoopNest) -> None:
        for place in self._candidates(draft):
            target = self.drafts[place]
            if target is None:
                continue
            joined = self._joints.of(target, draft)
            if joined is None:
                continue
            if self._can_rise(draft, place):
                self.drafts[place] = joined
                self._note(draft, place)  # what the other one touches is noted there
                return
            if self._can_sink(target, place):
                self.drafts[place] = None
                self.drafts.append(None)
                self._put(joined, len(self.drafts) - 1)
                return
        self.drafts.append(None)
        self._put(draft, len(self.drafts) - 1)

    def _put(self, draft: LoopNest, place: int) -> None:
        self.drafts[place] = draft
        self._note(draft, place)

    def _note(self, draft: LoopNest, place: int) -> None:
        """What a draft at a place touches."""
        used, written = self._used_at, self._written_at
        for buffer in draft.reads | draft.written:
            if used[buffer] < place:
                used[buffer] = place
        for buffer in draft.written:
            if written[buffer] < place:
                written[buffer] = place

    def _candidates(self, draft: LoopNest) -> list[int]:
        nest = draft.nest
        if nest.product is not None or any(write.combine != "set" for write in nest.writes):
            return []
        places = {self._written_at[buffer] for buffer in draft.reads}
        places |= {self._used_at[buffer] for buffer in draft.reads if buffer.size > 1}
        return sorted((place for place in places if place >= 0), reverse=True)[:_CANDIDATES]

    def _can_rise(self, draft: LoopNest, place: int) -> bool:
        """Whether a new draft may run already at a place: what it reads is there by then, and what
        it overwrites is no longer needed."""
        touched = draft.reads | draft.written
        return all(self._written_at[buffer] <= place for buffer in touched) and all(
            self._used_at[buffer] <= place for buffer in draft.written
        )

    def _can_sink(self, draft: LoopNest, place: int) -> bool:
        """Whether a draft may wait until now: nobody after it needs it or changes what it reads."""
        return all(self._used_at[buffer] <= place for buffer in draft.written) and all(
            self._written_at[buffer] <= place for buffer in draft.reads
        )


@dataclass(frozen=True)
class _Joint:
    """Two nests as one, and which of the homes of both its buffers come from, shifted how far."""

    nest: NestTemplate
    places: tuple[int, ...]
    shifts: tuple[int, ...]


class _Joints:
    """Drafts as one, found out once for nests that meet in the same way."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[Any, _Joint | None] = {}

    def of(self, first: LoopNest, second: LoopNest) -> LoopNest | None:
        """Both drafts as one, or None where that would be wrong or useless."""
        if not all(_is_plain(draft) for draft in (first, second)):
            return _joined(first, second, self._target)
        homes = first.homes + second.homes
        key = (first.nest, second.nest, *_meeting(homes))
        if key not in self._known:
            joined = _joined(first, second, self._target)
            self._known[key] = None if joined is None else _joint(joined, homes)
            return joined
        joint = self._known[key]
        return None if joint is None else _made_again(joint, homes, first, second)


def _is_plain(draft: LoopNest) -> bool:
    """Whether a draft is nothing but a nest on some memory."""
    return not draft.needed and not draft.behind and draft.nest.can_move


def _meeting(homes: Sequence[Home]) -> list[tuple[int, int]]:
    """Which of several places in memory are in the same buffer, and how far from one another."""
    first: dict[Buffer, tuple[int, int]] = {}
    found: list[tuple[int, int]] = []
    for buffer, shift in homes:
        which, start = first.setdefault(buffer, (len(first), shift))
        found.append((which, shift - start))
    return found


def _joint(joined: LoopNest, homes: Sequence[Home]) -> _Joint:
    first = {buffer: place for place, (buffer, _) in reversed([*enumerate(homes)])}
    places = tuple([first[buffer] for buffer in joined.nest.buffers])
    return _Joint(joined.nest, places, tuple([homes[place][1] for place in places]))


def _made_again(
    joint: _Joint, homes: Sequence[Home], first: LoopNest, second: LoopNest
) -> LoopNest:
    """Two drafts whose nests were joined before."""
    moved: list[Home] = []
    for place, before in zip(joint.places, joint.shifts, strict=True):
        buffer, shift = homes[place]
        moved.append((buffer, shift - before))
    return LoopNest(joint.nest, _nodes(first, second), moved=tuple(moved))


def _nodes(first: LoopNest, second: LoopNest) -> tuple[Node, ...]:
    return first.nodes + tuple([node for node in second.nodes if node not in first.nodes])


def _joined(first: LoopNest, second: LoopNest, target: Target) -> LoopNest | None:
    """Both drafts as one, or None where that would be wrong or useless."""
    if first.serial or second.serial:
        return None
    if any(write.combine != "set" for write in first.writes):
        return None
    if first.product is not None and second.has_reductions:
        return None
    if first.written & second.behind or second.written & first.behind:
        return None  # one reads what the other writes through an alias, at places of its own
    writes = [*first.writes, *second.writes]
    if len(writes) > target.max_writes or first.parts + second.parts > target.max_expressions:
        return None
    if len(first.loads.keys() | second.loads.keys()) + len(writes) > target.max_streams:
        return None
    rename = _onto(second, first)
    if rename is None:
        return None
    moved = Renaming(rename)
    places: dict[Buffer, list[Write]] = defaultdict(list)
    for write in first.writes:
        places[write.buffer].append(write)
    if not _meet(first, second, places, moved) or _checks_made(first, second):
        return None
    return _merge(first, second, places, rename)


def _onto(second: LoopNest, first: LoopNest) -> dict[Variable, Affine] | None:
    """A nest's variables by those of another one: the same ones, or those of a nest of as many
    turns in other loops, where every place is still a plain sum."""
    if first.domain == second.domain:
        return renaming(second.variables, first.variables)
    if not first.written & second.reads:
        return None
    if any(w.variables != second.variables or w.inside is not None for w in second.writes):
        return None
    found = _reshaped(second.variables, first.variables)
    return found if found is not None and _stays_plain(second, Renaming(found)) else None


def _reshaped(
    variables: Sequence[Variable], others: Sequence[Variable]
) -> dict[Variable, Affine] | None:
    """Loops by other loops, of which some are several of theirs or several one of theirs."""
    left = [v for v in variables if v.extent != 1]
    right = [v for v in others if v.extent != 1]
    found = {v: number(0) for v in variables if v.extent == 1}
    while left and right:
        ours, theirs = [left.pop()], [right.pop()]
        while (turns := _turns(ours)) != (wanted := _turns(theirs)):
            side, rest = (ours, left) if turns < wanted else (theirs, right)
            if not rest or not turns or not wanted:
                return None
            side.insert(0, rest.pop())
        if len(ours) == 1:
            found[ours[0]] = row_major(theirs)
        elif len(theirs) == 1:
            found |= _digits(ours, theirs[0])
        else:
            return None
    return None if left or right else found


def _turns(variables: Sequence[Variable]) -> int:
    return math.prod(variable.extent for variable in variables)


def _digits(variables: Sequence[Variable], whole: Variable) -> dict[Variable, Affine]:
    """Loops as the digits of one loop that has all their turns."""
    found: dict[Variable, Affine] = {}
    stride = 1
    for variable in reversed(variables):
        found[variable] = floor_mod(index_of(whole), stride, variable.extent)
        stride *= variable.extent
    return found


def _stays_plain(draft: LoopNest, moved: Renaming) -> bool:
    """Whether a draft reads and writes at sums of variables, which it does not compute with."""
    places = [place for offsets in draft.loads.values() for place in offsets]
    places += [write.offset for write in draft.writes]
    if any(isinstance(atom, FloorMod) for place in places for atom in moved.affine(place).terms):
        return False
    values = [write.value for write in draft.writes]
    return not any(isinstance(part, Index) for part in walk(values))


def _meet(
    first: LoopNest, second: LoopNest, places: dict[Buffer, list[Write]], moved: Renaming
) -> bool:
    """Whether the second reads what the first writes, and writes what it reads, only in place."""
    for buffer, offsets in second.loads.items():
        if buffer in places and any(
            moved.affine(offset) != places[buffer][-1].offset for offset in offsets
        ):
            return False
    for write in second.writes:
        offset = moved.affine(write.offset)
        if any(before.offset != offset for before in places.get(write.buffer, ())):
            return False
        if any(read != offset for read in first.loads.get(write.buffer, ())):
            return False
        if first.product is not None and write.buffer in _factors(first):
            return False
    # A reduction sees other places than its own: nothing it reads may be written in its nest.
    return not (first.has_reductions and first.reads & second.written)


def _checks_made(first: LoopNest, second: LoopNest) -> bool:
    """Whether the second checks what the first makes: that can be done when it is there, and the
    second must not run before that."""
    conditions = walk([need.condition for need in second.needed])
    return any(isinstance(part, Load) and part.buffer in first.written for part in conditions)


def _factors(draft: LoopNest) -> set[Buffer]:
    assert draft.product is not None
    return {draft.product.a.buffer, draft.product.b.buffer}


def _merge(
    first: LoopNest,
    second: LoopNest,
    places: dict[Buffer, list[Write]],
    rename: dict[Variable, Affine],
) -> LoopNest:
    def made(part: Expr) -> Expr | None:
        if not isinstance(part, Load) or part.buffer not in places:
            return None
        return places[part.buffer][-1].value

    renamed = Renaming(rename, made)
    same = {}
    if first.domain == second.domain:
        same = dict(zip(second.variables, first.variables, strict=True))
    writes = list(first.writes)
    for write in second.writes:
        variables = tuple(same[v] for v in write.variables) if same else first.variables
        distinct = frozenset(same[v] for v in write.distinct if v in same)
        offset, value = renamed.affine(write.offset), renamed.of(write.value)
        inside = renamed.unless_none(write.inside)
        writes = [w for w in writes if w.buffer is not write.buffer]
        writes.append(Write(write.buffer, variables, offset, value, "set", inside, distinct))
    return LoopNest.of(
        first.variables,
        tuple(writes),
        _nodes(first, second),
        first.product,
        first.needed + second.needed,
        behind=first.behind | second.behind,
    )


def _without_dead(drafts: list[LoopNest]) -> list[LoopNest]:
    """The drafts without writes to temporaries that nothing reads afterwards."""
    alive: set[Buffer] = set()
    kept: list[LoopNest] = []
    nests: dict[tuple[NestTemplate, tuple[bool, ...]], NestTemplate] = {}
    for draft in reversed(drafts):
        read = [b.kind is not BufferKind.TEMPORARY or b in alive for b in draft.targets]
        if not any(read) and not draft.needed:
            continue
        if not all(read):
            key = draft.nest, tuple(read)
            if key not in nests:
                writes = tuple(compress(draft.nest.writes, read))
                nests[key] = replace(draft.nest, writes=writes)
            draft = draft.changed(nests[key])
        alive |= draft.reads
        kept.append(draft)
    return kept[::-1]
