"""exp, log and functions made of them, by polynomials after argument reduction.

Every function maps a float or double `Register` to another. Polynomials interpolate at the
Chebyshev nodes of the reduced range; their error is below the rounding of the type.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from thalweg.ir.functions.register import Register

LOG2_E = 1 / math.log(2)
INFINITY, NAN = math.inf, math.nan


@dataclass(frozen=True)
class Format:
    """Constants of a floating-point format."""

    fraction: int  # bits
    bias: int
    ln2: tuple[float, float]  # the high part has trailing zeros: integer multiples are exact
    exponential: tuple[float, ...]  # (eʳ - 1 - r) / r², for |r| <= ln 2 / 2
    least: float  # exp of less is zero
    most: float  # exp of more is infinite, even halved

    @property
    def magic(self) -> float:
        """Added to a number, it leaves the nearest integer in the low bits."""
        return 1.5 * 2.0**self.fraction

    @property
    def smallest(self) -> float:
        """The smallest normal number."""
        return 2.0 ** (1 - self.bias)


SINGLE = Format(
    fraction=23,
    bias=127,
    ln2=(0.693115234375, 3.1946184945309415e-05),
    exponential=(
        0.5,
        0.16666573381900845,
        0.04166655011030512,
        0.008363773874405574,
        0.0013926926614021907,
    ),
    least=-104.5,
    most=89.6,
)
DOUBLE = Format(
    fraction=52,
    bias=1023,
    ln2=(0.6931471803691238, 1.9082149292705877e-10),
    exponential=(
        0.5,
        0.1666666666666667,
        0.04166666666666667,
        0.008333333333325544,
        0.0013888888888883327,
        0.00019841269876864356,
        2.4801587327007187e-05,
        2.755725283351691e-06,
        2.75572718102198e-07,
        2.5106274733573296e-08,
        2.0915442297780116e-09,
    ),
    least=-746.0,
    most=710.7,
)


def format_of(x: Register) -> Format:
    """The format of a register's elements."""
    return SINGLE if x.scalar == "float" else DOUBLE


# Exponentials


@dataclass(frozen=True)
class Scaled:
    """A number of the form value · 2^exponent, the exponent an integer register."""

    value: Register
    exponent: Register

    def joined(self, halvings: int = 0) -> Register:
        """The number over 2^halvings; scaled in two steps, for the ends of the range."""
        whole = self.exponent - halvings if halvings else self.exponent
        half = whole >> 1
        return self.value * power_of_two(half) * power_of_two(whole - half)


def power_of_two(exponent: Register) -> Register:
    """2^exponent, for results that are normal numbers."""
    known = SINGLE if exponent.width == 32 else DOUBLE
    return ((exponent + known.bias) << known.fraction).floats()


def clamped(x: Register, low: float, high: float) -> Register:
    """x clamped to limits; NaN propagates."""
    return _at_most((x.like(low) > x).choose(x.like(low), x), high)


def _at_most(x: Register, high: float) -> Register:
    return (x.like(high) < x).choose(x.like(high), x)


def reduced(x: Register, low: Register | None = None) -> tuple[Register, Register]:
    """(r, n) with x + low = r + n · ln 2 and |r| about ln 2 / 2 at most."""
    known = format_of(x)
    shifted = x.fused(LOG2_E, known.magic)
    times = shifted - known.magic
    first = (-times).fused(known.ln2[0], x)
    rest = (-times).fused(known.ln2[1], first if low is None else first + low)
    return rest, shifted.bits() - x.like(known.magic).bits()


def reduced_exponential(r: Register) -> Register:
    """eʳ - 1 for a reduced r."""
    return (r * r).fused(r.polynomial(format_of(r).exponential), r)


def scaled_exponential(x: Register, low: Register | None = None) -> Scaled:
    """eˣ; x within the range of the format, or NaN."""
    r, exponent = reduced(x, low)
    return Scaled(reduced_exponential(r) + 1.0, exponent)


