"""Powers of floats: x to the y with all the special cases of IEEE 754.

A power of floats is computed in double; one of doubles takes its logarithm as a pair of doubles,
since its error is multiplied by the result's exponent.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from thalweg.ir.functions.exact import Pair, exact_sum, product, quick_sum
from thalweg.ir.functions.exponential import (
    DOUBLE,
    LOG_DOUBLE,
    SINGLE,
    clamped,
    format_of,
    logarithm,
    power_of_two,
    scaled_exponential,
    split,
)
from thalweg.ir.functions.register import Register

_TWO_THIRDS = (0.6666666666666666, 3.700743415417188e-17)

#: Powers that are an instruction or two.
_PLAIN: dict[float, Callable[[Register], Register]] = {
    -1.0: lambda x: 1.0 / x,
    0.5: lambda x: x.equals(-math.inf).choose(x.like(math.inf), (x + 0.0).square_root()),
    1.0: lambda x: x,
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
}


def power(x: Register, y: Register) -> Register:
    """x to the y"""
    if y.constant in _PLAIN:
        return _PLAIN[y.constant](x)
    size = x.absolute()
    value = _of_floats(size, y) if format_of(x) is SINGLE else _of_doubles(size, y)
    return _with_special_cases(x, y, value)


def _of_floats(size: Register, y: Register) -> Register:
    wide, times = (part.convert("fpext", "double") for part in (size, y))
    power = scaled_exponential(clamped(logarithm(wide) * times, -110.0, 100.0))
    return (power.value * power_of_two(power.exponent)).convert("fptrunc", "float")


def _of_doubles(size: Register, y: Register) -> Register:
    high, low = _long_logarithm(size)
    rounded, lost = product(y, high)
    rest = lost + y * low
    # It is large, infinite or NaN only where the first part is out of range.
    rest = rest.where(rest.absolute() < 2.0**-30, 0.0)
    return scaled_exponential(clamped(rounded, DOUBLE.least, DOUBLE.most), rest).joined()


def _long_logarithm(size: Register) -> Pair:
    """log of a magnitude as a sum of two doubles, good to 2⁻⁶⁵."""
    tiny = size < DOUBLE.smallest
    mantissa, exponent = split(size.where(~tiny, size * 2.0**53))
    times = (exponent - 53).where(tiny, exponent).convert("sitofp", "double")
    high, low = _logarithm_of_mantissa(mantissa)
    total, lost = exact_sum(times * DOUBLE.ln2[0], high)
    high, low = quick_sum(total, times.fused(DOUBLE.ln2[1], lost + low))
    ends = size.equals(0.0) | ~(size < math.inf)
    pole = size.equals(0.0).choose(size.like(-math.inf), size)
    return ends.choose(pole, high), ends.choose(size.like(0.0), low)


def _logarithm_of_mantissa(mantissa: Register) -> Pair:
    """2s + s³ · (2/3 + s² · P(s²)), where s = (m - 1) / (m + 1), all in pairs."""
    s, s_low = _quotient(mantissa - 1.0, exact_sum(mantissa, 1.0))
    z, lost = product(s, s)
    z_low = lost + s * s_low * 2.0
    factor, factor_low = quick_sum(s.like(_TWO_THIRDS[0]), z * z.polynomial(LOG_DOUBLE))
    cube, lost = product(s, z)
    cube_low = lost + (s * z_low + s_low * z)
    tail, lost = product(cube, factor)
    tail_low = lost + (cube * (factor_low + _TWO_THIRDS[1]) + cube_low * factor)
    high, lost = quick_sum(s * 2.0, tail)
    return high, lost + (s_low * 2.0 + tail_low)


def _quotient(a: Register, b: Pair) -> Pair:
    """a / b for a number and a pair."""
    high = a / b[0]
    back, lost = product(high, b[0])
    return high, ((a - back) - lost - high * b[1]) / b[0]


def _with_special_cases(x: Register, y: Register, value: Register) -> Register:
    """The power of x from that of |x|, with the special cases."""
    whole = y.equals(y.intrinsic("trunc"))
    half = y * 0.5
    odd = whole & half.differs(half.intrinsic("trunc"))
    signed = ((x.bits() < 0) & odd).choose(-value, value)
    undefined = (x < 0.0) & (x > -math.inf) & ~whole
    known = undefined.choose(x.like(math.nan), signed)
    one = y.equals(0.0) | x.equals(1.0) | (x.equals(-1.0) & y.absolute().equals(math.inf))
    return one.choose(x.like(1.0), known)
