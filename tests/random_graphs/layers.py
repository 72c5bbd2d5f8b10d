"""What networks are made of, as rules for random graphs: windows, normalisation, indices, scans."""

from __future__ import annotations

from typing import Any

import numpy as np

import thalweg as tf
from tests.random_graphs.generator import GraphGenerator
from tests.random_graphs.rules import EVERYTHING, Rule, axes_of, binary, unary

SMALL = (1, 2, 3)
WINDOW_DTYPES = [np.float32, np.float64, np.float16]


def image(s: GraphGenerator) -> tf.Tensor:
    """A batch of images with channels: one at hand, or a new one."""
    fitting = [
        t
        for t in s.tensors
        if s.values[t].ndim == 4 and s.values[t].dtype in WINDOW_DTYPES and s.values[t].size
    ]
    if fitting and s.flip():
        return s.choose(fitting)
    shape = (s.choose((0, 1, 2)), s.number(1, 7), s.number(1, 6), s.choose(SMALL))
    return s.placeholder(s.choose([d for d in WINDOW_DTYPES if d in s.dtypes]), shape)


def strides(s: GraphGenerator) -> list[int]:
    return [1, s.number(1, 3), s.number(1, 3), 1]


def fits(s: GraphGenerator, x: tf.Tensor, window: list[int], padding: str) -> bool:
    sizes = s.values[x].shape[1:3]
    return padding == "SAME" or all(w <= n for w, n in zip(window, sizes, strict=True))


def convolution(s: GraphGenerator) -> Any:
    x = image(s)
    window, padding = [s.number(1, 4), s.number(1, 3)], s.choose(("SAME", "VALID"))
    if not fits(s, x, window, padding):
        return None
    channels = s.values[x].shape[3]
    if s.flip():
        kernel = s.constant_like(x, (*window, channels, s.choose((1, 2))))
        across = s.number(1, 2)
        return tf.nn.depthwise_conv2d(x, kernel, [1, across, across, 1], padding)
    kernel = s.constant_like(x, (*window, channels, s.choose((1, 2, 5))))
    return tf.nn.conv2d(x, kernel, strides(s), padding)


def dilated(s: GraphGenerator) -> Any:
    x = image(s)
    kernel = s.constant_like(x, (2, 2, s.values[x].shape[3], s.choose((1, 3))))
    return tf.nn.convolution(x, kernel, "SAME", dilation_rate=[s.number(1, 2), s.number(1, 3)])


def pooling(s: GraphGenerator) -> Any:
    x = image(s)
    window, padding = [s.number(1, 3), s.number(1, 3)], s.choose(("SAME", "VALID"))
    if not fits(s, x, window, padding) or not s.values[x].size:
        return None
    pool = s.choose((tf.nn.max_pool, tf.nn.avg_pool))
    return pool(x, [1, *window, 1], strides(s), padding)


def dense(s: GraphGenerator) -> Any:
    """A matrix product with a bias, as large as contractions are."""
    x = s.pick("f", 1)
    rows = s.choose((1, 3, 17))
    flat = tf.reshape(x, [1, s.values[x].size])
    left = s.constant_like(x, (rows, s.choose((1, 19, 40))))
    middle = tf.reshape(tf.tile(flat, [1, 40]), [-1])[: 40 * s.values[left].shape[1]]
    if s.values[x].size < s.values[left].shape[1]:
        return None
    right = tf.reshape(middle, [s.values[left].shape[1], 40])
    return tf.reduce_mean(tf.matmul(left, right), int(s.flip()))


def bias(s: GraphGenerator) -> Any:
    x = s.pick("f", 2)
    return tf.nn.bias_add(x, s.constant_like(x, s.values[x].shape[-1:]))


def softmax(s: GraphGenerator) -> Any:
    x = s.pick("f", 1)
    if not s.values[x].shape[-1]:
        return None
    return s.choose((tf.nn.softmax, tf.nn.log_softmax))(x)


def cross_entropy(s: GraphGenerator) -> Any:
    x = s.pick("f", 2)
    if s.values[x].ndim != 2 or not s.values[x].size:
        return None
    rows, classes = s.values[x].shape
    if s.flip():
        labels = s.array(np.int32, (rows,)) % classes
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x)
    labels = tf.nn.softmax(s.constant_like(x, (rows, classes)))
    return tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=x)


def moments(s: GraphGenerator) -> Any:
    x = s.pick("f", 1)
    if not s.values[x].size:
        return None
    mean, variance = tf.nn.moments(x, axes_of(s, x) or [0], keep_dims=True)
    small = tf.cast(0.1, x.dtype)
    return (x - mean) * tf.rsqrt(variance + small)


def cumulative(s: GraphGenerator) -> Any:
    x = s.pick("fi", 1)
    axis = s.number(0, s.values[x].ndim - 1)
    return s.choose((tf.cumsum, tf.cumprod))(x, axis, exclusive=s.flip(), reverse=s.flip())


def one_hot(s: GraphGenerator) -> Any:
    x = s.pick("i")
    if s.values[x].dtype not in (np.int32, np.int64):
        return None
    dtype = s.choose((tf.float32, tf.int32, tf.bool))
    return tf.one_hot(x, s.number(0, 4), dtype=dtype, axis=s.choose((-1, 0)))


