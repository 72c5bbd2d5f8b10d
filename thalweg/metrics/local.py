"""What all metrics share: local variables that accumulate, weights that spread over values.

A metric is a pair: a tensor that reads the accumulated value, and one that updates it with the
current step's values and gives the result.
"""

from __future__ import annotations

from typing import Final

from thalweg.graph.collections import GraphKeys, add_to_collections
from thalweg.graph.dtypes import float32
from thalweg.graph.likes import Collections, DTypeLike, ShapeLike, TensorLike
from thalweg.graph.node import Tensor
from thalweg.losses.matching import assert_broadcastable, broadcast_weights
from thalweg.ops.core import basic, casting, filling
from thalweg.ops.math import arithmetic, division, reduce
from thalweg.ops.state import state
from thalweg.platform.docstrings import family
from thalweg.variables.variable import Variable

#: The value of a metric and what updates it.
Metric = tuple[Tensor, Tensor]

MEANINGS: Final = {
    "labels": "what is true.",
    "predictions": "what was predicted, of the same shape.",
    "values": "a tensor.",
    "thresholds": "a list of numbers; predictions above one count as true.",
    "num_thresholds": "how many thresholds are tried.",
    "num_classes": "how many classes there are.",
    "weights": "what each element counts; None means 1.",
    "metrics_collections": "collections that the value joins.",
    "updates_collections": "collections that the update joins.",
    "name": "the scope of the counters, which are local variables.",
}
RETURNS: Final = "(value, update): the metric over all batches so far, and what counts a batch."

metric = family(MEANINGS, RETURNS)


def metric_variable(
    shape: ShapeLike, dtype: DTypeLike, validate_shape: bool = True, name: str | None = None
) -> Variable:
    """A local variable of zeros that a metric accumulates into."""
    return Variable(
        lambda: filling.zeros(shape, dtype),
        trainable=False,
        collections=[GraphKeys.LOCAL_VARIABLES, GraphKeys.METRIC_VARIABLES],
        validate_shape=validate_shape,
        name=name,
        dtype=dtype,
    )


def published(
    value: Tensor,
    update: Tensor,
    metrics_collections: Collections,
    updates_collections: Collections,
) -> Metric:
    """The pair, with its parts added to the collections asked for."""
    if metrics_collections:
        add_to_collections(metrics_collections, value)
    if updates_collections:
        add_to_collections(updates_collections, update)
    return value, update


def spread(weights: TensorLike, values: Tensor, dtype: DTypeLike = float32) -> Tensor:
    """Weights of the shape of `values`: a scalar, or sizes that are 1 or those of the values."""
    weights = casting.cast(weights, dtype)
    rank, wanted = weights.shape.rank, values.shape.rank
    if rank and wanted is not None and rank != wanted:
        raise ValueError(
            f"weights can not be broadcast to values: weights have rank {rank}, values {wanted}"
        )
    assert_broadcastable(weights.shape, values.shape)
    return broadcast_weights(weights, values)


def ratio(total: TensorLike, count: TensorLike, name: str | None = None) -> Tensor:
    """total / count, and 0 where nothing was counted."""
    return division.div_no_nan(total, arithmetic.maximum(count, 0), name=name)


def accumulate(variable: Variable, amount: Tensor) -> Tensor:
    """Add to a metric's variable; the result reads the sum."""
    return state.assign_add(variable, amount)


def count_condition(
    values: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
) -> Metric:
    """The (weighted) number of true values seen so far, kept in the variable `count`."""
    count = metric_variable([], float32, name="count")
    amounts = casting.cast(values, float32)
    if weights is not None:
        amounts = amounts * spread(weights, amounts)
    value = basic.identity(count)
    update = accumulate(count, reduce.reduce_sum(amounts))
    return published(value, update, metrics_collections, updates_collections)
