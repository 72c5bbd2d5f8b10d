"""Fuses loop nests, element by element, and reductions of rows into what reads them.

A nest is fused into an earlier one of the same loops where it reads its results only at the offsets
that they are written at (an activation into the product before it, an optimizer's update into the
gradient's product), or where both read the same buffers (the moments of Adam, several reductions of
one input), and where no dependence keeps one from moving to the other. Then dead stores are
removed.

A layer norm is a nest that finds mean and variance of each row, and one that normalises the row. A
target whose threads share a row finds them together (`fuse_rows`), and then has the row at hand:
one pass over memory. What the first nest stores stays a store of the fused one, once for each row,
if anything later reads it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import compress
from math import prod
from typing import Any

from thalweg.graph.node import Node
from thalweg.ir.expr import Expr, Index, Load
from thalweg.ir.index import Affine, FloorMod, floor_mod, number, row_major
from thalweg.ir.index import variable as index_of
from thalweg.ir.kernel import Store
from thalweg.ir.loop import Variable, iterations
from thalweg.ir.rewrite import free_variables, loads_in, walk
from thalweg.ir.target import Target
from thalweg.lower.memory.buffers import Buffer, BufferKind, View
from thalweg.lower.nests.loop_nest import (
    BoundTemplate,
    LoopNest,
    NestTemplate,
    Renaming,
    renaming,
)
from thalweg.lower.nests.reductions import goes_along_rows, outermost

_CANDIDATES = 8
_MIN_ROW = 64  # elements that are reduced for each row, and that it has after
_MIN_ROWS, _MAX_COLUMNS = 1024, 1024  # of sums that take a launch for parts and one for the parts


def fuse(nests: Sequence[LoopNest], target: Target) -> list[LoopNest]:
    """The nests, fused where that is legal and profitable; the order respects dependences."""
    fusion = _Fusion(target)
    for nest in nests:
        fusion.add(nest)
    return _without_dead([nest for nest in fusion.nests if nest is not None])


class _Fusion:
    """The nests so far, some fused: those that were moved leave None behind."""

    def __init__(self, target: Target) -> None:
        self.nests: list[LoopNest | None] = []
        self._written_at: dict[Buffer, int] = defaultdict(lambda: -1)
        self._used_at: dict[Buffer, int] = defaultdict(lambda: -1)
        self._fused = _FusedTemplates(target)
        self._pairs = target.pairs_sums
        self._single: dict[Any, int] = {}  # where sums of columns are that are not yet a pair

    def add(self, nest: LoopNest) -> None:
        form = _columns_summed(nest) if self._pairs else None
        partner = self._single.pop(form, None)
        for place in [*self._candidates(nest), *([] if partner is None else [partner])]:
            target = self.nests[place]
            if target is None:
                continue
            fused = self._fused.of(target, nest)
            if fused is None:
                continue
            if self._can_rise(nest, place):
                self.nests[place] = fused
                self._note(nest, place)  # the accesses of the earlier one are noted
                return
            if self._can_sink(target, place):
                self.nests[place] = None
                self._append(fused)
                return
        if form is not None:
            self._single[form] = len(self.nests)
        self._append(nest)

    def _append(self, nest: LoopNest) -> None:
        self._note(nest, len(self.nests))
        self.nests.append(nest)

    def _note(self, nest: LoopNest, place: int) -> None:
        """Note the accesses of a nest at a position."""
        used, written = self._used_at, self._written_at
        for buffer in nest.reads | nest.written:
            if used[buffer] < place:
                used[buffer] = place
        for buffer in nest.written:
            if written[buffer] < place:
                written[buffer] = place

    def _candidates(self, nest: LoopNest) -> list[int]:
        template = nest.template
        if template.product is not None or template.is_sealed:
            return []
        if any(write.combine != "set" for write in template.writes):
            return []
        places = {self._written_at[buffer] for buffer in nest.reads}
        places |= {self._used_at[buffer] for buffer in nest.reads if buffer.size > 1}
        return sorted((place for place in places if place >= 0), reverse=True)[:_CANDIDATES]

    def _can_rise(self, nest: LoopNest, place: int) -> bool:
        """Whether a new nest may move up to a position: what it reads is written before, and what
        it overwrites is not accessed after."""
        touched = nest.reads | nest.written
        return all(self._written_at[buffer] <= place for buffer in touched) and all(
            self._used_at[buffer] <= place for buffer in nest.written
        )

    def _can_sink(self, nest: LoopNest, place: int) -> bool:
        """Whether an earlier nest may move down to the end: no later one accesses what it writes,
        or writes what it reads."""
        return all(self._used_at[buffer] <= place for buffer in nest.written) and all(
            self._written_at[buffer] <= place for buffer in nest.reads
        )


def _columns_summed(nest: LoopNest) -> Any:
    """The loops of a nest that sums few columns of many rows, each for itself: two of the same
    loops are one kernel, with half the launches. None: it is another one."""
    template = nest.template
    if not template.is_plain or not template.has_reductions or nest.checks:
        return None
    forms = {tuple(v.extent for v in part.variables) for part in outermost(template.values)}
    if len(forms) != 1:
        return None
    (rows,) = forms
    is_long = prod(rows) >= _MIN_ROWS and prod(nest.domain) <= _MAX_COLUMNS
    return (nest.domain, rows) if is_long else None


class _FusedTemplates:
    """Fuses pairs of nests; once for all pairs of two templates whose buffers overlap equally."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[Any, BoundTemplate | None] = {}

    def of(self, first: LoopNest, second: LoopNest) -> LoopNest | None:
        """Both nests fused, or None where that is illegal or unprofitable."""
        if not all(_is_instance(nest) for nest in (first, second)):
            return _fused(first, second, self._target)
        views = first.views + second.views
        key = (first.template, second.template, *_overlaps(views))
        if key not in self._known:
            fused = _fused(first, second, self._target)
            self._known[key] = fused and BoundTemplate.of(fused.template, views)
            return fused
        known = self._known[key]
        return known and known.instantiate(views, _joined_nodes(first, second))


