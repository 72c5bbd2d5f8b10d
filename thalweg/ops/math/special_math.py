"""Special functions of arrays in NumPy alone: the gamma, beta, zeta, error and Bessel families.

Everything is computed in float64; the error is a few units in the 12th digit or better over the
ranges that models use. Outside of a function's domain the value is nan, at its poles inf. The
number of iterations is bounded for all arguments: integrals replace series that converge slowly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.platform.caches import memoized

Array = NDArray[np.float64]

_MAX_TERMS = 2_000  # of any series or fraction; the ranges below need a few hundred
_TINY = 1e-300  # keeps Lentz's quotients away from 0 / 0
_EPSILON = 1e-16

#: B₂, B₄, …, B₂₀: the Bernoulli numbers of every asymptotic series below.
_BERNOULLI = (
    1 / 6,
    -1 / 30,
    1 / 42,
    -1 / 30,
    5 / 66,
    -691 / 2730,
    7 / 6,
    -3617 / 510,
    43867 / 798,
    -174611 / 330,
)
_LARGE = 10.0  # from which the asymptotic series are exact to double precision


def _of_arrays(function: Callable[..., Array]) -> Callable[..., Array]:
    """Decorate a function of vectors of doubles: broadcasts its arguments, reshapes its result."""

    @wraps(function)
    def wrapped(*values: Any) -> Array:
        arrays = np.broadcast_arrays(*(np.asarray(value, np.float64) for value in values))
        return function(*(array.ravel() for array in arrays)).reshape(arrays[0].shape)

    return wrapped


def _at(mask: NDArray[np.bool_], function: Callable[..., Array], *arrays: Array) -> Array:
    """`function` of the masked elements, in order."""
    return function(*(array[mask] for array in arrays))


# The error function


@_of_arrays
def erf(x: Array) -> Array:
    """2/√π ∫₀ˣ exp(-t²) dt"""
    result = np.sign(x)
    result[np.isnan(x)] = np.nan
    small, middle = np.abs(x) < 2, (np.abs(x) >= 2) & (np.abs(x) < 7)
    result[small] = _at(small, _erf_series, x)
    result[middle] *= 1 - _at(middle, _erfc_fraction, np.abs(x))
    return result


@_of_arrays
def erfc(x: Array) -> Array:
    """1 - erf x, exact where erf is near 1"""
    result = 1 - erf(x)
    large = (x >= 1) & (x < 30)
    result[large] = _at(large, _erfc_fraction, x)
    return result


def _erf_series(x: Array) -> Array:
    # exp(x²) erf(x) = 2x/√π (1 + 2x²/3 + (2x²)²/(3·5) + …): all terms of one sign.
    term = total = np.ones_like(x)
    for n in range(1, 60):
        term = term * (2 * x * x) / (2 * n + 1)
        total = total + term
    return 2 * x / np.sqrt(np.pi) * np.exp(-x * x) * total


def _erfc_fraction(x: Array) -> Array:
    fraction = x
    for n in range(200, 0, -1):  # sufficient for x = 1
        fraction = x + (n / 2) / fraction
    return np.exp(-x * x) / (np.sqrt(np.pi) * fraction)


# The gamma function and its derivatives


@_of_arrays
def lgamma(x: Array) -> Array:
    """ln |Γ(x)|"""
    result = _lgamma_positive(np.where(x > 0, x, 1 - x))
    left = x <= 0
    result[left] = np.log(np.pi / np.abs(_sin_pi(x[left]))) - result[left]
    result[left & (x == np.floor(x))] = np.inf
    result[(x == 1) | (x == 2)] = 0
    return result


def _lgamma_positive(x: Array) -> Array:
    result, small = np.empty_like(x), x < _LARGE
    result[small] = _lgamma_near_two(x[small])
    result[~small] = _lgamma_far(x[~small])
    return result


def _lgamma_far(x: Array) -> Array:
    series = sum(
        b / (2 * k * (2 * k - 1)) * x ** (1.0 - 2 * k) for k, b in enumerate(_BERNOULLI, 1)
    )
    # (x - ½) ln x - x, arranged so that it is inf and not nan at inf.
    return (x - 0.5) * (np.log(x) - 1) - 0.5 + 0.5 * np.log(2 * np.pi) + series


def _lgamma_near_two(x: Array) -> Array:
    """By ln Γ(2 + z) for |z| ≤ ½, a series of (ζ(k) - 1) zᵏ: also exact where ln Γ is near 0."""
    left, right = x < 0.5, x > 1.5
    z = np.where(left, x, np.where(right, x - 2, x - 1))
    rest = np.where(right, 0, -np.log1p(z)) - np.where(left, np.log(x), 0)
    product = np.ones_like(z)
    for _ in range(int(_LARGE)):
        above = z > 0.5
        z = z - above
        product = product * np.where(above, z + 2, 1)
    series = np.zeros_like(z)
    for k in range(_TERMS, 1, -1):
        series = (series + _zeta_without_one(k) / k) * -z
    return -z * series + z * (1 - np.euler_gamma) + np.log(product) + rest


_TERMS = 32  # each is at most a fourth of the previous one


@memoized(_TERMS)
def _zeta_without_one(k: int) -> float:
    """ζ(k) - 1"""
    return float(zeta(np.float64(k), np.float64(2)))


def _sin_pi(x: Array) -> Array:
    return np.sin(np.pi * (x - 2 * np.round(x / 2)))


@_of_arrays
def digamma(x: Array) -> Array:
    """The derivative of ln Γ"""
    result = _digamma_positive(np.where(x > 0, x, 1 - x))
    left = x <= 0
    result[left] -= np.pi / np.tan(np.pi * (x[left] - np.round(x[left])))
    result[(x == np.round(x)) & (x <= 0)] = np.nan
    return result


def _digamma_positive(x: Array) -> Array:
    steps = np.zeros_like(x)
    for _ in range(int(_LARGE)):
        below = x < _LARGE
        steps = steps + np.where(below, 1 / x, 0)
        x = x + below
    series = sum(b / (2 * k) * x ** (-2.0 * k) for k, b in enumerate(_BERNOULLI, 1))
    return np.log(x) - 0.5 / x - series - steps


@_of_arrays
def zeta(x: Array, q: Array) -> Array:
    """Hurwitz's Σ (q + k)⁻ˣ over k = 0, 1, …"""
    whole = x == np.floor(x)
    result = np.full(x.shape, np.nan)
    right, left = (x > 1) & (q > 0), (x > 1) & (q < 0) & whole & (q != np.floor(q))
    result[right] = _at(right, _zeta_sum, x, q)
    result[left] = _at(left, _zeta_left, x, q)
    # At a pole, all but even powers change their sign.
    pole = (x > 1) & (x % 2 == 0) & (q <= 0) & (q == np.floor(q))
    result[pole | ((x == 1) & ~np.isnan(q))] = np.inf
    return result


