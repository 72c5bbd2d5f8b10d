"""Hoists costly expressions that depend on the innermost loop alone out of the loops around it.

A batch norm divides every element by the root of its channel's variance. Loops over rows would
compute that again for each row: with channels last a CPU takes 1.2 to 2 times as long, whether
images fit into a cache or not. The value is stored by a nest of its own, once for each channel,
which is then fused with the computation of the variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from thalweg.ir.expr import Accumulated, Call, Expr, Load, Reduce, Scan, Select, Variable
from thalweg.ir.fingerprint import structure
from thalweg.ir.functions.table import FUNCTIONS
from thalweg.ir.index import row_major
from thalweg.ir.loop import iterations
from thalweg.ir.rewrite import Replace, free_variables, loads_in, walk
from thalweg.lower.memory.buffers import Buffer
from thalweg.lower.nests.loop_nest import (
    LoopNest,
    NestTemplate,
    Renaming,
    contiguous_variable,
    renaming,
    stored,
)

_MIN_COST = 4.0  # of a function that is worth hoisting: a division
_MIN_ITERATIONS = 1 << 16  # of a nest
_MIN_TIMES = 64  # that each value would be computed


def hoist_invariants(nests: Sequence[LoopNest]) -> list[LoopNest]:
    """The nests, each after the nests hoisted out of it."""
    buffers: dict[Any, Buffer] = {}
    return [result for nest in nests for result in _hoisted(nest, buffers)]


def _hoisted(nest: LoopNest, buffers: dict[Any, Buffer]) -> list[LoopNest]:
    template, count = nest.template, iterations(nest.variables)
    if template.product is not None or template.serial or count < _MIN_ITERATIONS:
        return [nest]
    along = contiguous_variable(nest)
    invariants = [] if along is None else _invariants(nest, along)
    if not invariants:
        return [nest]
    hoisted: list[LoopNest] = []
    loads = {part: _stored(part, nest, buffers, hoisted) for part in invariants}
    replaced = Replace(loads.get)
    writes = tuple([replace(write, value=replaced.of(write.value)) for write in nest.writes])
    return [*hoisted, nest.with_writes(writes)]


def _invariants(nest: LoopNest, along: Variable) -> list[Expr]:
    """The largest costly expressions that depend on the innermost loop and few others."""
    is_invariant = cache(partial(_is_invariant, nest=nest, along=along))

    def inside(part: Expr) -> tuple[Expr, ...]:
        is_leaf = isinstance(part, Reduce | Scan | Load) or is_invariant(part)
        return () if is_leaf else part.parts

    return [part for part in walk(nest.values, inside) if is_invariant(part)]


def _is_invariant(part: Expr, nest: LoopNest, along: Variable) -> bool:
    free = free_variables(part)
    if along not in free or part.dtype.kind != "f" or isinstance(part, Select | Load):
        return False
    if iterations(nest.variables) < _MIN_TIMES * iterations(free):
        return False
    parts = walk([part])
    calls = [part for part in parts if isinstance(part, Call)]
    is_costly = any(FUNCTIONS[call.function].cost >= _MIN_COST for call in calls)
    return is_costly and all(map(_may_move, parts))


def _may_move(part: Expr) -> bool:
    """Whether an expression can be computed before a nest: its loads are in bounds."""
    if isinstance(part, Load):
        return part.offset.is_within(part.buffer.size)
    return not isinstance(part, Reduce | Scan | Accumulated)


def _stored(
    part: Expr, nest: LoopNest, buffers: dict[Any, Buffer], hoisted: list[LoopNest]
) -> Load:
    """The load of a hoisted value; adds the nest that stores it. A value that reads a variable is
    not shared with later nests: the variable may be updated in between."""
    free = free_variables(part)
    level = tuple([v for v in nest.variables if v in free])
    reads_variable = any(load.buffer.is_variable for load in loads_in([part]))
    key = structure([part], level), id(nest) if reads_variable else None
    if key not in buffers:
        loops = tuple([Variable.fresh(v.extent) for v in level])
        write, _ = stored(Renaming(renaming(level, loops)).of(part), loops, nest.nodes[0])
        buffers[key] = write.buffer
        hoisted.append(LoopNest(NestTemplate(loops, (write,)), nest.nodes))
    return Load(buffers[key], row_major(level))
