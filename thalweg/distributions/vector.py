"""Distributions whose samples are vectors: one parameter has the batch's axes, then the event's.

Also here: how often each of k classes comes up in a number of draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.distributions.base import Distribution, ReparameterizationType
from thalweg.distributions.parameters import after, is_count
from thalweg.graph import dtypes
from thalweg.graph.likes import DTypeLike
from thalweg.graph.node import Tensor
from thalweg.graph.shapes import TensorShape
from thalweg.ops.arrays import diagonal, joining, marking
from thalweg.ops.core import casting, checks, filling, shaping
from thalweg.ops.math import arithmetic, reduce
from thalweg.ops.math.special import lgamma
from thalweg.ops.random import random


class VectorDistribution(Distribution):
    """A distribution over vectors, shaped as `like`: [*batch, event]."""

    def __init__(
        self,
        like: Tensor,
        parts: list[Tensor],
        reparameterization_type: ReparameterizationType,
        parameters: Mapping[str, Any],
        name: str,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(
            dtype=parts[0].dtype if dtype is None else dtype,
            reparameterization_type=reparameterization_type,
            validate_args=parameters["validate_args"],
            allow_nan_stats=parameters["allow_nan_stats"],
            parameters=parameters,
            graph_parents=parts,
            name=name,
        )
        self._like = like

    def _batch_shape(self) -> TensorShape:
        return self._like.shape.with_rank_at_least(1)[:-1]

    def _batch_shape_tensor(self) -> Tensor:
        return shaping.shape(self._like)[:-1]

    def _event_shape(self) -> TensorShape:
        return self._like.shape.with_rank_at_least(1)[-1:]

    def _event_shape_tensor(self) -> Tensor:
        return shaping.shape(self._like)[-1:]

    def _sizes(self, n: Tensor) -> Tensor:
        """The shape of `n` samples of the batch."""
        return joining.concat(
            [shaping.reshape(n, [1]), self.batch_shape_tensor(), self.event_shape_tensor()], 0
        )


def column(x: Tensor) -> Tensor:
    """`x` with an axis of size 1 at the end."""
    return shaping.expand_dims(x, -1)


def total(x: Tensor) -> Tensor:
    """Sums over the event."""
    return reduce.reduce_sum(x, axis=-1)


def covariance(mean: Tensor, variance: Tensor, factor: Tensor) -> Tensor:
    """The matrices with `variance` on the diagonal and -factor meanᵢ meanⱼ elsewhere."""
    products = column(mean) * shaping.expand_dims(mean, -2)
    return diagonal.matrix_set_diag(-column(column(factor)) * products, variance)


def checked_counts(counts: Tensor, total_count: Tensor, validate_args: bool) -> Tensor:
    """Counts that are integers, not negative, and sum to the number of draws."""
    if not validate_args:
        return counts
    message = "counts must sum to `self.total_count`"
    right = checks.assert_equal(total_count, total(counts), message=message)
    return after([*is_count(counts, "counts"), right], counts)


def log_combinations(total_count: Tensor, counts: Tensor) -> Tensor:
    """log of how many orders of draws give `counts`."""
    return lgamma(total_count + 1) - total(lgamma(counts + 1))


def tallies(logits: Tensor, draws: Tensor, repeats: Any, dtype: Any, seed: int | None) -> Tensor:
    """[rows, repeats, k]: `draws` draws from each row of `logits` [rows, k], counted by class.

    Rows of fewer draws than the longest make as many, and the rest does not count.
    """
    longest = arithmetic.maximum(reduce.reduce_max(draws), 0)
    classes = shaping.shape(logits)[-1]
    found = random.multinomial(logits, longest * repeats, seed=seed)
    found = shaping.reshape(found, joining.stack([-1, repeats, longest]))
    counted = filling.sequence_mask(draws, longest, dtype=dtype)
    weights = column(shaping.expand_dims(counted, 1))
    return reduce.reduce_sum(marking.one_hot(found, classes, dtype=dtype) * weights, axis=-2)


def rows(x: Tensor) -> Tensor:
    """`x` as a matrix with its last axis as rows."""
    return shaping.reshape(x, joining.stack([-1, shaping.shape(x)[-1]]))


def as_draws(total_count: Tensor) -> Tensor:
    """Numbers of draws, as a vector of integers."""
    return shaping.reshape(casting.cast(total_count, dtypes.int32), [-1])
