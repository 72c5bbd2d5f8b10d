"""Means and variances, and normalising by them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.arrays import indexing
from thalweg.ops.core import basic, casting, filling, shaping
from thalweg.ops.math import arithmetic, reduce, transcendental
from thalweg.ops.nn.convolution import one_of
from thalweg.public import public


@public("nn.moments")
def moments(
    x: Any,
    axes: Any,
    shift: TensorLike | None = None,
    name: str | None = None,
    keep_dims: bool | None = None,
    keepdims: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """The mean and the variance of `x` over axes.

    Args:
        x: a floating tensor.
        axes: the axes, such as [0] for columns, [0, 1, 2] for the channels of images.
        shift: taken for old programs; no longer needed.
        name: the name of the nodes.
        keep_dims: the old name of `keepdims`.
        keepdims: True keeps the reduced axes, with size 1.

    Returns:
        (mean, variance), of the dtype of `x`.

    Example:
        >>> mean, variance = tf.nn.moments(tf.constant([[1.0, 2.0], [3.0, 6.0]]), axes=[0])
        >>> sess.run([mean, variance])
        [array([2., 4.], dtype=float32), array([1., 4.], dtype=float32)]
    """
    keep = bool(keep_dims if keepdims is None else keepdims)
    with name_scope(name, "moments", [x, axes]):
        tensor = convert_to_tensor(x, name="x")
        wide = _widened(tensor)
        mean = reduce.reduce_mean(wide, axes, keepdims=True, name="mean")
        squares = arithmetic.squared_difference(wide, mean)
        variance = reduce.reduce_mean(squares, axes, keepdims=True, name="variance")
        return _finished(mean, variance, tensor, axes, keep)


def _widened(x: Tensor) -> Tensor:
    """Narrow floats as float32: sums of squares leave the range of float16 at once."""
    return casting.cast(x, x.dtype.compute_dtype)


def _finished(
    mean: Tensor, variance: Tensor, x: Tensor, axes: Any, keep: bool
) -> tuple[Tensor, Tensor]:
    kind = x.dtype.base_dtype
    if not keep:
        mean, variance = (_without(part, axes) for part in (mean, variance))
    return casting.cast(mean, kind), casting.cast(variance, kind)


def _without(x: Tensor, axes: Any) -> Tensor:
    """`x`, of size 1 along `axes`, without them."""
    if isinstance(axes, Tensor):
        return reduce.reduce_sum(x, axes)
    return shaping.squeeze(x, axes) if np.size(axes) else x


@public("nn.weighted_moments")
def weighted_moments(
    x: Any,
    axes: Any,
    frequency_weights: Any,
    name: str | None = None,
    keep_dims: bool | None = None,
    keepdims: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """The mean and the variance of `x` over `axes`, each element counted by its weight.

    Args:
        x: a tensor.
        axes: the axes to reduce.
        frequency_weights: how often each element counts, of a shape that broadcasts.
        name: the name of the nodes.
        keep_dims, keepdims: whether reduced axes stay, with size 1.

    Returns:
        (mean, variance).

    Example:
        >>> sess.run(tf.nn.weighted_moments(tf.constant([1.0, 5.0]), [0], [3.0, 1.0]))
        (np.float32(2.0), np.float32(3.0))
    """
    keep = bool(keep_dims if keepdims is None else keepdims)
    with name_scope(name, "weighted_moments", [x, frequency_weights, axes]):
        tensor = convert_to_tensor(x, name="x")
        wide = _widened(tensor)
        given = convert_to_tensor(frequency_weights, name="frequency_weights")
        weights = casting.cast(given, wide.dtype.base_dtype)
        total = reduce.reduce_sum(weights + filling.zeros_like(wide), axes, keepdims=True)
        mean = reduce.reduce_sum(weights * wide, axes, keepdims=True) / total
        squares = weights * arithmetic.squared_difference(wide, mean)
        variance = reduce.reduce_sum(squares, axes, keepdims=True) / total
        return _finished(mean, variance, tensor, axes, keep)


@public("nn.sufficient_statistics")
def sufficient_statistics(
    x: Any,
    axes: Sequence[int],
    shift: Any = None,
    keep_dims: bool | None = None,
    name: str | None = None,
    keepdims: bool | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The count, sum and sum of squares of `x - shift` over `axes`, and the shift.

    Args:
        x: a tensor.
        axes: the axes to sum over.
        shift: what is subtracted first, near the mean; None: 0.
        keep_dims, keepdims: whether reduced axes stay, with size 1.
        name: the name of the nodes.

    Returns:
        (count, sum, sum of squares, shift or None).

    Example:
        >>> count, total, squares, _ = tf.nn.sufficient_statistics(tf.constant([1.0, 3.0]), [0])
        >>> sess.run([count, total, squares])
        [np.float32(2.0), np.float32(4.0), np.float32(10.0)]
    """
    keep = bool(keep_dims if keepdims is None else keepdims)
    along = list(dict.fromkeys(axes))
    with name_scope(name, "sufficient_statistics", [x, shift]):
        tensor = convert_to_tensor(x, name="x")
        kind = tensor.dtype.base_dtype
        offset = None if shift is None else convert_to_tensor(shift, kind, name="shift")
        shifted = tensor if offset is None else tensor - offset
        squares = arithmetic.square(shifted)
        return (
            _count(tensor, along),
            reduce.reduce_sum(shifted, along, keepdims=keep, name="mean_ss"),
            reduce.reduce_sum(squares, along, keepdims=keep, name="var_ss"),
            offset,
        )


