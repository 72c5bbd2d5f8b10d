"""What a GPU computes next to the CPU: the kernels that only a real one can prove, in seconds.

    python benchmarks/cuda/check.py [word …]    # cases whose names have all of the words

Each line is a case with its largest error, relative to the largest value, and the limit; the shapes
are such that the cost model takes what the case is about (parts of long sums, windows by the copy
engine, packed images). `make test-cuda` has everything else.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import thalweg as tf

Build = Callable[..., Any]

ROUNDED = 0.1  # a sum near zero is rounded to either side of it, where a ReLU's gradient begins


@dataclass(frozen=True)
class Case:
    """A graph over inputs of some shapes and a dtype."""

    build: Build
    shapes: Sequence[tuple[int, ...]]
    dtype: str = "bfloat16"
    limit: float = 1e-2
    tf32: bool = False  # whether tensor cores see 10 bits of float32 numbers
    is_mean: bool = False  # of positive inputs: what is rounded to one side alone is far from it


def convolution(stride: int, padding: Any) -> Build:
    """A convolution and the gradients that reach its filter and its input."""

    def build(x: Any, w: Any) -> list[Any]:
        y = tf.nn.relu(tf.nn.conv2d(x, w, [1, stride, stride, 1], padding))
        return [y, *tf.gradients(y, [w, x] if int(x.shape[-1]) > 3 else [w])]

    return build


def pooling(size: int, stride: int, padding: str) -> Build:
    """The gradient of a ReLU and of max pooling after it."""

    def build(x: Any) -> list[Any]:
        y = tf.nn.max_pool(tf.nn.relu(x), size, stride, padding)
        return [y, *tf.gradients(y * y, [x])]

    return build


def layer_norm(x: Any, scale: Any) -> list[Any]:
    """A layer norm with its gradients."""
    wide = tf.cast(x, tf.float32)
    mean, variance = tf.nn.moments(wide, [1], keep_dims=True)
    y = (wide - mean) * tf.rsqrt(variance + 1e-5) * tf.cast(scale, tf.float32)
    return [y, *tf.gradients(tf.sin(y), [x, scale])]


def products(a: Any, b: Any) -> list[Any]:
    """A product and both its gradients."""
    y = tf.matmul(a, b)
    return [y, *tf.gradients(y, [a, b])]


def gelu(x: Any, w: Any, v: Any) -> list[Any]:
    """A product with a GELU, and the gradients of it before another product."""
    u = tf.matmul(x, w)
    y = tf.matmul(0.5 * u * (1.0 + tf.tanh(0.8 * (u + 0.04 * u * u * u))), v)
    return [y, *tf.gradients(y, [x, w, v])]


def cross_entropy(x: Any) -> list[Any]:
    """A softmax cross entropy and its gradient."""
    labels = np.arange(int(x.shape[0])) * 7 % int(x.shape[1])
    logits = tf.cast(8 * x, tf.float32)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return [loss, *tf.gradients(loss, [x])]


def functions(x: Any) -> list[Any]:
    """Functions that are instructions of GPUs, or nearly."""
    near = [tf.tanh(x), tf.exp(x), tf.sqrt(abs(x)), tf.sigmoid(x), x / (1 + x * x)]
    wide = tf.cast(x, tf.float32)
    return [*near, tf.exp(8 * wide), tf.exp(-20 * abs(wide)), tf.tanh(wide)]


def special(x: Any) -> list[Any]:
    """Conversions out of range, shifts by any count, the next float."""
    wide = x * 1e18
    counts = tf.cast(x * 40, tf.int64)
    least = tf.zeros_like(counts) + np.iinfo(np.int64).min
    shifted = tf.bitwise.left_shift(tf.ones_like(counts), tf.where(counts > 30, counts, least))
    kinds = (tf.int16, tf.int32, tf.int64, tf.uint64)
    return [*(tf.cast(wide, kind) for kind in kinds), shifted, tf.math.nextafter(x, x + 1)]


def layer(stride: int, padding: str, *shapes: tuple[int, ...]) -> Case:
    """A convolution with a ReLU."""
    return Case(convolution(stride, padding), shapes, limit=ROUNDED)


def smooth(x: Any, w: Any) -> list[Any]:
    """A convolution and its gradients, which differ by no more than its sums do."""
    y = tf.nn.conv2d(x, w, [1, 1, 1, 1], "SAME")
    return [y, *tf.gradients(y * y, [w, x])]


def tf32_layer(*shapes: tuple[int, ...]) -> Case:
    """A convolution of float32 numbers of which tensor cores see 10 bits."""
    return Case(smooth, shapes, "float32", 3e-3, tf32=True)


def tf32_means(build: Build, *shapes: tuple[int, ...]) -> Case:
    """What such numbers are off by on average: 7e-4 where they are cut off, not rounded."""
    return Case(build, shapes, "float32", 1e-4, tf32=True, is_mean=True)


def squares(a: Any, b: Any) -> list[Any]:
    """A product, and both its gradients of factors that vary."""
    y = tf.matmul(a, b)
    return [y, *tf.gradients(y * y, [a, b])]


CASES = {
    "long sums in parts": Case(products, [(192, 16384), (16384, 256)]),
    "few rows, as layers have": Case(products, [(128, 4096), (4096, 1024)]),
    "windows 3x3": layer(1, "SAME", (32, 14, 14, 64), (3, 3, 64, 128)),
    "windows 5x5": layer(1, "SAME", (16, 27, 27, 64), (5, 5, 64, 192)),
    "windows with steps": layer(2, "SAME", (16, 28, 28, 64), (3, 3, 64, 128)),
    "first layer 11x11": layer(4, "VALID", (32, 115, 115, 3), (11, 11, 3, 64)),
    "first layer 7x7": layer(2, "SAME", (32, 112, 112, 3), (7, 7, 3, 64)),
    "first layer 3x3": layer(1, "SAME", (32, 112, 112, 3), (3, 3, 3, 64)),
    "pooling 3x3": Case(pooling(3, 2, "VALID"), [(16, 55, 55, 64)]),
    "pooling 3x3, all places": Case(pooling(3, 1, "SAME"), [(16, 28, 28, 192)]),
    "pooling 2x2": Case(pooling(2, 2, "VALID"), [(16, 56, 56, 64)]),
    "layer norm": Case(layer_norm, [(4096, 768), (768,)]),
    "GELU of products": Case(gelu, [(512, 768), (768, 3072), (3072, 768)]),
    "cross entropy of long rows": Case(cross_entropy, [(256, 50304)], limit=4e-3),
    "functions": Case(functions, [(1 << 16,)], limit=4e-3),
    "float32 products": Case(products, [(256, 5000), (5000, 300)], "float32", 1e-5),
    "long float32 sums": Case(lambda a, b: [tf.matmul(a, b)], [(8, 1 << 20), (1 << 20, 8)],
                              "float32", 1e-5),
    "tf32 products": Case(products, [(640, 2048), (2048, 1000)], "float32", 3e-3, tf32=True),
    "tf32 windows 3x3": tf32_layer((64, 14, 14, 256), (3, 3, 256, 256)),
    "tf32 windows 5x5": tf32_layer((64, 14, 14, 24), (5, 5, 24, 64)),
    "tf32 pointwise": tf32_layer((32, 28, 28, 192), (1, 1, 192, 96)),
    "tf32 mean of products": tf32_means(squares, (640, 2048), (2048, 1000)),
    "tf32 mean of few rows": tf32_means(squares, (128, 4096), (4096, 1024)),
    "tf32 mean of odd rows": tf32_means(squares, (641, 1023), (1023, 333)),
    "tf32 mean of windows 3x3": tf32_means(smooth, (64, 14, 14, 256), (3, 3, 256, 256)),
    "tf32 mean of pointwise": tf32_means(smooth, (32, 28, 28, 192), (1, 1, 192, 96)),
    "special values": Case(special, [(1 << 16,)], "float32", 1e-7),
    "large feeds and fetches": Case(lambda x: [x * 2], [(128, 224, 224, 3)], "float32", 0.0),
}  # fmt: skip


def run(case: Case, gpus: int) -> list[np.ndarray]:
    """The values of a case, on the GPU or without one."""
    rng = np.random.default_rng(1)
    tf.config.experimental.enable_tensor_float_32_execution(case.tf32)
    with tf.Graph().as_default():
        inputs = [tf.placeholder(case.dtype, shape) for shape in case.shapes]
        values = [rng.standard_normal(shape, np.float32) for shape in case.shapes]
        values = [np.abs(value) for value in values] if case.is_mean else values
        kind = inputs[0].dtype.as_numpy_dtype
        feeds = {x: v.astype(kind) for x, v in zip(inputs, values, strict=True)}
        config = tf.ConfigProto(device_count={"GPU": gpus})
        with tf.Session(config=config) as session:
            found = session.run(case.build(*inputs), feeds)
    return [np.asarray(np.mean(one, dtype=np.float64)) for one in found] if case.is_mean else found


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference, relative to the largest value; infinite where one is not a number, or
    only one of them an infinity."""
    one, two = found.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(two)
    if not np.isfinite(one[finite]).all() or not (one[~finite] == two[~finite]).all():
        return float("inf")
    scale = float(np.max(np.abs(two[finite]), initial=1e-30))
    return float(np.max(np.abs(one[finite] - two[finite]), initial=0.0)) / scale


def main() -> None:
    """Print all cases."""
    begun = time.perf_counter()
    for name, case in CASES.items():
        if not all(word in name for word in sys.argv[1:]):
            continue
        try:
            pairs = list(zip(run(case, 1), run(case, 0), strict=True))
            errors = [error(*pair) for pair in pairs]
            verdict = "ok" if max(errors) <= case.limit else "WRONG"
            shown = " ".join(f"{one:.1e}" for one in errors)
        except Exception as problem:  # the other cases are to be seen all the same
            verdict, shown = "FAILED", f"{type(problem).__name__}: {str(problem)[:200]}"
        print(f"{verdict:6s} {name:26s} {shown} (limit {case.limit:g})", flush=True)
    print(f"{time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
