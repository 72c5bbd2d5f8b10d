"""Losses by element, and the small functions of a tensor that training code leans on."""

from __future__ import annotations

import math
from typing import Any

from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.core import casting, choosing, filling
from thalweg.ops.math import arithmetic, compare, reduce, transcendental
from thalweg.ops.nn import activation, softmax
from thalweg.public import public


@public("nn.sigmoid_cross_entropy_with_logits")
def sigmoid_cross_entropy_with_logits(
    _sentinel: None = None,
    labels: TensorLike | None = None,
    logits: TensorLike | None = None,
    name: str | None = None,
    targets: TensorLike | None = None,
) -> Tensor:
    """The cross entropy of sigmoid(logits) against `labels`, element by element.

    For classes that do not exclude each other. Name the arguments; without names they are the
    logits, then the labels.

    Args:
        labels: probabilities of the shape and dtype of `logits`.
        logits: a floating tensor.
        name: the name of the node.
        targets: the old name of `labels`.

    Returns:
        A tensor of the shape and dtype of `logits`.

    Example:
        >>> loss = tf.nn.sigmoid_cross_entropy_with_logits(labels=[1.0, 0.0], logits=[0.0, -100.0])
        >>> sess.run(loss)
        array([0.6931472, 0.       ], dtype=float32)
    """
    first = labels if targets is None else targets
    given, wanted, _ = softmax.in_old_order(_sentinel, first, logits)
    with name_scope(name, "logistic_loss", [given, wanted]) as scope:
        x, z = _same_shape(given, wanted)
        # max(x, 0) - x z + log(1 + exp(-|x|)), in which 0 has one side only, for its gradient.
        zeros = filling.zeros_like(x)
        positive = x >= zeros
        rectified = choosing.where(positive, x, zeros)
        decay = choosing.where(positive, -x, x)
        tail = transcendental.log1p(transcendental.exp(decay))
        return arithmetic.add(rectified - x * z, tail, name=scope)


def _same_shape(logits: Any, labels: Any) -> tuple[Tensor, Tensor]:
    x = convert_to_tensor(logits, name="logits")
    z = convert_to_tensor(labels, name="labels")
    if not x.shape.is_compatible_with(z.shape):
        raise ValueError(f"logits and labels must have the same shape ({x.shape} vs {z.shape})")
    return x, z


@public("nn.weighted_cross_entropy_with_logits")
def weighted_cross_entropy_with_logits(
    labels: TensorLike | None = None,
    logits: TensorLike | None = None,
    pos_weight: Tensor | float | None = None,
    name: str | None = None,
    targets: Any = None,
) -> Tensor:
    """`tf.nn.sigmoid_cross_entropy_with_logits` in which positive labels count more or less.

    Args:
        labels: probabilities of the shape and dtype of `logits`.
        logits: a floating tensor.
        pos_weight: how often a positive label counts.
        name: the name of the nodes.
        targets: the old name of `labels`.

    Returns:
        A tensor of the shape and dtype of `logits`.

    Example:
        >>> loss = tf.nn.weighted_cross_entropy_with_logits(
        ...     labels=[1.0, 0.0], logits=[0.0, 0.0], pos_weight=2.0
        ... )
        >>> sess.run(loss)
        array([1.3862944, 0.6931472], dtype=float32)
    """
    if pos_weight is None:
        raise ValueError("pos_weight must be given.")
    wanted = labels if targets is None else targets
    with name_scope(name, "logistic_loss", [logits, wanted]) as scope:
        x, z = _same_shape(logits, wanted)
        weight = 1 + (pos_weight - 1) * z
        tail = transcendental.log1p(transcendental.exp(-abs(x)))
        return arithmetic.add((1 - z) * x, weight * (tail + activation.relu(-x)), name=scope)


@public("nn.log_poisson_loss")
def log_poisson_loss(
    targets: Any, log_input: Any, compute_full_loss: bool = False, name: str | None = None
) -> Tensor:
    """exp(log_input) - targets log_input, with Stirling's term for log(targets!) if asked for."""
    with name_scope(name, "log_poisson_loss", [log_input, targets]):
        c = convert_to_tensor(log_input, name="log_input")
        z = convert_to_tensor(targets, name="targets")
        if not c.shape.is_compatible_with(z.shape):
            raise ValueError(
                f"log_input and targets must have the same shape ({c.shape} vs {z.shape})"
            )
        loss = transcendental.exp(c) - c * z
        return loss + _log_factorial(z) if compute_full_loss else loss


def _log_factorial(z: Tensor) -> Tensor:
    """Stirling's approximation, and 0 for z in [0, 1]."""
    stirling = z * transcendental.log(z) - z + 0.5 * transcendental.log(2 * math.pi * z)
    zeros, ones = filling.zeros_like(z), filling.ones_like(z)
    return choosing.where(compare.logical_and(z >= zeros, z <= ones), zeros, stirling)


@public("nn.l2_normalize", "math.l2_normalize", "linalg.l2_normalize")
def l2_normalize(
    x: Any, axis: Any = None, epsilon: float = 1e-12, name: str | None = None, dim: Any = None
) -> Tensor:
    """`x` divided by its L2 norm along axes: x / sqrt(max(sum(x ** 2), epsilon)).

    Args:
        x: a floating tensor.
        axis: the axis or axes; None means all.
        epsilon: the least sum of squares.
        name: the name of the nodes.
        dim: the old name of `axis`.

    Returns:
        A tensor of the shape and dtype of `x`.

    Example:
        >>> sess.run(tf.nn.l2_normalize([3.0, 4.0], axis=0))
        array([0.6, 0.8], dtype=float32)
    """
    if axis is not None and dim is not None:
        raise ValueError("Cannot specify both 'axis' and 'dim'")
    with name_scope(name, "l2_normalize", [x]) as scope:
        tensor = convert_to_tensor(x, name="x")
        along = dim if axis is None else axis
        squares = reduce.reduce_sum(arithmetic.square(tensor), along, keepdims=True)
        inverse = transcendental.rsqrt(arithmetic.maximum(squares, epsilon))
        return arithmetic.multiply(tensor, inverse, name=scope)


@public("nn.zero_fraction", "math.zero_fraction")
def zero_fraction(value: Any, name: str | None = None) -> Tensor:
    """The fraction of elements that are zero.

    Args:
        value: a numeric tensor.
        name: the name of the nodes.

    Returns:
        A float32 scalar.

    Example:
        >>> sess.run(tf.nn.zero_fraction([0.0, 1.0, 0.0, 2.0]))
        np.float32(0.5)
    """
    with name_scope(name, "zero_fraction", [value]):
        tensor = convert_to_tensor(value, name="value")
        zero = filling.zeros([], tensor.dtype.base_dtype, name="zero")
        return reduce.reduce_mean(casting.cast(compare.equal(tensor, zero), dtypes.float32))