def _zeta_left(x: Array, q: Array) -> Array:
    """The terms of both signs: (f + k)⁻ˣ from the first positive one on, (-1)ˣ (m - f)⁻ˣ before."""
    f = q - np.floor(q)
    sign = np.where(x % 2 == 0, 1.0, -1.0)
    before = _zeta_sum(x, 1 - f) - _zeta_sum(x, 1 - q)
    return _zeta_sum(x, f) + sign * before


def _zeta_sum(x: Array, q: Array) -> Array:
    """By Euler-Maclaurin: the head is summed, the tail is its integral and corrections.

    If x is so large that the corrections diverge, the tail is negligible.
    """
    head = [(q + k) ** -x for k in range(int(_LARGE))]
    end = q + _LARGE
    counts = (end**-x > 0) & np.isfinite(end)
    total = sum(head, np.zeros_like(x))
    total[counts] += _at(counts, _zeta_tail, x, end)
    return total


def _zeta_tail(x: Array, q: Array) -> Array:
    total = q ** (1 - x) / (x - 1) + 0.5 * q**-x
    factor = x * q ** (-x - 1) / 2
    for k, bernoulli in enumerate(_BERNOULLI, 1):
        total = total + bernoulli * factor
        rising = (x + 2 * k - 1) * (x + 2 * k)
        factor = factor * rising / ((2 * k + 1) * (2 * k + 2) * q * q)
    return total


@_of_arrays
def polygamma(n: Array, x: Array) -> Array:
    """The n-th derivative of digamma"""
    sign = np.where(n % 2 == 1, 1.0, -1.0)
    result = sign * np.exp(lgamma(n + 1)) * zeta(n + 1, x)
    zero = n == 0
    result[zero] = _at(zero, digamma, x)
    result[(n < 0) | (n != np.floor(n))] = np.nan
    return result


