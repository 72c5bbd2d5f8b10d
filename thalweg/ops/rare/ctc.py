"""Connectionist temporal classification: the loss of a label sequence under frame-wise logits.

The loss is -log of the summed probability of all paths (one class per frame, blanks and repeats
allowed) that spell the labels. Forward and backward variables are computed for the whole batch at
once, time step by time step, over the labels with blanks between them (Graves et al., 2006).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.composite import SparseTensor
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.likes import SparseLike, TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape
from thalweg.ops.arrays import indexing, joining, transposing
from thalweg.ops.core import basic, casting, choosing, filling, shaping
from thalweg.ops.nn.convolution import one_of
from thalweg.platform.arrays import Array
from thalweg.public import public


class CTCLoss(Op):
    """loss[b] of labels[b] under inputs[:, b, :], and its gradient; the last class is the blank"""

    signature = (
        "inputs: T, labels_indices: int64, labels_values: int32, sequence_length: int32 -> "
        "loss: T, gradient: T; T: float32|float64"
    )
    host_only = True  # a recurrence over frames, for paths of data-dependent length
    preprocess_collapse_repeated: bool = False
    ctc_merge_repeated: bool = True
    ignore_longer_outputs_than_inputs: bool = False

    def shape(
        self, inputs: Tensor, indices: Tensor, values: Tensor, sequence_length: Tensor
    ) -> list[TensorShape]:
        frames = inputs.shape.with_rank(3)
        batch = sequence_length.shape.with_rank(1).merge_with(frames[1:2])
        indices.shape.assert_has_rank(2)
        values.shape.with_rank(1)[0].merge_with(indices.shape.with_rank(2)[0])
        return [batch, frames[:1].concatenate(batch).concatenate(frames[2:])]

    def numpy(
        self, inputs: Array, indices: Array, values: Array, sequence_length: Array
    ) -> tuple[Array, Array]:
        check_lengths(inputs, sequence_length)
        labels, lengths = _padded_labels(indices, values, inputs.shape[1])
        if self.preprocess_collapse_repeated:
            labels, lengths = _collapsed(labels, lengths)
        self._check_labels(labels, lengths, inputs.shape[2], sequence_length)
        paths = _Paths(inputs, labels, lengths, sequence_length, self.ctc_merge_repeated)
        return paths.loss.astype(inputs.dtype), paths.gradient.astype(inputs.dtype)

    def _check_labels(self, labels: Array, lengths: Array, classes: int, times: Array) -> None:
        if labels.size and not (labels.min() >= -1 and labels.max() < classes - 1):
            raise errors.invalid(
                f"labels must be in [0, {classes - 1}), since the last of {classes} classes is the "
                f"blank; got labels in [{labels.min()}, {labels.max()}]"
            )
        needed = lengths + (_repeats(labels) if self.ctc_merge_repeated else 0)
        late = np.flatnonzero((needed > times) & (times > 0))
        if late.size and not self.ignore_longer_outputs_than_inputs:
            raise errors.invalid(
                "Not enough time for target transition sequence (required: "
                f"{needed[late[0]]}, available: {times[late[0]]}) in batch {late[0]}. Set "
                "ignore_longer_outputs_than_inputs to leave such sequences out"
            )

    def gradient(self, node: Node, dloss: Tensor, _: Tensor) -> list[Tensor | None]:
        fused = basic.PreventGradient(
            message="the gradient of ctc_loss is computed with the loss and has none of its own"
        )(node.outputs[1])
        row = shaping.expand_dims(dloss, -1)
        return [row * fused, None, None, None]


def check_lengths(inputs: Array, sequence_length: Array) -> None:
    """Raise unless there is one length per sequence, at most the number of frames."""
    if inputs.ndim != 3 or np.shape(sequence_length) != inputs.shape[1:2]:
        raise errors.invalid(
            f"inputs must be [time, batch, classes] and sequence_length [batch]: got shapes "
            f"{list(inputs.shape)} and {list(np.shape(sequence_length))}"
        )
    if sequence_length.size and sequence_length.max() > len(inputs):
        raise errors.invalid(
            f"sequence_length may be at most the {len(inputs)} frames, got {sequence_length.max()}"
        )


def _padded_labels(indices: Array, values: Array, batch: int) -> tuple[Array, Array]:
    """Labels as a matrix, padded with -1, and the number of labels of each row."""
    rows, columns = indices[:, 0], indices[:, 1]
    if rows.size and (rows.min() < 0 or rows.max() >= batch):
        raise errors.invalid(f"labels name batch entry {rows.max()}, but there are only {batch}")
    width = int(columns.max()) + 1 if columns.size else 0
    labels = np.full((batch, width), -1, np.int64)
    labels[rows, columns] = values
    return labels, np.bincount(rows, minlength=batch)


def _collapsed(labels: Array, lengths: Array) -> tuple[Array, Array]:
    """Labels without repeats of the previous one, and their numbers."""
    kept = labels >= 0
    kept[:, 1:] &= labels[:, 1:] != labels[:, :-1]
    lengths = kept.sum(1)
    result = np.full_like(labels, -1)
    result[np.arange(labels.shape[1])[None, :] < lengths[:, None]] = labels[kept]
    return result, lengths


def _repeats(labels: Array) -> Array:
    same = (labels[:, 1:] == labels[:, :-1]) & (labels[:, 1:] >= 0)
    return same.sum(1)


class _Paths:
    """The forward and backward variables of a batch, with loss and gradient.

    States are the labels with blanks before, between and after them: 2 · length + 1 of each row.
    """

    def __init__(
        self, inputs: Array, labels: Array, lengths: Array, times: Array, merge: bool
    ) -> None:
        frames, batch, classes = len(inputs), len(lengths), int(inputs.shape[2])
        self._times = times
        self._live = np.arange(frames)[:, None] < times[None, :]
        self._log_y = _log_softmax(np.where(self._live[:, :, None], inputs, 0))
        self._states = np.full((batch, 2 * labels.shape[1] + 1), classes - 1)
        self._states[:, 1::2] = np.where(labels >= 0, labels, classes - 1)
        self._last = 2 * lengths
        self._set_transitions(classes - 1, merge)
        emitted = np.take_along_axis(self._log_y, self._states[None], 2)
        forward, backward = self._forward(emitted), self._backward(emitted)
        self._log_p = self._at_end(forward[-1]) if frames else np.zeros(batch)
        self._occupied = forward + backward

    def _set_transitions(self, blank: int, merge: bool) -> None:
        """Log transition weights: -inf for states that may not repeat, be skipped to, or exist."""
        states, is_blank = self._states, self._states == blank
        self._exists = np.arange(states.shape[1])[None, :] <= self._last[:, None]
        self._stay = np.where(is_blank | merge, 0.0, -np.inf)
        skips = ~is_blank
        skips[:, :2] = False
        if merge:
            skips[:, 2:] &= states[:, 2:] != states[:, :-2]
        self._skip = np.where(skips, 0.0, -np.inf)

    def _forward(self, emitted: Array) -> Array:
        alpha = np.full(emitted.shape, -np.inf)
        current = np.full(self._states.shape, -np.inf)
        current[:, 0] = 0
        current[:, 1:2] = 0
        for time, log_y in enumerate(emitted):
            if time:
                current = _sum_of(
                    current + self._stay,
                    _shifted(current, 1),
                    _shifted(current, 2) + self._skip,
                )
            current = np.where(self._exists, current + log_y, -np.inf)
            if time:
                current = np.where(self._live[time][:, None], current, alpha[time - 1])
            alpha[time] = current
        return alpha

    def _backward(self, emitted: Array) -> Array:
        beta = np.full(emitted.shape, -np.inf)
        places = np.arange(self._states.shape[1])[None, :]
        is_end = (places == self._last[:, None]) | (places == self._last[:, None] - 1)
        end = np.where(is_end, 0.0, -np.inf)
        current = end
        for time in range(len(emitted) - 1, -1, -1):
            if time + 1 < len(emitted):
                onward = current + emitted[time + 1]
                current = _sum_of(
                    onward + self._stay,
                    _shifted(onward, -1),
                    _shifted(onward + self._skip, -2),
                )
            current = np.where((self._times == time + 1)[:, None], end, current)
            beta[time] = current
        return beta

    def _at_end(self, alpha: Array) -> Array:
        """log p: a path ends on the last label or on the blank after it."""
        rows = np.arange(len(alpha))
        on_label = np.where(self._last > 0, alpha[rows, self._last - 1], -np.inf)
        return np.logaddexp(alpha[rows, self._last], on_label)

    @property
    def loss(self) -> Array:
        """-log p; 0 for sequences without frames."""
        return np.where(self._times > 0, -self._log_p, 0.0)

    @property
    def gradient(self) -> Array:
        """softmax - the probability that a path of the labels has the class in a frame."""
        found = np.isfinite(self._log_p)
        share = np.exp(self._occupied - np.where(found, self._log_p, 0)[None, :, None])
        gradient = np.exp(self._log_y)
        rows = np.arange(len(self._states))
        for state in range(self._states.shape[1]):
            gradient[:, rows, self._states[:, state]] -= share[:, :, state]
        return np.where((self._live & found[None, :])[:, :, None], gradient, 0)


def _log_softmax(x: Array) -> Array:
    shifted = x.astype(np.float64) - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _sum_of(first: Array, second: Array, third: Array) -> Array:
    return np.logaddexp(np.logaddexp(first, second), third)


def _shifted(x: Array, by: int) -> Array:
    """Columns shifted to the right by `by` (to the left if negative), filled with -inf."""
    result = np.full_like(x, -np.inf)
    if by > 0:
        result[:, by:] = x[:, :-by]
    else:
        result[:, :by] = x[:, -by:]
    return result


@public("nn.ctc_loss")
def ctc_loss(
    labels: SparseLike,
    inputs: Any = None,
    sequence_length: Any = None,
    preprocess_collapse_repeated: bool = False,
    ctc_merge_repeated: bool = True,
    ignore_longer_outputs_than_inputs: bool = False,
    time_major: bool = True,
    logits: Any = None,
) -> Tensor:
    """The CTC loss of each sequence of `labels`, a SparseTensor, under frame-wise logits.

    Args:
        labels: an int32 SparseTensor [batch, time] of classes.
        inputs, logits: [time, batch, classes + 1], the last class being the blank; by the old or
            new name.
        sequence_length: [batch]: the number of frames of each sequence.
        preprocess_collapse_repeated: whether repeated labels are merged first.
        ctc_merge_repeated: whether repeated classes of frames count as one.
        ignore_longer_outputs_than_inputs: whether labels that are longer than the frames have a
            loss of 0 instead of being an error.
        time_major: whether time is the first axis, as above, or the batch.

    Returns:
        A tensor [batch].

    Example:
        >>> labels = tf.SparseTensor([[0, 0]], [0], [1, 1])
        >>> sess.run(tf.nn.ctc_loss(tf.cast(labels, tf.int32), tf.zeros([1, 1, 2]), [1]))
        array([0.6931472], dtype=float32)
    """
    if isinstance(inputs, SparseTensor):
        labels, inputs = inputs, labels  # the order before TensorFlow 1.0
    if not isinstance(labels, SparseTensor):
        raise TypeError("Expected labels (first argument) to be a SparseTensor")
    frames = convert_to_tensor(one_of("inputs", inputs, "logits", logits), name="inputs")
    if not time_major:
        frames = transposing.transpose(frames, [1, 0, 2])
    op = CTCLoss(
        preprocess_collapse_repeated=bool(preprocess_collapse_repeated),
        ctc_merge_repeated=bool(ctc_merge_repeated),
        ignore_longer_outputs_than_inputs=bool(ignore_longer_outputs_than_inputs),
    )
    loss, _ = op(frames, labels.indices, labels.values, sequence_length)
    return loss


@public("nn.ctc_loss_v2")
def ctc_loss_v2(
    labels: TensorLike | SparseLike,
    logits: Any,
    label_length: TensorLike | None,
    logit_length: TensorLike,
    logits_time_major: bool = True,
    unique: tuple[TensorLike, TensorLike] | None = None,
    blank_index: int | None = None,
    name: str | None = None,
) -> Tensor:
    """The CTC loss of dense labels with lengths, or sparse labels; the blank may be any class.

    For dense labels the blank is class 0 by default; negative indices count from the last class.
    """
    is_sparse = isinstance(labels, SparseTensor)
    if is_sparse and blank_index is None:
        raise ValueError("blank_index must be given when using SparseTensor labels.")
    with name_scope(name, "ctc_loss", [logits, label_length, logit_length]):
        frames = convert_to_tensor(logits, name="logits")
        sparse = labels if is_sparse else _as_sparse(labels, label_length)
        frames, values = _blank_last(frames, sparse.values, blank_index or 0)
        moved = SparseTensor(sparse.indices, values, sparse.dense_shape)
        return ctc_loss(moved, frames, logit_length, time_major=logits_time_major)


def _as_sparse(labels: Any, label_length: Any) -> SparseTensor:
    dense = convert_to_tensor(labels, name="labels")
    sizes = shaping.shape(dense, out_type=dtypes.int64)
    lengths = casting.cast(convert_to_tensor(label_length), dtypes.int64)
    present = filling.range(sizes[1]) < shaping.expand_dims(lengths, 1)
    places = choosing.where(present)
    return SparseTensor(places, indexing.gather_nd(dense, places), sizes)


def _blank_last(logits: Tensor, labels: Tensor, blank: int) -> tuple[Tensor, Tensor]:
    """Logits with the class of the blank moved to the end, and labels renumbered."""
    classes = logits.shape[2].value
    if blank < 0 and classes is None:
        raise ValueError("A negative blank_index needs a known number of classes")
    place = blank if blank >= 0 else blank + (classes or 0)
    values = casting.cast(labels, dtypes.int32)
    if classes is not None and place == classes - 1:
        return logits, values
    parts = [logits[:, :, :place], logits[:, :, place + 1 :], logits[:, :, place : place + 1]]
    after = casting.cast(values > place, dtypes.int32)
    return joining.concat(parts, 2), values - after
