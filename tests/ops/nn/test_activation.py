"""Rows of the op table: activations."""

import math

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import NARROW_FLOATS, assert_close, check, check_inference, rounding

R = np.random.default_rng(0)
X = R.normal(size=(3, 5)) * 2
X[0, 0], X[1, 1] = 7.5, -4.5


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


SCALE, ALPHA = 1.0507009873554805, 1.6732632423543772

ROWS = {
    "relu": (tf.nn.relu, lambda x: np.maximum(x, 0)),
    "relu6": (tf.nn.relu6, lambda x: np.clip(x, 0, 6)),
    "leaky_relu": (tf.nn.leaky_relu, lambda x: np.where(x > 0, x, 0.2 * x)),
    "leaky_relu steeper": (
        lambda x: tf.nn.leaky_relu(x, alpha=0.7),
        lambda x: np.where(x > 0, x, 0.7 * x),
    ),
    "elu": (tf.nn.elu, lambda x: np.where(x > 0, x, np.exp(x) - 1)),
    "selu": (tf.nn.selu, lambda x: SCALE * np.where(x > 0, x, ALPHA * (np.exp(x) - 1))),
    "softplus": (tf.nn.softplus, lambda x: np.log(1 + np.exp(x))),
    "softsign": (tf.nn.softsign, lambda x: x / (1 + np.abs(x))),
    "gelu": (tf.nn.gelu, lambda x: x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))) / 2),
    "swish": (tf.nn.swish, lambda x: x * sigmoid(x)),
    "log_sigmoid": (tf.log_sigmoid, lambda x: np.log(sigmoid(x))),
    "crelu": (
        lambda x: tf.nn.crelu(tf.reshape(x, [3, 5])),
        lambda x: np.maximum(np.concatenate([x, -x], -1), 0),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_op(name: str) -> None:
    build, expect = ROWS[name]
    check(build, X, expect=expect)
    check(lambda x: tf.gradients(build(x) ** 2, x), X, gradient=False)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("dtype", NARROW_FLOATS)
def test_narrow_floats_keep_their_dtype(name: str, dtype: type) -> None:
    build, expect = ROWS[name]
    x = X.astype(dtype)
    (actual,) = check_inference(build, [x])
    error = 2 * rounding(dtype)
    assert_close(actual, expect(x.astype(float)), rtol=error, atol=error)


def test_integers() -> None:
    x = np.array([-3, 0, 5, 9], np.int32)
    check(tf.nn.relu, x, expect=np.array([0, 0, 5, 9]), gradient=False)
    check(tf.nn.relu6, x, expect=np.array([0, 0, 5, 6]), gradient=False)
    check(tf.nn.leaky_relu, x, expect=np.array([-0.6, 0, 5, 9]), gradient=False)


def test_empty() -> None:
    check(tf.nn.elu, np.zeros((0, 3)), expect=np.zeros((0, 3)), gradient=False)


def test_softplus_is_exact_far_from_zero() -> None:
    x = np.array([-800.0, -40.0, 40.0, 800.0])
    check(tf.nn.softplus, x, expect=np.array([0, np.exp(-40.0), 40, 800]), gradient=False, atol=0)
    with tf.Graph().as_default(), tf.Session() as session:
        tensor = tf.constant(x)
        (slope,) = tf.gradients(tf.nn.softplus(tensor), tensor)
        np.testing.assert_allclose(session.run(slope), [0, np.exp(-40.0), 1, 1])


def test_relu_has_no_slope_at_zero() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.constant([0.0, -0.0])
        np.testing.assert_array_equal(session.run(tf.gradients(tf.nn.relu(x), x)[0]), [0, 0])


@pytest.mark.parametrize("compiled", [True, False])
def test_nan_has_the_slope_of_positive_numbers(compiled, monkeypatch):
    monkeypatch.setattr("thalweg.runtime.engine.COMPILES", compiled)
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.constant([np.nan, 1.0])
        for function, slope in ((tf.nn.elu, 1.0), (tf.nn.selu, SCALE)):
            (actual,) = session.run(tf.gradients(function(x), [x]))
            np.testing.assert_allclose(actual, [slope, slope], rtol=1e-6)


def test_the_slope_of_leaky_relu_is_that_of_the_graph_read_back():
    with tf.Graph().as_default() as graph, tf.Session() as session:
        y = session.run(tf.nn.leaky_relu(tf.constant(-1.0, tf.float64), name="y"))
    with tf.Graph().as_default(), tf.Session() as session:
        (back,) = tf.import_graph_def(graph.as_graph_def(), return_elements=["y:0"], name="")
        assert session.run(back) == y == -float(np.float32(0.2))