def _is_instance(nest: LoopNest) -> bool:
    """Whether a nest is nothing but an instance of its template."""
    return not nest.checks and not nest.aliases and nest.template.can_rebind


def _overlaps(views: Sequence[View]) -> list[tuple[int, int]]:
    """Which of several views share a buffer, and their distances in it."""
    first: dict[Buffer, tuple[int, int]] = {}
    found: list[tuple[int, int]] = []
    for buffer, shift in views:
        which, start = first.setdefault(buffer, (len(first), shift))
        found.append((which, shift - start))
    return found


def _joined_nodes(first: LoopNest, second: LoopNest) -> tuple[Node, ...]:
    """The nodes of both nests."""
    return first.nodes + tuple([node for node in second.nodes if node not in first.nodes])


def _fused(first: LoopNest, second: LoopNest, target: Target) -> LoopNest | None:
    """Both nests fused, or None where that is illegal or unprofitable."""
    if first.serial or second.serial or first.template.is_sealed:
        return None
    if any(write.combine != "set" for write in first.writes):
        return None
    if first.product is not None and second.has_reductions:
        return None
    if first.written & second.aliases or second.written & first.aliases:
        return None  # one reads what the other writes through an alias, at other offsets
    writes = [*first.writes, *second.writes]
    size = first.expr_size + second.expr_size
    if len(writes) > target.max_writes or size > target.max_expressions:
        return None
    if len(first.loads.keys() | second.loads.keys()) + len(writes) > target.max_streams:
        return None
    rename = _onto(second, first)
    if rename is None:
        return None
    renamed = Renaming(rename)
    places: dict[Buffer, list[Store]] = defaultdict(list)
    for write in first.writes:
        places[write.buffer].append(write)
    if not _meet(first, second, places, renamed) or _checks_made(first, second):
        return None
    return _merge(first, second, places, rename)


def _onto(second: LoopNest, first: LoopNest) -> dict[Variable, Affine] | None:
    """A nest's variables by those of another one: of equal loops, or of other loops with as many
    iterations, where every offset stays an affine sum of variables."""
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
    """Loops by other loops, where each of one side is one or several of the other, collapsed."""
    left = [v for v in variables if v.extent != 1]
    right = [v for v in others if v.extent != 1]
    found = {v: number(0) for v in variables if v.extent == 1}
    while left and right:
        ours, theirs = [left.pop()], [right.pop()]
        while (count := iterations(ours)) != (wanted := iterations(theirs)):
            side, rest = (ours, left) if count < wanted else (theirs, right)
            if not rest or not count or not wanted:
                return None
            side.insert(0, rest.pop())
        if len(ours) == 1:
            found[ours[0]] = row_major(theirs)
        elif len(theirs) == 1:
            found |= _digits(ours, theirs[0])
        else:
            return None
    return None if left or right else found


