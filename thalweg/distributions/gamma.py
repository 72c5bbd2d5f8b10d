"""The gamma distribution, and the exponential one, which is its case of concentration 1."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from thalweg.distributions.base import FULLY_REPARAMETERIZED
from thalweg.distributions.divergence import RegisterKL
from thalweg.distributions.parameters import after, defined, floats
from thalweg.distributions.scalar import ScalarDistribution
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.core import checks, filling
from thalweg.ops.math import arithmetic, transcendental
from thalweg.ops.math.special import digamma, igamma, igammac, lgamma
from thalweg.ops.random import random, random_parametric
from thalweg.public import public


@public("distributions.Gamma")
class Gamma(ScalarDistribution):
    """x^(concentration - 1) exp(-rate x) rate^concentration / Γ(concentration), for x > 0"""

    sized_parameters: ClassVar[tuple[str, ...]] = ("concentration", "rate")

    def __init__(
        self,
        concentration: TensorLike,
        rate: TensorLike,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Gamma",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[concentration, rate]) as scope:
            shape, inverse_scale = floats(concentration, rate)
            assertions = (
                [checks.assert_positive(shape), checks.assert_positive(inverse_scale)]
                if validate_args
                else []
            )
            self._concentration = after(assertions, shape, name="concentration")
            self._rate = after(assertions, inverse_scale, name="rate")
            parts = [self._concentration, self._rate]
            super().__init__(parts, FULLY_REPARAMETERIZED, parameters, scope)

    @property
    def concentration(self) -> Tensor:
        """The shape parameter."""
        return self._concentration

    @property
    def rate(self) -> Tensor:
        """The inverse scale."""
        return self._rate

    def _sample_n(self, n: Tensor, seed: int | None) -> Tensor:
        return random_parametric.random_gamma(
            [n], self._concentration, self._rate, dtype=self.dtype, seed=seed
        )

    def _log_prob(self, value: Tensor) -> Tensor:
        x = self._positive(value)
        power = transcendental.xlogy(self._concentration - 1, x)
        normalization = lgamma(self._concentration) - self._concentration * transcendental.log(
            self._rate
        )
        return power - self._rate * x - normalization

    def _cdf(self, value: Tensor) -> Tensor:
        return igamma(self._concentration, self._rate * self._positive(value))

    def _survival_function(self, value: Tensor) -> Tensor:
        return igammac(self._concentration, self._rate * self._positive(value))

    def _positive(self, x: Tensor) -> Tensor:
        return after([checks.assert_positive(x)], x) if self.validate_args else x

    def _entropy(self) -> Tensor:
        shape = self._concentration
        return shape - transcendental.log(self._rate) + lgamma(shape) + (1 - shape) * digamma(shape)

    def _mean(self) -> Tensor:
        return self._concentration / self._rate

    def _variance(self) -> Tensor:
        return self._concentration / arithmetic.square(self._rate)

    def _stddev(self) -> Tensor:
        return transcendental.sqrt(self._concentration) / self._rate

    def _mode(self) -> Tensor:
        mode = (self._concentration - 1) / self._rate
        message = "mode not defined when any concentration <= 1"
        return defined(mode, self._concentration > 1, self.allow_nan_stats, message)


@RegisterKL(Gamma, Gamma)
def kl_gamma_gamma(a: Gamma, b: Gamma, name: str | None = None) -> Tensor:
    """(αa - αb) ψ(αa) + ln Γ(αb)/Γ(αa) + αb ln(βa/βb) + αa (βb/βa - 1)"""
    with name_scope(name, "kl_gamma_gamma", [a.concentration, b.concentration]):
        difference = a.concentration - b.concentration
        return (
            difference * digamma(a.concentration)
            + lgamma(b.concentration)
            - lgamma(a.concentration)
            + b.concentration * transcendental.log(a.rate / b.rate)
            + a.concentration * (b.rate / a.rate - 1)
        )


@public("distributions.Exponential")
class Exponential(Gamma):
    """rate exp(-rate x), for x >= 0"""

    sized_parameters: ClassVar[tuple[str, ...]] = ("rate",)

    def __init__(
        self,
        rate: TensorLike,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Exponential",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[rate]) as scope:
            (inverse_scale,) = floats(rate)
            super().__init__(
                concentration=filling.ones_like(inverse_scale),
                rate=inverse_scale,
                validate_args=validate_args,
                allow_nan_stats=allow_nan_stats,
                name=scope,
            )
        self._parameters = parameters

    def _positive(self, x: Tensor) -> Tensor:
        return after([checks.assert_non_negative(x)], x) if self.validate_args else x

    def _sample_n(self, n: Tensor, seed: int | None) -> Tensor:
        tiny = np.finfo(self.dtype.as_numpy_dtype).tiny  # its logarithm is finite
        drawn = random.random_uniform(self._sizes(n), tiny, 1.0, self.dtype, seed=seed)
        return -transcendental.log(drawn) / self._rate

    def _quantile(self, value: Tensor) -> Tensor:
        return -transcendental.log1p(-value) / self._rate

    def _mode(self) -> Tensor:
        return filling.zeros_like(self._rate)
