"""The distribution function of the standard normal distribution, its logarithm and its inverse."""

from __future__ import annotations

import math

from thalweg.distributions.parameters import choose
from thalweg.graph import dtypes
from thalweg.graph.node import Tensor
from thalweg.ops.math import arithmetic, special, transcendental

LOG_SQRT_TWO_PI = 0.5 * math.log(2 * math.pi)

# Between these, log ndtr is computed as it is written.
_LOWER = {dtypes.float64: -20.0}
_UPPER = {dtypes.float64: 8.0}


def ndtr(x: Tensor) -> Tensor:
    """P(X <= x)"""
    return 0.5 * special.erfc(x * -math.sqrt(0.5))


def log_ndtr(x: Tensor) -> Tensor:
    """log P(X <= x), exact in both tails."""
    kind = x.dtype.base_dtype
    lower, upper = _LOWER.get(kind, -10.0), _UPPER.get(kind, 5.0)
    # Each branch sees only arguments in its own range: no inf from another one spoils a gradient.
    middle = transcendental.log(ndtr(arithmetic.clip_by_value(x, lower, upper)))
    left = _log_tail(arithmetic.minimum(x, lower))
    right = -ndtr(-arithmetic.maximum(x, upper))
    return choose(x > upper, right, choose(x > lower, middle, left))


def _log_tail(x: Tensor) -> Tensor:
    """log(φ(x) / |x| · (1 - 1/x² + 3/x⁴ - 15/x⁶)) for x far below zero."""
    y = arithmetic.reciprocal(arithmetic.square(x))
    series = 1 + y * (-1 + y * (3 + y * -15))
    scale = -0.5 * arithmetic.square(x) - transcendental.log(-x) - LOG_SQRT_TWO_PI
    return scale + transcendental.log(series)


def ndtri(p: Tensor) -> Tensor:
    """The x with P(X <= x) = p: a rational first guess in the lower half, then Halley's steps."""
    lower = arithmetic.minimum(p, 1 - p)
    x = _first_guess(lower)
    for _ in range(2):
        error = (ndtr(x) - lower) / transcendental.exp(
            -0.5 * arithmetic.square(x) - LOG_SQRT_TWO_PI
        )
        x = x - error / (1 + 0.5 * x * error)
    inner = choose(p > 0.5, -x, x)
    return choose(p <= 0, p - math.inf, choose(p >= 1, p + math.inf, inner))


def _first_guess(p: Tensor) -> Tensor:
    """Formula 26.2.23 of Abramowitz and Stegun, to 4.5e-4, for 0 < p <= 0.5."""
    t = transcendental.sqrt(-2 * transcendental.log(p))
    numerator = 2.515517 + t * (0.802853 + t * 0.010328)
    denominator = 1 + t * (1.432788 + t * (0.189269 + t * 0.001308))
    return numerator / denominator - t
