"""Fuses reductions of rows into the nests that go over the same rows after them.

A layer norm is a nest that finds mean and variance of each row, and one that normalises the row. A
target whose threads share a row finds them together, and then has the row at hand: one pass over
memory. What the first nest stores stays a store of the fused one, once for each row, if anything
later reads it.
"""

from __future__ import annotations

from collections.abc import Sequence

from thalweg.ir.expr import Expr, Load, Reduce
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Store
from thalweg.ir.loop import Variable, iterations
from thalweg.ir.rewrite import free_variables, walk
from thalweg.ir.target import Target
from thalweg.lower.memory.buffers import Buffer
from thalweg.lower.nests.loop_nest import LoopNest, Renaming, renaming
from thalweg.lower.passes.fuse import checks_made, joined_nodes, without_dead

_MIN_ROW = 64  # elements that are reduced for each row, and that it has after


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
            found[at] = _fused(first, second)
    return without_dead([nest for nest in found if nest is not None])


def _producer(
    nests: Sequence[LoopNest | None], place: int, target: Target
) -> tuple[int, int] | None:
    """The nest before a place that can be fused into the one there, and where both are then: there,
    or where nests between read what the first one writes, before those."""
    second = nests[place]
    if second is None or not _takes_rows(second):
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


def _takes_rows(nest: LoopNest) -> bool:
    return _is_plain(nest) and len(nest.variables) > 1


def _is_plain(nest: LoopNest) -> bool:
    return (
        nest.product is None
        and not nest.template.is_sealed
        and not nest.serial
        and not nest.aliases
        and all(write.combine == "set" and write.inside is None for write in nest.writes)
    )


def _reductions(nest: LoopNest) -> list[Reduce]:
    values = [write.value for write in nest.writes]
    return [part for part in walk(values) if isinstance(part, Reduce)]


def _fits(first: LoopNest, second: LoopNest, target: Target) -> bool:
    """Whether the first reduces the rows that the second goes over, and all fits in a kernel."""
    depth = len(first.variables)
    if not _is_plain(first) or not 0 < depth < len(second.variables):
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
    if checks_made(first, second):
        return False
    buffers = first.loads.keys() | second.loads.keys() | first.written | second.written
    if first.expr_size + second.expr_size > target.max_expressions:
        return False
    if len(buffers) > target.max_streams:
        return False
    places = {write.buffer: write.offset for write in _moved(first, rows)}
    return all(
        offset == places[buffer]
        for buffer, offsets in second.loads.items()
        if buffer in places
        for offset in offsets
    )


def _reduces_rows(nest: LoopNest) -> bool:
    """Whether its reductions are long and go along rows."""
    found = _reductions(nest)
    return bool(found) and all(
        iterations(part.variables) >= _MIN_ROW and _goes_along(part) for part in found
    )


def _goes_along(part: Reduce) -> bool:
    loads = [load for load in walk([part.body]) if isinstance(load, Load)]
    return any(load.offset.terms.get(v) == 1 for load in loads for v in part.variables)


def _only_rows(nest: LoopNest, rows: Sequence[Variable]) -> bool:
    """Whether its own reductions are those of rows too."""
    return all(free_variables(part) <= frozenset(rows) for part in _reductions(nest))


def _moved(nest: LoopNest, rows: tuple[Variable, ...]) -> list[Store]:
    """The writes of a nest over other variables."""
    rename = renaming(nest.variables, rows)
    moved = Renaming(rename)
    same = dict(zip(nest.variables, rows, strict=True))
    return [
        Store(
            write.buffer,
            tuple(same[v] for v in write.variables),
            moved.place(write.offset),
            moved.of(write.value),
            distinct=frozenset(same[v] for v in write.distinct),
        )
        for write in nest.writes
    ]


def _fused(first: LoopNest, second: LoopNest) -> LoopNest:
    writes = _moved(first, second.variables[: len(first.variables)])
    values: dict[tuple[Buffer, Affine], Expr] = {(w.buffer, w.offset): w.value for w in writes}

    def made(part: Expr) -> Expr | None:
        return values.get((part.buffer, part.offset)) if isinstance(part, Load) else None

    replaced = Renaming({}, made)
    every = (*writes, *map(replaced.store, second.writes))
    checks = first.checks + second.checks
    return LoopNest.of(second.variables, every, joined_nodes(first, second), checks=checks)