# The incomplete gamma function


@_of_arrays
def igamma(a: Array, x: Array) -> Array:
    """P(a, x) = 1/Γ(a) ∫₀ˣ t^(a-1) e⁻ᵗ dt"""
    return _incomplete_gamma(a, x, lower=True)


@_of_arrays
def igammac(a: Array, x: Array) -> Array:
    """Q(a, x) = 1 - P(a, x), exact where P is near 1"""
    return _incomplete_gamma(a, x, lower=False)


def _incomplete_gamma(a: Array, x: Array, lower: bool) -> Array:
    result = np.full(x.shape, np.nan)
    inside = (a > 0) & (x > 0) & np.isfinite(a) & np.isfinite(x)
    wide = inside & (a > _WIDE)
    series, fraction = inside & ~wide & (x <= a + 1), inside & ~wide & (x > a + 1)
    below = _at(series, _gamma_series, a, x)
    above = _at(fraction, _gamma_fraction, a, x)
    result[series] = below if lower else 1 - below
    result[fraction] = 1 - above if lower else above
    result[wide] = _at(wide, _gamma_lower if lower else _gamma_upper, a, x)
    result[(a == np.inf) & (x > 0) & (x < np.inf)] = 0.0 if lower else 1.0
    result[(a > 0) & (a < np.inf) & (x == np.inf)] = 1.0 if lower else 0.0
    if lower:
        result[(x == 0) & ~np.isnan(a)] = 0.0
    else:
        result[(x == 0) & (a > 0)] = 1.0
    return result


_WIDE = 50.0  # from which the incomplete gamma function is an integral over its peak


@memoized(1)  # on first use: NumPy's polynomials are slow to import
def _quadrature() -> tuple[Array, Array]:
    """The nodes and weights of Gauss-Legendre quadrature on [-1, 1]."""
    return np.polynomial.legendre.leggauss(96)


def _tail(m: Array, x: Array, factor: Callable[[Array], Array] | None = None) -> Array:
    """∫ over the tail beyond x, away from m, of the density m + 1 times a factor of (t - m) / m.

    The density is exp(m (ln(1 + u) - u)) / √(2π m) (1 + …), u = (t - m) / m: nothing cancels.
    """
    nodes, weights = _quadrature()
    width = np.sqrt(m)
    reach = np.maximum(12 * width - np.abs(x - m), 7 * width)
    half = np.where(x > m, reach, -np.minimum(reach, x)) / 2
    u = ((x - m) / m)[:, np.newaxis] + (half / m)[:, np.newaxis] * (1 + nodes)
    density = np.exp(m[:, np.newaxis] * _log1p_less(u))
    if factor is not None:
        density = density * factor(u)
    area = np.abs(half / width) * np.sum(weights * density, axis=1)
    return area / np.sqrt(2 * np.pi) / np.exp(_stirling(m))


def _stirling(m: Array) -> Array:
    """ln Γ(m + 1) - (m ln m - m + ½ ln 2π m), for large m"""
    return sum(
        (b / (2 * k * (2 * k - 1)) * m ** (1.0 - 2 * k) for k, b in enumerate(_BERNOULLI, 1)),
        np.zeros_like(m),
    )


def _log1p_less(u: Array) -> Array:
    """ln(1 + u) - u, exact near 0"""
    series = sum(((-1) ** (n + 1) * u**n / n for n in range(2, 14)), np.zeros_like(u))
    return np.where(np.abs(u) < 0.05, series, np.log1p(np.maximum(u, -1)) - u)


def _gamma_lower(a: Array, x: Array) -> Array:
    tail = _tail(a - 1, x)
    return np.where(x > a - 1, 1 - tail, tail)


def _gamma_upper(a: Array, x: Array) -> Array:
    tail = _tail(a - 1, x)
    return np.where(x > a - 1, tail, 1 - tail)


def _gamma_factor(a: Array, x: Array) -> Array:
    return np.exp(a * np.log(x) - x - lgamma(a))