def _count(x: Tensor, axes: list[int]) -> Tensor:
    kind = x.dtype.base_dtype
    sizes = [x.shape[axis].value for axis in axes]
    known = [size for size in sizes if size is not None]
    if len(known) == len(sizes):
        return basic.constant(math.prod(known), kind)
    sizes_now = casting.cast(shaping.shape(x), kind)
    return reduce.reduce_prod(indexing.gather(sizes_now, axes), name="count")


@public("nn.normalize_moments")
def normalize_moments(
    counts: Any, mean_ss: Any, variance_ss: Any, shift: Any, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """The mean and the variance from what `sufficient_statistics` gave.

    Args:
        counts: how many elements there are.
        mean_ss: the sum of x - shift.
        variance_ss: the sum of its squares.
        shift: the shift; None: 0.
        name: the name of the nodes.

    Returns:
        (mean, variance).

    Example:
        >>> count, total, squares, shift = tf.nn.sufficient_statistics(tf.constant([1.0, 3.0]), [0])
        >>> sess.run(tf.nn.normalize_moments(count, total, squares, shift))
        (np.float32(2.0), np.float32(1.0))
    """
    with name_scope(name, "normalize", [counts, mean_ss, variance_ss, shift]):
        divisor = arithmetic.reciprocal(counts, name="divisor")
        shifted = arithmetic.multiply(
            mean_ss, divisor, name="mean" if shift is None else "shifted_mean"
        )
        mean = shifted if shift is None else arithmetic.add(shifted, shift, name="mean")
        squares = arithmetic.multiply(variance_ss, divisor)
        variance = arithmetic.subtract(squares, arithmetic.square(shifted), name="variance")
        return mean, variance


@public("nn.batch_normalization")
def batch_normalization(
    x: Any,
    mean: Any,
    variance: Any,
    offset: Any,
    scale: Any,
    variance_epsilon: TensorLike,
    name: str | None = None,
) -> Tensor:
    """Normalize by given moments: (x - mean) / sqrt(variance + variance_epsilon) · scale + offset.

    Args:
        x: a floating tensor.
        mean, variance: the moments, of shapes that broadcast to that of `x`.
        offset: what is added, or None.
        scale: what is multiplied, or None.
        variance_epsilon: a small number that keeps the quotient finite.
        name: the name of the nodes.

    Returns:
        A tensor of the shape and dtype of `x`.

    Example:
        >>> x = tf.constant([[1.0, 2.0], [3.0, 6.0]])
        >>> mean, variance = tf.nn.moments(x, [0])
        >>> sess.run(tf.nn.batch_normalization(x, mean, variance, None, None, 0.0))
        array([[-1., -1.],
               [ 1.,  1.]], dtype=float32)
    """
    with name_scope(name, "batchnorm", [x, mean, variance, scale, offset]):
        tensor = convert_to_tensor(x)
        kind = tensor.dtype.base_dtype
        inverse = transcendental.rsqrt(convert_to_tensor(variance) + variance_epsilon)
        factor: Tensor = inverse if scale is None else inverse * scale
        start: Tensor = -mean * factor if offset is None else offset - mean * factor
        return tensor * casting.cast(factor, kind) + casting.cast(start, kind)


@public("nn.batch_norm_with_global_normalization")
def batch_norm_with_global_normalization(
    t: Any = None,
    m: Any = None,
    v: Any = None,
    beta: Any = None,
    gamma: Any = None,
    variance_epsilon: TensorLike | None = None,
    scale_after_normalization: bool | None = None,
    name: str | None = None,
    input: Any = None,
    mean: Any = None,
    variance: Any = None,
) -> Tensor:
    """`batch_normalization` under its old name; scales only `scale_after_normalization`.

    Args:
        t, input: the tensor [batch, height, width, depth], by its old or new name.
        m, mean: the means [depth].
        v, variance: the variances [depth].
        beta: what is added.
        gamma: the factors.
        variance_epsilon: what is added to the variances.
        scale_after_normalization: whether `gamma` counts.
        name: the name of the nodes.

    Returns:
        A tensor of the shape of the input.

    Example:
        >>> x = tf.constant([[[[1.0, 3.0]]]])
        >>> normalized = tf.nn.batch_norm_with_global_normalization(
        ...     x, [0.0, 1.0], [1.0, 4.0], [0.0, 0.0], [1.0, 1.0], 0.0, True
        ... )
        >>> sess.run(normalized).ravel()
        array([1., 1.], dtype=float32)
    """
    return batch_normalization(
        one_of("t", t, "input", input),
        one_of("m", m, "mean", mean),
        one_of("v", v, "variance", variance),
        beta,
        gamma if scale_after_normalization else None,
        0.0 if variance_epsilon is None else variance_epsilon,
        name,
    )
