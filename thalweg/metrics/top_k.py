"""Metrics over the k best-scored classes of each example, which may have several labels.

Labels are [..., labels] class numbers, dense or sparse (examples may have different numbers of
them); predictions are [..., classes] scores, or [..., k] class numbers in the `top_k` forms.
Labels and predictions of an example are sets: repeated numbers count once, but for the number of
dense labels that an average precision is relative to.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from thalweg.graph.composite import SparseTensor, SparseTensorValue
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import bool as boolean
from thalweg.graph.dtypes import float64, int32, int64
from thalweg.graph.likes import Collections, SparseLike, TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.metrics.local import (
    MEANINGS,
    RETURNS,
    Metric,
    accumulate,
    metric_variable,
    published,
    ratio,
    spread,
)
from thalweg.ops.arrays import scan, searching
from thalweg.ops.core import basic, casting, choosing, filling, shaping
from thalweg.ops.math import arithmetic, compare, division, reduce
from thalweg.ops.sparse import sparse
from thalweg.platform.docstrings import family
from thalweg.public import public

_ABSENT = np.iinfo(np.int64).min  # pads the labels of examples that have fewer than others

metric = family(
    {
        **MEANINGS,
        "labels": "int64 class numbers [..., true classes], dense or sparse.",
        "predictions": "scores [..., classes].",
        "predictions_idx": "int64 [..., k]: the classes that were predicted.",
        "k": "how many of the best-scored classes count.",
        "class_id": "a class to count alone; None: all.",
    },
    RETURNS,
)


class _Sets(NamedTuple):
    """Class numbers [..., n], and which of them are members: present, once each, of the class."""

    ids: Tensor
    member: Tensor

    def within(self, other: _Sets) -> Tensor:
        """Which members are also members of the other set."""
        same = compare.equal(shaping.expand_dims(self.ids, -1), shaping.expand_dims(other.ids, -2))
        found = reduce.reduce_any(
            compare.logical_and(same, shaping.expand_dims(other.member, -2)), -1
        )
        return compare.logical_and(self.member, found)

    def without(self, other: _Sets) -> Tensor:
        """Which members are no members of the other set."""
        return compare.logical_and(self.member, compare.logical_not(self.within(other)))


def _as_sets(ids: Tensor, class_id: int | None) -> _Sets:
    member = compare.logical_and(compare.not_equal(ids, _ABSENT), _first(ids))
    if class_id is not None:
        member = compare.logical_and(member, compare.equal(ids, class_id))
    return _Sets(ids, member)


def _first(ids: Tensor) -> Tensor:
    """Whether each number is the first of its value along the last axis."""
    same = compare.equal(shaping.expand_dims(ids, -1), shaping.expand_dims(ids, -2))
    order = scan.cumsum(filling.ones_like(ids), axis=-1)
    earlier = compare.less(shaping.expand_dims(order, -2), shaping.expand_dims(order, -1))
    return compare.logical_not(reduce.reduce_any(compare.logical_and(same, earlier), -1))


def _label_ids(labels: TensorLike | SparseLike, predictions: Tensor) -> Tensor:
    """Labels as a dense int64 tensor of the rank of the predictions, padded where sparse."""
    if predictions.shape.rank in (0, 1):
        raise ValueError(
            "predictions_idx has a row of classes for each example; its shape is "
            f"{predictions.shape}"
        )
    if isinstance(labels, SparseTensor | SparseTensorValue):
        given = SparseTensor.from_value(labels)
        values = casting.cast(given.values, int64)
        dense = SparseTensor(given.indices, values, given.dense_shape)
        ids = sparse.sparse_tensor_to_dense(dense, _ABSENT, validate_indices=False)
    else:
        ids = casting.cast(convert_to_tensor(labels), int64)
    if ids.shape.rank is not None and ids.shape.rank + 1 == predictions.shape.rank:
        return shaping.expand_dims(ids, -1)
    return ids


def _name(metric: str, k: int | None, class_id: int | None = None) -> str:
    stem = f"{metric}_at_{k}" if k is not None else f"{metric}_at_k"
    return stem if class_id is None else f"{stem}_class{class_id}"


def _streaming_count(cases: Tensor, weights: TensorLike | None, name: str) -> Metric:
    """The (weighted) number of cases seen so far, summed over each example's last axis."""
    with name_scope(None, name, [cases, weights]) as scope:
        amounts = reduce.reduce_sum(casting.cast(cases, float64), -1)
        if weights is not None:
            amounts = amounts * spread(weights, amounts, float64)
        total = metric_variable([], float64, name=scope)
        return basic.identity(total), accumulate(total, reduce.reduce_sum(amounts))


