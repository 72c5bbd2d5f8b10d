"""Metrics that are means over everything seen: of values, of errors, of correct answers."""

from __future__ import annotations

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import float32
from thalweg.graph.likes import Collections, TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import control_dependencies
from thalweg.losses.matching import match, remove_squeezable_dimensions, squeeze_last_if_above
from thalweg.metrics.local import (
    Metric,
    accumulate,
    metric,
    metric_variable,
    published,
    ratio,
    spread,
)
from thalweg.ops.core import casting, choosing, filling, shaping
from thalweg.ops.math import arithmetic, compare, reduce, transcendental
from thalweg.public import public
from thalweg.variables.scope import variable_scope


@public("metrics.mean", "contrib.metrics.streaming_mean")
@metric()
def mean(
    values: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """The mean of all values seen, over all batches so far.

    Example:
        >>> x = tf.placeholder(tf.float32, [None])
        >>> value, update = tf.metrics.mean(x)
        >>> sess.run(tf.local_variables_initializer())
        >>> sess.run(update, {x: [1.0, 2.0]}), sess.run(update, {x: [6.0]})
        (np.float32(1.5), np.float32(3.0))
    """
    with variable_scope(name, "mean", [values, weights]):
        values = casting.cast(values, float32)
        total = metric_variable([], float32, name="total")
        count = metric_variable([], float32, name="count")
        values, amount = _weighed(values, weights)
        update_total = accumulate(total, reduce.reduce_sum(values))
        with control_dependencies([values]):
            update_count = accumulate(count, amount)
        value = ratio(total, count, "value")
        update = ratio(update_total, update_count, "update_op")
        return published(value, update, metrics_collections, updates_collections)


def _weighed(values: Tensor, weights: TensorLike | None) -> tuple[Tensor, Tensor]:
    """The weighted values, and the sum of the weights."""
    if weights is None:
        return values, casting.cast(shaping.size(values), float32)
    squeezed = squeeze_last_if_above(convert_to_tensor(weights), values, 1)
    full = spread(squeezed, values)
    return values * full, reduce.reduce_sum(full)


@public("metrics.mean_tensor", "contrib.metrics.streaming_mean_tensor")
@metric()
def mean_tensor(
    values: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """The (weighted) mean of all tensors seen, element by element."""
    with variable_scope(name, "mean", [values, weights]):
        values = casting.cast(values, float32)
        total = metric_variable(values.shape, float32, name="total_tensor")
        count = metric_variable(values.shape, float32, name="count_tensor")
        amounts = filling.ones_like(values)
        if weights is not None:
            squeezed = squeeze_last_if_above(convert_to_tensor(weights), values, 1)
            amounts = spread(squeezed, values)
            values = values * amounts
        update_total = accumulate(total, values)
        with control_dependencies([values]):
            update_count = accumulate(count, amounts)
        value = ratio(total, count, "value")
        update = ratio(update_total, update_count, "update_op")
        return published(value, update, metrics_collections, updates_collections)


@public("metrics.accuracy")
@metric()
def accuracy(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """How often predictions equal labels, over all batches so far.

    Example:
        >>> value, update = tf.metrics.accuracy([1, 2, 3, 4], [1, 2, 0, 0])
        >>> sess.run(tf.local_variables_initializer())
        >>> sess.run(update), sess.run(value)
        (np.float32(0.5), np.float32(0.5))
    """
    labels, predictions, weights = match(labels, predictions, weights)
    predictions = casting.cast(predictions, labels.dtype)
    correct = casting.cast(compare.equal(predictions, labels), float32)
    return mean(correct, weights, metrics_collections, updates_collections, name or "accuracy")


@public("metrics.mean_absolute_error")
@metric()
def mean_absolute_error(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """The mean of |predictions - labels|.

    Example:
        >>> value, update = tf.metrics.mean_absolute_error([1.0, 2.0], [2.0, 5.0])
        >>> sess.run(tf.local_variables_initializer())
        >>> sess.run(update)
        np.float32(2.0)
    """
    labels, predictions, weights = match(labels, predictions, weights)
    errors = arithmetic.absolute(predictions - labels)
    name = name or "mean_absolute_error"
    return mean(errors, weights, metrics_collections, updates_collections, name)


@public("metrics.mean_relative_error")
@metric(normalizer="what errors are divided by, of the same shape.")
def mean_relative_error(
    labels: TensorLike,
    predictions: TensorLike,
    normalizer: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """The mean of |predictions - labels| / normalizer, taken as 0 where that is 0."""
    labels, predictions, weights = match(labels, predictions, weights)
    predictions, normalizer = remove_squeezable_dimensions(predictions, normalizer)
    predictions.shape.assert_is_compatible_with(normalizer.shape)
    zeros = filling.zeros_like(labels)
    errors = arithmetic.absolute(labels - predictions) / normalizer
    relative = choosing.where(compare.equal(normalizer, zeros), zeros, errors)
    name = name or "mean_relative_error"
    return mean(relative, weights, metrics_collections, updates_collections, name)


@public("metrics.mean_squared_error")
@metric()
def mean_squared_error(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """The mean of (predictions - labels)²."""
    labels, predictions, weights = match(labels, predictions, weights)
    errors = arithmetic.squared_difference(labels, predictions)
    name = name or "mean_squared_error"
    return mean(errors, weights, metrics_collections, updates_collections, name)


@public("metrics.root_mean_squared_error")
@metric()
def root_mean_squared_error(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """The square root of the mean squared error.

    Example:
        >>> value, update = tf.metrics.root_mean_squared_error([1.0, 2.0], [4.0, 5.0])
        >>> sess.run(tf.local_variables_initializer())
        >>> sess.run(update)
        np.float32(3.0)
    """
    name = name or "root_mean_squared_error"
    squared, update = mean_squared_error(labels, predictions, weights, None, None, name)
    value, update = transcendental.sqrt(squared), transcendental.sqrt(update)
    return published(value, update, metrics_collections, updates_collections)


@public("metrics.mean_cosine_distance")
@metric(dim="the axis of the vectors.")
def mean_cosine_distance(
    labels: TensorLike,
    predictions: TensorLike,
    dim: int,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """1 - the mean of predictions · labels along a dimension; both have unit length."""
    labels, predictions, weights = match(labels, predictions, weights)
    products = reduce.reduce_sum(predictions * labels, [dim], keepdims=True)
    name = name or "mean_cosine_distance"
    likeness, update = mean(products, weights, None, None, name)
    return published(1 - likeness, 1 - update, metrics_collections, updates_collections)


@public("metrics.percentage_below", "metrics.percentage_less")
@metric(threshold="the bound.")
def percentage_below(
    values: TensorLike,
    threshold: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """The (weighted) share of values below a threshold."""
    below: Tensor = compare.less(values, threshold)
    name = name or "percentage_below_threshold"
    return mean(below, weights, metrics_collections, updates_collections, name)
