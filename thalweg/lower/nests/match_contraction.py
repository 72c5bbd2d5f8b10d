"""Matches contractions: matrix products, convolutions and their gradients in one pattern.

`Σ a[…] · b[…]` at offsets that are sums of variables is a contraction, whatever op it came from.
Each factor may be guarded by bounds outside which it is zero, as padding is.

The gradient of a strided convolution reads at `i // 2` and `i % 2` of an output index i. Over the
even and over the odd indices apart, both are sums of variables again, and each phase is a plain
contraction.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from thalweg.ir.expr import Call, Cast, Expr, Load, Reduce, Select, is_zero
from thalweg.ir.index import Affine, FloorMod, affine, expressed, number
from thalweg.ir.index import variable as index_of
from thalweg.ir.kernel import Access, Bound, Contraction
from thalweg.ir.loop import IndexTuple, Variable, iterations
from thalweg.ir.rewrite import loads_in
from thalweg.ir.target import Target
from thalweg.platform.dtype_traits import compute_dtype, is_float, is_narrow_float


def summed_product(part: Expr) -> Call | None:
    """The product under an expression that is a sum of products, perhaps cast."""
    match bare(part):
        case Reduce(combine="sum", body=Call(function="mul") as product):
            return product
        case _:
            return None


def product_of(part: Expr, variables: tuple[Variable, ...], target: Target) -> Contraction | None:
    """A reduction in a nest of these variables as a contraction, if it is one worth that."""
    body = summed_product(part) if isinstance(part, Reduce) else None
    if body is None or not isinstance(part, Reduce):
        return None
    first, second = (_factor(side) for side in body.arguments)
    if first is None or second is None:
        return None
    dtype = first.value.dtype
    if dtype != second.value.dtype or not is_float(dtype):
        return None
    return _roles(first, second, variables, part.variables, compute_dtype(dtype), target)


def _roles(
    first: Access,
    second: Access,
    variables: tuple[Variable, ...],
    reduced: tuple[Variable, ...],
    dtype: Any,
    target: Target,
) -> Contraction | None:
    ours, theirs = _variables(first), _variables(second)
    if ours is None or theirs is None:
        return None
    if variables and variables[-1] in ours and variables[-1] not in theirs:
        first, second, ours, theirs = second, first, theirs, ours
    batch = tuple(v for v in variables if v in ours and v in theirs)
    columns = tuple(v for v in variables if v in theirs and v not in ours)
    rows = tuple(v for v in variables if v not in theirs)
    if not columns or iterations((*variables, *reduced)) < target.min_contraction_work:
        return None
    if iterations(reduced) <= 2 or set(variables) - set(batch + rows + columns):
        return None
    if iterations(rows) < target.min_contraction_rows:
        return None
    if is_narrow_float(first.value.dtype) and iterations(rows) < target.min_narrow_rows:
        return None
    return Contraction((), batch, rows, columns, reduced, first, second, dtype, ())


def splits_of(part: Reduce, variables: tuple[Variable, ...]) -> dict[Variable, int]:
    """The variables of a sum of products to split in two, so that its offsets are sums of
    variables, and the extent of the inner one of each.

    Heads of attention that were merged into one axis are read at `k // 64` and `k % 64`: split at
    64, both are variables.
    """
    found: dict[Variable, int] = {}
    loops = (*variables, *part.variables)
    fits = all(_note_split(term, loops, found) for term in floor_mods(part.body))
    return found if fits else {}


def floor_mods(value: Expr) -> list[FloorMod]:
    """The quotients and remainders in the offsets that an expression loads at."""
    terms = [term for load in loads_in([value]) for term in load.offset.terms]
    return [term for term in terms if isinstance(term, FloorMod)]


def _note_split(
    term: FloorMod, variables: tuple[Variable, ...], found: dict[Variable, int]
) -> bool:
    """Note where one quotient or remainder needs its variable split; whether that is possible."""
    terms = list(term.number.terms.items())
    if len(terms) != 1 or term.number.constant:
        return False
    ((variable, factor),) = terms
    at = term.divisor if term.divisor > 1 else term.modulus
    if not isinstance(variable, Variable) or variable not in variables or factor != 1:
        return False
    if term.divisor > 1 and term.modulus:
        return False
    return variable.extent % at == 0 and found.setdefault(variable, at) == at


def _factor(part: Expr) -> Access | None:
    """An expression as a factor, if it is a load, perhaps cast, perhaps zero outside bounds."""
    match part:
        case Load():
            return Access(part, ())
        case Cast():
            inner = _factor(part.value)
            if inner is None:
                return None
            if isinstance(inner.value, Load) and inner.value.dtype == part.target:
                return inner
            return Access(Cast(inner.value, part.target), inner.bounds)
        case Select() if is_zero(part.otherwise):
            inner, bounds = _factor(part.chosen), bounds_of(part.condition)
            if inner is None or bounds is None:
                return None
            return Access(inner.value, (*bounds, *inner.bounds))
        case _:
            return None


def bounds_of(condition: Expr) -> tuple[Bound, ...] | None:
    """A conjunction of comparisons of indices as bounds, if it is one."""
    if not isinstance(condition, Call):
        return None
    if condition.function == "and":
        found: list[Bound] = []
        for side in condition.arguments:
            more = bounds_of(side)
            if more is None:
                return None
            found += more
        return _joined(found)
    if condition.function not in ("lt", "le", "gt", "ge"):
        return None
    left, right = condition.arguments
    if not left.is_index or not right.is_index:
        return None
    difference = affine(left) + affine(right).scaled(-1)
    if any(math.isinf(bound) for bound in difference.bounds):
        return None
    return (_bound(condition.function, difference),)


def _bound(function: str, difference: Affine) -> Bound:
    """A comparison of a difference with zero as bounds of the difference."""
    low, high = (int(b) for b in difference.bounds)
    if function in ("lt", "le"):
        return low, difference, int(function == "le")
    return int(function == "gt"), difference, high + 1


def _joined(found: list[Bound]) -> tuple[Bound, ...]:
    """Bounds with those of one affine sum intersected, and its constant moved into the range."""
    ranges: dict[Affine, tuple[int, int]] = {}
    for low, value, high in found:
        plain = Affine(0, value.terms)
        below, above = low - value.constant, high - value.constant
        before = ranges.get(plain, (below, above))
        ranges[plain] = max(before[0], below), min(before[1], above)
    return tuple((low, value, high) for value, (low, high) in ranges.items())


def _variables(factor: Access) -> set[Variable] | None:
    """The variables of a factor, or None where an offset is more than a sum of variables."""
    found: set[Variable] = set()
    for place in [factor.load.offset, *(bound[1] for bound in factor.bounds)]:
        for atom in place.terms:
            if not isinstance(atom, Variable):
                return None
            found.add(atom)
    return found


# Phases: contractions with strided outputs, split


def strides_of(form: Any, at: IndexTuple, target: Target) -> dict[Variable, int]:
    """The strides of a contraction's output variables: those it divides by, if it divides nothing
    else."""
    body = summed_product(form) if isinstance(form, Expr) else None
    if body is None:
        return {}
    strides: dict[Variable, int] = {}
    for term in floor_mods(body):
        outer = [v for v in term.number.terms if v in at.variables]
        if len(term.number.terms) != 1 or len(outer) != 1:
            return {}
        by = term.divisor * max(term.modulus, 1)
        variable = at.variables[at.variables.index(outer[0])]  # pyright: ignore[reportArgumentType]
        strides[variable] = math.lcm(strides.get(variable, 1), by)
    return strides if math.prod(strides.values()) <= target.max_strided_phases else {}


def phases(
    at: IndexTuple, strides: dict[Variable, int]
) -> Iterator[tuple[IndexTuple, tuple[Variable, ...]]]:
    """The index of an element of each phase, and the loops over its elements."""
    for residues in itertools.product(*(range(s) for s in strides.values())):
        chosen = dict(zip(strides, residues, strict=True))
        indices: list[Affine] = []
        loops: list[Variable] = []
        for variable in at.variables:
            index, loop = _phase(variable, strides.get(variable, 1), chosen.get(variable, 0))
            indices.append(index)
            loops.append(loop)
        if all(loop.extent for loop in loops):
            places = [expressed(index) for index in indices]
            yield (
                IndexTuple.of(places, at.shape, at.output),
                tuple(loop for loop in loops if loop.extent != 1),
            )


def _phase(variable: Variable, stride: int, residue: int) -> tuple[Affine, Variable]:
    count = max(-(-(variable.extent - residue) // stride), 0)
    loop = Variable.fresh(count)
    return index_of(loop).scaled(stride) + number(residue), loop


def is_nothing(form: Expr) -> bool:
    """Whether a phase of a contraction is zero: one of its factors is always padding."""
    body = summed_product(form)
    return is_zero(form) if body is None else any(is_zero(bare(part)) for part in body.arguments)


def bare(value: Expr) -> Expr:
    """A value without conversions."""
    while isinstance(value, Cast):
        value = value.value
    return value