def _gamma_series(a: Array, x: Array) -> Array:
    term = total = 1 / a
    for n in range(1, _MAX_TERMS):
        term = term * x / (a + n)
        total = total + term
        if np.all(term <= total * _EPSILON):
            break
    return total * _gamma_factor(a, x)


def _gamma_fraction(a: Array, x: Array) -> Array:
    """The continued fraction of Q, by Lentz's method."""
    b = x + 1 - a
    c = np.full_like(b, 1 / _TINY)
    d = 1 / b
    total = d
    for n in range(1, _MAX_TERMS):
        numerator = n * (a - n)
        b = b + 2
        d = 1 / _away_from_zero(numerator * d + b)
        c = _away_from_zero(b + numerator / c)
        total = total * (d * c)
        if np.all(np.abs(d * c - 1) <= 4 * _EPSILON):
            break
    return total * _gamma_factor(a, x)


def _away_from_zero(x: Array) -> Array:
    return np.where(np.abs(x) < _TINY, _TINY, x)


@_of_arrays
def igamma_slope(a: Array, x: Array) -> Array:
    """∂P/∂a: a sum term by term, ∂/∂a of xᵃ⁺ⁿ e⁻ˣ / Γ(a + n + 1), or for large a an integral"""
    result = np.full(x.shape, np.nan)
    inside = (a > 0) & (x > 0) & np.isfinite(a) & np.isfinite(x)
    wide, series = inside & (a > _WIDE), inside & (a <= _WIDE) & (x <= _MAX_SERIES)
    result[series] = _at(series, _igamma_slope_series, a, x)
    result[wide] = _at(wide, _igamma_slope_integral, a, x)
    result[inside & (a <= _WIDE) & (x > _MAX_SERIES)] = 0.0  # e⁻ˣ is
    result[(a == np.inf) & (x > 0)] = 0.0
    result[(a > 0) & (x == np.inf)] = 0.0
    result[(x == 0) & ~np.isnan(a)] = 0.0
    return result


_MAX_SERIES = 1_200.0


def _igamma_slope_integral(a: Array, x: Array) -> Array:
    m = a - 1
    # ln m - ψ(m + 1), from Stirling's series; with ln(1 + u) it is ln t - ψ(a).
    offset = -0.5 / m + sum(
        (b / (2 * k) * m ** (-2.0 * k) for k, b in enumerate(_BERNOULLI[:6], 1)), np.zeros_like(m)
    )

    def slope(u: Array) -> Array:
        return np.log1p(np.maximum(u, -1 + _EPSILON)) + offset[:, np.newaxis]

    tail = _tail(m, x, slope)
    return np.where(x > m, -tail, tail)


def _igamma_slope_series(a: Array, x: Array) -> Array:
    logarithm, slope = np.log(x), digamma(a + 1)
    weight = np.exp(a * logarithm - x - lgamma(a + 1))
    total, largest = np.zeros_like(x), np.zeros_like(x)
    for n in range(1, _MAX_TERMS):
        term = weight * (logarithm - slope)
        total, largest = total + term, np.maximum(largest, np.abs(term))
        if np.all((np.abs(term) <= _EPSILON * largest) & (a + n > x)):
            break
        slope, weight = slope + 1 / (a + n), weight * x / (a + n)
    return total


# The incomplete beta function


@_of_arrays
def betainc(a: Array, b: Array, x: Array) -> Array:
    """I(a, b, x) = 1/B(a, b) ∫₀ˣ t^(a-1) (1 - t)^(b-1) dt"""
    result = np.full(x.shape, np.nan)
    valid = (a > 0) & (b > 0) & (x >= 0) & (x <= 1)
    ends = valid & ((x == 0) | (x == 1))
    result[ends] = x[ends]
    inside = valid & ~ends & np.isfinite(a) & np.isfinite(b)
    wide = inside & (np.minimum(a, b) > _WIDE_BETA)
    mirrored = inside & ~wide & (x > (a + 1) / (a + b + 2))
    direct = inside & ~wide & ~mirrored
    result[wide] = _at(wide, _beta_integral, a, b, x)
    result[direct] = _at(direct, _beta_fraction, a, b, x)
    result[mirrored] = 1 - _at(mirrored, _beta_fraction, b, a, 1 - x)
    return result


_WIDE_BETA = 3_000.0  # if both are larger, the fraction needs as many terms as their square root