def _digits(variables: Sequence[Variable], whole: Variable) -> dict[Variable, Affine]:
    """Loops as the digits of one collapsed loop."""
    found: dict[Variable, Affine] = {}
    stride = 1
    for variable in reversed(variables):
        found[variable] = floor_mod(index_of(whole), stride, variable.extent)
        stride *= variable.extent
    return found


def _stays_plain(nest: LoopNest, renamed: Renaming) -> bool:
    """Whether a nest's renamed offsets are sums of variables, and its values use no index."""
    places = [place for offsets in nest.loads.values() for place in offsets]
    places += [write.offset for write in nest.writes]
    if any(isinstance(atom, FloorMod) for place in places for atom in renamed.place(place).terms):
        return False
    return not any(isinstance(part, Index) for part in walk(nest.values))


def _meet(
    first: LoopNest, second: LoopNest, places: dict[Buffer, list[Store]], renamed: Renaming
) -> bool:
    """Whether the second reads what the first writes, and writes what it reads, only at the offset
    of the same iteration."""
    for buffer, offsets in second.loads.items():
        if buffer in places and any(
            renamed.place(offset) != places[buffer][-1].offset for offset in offsets
        ):
            return False
    for write in second.writes:
        offset = renamed.place(write.offset)
        if any(before.offset != offset for before in places.get(write.buffer, ())):
            return False
        if any(read != offset for read in first.loads.get(write.buffer, ())):
            return False
        if first.factors(write.buffer):
            return False
    # A reduction reads the elements of other iterations: its nest may not write what it reads.
    return not (first.has_reductions and first.reads & second.written)


def _checks_made(first: LoopNest, second: LoopNest) -> bool:
    """Whether the second has checks of what the first writes: those run between the two."""
    read = loads_in(check.condition for check in second.checks)
    return any(load.buffer in first.written for load in read)


def _merge(
    first: LoopNest,
    second: LoopNest,
    places: dict[Buffer, list[Store]],
    rename: dict[Variable, Affine],
) -> LoopNest:
    def made(part: Expr) -> Expr | None:
        if not isinstance(part, Load) or part.buffer not in places:
            return None
        return places[part.buffer][-1].value

    renamed = Renaming(rename, made)
    is_same = first.domain == second.domain
    writes = list(first.writes)
    for write in second.writes:
        writes = [w for w in writes if w.buffer is not write.buffer]
        if is_same:
            moved = _moved(write, renamed, second.variables, first.variables)
        else:
            moved = renamed.store(write)
            moved = replace(moved, variables=first.variables, distinct=frozenset())
        writes.append(moved)
    return LoopNest.of(
        first.variables,
        tuple(writes),
        _joined_nodes(first, second),
        first.product,
        first.checks + second.checks,
        aliases=first.aliases | second.aliases,
    )


def _moved(
    write: Store, renamed: Renaming, old: Sequence[Variable], new: Sequence[Variable]
) -> Store:
    """A renamed write, over other variables in the place of its own."""
    same = dict(zip(old, new, strict=True))
    variables = tuple([same[v] for v in write.variables])
    distinct = frozenset([same[v] for v in write.distinct])
    return replace(renamed.store(write), variables=variables, distinct=distinct)


def _without_dead(nests: list[LoopNest]) -> list[LoopNest]:
    """The nests without writes to temporaries that no later nest reads."""
    alive: set[Buffer] = set()
    kept: list[LoopNest] = []
    live_template = cache(_live_template)
    for nest in reversed(nests):
        read = [b.kind is not BufferKind.TEMPORARY or b in alive for b in nest.targets]
        if not any(read) and not nest.checks:
            continue
        if not all(read):
            nest = nest.with_template(live_template(nest.template, tuple(read)))
        alive |= nest.reads
        kept.append(nest)
    return kept[::-1]


