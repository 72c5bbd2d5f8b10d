"""Tiles nests that read windows: an iteration computes several neighbouring elements.

The windows of neighbouring elements overlap, and where windows move in steps, which of them an
element is in depends on its index modulo the step. On a target whose threads have many registers
an iteration computes a tile of elements. The reductions over windows are unrolled, so that what the
elements of a tile share is one expression, and what depends on the place in a tile is decided here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial, reduce

from thalweg.ir.expr import (
    TRUE,
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
)
from thalweg.ir.functions.dtypes import Dtype
from thalweg.ir.functions.reductions import REDUCTIONS
from thalweg.ir.index import (
    Affine,
    FloorMod,
    affine,
    bounds_of,
    compared,
    expressed,
    number,
    simplified_call,
)
from thalweg.ir.index import variable as index_of
from thalweg.ir.kernel import Store
from thalweg.ir.loop import Variable, iterations
from thalweg.ir.target import Target
from thalweg.lower.nests.loop_nest import LoopNest, Renaming, contiguous_variable
from thalweg.platform.dtype_traits import compute_dtype

Tile = dict[Variable, int]  # how many neighbours along a variable an iteration computes

_MAX_TAPS = 9  # of a window that is unrolled
_ROW, _MAX_ROW = 8, 32  # elements of a vector, and of what an iteration writes of a row
_SIDES = (2, 3, 7)  # of a tile along a variable of which any side will do: the first that divides


def tile_windows(nests: Sequence[LoopNest], target: Target) -> list[LoopNest]:
    """The nests, those that read windows tiled where the target computes several elements."""
    if target.max_tile_taps == 0:
        return list(nests)
    return [_tiled(nest, target) for nest in nests]


def _tiled(nest: LoopNest, target: Target) -> LoopNest:
    is_large = iterations(nest.variables) >= target.min_tiled_elements
    if not is_large or not _is_plain(nest) or not _has_windows(nest):
        return nest
    tile = _tile(nest, target)
    if not tile:
        return nest
    loops = {v: Variable.fresh(-(-v.extent // tile.get(v, 1))) for v in nest.variables}
    unroll = _Unroll()
    whole = [replace(write, value=unroll.of(write.value)) for write in nest.writes]
    writes = [
        write
        for place in itertools.product(*(range(side) for side in tile.values()))
        for write in _at(whole, loops, tile, dict(zip(tile, place, strict=True)))
    ]
    kept = tuple(v for v in loops.values() if v.extent != 1)
    return LoopNest.of(kept, tuple(writes), nest.nodes, aliases=nest.aliases)


def _is_plain(nest: LoopNest) -> bool:
    is_whole = all(write.variables == nest.variables for write in nest.writes)
    return nest.template.is_plain and not nest.checks and is_whole


def _has_windows(nest: LoopNest) -> bool:
    """Whether its reductions are over the few taps of windows."""
    return all(
        iterations(part.variables) <= _MAX_TAPS and not REDUCTIONS[part.combine].gives_position
        for part in nest.reductions
    )


# The tile


def _tile(nest: LoopNest, target: Target) -> Tile:
    """The sides of a tile: a whole step of windows that move in steps, else a few elements along
    variables whose windows overlap."""
    along = contiguous_variable(nest)
    taps = max([iterations(part.variables) for part in nest.reductions], default=1)
    found: Tile = {}
    for variable in reversed(nest.variables):
        size = taps * math.prod(found.values())
        sides = _row_sides(variable, nest) if variable is along else _sides(variable, nest)
        best = next((side for side in sides if size * side <= target.max_tile_taps), 1)
        if best > 1:
            found[variable] = best
    return found


def _sides(variable: Variable, nest: LoopNest) -> Iterable[int]:
    """The sides that a tile may have along a variable, the best one first."""
    places = [place for offsets in nest.loads.values() for place in offsets]
    step = math.lcm(*(_step(variable, place) for place in places))
    if step > 1:
        return (step,) if step <= variable.extent else ()
    if any(_overlaps(variable, place) for place in places):
        return [side for side in _SIDES if variable.extent % side == 0]
    return ()


def _row_sides(variable: Variable, nest: LoopNest) -> Iterable[int]:
    """The same along rows of a result that are put together from several rows of what is read, in
    whole vectors."""
    places = [place for offsets in nest.loads.values() for place in offsets]
    terms = [t for p in places for t in p.terms if isinstance(t, FloorMod)]
    steps = [t.divisor * max(t.modulus, 1) for t in terms if variable in t.number.terms]
    if not steps or any(place.factor(variable) for place in places):
        return ()
    sides = (math.lcm(_ROW, *steps), variable.extent)
    return [s for s in sides if s <= _MAX_ROW and s % _ROW == 0 and variable.extent % s == 0]


def _step(variable: Variable, place: Affine) -> int:
    """After how many values of a variable the quotients and remainders in a place repeat."""
    terms = [t for t in place.terms if isinstance(t, FloorMod) and variable in t.number.terms]
    wholes = [t.divisor * max(t.modulus, 1) for t in terms]
    factors = [t.number.factor(variable) for t in terms]
    return math.lcm(*(w // math.gcd(w, f) for w, f in zip(wholes, factors, strict=True)))


def _overlaps(variable: Variable, place: Affine) -> bool:
    """Whether windows that are neighbours along a variable have elements in common."""
    stride = place.factor(variable)
    if not stride:
        return False
    for term, factor in place.terms.items():
        low, high = bounds_of(term)
        if term is not variable and stride % factor == 0 and not math.isinf(high):
            inside = not isinstance(term, Variable) or term.extent <= _MAX_TAPS
            if inside and 0 < abs(stride // factor) <= high - low:
                return True
    return False


def _at(
    writes: Iterable[Store], loops: dict[Variable, Variable], tile: Tile, place: Tile
) -> list[Store]:
    """The writes of one element of a tile."""
    sums = {
        v: index_of(loop).scaled(tile.get(v, 1)) + number(place.get(v, 0))
        for v, loop in loops.items()
    }
    move = _Substitute(sums)
    inside = reduce(_both, [_below(sums[v], v.extent) for v in tile], TRUE)
    variables = tuple(v for v in loops.values() if v.extent != 1)
    return [
        replace(
            write,
            variables=variables,
            offset=move.place(write.offset),
            value=move.of(write.value),
            inside=None if inside is TRUE else inside,
        )
        for write in writes
    ]


def _both(one: Expr, other: Expr) -> Expr:
    return logical("and", (one, other))


def _below(index: Affine, size: int) -> Expr:
    decided = compared("lt", index, number(size))
    return TRUE if decided else expressed(index) < size


# Expressions


class _Substitute(Renaming):
    """Sums for variables, with all that follows from them."""

    def rebuilt(self, node: Expr) -> Expr:
        made = super().rebuilt(node)
        if made.is_index and not isinstance(made, Const | Index):
            return expressed(affine(made))
        return made

    def call(self, function: str, arguments: tuple[Expr, ...]) -> Expr:
        simple = simplified_call(function, arguments)
        return super().call(function, arguments) if simple is None else simple

    def cast(self, value: Expr, target: Dtype) -> Expr:
        return converted(value, target)

    def select(self, condition: Expr, chosen: Expr, otherwise: Expr) -> Expr:
        made = Select(condition, chosen, otherwise)
        if isinstance(condition, Const):
            return converted(chosen if condition.value else otherwise, made.dtype)
        return made


class _Unroll(_Substitute):
    """Reductions as expressions over all their elements."""

    def __init__(self) -> None:
        super().__init__({})

    def rebuilt(self, node: Expr) -> Expr:
        if not isinstance(node, Reduce):
            return super().rebuilt(node)
        row = REDUCTIONS[node.combine]
        wide = compute_dtype(node.dtype) if row.rounds else node.dtype
        elements = self._level(node.combine, node.variables, self.new(node.body), wide)
        return converted(_reduced(node.combine, elements, wide), node.dtype)

    def _level(
        self, combine: str, variables: tuple[Variable, ...], body: Expr, wide: Dtype
    ) -> list[Expr]:
        """The elements of a reduction. Those of a row are one, which several windows have in
        common, unless conditions add them to one total each."""
        if not variables:
            return [_widened(body, wide)]
        first, *others = variables
        rows = [
            self._level(combine, tuple(others), _Substitute({first: number(n)}).of(body), wide)
            for n in range(first.extent)
        ]
        if any(_is_perhaps_added(combine, part) for row in rows for part in row):
            return [part for row in rows for part in row]
        return [_reduced(combine, row, wide) for row in rows]


def _reduced(combine: str, parts: Sequence[Expr], dtype: Dtype) -> Expr:
    row = REDUCTIONS[combine]
    identity = constant(row.identity(dtype), dtype)
    left = [part for part in parts if part is not identity]
    return reduce(partial(_combined, combine), left) if left else identity


def _widened(value: Expr, dtype: Dtype) -> Expr:
    """A value in another dtype; of one that a condition chooses, what is chosen."""
    if value.dtype == dtype or not isinstance(value, Select):
        return converted(value, dtype)
    chosen, otherwise = (converted(part, dtype) for part in (value.chosen, value.otherwise))
    return Select(value.condition, chosen, otherwise)


def _is_perhaps_added(combine: str, part: Expr) -> bool:
    """Whether an element of a sum is zero unless a condition holds."""
    return combine == "sum" and isinstance(part, Select) and is_zero(part.otherwise)


def _combined(combine: str, total: Expr, part: Expr) -> Expr:
    """A total and one more element. Where that is zero unless a condition holds, the total stays:
    an instruction that a thread may skip."""
    function = REDUCTIONS[combine].function
    if isinstance(part, Select) and _is_perhaps_added(combine, part):
        return Select(part.condition, call(function, total, part.chosen), total)
    return call(function, total, part)
