"""Trigonometric functions and their inverses, by polynomials after argument reduction.

Every function maps float or double `Register`s to another. Arguments are reduced modulo π / 2 in
double precision, large ones by Payne-Hanek: every finite argument is reduced to full precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from thalweg.ir.functions.exact import exact_sum, product, quick_sum, split
from thalweg.ir.functions.exponential import keep_tiny
from thalweg.ir.functions.register import Register

#: π / 2 in parts whose integer multiples are exact: up to 2³⁰ for floats, 2²⁰ for doubles.
_SHORT_PARTS = (1.570796251296997, 7.549789415861596e-08, 5.390302858158119e-15)
_PARTS = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)
_MAGIC = 1.5 * 2.0**52


@dataclass(frozen=True)
class Format:
    """The polynomials of a precision, each in the square of the reduced argument."""

    sine: tuple[float, ...]  # (sin r / r - 1) / r², for |r| <= π / 4
    cosine: tuple[float, ...]  # (cos r - 1 + r² / 2) / r⁴
    arctangent: tuple[float, ...]  # (arctan t / t - 1) / t², for |t| <= tan π / 8
    arcsine: tuple[float, ...]  # (arcsin t / t - 1) / t², for |t| <= 1 / 2
    half_pi: tuple[float, float]


_SINGLE = Format(
    sine=(-0.16666664410207002, 0.008332700249708166, -0.00019577721430072252),
    cosine=(0.04166666440691311, -0.0013888254915538887, 2.4537750767028216e-05),
    arctangent=(
        -0.3333333175970025,
        0.19999540146206404,
        -0.14263943907717944,
        0.10743605148917443,
        -0.06451509518644878,
    ),
    arcsine=(
        0.16666672414795305,
        0.07498855072600821,
        0.04500138006991017,
        0.026554542206161328,
        0.038085023561092654,
    ),
    half_pi=(1.5707963705062866, -4.371139000186241e-08),
)
_DOUBLE = Format(
    sine=(
        -0.16666666666666663,
        0.008333333333330428,
        -0.00019841269835985584,
        2.7557315709635293e-06,
        -2.505105158684691e-08,
        1.5912461499839467e-10,
    ),
    cosine=(
        0.041666666666666664,
        -0.001388888888888707,
        2.4801587298282115e-05,
        -2.755731702592346e-07,
        2.0876096058995368e-09,
        -1.1379086634729478e-11,
    ),
    arctangent=(
        -0.3333333333333333,
        0.19999999999995513,
        -0.1428571428466482,
        0.11111111015117626,
        -0.09090904572487347,
        0.07692183059894114,
        -0.06664509603255386,
        0.05858132894427922,
        -0.05085365922344248,
        0.03922923713835943,
        -0.01917392228554793,
    ),
    arcsine=(
        0.16666666666666669,
        0.07499999999998433,
        0.04464285714635543,
        0.030381944138531247,
        0.02237217294214989,
        0.017352392720869973,
        0.013971212973552933,
        0.011479177415184906,
        0.01032281435018578,
        0.005457506718640358,
        0.01740087944269402,
        -0.014851887071247204,
        0.028757851367421566,
    ),
    half_pi=(1.5707963267948966, 6.123233995736765e-17),
)


def _format_of(x: Register) -> Format:
    return _SINGLE if x.scalar == "float" else _DOUBLE


# Circular functions


@dataclass(frozen=True)
class Angle:
    """An angle within π / 4 as the sum of two numbers, after a number of quarter turns."""

    high: Register
    low: Register
    quarters: Register  # an integer, modulo 4

    def sine(self) -> Register:
        """The sine of the part within π / 4."""
        r, z = self.high, self.high * self.high
        tail = (z * r) * z.polynomial(_format_of(r).sine)
        return r + (tail + self.low * (1.0 - z * 0.5))

    def cosine(self) -> Register:
        """The cosine of the part within π / 4."""
        r, z = self.high, self.high * self.high
        first = 1.0 - z * 0.5
        lost = (1.0 - first) - z * 0.5
        tail = (z * z).fused(z.polynomial(_format_of(r).cosine), -(r * self.low))
        return first + (lost + tail)

    def is_odd(self) -> Register:
        """Whether the number of quarter turns is odd: sine and cosine change places."""
        return (self.quarters & 1).differs(0)


def _reduced(x: Register) -> Angle:
    """An angle modulo π / 2."""
    if x.scalar == "double":
        return _reduced_near(*_reduced_far(x, 2.0**20, _DIGITS), _PARTS)
    wide = x.convert("fpext", "double")
    found = _reduced_near(*_reduced_far(wide, 2.0**30, _FLOAT_DIGITS), _SHORT_PARTS)
    return Angle(found.high.convert("fptrunc", "float"), x.like(0.0), found.quarters)


def _reduced_far(x: Register, limit: float, digits: int) -> tuple[Register, Register, Register]:
    """Angles as a pair of doubles and quarter turns. The loop runs only if some reach the limit."""
    zero = x.like(0.0)
    start = [x, zero, zero]
    far = x.absolute() >= limit

    def iteration(_: Register, *__: Register) -> list[Register]:
        reduced = zip(_modulo_circle(x, digits), start, strict=True)
        return [new.where(far, old) for new, old in reduced]

    some = far.any()
    high, low, quarters = x.repeated(some.choose(some.number("i64", 1), 0), start, iteration)
    return high, low, quarters


def _modulo_circle(x: Register, digits: int) -> tuple[Register, Register, Register]:
    """Payne and Hanek: x · 2 / π modulo 4, a digit of 2 / π at a time, the largest first.

    The product of a digit and half a mantissa is exact, and so is what is left of it modulo 4.
    Whole quarters leave the sum as they appear: near one of them no precision is lost.
    """
    halves = split(x * 2.0**-_SHIFT)

    def iteration(
        index: Register, high: Register, low: Register, quarters: Register
    ) -> list[Register]:
        digit = x.lookup("two_over_pi", _two_over_pi(), index)
        for half in halves:
            part = half * digit
            total, lost = exact_sum(high, part - (part * 0.25).rounded() * 4.0)
            whole = total.rounded()
            high, low, quarters = total - whole, low + lost, quarters + whole
        return [high, low, quarters - (quarters * 0.25).rounded() * 4.0]

    high, low, quarters = x.repeated(digits, [x.like(0.0)] * 3, iteration)
    high, low = quick_sum(high, low)
    angle, lost = product(high, _DOUBLE.half_pi[0])
    small = lost + (high * _DOUBLE.half_pi[1] + low * _DOUBLE.half_pi[0])
    return *quick_sum(angle, small), quarters


_DIGIT_BITS = 24
_DIGITS = 49  # for exponents up to 1023, and what the angle nearest to a quarter turn cancels
_FLOAT_DIGITS = 11
_SHIFT = 200  # binary places that keep the last digits normal numbers


@cache
def _two_over_pi() -> tuple[float, ...]:
    """The digits of 2 / π to the base 2²⁴, each with its place, times 2²⁰⁰."""
    bits = _DIGIT_BITS * _DIGITS + 64
    one = 1 << bits
    # Machin: π / 4 = 4 arctan 1/5 - arctan 1/239.
    quarter = 4 * _inverse_arctangent(5, one) - _inverse_arctangent(239, one)
    ratio = (one << bits) // (2 * quarter) >> 64
    return tuple(
        math.ldexp(
            ratio >> _DIGIT_BITS * (_DIGITS - 1 - k) & ((1 << _DIGIT_BITS) - 1),
            _SHIFT - _DIGIT_BITS * (k + 1),
        )
        for k in range(_DIGITS)
    )


def _inverse_arctangent(n: int, one: int) -> int:
    """arctan 1 / n in units of 1 / one"""
    total, power, k = 0, one // n, 0
    while power:
        total += power // (2 * k + 1) * (-1) ** k
        power, k = power // (n * n), k + 1
    return total


def _reduced_near(x: Register, low: Register, quarters: Register, parts: Sequence[float]) -> Angle:
    """Angles below the limit; the first two parts of π / 2 give exact products."""
    times = x.fused(2 / math.pi, _MAGIC) - _MAGIC
    rest, lost = exact_sum((-times).fused(parts[0], x), -(times * parts[1]))
    high, remaining = quick_sum(rest, (-times).fused(parts[2], lost + low))
    return Angle(high, remaining, (times + quarters + _MAGIC).bits() & 3)


def _signed(value: Register, quarters: Register) -> Register:
    return (quarters & 2).differs(0).choose(-value, value)


def sine(x: Register) -> Register:
    """sin x"""
    angle = _reduced(x)
    value = angle.is_odd().choose(angle.cosine(), angle.sine())
    return keep_tiny(x, _signed(value, angle.quarters))


def cosine(x: Register) -> Register:
    """cos x"""
    angle = _reduced(x)
    value = angle.is_odd().choose(angle.sine(), angle.cosine())
    return _signed(value, angle.quarters + 1)


def tangent(x: Register) -> Register:
    """tan x"""
    angle = _reduced(x)
    sine_part, cosine_part, is_odd = angle.sine(), angle.cosine(), angle.is_odd()
    above, below = is_odd.choose(-cosine_part, sine_part), is_odd.choose(sine_part, cosine_part)
    return keep_tiny(x, above / below)


# Inverse functions


def _arctangent_of_quotient(small: Register, large: Register) -> Register:
    """arctan(small / large) for 0 <= small <= large; above tan π / 8 less an eighth turn."""
    known = _format_of(small)
    above = small > large * math.tan(math.pi / 8)
    t = above.choose(small - large, small) / above.choose(small + large, large)
    z = t * t
    value = (z * t).fused(z.polynomial(known.arctangent), t)
    eighth, lost = known.half_pi[0] / 2, known.half_pi[1] / 2
    return above.choose((value + lost) + eighth, value)


def arctangent(x: Register) -> Register:
    """arctan x"""
    size, one = x.absolute(), x.like(1.0)
    steep = size > 1.0
    value = _arctangent_of_quotient(
        steep.choose(one, size), steep.choose((size > _LARGE).choose(size.like(_LARGE), size), one)
    )
    return keep_tiny(x, steep.choose(_complement(value), value).with_sign(x))


_LARGE = 2.0**100  # an arctangent from here on is π / 2


def _complement(value: Register) -> Register:
    """π / 2 - value"""
    high, low = _format_of(value).half_pi
    return high - (value - low)


def arctangent_of_quotient(y: Register, x: Register) -> Register:
    """The angle of the point (x, y), of all quadrants."""
    known = _format_of(x)
    y_size, x_size = y.absolute(), x.absolute()
    steep = y_size > x_size
    small, large = steep.choose(x_size, y_size), steep.choose(y_size, x_size)
    degenerate = small.equals(large) & (small.equals(0.0) | small.equals(math.inf))
    same = degenerate & small.equals(math.inf)
    small = degenerate.choose(same.choose(x.like(1.0), 0.0), small)
    value = _arctangent_of_quotient(*_scaled_down(small, degenerate.choose(x.like(1.0), large)))
    value = steep.choose(_complement(value), value)
    is_left = x.bits() < 0
    reflected = known.half_pi[0] * 2.0 - (value - known.half_pi[1] * 2.0)
    whole = is_left.choose(reflected, value).with_sign(y)
    return (x.is_nan() | y.is_nan()).choose(x + y, whole)


def _scaled_down(small: Register, large: Register) -> tuple[Register, Register]:
    """Both numbers over 4 where their sum might overflow."""
    scale = (large > 2.0**100).choose(large.like(0.25), 1.0)
    return small * scale, large * scale


def _arcsine_near(size: Register) -> tuple[Register, Register]:
    """(large, value): arcsin of size, or for sizes above 1 / 2 half of arccos of it."""
    large = size > 0.5
    z = large.choose((1.0 - size) * 0.5, size * size)
    t = large.choose(z.square_root(), size)
    return large, (z * t).fused(z.polynomial(_format_of(size).arcsine), t)


def arcsine(x: Register) -> Register:
    """arcsin x"""
    large, value = _arcsine_near(x.absolute())
    return keep_tiny(x, large.choose(_complement(value * 2.0), value).with_sign(x))


def arccosine(x: Register) -> Register:
    """arccos x"""
    large, value = _arcsine_near(x.absolute())
    high, low = _format_of(x).half_pi
    negative = x.bits() < 0
    small = high - (value.with_sign(x) - low)
    twice = value * 2.0
    wide = negative.choose(high * 2.0 - (twice - low * 2.0), twice)
    return large.choose(wide, small)
