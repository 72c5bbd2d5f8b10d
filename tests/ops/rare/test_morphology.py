"""Rows of the op table: dilation and erosion."""

import itertools

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check

R = np.random.default_rng(0)


def dilated(x, w, strides, rates, padding):
    extents = [(k - 1) * r + 1 for k, r in zip(w.shape[:2], rates, strict=True)]
    sizes = x.shape[1:3]
    if padding == "SAME":
        counts = [-(-n // s) for n, s in zip(sizes, strides, strict=True)]
        moves = zip(counts, strides, extents, sizes, strict=True)
        before = [max((c - 1) * s + e - n, 0) // 2 for c, s, e, n in moves]
    else:
        counts = [(n - e) // s + 1 for n, e, s in zip(sizes, extents, strides, strict=True)]
        before = [0, 0]
    y = np.full((len(x), *counts, x.shape[-1]), -np.inf)
    for i, j, k, q in itertools.product(*map(range, (*counts, *w.shape[:2]))):
        row = i * strides[0] + k * rates[0] - before[0]
        column = j * strides[1] + q * rates[1] - before[1]
        if 0 <= row < sizes[0] and 0 <= column < sizes[1]:
            y[:, i, j] = np.maximum(y[:, i, j], x[:, row, column] + w[k, q])
    return y


CASES = [
    ((1, 1), (1, 1), "VALID"),
    ((1, 1), (1, 1), "SAME"),
    ((2, 1), (1, 1), "SAME"),
    ((1, 2), (2, 1), "SAME"),
    ((1, 1), (2, 2), "VALID"),
]


@pytest.mark.parametrize("strides, rates, padding", CASES)
def test_dilation(strides: tuple, rates: tuple, padding: str) -> None:
    x, w = R.normal(size=(1, 4, 3, 2)), R.normal(size=(2, 2, 2))

    def build(x, w):
        return tf.nn.dilation2d(x, w, [1, *strides, 1], [1, *rates, 1], padding)

    check(build, x, w, expect=dilated(x, w, strides, rates, padding), second=False)
    check(lambda x, w: tf.gradients(build(x, w) ** 2, [x, w]), x, w, gradient=False)


@pytest.mark.parametrize("strides, rates, padding", CASES)
def test_erosion(strides: tuple, rates: tuple, padding: str) -> None:
    x, w = R.normal(size=(1, 4, 3, 2)), R.normal(size=(2, 2, 2))

    def build(x, w):
        return tf.nn.erosion2d(x, w, [1, *strides, 1], [1, *rates, 1], padding)

    expected = -dilated(-x, w[::-1, ::-1], strides, rates, padding)
    check(build, x, w, expect=expected, second=False)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float16])
def test_other_dtypes(dtype: type) -> None:
    x = R.integers(0, 100, size=(1, 3, 3, 1)).astype(dtype)
    w = R.integers(0, 9, size=(2, 2, 1)).astype(dtype)
    expected = dilated(x.astype(float), w.astype(float), (1, 1), (1, 1), "SAME").astype(dtype)
    check(
        lambda x, w: tf.nn.dilation2d(x, w, [1] * 4, [1] * 4, "SAME"),
        x,
        w,
        expect=expected,
        gradient=False,
    )


def test_wrong_arguments() -> None:
    x, w = np.ones((1, 3, 3, 1)), np.ones((2, 2, 1))
    with tf.Graph().as_default():
        with pytest.raises(ValueError, match="strides"):
            tf.nn.dilation2d(x, w, [2, 1, 1, 1], [1] * 4, "SAME")
        with pytest.raises(ValueError, match="padding"):
            tf.nn.dilation2d(x, w, [1] * 4, [1] * 4, "FULL")
        with pytest.raises(ValueError):
            tf.nn.dilation2d(x, np.ones((2, 2, 2)), [1] * 4, [1] * 4, "SAME")
