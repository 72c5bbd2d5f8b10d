"""Losses and random tensors of `tensorflow.python.keras.backend`."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.alias import names
from thalweg.alias.inside.keras.backend_settings import epsilon, floatx

tf = names.root()


def _clipped(output: Any) -> Any:
    margin = tf.cast(epsilon(), output.dtype.base_dtype)
    return tf.clip_by_value(output, margin, 1.0 - margin)


def _logits_behind(output: Any, kind: str) -> Any:
    """The logits of a tensor that is a softmax or a sigmoid of them, None otherwise.

    The loss of logits is exact where that of probabilities has lost its digits.
    """
    node = getattr(output, "op", None)
    if node is None or isinstance(output, tf.Variable) or node.type != kind:
        return None
    return node.inputs[0]


def categorical_crossentropy(
    target: Any, output: Any, from_logits: bool = False, axis: int = -1
) -> Any:
    """The cross-entropy of one-hot targets and probabilities, or logits."""
    if not 0 <= (axis if axis >= 0 else axis + output.shape.rank) < output.shape.rank:
        raise ValueError(f"Unexpected channels axis {axis}, of {output.shape.rank} dimensions.")
    target, output = tf.convert_to_tensor(target), tf.convert_to_tensor(output)
    target = tf.cast(target, output.dtype)
    logits = output if from_logits else _logits_behind(output, "Softmax")
    if logits is not None:
        return tf.nn.softmax_cross_entropy_with_logits_v2(labels=target, logits=logits, axis=axis)
    output = output / tf.reduce_sum(output, axis, keepdims=True)
    return -tf.reduce_sum(target * tf.log(_clipped(output)), axis)


def sparse_categorical_crossentropy(
    target: Any, output: Any, from_logits: bool = False, axis: int = -1
) -> Any:
    """The cross-entropy of class numbers and probabilities, or logits."""
    rank = output.shape.rank
    if not 0 <= (axis if axis >= 0 else axis + rank) < rank:
        raise ValueError(f"Unexpected channels axis {axis}, of {rank} dimensions.")
    if axis % rank != rank - 1:
        order = [d for d in range(rank) if d != axis % rank]
        output = tf.transpose(output, [*order, axis % rank])
    logits = output if from_logits else _logits_behind(output, "Softmax")
    if logits is None:
        logits = tf.log(_clipped(output))
    shape = tf.shape(output)
    classes = output.shape[-1].value
    labels = tf.cast(tf.reshape(target, [-1]), tf.int64)
    flat = tf.reshape(logits, [-1, classes if classes is not None else shape[-1]])
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=flat)
    return tf.reshape(loss, shape[:-1]) if rank >= 3 else loss


def binary_crossentropy(target: Any, output: Any, from_logits: bool = False) -> Any:
    """The cross-entropy of 0 or 1 and a probability, or a logit."""
    target, output = tf.convert_to_tensor(target), tf.convert_to_tensor(output)
    target = tf.cast(target, output.dtype)
    logits = output if from_logits else _logits_behind(output, "Sigmoid")
    if logits is None:
        output = _clipped(output)
        margin = epsilon()
        found = target * tf.log(output + margin)
        return -(found + (1 - target) * tf.log(1 - output + margin))
    return tf.nn.sigmoid_cross_entropy_with_logits(labels=target, logits=logits)


def hard_sigmoid(x: Any) -> Any:
    """A sigmoid of three straight lines."""
    return tf.clip_by_value(0.2 * x + 0.5, 0.0, 1.0)


def _seeded(seed: int | None) -> int:
    return int(np.random.randint(10**7)) if seed is None else seed


def random_normal(
    shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: int | None = None
) -> Any:
    """Normal numbers."""
    kind = dtype or floatx()
    return tf.random_normal(shape, mean=mean, stddev=stddev, dtype=kind, seed=_seeded(seed))


def random_uniform(
    shape: Any, minval: Any = 0.0, maxval: Any = 1.0, dtype: Any = None, seed: int | None = None
) -> Any:
    """Uniform numbers."""
    kind = dtype or floatx()
    return tf.random_uniform(shape, minval=minval, maxval=maxval, dtype=kind, seed=_seeded(seed))


def random_binomial(shape: Any, p: Any = 0.0, dtype: Any = None, seed: int | None = None) -> Any:
    """Ones with probability `p`, zeros otherwise."""
    kind = dtype or floatx()
    drawn = tf.random_uniform(shape, dtype=kind, seed=_seeded(seed))
    return tf.where(drawn <= p, tf.ones(shape, dtype=kind), tf.zeros(shape, dtype=kind))


def truncated_normal(
    shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: int | None = None
) -> Any:
    """Normal numbers within two standard deviations."""
    kind = dtype or floatx()
    return tf.truncated_normal(shape, mean, stddev, dtype=kind, seed=_seeded(seed))
