"""Cross entropies of sequences of class scores: `tf.contrib.seq2seq` and its older form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.core import casting, shaping
from thalweg.ops.math import arithmetic, compare, division, reduce
from thalweg.ops.nn.softmax import sparse_softmax_cross_entropy_with_logits
from thalweg.public import public

LossFunction = Callable[..., Any]


def _cross_entropy(function: LossFunction | None, labels: Any, logits: Any) -> Tensor:
    chosen = function or sparse_softmax_cross_entropy_with_logits
    return chosen(labels=shaping.reshape(labels, [-1]), logits=logits)


@public("contrib.legacy_seq2seq.sequence_loss_by_example", "nn.seq2seq.sequence_loss_by_example")
def sequence_loss_by_example(
    logits: Sequence[Any],
    targets: Sequence[Any],
    weights: Sequence[Any],
    average_across_timesteps: bool = True,
    softmax_loss_function: LossFunction | None = None,
    name: str | None = None,
) -> Tensor:
    """The weighted cross entropy of each example, over lists of steps.

    Args:
        logits: a list of tensors [batch, classes].
        targets: a list of class numbers [batch].
        weights: a list of weights [batch].
        average_across_timesteps: divide by the sum of the weights.
        softmax_loss_function: a function of (labels, logits) in place of the softmax loss.
        name: the name of the nodes.

    Returns:
        A vector [batch].

    Example:
        >>> loss = tf.contrib.legacy_seq2seq.sequence_loss_by_example(
        ...     [tf.zeros([1, 2])] * 3, [[0]] * 3, [tf.ones([1])] * 3
        ... )
        >>> sess.run(loss)
        array([0.6931472], dtype=float32)
    """
    if not len(logits) == len(targets) == len(weights):
        raise ValueError(
            "Lengths of logits, weights, and targets must be the same "
            f"{len(logits)}, {len(weights)}, {len(targets)}."
        )
    with name_scope(name, "sequence_loss_by_example", [*logits, *targets, *weights]):
        steps = zip(logits, targets, weights, strict=True)
        losses = arithmetic.add_n(
            [_cross_entropy(softmax_loss_function, y, x) * w for x, y, w in steps]
        )
        if not average_across_timesteps:
            return losses
        return losses / (arithmetic.add_n(list(weights)) + 1e-12)  # examples may weigh nothing


@public("contrib.legacy_seq2seq.sequence_loss", "nn.seq2seq.sequence_loss")
def legacy_sequence_loss(
    logits: Sequence[Any],
    targets: Sequence[Any],
    weights: Sequence[Any],
    average_across_timesteps: bool = True,
    average_across_batch: bool = True,
    softmax_loss_function: LossFunction | None = None,
    name: str | None = None,
) -> Tensor:
    """The sum over examples of `sequence_loss_by_example`, or its mean.

    Args:
        logits: a list of [batch, classes] tensors, one for each step.
        targets: a list of class numbers [batch].
        weights: a list of floats [batch].
        average_across_timesteps: whether each sequence's sum is divided by its weights.
        average_across_batch: whether the sum is divided by the batch size.
        softmax_loss_function: a function of (labels, logits) in place of the cross entropy.
        name: the name of the nodes.

    Returns:
        A scalar.

    Example:
        >>> loss = tf.contrib.legacy_seq2seq.sequence_loss([tf.zeros([1, 2])], [[0]], [[1.0]])
        >>> sess.run(loss)
        np.float32(0.6931472)
    """
    with name_scope(name, "sequence_loss", [*logits, *targets, *weights]):
        losses = sequence_loss_by_example(
            logits, targets, weights, average_across_timesteps, softmax_loss_function
        )
        cost = reduce.reduce_sum(losses)
        if not average_across_batch:
            return cost
        return cost / casting.cast(shaping.shape(targets[0])[0], cost.dtype)


@public("contrib.seq2seq.sequence_loss")
def sequence_loss(
    logits: Any,
    targets: Any,
    weights: Any,
    average_across_timesteps: bool = True,
    average_across_batch: bool = True,
    sum_over_timesteps: bool = False,
    sum_over_batch: bool = False,
    softmax_loss_function: LossFunction | None = None,
    name: str | None = None,
) -> Tensor:
    """The weighted cross entropy of sequences.

    An average divides by the sum of the weights; a sum by the number of weights that are not 0.

    Args:
        logits: [batch, steps, classes].
        targets: class numbers [batch, steps].
        weights: [batch, steps]: 0 where a sequence has ended.
        average_across_timesteps, average_across_batch: take the mean over steps, over the batch.
        sum_over_timesteps, sum_over_batch: take the sum instead.
        softmax_loss_function: a function of (labels, logits) in place of the softmax loss.
        name: the name of the nodes.

    Returns:
        A scalar, or a tensor with the axes that are not reduced.

    Example:
        >>> loss = tf.contrib.seq2seq.sequence_loss(
        ...     tf.zeros([1, 3, 2]), [[0, 1, 1]], tf.constant([[1.0, 1.0, 0.0]])
        ... )
        >>> sess.run(loss)
        np.float32(0.6931472)
    """
    logits, weights = convert_to_tensor(logits), convert_to_tensor(weights)
    targets = convert_to_tensor(targets)
    _check_ranks(logits, targets, weights)
    averages = average_across_batch, average_across_timesteps
    sums = sum_over_batch, sum_over_timesteps
    if any(averages) and any(sums):
        raise ValueError("A dimension is either averaged or summed: not both kinds at once")
    with name_scope(name, "sequence_loss", [logits, targets, weights]):
        shape = shaping.shape(logits)
        flat = shaping.reshape(logits, [-1, shape[2]])
        losses = _cross_entropy(softmax_loss_function, targets, flat)
        losses = shaping.reshape(losses, shape[:2]) * weights
        axes = [axis for axis in (0, 1) if averages[axis] or sums[axis]]
        if not axes:
            return losses
        counted = casting.cast(compare.not_equal(weights, 0), losses.dtype)
        divisor = reduce.reduce_sum(weights if any(averages) else counted, axes)
        return division.div_no_nan(reduce.reduce_sum(losses, axes), divisor)


def _check_ranks(logits: Tensor, targets: Tensor, weights: Tensor) -> None:
    wanted = {"Logits": (logits, 3), "Targets": (targets, 2), "Weights": (weights, 2)}
    for what, (tensor, rank) in wanted.items():
        if tensor.shape.rank not in (rank, None):
            raise ValueError(f"{what} must be a tensor of {rank} dimensions, not {tensor.shape}")
