"""Distributions with one value: of numbers, and of vectors."""

from __future__ import annotations

from typing import Any

from thalweg.distributions.base import FULLY_REPARAMETERIZED, Distribution
from thalweg.distributions.divergence import RegisterKL
from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape
from thalweg.ops.arrays import joining
from thalweg.ops.core import broadcast, casting, filling, shaping
from thalweg.ops.math import reduce
from thalweg.public import public


class _Deterministic(Distribution):
    """A value that is certain; the last `_axes` axes of it are an event."""

    _axes = 0

    def __init__(
        self,
        loc: TensorLike,
        atol: TensorLike | None,
        rtol: TensorLike | None,
        parameters: dict[str, Any],
        name: str,
    ) -> None:
        with name_scope(name, values=[loc, atol, rtol]) as scope:
            self._loc = convert_to_tensor(loc, name="loc")
            kind = self._loc.dtype.base_dtype
            self._atol = convert_to_tensor(0 if atol is None else atol, kind, name="atol")
            self._rtol = convert_to_tensor(0 if rtol is None else rtol, kind, name="rtol")
            self._loc.shape.with_rank_at_least(self._axes)
        super().__init__(
            dtype=kind,
            reparameterization_type=FULLY_REPARAMETERIZED,
            validate_args=parameters["validate_args"],
            allow_nan_stats=parameters["allow_nan_stats"],
            parameters=parameters,
            graph_parents=[self._loc, self._atol, self._rtol],
            name=scope,
        )

    @property
    def loc(self) -> Tensor:
        """The value."""
        return self._loc

    @property
    def atol(self) -> Tensor:
        """How far off a value may be, absolutely."""
        return self._atol

    @property
    def rtol(self) -> Tensor:
        """How far off a value may be, as a part of it."""
        return self._rtol

    def _batch_shape(self) -> TensorShape:
        shape = self._loc.shape
        return shape if shape.rank is None else shape[: shape.rank - self._axes]

    def _event_shape(self) -> TensorShape:
        shape = self._loc.shape
        if shape.rank is None:
            return TensorShape([None] * self._axes)
        return shape[shape.rank - self._axes :]

    def _batch_shape_tensor(self) -> Tensor:
        return shaping.shape(self._loc)[: shaping.rank(self._loc) - self._axes]

    def _event_shape_tensor(self) -> Tensor:
        if not self._axes:
            return convert_to_tensor([], dtypes.int32)
        return shaping.shape(self._loc)[-self._axes :]

    def _sample_n(self, n: Tensor, seed: int | None) -> Tensor:
        sizes = joining.concat([shaping.reshape(n, [1]), shaping.shape(self._loc)], 0)
        return broadcast.broadcast_to(self._loc, sizes)

    def _slack(self) -> Tensor:
        return self._atol + self._rtol * abs(self._loc)

    def _hits(self, value: Tensor) -> Tensor:
        return abs(value - self._loc) <= self._slack()

    def _entropy(self) -> Tensor:
        return filling.zeros(self.batch_shape_tensor(), self.dtype)

    def _mean(self) -> Tensor:
        return self._loc

    def _variance(self) -> Tensor:
        return filling.zeros_like(self._loc)

    def _mode(self) -> Tensor:
        return self._loc


@public("contrib.distributions.Deterministic")
class Deterministic(_Deterministic):
    """The number `loc`, with probability 1

    Args:
        loc: the numbers.
        atol, rtol: what is at most atol + rtol |loc| off counts as `loc`.
        validate_args: whether the step checks parameters and values.
        allow_nan_stats: give NaN for statistics that are not defined, instead of raising.
        name: the scope of the nodes.
    """

    def __init__(
        self,
        loc: TensorLike,
        atol: TensorLike | None = None,
        rtol: TensorLike | None = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Deterministic",
    ) -> None:
        super().__init__(loc, atol, rtol, dict(locals()), name)

    def _prob(self, value: Tensor) -> Tensor:
        return casting.cast(self._hits(value), self.dtype)

    def _cdf(self, value: Tensor) -> Tensor:
        return casting.cast(value >= self._loc - self._slack(), self.dtype)


@public("contrib.distributions.VectorDeterministic")
class VectorDeterministic(_Deterministic):
    """The vector `loc`, with probability 1

    Args:
        loc: the vectors, [..., k].
        atol, rtol: what is at most atol + rtol |loc| off counts as `loc`.
        validate_args: whether the step checks parameters and values.
        allow_nan_stats: give NaN for statistics that are not defined, instead of raising.
        name: the scope of the nodes.
    """

    _axes = 1

    def __init__(
        self,
        loc: TensorLike,
        atol: TensorLike | None = None,
        rtol: TensorLike | None = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "VectorDeterministic",
    ) -> None:
        super().__init__(loc, atol, rtol, dict(locals()), name)

    def _prob(self, value: Tensor) -> Tensor:
        return casting.cast(reduce.reduce_all(self._hits(value), axis=-1), self.dtype)


@RegisterKL(_Deterministic, Distribution)
def kl_deterministic(a: _Deterministic, b: Distribution, name: str | None = None) -> Tensor:
    """-log b(loc)"""
    with name_scope(name, "kl_deterministic_distribution", [a.loc]):
        return -b.log_prob(a.loc)
