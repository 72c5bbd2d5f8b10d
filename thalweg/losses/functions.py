"""The losses: how far predictions are from labels, element by element, then weighted and reduced.

Labels and predictions (or logits) come in, a scalar tensor goes out (a tensor for
`Reduction.NONE`) and into the collection of losses.
"""

from __future__ import annotations

from typing import Final

from thalweg.graph.collections import GraphKeys
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import float32
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.losses.collection import add_loss
from thalweg.losses.matching import (
    align_weights,
    predictions_first,
    remove_squeezable_dimensions,
    squeeze_last_if_above,
)
from thalweg.losses.reduction import (
    Reduction,
    compute_weighted_loss,
    num_present,
    sum_per_example,
)
from thalweg.nn.losses import sigmoid_cross_entropy_with_logits
from thalweg.ops.core import basic, casting, choosing, shaping
from thalweg.ops.math import arithmetic, compare, division, reduce, transcendental
from thalweg.ops.nn import activation, softmax
from thalweg.platform.docstrings import family
from thalweg.public import public, publish_value

_LOSSES = GraphKeys.LOSSES
_BY_NONZERO = Reduction.SUM_BY_NONZERO_WEIGHTS
_OF_LOGITS: Final = "A scalar of the dtype of `logits`, or a tensor for `Reduction.NONE`."

loss = family(
    {
        "labels": "what is true.",
        "predictions": "what was predicted, of the same shape; both are computed as float32.",
        "logits": "[batch, classes].",
        "weights": "a scalar, or a tensor that broadcasts to that shape: what each element counts.",
        "label_smoothing": "how far labels are moved towards 1 / classes, from 0 to 1.",
        "scope": "the name of the nodes' scope.",
        "loss_collection": "the collection to join; `tf.losses.get_total_loss()` sums it.",
        "reduction": (
            "a `tf.losses.Reduction`; by default the sum over the number of weights that are not 0."
        ),
    },
    "A float32 scalar, or a tensor for `Reduction.NONE`.",
)


def _require(**values: object) -> None:
    for name, value in values.items():
        if value is None:
            raise ValueError(f"{name} must not be None.")


def _floats(labels: TensorLike, predictions: TensorLike) -> tuple[Tensor, Tensor]:
    """Both as float32, of compatible shapes."""
    predictions, labels = casting.cast(predictions, float32), casting.cast(labels, float32)
    predictions.shape.assert_is_compatible_with(labels.shape)
    return labels, predictions


