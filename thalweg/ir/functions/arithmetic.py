"""How functions are written that take an instruction or a few, each for the dtypes it has.

These make the `emit` of a row from the names of instructions or from formulas over registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from thalweg.ir.functions.dtypes import BOOL
from thalweg.ir.functions.function import Comparison, Emit, Site
from thalweg.ir.functions.register import Register


def instruction(whole: str, floating: str = "", truth: str = "") -> Emit:
    """An instruction for integers, one for floats and one for booleans (else that of integers).

    Narrow floats are not rounded between the functions of an expression, so that a product and a
    sum may as well be contracted.
    """

    def emit(site: Site, x: Register, y: Register) -> Register:
        if site.is_float:
            return x.binary(
                f"{floating} contract" if site.is_narrow and x.contracts else floating, y
            )
        return x.binary(truth if truth and site.dtype == BOOL else whole, y)

    return emit


def formula(compute: Callable[..., Register]) -> Emit:
    """A formula over registers, of any dtype that the function accepts."""

    def emit(site: Site, *values: Register) -> Register:
        return compute(*values)

    return emit


def float_or_integer(floating: Callable[..., Register], whole: Emit) -> Emit:
    """A formula over float registers, and other code for integers."""

    def emit(site: Site, *values: Register) -> Register:
        return floating(*values) if site.is_float else whole(site, *values)

    return emit


def rounding(name: str) -> Emit:
    """A float rounded by an intrinsic; integers are whole."""

    def emit(site: Site, x: Register) -> Register:
        return x.intrinsic(name) if site.is_float else x

    return emit


def extreme(whole: str, floating: str, truth: str) -> Emit:
    """A maximum or minimum that propagates NaN; with a constant operand, one instruction."""

    def floats(x: Register, y: Register) -> Register:
        if (found := x.nan_extreme(f"{whole}imum", y)) is not None:
            return found
        if x.constant is not None:
            x, y = y, x
        best = y.compared(floating, x).choose(y, x)
        if y.constant is not None and not math.isnan(y.constant):
            return best
        return y.is_nan().choose(y, best)

    def wholes(site: Site, x: Register, y: Register) -> Register:
        if site.dtype == BOOL:
            return x.binary(truth, y)
        return x.intrinsic(("s" if site.signed else "u") + whole, y)

    return float_or_integer(floats, wholes)


def comparison(name: str, floating: str, holds: Comparison) -> Emit:
    """A comparison; of a signed and an unsigned integer, a negative one is less."""
    has_sign = holds.if_less != holds.if_greater

    def emit(site: Site, x: Register, y: Register) -> Register:
        if site.is_float:
            return x.compared(floating, y)
        kinds = [dtype.kind for dtype in site.dtypes[:2]]
        sign = ("s" if kinds == ["i", "i"] else "u") if has_sign else ""
        compared = x.compared(sign + name, y)
        if kinds[0] == kinds[1]:
            return compared
        left_is_signed = kinds[0] == "i"
        negative = (x if left_is_signed else y) < 0
        return negative.choose(holds.if_less if left_is_signed else holds.if_greater, compared)

    return emit


def classification(floating: Callable[[Register], Register], whole: bool) -> Emit:
    """Whether a float is of some class; integers are all finite."""

    def emit(site: Site, x: Register) -> Register:
        return floating(x) if site.is_float else x.number("i1", whole)

    return emit


def absolute(site: Site, x: Register) -> Register:
    """|x|"""
    if site.is_float:
        return x.absolute()
    return x.where(x >= 0, -x) if site.signed else x


def sign(site: Site, x: Register) -> Register:
    """-1, 0 or 1; NaN stays."""
    positive, zero = x.like(1), x.like(0)
    if not (site.signed or site.is_float):
        return positive.where(x.differs(0), zero)
    below = (x < 0).choose(x.like(-1), zero)
    known = positive.where(x > 0, below)
    return x.where(x.is_nan(), known) if site.is_float else known


def unchanged(site: Site, x: Register) -> Register:
    """x"""
    return x


def zero(site: Site, x: Register) -> Register:
    """0"""
    return x.like(0)
