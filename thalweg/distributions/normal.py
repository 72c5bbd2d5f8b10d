"""The normal distribution."""

from __future__ import annotations

from typing import ClassVar

from thalweg.distributions.base import FULLY_REPARAMETERIZED
from thalweg.distributions.divergence import RegisterKL
from thalweg.distributions.gaussian import LOG_SQRT_TWO_PI, log_ndtr, ndtr, ndtri
from thalweg.distributions.parameters import after, floats
from thalweg.distributions.scalar import ScalarDistribution
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.core import checks
from thalweg.ops.math import arithmetic, transcendental
from thalweg.ops.random import random
from thalweg.public import public


@public("distributions.Normal")
class Normal(ScalarDistribution):
    """The normal distribution: exp(-((x - loc) / scale)² / 2) / (scale √(2π)).

    Args:
        loc: the means.
        scale: the standard deviations; the shapes of both broadcast.
        validate_args: check in the step that `scale` is positive.
        allow_nan_stats: give NaN for statistics that are not defined, instead of raising.
        name: the scope of the nodes.

    Example:
        >>> normal = tf.distributions.Normal(loc=0.0, scale=2.0)
        >>> sess.run([normal.stddev(), normal.cdf(0.0)])
        [np.float32(2.0), np.float32(0.5)]
    """

    sized_parameters: ClassVar[tuple[str, ...]] = ("loc", "scale")

    def __init__(
        self,
        loc: TensorLike,
        scale: TensorLike,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Normal",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[loc, scale]) as scope:
            centre, width = floats(loc, scale)
            assertions = [checks.assert_positive(width)] if validate_args else []
            self._loc = after(assertions, centre, name="loc")
            self._scale = after(assertions, width, name="scale")
            parts = [self._loc, self._scale]
            super().__init__(parts, FULLY_REPARAMETERIZED, parameters, scope)

    @property
    def loc(self) -> Tensor:
        """The mean."""
        return self._loc

    @property
    def scale(self) -> Tensor:
        """The standard deviation."""
        return self._scale

    def _sample_n(self, n: Tensor, seed: int | None) -> Tensor:
        drawn = random.random_normal(self._sizes(n), dtype=self.dtype, seed=seed)
        return drawn * self._scale + self._loc

    def _standard(self, x: Tensor) -> Tensor:
        return (x - self._loc) / self._scale

    def _log_prob(self, value: Tensor) -> Tensor:
        return -0.5 * arithmetic.square(self._standard(value)) - self._log_normalization()

    def _log_normalization(self) -> Tensor:
        return LOG_SQRT_TWO_PI + transcendental.log(self._scale)

    def _log_cdf(self, value: Tensor) -> Tensor:
        return log_ndtr(self._standard(value))

    def _cdf(self, value: Tensor) -> Tensor:
        return ndtr(self._standard(value))

    def _log_survival_function(self, value: Tensor) -> Tensor:
        return log_ndtr(-self._standard(value))

    def _survival_function(self, value: Tensor) -> Tensor:
        return ndtr(-self._standard(value))

    def _quantile(self, value: Tensor) -> Tensor:
        return ndtri(value) * self._scale + self._loc

    def _entropy(self) -> Tensor:
        return self._spread(0.5 + self._log_normalization())

    def _mean(self) -> Tensor:
        return self._spread(self._loc)

    def _stddev(self) -> Tensor:
        return self._spread(self._scale)

    def _mode(self) -> Tensor:
        return self._mean()


@RegisterKL(Normal, Normal)
def kl_normal_normal(a: Normal, b: Normal, name: str | None = None) -> Tensor:
    """(Δ² / σb² + r - 1 - log r) / 2, with r = σa² / σb²"""
    with name_scope(name, "kl_normal_normal", [a.loc, b.loc]):
        ratio = arithmetic.square(a.scale / b.scale)
        distance = arithmetic.square((a.loc - b.loc) / b.scale)
        return 0.5 * (distance + ratio - 1 - transcendental.log(ratio))