@public("losses.absolute_difference")
@loss()
def absolute_difference(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """The mean of |predictions - labels|.

    Example:
        >>> sess.run(tf.losses.absolute_difference([1.0, 2.0], [1.0, 4.0]))
        np.float32(1.0)
    """
    _require(labels=labels, predictions=predictions)
    with name_scope(scope, "absolute_difference", [predictions, labels, weights]) as scope:
        labels, predictions = _floats(labels, predictions)
        losses = arithmetic.absolute(predictions - labels)
        return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


@public("losses.cosine_distance")
@loss(
    labels="vectors of unit length along `axis`.",
    axis="the axis of the vectors.",
    dim="the older name of `axis`.",
)
def cosine_distance(
    labels: TensorLike,
    predictions: TensorLike,
    axis: int | None = None,
    weights: TensorLike = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: str = _BY_NONZERO,
    dim: int | None = None,
) -> Tensor:
    """1 - predictions · labels along an axis; both are taken to have unit length."""
    axis = axis if dim is None else dim
    _require(axis=axis, labels=labels, predictions=predictions)
    with name_scope(scope, "cosine_distance_loss", [predictions, labels, weights]) as scope:
        labels, predictions = _floats(labels, predictions)
        losses = 1 - reduce.reduce_sum(predictions * labels, [axis], keepdims=True)
        return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


@public("losses.hinge_loss")
@loss()
def hinge_loss(
    labels: TensorLike,
    logits: TensorLike,
    weights: TensorLike = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """max(0, 1 - y x) with y = 2 labels - 1"""
    _require(labels=labels, logits=logits)
    with name_scope(scope, "hinge_loss", [logits, labels, weights]) as scope:
        labels, logits = _floats(labels, logits)
        losses = activation.relu(1 - (2 * labels - 1) * logits)
        return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


@public("losses.huber_loss")
@loss(delta="where the square ends.")
def huber_loss(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = 1.0,
    delta: float = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """The mean of e²/2 for errors |e| up to `delta`, and from there on of a straight line.

    Example:
        >>> sess.run(tf.losses.huber_loss([0.0], [3.0]))
        np.float32(2.5)
    """
    _require(labels=labels, predictions=predictions)
    with name_scope(scope, "huber_loss", [predictions, labels, weights]) as scope:
        labels, predictions = _floats(labels, predictions)
        error = arithmetic.absolute(predictions - labels)
        quadratic = arithmetic.minimum(error, delta)
        losses = 0.5 * quadratic * quadratic + delta * (error - quadratic)
        return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


@public("losses.log_loss")
@loss(labels="probabilities.", epsilon="ε, which keeps logarithms finite.")
def log_loss(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = 1.0,
    epsilon: float = 1e-7,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """The mean of -labels log(predictions + ε) - (1 - labels) log(1 - predictions + ε).

    Example:
        >>> sess.run(tf.losses.log_loss([1.0, 0.0], [0.5, 0.5]))
        np.float32(0.693147)
    """
    _require(labels=labels, predictions=predictions)
    with name_scope(scope, "log_loss", [predictions, labels, weights]) as scope:
        labels, predictions = _floats(labels, predictions)
        right = labels * transcendental.log(predictions + epsilon)
        wrong = (1 - labels) * transcendental.log(1 - predictions + epsilon)
        return compute_weighted_loss(-right - wrong, weights, scope, loss_collection, reduction)


@public("losses.mean_squared_error")
@loss()
def mean_squared_error(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """The mean of (predictions - labels)².

    Example:
        >>> sess.run(tf.losses.mean_squared_error([1.0, 2.0], [1.0, 4.0]))
        np.float32(2.0)
    """
    _require(labels=labels, predictions=predictions)
    with name_scope(scope, "mean_squared_error", [predictions, labels, weights]) as scope:
        labels, predictions = _floats(labels, predictions)
        losses = arithmetic.squared_difference(predictions, labels)
        return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


@public("losses.mean_pairwise_squared_error")
@loss()
def mean_pairwise_squared_error(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
) -> Tensor:
    """For each example, the mean over pairs of elements of (difference of their errors)²; summed.

    Weights are per example: a scalar or a vector of the batch size (trailing sizes of 1 allowed).

    Example:
        >>> sess.run(tf.losses.mean_pairwise_squared_error([[1.0, 2.0]], [[1.0, 4.0]]))
        np.float32(4.0)
    """
    return mean_over_pairs(labels, predictions, weights, scope, loss_collection)


def mean_over_pairs(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike,
    scope: str | None,
    loss_collection: str | None,
    with_itself: bool = False,
) -> Tensor:
    """The mean over pairs; `with_itself` counts an element and itself as one, of the value 0."""
    _require(labels=labels, predictions=predictions)
    with name_scope(scope, "mean_pairwise_squared_error", [predictions, labels, weights]):
        labels, predictions = _floats(labels, predictions)
        aligned = align_weights(weights, labels, float32)
        errors = predictions - labels
        present = num_present(errors, aligned, per_batch=True)
        # Σᵢⱼ (eᵢ - eⱼ)² = 2 n Σ e² - 2 (Σ e)², and there are n (n - 1) ordered pairs.
        others = present if with_itself else arithmetic.maximum(present - 1, 0)
        squares = division.div_no_nan(sum_per_example(errors * errors), others)
        sums = sum_per_example(errors)
        products = division.div_no_nan(sums * sums, present * others)
        total = reduce.reduce_sum(2 * (squares - products) * aligned)
        any_present = compare.greater(reduce.reduce_sum(present), 0)
        loss = choosing.where(any_present, total, basic.constant(0.0), name="value")
        add_loss(loss, loss_collection)
        return loss


@public("losses.sigmoid_cross_entropy")
@loss(
    returns=_OF_LOGITS,
    multi_class_labels="probabilities of the shape of `logits`.",
    logits="a floating tensor [batch, classes].",
    label_smoothing="how far labels are moved towards 1/2, from 0 to 1.",
)
def sigmoid_cross_entropy(
    multi_class_labels: TensorLike,
    logits: TensorLike,
    weights: TensorLike = 1.0,
    label_smoothing: Tensor | float = 0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """The mean cross entropy of sigmoid(logits) against labels of independent classes.

    Example:
        >>> sess.run(tf.losses.sigmoid_cross_entropy([[1.0, 0.0]], [[0.0, 0.0]]))
        np.float32(0.6931472)
    """
    _require(multi_class_labels=multi_class_labels, logits=logits)
    values = [logits, multi_class_labels, weights]
    with name_scope(scope, "sigmoid_cross_entropy_loss", values) as scope:
        logits = convert_to_tensor(logits)
        labels = casting.cast(multi_class_labels, logits.dtype)
        logits.shape.assert_is_compatible_with(labels.shape)
        if _smooths(label_smoothing):
            labels = labels * (1 - label_smoothing) + 0.5 * label_smoothing
        losses = sigmoid_cross_entropy_with_logits(labels=labels, logits=logits, name="xentropy")
        return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


@public("losses.softmax_cross_entropy")
@loss(
    returns=_OF_LOGITS,
    onehot_labels="[batch, classes], each row summing to 1.",
    weights="a scalar or a [batch] tensor: what each row counts.",
)
def softmax_cross_entropy(
    onehot_labels: TensorLike,
    logits: TensorLike,
    weights: TensorLike = 1.0,
    label_smoothing: Tensor | float = 0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """The mean cross entropy of softmax(logits) against distributions.

    Example:
        >>> sess.run(tf.losses.softmax_cross_entropy([[1.0, 0.0]], [[0.0, 0.0]]))
        np.float32(0.6931472)
    """
    _require(onehot_labels=onehot_labels, logits=logits)
    values = [logits, onehot_labels, weights]
    with name_scope(scope, "softmax_cross_entropy_loss", values) as scope:
        logits = convert_to_tensor(logits)
        labels = casting.cast(onehot_labels, logits.dtype)
        logits.shape.assert_is_compatible_with(labels.shape)
        if _smooths(label_smoothing):
            classes = casting.cast(shaping.shape(labels)[-1], logits.dtype)
            labels = labels * (1 - label_smoothing) + label_smoothing / classes
        losses = softmax.softmax_cross_entropy_with_logits_v2(
            labels=basic.stop_gradient(labels), logits=logits, name="xentropy"
        )
        return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def _smooths(label_smoothing: Tensor | float) -> bool:
    return isinstance(label_smoothing, Tensor) or label_smoothing > 0


@public("losses.sparse_softmax_cross_entropy")
@loss(
    returns=_OF_LOGITS,
    labels="class numbers [batch], int32 or int64.",
    weights="a scalar or a [batch] tensor: what each example counts.",
)
def sparse_softmax_cross_entropy(
    labels: TensorLike,
    logits: TensorLike,
    weights: TensorLike = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """The mean cross entropy of softmax(logits) against class numbers.

    Example:
        >>> sess.run(tf.losses.sparse_softmax_cross_entropy([0], [[0.0, 0.0]]))
        np.float32(0.6931472)
    """
    _require(labels=labels, logits=logits, weights=weights)
    values = [logits, labels, weights]
    with name_scope(scope, "sparse_softmax_cross_entropy_loss", values) as scope:
        labels, logits = remove_squeezable_dimensions(labels, logits, expected_rank_diff=1)
        losses = softmax.sparse_softmax_cross_entropy_with_logits(
            labels=labels, logits=logits, name="xentropy"
        )
        weights = squeeze_last_if_above(convert_to_tensor(weights), losses, 1)
        return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


for _function in (
    absolute_difference,
    cosine_distance,
    hinge_loss,
    log_loss,
    mean_pairwise_squared_error,
    mean_squared_error,
    sigmoid_cross_entropy,
    softmax_cross_entropy,
    sparse_softmax_cross_entropy,
):
    publish_value(f"contrib.losses.{_function.__name__}", predictions_first(_function))
