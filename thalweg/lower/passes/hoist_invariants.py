"""Hoists what depends on the innermost loop alone out of the loops around it.

A batch norm divides every element by the root of its channel's variance. Loops over rows would find
that once for each row: with channels last a CPU takes 1.2 to 2 times as long for it, whether images
fit into a cache or not. It is stored by a nest of its own, once for each channel; that one is then
fused into what finds the variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from thalweg.ir.expr import Accumulated, Call, Expr, Load, Reduce, Scan, Select
from thalweg.ir.fingerprint import structure
from thalweg.ir.functions.table import FUNCTIONS
from thalweg.ir.index import row_major
from thalweg.ir.loop import Variable, iterations
from thalweg.ir.rewrite import Replace, free_variables, loads_in, walk
from thalweg.lower.memory.buffers import Buffer
from thalweg.lower.nests.loop_nest import (
    LoopNest,
    Renaming,
    contiguous_variable,
    renaming,
    stored,
)

_MIN_COST = 4.0  # of a function that is worth it: a division
_MIN_ITERATIONS = 1 << 16  # of a nest
_MIN_TIMES = 64  # that each value would be found again


def hoist_invariants(nests: Sequence[LoopNest]) -> list[LoopNest]:
    """The nests, each after those of what was hoisted out of it."""
    known: dict[Any, Buffer] = {}
    return [made for nest in nests for made in _hoisted(nest, known)]


def _hoisted(nest: LoopNest, known: dict[Any, Buffer]) -> list[LoopNest]:
    if nest.product is not None or nest.serial or iterations(nest.variables) < _MIN_ITERATIONS:
        return [nest]
    along = contiguous_variable(nest)
    found = [] if along is None else _invariants(nest, along)
    if not found:
        return [nest]
    made: list[LoopNest] = []
    loads = {part: _stored(part, nest, known, made) for part in found}
    replaced = Replace(loads.get)
    writes = tuple([replace(write, value=replaced.of(write.value)) for write in nest.writes])
    again = LoopNest.of(
        nest.variables, writes, nest.nodes, checks=nest.checks, aliases=nest.aliases
    )
    return [*made, again]


def _invariants(nest: LoopNest, along: Variable) -> list[Expr]:
    """The largest dear expressions that depend on few loops, the innermost among them."""
    found: list[Expr] = []

    def inside(part: Expr) -> tuple[Expr, ...]:
        if isinstance(part, Reduce | Scan | Load):
            return ()
        if _is_invariant(part, nest, along):
            found.append(part)
            return ()
        return part.parts

    walk(nest.values, inside)
    return found


def _is_invariant(part: Expr, nest: LoopNest, along: Variable) -> bool:
    free = free_variables(part)
    if along not in free or part.dtype.kind != "f" or isinstance(part, Select):
        return False
    if iterations(nest.variables) < _MIN_TIMES * iterations(free):
        return False
    parts = walk([part])
    calls = [each for each in parts if isinstance(each, Call)]
    is_dear = any(FUNCTIONS[each.function].cost >= _MIN_COST for each in calls)
    return is_dear and all(map(_may_move, parts))


def _may_move(part: Expr) -> bool:
    """Whether an expression can be computed before a nest: what it reads is there."""
    if isinstance(part, Load):
        low, high = part.offset.bounds
        return low >= 0 and high < part.buffer.size
    return not isinstance(part, Reduce | Scan | Accumulated)


def _stored(part: Expr, nest: LoopNest, known: dict[Any, Buffer], made: list[LoopNest]) -> Load:
    """The load of a hoisted value, which a nest stores that is added to those that were made. One
    that depends on a variable is not for later nests, before which that may be updated."""
    free = free_variables(part)
    level = tuple([v for v in nest.variables if v in free])
    changes = any(load.buffer.is_variable for load in loads_in([part]))
    key = structure([part], level), id(nest) if changes else None
    if key not in known:
        loops = tuple([Variable.fresh(v.extent) for v in level])
        write, _ = stored(Renaming(renaming(level, loops)).of(part), loops, nest.nodes[0])
        known[key] = write.buffer
        made.append(LoopNest.of(loops, (write,), nest.nodes))
    return Load(known[key], row_major(level))