@public("metrics.precision_at_top_k")
@metric()
def precision_at_top_k(
    labels: TensorLike | SparseLike,
    predictions_idx: TensorLike,
    k: int | None = None,
    class_id: int | None = None,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """The share of predicted classes that are labels; of one class, if `class_id` is given."""
    values = [labels, predictions_idx, weights]
    with name_scope(name, _name("precision", k, class_id), values) as scope:
        predictions = casting.cast(predictions_idx, int64)
        label_sets = _as_sets(_label_ids(labels, predictions), class_id)
        chosen = _as_sets(predictions, class_id)
        right, update_right = _streaming_count(
            chosen.within(label_sets), weights, _name("true_positive", k, class_id)
        )
        wrong, update_wrong = _streaming_count(
            chosen.without(label_sets), weights, _name("false_positive", k, class_id)
        )
        value = division.divide(right, arithmetic.add(right, wrong), name=scope)
        update = division.divide(update_right, update_right + update_wrong, name="update")
        return published(value, update, metrics_collections, updates_collections)


@public("metrics.precision_at_k", "metrics.sparse_precision_at_k")
@metric()
def precision_at_k(
    labels: TensorLike | SparseLike,
    predictions: TensorLike,
    k: int,
    class_id: int | None = None,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """The share of the k best-scored classes that are labels."""
    values = [predictions, labels, weights]
    with name_scope(name, _name("precision", k, class_id), values) as scope:
        best = searching.top_k(predictions, k)[1]
        collections = metrics_collections, updates_collections
        return precision_at_top_k(labels, best, k, class_id, weights, *collections, scope)


@public("metrics.recall_at_top_k")
@metric()
def recall_at_top_k(
    labels: TensorLike | SparseLike,
    predictions_idx: TensorLike,
    k: int | None = None,
    class_id: int | None = None,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """The share of labels that are among the predicted classes."""
    values = [labels, predictions_idx, weights]
    with name_scope(name, _name("recall", k, class_id), values) as scope:
        predictions = casting.cast(predictions_idx, int64)
        label_sets = _as_sets(_label_ids(labels, predictions), class_id)
        chosen = _as_sets(predictions, class_id)
        found, update_found = _streaming_count(
            chosen.within(label_sets), weights, _name("true_positive", k, class_id)
        )
        missed, update_missed = _streaming_count(
            label_sets.without(chosen), weights, _name("false_negative", k, class_id)
        )
        value = division.divide(found, arithmetic.add(found, missed), name=scope)
        update = division.divide(update_found, update_found + update_missed, name="update")
        return published(value, update, metrics_collections, updates_collections)


@public("metrics.recall_at_k")
@metric()
def recall_at_k(
    labels: TensorLike | SparseLike,
    predictions: TensorLike,
    k: int,
    class_id: int | None = None,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """The share of labels that are among the k best-scored classes."""
    values = [predictions, labels, weights]
    with name_scope(name, _name("recall", k, class_id), values) as scope:
        best = searching.top_k(predictions, k)[1]
        collections = metrics_collections, updates_collections
        return recall_at_top_k(labels, best, k, class_id, weights, *collections, scope)


@public("metrics.average_precision_at_k", "metrics.sparse_average_precision_at_k")
@metric()
def average_precision_at_k(
    labels: TensorLike | SparseLike,
    predictions: TensorLike,
    k: int,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """The mean over examples of the average precision of the k best-scored classes."""
    if not k > 0:
        raise ValueError(f"Invalid k={k}: it must be positive.")
    with name_scope(name, _name("average_precision", k), [predictions, labels, weights]) as scope:
        found: Tensor = searching.top_k(predictions, k)[1]
        best = casting.cast(found, int64)
        ids = _known_classes(_label_ids(labels, best), shaping.shape(predictions)[-1])
        of_sets = isinstance(labels, SparseTensor | SparseTensorValue)
        precisions = _average_precision(ids, best, k, of_sets)
        return _mean_precision(precisions, weights, metrics_collections, updates_collections, scope)


@metric()
def average_precision_at_top_k(
    labels: TensorLike | SparseLike,
    predictions_idx: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """As `average_precision_at_k`, given the classes that are scored best, best first."""
    best = casting.cast(convert_to_tensor(predictions_idx), int64)
    k = None if best.shape.rank in (None, 0) else best.shape[-1].value
    if k is None:
        raise ValueError("The last dimension of predictions_idx must be set.")
    with name_scope(name, "average_precision_at_top_k", [best, labels, weights]) as scope:
        of_sets = isinstance(labels, SparseTensor | SparseTensorValue)
        precisions = _average_precision(_label_ids(labels, best), best, k, of_sets)
        return _mean_precision(precisions, weights, metrics_collections, updates_collections, scope)


def _mean_precision(
    precisions: Tensor,
    weights: TensorLike | None,
    metrics: Collections,
    updates: Collections,
    scope: str,
) -> Metric:
    """The weighted mean of average precisions, over all examples so far."""
    amounts = filling.ones_like(precisions)
    if weights is not None:
        amounts = spread(weights, precisions, float64)
    most = metric_variable([], float64, name="max")
    total = metric_variable([], float64, name="total")
    update_most = accumulate(most, reduce.reduce_sum(amounts))
    update_total = accumulate(total, reduce.reduce_sum(precisions * amounts))
    value = ratio(total, most, name=scope)
    update = ratio(update_total, update_most, name="update")
    return published(value, update, metrics, updates)


def _average_precision(ids: Tensor, best: Tensor, k: int, of_sets: bool) -> Tensor:
    """For each example, the sum of the precisions at its hits / the most hits there can be."""
    labels = _as_sets(ids, None)
    everything = _Sets(best, filling.ones_like(best, boolean))
    hits = casting.cast(everything.within(labels), float64)
    ranks = scan.cumsum(filling.ones_like(hits), axis=-1)
    precisions = scan.cumsum(hits, axis=-1) / ranks * hits
    counted = labels.member if of_sets else compare.greater_equal(ids, 0)
    relevant = reduce.reduce_sum(casting.cast(counted, int32), -1)
    possible = casting.cast(arithmetic.minimum(relevant, k), float64)
    return division.divide(reduce.reduce_sum(precisions, -1), possible)


def _known_classes(ids: Tensor, count: Tensor) -> Tensor:
    """Numbers of classes that are not scored are all one, -1."""
    outside = compare.greater_equal(ids, casting.cast(count, int64))
    return choosing.where(outside, filling.fill(shaping.shape(ids), np.int64(-1)), ids)
