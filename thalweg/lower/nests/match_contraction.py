"""Matches contractions: matrix products, convolutions and their gradients in one pattern.

`Σ a[…] · b[…]` at offsets that are sums of variables is a contraction, whatever op it came from.
Each factor may be guarded by bounds outside which it is zero, as padding is.

The gradient of a strided convolution reads at `i // 2` and `i % 2` of an output index i. Split into
a phase of even and one of odd indices, both are sums of variables, and each phase is a plain
contraction.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from thalweg.ir.expr import Call, Cast, Expr, Load, Reduce, Select, Variable, is_zero, uncast
from thalweg.ir.index import Affine, FloorMod, affine, expressed, index_of, number
from thalweg.ir.kernel import Access, Bound, Contraction
from thalweg.ir.loop import IndexTuple, iterations
from thalweg.ir.rewrite import loads_in
from thalweg.ir.target import Target
from thalweg.platform.dtype_traits import compute_dtype, is_float, is_narrow_float


def summed_product(part: Expr) -> Call | None:
    """The product under an expression that is a sum of products, perhaps cast."""
    match uncast(part):
        case Reduce(combine="sum", body=Call(function="mul") as product):
            return product
        case _:
            return None


def product_of(part: Reduce, variables: tuple[Variable, ...], target: Target) -> Contraction | None:
    """A reduction in a nest of these variables as a contraction, if it is one and large enough."""
    factors = _factors(part)
    if factors is None:
        return None
    a, b = factors
    reduced, dtype = part.variables, compute_dtype(a.value.dtype)
    a_variables, b_variables = _variables(a), _variables(b)
    if a_variables is None or b_variables is None:
        return None
    if variables and variables[-1] in a_variables and variables[-1] not in b_variables:
        a, b, a_variables, b_variables = b, a, b_variables, a_variables
    batch = tuple(v for v in variables if v in a_variables and v in b_variables)
    columns = tuple(v for v in variables if v in b_variables and v not in a_variables)
    rows = tuple(v for v in variables if v not in b_variables)
    if not columns or iterations((*variables, *reduced)) < target.min_contraction_work:
        return None
    if iterations(reduced) <= 2 or iterations(rows) < target.min_contraction_rows:
        return None
    if is_narrow_float(a.value.dtype) and iterations(rows) < target.min_narrow_rows:
        return None
    return Contraction((), batch, rows, columns, reduced, a, b, dtype, ())


def _factors(part: Reduce) -> tuple[Access, Access] | None:
    """The factors of a sum of products of floats of one dtype; None for other reductions."""
    body = summed_product(part)
    if body is None:
        return None
    a, b = map(_factor, body.arguments)
    if a is None or b is None or a.value.dtype != b.value.dtype:
        return None
    return (a, b) if is_float(a.value.dtype) else None


def floor_mods(root: Expr) -> list[FloorMod]:
    """The quotients and remainders in the offsets that an expression loads at."""
    return [term for load in loads_in([root]) for term in load.offset.floor_mods]


def _factor(part: Expr) -> Access | None:
    """An expression as a factor, if it is a load, perhaps cast, perhaps zero outside bounds."""
    match part:
        case Load():
            return Access(part, ())
        case Cast():
            inner = _factor(part.value)
            if inner is None:
                return None
            if isinstance(inner.value, Load) and inner.value.dtype == part.dtype:
                return inner
            return Access(Cast(inner.value, part.dtype), inner.bounds)
        case Select() if is_zero(part.otherwise):
            inner, bounds = _factor(part.chosen), bounds_of(part.condition)
            if inner is None or bounds is None:
                return None
            return Access(inner.value, (*bounds, *inner.bounds))
        case _:
            return None


def bounds_of(condition: Expr) -> tuple[Bound, ...] | None:
    """A conjunction of index comparisons as bounds; None for other conditions."""
    match condition:
        case Call("and", sides):
            bounds = [bounds_of(side) for side in sides]
            known = [bound for side in bounds if side is not None for bound in side]
            return None if None in bounds else _joined(known)
        case Call("lt" | "le" | "gt" | "ge" as function, (left, right)) if (
            left.is_index and right.is_index
        ):
            difference = affine(left) + affine(right).scaled(-1)
            is_bounded = not any(math.isinf(bound) for bound in difference.bounds)
            return (_bound(function, difference),) if is_bounded else None
        case _:
            return None


def _bound(function: str, difference: Affine) -> Bound:
    """A comparison of a difference with zero as bounds of the difference."""
    low, high = (int(b) for b in difference.bounds)
    if function in ("lt", "le"):
        return low, difference, int(function == "le")
    return int(function == "gt"), difference, high + 1


def _joined(bounds: list[Bound]) -> tuple[Bound, ...]:
    """Bounds with those of one affine sum intersected, and its constant moved into the range."""
    ranges: dict[Affine, tuple[int, int]] = {}
    for low, value, high in bounds:
        terms = Affine(0, value.terms)
        below, above = low - value.constant, high - value.constant
        range_before = ranges.get(terms, (below, above))
        ranges[terms] = max(range_before[0], below), min(range_before[1], above)
    return tuple((low, value, high) for value, (low, high) in ranges.items())


def _variables(factor: Access) -> set[Variable] | None:
    """The variables of a factor; None where an offset is not a sum of variables."""
    offsets = [factor.load.offset, *(offset for _, offset, _ in factor.bounds)]
    if not all(offset.is_plain for offset in offsets):
        return None
    return {variable for offset in offsets for variable in offset.strides}


# Phases: contractions with strided outputs, split


def strides_of(form: Any, at: IndexTuple, target: Target) -> dict[Variable, int]:
    """The strides of a contraction's output variables: the divisors of its offsets, if only output
    variables are divided."""
    body = summed_product(form) if isinstance(form, Expr) else None
    if body is None:
        return {}
    strides: dict[Variable, int] = {}
    for term in floor_mods(body):
        outer = [v for v in at.variables if v in term.number.terms]
        if len(term.number.terms) != 1 or len(outer) != 1:
            return {}
        strides[outer[0]] = math.lcm(strides.get(outer[0], 1), term.period)
    return strides if math.prod(strides.values()) <= target.max_strided_phases else {}


def phases(
    at: IndexTuple, strides: dict[Variable, int]
) -> Iterator[tuple[IndexTuple, tuple[Variable, ...]]]:
    """The index of an element of each phase, and the loops over its elements."""
    for residues in itertools.product(*(range(s) for s in strides.values())):
        chosen = dict(zip(strides, residues, strict=True))
        pairs = [_phase(v, strides.get(v, 1), chosen.get(v, 0)) for v in at.variables]
        if all(loop.extent for _, loop in pairs):
            indices = [expressed(index) for index, _ in pairs]
            loops = tuple(loop for _, loop in pairs if loop.extent != 1)
            yield IndexTuple.of(indices, at.shape, at.output), loops


def _phase(variable: Variable, stride: int, residue: int) -> tuple[Affine, Variable]:
    count = max(-(-(variable.extent - residue) // stride), 0)
    loop = Variable.fresh(count)
    return index_of(loop).scaled(stride) + number(residue), loop


def is_zero_form(form: Expr) -> bool:
    """Whether a phase of a contraction is zero: one of its factors is padding throughout."""
    body = summed_product(form)
    return is_zero(form) if body is None else any(is_zero(uncast(part)) for part in body.arguments)
