"""The beta distribution."""

from __future__ import annotations

from typing import ClassVar

from thalweg.distributions.base import FULLY_REPARAMETERIZED
from thalweg.distributions.divergence import RegisterKL
from thalweg.distributions.parameters import after, broadcast_all, defined, floats, new_seed
from thalweg.distributions.scalar import ScalarDistribution
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.core import checks
from thalweg.ops.math import arithmetic, compare, transcendental
from thalweg.ops.math.special import betainc, digamma, lgamma
from thalweg.ops.random import random_parametric
from thalweg.public import public


@public("distributions.Beta")
class Beta(ScalarDistribution):
    """x^(concentration1 - 1) (1 - x)^(concentration0 - 1) / B(concentration1, concentration0)"""

    sized_parameters: ClassVar[tuple[str, ...]] = ("concentration1", "concentration0")

    def __init__(
        self,
        concentration1: TensorLike | None = None,
        concentration0: TensorLike | None = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Beta",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[concentration1, concentration0]) as scope:
            one, zero = floats(concentration1, concentration0)
            assertions = (
                [checks.assert_positive(one), checks.assert_positive(zero)] if validate_args else []
            )
            self._concentration1 = after(assertions, one, name="concentration1")
            self._concentration0 = after(assertions, zero, name="concentration0")
            self._total_concentration = self._concentration1 + self._concentration0
            parts = [self._concentration1, self._concentration0]
            super().__init__(parts, FULLY_REPARAMETERIZED, parameters, scope)

    @property
    def concentration1(self) -> Tensor:
        """The weight of 1."""
        return self._concentration1

    @property
    def concentration0(self) -> Tensor:
        """The weight of 0."""
        return self._concentration0

    @property
    def total_concentration(self) -> Tensor:
        """The sum of both weights."""
        return self._total_concentration

    def _sample_n(self, n: Tensor, seed: int | None) -> Tensor:
        first = self._gamma(n, self._concentration1, seed)
        second = self._gamma(n, self._concentration0, new_seed(seed, "beta"))
        return first / (first + second)

    def _gamma(self, n: Tensor, concentration: Tensor, seed: int | None) -> Tensor:
        return random_parametric.random_gamma(
            [n], self._spread(concentration), dtype=self.dtype, seed=seed
        )

    def _log_prob(self, value: Tensor) -> Tensor:
        x = after(_inside(value), value) if self.validate_args else value
        ones = transcendental.xlogy(self._concentration1 - 1, x)
        zeros = transcendental.multiply_no_nan(transcendental.log1p(-x), self._concentration0 - 1)
        return ones + zeros - self.log_normalization()

    def log_normalization(self) -> Tensor:
        """ln B(concentration1, concentration0)"""
        return (
            lgamma(self._concentration1)
            + lgamma(self._concentration0)
            - lgamma(self._total_concentration)
        )

    def _cdf(self, value: Tensor) -> Tensor:
        x = after(_inside(value), value) if self.validate_args else value
        one, zero, x = broadcast_all(self._concentration1, self._concentration0, x)
        return betainc(one, zero, x)

    def _entropy(self) -> Tensor:
        return (
            self.log_normalization()
            - (self._concentration1 - 1) * digamma(self._concentration1)
            - (self._concentration0 - 1) * digamma(self._concentration0)
            + (self._total_concentration - 2) * digamma(self._total_concentration)
        )

    def _mean(self) -> Tensor:
        return self._concentration1 / self._total_concentration

    def _variance(self) -> Tensor:
        mean = self._mean()
        return mean * (1 - mean) / (1 + self._total_concentration)

    def _mode(self) -> Tensor:
        mode = (self._concentration1 - 1) / (self._total_concentration - 2)
        has_mode = compare.logical_and(self._concentration1 > 1, self._concentration0 > 1)
        message = "Mode undefined for concentration1 <= 1 or concentration0 <= 1."
        return defined(mode, has_mode, self.allow_nan_stats, message)


def _inside(x: Tensor) -> list[Node]:
    return [
        checks.assert_positive(x, message="sample must be positive"),
        checks.assert_less(x, arithmetic.add(x * 0, 1), message="sample must be less than `1`."),
    ]


@RegisterKL(Beta, Beta)
def kl_beta_beta(a: Beta, b: Beta, name: str | None = None) -> Tensor:
    """ln B(b)/B(a) + Σ (aᵢ - bᵢ) ψ(aᵢ) + (Σb - Σa) ψ(Σa)"""
    with name_scope(name, "kl_beta_beta", [a.concentration1, b.concentration1]):
        total = b.total_concentration - a.total_concentration
        return (
            b.log_normalization()
            - a.log_normalization()
            - (b.concentration1 - a.concentration1) * digamma(a.concentration1)
            - (b.concentration0 - a.concentration0) * digamma(a.concentration0)
            + total * digamma(a.total_concentration)
        )
