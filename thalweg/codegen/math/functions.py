"""The functions of `thalweg.ir.expr.FUNCTIONS` as instructions, with NumPy's meaning.

Each takes a `Site` and register values, which already have the input dtypes of the site and agree
in their number of lanes, and gives the result in the register type of the site's output dtype.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from thalweg.codegen.llvm.builder import Value, constant
from thalweg.codegen.llvm.register import Register, is_constant
from thalweg.codegen.math import division, exponential, integers, trigonometry
from thalweg.codegen.math import power as powers
from thalweg.codegen.math.site import Site
from thalweg.ir.types import BOOL, Unsupported
from thalweg.platform.dtype_traits import is_float

Emit = Callable[..., Value]


def _by_kind(whole: str, floating: str, truth: str) -> Emit:
    """An instruction for integers, floats and booleans."""

    def emit(site: Site, x: Value, y: Value) -> Value:
        operation = truth if site.dtype == BOOL else floating if is_float(site.dtype) else whole
        return site.builder.binary(operation, x, y)

    return emit


def _divide(site: Site, x: Value, y: Value) -> Value:
    return site.builder.binary("fdiv", x, y)


def _numeric(formula: Callable[..., Register]) -> Emit:
    """A function over float registers."""

    def emit(site: Site, *values: Value) -> Value:
        return formula(*(Register(site.builder, value) for value in values)).value

    return emit


def _by_numbers(floating: Callable[..., Register], whole: Emit) -> Emit:
    """A function over float registers, another one for integers."""
    numeric = _numeric(floating)

    def emit(site: Site, *values: Value) -> Value:
        return (numeric if is_float(site.dtype) else whole)(site, *values)

    return emit


def _extreme(whole: str, floating: str, truth: str) -> Emit:
    """A maximum or minimum. NaN wins; of a constant and a variable one machine instruction."""

    def floats(site: Site, x: Value, y: Value) -> Value:
        if is_constant(x):
            x, y = y, x
        best = site.builder.select(site.builder.compare(floating, y, x), y, x)
        if is_constant(y) and "0x7FF8" not in y.text:
            return best
        return site.builder.select(site.builder.compare("uno", y, y), y, best)

    def emit(site: Site, x: Value, y: Value) -> Value:
        if is_float(site.dtype):
            return floats(site, x, y)
        if site.dtype == BOOL:
            return site.builder.binary(truth, x, y)
        return site.builder.intrinsic(("s" if site.signed else "u") + whole, x, y)

    return emit


def _negative(site: Site, x: Value) -> Value:
    return (-Register(site.builder, x)).value


def _absolute(site: Site, x: Value) -> Value:
    if is_float(site.dtype):
        return site.builder.intrinsic("fabs", x)
    if not site.signed:
        return x
    return Register(site.builder, x).where(Register(site.builder, x) >= 0, _negative(site, x)).value


def _sign(site: Site, x: Value) -> Value:
    number = Register(site.builder, x)
    positive, zero = number.like(1), number.like(0)
    if not (site.signed or is_float(site.dtype)):
        return positive.where(number.differs(0), zero).value
    below = (number < 0).choose(number.like(-1), zero)
    known = positive.where(number > 0, below)
    return (number.where(number.is_nan(), known) if is_float(site.dtype) else known).value


def _rounding(name: str) -> Emit:
    def emit(site: Site, x: Value) -> Value:
        return site.builder.intrinsic(name, x) if is_float(site.dtype) else x

    return emit


_COMPARISONS = {
    "lt": ("lt", "olt"),
    "le": ("le", "ole"),
    "gt": ("gt", "ogt"),
    "ge": ("ge", "oge"),
    "eq": ("eq", "oeq"),
    "ne": ("ne", "une"),
}


def _comparison(name: str) -> Emit:
    whole, floating = _COMPARISONS[name]

    def emit(site: Site, x: Value, y: Value) -> Value:
        if is_float(site.dtype):
            return site.builder.compare(floating, x, y)
        kinds = [dtype.kind for dtype in site.dtypes[:2]]
        predicate = whole if name in ("eq", "ne") else ("s" if kinds == ["i", "i"] else "u") + whole
        compared = site.builder.compare(predicate, x, y)
        if kinds[0] == kinds[1]:
            return compared
        negative = Register(site.builder, x if kinds[0] == "i" else y) < 0
        below = beyond(name, left_is_less=kinds[0] == "i")
        return negative.choose(below, Register(site.builder, compared)).value

    return emit


def beyond(comparison: str, left_is_less: bool) -> bool:
    """A comparison of numbers of which one is less than the other."""
    return comparison in (("lt", "le", "ne") if left_is_less else ("gt", "ge", "ne"))


def _bitwise(operation: str) -> Emit:
    def emit(site: Site, x: Value, y: Value) -> Value:
        return site.builder.binary(operation, x, y)

    return emit


def _inverted(site: Site, x: Value) -> Value:
    return (~Register(site.builder, x)).value


def _classified(floats: Callable[[Register], Register], whole: bool) -> Emit:
    """Whether a float is of a kind; integers are all finite."""

    def emit(site: Site, x: Value) -> Value:
        if not is_float(site.dtype):
            return constant(x.type.like("i1"), whole)
        return floats(Register(site.builder, x)).value

    return emit


def _same(site: Site, x: Value) -> Value:
    return x


def _zero(site: Site, x: Value) -> Value:
    return constant(x.type, 0)


def _sqrt(site: Site, x: Value) -> Value:
    return site.builder.intrinsic("sqrt", x)


def _unsupported(site: Site, *values: Value) -> Value:
    raise Unsupported("complex elements")


_INFINITY = float(np.inf)

TABLE: dict[str, Emit] = {
    "add": _by_kind("add", "fadd", "or"),
    "sub": _by_kind("sub", "fsub", "xor"),
    "mul": _by_kind("mul", "fmul", "and"),
    "div": _divide,
    "floor_div": _by_numbers(division.floor_division, integers.floor_division),
    "remainder": _by_numbers(division.remainder, integers.remainder),
    "truncated_remainder": _by_numbers(division.truncated_remainder, integers.truncated_remainder),
    "pow": _by_numbers(powers.power, integers.power),
    "max": _extreme("max", "ogt", "or"),
    "min": _extreme("min", "olt", "and"),
    "neg": _negative,
    "abs": _absolute,
    "sign": _sign,
    "floor": _rounding("floor"),
    "ceil": _rounding("ceil"),
    "rint": _rounding("rint"),
    "trunc": _rounding("trunc"),
    "sqrt": _sqrt,
    "exp": _numeric(exponential.exponential),
    "expm1": _numeric(exponential.exponential_minus_one),
    "log": _numeric(exponential.logarithm),
    "log1p": _numeric(exponential.logarithm_plus_one),
    "sin": _numeric(trigonometry.sine),
    "cos": _numeric(trigonometry.cosine),
    "tan": _numeric(trigonometry.tangent),
    "asin": _numeric(trigonometry.arcsine),
    "acos": _numeric(trigonometry.arccosine),
    "atan": _numeric(trigonometry.arctangent),
    "atan2": _numeric(trigonometry.arctangent_of_quotient),
    "sinh": _numeric(exponential.hyperbolic_sine),
    "cosh": _numeric(exponential.hyperbolic_cosine),
    "tanh": _numeric(exponential.hyperbolic_tangent),
    "asinh": _numeric(exponential.inverse_hyperbolic_sine),
    "acosh": _numeric(exponential.inverse_hyperbolic_cosine),
    "atanh": _numeric(exponential.inverse_hyperbolic_tangent),
    **{name: _comparison(name) for name in _COMPARISONS},
    "and": _bitwise("and"),
    "or": _bitwise("or"),
    "xor": _bitwise("xor"),
    "not": _inverted,
    "bit_and": _bitwise("and"),
    "bit_or": _bitwise("or"),
    "bit_xor": _bitwise("xor"),
    "bit_not": _inverted,
    "shift_left": integers.shift_left,
    "shift_right": integers.shift_right,
    "complex": _unsupported,
    "conj": _same,
    "real": _same,
    "imag": _zero,
    "is_nan": _classified(lambda x: x.is_nan(), False),
    "is_inf": _classified(lambda x: x.absolute().equals(_INFINITY), False),
    "is_finite": _classified(lambda x: x.absolute() < _INFINITY, True),
}
