"""Relatives of the gamma distribution: chi-squared, and the reciprocal of a gamma number."""

from __future__ import annotations

from typing import ClassVar

from thalweg.distributions.base import FULLY_REPARAMETERIZED
from thalweg.distributions.gamma import Gamma
from thalweg.distributions.parameters import after, defined, floats
from thalweg.distributions.scalar import ScalarDistribution
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.core import checks
from thalweg.ops.math import arithmetic, transcendental
from thalweg.ops.math.special import digamma, igamma, igammac, lgamma
from thalweg.ops.random import random_parametric
from thalweg.public import public


@public("contrib.distributions.Chi2")
class Chi2(Gamma):
    """The sum of the squares of `df` standard normal numbers

    Args:
        df: the degrees of freedom, positive.
        validate_args: whether the step checks that `df` is positive.
        allow_nan_stats: give NaN for statistics that are not defined, instead of raising.
        name: the scope of the nodes.
    """

    sized_parameters: ClassVar[tuple[str, ...]] = ("df",)

    def __init__(
        self,
        df: TensorLike,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Chi2",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[df]) as scope:
            (self._df,) = floats(df)
            super().__init__(
                concentration=0.5 * self._df,
                rate=0.5,
                validate_args=validate_args,
                allow_nan_stats=allow_nan_stats,
                name=scope,
            )
        self._parameters = parameters

    @property
    def df(self) -> Tensor:
        """The degrees of freedom."""
        return self._df


@public("contrib.distributions.InverseGamma")
class InverseGamma(ScalarDistribution):
    """1 / X, X from a gamma distribution

    Args:
        concentration: the shapes, positive.
        rate: the scales of 1 / X, positive.
        validate_args: whether the step checks parameters and values.
        allow_nan_stats: give NaN for statistics that are not defined, instead of raising.
        name: the scope of the nodes.
    """

    sized_parameters: ClassVar[tuple[str, ...]] = ("concentration", "rate")

    def __init__(
        self,
        concentration: TensorLike,
        rate: TensorLike,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "InverseGamma",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[concentration, rate]) as scope:
            shape, scale = floats(concentration, rate)
            both = (shape, scale) if validate_args else ()
            assertions = [checks.assert_positive(part) for part in both]
            self._concentration = after(assertions, shape, name="concentration")
            self._rate = after(assertions, scale, name="rate")
            parts = [self._concentration, self._rate]
            super().__init__(parts, FULLY_REPARAMETERIZED, parameters, scope)

    @property
    def concentration(self) -> Tensor:
        """The shape."""
        return self._concentration

    @property
    def rate(self) -> Tensor:
        """The scale."""
        return self._rate

    def _sample_n(self, n: Tensor, seed: int | None) -> Tensor:
        drawn = random_parametric.random_gamma(
            [n], self._concentration, self._rate, dtype=self.dtype, seed=seed
        )
        return arithmetic.reciprocal(drawn)

    def _positive(self, x: Tensor) -> Tensor:
        return after([checks.assert_positive(x)], x) if self.validate_args else x

    def _log_prob(self, value: Tensor) -> Tensor:
        x = self._positive(value)
        normalization = lgamma(self._concentration) - self._concentration * transcendental.log(
            self._rate
        )
        return -(1 + self._concentration) * transcendental.log(x) - self._rate / x - normalization

    def _cdf(self, value: Tensor) -> Tensor:
        return igammac(self._concentration, self._rate / self._positive(value))

    def _survival_function(self, value: Tensor) -> Tensor:
        return igamma(self._concentration, self._rate / self._positive(value))

    def _entropy(self) -> Tensor:
        shape = self._concentration
        return shape + transcendental.log(self._rate) + lgamma(shape) - (1 + shape) * digamma(shape)

    def _mean(self) -> Tensor:
        mean = self._rate / (self._concentration - 1)
        message = "mean undefined when any concentration <= 1"
        return defined(mean, self._concentration > 1, self.allow_nan_stats, message)

    def _variance(self) -> Tensor:
        shape = self._concentration
        variance = arithmetic.square(self._rate / (shape - 1)) / (shape - 2)
        message = "variance undefined when any concentration <= 2"
        return defined(variance, shape > 2, self.allow_nan_stats, message)

    def _mode(self) -> Tensor:
        return self._rate / (1 + self._concentration)
