"""Floor division and remainders of floats, exact as NumPy's, by long division in a loop.

Numbers are m · 2ⁿ; the dividend's mantissa is reduced by some bits of the quotient per iteration.
One iteration suffices for quotients below 2²⁴.
"""

from __future__ import annotations

import math

from thalweg.ir.functions.exponential import DOUBLE, power_of_two
from thalweg.ir.functions.register import Register

_BITS = 24  # of the quotient per iteration
_LOW_BITS = (1 << 27) - 1  # of a mantissa, cleared to split it in two


def truncated_remainder(x: Register, y: Register) -> Register:
    """The remainder of division towards zero; it has the sign of x."""
    if x.scalar == "float":
        wide = (part.convert("fpext", "double") for part in (x, y))
        return truncated_remainder(*wide).convert("fptrunc", "float")
    size, by = x.absolute(), y.absolute()
    rest = _remainder_of_magnitudes(size, by).with_sign(x)
    kept = (size < by).choose(x, rest)
    undefined = x.is_nan() | y.is_nan() | by.equals(0.0) | size.equals(math.inf)
    return undefined.choose(x.like(math.nan), kept)


def _remainder_of_magnitudes(size: Register, by: Register) -> Register:
    """size mod by, for positive finite numbers with by <= size; anything for others."""
    (mantissa, exponent), (divisor, lowest) = _split(size), _split(by)
    left = (exponent - lowest).intrinsic("smax", 0)

    def iteration(_: Register, rest: Register, missing: Register) -> list[Register]:
        step = missing.intrinsic("smin", _BITS)
        return [_step(rest * power_of_two(step), divisor), missing - step]

    times = left.across("smax") / _BITS + 1
    rest, _ = size.repeated(times, [mantissa, left], iteration)
    positive = (rest < 0.0).choose(rest + divisor, rest)
    half = lowest >> 1
    return positive * power_of_two(half) * power_of_two(lowest - half)


def _step(rest: Register, divisor: Register) -> Register:
    """rest less the nearest multiple of the divisor: exact, for a quotient of up to 25 bits."""
    quotient = (rest / divisor).rounded()
    high = (divisor.bits() & ~_LOW_BITS).floats()
    return (rest - quotient * high) - quotient * (divisor - high)


def _split(x: Register) -> tuple[Register, Register]:
    """(m, n) with x = m · 2ⁿ and 1 <= m < 2, for positive numbers."""
    tiny = x < DOUBLE.smallest
    bits = tiny.choose(x * 2.0**54, x).bits()
    exponent = (bits >> DOUBLE.fraction) - DOUBLE.bias
    mantissa = (bits - (exponent << DOUBLE.fraction)).floats()
    return mantissa, tiny.choose(exponent - 54, exponent)


def remainder(x: Register, y: Register) -> Register:
    """The remainder of division rounded down; it has the sign of y."""
    rest = truncated_remainder(x, y)
    is_off = rest.differs(0.0) & ((y < 0.0) ^ (rest < 0.0))
    zero = rest.equals(0.0).choose(rest.like(0.0).with_sign(y), rest)
    return is_off.choose(rest + y, zero)


def floor_division(x: Register, y: Register) -> Register:
    """The quotient rounded down, computed from the exact remainder."""
    rest = truncated_remainder(x, y)
    is_off = rest.differs(0.0) & ((y < 0.0) ^ (rest < 0.0))
    quotient = (x - rest) / y
    quotient = is_off.choose(quotient - 1.0, quotient)
    floor = quotient.intrinsic("floor")
    nearest = (quotient - floor > 0.5).choose(floor + 1.0, floor)
    plain = x / y
    value = quotient.equals(0.0).choose(plain.like(0.0).with_sign(plain), nearest)
    return y.equals(0.0).choose(plain, value)