def exponential(x: Register) -> Register:
    """eˣ

    Where the result is zero, no intermediate underflows: that would take a hundred times as long,
    and attention masks are large negative numbers.
    """
    known = format_of(x)
    if known is SINGLE and "normal_exp2" in x.approximations:
        return _exponential_by_instruction(x)
    is_zero = x < known.least
    inside = _at_most(is_zero.choose(x.like(0.0), x), known.most)
    return is_zero.choose(x.like(0.0), scaled_exponential(inside).joined())


#: log2 e as a sum of two numbers, whose products with multiples of a float32 number are exact.
_LOG2_E_PARTS = (1.4426950216293335, 1.925963033500011e-08)
_LEAST_NORMAL = 126 * math.log(2)  # the exponent of the smallest normal float32 number, negated


def _exponential_by_instruction(x: Register) -> Register:
    """eˣ of a float32 number, by an instruction for 2ˣ.

    The error is that of the instruction, some two ulps. The integer part of the exponent is
    clamped; the instruction gets what exceeds it.
    """
    near = x.intrinsic("maxnum", -_LEAST_NORMAL).intrinsic("minnum", _LEAST_NORMAL)
    shifted = near.fused(LOG2_E, SINGLE.magic + SINGLE.bias)
    whole = shifted - (SINGLE.magic + SINGLE.bias)
    high, low = _LOG2_E_PARTS
    fraction = x.fused(low, x.fused(high, -whole))
    return fraction.approximated("normal_exp2") * (shifted.bits() << SINGLE.fraction).floats()


def near_exponential(x: Register) -> Register:
    """eˣ with an error of |x| · 2⁻²⁴, by an instruction for powers of two."""
    return (x * LOG2_E).approximated("exp2")


def _quarter(x: Register) -> Register:
    """(eˣ - 1) / 4, which is finite wherever sinh is."""
    known = format_of(x)
    r, exponent = reduced(clamped(x, -2.0 * known.fraction, known.most))
    unit = Scaled(x.like(1.0), exponent).joined(2)
    return Scaled(reduced_exponential(r), exponent).joined(2) + (unit - 0.25)


def exponential_minus_one(x: Register) -> Register:
    """eˣ - 1"""
    return keep_tiny(x, _quarter(x) * 4.0)


def keep_tiny(x: Register, value: Register) -> Register:
    """x itself near zero, where `value` would lose the sign of zero."""
    return x.where(x.absolute() < 2.0 ** -(format_of(x).fraction + 3), value)


def hyperbolic_sine(x: Register) -> Register:
    """sinh x"""
    quarter = _quarter(x.absolute())
    return keep_tiny(x, ((quarter + quarter / (quarter * 4.0 + 1.0)) * 2.0).with_sign(x))


def hyperbolic_cosine(x: Register) -> Register:
    """cosh x"""
    half = scaled_exponential(clamped(x.absolute(), 0.0, format_of(x).most)).joined(1)
    return half + 0.25 / half


def hyperbolic_tangent(x: Register) -> Register:
    """tanh x = h / (h + 1), where h is (e²ˣ - 1) / 2"""
    r, exponent = reduced(_at_most(x.absolute(), 25.0) * 2.0)
    unit = power_of_two(exponent - 1)
    half = reduced_exponential(r).fused(unit, unit - 0.5)
    return (half / (half + 1.0)).with_sign(x)


# Logarithms

#: (log(1 + f) - f + f² / 2) / f³ for √½ <= 1 + f < √2
_LOG_SINGLE = (
    0.33333330728190674,
    -0.25000306422569796,
    0.2000104509416068,
    -0.16641281463106394,
    0.14214495923947962,
    -0.1299818376365153,
    0.12622319849228378,
    -0.0790274377239344,
)
#: ((log((1 + s) / (1 - s)) - 2s) / s³ - 2/3) / s² by s², for the same range of (1 + s) / (1 - s)
LOG_DOUBLE = (
    0.40000000000000024,
    0.2857142857133856,
    0.2222222227107745,
    0.18181808251607398,
    0.1538557450045883,
    0.13285967273890614,
    0.1291349606680315,
)


