"""Steps that between them need every kind of kernel, and the kernels that they ask for.

Each is a function that makes fetches and feeds. `kernels_of` has a step lowered and gives what it
asks the cache for, without compiling any of it: it can then be emitted for any target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.codegen import cache
from thalweg.codegen.cache import Kernels, Loaded
from thalweg.codegen.llvm.emitted import Emitted, Request
from thalweg.codegen.machine import CpuTarget

Feeds = Mapping[Any, np.ndarray]
Made = tuple[Any, Feeds]


def fed(*shape: int | None, size: int = 7, dtype: Any = tf.float32, high: int = 3) -> Made:
    """A placeholder, and what to feed: `size` in the place of every unknown extent."""
    draw = np.random.default_rng(len(shape) + size)
    sizes = [size if extent is None else extent for extent in shape]
    kind = tf.as_dtype(dtype).as_numpy_dtype
    is_float = np.dtype(kind).kind not in "iub"
    values = draw.normal(size=sizes) if is_float else draw.integers(0, high, sizes)
    return tf.placeholder(dtype, shape), np.asarray(values).astype(kind)


def elementwise(dtype: Any) -> Callable[[], Made]:
    def make() -> Made:
        x, value = fed(None, 37, dtype=dtype)
        return [x * x + x, tf.cast(x, tf.float32) * 0.5], {x: value}

    return make


def functions() -> Made:
    x, value = fed(531)
    names = [
        "exp",
        "tanh",
        "sin",
        "cos",
        "erf",
        "lgamma",
        "expm1",
        "sigmoid",
        "floor",
        "rsqrt",
        "atan",
    ]
    found = [getattr(tf, name)(x) for name in names]
    return [*found, tf.log1p(abs(x)), tf.pow(abs(x), 1.5), tf.round(x), x % 0.7], {x: value}


def integers() -> Made:
    x, value = fed(201, dtype=tf.int32, high=99)
    y, other = fed(201, dtype=tf.int64, high=99)
    made = [x // (x + 3), x % 7, tf.cast(x, tf.int8), tf.bitwise.bitwise_xor(x, x + 1)]
    return [*made, y // (y + 2), tf.cast(y, tf.float64), tf.one_hot(x, 5)], {x: value, y: other}


def matmul(dtype: Any, rows: int = 33, *, transposed: bool = False) -> Callable[[], Made]:
    def make() -> Made:
        a, first = fed(rows, 40, dtype=dtype)
        b, second = fed(*((48, 40) if transposed else (40, 48)), dtype=dtype)
        made = tf.matmul(a, b, transpose_b=transposed)
        floats = tf.as_dtype(dtype).is_floating
        return [tf.nn.relu(made + 1) if floats else made], {a: first, b: second}

    return make


def convolution(
    size: int, filters: int = 3, stride: int = 1, channels: int = 16
) -> Callable[[], Made]:
    """With its gradients."""

    def make() -> Made:
        x, value = fed(2, size, size, channels)
        w, weights = fed(filters, filters, channels, channels + 8)
        y = tf.nn.conv2d(x, w, [1, stride, stride, 1], "SAME")
        return [y, *tf.gradients(tf.reduce_sum(y * y), [x, w])], {x: value, w: weights}

    return make


def depthwise() -> Made:
    x, value = fed(2, 9, 9, 5)
    w, weights = fed(3, 3, 5, 2)
    y = tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME")
    return [y, *tf.gradients(y, [x, w])], {x: value, w: weights}


def pooling() -> Made:
    x, value = fed(2, 11, 11, 5)
    y = tf.nn.max_pool(x, [1, 3, 3, 1], [1, 2, 2, 1], "SAME")
    z = tf.nn.avg_pool(x, [1, 3, 3, 1], [1, 2, 2, 1], "VALID")
    return [y, z, *tf.gradients(tf.reduce_sum(y) + tf.reduce_sum(z), [x])], {x: value}


def transposes() -> Made:
    x, value = fed(131, 77)
    y, other = fed(5, 19, 33, dtype=tf.float16)
    z, bytes_ = fed(70, 41, dtype=tf.uint8, high=200)
    made = [tf.transpose(x), tf.transpose(y, [2, 0, 1]), tf.transpose(z), tf.reverse(x, [1])]
    return made, {x: value, y: other, z: bytes_}


def scans() -> Made:
    x, value = fed(13, 57)
    made = [tf.cumsum(x, 1), tf.cumsum(x, 0, exclusive=True), tf.cumprod(x, 1, reverse=True)]
    return made, {x: value}


def reductions() -> Made:
    x, value = fed(43, 71)
    h, other = fed(29, 35, dtype=tf.bfloat16)
    made = [tf.reduce_sum(x), tf.reduce_max(x, 0), tf.reduce_prod(x, 1), tf.argmax(x, 1)]
    more = [tf.nn.softmax(x), tf.reduce_mean(h, 1), tf.reduce_any(x > 1, 0), tf.nn.moments(x, [0])]
    return [*made, *more], {x: value, h: other}


def gathers() -> Made:
    x, value = fed(11, 19)
    i, places = fed(23, dtype=tf.int32, high=11)
    made = tf.gather(x, i)
    sums = tf.unsorted_segment_sum(made, i, 11)
    scattered = tf.scatter_nd(i[:, None], made, [11, 19])
    slopes = tf.gradients(tf.gather(x, i[:, None]), [x])
    return [made, sums, scattered, *slopes], {x: value, i: places}


def slices() -> Made:
    x, value = fed(23, 31)
    padded = tf.pad(x, [[1, 2], [3, 0]], "REFLECT")
    made = [x[1:-2:3, ::-1], tf.concat([x, x[:4]], 0), tf.tile(x, [2, 3])]
    return [*made, padded, tf.where(x > 0, x, -x), tf.stack([x, x], 1)], {x: value}


def guarded_rows() -> Made:
    """Rows that are scaled where they exist, in vectors of which no element may be chosen."""
    x, value = fed(40, 33)
    scale, factors = fed(30, 1)
    rows = tf.concat([x[:20] * scale[:20], x[20:30] * scale[20:]], 0)
    return tf.where(x > 9, x, tf.pad(rows, [[5, 5], [0, 0]])), {x: value, scale: factors}


def random() -> Made:
    return [tf.random_normal([301]), tf.random_uniform([77], 0, 9, tf.int32)], {}


def training() -> Made:
    x, value = fed(None, 12)
    w = tf.Variable(np.ones([12, 6], np.float32))
    h = tf.layers.batch_normalization(tf.matmul(x, w), training=True)
    loss = tf.reduce_mean(tf.square(h - 1.0)) + tf.nn.l2_loss(w)
    return [loss, tf.train.AdamOptimizer().minimize(loss)], {x: value}


def loop() -> Made:
    x, value = fed(5, 9)
    made = tf.while_loop(
        lambda i, y: i < 6, lambda i, y: (i + 1, tf.tanh(y) * 2 + x), [tf.constant(0), x]
    )
    return [made[1], *tf.gradients(made[1], [x])], {x: value}


def counting_loop() -> Made:
    x, value = fed(dtype=tf.int32, high=9)
    made = tf.while_loop(lambda i: i < x + 20, lambda i: i + 1, [tf.constant(0)])
    return made, {x: value}


def conditional() -> Made:
    x, value = fed(17)
    return tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2, lambda: tf.exp(x)), {x: value}


def recurrent() -> Made:
    x, value = fed(3, 6, 8)
    made, state = tf.nn.dynamic_rnn(tf.nn.rnn_cell.LSTMCell(10), x, dtype=tf.float32)
    return [made, state.h], {x: value}


STEPS: dict[str, Callable[[], Made]] = {
    **{
        f"elementwise {dtype.name}": elementwise(dtype)
        for dtype in (tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int8, tf.uint16, tf.int64)
    },
    "functions": functions,
    "integers": integers,
    **{
        f"matmul {dtype.name}": matmul(dtype)
        for dtype in (tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int32)
    },
    "matmul of a row": matmul(tf.float32, 1),
    "matmul transposed": matmul(tf.float32, transposed=True),
    "convolution 1x1": convolution(9, 1),
    "convolution 3x3": convolution(9),
    "convolution 3x3 by Winograd": convolution(28, channels=64),
    "convolution 5x5 by Winograd": convolution(28, 5, channels=64),
    "convolution with strides": convolution(17, 3, 2),
    "depthwise": depthwise,
    "pooling": pooling,
    "transposes": transposes,
    "scans": scans,
    "reductions": reductions,
    "gathers": gathers,
    "slices": slices,
    "guarded rows": guarded_rows,
    "random": random,
    "training": training,
    "loop": loop,
    "counting loop": counting_loop,
    "conditional": conditional,
    "recurrent": recurrent,
}


class _Asked(BaseException):
    """A step got as far as asking for its kernels."""


class _Asking(Kernels):
    """Has no kernels, and notes which are asked for."""

    def __init__(self) -> None:
        super().__init__(None)
        self.requests: list[Request] = []

    def load(self, requests: Sequence[Request], target: CpuTarget) -> list[Loaded]:
        self.requests += requests
        raise _Asked


def kernels_of(name: str) -> list[Request]:
    """The kernels that a step asks for on the CPU."""
    tf.layers  # is there before kernels are asked for
    with pytest.MonkeyPatch.context() as patch, tf.Graph().as_default():
        fetches, feeds = STEPS[name]()
        prepare = tf.global_variables_initializer()
        with tf.Session(config=tf.ConfigProto(device_count={"GPU": 0})) as session:
            session.run(prepare)
            patch.setitem(cache._process, "kernels", asking := _Asking())
            with pytest.raises(_Asked):
                session.run(fetches, feeds)
    return asking.requests


def emitted(asked: Request, target: CpuTarget) -> Emitted:
    """A kernel that was asked for, for a target."""
    what, _, *rest = asked.make.args
    return asked.make.func(what, target, *rest)
