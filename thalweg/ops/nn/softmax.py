"""Softmax, its logarithm, and the cross entropies fused with it.

The ops work along the last axis; the public functions swap any other axis with it and back. The
fused losses compute their gradient with the loss, which shares the exponentials.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape
from thalweg.ir import loop
from thalweg.ir.expr import Expr, select
from thalweg.ir.loop import IndexTuple, Operand, RuntimeCheck, widened
from thalweg.ops.arrays import indexing, joining, transposing
from thalweg.ops.core import basic, broadcast, casting, checks, choosing, filling, shaping
from thalweg.ops.math import compare, reduce
from thalweg.ops.math.summing import summed
from thalweg.platform import dtype_traits
from thalweg.platform.arrays import Array
from thalweg.public import public


class Softmax(Op):
    """y = exp(x) / sum of exp(x), along the last axis"""

    signature = "logits: T -> softmax: T; T: floating"

    def shape(self, logits: Tensor) -> TensorShape:
        return logits.shape.with_rank_at_least(1)

    def numpy(self, logits: Array) -> Array:
        if not logits.shape[-1]:
            return logits.copy()
        powers = _below_maximum(logits)
        np.exp(powers, out=powers)
        powers /= powers.sum(-1, keepdims=True)
        return powers.astype(logits.dtype, copy=False)

    def loop(self, at: IndexTuple, logits: Operand) -> Expr:
        if not logits.shape[-1]:
            return logits.broadcast(at)  # there are no elements
        row = _Row(logits, at[:-1])
        return row.softmax(at[-1]).cast(logits.dtype)

    def relaxed_loop(self, at: IndexTuple, logits: Operand) -> Expr:
        """The loop, with one division per row."""
        if not logits.shape[-1]:
            return self.loop(at, logits)
        return _RelaxedRow(logits, at[:-1]).softmax(at[-1]).cast(logits.dtype)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return _jacobian_product(node.output, dy)


def _jacobian_product(y: Tensor, dy: Tensor) -> Tensor:
    """dx of y = softmax(x); the Jacobian is symmetric."""
    return (dy - reduce.reduce_sum(dy * y, -1, keepdims=True)) * y


def _below_maximum(logits: Array) -> Array:
    """A copy of the logits less the maximum of each row, so that no exponential overflows.

    Narrow floats are converted to float32.
    """
    wide = dtype_traits.widened(logits)
    if wide.shape[-1] == 0:
        raise errors.invalid(f"softmax needs at least one class, got shape {list(wide.shape)}")
    return wide - wide.max(-1, keepdims=True)


class _Row:
    """A row of logits in a loop: its maximum and the sum of its exponentials, shared."""

    def __init__(self, logits: Operand, outer: Sequence[Expr]) -> None:
        if logits.shape[-1] == 0:
            raise ValueError("softmax needs at least one class")
        self._logits, self._outer = logits, outer
        classes = logits.shape[-1:]
        self._largest = loop.reduce("max", classes, self._logit)
        self._sum = loop.reduce("sum", classes, self._power)

    def _logit(self, k: Expr) -> Expr:
        return widened(self._logits[(*self._outer, k)], self._logits.dtype)

    def _shifted(self, k: Expr) -> Expr:
        """A logit, less the maximum."""
        return self._logit(k) - self._largest

    def _power(self, k: Expr) -> Expr:
        return self._shifted(k).exp()

    def softmax(self, k: Expr) -> Expr:
        """The probability of a class."""
        return self._power(k) / self._sum

    def surprise(self, k: Expr) -> Expr:
        """Minus the logarithm of the probability of a class."""
        return self._sum.log() - self._shifted(k)


class _RelaxedRow(_Row):
    """A row whose exponentials are multiplied by the reciprocal of their sum."""

    def softmax(self, k: Expr) -> Expr:
        return self._power(k) * (1 / self._sum)


class LogSoftmax(Op):
    """y = x - log of the sum of exp(x), along the last axis"""

    signature = "logits: T -> logsoftmax: T; T: floating"

    def shape(self, logits: Tensor) -> TensorShape:
        return logits.shape.with_rank_at_least(1)

    def numpy(self, logits: Array) -> Array:
        if not logits.shape[-1]:
            return logits.copy()
        shifted = _below_maximum(logits)
        shifted -= np.log(np.exp(shifted).sum(-1, keepdims=True))
        return shifted.astype(logits.dtype, copy=False)

    def loop(self, at: IndexTuple, logits: Operand) -> Expr:
        if not logits.shape[-1]:
            return logits.broadcast(at)  # there are no elements
        row = _Row(logits, at[:-1])
        return (0 - row.surprise(at[-1])).cast(logits.dtype)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return dy - reduce.reduce_sum(dy, -1, keepdims=True) * Softmax()(node.inputs[0])


@public("nn.softmax", "math.softmax")
def softmax(
    logits: Any, axis: int | None = None, name: str | None = None, dim: int | None = None
) -> Tensor:
    """exp(logits) / sum(exp(logits)) along an axis: positive numbers that sum to 1.

    Args:
        logits: a floating tensor of rank 1 or more.
        axis: the axis along which the results sum to 1; the last one if None.
        name: the name of the node.
        dim: the old name of `axis`.

    Returns:
        A tensor of the shape and dtype of `logits`.

    Example:
        >>> sess.run(tf.nn.softmax([[0.0, 0.0], [0.0, np.log(3.0)]]))
        array([[0.5 , 0.5 ],
               [0.25, 0.75]], dtype=float32)
    """
    return _along(Softmax(), logits, _chosen_axis(axis, dim), name)


@public("nn.log_softmax", "math.log_softmax")
def log_softmax(
    logits: Any, axis: int | None = None, name: str | None = None, dim: int | None = None
) -> Tensor:
    """The logarithm of the softmax: logits - log(sum(exp(logits))).

    Args:
        logits: a floating tensor of rank 1 or more.
        axis: the axis of the classes; the last one if None.
        name: the name of the node.
        dim: the old name of `axis`.

    Returns:
        A tensor of the shape and dtype of `logits`.

    Example:
        >>> sess.run(tf.nn.log_softmax([0.0, 0.0]))
        array([-0.6931472, -0.6931472], dtype=float32)
    """
    return _along(LogSoftmax(), logits, _chosen_axis(axis, dim), name)


def _chosen_axis(axis: int | None, dim: int | None) -> int:
    if axis is not None and dim is not None:
        raise ValueError("Cannot specify both 'axis' and 'dim'")
    given = dim if axis is None else axis
    return -1 if given is None else int(given)


def _along(op: Op, logits: Any, axis: int, name: str | None) -> Tensor:
    x = convert_to_tensor(logits)
    if _is_last(x, axis):
        return op(x, name=name)
    order = _swapped(x, axis)
    result = transposing.transpose(op(transposing.transpose(x, order)), order, name=name or "")
    result.set_shape(x.shape)
    return result


def _is_last(x: Tensor, axis: int) -> bool:
    rank = x.shape.rank
    if rank is None:
        return axis == -1
    if not -rank <= axis < rank:
        raise errors.invalid(
            f"Dimension ({axis}) must be in the range [{-rank}, {rank}) where {rank} is the "
            "number of dimensions in the input."
        )
    return axis % rank == rank - 1


def _swapped(x: Tensor, axis: int) -> Any:
    """The permutation that swaps `axis` and the last one: its own inverse."""
    rank = x.shape.rank
    if rank is not None:
        order = list(range(rank))
        order[axis], order[-1] = order[-1], order[axis]
        return order
    last = shaping.rank(x) - 1
    place = axis if axis >= 0 else axis + 1 + last
    order = filling.range(last + 1)
    changed = choosing.where_v2(compare.equal(order, last), place, order)
    return choosing.where_v2(compare.equal(order, place), last, changed)


# Cross entropies


class SoftmaxCrossEntropyWithLogits(Op):
    """loss = -sum of labels · log softmax(features), by row; backprop = softmax - labels

    Labels broadcast along rows and classes.
    """

    signature = "features: T, labels: T -> loss: T, backprop: T; T: floating"

    def shape(self, features: Tensor, labels: Tensor) -> list[TensorShape]:
        for tensor in (features, labels):
            if tensor.shape.rank not in (None, 2):
                raise ValueError(f"Shape must be rank 2 but is rank {tensor.shape.rank}")
        rows, classes = (
            mine if theirs == 1 else mine.merge_with(theirs)
            for mine, theirs in zip(
                features.shape.with_rank(2), labels.shape.with_rank(2), strict=True
            )
        )
        return [TensorShape([rows]), TensorShape([rows, classes])]

    def numpy(self, features: Array, labels: Array) -> tuple[Array, Array]:
        if features.ndim != 2 or labels.ndim != 2 or not _broadcasts(labels, features):
            raise errors.invalid(
                f"logits and labels must be matrices of the same size, or labels broadcast to the "
                f"logits: logits_size={list(features.shape)} labels_size={list(labels.shape)}"
            )
        shifted, powers, sums = _powers(features)
        loss = ((np.log(sums) - shifted) * labels).sum(-1)
        powers /= sums
        powers -= labels
        kind = features.dtype
        return loss.astype(kind, copy=False), powers.astype(kind, copy=False)

    def loop(self, at: IndexTuple, features: Operand, labels: Operand) -> Expr:
        return self._output(at, features, labels, _Row(features, at[:1]))

    def relaxed_loop(self, at: IndexTuple, features: Operand, labels: Operand) -> Expr:
        """The loop, with one division per row."""
        return self._output(at, features, labels, _RelaxedRow(features, at[:1]))

    def _output(self, at: IndexTuple, features: Operand, labels: Operand, row: _Row) -> Expr:
        if labels.rank != 2 or any(
            mine not in (1, size) for mine, size in zip(labels.shape, features.shape, strict=True)
        ):
            raise ValueError(f"labels {labels.shape} do not broadcast to logits {features.shape}")

        def label(k: Expr) -> Expr:
            return widened(labels.broadcast([at[0], k]), labels.dtype)

        if at.output == 1:
            return (row.softmax(at[1]) - label(at[1])).cast(features.dtype)

        def expected(k: Expr) -> Expr:
            return row.surprise(k) * label(k)

        return loop.reduce("sum", features.shape[1:], expected).cast(features.dtype)

    def gradient(self, node: Node, dloss: Tensor, dbackprop: Tensor) -> list[Tensor]:
        features, labels = node.inputs
        row = shaping.expand_dims(dloss, -1)
        dfeatures = row * node.outputs[1]
        dlabels = -row * log_softmax(features)
        if not _is_zero(dbackprop):
            dfeatures += _jacobian_product(softmax(features), dbackprop)
            dlabels -= dbackprop
        return [dfeatures, broadcast.reduce_to(dlabels, labels, features)]


def _broadcasts(array: Array, other: Array) -> bool:
    pairs = zip(array.shape, other.shape, strict=True)
    return all(mine in (1, theirs) for mine, theirs in pairs)


def _powers(features: Array) -> tuple[Array, Array, Array]:
    """Shifted logits, their exponentials, and the sum of the exponentials of each row."""
    shifted = _below_maximum(features)
    powers = np.exp(shifted)
    return shifted, powers, powers.sum(-1, keepdims=True)


def _is_zero(tensor: Tensor) -> bool:
    """Whether a gradient is absent: zeros made by the backward pass."""
    if tensor.op.type == "ZerosLike":
        return True
    return tensor.op.type in ("Const", "Fill") and tensor.op.name.split("/")[-1].startswith("zeros")


@public("nn.softmax_cross_entropy_with_logits_v2")
def softmax_cross_entropy_with_logits_v2(
    labels: Any,
    logits: Any,
    axis: int | None = None,
    name: str | None = None,
    dim: int | None = None,
) -> Tensor:
    """The cross entropy of softmax(logits) and the distributions `labels`, with gradients for both.

    Args:
        labels: distributions of the shape and dtype of `logits`, each summing to 1.
        logits: a floating tensor [..., classes].
        axis: the axis of the classes; the last one if None.
        name: the name of the node.
        dim: the old name of `axis`.

    Returns:
        A tensor of the dtype of `logits`, without the axis of the classes.

    Example:
        >>> loss = tf.nn.softmax_cross_entropy_with_logits_v2(
        ...     labels=[[1.0, 0.0]], logits=[[100.0, 0.0]]
        ... )
        >>> sess.run(loss)
        array([0.], dtype=float32)
    """
    along = _chosen_axis(axis, dim)
    with name_scope(name, "softmax_cross_entropy_with_logits", [logits, labels]) as scope:
        x = convert_to_tensor(logits, name="logits")
        y = convert_to_tensor(labels, name="labels")
        kind = x.dtype.base_dtype
        x, y = casting.cast(x, kind.compute_dtype), casting.cast(y, kind.compute_dtype)
        if not _is_last(x, along):
            x, y = _moved_to_end(x, along), _moved_to_end(y, along)
        cost, _ = SoftmaxCrossEntropyWithLogits()(_as_matrix(x), _as_matrix(y), name=scope)
        return casting.cast(_outer_shaped(cost, x), kind)


def _moved_to_end(x: Tensor, axis: int) -> Tensor:
    if x.shape.rank is None:
        last = shaping.rank(x) - 1
        place = axis if axis >= 0 else axis + 1 + last
        order = [filling.range(place), filling.range(place + 1, last + 1), [place]]
        return transposing.transpose(x, joining.concat(order, 0))
    axes = list(range(x.shape.rank))
    axes.append(axes.pop(axis))
    return transposing.transpose(x, axes)


def _as_matrix(x: Tensor) -> Tensor:
    """`x` with all axes but the last merged."""
    sizes = x.shape.sizes
    if sizes is not None and len(sizes) == 2:
        return x
    if sizes and sizes[-1] is not None:
        return shaping.reshape(x, [-1, sizes[-1]])
    return shaping.reshape(x, joining.concat([[-1], shaping.shape(x)[-1:]], 0))


def _outer_shaped(cost: Tensor, x: Tensor) -> Tensor:
    """A loss per row of the matrix of `x`, reshaped to all axes of `x` but the last."""
    sizes = x.shape.sizes
    if sizes is not None and len(sizes) == 2:
        return cost
    if sizes is not None and None not in sizes:
        return shaping.reshape(cost, list(sizes[:-1]))
    result = shaping.reshape(cost, shaping.shape(x)[:-1])
    result.set_shape(x.shape[:-1])
    return result


@public("nn.softmax_cross_entropy_with_logits")
def softmax_cross_entropy_with_logits(
    _sentinel: None = None,
    labels: TensorLike | None = None,
    logits: TensorLike | None = None,
    dim: int = -1,
    name: str | None = None,
    axis: int | None = None,
) -> Tensor:
    """The cross entropy of softmax(logits) and `labels`, without a gradient for the labels.

    Use keywords; positional arguments are the logits, the labels and the axis, as in old versions.

    Args:
        labels: distributions of the shape and dtype of `logits`, each summing to 1.
        logits: a floating tensor [..., classes].
        dim: the axis of the classes, under its old name.
        name: the name of the node.
        axis: the axis of the classes; the last one by default.

    Returns:
        A tensor of the dtype of `logits`, without the axis of the classes.

    Example:
        >>> loss = tf.nn.softmax_cross_entropy_with_logits(
        ...     labels=[[1.0, 0.0], [0.5, 0.5]], logits=[[0.0, 0.0], [0.0, 0.0]]
        ... )
        >>> sess.run(loss)
        array([0.6931472, 0.6931472], dtype=float32)
    """
    x, y, third = in_old_order(_sentinel, labels, logits)
    along = axis if axis is not None else dim if third is None else third
    with name_scope(name, "softmax_cross_entropy_with_logits_sg", [x, y]) as scope:
        fixed = basic.stop_gradient(convert_to_tensor(y), name="labels_stop_gradient")
        return softmax_cross_entropy_with_logits_v2(fixed, x, axis=along, name=scope)


def in_old_order(first: Any, labels: Any, logits: Any) -> tuple[Any, Any, Any]:
    """(logits, labels, third argument): the order of positional arguments in old versions."""
    if first is not None:
        return first, labels, logits
    if labels is None or logits is None:
        raise ValueError("Both labels and logits must be provided.")
    return logits, labels, None


class SparseSoftmaxCrossEntropyWithLogits(Op):
    """loss = -log softmax(features)[label], by row; backprop = softmax - one hot of the label"""

    signature = "features: T, labels: Tlabels -> loss: T, backprop: T; T: floating, Tlabels: index"

    def shape(self, features: Tensor, labels: Tensor) -> list[TensorShape]:
        matrix = features.shape.with_rank(2)
        rows = labels.shape.with_rank(1).merge_with(matrix[:1])
        return [rows, rows.concatenate(matrix[1:])]

    def numpy(self, features: Array, labels: Array) -> tuple[Array, Array]:
        _check_labels(features, labels)
        shifted, powers, sums = _powers(features)
        rows = np.arange(len(labels))
        loss = np.log(sums[:, 0]) - shifted[rows, labels]
        powers /= sums
        powers[rows, labels] -= 1
        kind = features.dtype
        return loss.astype(kind, copy=False), powers.astype(kind, copy=False)

    def loop(self, at: IndexTuple, features: Operand, labels: Operand) -> Expr:
        return self._output(at, features, labels, _Row(features, at[:1]))

    def relaxed_loop(self, at: IndexTuple, features: Operand, labels: Operand) -> Expr:
        """The loop, with one division per row."""
        return self._output(at, features, labels, _RelaxedRow(features, at[:1]))

    def _output(self, at: IndexTuple, features: Operand, labels: Operand, row: _Row) -> Expr:
        label = labels[at[0]]
        if at.output == 0:
            # An invalid label cannot be an index.
            known = (label >= 0) & (label < features.shape[1])
            return select(known, row.surprise(label), np.nan).cast(features.dtype)
        probability = row.softmax(at[1])
        return select(at[1].eq(label), probability - 1, probability).cast(features.dtype)

    def requires(self, features: Operand, labels: Operand) -> list[RuntimeCheck]:
        return [indexing.are_within(labels, features.shape[1])]

    def gradient(self, node: Node, dloss: Tensor, _: Tensor) -> list[Tensor | None]:
        # A second derivative through a fused gradient would silently lack terms.
        fused = basic.PreventGradient(
            message="the fused gradient of sparse_softmax_cross_entropy_with_logits has no "
            "derivative of its own: take softmax_cross_entropy_with_logits on one-hot labels"
        )(node.outputs[1])
        return [shaping.expand_dims(dloss, -1) * fused, None]


def _check_labels(features: Array, labels: Array) -> None:
    if np.ndim(labels) != 1:
        raise errors.invalid(f"labels must be 1-D, but got shape {list(np.shape(labels))}")
    if features.ndim != 2 or len(features) != len(labels):
        raise errors.invalid(
            f"logits and labels must have the same first dimension, got logits shape "
            f"{list(features.shape)} and labels shape {list(labels.shape)}"
        )
    classes = features.shape[1]
    bad = labels[(labels < 0) | (labels >= classes)]
    if bad.size:
        raise errors.invalid(
            f"Received a label value of {bad[0]} which is outside the valid range of "
            f"[0, {classes}).  Label values: {' '.join(map(str, labels.tolist()))}"
        )


@public("nn.sparse_softmax_cross_entropy_with_logits")
def sparse_softmax_cross_entropy_with_logits(
    _sentinel: None = None,
    labels: TensorLike | None = None,
    logits: TensorLike | None = None,
    name: str | None = None,
) -> Tensor:
    """The cross entropy of softmax(logits) and class numbers.

    Use keywords; positional arguments are the logits, then the labels, as in old versions.

    Args:
        labels: class numbers in [0, classes), int32 or int64, of the shape of `logits` without
            its last axis.
        logits: a floating tensor [..., classes].
        name: the name of the node.

    Returns:
        A tensor of the shape of `labels` and the dtype of `logits`.

    Raises:
        InvalidArgumentError: if a label is not a class.

    Example:
        >>> loss = tf.nn.sparse_softmax_cross_entropy_with_logits(
        ...     labels=[1, 0], logits=[[0.0, 0.0], [100.0, 0.0]]
        ... )
        >>> sess.run(loss)
        array([0.6931472, 0.       ], dtype=float32)
    """
    given, numbers, _ = in_old_order(_sentinel, labels, logits)
    with name_scope(name, "SparseSoftmaxCrossEntropyWithLogits", [numbers, given]):
        y, x = convert_to_tensor(numbers), convert_to_tensor(given)
        y = _with_checked_rank(y, x)
        kind = x.dtype.base_dtype
        wide = casting.cast(x, kind.compute_dtype)
        if x.shape.rank == 2:
            cost: Tensor = SparseSoftmaxCrossEntropyWithLogits()(wide, y, name=name)[0]
            return casting.cast(cost, kind)
        flat = shaping.reshape(y, [-1])
        cost = SparseSoftmaxCrossEntropyWithLogits()(_as_matrix(wide), flat, name=name)[0]
        shaped = shaping.reshape(cost, shaping.shape(y))
        shaped.set_shape(y.shape)
        return casting.cast(shaped, kind)


def _with_checked_rank(labels: Tensor, logits: Tensor) -> Tensor:
    """The labels, with one axis fewer than the logits: checked in the step if not static."""
    mine, theirs = labels.shape.rank, logits.shape.rank
    if theirs == 0:
        raise ValueError(f"Logits cannot be scalars - received shape {logits.shape}.")
    wanted = "Rank mismatch: Rank of labels (received {}) should equal rank of logits minus 1"
    if mine is None or theirs is None:
        equal = checks.assert_equal(
            shaping.rank(labels), shaping.rank(logits) - 1, message=wanted.format("another")
        )
        return basic.with_dependencies([equal], labels)
    if mine != theirs - 1:
        raise ValueError(f"{wanted.format(mine)} (received {theirs}).")
    return labels


class L2Loss(Op):
    """Half the sum of squares."""

    signature = "t: T -> output: T; T: floating"

    def shape(self, t: Tensor) -> TensorShape:
        return TensorShape.of(())

    def numpy(self, t: Array) -> Array:
        return (summed(np.square(t, dtype=np.float64)) / 2).astype(t.dtype)

    def loop(self, at: IndexTuple, t: Operand) -> Expr:
        def square(*index: Expr) -> Expr:
            element = widened(t[index], t.dtype)
            return element * element

        return (loop.reduce("sum", t.shape, square) / 2).cast(t.dtype)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return node.inputs[0] * dy


@public("nn.l2_loss")
def l2_loss(t: Any, name: str | None = None) -> Tensor:
    """Half the sum of squares: sum(t ** 2) / 2.

    Args:
        t: a floating tensor, often the weights of a layer.
        name: the name of the node.

    Returns:
        A scalar of the dtype of `t`.

    Example:
        >>> sess.run(tf.nn.l2_loss([3.0, 4.0]))
        np.float32(12.5)
    """
    return L2Loss()(t, name=name)
