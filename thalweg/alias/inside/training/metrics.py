"""Private helpers of `tensorflow.python.ops.metrics_impl` that metrics of libraries are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thalweg.alias import names
from thalweg.losses import matching
from thalweg.losses.matching import remove_squeezable_dimensions, squeeze_last_if_above
from thalweg.metrics.thresholds import confusion_at_thresholds

tf = names.root()


def _remove_squeezable_dimensions(predictions: Any, labels: Any, weights: Any) -> Any:  # pyright: ignore[reportUnusedFunction] - found by name
    """Predictions, labels and weights of ranks that fit each other."""
    predictions = tf.convert_to_tensor(predictions)
    if labels is not None:
        labels, predictions = remove_squeezable_dimensions(labels, predictions)
        predictions.shape.assert_is_compatible_with(labels.shape)
    if weights is None:
        return predictions, labels, None
    weights = tf.convert_to_tensor(weights)
    rank, wanted = weights.shape.rank, predictions.shape.rank
    if rank == 0:
        return predictions, labels, weights
    if rank is not None and wanted is not None and wanted - rank == 1:
        return predictions, labels, tf.expand_dims(weights, -1)
    return predictions, labels, squeeze_last_if_above(weights, predictions, 1)


def _confusion_matrix_at_thresholds(  # pyright: ignore[reportUnusedFunction] - found by name
    labels: Any,
    predictions: Any,
    thresholds: Sequence[float],
    weights: Any = None,
    includes: Sequence[str] | None = None,
) -> Any:
    """Counts at each threshold so far, and the ops that update them."""
    options = {} if includes is None else {"includes": includes}
    return confusion_at_thresholds(labels, predictions, thresholds, weights, **options)


def broadcast_weights(weights: Any, values: Any) -> Any:
    """Weights in the shape of values."""
    return matching.broadcast_weights(tf.convert_to_tensor(weights), tf.convert_to_tensor(values))


def _safe_scalar_div(numerator: Any, denominator: Any, name: str | None) -> Any:  # pyright: ignore[reportUnusedFunction] - found by name
    """A quotient; 0 where the denominator is 0."""
    return tf.div_no_nan(numerator, denominator, name=name)


def _aggregate_variable(v: Any, collections: Any) -> Any:  # pyright: ignore[reportUnusedFunction] - found by name
    """The value of a variable, in collections."""
    value = tf.identity(v)
    if collections:
        tf.add_to_collections(collections, value)
    return value
