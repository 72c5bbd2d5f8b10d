"""Integer arithmetic that is more than one instruction: division, powers, shifts, as NumPy has it.

A zero divisor is told to the site's fault and divided by one instead; nothing traps.
"""

from __future__ import annotations

from thalweg.codegen.llvm.builder import I1, I64, Value, constant, suffix
from thalweg.codegen.llvm.register import Register, literal
from thalweg.codegen.math.site import Site


def floor_division(site: Site, x: Value, y: Value) -> Value:
    """The quotient rounded down."""
    dividend = Register(site.builder, x)
    if site.signed and (shift := _power_of_two(y)) is not None:
        return (dividend >> shift).value
    divisor = _checked(site, y)
    if not site.signed:
        return site.builder.binary("udiv", x, divisor.value)
    quotient = _quotient(dividend, divisor)
    rest = dividend - quotient * divisor
    return (quotient - _is_off(rest, divisor).convert("zext", x.type.scalar)).value


def remainder(site: Site, x: Value, y: Value) -> Value:
    """What floor division leaves: it has the sign of the divisor."""
    if site.signed and (shift := _power_of_two(y)) is not None:
        return (Register(site.builder, x) & ((1 << shift) - 1)).value
    rest = Register(site.builder, truncated_remainder(site, x, y))
    if not site.signed:
        return rest.value
    divisor = Register(site.builder, y)
    return _is_off(rest, divisor).choose(rest + divisor, rest).value


def truncated_remainder(site: Site, x: Value, y: Value) -> Value:
    """What division towards zero leaves: it has the sign of the dividend."""
    divisor = _checked(site, y)
    if not site.signed:
        return site.builder.binary("urem", x, divisor.value)
    if literal(y) is None:  # the smallest integer by -1 traps
        divisor = divisor.like(1).where(divisor.equals(-1), divisor)
    return site.builder.binary("srem", x, divisor.value)


def power(site: Site, x: Value, y: Value) -> Value:
    """x to the y by squaring, wrapping. A negative power is 1 / x^|y|, cut to an integer."""
    base, exponent = Register(site.builder, x), Register(site.builder, y)
    if not site.signed:
        return _power(base, exponent).value
    powered = _power(base, exponent.where(exponent >= 0, 0))
    parity = (exponent & 1).equals(0).choose(base.like(1), base)
    inverse = (base.equals(1) | base.equals(-1)).choose(parity, 0)
    return (exponent < 0).choose(inverse, powered).value


def _power(base: Register, exponent: Register) -> Register:
    """One turn of the loop for each bit of the largest exponent among the lanes."""
    b, one = base.builder, base.like(1)
    turns = _bit_length(exponent)
    carried = [one.value, base.value, exponent.value]
    with b.loop(constant(I64, 0), turns, constant(I64, 1), carried) as loop:
        result, factor, rest = (Register(b, value) for value in loop.carried)
        is_odd = (rest & 1).differs(0)
        turned = is_odd.choose(result * factor, result), factor * factor, rest.unsigned_shift(1)
        loop.next = [part.value for part in turned]
    return Register(b, loop.results[0])


def _bit_length(exponent: Register) -> Value:
    b, kind = exponent.builder, exponent.type
    most = exponent.value
    if kind.lanes > 1:
        most = b.call(f"llvm.vector.reduce.or.{suffix(kind)}", kind.of(1), most)
    name = f"llvm.ctlz.{kind.scalar}"
    zeros = b.call(name, kind.of(1), most, constant(I1, False))
    wide = zeros if kind.bits == 64 else b.convert("zext", zeros, "i64")
    return b.binary("sub", constant(I64, kind.bits), wide)


def shift_left(site: Site, x: Value, y: Value) -> Value:
    """Shifted left; by the width or more (or by a negative count) gives zero."""
    number, count = Register(site.builder, x), Register(site.builder, y)
    within = count.compare("ult", "", x.type.bits)
    return (number << count.where(within, 0)).where(within, 0).value


def shift_right(site: Site, x: Value, y: Value) -> Value:
    """Shifted right; by the width or more (or by a negative count) leaves the sign."""
    number, count = Register(site.builder, x), Register(site.builder, y)
    within = count.compare("ult", "", x.type.bits)
    if site.signed:
        return (number >> count.where(within, x.type.bits - 1)).value
    return number.unsigned_shift(count.where(within, 0)).where(within, 0).value


def _power_of_two(y: Value) -> int | None:
    """The logarithm of a constant positive power of two."""
    number = literal(y)
    if number is None or number <= 0 or number & (number - 1):
        return None
    return number.bit_length() - 1


def _checked(site: Site, y: Value) -> Register:
    """A divisor that is not zero; the fault hears of it if a lane that counts has a zero."""
    divisor = Register(site.builder, y)
    if literal(y):
        return divisor
    is_zero = divisor.equals(0)
    if site.fault is not None:
        site.fault(site.builder, (is_zero if site.mask is None else _masked(site, is_zero)).any())
    return divisor.like(1).where(is_zero, divisor)


def _masked(site: Site, condition: Register) -> Register:
    mask = site.mask
    assert mask is not None
    spread = Register(site.builder, site.builder.splat(condition.value, mask.type.lanes))
    return spread & mask


def _quotient(dividend: Register, divisor: Register) -> Register:
    """Division towards zero; by -1 it is a negation, since the smallest integer would trap."""
    if literal(divisor.value) is not None:
        return dividend / divisor if literal(divisor.value) != -1 else -dividend
    negative = divisor.equals(-1)
    quotient = dividend / divisor.like(1).where(negative, divisor)
    return (-dividend).where(negative, quotient)


def _is_off(rest: Register, divisor: Register) -> Register:
    """Whether rounding towards zero was not rounding down."""
    return rest.differs(0) & ((rest ^ divisor) < 0)
