"""Rows of the op table: adding biases."""

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check

R = np.random.default_rng(0)
X, B = R.normal(size=(2, 3, 2, 2)), R.normal(size=2)


def nchw(value, bias):
    return tf.nn.bias_add(value, bias, data_format="NCHW")


ROWS = {
    "matrix": (tf.nn.bias_add, [X[0, :, :, 0], B], lambda x, b: x + b),
    "images": (tf.nn.bias_add, [X, B], lambda x, b: x + b),
    "channels first": (nchw, [X, R.normal(size=3)], lambda x, b: x + b[:, None, None]),
    "xw_plus_b": (
        tf.nn.xw_plus_b,
        [R.normal(size=(2, 3)), R.normal(size=(3, 2)), B],
        lambda x, w, b: x @ w + b,
    ),
    "relu_layer": (
        tf.nn.relu_layer,
        [R.normal(size=(2, 3)), R.normal(size=(3, 2)), B],
        lambda x, w, b: np.maximum(x @ w + b, 0),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_op(name: str) -> None:
    build, inputs, expect = ROWS[name]
    check(build, *inputs, expect=expect)
    check(lambda *given: tf.gradients(build(*given) ** 2, given), *inputs, gradient=False)


def test_short_floats_are_summed_wide() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        bias = tf.constant(np.zeros(1, np.float16))
        (db,) = tf.gradients(tf.nn.bias_add(tf.ones([5000, 1], tf.float16), bias), bias)
        assert session.run(db) == 5000


def test_empty() -> None:
    check(tf.nn.bias_add, np.zeros((0, 3)), np.ones(3), expect=np.zeros((0, 3)), gradient=False)


@pytest.mark.parametrize("value, bias", [([1, 2], [1]), ([[1, 2]], [[1, 2]]), ([[1, 2]], [1])])
def test_wrong_shapes(value: list, bias: list) -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError):
        tf.nn.bias_add(value, bias)


def test_wrong_shapes_at_run_time() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32)
        with pytest.raises(tf.errors.InvalidArgumentError, match="as many biases"):
            session.run(tf.nn.bias_add(x, [1.0, 2.0]), {x: np.zeros((2, 3))})


def test_channels_before_the_image_need_an_image() -> None:
    with pytest.raises(ValueError, match="rank"):
        tf.nn.bias_add(np.ones((2, 3)), np.ones(3), data_format="NCHW")
