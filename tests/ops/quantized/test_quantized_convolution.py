"""Convolution in integers against the same in reals."""

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check_lowerings

RANGE = (-3.0, 3.0)
IMAGES = np.random.default_rng(0).normal(size=(1, 3, 4, 2))


def quantized(array: np.ndarray, kind: tf.DType = tf.quint8) -> tuple[tf.Tensor, ...]:
    return tf.quantize_v2(array, *RANGE, kind, "MIN_FIRST")


def reals(result: tuple[tf.Tensor, ...]) -> tf.Tensor:
    return tf.dequantize(*result, mode="MIN_FIRST")


@pytest.mark.parametrize("padding", ["VALID", "SAME"])
def test_conv2d(padding: str) -> None:
    filters = np.random.default_rng(1).normal(size=(2, 2, 2, 3))
    with tf.Graph().as_default(), tf.Session() as session:
        x, w = quantized(IMAGES), quantized(filters)
        result = tf.nn.quantized_conv2d(
            x[0], w[0], x[1], x[2], w[1], w[2], strides=[1, 2, 2, 1], padding=padding
        )
        plain = tf.nn.conv2d(IMAGES, filters, [1, 2, 2, 1], padding)
        assert result[0].shape.as_list() == plain.shape.as_list()
        got, expected = session.run([reals(result), plain])
    np.testing.assert_allclose(got, expected, atol=0.25)


def test_impossible_arguments() -> None:
    with tf.Graph().as_default():
        x = quantized(IMAGES)
        with pytest.raises(ValueError, match="Dimensions must be equal"):
            w = quantized(np.ones((1, 1, 3, 1)))
            tf.nn.quantized_conv2d(x[0], w[0], *x[1:], *w[1:], strides=[1] * 4, padding="SAME")


@pytest.mark.parametrize("padding", ["VALID", "SAME"])
@pytest.mark.parametrize("dilation", [1, 2])
def test_loop(padding: str, dilation: int) -> None:
    def build() -> None:
        x, w = quantized(IMAGES), quantized(np.random.default_rng(1).normal(size=(2, 2, 2, 3)))
        ranges = x[1], x[2], w[1], w[2]
        options = {"padding": padding, "dilations": [1, dilation, dilation, 1]}
        tf.nn.quantized_conv2d(x[0], w[0], *ranges, strides=[1, 1, 2, 1], **options)

    check_lowerings(build, [])
