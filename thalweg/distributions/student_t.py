"""Student's t-distribution."""

from __future__ import annotations

import math
from typing import ClassVar

from thalweg.distributions.base import FULLY_REPARAMETERIZED
from thalweg.distributions.parameters import after, broadcast_all, choose, defined, floats, new_seed
from thalweg.distributions.scalar import ScalarDistribution
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.core import checks
from thalweg.ops.math import arithmetic, transcendental
from thalweg.ops.math.special import betainc, digamma, lgamma
from thalweg.ops.random import random, random_parametric
from thalweg.public import public


@public("distributions.StudentT")
class StudentT(ScalarDistribution):
    """(1 + y² / df)^(-(df + 1) / 2) / Z with y = (x - loc) / scale"""

    sized_parameters: ClassVar[tuple[str, ...]] = ("df", "loc", "scale")

    def __init__(
        self,
        df: TensorLike,
        loc: TensorLike,
        scale: TensorLike,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "StudentT",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[df, loc, scale]) as scope:
            freedom, centre, width = floats(df, loc, scale)
            assertions = [checks.assert_positive(freedom)] if validate_args else []
            self._df = after(assertions, freedom, name="df")
            self._loc = after(assertions, centre, name="loc")
            self._scale = after(assertions, width, name="scale")
            parts = [self._df, self._loc, self._scale]
            super().__init__(parts, FULLY_REPARAMETERIZED, parameters, scope)

    @property
    def df(self) -> Tensor:
        """The degrees of freedom."""
        return self._df

    @property
    def loc(self) -> Tensor:
        """The centre."""
        return self._loc

    @property
    def scale(self) -> Tensor:
        """The factor of the standard distribution; its sign does not matter to densities."""
        return self._scale

    def _sample_n(self, n: Tensor, seed: int | None) -> Tensor:
        normal = random.random_normal(self._sizes(n), dtype=self.dtype, seed=seed)
        freedom = self._spread(self._df)
        gamma = random_parametric.random_gamma(
            [n], 0.5 * freedom, 0.5, dtype=self.dtype, seed=new_seed(seed, "student_t")
        )
        return normal * transcendental.rsqrt(gamma / freedom) * self._scale + self._loc

    def _standard(self, x: Tensor) -> Tensor:
        return (x - self._loc) / self._scale

    def _log_prob(self, value: Tensor) -> Tensor:
        squares = arithmetic.square(self._standard(value)) / self._df
        return -0.5 * (self._df + 1) * transcendental.log1p(squares) - self._log_normalization()

    def _log_normalization(self) -> Tensor:
        return (
            transcendental.log(arithmetic.absolute(self._scale))
            + 0.5 * transcendental.log(self._df * math.pi)
            + lgamma(0.5 * self._df)
            - lgamma(0.5 * (self._df + 1))
        )

    def _cdf(self, value: Tensor) -> Tensor:
        y = (value - self._loc) / arithmetic.absolute(self._scale)
        df, x = broadcast_all(self._df, self._df / (arithmetic.square(y) + self._df))
        tail = 0.5 * betainc(0.5 * df, 0.5, x)
        return choose(y < 0, tail, 1 - tail)

    def _entropy(self) -> Tensor:
        half = 0.5 * (self._df + 1)
        spread = half * (digamma(half) - digamma(0.5 * self._df))
        return self._spread(self._log_normalization() + spread)

    def _mean(self) -> Tensor:
        message = "mean not defined for components of df <= 1"
        mean = self._spread(self._loc)
        return defined(mean, self._spread(self._df) > 1, self.allow_nan_stats, message)

    def _variance(self) -> Tensor:
        freedom = self._spread(self._df)
        # For df <= 2 the divisor must not spoil gradients; what it gives there is not used.
        finite = freedom / choose(freedom > 2, freedom - 2, 1.0)
        factor = choose(freedom > 2, finite, math.inf)
        variance = self._spread(arithmetic.square(self._scale)) * factor
        message = "variance not defined for components of df <= 1"
        return defined(variance, freedom > 1, self.allow_nan_stats, message)

    def _mode(self) -> Tensor:
        return self._spread(self._loc)
