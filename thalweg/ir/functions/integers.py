"""Integer arithmetic of more than one instruction: division, powers, shifts, as in NumPy.

A zero divisor is reported to the call site and replaced by one: nothing traps.
"""

from __future__ import annotations

from thalweg.ir.functions.function import Site
from thalweg.ir.functions.register import Register


def floor_division(site: Site, x: Register, y: Register) -> Register:
    """The quotient rounded down."""
    if site.signed and (shift := _power_of_two(y)) is not None:
        return x >> shift
    divisor = _checked(site, y)
    if not site.signed:
        return x.binary("udiv", divisor)
    quotient = _quotient(x, divisor)
    rest = x - quotient * divisor
    return quotient - _is_off(rest, divisor).convert("zext", x.scalar)


def remainder(site: Site, x: Register, y: Register) -> Register:
    """The remainder of floor division; it has the sign of the divisor."""
    if site.signed and (shift := _power_of_two(y)) is not None:
        return x & ((1 << shift) - 1)
    rest = truncated_remainder(site, x, y)
    return _is_off(rest, y).choose(rest + y, rest) if site.signed else rest


def truncated_remainder(site: Site, x: Register, y: Register) -> Register:
    """The remainder of truncated division; it has the sign of the dividend."""
    divisor = _checked(site, y)
    if not site.signed:
        return x.binary("urem", divisor)
    if y.constant is None:  # the smallest integer by -1 traps
        divisor = divisor.like(1).where(divisor.equals(-1), divisor)
    return x.binary("srem", divisor)


def power(site: Site, x: Register, y: Register) -> Register:
    """x to the y by squaring, wrapping. A negative power is 1 / x^|y|, truncated."""
    if not site.signed:
        return _power(x, y)
    powered = _power(x, y.where(y >= 0, 0))
    parity = (y & 1).equals(0).choose(x.like(1), x)
    inverse = (x.equals(1) | x.equals(-1)).choose(parity, 0)
    return (y < 0).choose(inverse, powered)


def _power(base: Register, exponent: Register) -> Register:
    """Square and multiply; the loop runs once per bit of the largest exponent in any lane."""

    def iteration(
        _: Register, result: Register, factor: Register, rest: Register
    ) -> list[Register]:
        is_odd = (rest & 1).differs(0)
        product = is_odd.choose(result * factor, result)
        return [product, factor * factor, rest.unsigned_shift(1)]

    start = [base.like(1), base, exponent]
    return base.repeated(_bit_length(exponent), start, iteration)[0]


def _bit_length(exponent: Register) -> Register:
    zeros = exponent.across("or").leading_zeros()
    wide = zeros if zeros.width == 64 else zeros.convert("zext", "i64")
    return exponent.width - wide


def shift_left(site: Site, x: Register, y: Register) -> Register:
    """Shifted left; by the width or more (or by a negative count) gives zero."""
    within = y.compared("ult", y.like(x.width))
    # Counts are masked: LLVM assumes that PTX shifts saturate and truncates counts to 32 bits, and
    # for 16-bit shifts ptxas uses only some of their bits.
    return (x << (y & (x.width - 1))).where(within, 0)


def shift_right(site: Site, x: Register, y: Register) -> Register:
    """Shifted right; by the width or more (or by a negative count) leaves the sign."""
    within = y.compared("ult", y.like(x.width))
    if site.signed:
        return x >> y.where(within, x.width - 1)
    return x.unsigned_shift(y & (x.width - 1)).where(within, 0)


def _power_of_two(y: Register) -> int | None:
    """The logarithm of a constant positive power of two."""
    number = y.constant
    if not isinstance(number, int) or number <= 0 or number & (number - 1):
        return None
    return number.bit_length() - 1


def _checked(site: Site, y: Register) -> Register:
    """A divisor that is not zero."""
    if y.constant:
        return y
    is_zero = y.equals(0)
    if site.fault is not None:
        site.fault(is_zero)
    return y.like(1).where(is_zero, y)


def _quotient(dividend: Register, divisor: Register) -> Register:
    """Division towards zero; by -1 it is a negation, since the smallest integer would trap."""
    if divisor.constant is not None:
        return -dividend if divisor.constant == -1 else dividend / divisor
    negative = divisor.equals(-1)
    quotient = dividend / divisor.like(1).where(negative, divisor)
    return (-dividend).where(negative, quotient)


def _is_off(rest: Register, divisor: Register) -> Register:
    """Whether rounding towards zero was not rounding down."""
    return rest.differs(0) & ((rest ^ divisor) < 0)