def _beta_integral(a: Array, b: Array, x: Array) -> Array:
    """The integral over the tail of the density, whose peak is at m."""
    nodes, weights = _quadrature()
    p, q = a - 1, b - 1
    m = p / (p + q)
    width = np.sqrt(m * (1 - m) / (p + q))
    right = x > m
    reach = np.maximum(12 * width - np.abs(x - m), 7 * width)
    half = (np.where(right, np.minimum(reach, 1 - x), -np.minimum(reach, x)) / 2)[:, np.newaxis]
    step = (x - m)[:, np.newaxis] + half * (1 + nodes)
    rise = p[:, np.newaxis] * _log1p_less(step / m[:, np.newaxis])
    fall = q[:, np.newaxis] * _log1p_less(-step / (1 - m)[:, np.newaxis])
    area = np.abs(half[:, 0]) * np.sum(weights * np.exp(rise + fall), axis=1)
    # 1 / B(a, b) at the peak, by Stirling: (p + q + 1) √((p + q) / (2π p q)) times corrections.
    scale = (p + q + 1) / np.sqrt(2 * np.pi) * np.sqrt(1 / p + 1 / q)
    tail: Array = area * scale * np.exp(_stirling(p + q) - _stirling(p) - _stirling(q))
    return np.where(right, 1 - tail, tail)


def _log_beta(a: Array, b: Array) -> Array:
    """ln B(a, b) = ln Γ(a) + ln Γ(b) - ln Γ(a + b), with large terms cancelled symbolically"""
    small, large = np.minimum(a, b), np.maximum(a, b)
    plain = lgamma(small) + lgamma(large) - lgamma(small + large)
    safe = np.maximum(large, _LARGE)
    total = small + safe
    fall = -(safe - 0.5) * np.log1p(small / safe) - small * np.log(total) + small
    stirling = lgamma(small) + fall + _stirling(safe) - _stirling(total)
    return np.where(large >= _LARGE, stirling, plain)


def _beta_fraction(a: Array, b: Array, x: Array) -> Array:
    """The continued fraction of the incomplete beta function, by Lentz's method."""
    logarithm = a * np.log(x) + b * np.log1p(-x) - _log_beta(a, b)
    c = np.ones_like(x)
    d = 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    total = d
    for m in range(1, _MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for numerator in (even, odd):
            d = 1 / _away_from_zero(1 + numerator * d)
            c = _away_from_zero(1 + numerator / c)
            total = total * (d * c)
        if np.all(np.abs(d * c - 1) <= 4 * _EPSILON):
            break
    return np.exp(logarithm) * total / a


# Modified Bessel functions, scaled by exp(-|x|)


@_of_arrays
def bessel_i0e(x: Array) -> Array:
    """exp(-|x|) I₀(x)"""
    return _scaled_bessel(0, np.abs(x))


@_of_arrays
def bessel_i1e(x: Array) -> Array:
    """exp(-|x|) I₁(x)"""
    return np.sign(x) * _scaled_bessel(1, np.abs(x))


def _scaled_bessel(order: int, x: Array) -> Array:
    result = np.full(x.shape, np.nan)
    small, large = x < 30, x >= 30
    result[small] = np.where(
        x[small] < 1, _bessel_series(order, x[small]), _bessel_integral(order, x[small])
    )
    result[large] = _bessel_asymptotic(order, x[large])
    return result


def _bessel_integral(order: int, x: Array) -> Array:
    # The trapezoid rule is exact to double precision for this periodic integrand.
    angles = np.arange(96) * (2 * np.pi / 96)
    weights = np.cos(order * angles)
    return np.mean(np.exp(x[..., np.newaxis] * (np.cos(angles) - 1)) * weights, axis=-1)


def _bessel_series(order: int, x: Array) -> Array:
    # I₀ or I₁, whose power series converge fast below 1.
    term = total = (x / 2) ** order
    for k in range(1, 12):
        term = term * (x / 2) ** 2 / (k * (k + order))
        total = total + term
    return total * np.exp(-x)


def _bessel_asymptotic(order: int, x: Array) -> Array:
    term = total = np.ones_like(x)
    for k in range(1, 30):
        term = term * -(4 * order**2 - (2 * k - 1) ** 2) / (8 * k * x)
        total = total + term
    return total / np.sqrt(2 * np.pi) / np.sqrt(x)
