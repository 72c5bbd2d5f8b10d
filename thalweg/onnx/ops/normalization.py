"""Normalisations and softmaxes."""

from __future__ import annotations

import math
from typing import Any

from thalweg.graph import dtypes
from thalweg.graph.node import Tensor
from thalweg.onnx.registry import NodeView, operator
from thalweg.onnx.values import at_axis, axis_of, cast_to, like, rank_of, shape_vector, sizes_of
from thalweg.ops.arrays import padding
from thalweg.ops.core import casting, choosing, filling, shaping
from thalweg.ops.math import arithmetic, compare, reduce, transcendental
from thalweg.ops.nn import softmax as softmaxes


def as_matrix(x: Tensor, axis: int) -> Tensor:
    """A tensor as a matrix, its axes from one on as columns."""
    sizes = sizes_of(x)
    rows: Any = 1
    for size in sizes[:axis]:
        rows = rows * size
    columns: Any = 1
    for size in sizes[axis:]:
        columns = columns * size
    return shaping.reshape(x, shape_vector([rows, columns]))


_SOFTMAXES = {"Softmax": softmaxes.softmax, "LogSoftmax": softmaxes.log_softmax}


@operator(*_SOFTMAXES)
def softmax_flat(node: NodeView, x: Tensor) -> Tensor:
    """Before version 13, over all axes from one on."""
    found = _SOFTMAXES[node.op](as_matrix(x, axis_of(node, x, 1)), -1)
    return shaping.reshape(found, shape_vector(sizes_of(x)))


@operator(*_SOFTMAXES, since=13)
def softmax(node: NodeView, x: Tensor) -> Tensor:
    return _SOFTMAXES[node.op](x, axis_of(node, x, -1))


@operator("BatchNormalization")
def batch_normalization(
    node: NodeView, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor
) -> Any:
    """By given statistics; in training by those of the batch, with the running ones besides."""
    shape = [-1, *[1] * (rank_of(node, x) - 2)]
    momentum, results = float(node.get("momentum", 0.9)), ()
    if node.get("training_mode", 0):
        axes = [axis for axis in range(rank_of(node, x)) if axis != 1]
        now = reduce.reduce_mean(x, axes)
        spread = reduce.reduce_mean(arithmetic.square(x - shaping.reshape(now, shape)), axes)
        results = tuple(
            old * like(momentum, old)
            + casting.cast(new, old.dtype.base_dtype) * like(1 - momentum, old)
            for old, new in ((mean, now), (variance, spread))
        )
        mean, variance = now, spread
    kind = x.dtype.base_dtype
    scale, bias, mean, variance = (
        shaping.reshape(casting.cast(each, kind), shape) for each in (scale, bias, mean, variance)
    )
    root = transcendental.sqrt(variance + like(node.get("epsilon", 1e-5), x))
    found = (x - mean) / root * scale + bias
    return (found, *results) if results else found


@operator("InstanceNormalization")
def instance_normalization(node: NodeView, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    shape = [-1, *[1] * (rank_of(node, x) - 2)]
    found = _standardized(x, list(range(2, rank_of(node, x))), node.get("epsilon", 1e-5))
    return found * shaping.reshape(scale, shape) + shaping.reshape(bias, shape)


def _standardized(x: Tensor, axes: list[int], epsilon: float) -> Tensor:
    mean = reduce.reduce_mean(x, axes, True)
    variance = reduce.reduce_mean(arithmetic.square(x - mean), axes, True)
    return (x - mean) / transcendental.sqrt(variance + like(epsilon, x))


@operator("LayerNormalization", since=17)
def layer_normalization(node: NodeView, x: Tensor, scale: Tensor, bias: Any = None) -> Any:
    axes = list(range(axis_of(node, x, -1), rank_of(node, x)))
    kind = x.dtype.base_dtype
    wide = casting.cast(x, dtypes.float32) if kind.size < 4 else x
    mean = reduce.reduce_mean(wide, axes, True)
    variance = reduce.reduce_mean(arithmetic.square(wide - mean), axes, True)
    inverse = like(1, wide) / transcendental.sqrt(variance + like(node.get("epsilon", 1e-5), wide))
    found = cast_to((wide - mean) * inverse, kind) * scale
    return found if bias is None else found + bias, mean, inverse


@operator("GroupNormalization", since=18)
def group_normalization(node: NodeView, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    groups, sizes = int(node.get("num_groups")), sizes_of(x)
    apart = shaping.reshape(x, shape_vector([sizes[0], groups, -1]))
    found = _standardized(apart, [2], node.get("epsilon", 1e-5))
    if node.version < 21:  # a scale for each group, not for each channel
        found = found * shaping.reshape(scale, [1, -1, 1]) + shaping.reshape(bias, [1, -1, 1])
        return shaping.reshape(found, shape_vector(sizes))
    shape = [-1, *[1] * (rank_of(node, x) - 2)]
    found = shaping.reshape(found, shape_vector(sizes))
    return found * shaping.reshape(scale, shape) + shaping.reshape(bias, shape)


@operator("LpNormalization")
def lp_normalization(node: NodeView, x: Tensor) -> Tensor:
    axis = axis_of(node, x, -1)
    if int(node.get("p", 2)) == 1:
        norm = reduce.reduce_sum(arithmetic.absolute(x), axis, True)
    else:
        norm = transcendental.sqrt(reduce.reduce_sum(arithmetic.square(x), axis, True))
    is_zero = compare.equal(norm, like(0, x))
    safe = choosing.where_v2(is_zero, filling.ones_like(norm), norm)
    return choosing.where_v2(is_zero, filling.zeros_like(x), x / safe)


@operator("LRN")
def lrn(node: NodeView, x: Tensor) -> Tensor:
    """Each channel by the squares of those around it."""
    import numpy as np

    size = int(node.get("size"))
    before, after = (size - 1) // 2, math.ceil((size - 1) / 2)
    border = np.zeros((rank_of(node, x), 2), np.int64)
    border[1] = before, after
    squares = padding.pad(arithmetic.square(x), border)
    count = shaping.shape(x)[1]
    total = at_axis(squares, 1, 0, count)
    for start in range(1, size):
        total = total + at_axis(squares, 1, start, count)
    scale = like(node.get("alpha", 1e-4) / size, x)
    base = like(node.get("bias", 1.0), x) + scale * total
    return x / arithmetic.power(base, like(node.get("beta", 0.75), x))


@operator("MeanVarianceNormalization", since=9)
def mean_variance_normalization(node: NodeView, x: Tensor) -> Tensor:
    axes = list(node.get("axes") or [0, 2, 3])
    mean = reduce.reduce_mean(x, axes, True)
    variance = reduce.reduce_mean(arithmetic.square(x), axes, True) - arithmetic.square(mean)
    return (x - mean) / (transcendental.sqrt(variance) + like(1e-9, x))
