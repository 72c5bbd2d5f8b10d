"""The Dirichlet-multinomial distribution: counts of classes whose probabilities are Dirichlet."""

from __future__ import annotations

from thalweg.distributions import vector
from thalweg.distributions.base import NOT_REPARAMETERIZED
from thalweg.distributions.dirichlet import concentration_checks
from thalweg.distributions.parameters import after, floats, is_count, new_seed
from thalweg.distributions.vector import VectorDistribution, column
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.core import filling, shaping
from thalweg.ops.math import arithmetic, transcendental
from thalweg.ops.math.special import lbeta
from thalweg.ops.random import random_parametric
from thalweg.public import public


@public("distributions.DirichletMultinomial")
class DirichletMultinomial(VectorDistribution):
    """N! / Π nᵢ! · B(concentration + n) / B(concentration), with N = `total_count`"""

    def __init__(
        self,
        total_count: TensorLike,
        concentration: TensorLike,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "DirichletMultinomial",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[total_count, concentration]) as scope:
            count, weights = floats(total_count, concentration)
            counts = is_count(count, "total_count") if validate_args else []
            positive = concentration_checks(weights) if validate_args else []
            self._total_count = after(counts, count, name="total_count")
            self._concentration = after(positive, weights, name="concentration")
            self._total_concentration = vector.total(self._concentration)
            mean = self._concentration / column(self._total_concentration)
            self._mean_value = column(self._total_count) * mean
            parts = [self._total_count, self._concentration, self._mean_value]
            super().__init__(self._mean_value, parts, NOT_REPARAMETERIZED, parameters, scope)

    @property
    def total_count(self) -> Tensor:
        """The number of draws."""
        return self._total_count

    @property
    def concentration(self) -> Tensor:
        """The weights of the classes."""
        return self._concentration

    @property
    def total_concentration(self) -> Tensor:
        """The sum of the weights."""
        return self._total_concentration

    def _sample_n(self, n: Tensor, seed: int | None) -> Tensor:
        weights = self._concentration + filling.zeros_like(self._mean_value)
        gamma = random_parametric.random_gamma([n], weights, dtype=self.dtype, seed=seed)
        draws = vector.as_draws(self._total_count + filling.zeros_like(gamma[..., 0]))
        second = new_seed(seed, "dirichlet_multinomial")
        logits = vector.rows(transcendental.log(gamma))
        counts = vector.tallies(logits, draws, 1, self.dtype, second)
        return shaping.reshape(counts, self._sizes(n))

    def _log_prob(self, value: Tensor) -> Tensor:
        counts = vector.checked_counts(value, self._total_count, self.validate_args)
        density = lbeta(self._concentration + counts) - lbeta(self._concentration)
        return density + vector.log_combinations(self._total_count, counts)

    def _mean(self) -> Tensor:
        return self._mean_value

    def _spread_factor(self) -> Tensor:
        """How much wider it is than a multinomial distribution: (A + N) / (A + 1)"""
        weight = self._total_concentration
        return (weight + self._total_count) / (weight + 1)

    def _variance(self) -> Tensor:
        mean = self._concentration / column(self._total_concentration)
        return column(self._total_count * self._spread_factor()) * mean * (1 - mean)

    def _covariance(self) -> Tensor:
        mean = self._mean_value / column(self._total_count)
        factor = arithmetic.multiply(self._total_count, self._spread_factor())
        return vector.covariance(mean, self._variance(), factor)
