"""The Dirichlet distribution: probabilities of k classes."""

from __future__ import annotations

from thalweg.distributions import vector
from thalweg.distributions.base import FULLY_REPARAMETERIZED
from thalweg.distributions.divergence import RegisterKL
from thalweg.distributions.parameters import after, defined, floats
from thalweg.distributions.vector import VectorDistribution, column
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.core import casting, checks, filling, shaping
from thalweg.ops.math import arithmetic, reduce
from thalweg.ops.math.special import digamma, lbeta
from thalweg.ops.math.transcendental import xlogy
from thalweg.ops.random import random_parametric
from thalweg.public import public


def concentration_checks(concentration: Tensor) -> list[Node]:
    """Checks that there are at least two classes, each with a positive concentration."""
    enough = checks.assert_greater(
        shaping.shape(concentration)[-1], 1, message="Event dimension must be at least 2."
    )
    message = "Concentration parameter must be positive."
    return [checks.assert_positive(concentration, message=message), enough]


@public("distributions.Dirichlet")
class Dirichlet(VectorDistribution):
    """Π xᵢ^(concentrationᵢ - 1) / B(concentration), over x that sum to 1"""

    def __init__(
        self,
        concentration: TensorLike,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Dirichlet",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[concentration]) as scope:
            (weights,) = floats(concentration)
            assertions = concentration_checks(weights) if validate_args else []
            self._concentration = after(assertions, weights, name="concentration")
            self._total_concentration = vector.total(self._concentration)
            parts = [self._concentration, self._total_concentration]
            super().__init__(self._concentration, parts, FULLY_REPARAMETERIZED, parameters, scope)

    @property
    def concentration(self) -> Tensor:
        """The weights of the classes."""
        return self._concentration

    @property
    def total_concentration(self) -> Tensor:
        """The sum of the weights."""
        return self._total_concentration

    def _sample_n(self, n: Tensor, seed: int | None) -> Tensor:
        gamma = random_parametric.random_gamma(
            [n], self._concentration, dtype=self.dtype, seed=seed
        )
        return gamma / reduce.reduce_sum(gamma, axis=-1, keepdims=True)

    def _log_prob(self, value: Tensor) -> Tensor:
        x = after(_simplex_checks(value), value) if self.validate_args else value
        return vector.total(xlogy(self._concentration - 1, x)) - lbeta(self._concentration)

    def _entropy(self) -> Tensor:
        classes = casting.cast(self.event_shape_tensor()[0], self.dtype)
        each = (self._concentration - 1) * digamma(self._concentration)
        whole = (self._total_concentration - classes) * digamma(self._total_concentration)
        return lbeta(self._concentration) + whole - vector.total(each)

    def _mean(self) -> Tensor:
        return self._concentration / column(self._total_concentration)

    def _variance(self) -> Tensor:
        mean = self._mean()
        return mean * (1 - mean) / column(1 + self._total_concentration)

    def _covariance(self) -> Tensor:
        factor = arithmetic.reciprocal(1 + self._total_concentration)
        return vector.covariance(self._mean(), self._variance(), factor)

    def _mode(self) -> Tensor:
        classes = casting.cast(self.event_shape_tensor()[0], self.dtype)
        mode = (self._concentration - 1) / column(self._total_concentration - classes)
        has_mode = reduce.reduce_all(self._concentration > 1, axis=-1, keepdims=True)
        message = "Mode undefined when any concentration <= 1"
        return defined(mode, has_mode, self.allow_nan_stats, message)


def _simplex_checks(x: Tensor) -> list[Node]:
    return [
        checks.assert_positive(x, message="samples must be positive"),
        checks.assert_near(
            filling.ones_like(x[..., 0]),
            vector.total(x),
            message="sample last-dimension must sum to `1`",
        ),
    ]


@RegisterKL(Dirichlet, Dirichlet)
def kl_dirichlet_dirichlet(a: Dirichlet, b: Dirichlet, name: str | None = None) -> Tensor:
    """Σ (aᵢ - bᵢ) (ψ(aᵢ) - ψ(Σa)) + ln B(b)/B(a)"""
    with name_scope(name, "kl_dirichlet_dirichlet", [a.concentration, b.concentration]):
        slopes = digamma(a.concentration) - column(digamma(a.total_concentration))
        weighted = vector.total((a.concentration - b.concentration) * slopes)
        return weighted + lbeta(b.concentration) - lbeta(a.concentration)
