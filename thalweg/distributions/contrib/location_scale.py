"""Distributions that a location and a scale give: logistic, Gumbel, Cauchy, half-normal."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from thalweg.distributions.base import FULLY_REPARAMETERIZED
from thalweg.distributions.divergence import RegisterKL
from thalweg.distributions.gaussian import LOG_SQRT_TWO_PI, ndtri
from thalweg.distributions.parameters import after, choose, defined, floats
from thalweg.distributions.scalar import ScalarDistribution
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.core import checks, filling
from thalweg.ops.math import arithmetic, special, transcendental
from thalweg.ops.nn.activation import softplus
from thalweg.ops.random import random
from thalweg.public import public


class _LocationScale(ScalarDistribution):
    """loc + scale Z: a subclass describes the standard distribution of Z."""

    sized_parameters: ClassVar[tuple[str, ...]] = ("loc", "scale")

    def __init__(
        self, loc: TensorLike, scale: TensorLike, parameters: dict[str, Any], name: str
    ) -> None:
        with name_scope(name, values=[loc, scale]) as scope:
            centre, width = floats(loc, scale)
            assertions = [checks.assert_positive(width)] if parameters["validate_args"] else []
            self._loc = after(assertions, centre, name="loc")
            self._scale = after(assertions, width, name="scale")
            super().__init__([self._loc, self._scale], FULLY_REPARAMETERIZED, parameters, scope)

    @property
    def loc(self) -> Tensor:
        """The location."""
        return self._loc

    @property
    def scale(self) -> Tensor:
        """The scale."""
        return self._scale

    def _standard(self, x: Tensor) -> Tensor:
        return (x - self._loc) / self._scale

    def _log_prob(self, value: Tensor) -> Tensor:
        return self._standard_log_prob(self._standard(value)) - transcendental.log(self._scale)

    def _standard_log_prob(self, z: Tensor) -> Tensor:
        raise self._missing("log_prob")

    def _standard_quantile(self, p: Tensor) -> Tensor:
        raise self._missing("quantile")

    def _quantile(self, value: Tensor) -> Tensor:
        return self._loc + self._scale * self._standard_quantile(value)

    def _sample_n(self, n: Tensor, seed: int | None) -> Tensor:
        # Neither end of the interval: quantiles are infinite there.
        tiny = np.finfo(self.dtype.as_numpy_dtype).tiny
        drawn = random.random_uniform(self._sizes(n), tiny, 1.0, self.dtype, seed=seed)
        return self._quantile(drawn)

    def _mode(self) -> Tensor:
        return self._spread(self._loc)


@public("contrib.distributions.Logistic")
class Logistic(_LocationScale):
    """The distribution function is sigmoid((x - loc) / scale)

    Args:
        loc: the means.
        scale: the scales, positive.
        validate_args: whether the step checks that `scale` is positive.
        allow_nan_stats: give NaN for statistics that are not defined, instead of raising.
        name: the scope of the nodes.
    """

    def __init__(
        self,
        loc: TensorLike,
        scale: TensorLike,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Logistic",
    ) -> None:
        super().__init__(loc, scale, dict(locals()), name)

    def _standard_log_prob(self, z: Tensor) -> Tensor:
        return -z - 2 * softplus(-z)

    def _standard_quantile(self, p: Tensor) -> Tensor:
        return transcendental.log(p) - transcendental.log1p(-p)

    def _log_cdf(self, value: Tensor) -> Tensor:
        return -softplus(-self._standard(value))

    def _cdf(self, value: Tensor) -> Tensor:
        return transcendental.sigmoid(self._standard(value))

    def _log_survival_function(self, value: Tensor) -> Tensor:
        return -softplus(self._standard(value))

    def _survival_function(self, value: Tensor) -> Tensor:
        return transcendental.sigmoid(-self._standard(value))

    def _entropy(self) -> Tensor:
        return self._spread(2 + transcendental.log(self._scale))

    def _mean(self) -> Tensor:
        return self._spread(self._loc)

    def _stddev(self) -> Tensor:
        return self._spread(self._scale * (math.pi / math.sqrt(3)))


@public("contrib.distributions.Gumbel")
class Gumbel(_LocationScale):
    """The distribution function is exp(-exp(-(x - loc) / scale))

    Args:
        loc: the modes.
        scale: the scales, positive.
        validate_args: whether the step checks that `scale` is positive.
        allow_nan_stats: give NaN for statistics that are not defined, instead of raising.
        name: the scope of the nodes.
    """

    def __init__(
        self,
        loc: TensorLike,
        scale: TensorLike,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Gumbel",
    ) -> None:
        super().__init__(loc, scale, dict(locals()), name)

    def _standard_log_prob(self, z: Tensor) -> Tensor:
        return -z - transcendental.exp(-z)

    def _standard_quantile(self, p: Tensor) -> Tensor:
        return -transcendental.log(-transcendental.log(p))

    def _log_cdf(self, value: Tensor) -> Tensor:
        return -transcendental.exp(-self._standard(value))

    def _survival_function(self, value: Tensor) -> Tensor:
        return -transcendental.expm1(self._log_cdf(value))

    def _log_survival_function(self, value: Tensor) -> Tensor:
        return transcendental.log(self._survival_function(value))

    def _entropy(self) -> Tensor:
        return self._spread(1 + np.euler_gamma + transcendental.log(self._scale))

    def _mean(self) -> Tensor:
        return self._spread(self._loc + self._scale * np.euler_gamma)

    def _stddev(self) -> Tensor:
        return self._spread(self._scale * (math.pi / math.sqrt(6)))


@public("contrib.distributions.Cauchy")
class Cauchy(_LocationScale):
    """1 / (π scale (1 + ((x - loc) / scale)²))

    Args:
        loc: the medians.
        scale: the scales, positive.
        validate_args: whether the step checks that `scale` is positive.
        allow_nan_stats: give NaN for statistics that are not defined, instead of raising.
        name: the scope of the nodes.
    """

    def __init__(
        self,
        loc: TensorLike,
        scale: TensorLike,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Cauchy",
    ) -> None:
        super().__init__(loc, scale, dict(locals()), name)

    def _standard_log_prob(self, z: Tensor) -> Tensor:
        return -math.log(math.pi) - transcendental.log1p(arithmetic.square(z))

    def _standard_quantile(self, p: Tensor) -> Tensor:
        return transcendental.tan(math.pi * (p - 0.5))

    def _cdf(self, value: Tensor) -> Tensor:
        # Of two arguments: exact far below zero, too.
        return (
            transcendental.atan2(filling.ones_like(self._standard(value)), -self._standard(value))
            / math.pi
        )

    def _survival_function(self, value: Tensor) -> Tensor:
        z = self._standard(value)
        return transcendental.atan2(filling.ones_like(z), z) / math.pi

    def _log_survival_function(self, value: Tensor) -> Tensor:
        return transcendental.log(self._survival_function(value))

    def _entropy(self) -> Tensor:
        return self._spread(math.log(4 * math.pi) + transcendental.log(self._scale))

    def _undefined(self, what: str) -> Tensor:
        nothing = self._spread(filling.zeros_like(self._scale))
        return defined(nothing, nothing > 0, self.allow_nan_stats, f"{what} is not defined")

    def _mean(self) -> Tensor:
        return self._undefined("mean")

    def _stddev(self) -> Tensor:
        return self._undefined("stddev")


@public("contrib.distributions.HalfNormal")
class HalfNormal(ScalarDistribution):
    """|X|, X normal with mean 0 and standard deviation `scale`

    Args:
        scale: the scales, positive.
        validate_args: whether the step checks that `scale` is positive.
        allow_nan_stats: give NaN for statistics that are not defined, instead of raising.
        name: the scope of the nodes.
    """

    sized_parameters: ClassVar[tuple[str, ...]] = ("scale",)

    def __init__(
        self,
        scale: TensorLike,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "HalfNormal",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[scale]) as scope:
            (width,) = floats(scale)
            assertions = [checks.assert_positive(width)] if validate_args else []
            self._scale = after(assertions, width, name="scale")
            super().__init__([self._scale], FULLY_REPARAMETERIZED, parameters, scope)

    @property
    def scale(self) -> Tensor:
        """The standard deviation of X."""
        return self._scale

    def _sample_n(self, n: Tensor, seed: int | None) -> Tensor:
        drawn = random.random_normal(self._sizes(n), dtype=self.dtype, seed=seed)
        return abs(drawn * self._scale)

    def _log_prob(self, value: Tensor) -> Tensor:
        z = value / self._scale
        inner = math.log(2) - LOG_SQRT_TWO_PI - transcendental.log(self._scale)
        return choose(value >= 0, inner - 0.5 * arithmetic.square(z), -math.inf)

    def _cdf(self, value: Tensor) -> Tensor:
        positive = arithmetic.maximum(value, 0)
        return special.erf(positive / (self._scale * math.sqrt(2)))

    def _survival_function(self, value: Tensor) -> Tensor:
        return special.erfc(arithmetic.maximum(value, 0) / (self._scale * math.sqrt(2)))

    def _log_survival_function(self, value: Tensor) -> Tensor:
        return transcendental.log(self._survival_function(value))

    def _quantile(self, value: Tensor) -> Tensor:
        return self._scale * ndtri((value + 1) / 2)

    def _entropy(self) -> Tensor:
        return 0.5 + 0.5 * math.log(math.pi / 2) + transcendental.log(self._scale)

    def _mean(self) -> Tensor:
        return self._scale * math.sqrt(2 / math.pi)

    def _variance(self) -> Tensor:
        return arithmetic.square(self._scale) * (1 - 2 / math.pi)

    def _mode(self) -> Tensor:
        return filling.zeros_like(self._scale)


@RegisterKL(HalfNormal, HalfNormal)
def kl_half_normals(a: HalfNormal, b: HalfNormal, name: str | None = None) -> Tensor:
    """(r - 1 - log r) / 2, with r = σa² / σb²"""
    with name_scope(name, "kl_half_normal_half_normal", [a.scale, b.scale]):
        ratio = arithmetic.square(a.scale / b.scale)
        return 0.5 * (ratio - 1 - transcendental.log(ratio))
