"""The uniform distribution."""

from __future__ import annotations

import math
from typing import ClassVar

from thalweg.distributions.base import FULLY_REPARAMETERIZED
from thalweg.distributions.parameters import after, choose, floats
from thalweg.distributions.scalar import ScalarDistribution
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.core import checks, filling
from thalweg.ops.math import arithmetic, compare, transcendental
from thalweg.ops.random import random
from thalweg.public import public


@public("distributions.Uniform")
class Uniform(ScalarDistribution):
    """1 / (high - low) for low <= x < high"""

    sized_parameters: ClassVar[tuple[str, ...]] = ("low", "high")

    def __init__(
        self,
        low: TensorLike = 0.0,
        high: TensorLike = 1.0,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Uniform",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[low, high]) as scope:
            bottom, top = floats(low, high)
            message = "uniform not defined when low >= high."
            assertions = [checks.assert_less(bottom, top, message=message)] if validate_args else []
            self._low = after(assertions, bottom, name="low")
            self._high = after(assertions, top, name="high")
            parts = [self._low, self._high]
            super().__init__(parts, FULLY_REPARAMETERIZED, parameters, scope)

    @property
    def low(self) -> Tensor:
        """The least value."""
        return self._low

    @property
    def high(self) -> Tensor:
        """The end of the values."""
        return self._high

    def range(self, name: str = "range") -> Tensor:
        """`high - low`."""
        with self._scope(name):
            return self._high - self._low

    def _sample_n(self, n: Tensor, seed: int | None) -> Tensor:
        drawn = random.random_uniform(self._sizes(n), dtype=self.dtype, seed=seed)
        return self._low + self.range() * drawn

    def _prob(self, value: Tensor) -> Tensor:
        outside = compare.logical_or(value < self._low, value >= self._high)
        density = choose(outside, filling.zeros_like(value), 1 / self.range())
        return choose(compare.is_nan(value), value, density)

    def _cdf(self, value: Tensor) -> Tensor:
        return arithmetic.clip_by_value((value - self._low) / self.range(), 0.0, 1.0)

    def _quantile(self, value: Tensor) -> Tensor:
        return self._low + value * self.range()

    def _entropy(self) -> Tensor:
        return transcendental.log(self.range())

    def _mean(self) -> Tensor:
        return (self._low + self._high) / 2

    def _variance(self) -> Tensor:
        return arithmetic.square(self.range()) / 12

    def _stddev(self) -> Tensor:
        return self.range() / math.sqrt(12)
