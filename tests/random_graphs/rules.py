"""What may be added to a random graph: each rule takes a generator and adds one op that fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import thalweg as tf
from tests.random_graphs.generator import GraphGenerator

Rule = Callable[[GraphGenerator], Any]


def new_input(s: GraphGenerator) -> None:
    s.placeholder(s.choose(s.dtypes), s.shape())


def unary(functions: list[Callable[..., Any]], kinds: str) -> Rule:
    """A function of one tensor."""
    return lambda s: s.choose(functions)(s.pick(kinds))


def binary(functions: list[Callable[..., Any]], kinds: str) -> Rule:
    """A function of two tensors that broadcast against each other."""

    def rule(s: GraphGenerator) -> Any:
        one = s.pick(kinds)
        pair = [one, partner(s, one)]
        return s.choose(functions)(*(pair if s.flip() else pair[::-1]))

    return rule


def partner(s: GraphGenerator, one: tf.Tensor) -> tf.Tensor:
    """A tensor of the same dtype that broadcasts with this one."""
    value = s.values[one]
    fitting = [t for t in s.tensors if t.dtype == one.dtype and _broadcasts(s.values[t], value)]
    if s.flip():
        return s.choose(fitting) if fitting else one
    shape = [size if s.flip() else 1 for size in value.shape]
    return s.constant_like(one, tuple(shape[s.number(0, len(shape)) :]))


def _broadcasts(one: Any, other: Any) -> bool:
    try:
        return bool(np.prod(np.broadcast_shapes(one.shape, other.shape)) <= 400)
    except ValueError:
        return False


def reduction(functions: list[Callable[..., Any]], kinds: str, least_size: int = 0) -> Rule:
    """A reduction over some axes, none or all."""

    def rule(s: GraphGenerator) -> Any:
        x = s.pick(kinds)
        if s.values[x].size < least_size:
            return None
        axes = None if s.flip() else axes_of(s, x)
        return s.choose(functions)(x, axis=axes, keep_dims=s.flip())

    return rule


def axes_of(s: GraphGenerator, x: tf.Tensor) -> list[int]:
    """Some axes of a tensor, counted from either end."""
    rank = s.values[x].ndim
    return [axis - rank * s.flip() for axis in range(rank) if s.flip()]


def matmul(s: GraphGenerator) -> Any:
    x = s.pick("fc", 2)
    *batch, rows, columns = s.values[x].shape
    if s.flip():
        return tf.matmul(x, x, transpose_a=True)
    transposed = s.flip()
    inner = rows if transposed else columns
    other = s.constant_like(x, (*batch, inner, s.choose((0, 1, 3))))
    return tf.matmul(x, other, transpose_a=transposed)


def reshape(s: GraphGenerator) -> Any:
    x = s.pick()
    value = s.values[x]
    options: list[Any] = [[value.size], [1, value.size, 1], value.shape[::-1]]
    options += [[-1], [1, -1]] if value.size else []
    shape = s.choose(options)
    return tf.reshape(x, s.fed(np.array(shape, np.int32)) if s.flip() else shape)


def transpose(s: GraphGenerator) -> Any:
    x = s.pick()
    order = s.order(s.values[x].ndim)
    return tf.transpose(x, order if order and s.flip() else None)


def strided_slice(s: GraphGenerator) -> Any:
    x = s.pick("fiucb", 1)
    key: list[Any] = []
    for size in s.values[x].shape:
        start, stop = s.number(-size - 1, size), s.number(-size - 1, size)
        options: list[Any] = [slice(start, stop), slice(stop, start, -2), slice(None, None, 3)]
        options += [s.number(-size, size - 1)] if size else []
        key += [np.newaxis, s.choose(options)] if s.flip() else [s.choose(options)]
    return x[tuple(key)]


def slice_(s: GraphGenerator) -> Any:
    x = s.pick()
    begin = [s.number(0, size) for size in s.values[x].shape]
    rest = [size - at for size, at in zip(s.values[x].shape, begin, strict=True)]
    return tf.slice(x, begin, [-1 if s.flip() else s.number(0, size) for size in rest])


def concat(s: GraphGenerator) -> Any:
    x = s.pick("fiucb", 1)
    axis = s.number(0, s.values[x].ndim - 1)
    shape = list(s.values[x].shape)
    shape[axis] = s.choose((0, 1, 3))
    parts = [x, s.constant_like(x, tuple(shape)), x]
    return tf.concat(parts[: s.number(1, 3)], axis - s.values[x].ndim * s.flip())


def stack(s: GraphGenerator) -> Any:
    x = s.pick()
    return tf.stack([x] * s.number(1, 3), axis=s.number(-s.values[x].ndim - 1, s.values[x].ndim))


def split(s: GraphGenerator) -> Any:
    x = s.pick("fiucb", 1)
    axis = s.number(0, s.values[x].ndim - 1)
    size = s.values[x].shape[axis]
    first = s.number(0, size)
    return tf.split(x, [first, size - first], axis)


def unstack(s: GraphGenerator) -> Any:
    x = s.pick("fiucb", 1)
    axis = s.number(0, s.values[x].ndim - 1)
    return tf.unstack(x, s.values[x].shape[axis], axis) or None


def where(s: GraphGenerator) -> Any:
    x = s.pick()
    same = [t for t in s.tensors if t.dtype == x.dtype and _alike(s, t, x)]
    condition = s.array(np.bool_, s.values[x].shape)
    return tf.where(condition, x, s.choose(same or [x]))


def _alike(s: GraphGenerator, one: tf.Tensor, other: tf.Tensor) -> bool:
    return s.values[one].shape == s.values[other].shape


def gather(s: GraphGenerator) -> Any:
    """Rows at indices that are constant, or computed and then brought into range."""
    x = s.pick("fiucb", 1)
    axis = s.number(0, s.values[x].ndim - 1)
    size = s.values[x].shape[axis]
    if not size:
        return None
    whole = [t for t in s.tensors if s.kind(t) == "i" and s.values[t].size < 10]
    if whole and s.flip():
        return tf.gather(x, tf.floormod(s.choose(whole), size), axis=axis)
    rows = s.places(size)
    return tf.gather(x, np.array(rows, s.choose([np.int32, np.int64])), axis=axis)


def cast(s: GraphGenerator) -> Any:
    x = s.pick()
    value = s.values[x]
    if s.kind(x) in "fc" and not (np.isfinite(value).all() and (np.abs(value) < 100).all()):
        return None
    kinds = [d for d in s.dtypes if np.dtype(d) != np.uint8 or s.kind(x) in "ub"]
    return tf.cast(x, s.choose(kinds))


def of_shape(s: GraphGenerator) -> Any:
    x = s.pick()
    return s.choose([tf.shape, tf.size, tf.rank, tf.zeros_like, tf.ones_like])(x)


def expand(s: GraphGenerator) -> Any:
    x = s.pick()
    return tf.expand_dims(x, s.number(-s.values[x].ndim - 1, s.values[x].ndim))


def tile(s: GraphGenerator) -> Any:
    x = s.pick()
    return tf.tile(x, [s.choose((0, 1, 2)) for _ in s.values[x].shape])


def pad(s: GraphGenerator) -> Any:
    x = s.pick("fiuc")
    paddings = [[s.number(0, 2), s.number(0, 2)] for _ in s.values[x].shape]
    return tf.pad(x, np.reshape(np.array(paddings, np.int32), (-1, 2)))


STRUCTURE: dict[str, Rule] = {
    "reshape": reshape,
    "transpose": transpose,
    "strided_slice": strided_slice,
    "slice": slice_,
    "concat": concat,
    "stack": stack,
    "where": where,
    "gather": gather,
    "expand": expand,
    "tile": tile,
    "pad": pad,
}

EVERYTHING: dict[str, Rule] = STRUCTURE | {
    "input": new_input,
    "smooth": unary([tf.tanh, tf.sigmoid, tf.exp, tf.sin, tf.log1p, tf.sqrt], "fc"),
    "real": unary([tf.floor, tf.nn.relu, tf.nn.softplus, tf.is_finite], "f"),
    "numeric": unary([tf.square, tf.identity], "fic"),
    "signed": unary([tf.abs, tf.negative, tf.sign], "fi"),
    "logical": unary([tf.logical_not], "b"),
    "arithmetic": binary([tf.add, tf.subtract, tf.multiply], "fic"),
    "division": binary([tf.truediv], "fc"),
    "order": binary([tf.maximum, tf.minimum, tf.less, tf.greater_equal], "fi"),
    "equality": binary([tf.equal, tf.not_equal], "ficb"),
    "logic": binary([tf.logical_and, tf.logical_or, tf.logical_xor], "b"),
    "sum": reduction([tf.reduce_sum, tf.reduce_mean, tf.reduce_prod], "fi", 1),
    "sum of nothing": reduction([tf.reduce_sum, tf.reduce_prod], "fc"),
    "extreme": reduction([tf.reduce_max, tf.reduce_min], "fi", 1),
    "all": reduction([tf.reduce_all, tf.reduce_any], "b"),
    "matmul": matmul,
    "split": split,
    "unstack": unstack,
    "cast": cast,
    "of shape": of_shape,
}

SMOOTH: dict[str, Rule] = STRUCTURE | {
    "bounded": unary([tf.tanh, tf.sigmoid, tf.sin, tf.cos, tf.nn.softplus], "f"),
    "arithmetic": binary([tf.add, tf.subtract, tf.multiply, tf.squared_difference], "f"),
    "reduction": reduction([tf.reduce_sum, tf.reduce_mean, tf.reduce_logsumexp], "f", 1),
    "matmul": matmul,
    "split": split,
    "unstack": unstack,
}
