"""Metrics over yes/no predictions: the four counts, and precision and recall made of them."""

from __future__ import annotations

from collections.abc import Callable

from thalweg.graph.dtypes import bool as boolean
from thalweg.graph.likes import Collections, TensorLike
from thalweg.graph.node import Tensor
from thalweg.losses.matching import match
from thalweg.metrics.local import Metric, count_condition, metric, published, ratio
from thalweg.ops.core import casting
from thalweg.ops.math import compare
from thalweg.public import public
from thalweg.variables.scope import variable_scope

Condition = Callable[[Tensor, Tensor], Tensor]


def _count(
    name: str | None,
    default_name: str,
    condition: Condition,
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None,
    collections: tuple[Collections, Collections],
) -> Metric:
    """Count where `condition` holds of (labels, predictions) taken as booleans."""
    with variable_scope(name, default_name, [predictions, labels, weights]):
        predictions = casting.cast(predictions, boolean)
        labels = casting.cast(labels, boolean)
        labels, predictions, weights = match(labels, predictions, weights)
        return count_condition(condition(labels, predictions), weights, *collections)


@public("metrics.true_positives")
@metric()
def true_positives(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """How many positives were predicted so."""
    collections = metrics_collections, updates_collections

    def condition(label: Tensor, prediction: Tensor) -> Tensor:
        return compare.logical_and(label, prediction)

    return _count(name, "true_positives", condition, labels, predictions, weights, collections)


@public("metrics.true_negatives")
@metric()
def true_negatives(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """How many negatives were predicted so."""
    collections = metrics_collections, updates_collections

    def condition(label: Tensor, prediction: Tensor) -> Tensor:
        return compare.logical_not(compare.logical_or(label, prediction))

    return _count(name, "true_negatives", condition, labels, predictions, weights, collections)


@public("metrics.false_positives")
@metric()
def false_positives(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """How many negatives were predicted as positives."""
    collections = metrics_collections, updates_collections

    def condition(label: Tensor, prediction: Tensor) -> Tensor:
        return compare.logical_and(compare.logical_not(label), prediction)

    return _count(name, "false_positives", condition, labels, predictions, weights, collections)


@public("metrics.false_negatives")
@metric()
def false_negatives(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """How many positives were predicted as negatives."""
    collections = metrics_collections, updates_collections

    def condition(label: Tensor, prediction: Tensor) -> Tensor:
        return compare.logical_and(label, compare.logical_not(prediction))

    return _count(name, "false_negatives", condition, labels, predictions, weights, collections)


@public("metrics.precision")
@metric()
def precision(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """The share of predicted positives that are positive; 0 if none was predicted.

    Example:
        >>> value, update = tf.metrics.precision([1, 0, 1, 1], [1, 1, 0, 0])
        >>> sess.run(tf.local_variables_initializer())
        >>> sess.run(update)
        np.float32(0.5)
    """
    with variable_scope(name, "precision", [predictions, labels, weights]):
        right, update_right = true_positives(labels, predictions, weights)
        wrong, update_wrong = false_positives(labels, predictions, weights)
        value = ratio(right, right + wrong, "value")
        update = ratio(update_right, update_right + update_wrong, "update_op")
        return published(value, update, metrics_collections, updates_collections)


@public("metrics.recall")
@metric()
def recall(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """The share of positives that were predicted so; 0 if there was none.

    Example:
        >>> value, update = tf.metrics.recall([1, 0, 1, 1, 1], [1, 1, 0, 0, 0])
        >>> sess.run(tf.local_variables_initializer())
        >>> sess.run(update)
        np.float32(0.25)
    """
    with variable_scope(name, "recall", [predictions, labels, weights]):
        found, update_found = true_positives(labels, predictions, weights)
        missed, update_missed = false_negatives(labels, predictions, weights)
        value = ratio(found, found + missed, "value")
        update = ratio(update_found, update_found + update_missed, "update_op")
        return published(value, update, metrics_collections, updates_collections)