def split(x: Register) -> tuple[Register, Register]:
    """(m, n) with x = m · 2ⁿ and √½ <= m < √2, n an integer register; x is positive and normal."""
    known = format_of(x)
    bits, root = x.bits(), x.like(math.sqrt(0.5)).bits()
    exponent = (bits - root) >> known.fraction
    return (bits - (exponent << known.fraction)).floats(), exponent


def _logarithm(f: Register, exponent: Register) -> Register:
    """log(1 + f) + exponent · ln 2"""
    known = format_of(f)
    times = exponent.convert("sitofp", f.scalar)
    if known is SINGLE:
        square = f * f
        tail = (square * f).fused(f.polynomial(_LOG_SINGLE), times * known.ln2[1])
        return times.fused(known.ln2[0], square.fused(-0.5, tail) + f)
    s = f / (f + 2.0)
    half_square = f * f * 0.5
    z = s * s
    tail = s.fused(z.fused(z.polynomial((2 / 3, *LOG_DOUBLE)), half_square), times * known.ln2[1])
    return times.fused(known.ln2[0], f - (half_square - tail))


def logarithm(x: Register) -> Register:
    """log x"""
    known = format_of(x)
    tiny = x < known.smallest
    mantissa, exponent = split(x.where(~tiny, x * 2.0 ** (known.fraction + 1)))
    mended = exponent - (known.fraction + 1)
    value = _logarithm(mantissa - 1.0, mended.where(tiny, exponent))
    return _with_poles(value, x)


def _with_poles(value: Register, x: Register) -> Register:
    """The logarithm of x, with the cases of infinite, zero, negative and NaN arguments."""
    ended = x.where(x.equals(INFINITY) | x.is_nan(), value)
    negative = (x < 0.0).choose(x.like(NAN), ended)
    return x.equals(0.0).choose(x.like(-INFINITY), negative)


def logarithm_plus_one(x: Register) -> Register:
    """log(1 + x)"""
    above = x + 1.0
    lost = (x > 1.0).choose(1.0 - (above - x), x - (above - 1.0))
    mantissa, exponent = split(above)
    scale = power_of_two((-exponent).intrinsic("smax", 1 - format_of(x).bias))
    f = (mantissa - 1.0) + lost * scale
    return keep_tiny(x, _with_poles(_logarithm(f, exponent), above))


LN2 = math.log(2)


def inverse_hyperbolic_sine(x: Register) -> Register:
    """arsinh x"""
    size = x.absolute()
    square = size * size
    inner = size + square / ((square + 1.0).square_root() + 1.0)
    return keep_tiny(x, _logarithm_of_double(size, inner).with_sign(x))


def inverse_hyperbolic_cosine(x: Register) -> Register:
    """arcosh x"""
    above = x - 1.0
    inner = above + (above * 2.0 + above * above).square_root()
    return (x < 1.0).choose(x.like(NAN), _logarithm_of_double(x, inner))


def _logarithm_of_double(x: Register, inner: Register) -> Register:
    """log(1 + inner), or log 2x where x is so large that its square may overflow."""
    large = x > 2.0 ** (format_of(x).bias // 2 - 2)
    return logarithm_plus_one(large.choose(x, inner)) + large.choose(x.like(LN2), 0.0)


def inverse_hyperbolic_tangent(x: Register) -> Register:
    """artanh x"""
    size = x.absolute()
    double = size * 2.0
    small = double + double * size / (1.0 - size)
    inner = (size < 0.5).choose(small, double / (1.0 - size))
    return keep_tiny(x, (logarithm_plus_one(inner) * 0.5).with_sign(x))