def _live_template(template: NestTemplate, live: tuple[bool, ...]) -> NestTemplate:
    return replace(template, writes=tuple(compress(template.writes, live)))


# Rows


def fuse_rows(nests: Sequence[LoopNest], target: Target) -> list[LoopNest]:
    """The nests, rows fused where the target's threads share them."""
    if not target.fuses_rows:
        return list(nests)
    found: list[LoopNest | None] = list(nests)
    for place in range(len(found)):
        while (pair := _producer(found, place, target)) is not None:
            earlier, at = pair
            first, second = found[earlier], found[place]
            assert first is not None
            assert second is not None
            found[place] = found[earlier] = None
            found[at] = _fused_rows(first, second)
    return _without_dead([nest for nest in found if nest is not None])


def _producer(
    nests: Sequence[LoopNest | None], place: int, target: Target
) -> tuple[int, int] | None:
    """The nest before a place that can be fused into the one there, and where both are then: there,
    or where nests between read what the first one writes, before those."""
    second = nests[place]
    if second is None or not _stores_rows(second) or len(second.variables) < 2:
        return None
    read: set[Buffer] = set()  # by nests between
    written: set[Buffer] = set()
    for earlier in range(place - 1, -1, -1):
        first = nests[earlier]
        if first is None:
            continue
        if first.written & second.reads and _fits(first, second, target):
            if first.written.isdisjoint(read | written) and first.reads.isdisjoint(written):
                return earlier, place
            others = second.reads - first.written
            is_free = others.isdisjoint(written) and second.written.isdisjoint(read | written)
            if is_free and not second.checks:
                return earlier, earlier
            return None
        read |= first.reads
        written |= first.written
    return None


def _stores_rows(nest: LoopNest) -> bool:
    return nest.template.is_plain and not nest.aliases


def _fits(first: LoopNest, second: LoopNest, target: Target) -> bool:
    """Whether the first reduces the rows that the second goes over, and all fits in a kernel."""
    depth = len(first.variables)
    if not _stores_rows(first) or not 0 < depth < len(second.variables):
        return False
    rows, rest = second.variables[:depth], second.variables[depth:]
    if first.domain != second.domain[:depth]:
        return False
    if iterations(rest) < _MIN_ROW or not target.keeps_row(iterations(rest)):
        return False
    if not _reduces_rows(first) or not _only_rows(second, rows):
        return False
    if first.reads & second.written or first.written & second.written:
        return False
    if _checks_made(first, second):
        return False
    buffers = first.loads.keys() | second.loads.keys() | first.written | second.written
    if first.expr_size + second.expr_size > target.max_expressions:
        return False
    if len(buffers) > target.max_streams:
        return False
    places = {write.buffer: write.offset for write in _over(first, rows)}
    return all(
        offset == places[buffer]
        for buffer, offsets in second.loads.items()
        if buffer in places
        for offset in offsets
    )


def _reduces_rows(nest: LoopNest) -> bool:
    """Whether its reductions are long and go along rows."""
    found = nest.reductions
    return bool(found) and all(
        iterations(part.variables) >= _MIN_ROW and goes_along_rows(part) for part in found
    )


def _only_rows(nest: LoopNest, rows: Sequence[Variable]) -> bool:
    """Whether its own reductions are those of rows too."""
    return all(free_variables(part) <= frozenset(rows) for part in nest.reductions)


def _over(nest: LoopNest, rows: tuple[Variable, ...]) -> list[Store]:
    """The writes of a nest over other variables."""
    renamed = Renaming(renaming(nest.variables, rows))
    return [_moved(write, renamed, nest.variables, rows) for write in nest.writes]


def _fused_rows(first: LoopNest, second: LoopNest) -> LoopNest:
    writes = _over(first, second.variables[: len(first.variables)])
    values: dict[tuple[Buffer, Affine], Expr] = {(w.buffer, w.offset): w.value for w in writes}

    def made(part: Expr) -> Expr | None:
        return values.get((part.buffer, part.offset)) if isinstance(part, Load) else None

    replaced = Renaming({}, made)
    every = (*writes, *map(replaced.store, second.writes))
    checks = first.checks + second.checks
    return LoopNest.of(second.variables, every, _joined_nodes(first, second), checks=checks)
