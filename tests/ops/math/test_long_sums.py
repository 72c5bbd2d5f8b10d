"""Long sums of floats: the error grows with the logarithm of their length, whatever is summed."""

from __future__ import annotations

from math import fsum, log2
from typing import Any

import numpy as np
import pytest

import thalweg as tf

EPSILON = float(np.finfo(np.float32).eps)


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as fresh:
        yield fresh


def fed(shape: Any, dtype: Any, static: bool) -> Any:
    return tf.placeholder(dtype, shape if static else [None] * len(shape))


def run(make: Any, arrays: Any, static: bool = True, threads: int = 2) -> Any:
    """What a function of placeholders gives, on sessions that saw no shape, or others, before."""
    inputs = [fed(array.shape, tf.as_dtype(array.dtype), static) for array in arrays]
    fetches = make(*inputs)
    config = tf.ConfigProto(intra_op_parallelism_threads=threads)
    with tf.Session(config=config) as session:
        if not static:  # integers that differ between shapes become run-time words
            for cut in (1, 2):
                small = [
                    array[tuple(slice(0, max(n - cut, 1)) for n in array.shape)] for array in arrays
                ]
                session.run(
                    fetches, dict(zip(inputs, _consistent(small, arrays, cut), strict=True))
                )
        return session.run(fetches, dict(zip(inputs, arrays, strict=True)))


def _consistent(small: Any, arrays: Any, cut: int) -> Any:
    if len(arrays) == 1:
        return small
    length = max(max(array.shape) for array in arrays) - cut
    return [np.take(a, range(length), axis=int(np.argmax(a.shape))) for a in arrays]


def values(kind: str, shape: Any) -> Any:
    if kind == "constant":  # every addition rounds the same way
        return np.full(shape, 0.1, np.float32)
    return np.random.RandomState(3).uniform(0, 1, shape).astype(np.float32)


def check(actual: Any, exact: Any, terms: int, epsilon: float = EPSILON) -> None:
    error = np.max(np.abs(np.asarray(actual, np.float64) / exact - 1))
    assert error <= 4 * epsilon * log2(terms)


@pytest.mark.parametrize("kind", ["constant", "random"])
@pytest.mark.parametrize("count", [100, 8191, 8193, 100_000, 1_100_001])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("static", [True, False])
def test_a_vector(kind: str, count: int, threads: int, static: bool):
    x = values(kind, count)
    total, mean, squares = run(
        lambda x: [tf.reduce_sum(x), tf.reduce_mean(x), tf.nn.l2_loss(x)], [x], static, threads
    )
    check(total, fsum(x), count)
    check(mean, fsum(x) / count, count)
    check(squares, fsum(x.astype(np.float64) ** 2) / 2, count)


@pytest.mark.parametrize("kind", ["constant", "random"])
@pytest.mark.parametrize("axis", [0, 1, (0, 1), (0, 2)])
@pytest.mark.parametrize("shape", [(300_000, 3, 2), (2, 300_000, 3), (3, 5, 100_000), (90, 80, 70)])
@pytest.mark.parametrize("static", [True, False])
def test_axes(kind: str, axis: Any, shape: Any, static: bool):
    x = values(kind, shape)
    total = run(lambda x: tf.reduce_sum(x, axis), [x], static)
    check(total, x.sum(axis, np.float64), max(x.size // max(total.size, 1), 2))


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
@pytest.mark.parametrize("shape", [(100_000, 1), (1, 100_000)])
def test_narrow_floats_are_summed_in_wide_ones(dtype: Any, shape: Any):
    x = values("constant", shape).astype(dtype.as_numpy_dtype) / dtype.as_numpy_dtype(10)
    epsilon = float(tf.bfloat16.as_numpy_dtype(2) ** -7 if dtype == tf.bfloat16 else 2.0**-10)
    axis = int(np.argmax(shape))
    check(run(lambda x: tf.reduce_sum(x, axis), [x]), x.astype(np.float64).sum(axis), 2, epsilon)


def test_doubles():
    x = values("random", 1_000_000).astype(np.float64)
    check(run(tf.reduce_sum, [x]), fsum(x), len(x), float(np.finfo(np.float64).eps))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 3e38])
def test_sums_with_infinities_nan_and_overflow(bad: float):
    x = values("constant", 100_000)
    x[[5, 70_000]] = bad
    expected = {3e38: np.inf}.get(bad, bad)
    assert run(tf.reduce_sum, [x]) == pytest.approx(expected, nan_ok=True)
    np.testing.assert_equal(run(lambda x: tf.reduce_sum(x, 0), [x[:, None]]), [expected])


def test_moments_of_values_that_are_large_beside_their_spread():
    x = (1e4 + np.random.RandomState(3).rand(2_000_000)).astype(np.float32)
    mean, variance = run(lambda x: tf.nn.moments(x, [0]), [x])
    check(mean, x.mean(dtype=np.float64), len(x))
    assert variance == pytest.approx(x.var(dtype=np.float64), rel=1e-5)


def test_batch_normalisation():
    x = (100 + np.random.RandomState(3).rand(30, 100, 100, 2)).astype(np.float32)
    ones = np.ones(2, np.float32)
    _, mean, variance = run(lambda x: tf.nn.fused_batch_norm(x, ones, ones), [x])
    check(mean, x.mean((0, 1, 2), np.float64), x.size)
    np.testing.assert_allclose(variance, x.var((0, 1, 2), np.float64, ddof=1), rtol=1e-5)


def test_the_denominator_of_a_softmax():
    x = values("random", (2, 1_000_000))
    powers = np.exp(x.astype(np.float64))
    check(run(tf.nn.softmax, [x]), powers / powers.sum(1, keepdims=True), x.shape[1])
    check(run(lambda x: tf.reduce_logsumexp(x, 1), [x]), np.log(powers.sum(1)), x.shape[1])


@pytest.mark.parametrize(
    "kind, static", [("constant", True), ("constant", False), ("random", True)]
)
@pytest.mark.parametrize("rows, columns", [(1, 1), (1, 40), (40, 1), (3, 2), (20, 40)])
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True)])
def test_products(kind: str, rows: int, columns: int, transposed: Any, static: bool):
    terms = 140_000 if rows * columns < 10 else 20_000  # blocks of blocks, blocks
    a, b = values(kind, (rows, terms)), values(kind, (terms, columns))
    exact = a.astype(np.float64) @ b
    given = [np.ascontiguousarray(m.T) if t else m for m, t in zip((a, b), transposed, strict=True)]
    actual = run(lambda a, b: tf.matmul(a, b, *transposed), given, static)
    check(actual, exact, terms)


@pytest.mark.parametrize("window, channels", [(3, 4), (1, 16)])
def test_the_gradient_of_a_filter(window: int, channels: int):
    x = values("constant", (8, 120, 120, channels))
    dy = values("constant", (8, 120, 120, 5))
    sizes = [window, window, channels, 5]
    gradient = run(
        lambda x, dy: tf.nn.conv2d_backprop_filter(x, sizes, dy, [1, 1, 1, 1], "SAME"), [x, dy]
    )
    terms = 8 * 120 * 120
    middle = window // 2
    check(gradient[middle, middle], terms * float(x[0, 0, 0, 0]) ** 2, terms)
