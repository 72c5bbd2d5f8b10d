"""The confusion matrix of class numbers, and the metrics made of it."""

from __future__ import annotations

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import as_dtype, float32, float64, int32, int64
from thalweg.graph.likes import Collections, DTypeLike, TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.losses.matching import match, remove_squeezable_dimensions
from thalweg.metrics.local import (
    Metric,
    accumulate,
    metric,
    metric_variable,
    published,
    ratio,
    spread,
)
from thalweg.ops.arrays import diagonal, indexing, joining
from thalweg.ops.core import basic, casting, checks, choosing, filling, shaping
from thalweg.ops.math import arithmetic, compare, division, reduce
from thalweg.ops.state import scatter
from thalweg.public import public
from thalweg.variables.scope import variable_scope


@public("confusion_matrix", "math.confusion_matrix", "contrib.metrics.confusion_matrix")
def confusion_matrix(
    labels: TensorLike,
    predictions: TensorLike,
    num_classes: TensorLike | None = None,
    dtype: DTypeLike = int32,
    name: str | None = None,
    weights: TensorLike | None = None,
) -> Tensor:
    """m[i, j] = the (weighted) number of examples of class i that were predicted as class j."""
    values = [predictions, labels, num_classes, weights]
    with name_scope(name, "confusion_matrix", values):
        labels, predictions = remove_squeezable_dimensions(labels, predictions)
        if not labels.shape.is_compatible_with(predictions.shape):
            raise ValueError(
                f"The shapes of labels {labels.shape} and predictions {predictions.shape} must be "
                "equal"
            )
        labels = _non_negative(casting.cast(labels, int64), "labels")
        predictions = _non_negative(casting.cast(predictions, int64), "predictions")
        classes = _class_count(labels, predictions, num_classes)
        if num_classes is not None:
            labels = _below(labels, classes, "labels")
            predictions = _below(predictions, classes, "predictions")
        amounts = _amounts(predictions, weights, dtype)
        places = joining.stack([labels, predictions], axis=-1)
        return indexing.scatter_nd(places, amounts, joining.stack([classes, classes]))


def _amounts(predictions: Tensor, weights: TensorLike | None, dtype: DTypeLike) -> Tensor:
    if weights is None:
        return filling.ones_like(predictions, as_dtype(dtype))
    weights = convert_to_tensor(weights)
    predictions.shape.assert_is_compatible_with(weights.shape)
    return casting.cast(weights, dtype)


def _class_count(labels: Tensor, predictions: Tensor, num_classes: TensorLike | None) -> Tensor:
    if num_classes is not None:
        return casting.cast(num_classes, int64)
    largest = arithmetic.maximum(reduce.reduce_max(predictions), reduce.reduce_max(labels))
    return largest + 1


def _non_negative(classes: Tensor, what: str) -> Tensor:
    check = checks.assert_non_negative(classes, message=f"`{what}` contains negative values")
    return basic.with_dependencies([check], classes)


def _below(classes: Tensor, limit: Tensor, what: str) -> Tensor:
    check = checks.assert_less(classes, limit, message=f"`{what}` out of bound")
    return basic.with_dependencies([check], classes)


@public("metrics.mean_iou")
@metric()
def mean_iou(
    labels: TensorLike,
    predictions: TensorLike,
    num_classes: int,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """The mean over classes seen of intersection / union; the update gives the matrix."""
    with variable_scope(name, "mean_iou", [predictions, labels, weights]):
        convert_to_tensor(predictions).shape.assert_is_compatible_with(
            convert_to_tensor(labels).shape
        )
        matrix, update = streaming_confusion_matrix(labels, predictions, num_classes, weights)
        return published(_mean_of_seen(matrix), update, metrics_collections, updates_collections)


def streaming_confusion_matrix(
    labels: TensorLike, predictions: TensorLike, num_classes: int, weights: TensorLike | None
) -> Metric:
    """The confusion matrix of all updates, and the update."""
    total = metric_variable([num_classes, num_classes], float64, name="total_confusion_matrix")
    labels, predictions = _flat(labels), _flat(predictions)
    weights = None if weights is None else _flat(weights)
    current = confusion_matrix(labels, predictions, num_classes, weights=weights, dtype=float64)
    return basic.identity(total), accumulate(total, current)


def _flat(values: TensorLike) -> Tensor:
    return shaping.reshape(values, [-1])


def _mean_of_seen(matrix: TensorLike) -> Tensor:
    ratios, union = intersections_over_unions(matrix)
    seen = reduce.reduce_sum(casting.cast(compare.not_equal(union, 0), float32))
    return division.div_no_nan(reduce.reduce_sum(ratios, name="mean_iou"), seen)


def intersections_over_unions(matrix: TensorLike) -> tuple[Tensor, Tensor]:
    """For each class intersection / union, 0 where it never occurred, and the union."""
    rows = casting.cast(reduce.reduce_sum(matrix, 0), float32)
    columns = casting.cast(reduce.reduce_sum(matrix, 1), float32)
    hits = casting.cast(diagonal.diag_part(matrix), float32)
    union = rows + columns - hits
    above = choosing.where(compare.greater(union, 0), union, filling.ones_like(union))
    return hits / above, union


@public("metrics.mean_per_class_accuracy")
@metric()
def mean_per_class_accuracy(
    labels: TensorLike,
    predictions: TensorLike,
    num_classes: int,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """The mean over classes of the share of examples of a class that were predicted right.

    The update gives that share for each class.
    """
    with variable_scope(name, "mean_accuracy", [predictions, labels, weights]):
        labels, predictions, weights = match(casting.cast(labels, int64), predictions, weights)
        total = metric_variable([num_classes], float32, name="total")
        count = metric_variable([num_classes], float32, name="count")
        amounts = _flat(filling.ones_like(labels, float32))
        if weights is not None:
            amounts = _flat(spread(weights, labels))
        labels, predictions = _flat(labels), _flat(predictions)
        right = compare.equal(labels, casting.cast(predictions, int64))
        update_total = scatter.scatter_add(total, labels, amounts)
        right_amounts = amounts * casting.cast(right, float32)
        update_count = scatter.scatter_add(count, labels, right_amounts)
        value = reduce.reduce_mean(ratio(count, total), name="mean_accuracy")
        update = ratio(update_count, update_total, name="update_op")
        return published(value, update, metrics_collections, updates_collections)
