"""The Laplace distribution."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from thalweg.distributions.base import FULLY_REPARAMETERIZED
from thalweg.distributions.parameters import after, choose, floats
from thalweg.distributions.scalar import ScalarDistribution
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.core import checks
from thalweg.ops.math import arithmetic, transcendental
from thalweg.ops.random import random
from thalweg.public import public


@public("distributions.Laplace")
class Laplace(ScalarDistribution):
    """exp(-|x - loc| / scale) / (2 scale)"""

    sized_parameters: ClassVar[tuple[str, ...]] = ("loc", "scale")

    def __init__(
        self,
        loc: TensorLike,
        scale: TensorLike,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Laplace",
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
        """The mean distance from the mean."""
        return self._scale

    def _sample_n(self, n: Tensor, seed: int | None) -> Tensor:
        # In the open interval (-1, 1): the logarithm of 1 - |u| must stay finite.
        kind = self.dtype.as_numpy_dtype
        drawn = random.random_uniform(
            self._sizes(n),
            minval=np.nextafter(kind(-1), kind(0)),
            maxval=1.0,
            dtype=self.dtype,
            seed=seed,
        )
        size = transcendental.log1p(-arithmetic.absolute(drawn))
        return self._loc - self._scale * arithmetic.sign(drawn) * size

    def _standard(self, x: Tensor) -> Tensor:
        return (x - self._loc) / self._scale

    def _log_prob(self, value: Tensor) -> Tensor:
        distance = arithmetic.absolute(self._standard(value))
        return -distance - math.log(2) - transcendental.log(self._scale)

    def _log_cdf(self, value: Tensor) -> Tensor:
        return _log_cdf(self._standard(value))

    def _cdf(self, value: Tensor) -> Tensor:
        z = self._standard(value)
        tail = 0.5 * transcendental.exp(-arithmetic.absolute(z))
        return choose(z > 0, 1 - tail, tail)

    def _log_survival_function(self, value: Tensor) -> Tensor:
        return _log_cdf(-self._standard(value))

    def _quantile(self, value: Tensor) -> Tensor:
        distance = transcendental.log(2 * arithmetic.minimum(value, 1 - value))
        return self._loc - self._scale * arithmetic.sign(value - 0.5) * distance

    def _entropy(self) -> Tensor:
        return self._spread(math.log(2) + 1 + transcendental.log(self._scale))

    def _mean(self) -> Tensor:
        return self._spread(self._loc)

    def _stddev(self) -> Tensor:
        return self._spread(math.sqrt(2) * self._scale)

    def _mode(self) -> Tensor:
        return self._mean()


def _log_cdf(z: Tensor) -> Tensor:
    """log P(X <= z) of the standard distribution, exact in both tails."""
    right = transcendental.log1p(-0.5 * transcendental.exp(-arithmetic.absolute(z)))
    return choose(z > 0, right, z - math.log(2))
