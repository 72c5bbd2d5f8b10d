"""Tiles nests that read windows: an iteration computes several neighbouring elements.

The windows of neighbouring elements overlap. Where windows are strided, which of them an element is
in depends on its index modulo the stride. On a target whose threads have many registers, an
iteration computes a tile of elements. The reductions over windows are unrolled, so that common
subexpressions of a tile are computed once, and conditions on the position in a tile are folded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial, reduce

from thalweg.ir.expr import (
    TRUE,
    Cast,
    Const,
    Expr,
    Index,
    Reduce,
    Select,
    call,
    constant,
    converted,
    is_zero,
    logical,
    simplified_select,
)
from thalweg.ir.functions.dtypes import Dtype
from thalweg.ir.functions.reductions import REDUCTIONS
from thalweg.ir.index import (
    Affine,
    affine,
    bounds_of,
    expressed,
    index_of,
    number,
    simplified_call,
)
from thalweg.ir.kernel import Store
from thalweg.ir.loop import Variable, iterations
from thalweg.ir.target import Target
from thalweg.lower.nests.loop_nest import LoopNest, NestTemplate, Renaming, contiguous_variable
from thalweg.platform.dtype_traits import compute_dtype

Tile = dict[Variable, int]  # the number of elements along each variable

_MAX_TAPS = 9  # of a window that is unrolled
_ROW, _MAX_ROW = 8, 32  # elements of a vector; the most of a row that an iteration writes
_SIDES = (2, 3, 7)  # of a tile along a variable without a period: the first that divides


def tile_windows(nests: Sequence[LoopNest], target: Target) -> list[LoopNest]:
    """The nests; those that read windows are tiled if the target tiles."""
    if target.max_tile_taps == 0:
        return list(nests)
    return [_tiled(nest, target) for nest in nests]


def _tiled(nest: LoopNest, target: Target) -> LoopNest:
    is_large = iterations(nest.variables) >= target.min_tiled_elements
    if not is_large or not _is_plain(nest) or not _has_windows(nest):
        return nest
    tile = _choose_tile(nest, target)
    if not tile:
        return nest
    loops = {v: Variable.fresh(-(-v.extent // tile.get(v, 1))) for v in nest.variables}
    unroll = _Unroll({})
    whole = [replace(write, value=unroll.of(write.value)) for write in nest.writes]
    writes = [
        write
        for position in itertools.product(*(range(side) for side in tile.values()))
        for write in _writes_at(whole, loops, tile, dict(zip(tile, position, strict=True)))
    ]
    template = NestTemplate(writes[0].variables, tuple(writes))
    return LoopNest(template, nest.nodes, aliases=nest.aliases)


def _is_plain(nest: LoopNest) -> bool:
    is_whole = all(write.variables == nest.variables for write in nest.writes)
    return nest.template.is_plain and is_whole


def _has_windows(nest: LoopNest) -> bool:
    """Whether all reductions of a nest are over the taps of small windows."""
    return all(
        iterations(part.variables) <= _MAX_TAPS and not REDUCTIONS[part.combine].gives_position
        for part in nest.reductions
    )


# The tile


def _choose_tile(nest: LoopNest, target: Target) -> Tile:
    """The sides of a tile: a whole period of strided windows, else a few elements along variables
    whose windows overlap."""
    along = contiguous_variable(nest)
    taps = max([iterations(part.variables) for part in nest.reductions], default=1)
    tile: Tile = {}
    for variable in reversed(nest.variables):
        size = taps * math.prod(tile.values())
        sides = _row_sides(variable, nest) if variable is along else _sides(variable, nest)
        best = next((side for side in sides if size * side <= target.max_tile_taps), 1)
        if best > 1:
            tile[variable] = best
    return tile


def _sides(variable: Variable, nest: LoopNest) -> Iterable[int]:
    """The sides that a tile may have along a variable, the best one first."""
    offsets = nest.load_offsets
    period = math.lcm(*(_period(variable, offset) for offset in offsets))
    if period > 1:
        return (period,) if period <= variable.extent else ()
    if any(_overlaps(variable, offset) for offset in offsets):
        return [side for side in _SIDES if variable.extent % side == 0]
    return ()


def _row_sides(variable: Variable, nest: LoopNest) -> Iterable[int]:
    """The same along the contiguous variable, where a row of the result interleaves several rows of
    the input: whole vectors."""
    offsets = nest.load_offsets
    steps = [t.period for p in offsets for t in p.floor_mods if variable in t.number.terms]
    if not steps or any(offset.factor(variable) for offset in offsets):
        return ()
    sides = (math.lcm(_ROW, *steps), variable.extent)
    return [s for s in sides if s <= _MAX_ROW and s % _ROW == 0 and variable.extent % s == 0]


def _period(variable: Variable, offset: Affine) -> int:
    """The period, along a variable, of the quotients and remainders in an offset."""
    terms = [term for term in offset.floor_mods if variable in term.number.terms]
    factors = [math.gcd(term.period, term.number.factor(variable)) for term in terms]
    return math.lcm(*(term.period // f for term, f in zip(terms, factors, strict=True)))


def _overlaps(variable: Variable, offset: Affine) -> bool:
    """Whether windows of neighbouring values of a variable share elements."""
    stride = offset.factor(variable)
    if not stride:
        return False
    for term, factor in offset.terms.items():
        low, high = bounds_of(term)
        if term is not variable and stride % factor == 0 and not math.isinf(high):
            inside = not isinstance(term, Variable) or term.extent <= _MAX_TAPS
            if inside and 0 < abs(stride // factor) <= high - low:
                return True
    return False


def _writes_at(
    writes: Iterable[Store], loops: dict[Variable, Variable], tile: Tile, position: Tile
) -> list[Store]:
    """The writes of one element of a tile."""
    indices = {
        v: index_of(loop).scaled(tile.get(v, 1)) + number(position.get(v, 0))
        for v, loop in loops.items()
    }
    substitute = _Substitute(indices)
    ends = [(expressed(indices[v]), constant(v.extent)) for v in tile]
    bounds = [simplified_call("lt", sides) for sides in ends]
    inside = reduce(lambda left, right: logical("and", (left, right)), bounds, TRUE)
    variables = tuple(v for v in loops.values() if v.extent != 1)
    return [
        replace(
            write,
            variables=variables,
            offset=substitute.place(write.offset),
            value=substitute.of(write.value),
            inside=None if inside is TRUE else inside,
        )
        for write in writes
    ]


# Expressions


class _Substitute(Renaming):
    """Substitutes affine sums for variables, and simplifies."""

    def rebuilt(self, node: Expr) -> Expr:
        match node:
            case Cast():
                result = converted(self.new(node.value), node.dtype)
            case Select():
                result = simplified_select(*map(self.new, node.parts))
            case _:
                result = super().rebuilt(node)
        if result.is_index and not isinstance(result, Const | Index):
            return expressed(affine(result))
        return result

    def call(self, function: str, arguments: tuple[Expr, ...]) -> Expr:
        return simplified_call(function, arguments)


class _Unroll(_Substitute):
    """Unrolls reductions to expressions over all their elements."""

    def rebuilt(self, node: Expr) -> Expr:
        if not isinstance(node, Reduce):
            return super().rebuilt(node)
        reduction = REDUCTIONS[node.combine]
        wide = compute_dtype(node.dtype) if reduction.rounds else node.dtype
        elements = self._elements(node.combine, node.variables, self.new(node.body), wide)
        return converted(_reduced(node.combine, elements, wide), node.dtype)

    def _elements(
        self, combine: str, variables: tuple[Variable, ...], body: Expr, wide: Dtype
    ) -> list[Expr]:
        """The terms of a reduction. Each row is reduced to one term, which overlapping windows
        share, unless it has guarded terms, which are added to the total one by one."""
        if not variables:
            return [_widened(body, wide)]
        outer, *inner = variables
        rows = [
            self._elements(combine, tuple(inner), _Substitute({outer: number(n)}).of(body), wide)
            for n in range(outer.extent)
        ]
        if any(_is_guarded_term(combine, part) for row in rows for part in row):
            return [part for row in rows for part in row]
        return [_reduced(combine, row, wide) for row in rows]


def _reduced(combine: str, parts: Sequence[Expr], dtype: Dtype) -> Expr:
    reduction = REDUCTIONS[combine]
    identity = constant(reduction.identity(dtype), dtype)
    operands = [part for part in parts if part is not identity]
    return reduce(partial(_combined, combine), operands) if operands else identity


def _widened(value: Expr, dtype: Dtype) -> Expr:
    """A value converted to another dtype; a select's operands are converted instead."""
    if value.dtype == dtype or not isinstance(value, Select):
        return converted(value, dtype)
    chosen, otherwise = (converted(part, dtype) for part in (value.chosen, value.otherwise))
    return Select(value.condition, chosen, otherwise)


def _is_guarded_term(combine: str, part: Expr) -> bool:
    """Whether a term of a sum is zero unless a condition holds."""
    return combine == "sum" and isinstance(part, Select) and is_zero(part.otherwise)


def _combined(combine: str, total: Expr, part: Expr) -> Expr:
    """A total and one more term. A guarded term is added under its condition: threads may skip the
    instruction."""
    function = REDUCTIONS[combine].function
    if isinstance(part, Select) and _is_guarded_term(combine, part):
        return Select(part.condition, call(function, total, part.chosen), total)
    return call(function, total, part)
