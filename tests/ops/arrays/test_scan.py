"""Rows of the op table: running sums and products."""

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import NARROW_FLOATS, check

X = np.array([[1.5, 0.0, -2.0], [0.5, 3.0, 0.0], [2.0, -1.0, 0.5]])


def scanned(ufunc: np.ufunc, x: np.ndarray, axis: int, exclusive: bool, reverse: bool) -> object:
    x = np.flip(x, axis) if reverse else x
    result = ufunc.accumulate(x, axis)
    if exclusive:
        result = np.roll(result, 1, axis)
        np.moveaxis(result, axis, 0)[:1] = ufunc.identity
    return np.flip(result, axis) if reverse else result


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("ours", "ufunc"), [(tf.cumsum, np.add), (tf.cumprod, np.multiply)])
def test_scan(ours: object, ufunc: np.ufunc, axis: int, exclusive: bool, reverse: bool) -> None:
    check(
        lambda x: ours(x, axis, exclusive, reverse),
        X,
        expect=lambda x: scanned(ufunc, x, axis, exclusive, reverse),
    )


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_cumulative_logsumexp(exclusive: bool, reverse: bool) -> None:
    x = X[:2]
    check(
        lambda x: tf.maximum(tf.math.cumulative_logsumexp(x, 1, exclusive, reverse), -50.0),
        x,
        expect=lambda x: np.log(
            np.maximum(scanned(np.add, np.exp(x), 1, exclusive, reverse), np.exp(-50.0))
        ),
        second=not exclusive,
    )


@pytest.mark.parametrize("ours", [tf.cumsum, tf.cumprod])
@pytest.mark.parametrize("shape", [(0,), (1,), (0, 3), (3, 0)])
def test_small(ours: object, shape: tuple[int, ...]) -> None:
    x = np.ones(shape)
    check(lambda x: ours(x, exclusive=True), x)
    check(ours, x)


def test_complex() -> None:
    x = X[0] + 1j * X[1]
    check(tf.cumprod, x, expect=np.cumprod)


@pytest.mark.parametrize("dtype", [np.int8, np.int64, *NARROW_FLOATS])
def test_dtypes(dtype: type) -> None:
    x = np.arange(1, 5).astype(dtype)
    check(tf.cumsum, x, expect=lambda x: np.cumsum(x, dtype=dtype), gradient=False)


def test_wrong_axes() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        for axis in (-3, 2):
            with pytest.raises(tf.errors.InvalidArgumentError, match="Expected scan axis"):
                session.run(tf.cumsum(tf.placeholder_with_default(X, None), axis))


@pytest.mark.parametrize("reverse", [False, True])
def test_loops_of_gradients(reverse: bool) -> None:
    def gradient(x: tf.Tensor) -> tf.Tensor:
        return tf.gradients(tf.cumprod(x, 1, exclusive=True, reverse=reverse), x)[0]

    check(lambda x: tf.gradients(gradient(x), x)[0], X, gradient=False)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_infinite_exponents(exclusive: bool, reverse: bool) -> None:
    x = np.array([[-np.inf, -np.inf, 800.0], [1.0, np.inf, 2.0], [-800.0, np.nan, 0.0]])
    build = tf.math.cumulative_logsumexp
    check(lambda x: build(x, 1, exclusive, reverse), x, gradient=False)