def segment(s: GraphGenerator) -> Any:
    x = s.pick("fi", 1)
    count = s.values[x].shape[0]
    ids = s.array(np.int32, (count,)) % 4
    if s.flip() and count:
        return s.choose((tf.segment_sum, tf.segment_max, tf.segment_mean))(x, np.sort(ids))
    return tf.unsorted_segment_sum(x, ids - 1, 4)


def scatter(s: GraphGenerator) -> Any:
    x = s.pick("fi", 1)
    count = s.values[x].shape[0]
    rows = s.array(np.int32, (count, 1)) % 5
    return tf.scatter_nd(rows, x, [5, *s.values[x].shape[1:]])


def gather_nd(s: GraphGenerator) -> Any:
    x = s.pick("fiucb", 1)
    shape = s.values[x].shape
    if not s.values[x].size:
        return None
    depth = s.number(1, len(shape))
    places = np.stack([s.array(np.int32, (3,)) % size for size in shape[:depth]], -1)
    return tf.gather_nd(x, places)


def argument_of_extreme(s: GraphGenerator) -> Any:
    x = s.pick("fi", 1)
    axis = s.number(0, s.values[x].ndim - 1)
    if not s.values[x].shape[axis]:
        return None
    return s.choose((tf.argmax, tf.argmin))(x, axis)


def reverse(s: GraphGenerator) -> Any:
    x = s.pick()
    return tf.reverse(x, axes_of(s, x))


def mirrored(s: GraphGenerator) -> Any:
    x = s.pick("fi", 1)
    if min(s.values[x].shape) < 2:
        return None
    return tf.pad(x, [[s.number(0, 1)] * 2 for _ in s.values[x].shape], s.choose(MIRRORS))


MIRRORS = ("REFLECT", "SYMMETRIC")


def whole_division(s: GraphGenerator) -> Any:
    x = s.pick("i")
    by = s.choose((1, 2, 3, 7, -3))
    return s.choose((tf.floordiv, tf.floormod, tf.truncatediv, tf.truncatemod))(
        x, tf.constant(by, x.dtype)
    )


def clip(s: GraphGenerator) -> Any:
    x = s.pick("f")
    return tf.clip_by_value(x, tf.cast(-1.0, x.dtype), tf.cast(0.75, x.dtype))


def branch(s: GraphGenerator) -> Any:
    """A choice by a comparison of computed values."""
    x = s.pick("f")
    return tf.where(tf.greater(x, tf.cast(0.25, x.dtype)), tf.square(x), tf.negative(x))


def product(s: GraphGenerator) -> Any:
    """A batch of matrix products."""
    x = s.pick("f", 3)
    return tf.matmul(x, x, transpose_b=True) if s.flip() else tf.matmul(x, x, transpose_a=True)


def long_reduction(s: GraphGenerator) -> Any:
    """A reduction long enough to be cut into parts."""
    x = s.fed(s.array(s.choose((np.float32, np.float64, np.int32)), (s.choose((1, 2, 3)), 24_001)))
    function = s.choose((tf.reduce_sum, tf.reduce_max, tf.reduce_min))
    return function(x, s.choose((None, 0, 1)) if s.flip() else 1)


def wide(s: GraphGenerator) -> Any:
    """Rows longer than a vector, which do not end where a vector does."""
    return s.placeholder(s.choose(s.dtypes), (s.number(1, 3), s.choose((15, 16, 17, 33, 100))))


def shift(s: GraphGenerator) -> Any:
    x = s.pick("i")
    return s.choose((tf.bitwise.bitwise_and, tf.bitwise.bitwise_or, tf.bitwise.bitwise_xor))(
        x, tf.constant(s.number(0, 100), x.dtype)
    )


NETWORK: dict[str, Rule] = {
    "convolution": convolution,
    "dilated": dilated,
    "pooling": pooling,
    "dense": dense,
    "bias": bias,
    "softmax": softmax,
    "cross entropy": cross_entropy,
    "moments": moments,
    "cumulative": cumulative,
    "one hot": one_hot,
    "segment": segment,
    "scatter": scatter,
    "gather_nd": gather_nd,
    "argument of extreme": argument_of_extreme,
    "reverse": reverse,
    "mirrored": mirrored,
    "whole division": whole_division,
    "clip": clip,
    "branch": branch,
    "product": product,
    "wide": wide,
    "long reduction": long_reduction,
    "bits": shift,
    "inverse": unary([tf.rsqrt, tf.reciprocal, tf.log, tf.expm1, tf.erf], "f"),
    "activation": unary([tf.nn.elu, tf.nn.selu, tf.nn.relu6, tf.nn.softsign, tf.round], "f"),
    "angle": unary([tf.atan, tf.asinh, tf.cosh, tf.tan, tf.cos], "f"),
    "power": binary([tf.pow, tf.squared_difference, tf.atan2], "f"),
}

COMPILED: dict[str, Rule] = EVERYTHING | NETWORK
