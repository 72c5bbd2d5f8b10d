"""Losses by element, and l2_normalize and zero_fraction."""

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check

R = np.random.default_rng(0)
X, Z = R.normal(size=(3, 4)) * 3, R.uniform(size=(3, 4))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def logistic(x, z, weight=1.0):
    return -(weight * z * np.log(sigmoid(x)) + (1 - z) * np.log(sigmoid(-x)))


def poisson(z, c):
    return np.exp(c) - z * c


ROWS = {
    "sigmoid_cross_entropy": (
        lambda x, z: tf.nn.sigmoid_cross_entropy_with_logits(labels=z, logits=x),
        [X, Z],
        logistic,
    ),
    "sigmoid_cross_entropy, as of old": (tf.nn.sigmoid_cross_entropy_with_logits, [X, Z], logistic),
    "weighted_cross_entropy": (
        lambda x, z: tf.nn.weighted_cross_entropy_with_logits(z, x, 1.7),
        [X, Z],
        lambda x, z: logistic(x, z, 1.7),
    ),
    "log_poisson_loss": (tf.nn.log_poisson_loss, [Z, X / 3], poisson),
    "full log_poisson_loss": (
        lambda z, c: tf.nn.log_poisson_loss(z, c, compute_full_loss=True),
        [Z + 1.5, X / 3],
        lambda z, c: poisson(z, c) + z * np.log(z) - z + 0.5 * np.log(2 * np.pi * z),
    ),
    "l2_normalize": (
        lambda x: tf.nn.l2_normalize(x, 1),
        [X],
        lambda x: x / np.sqrt((x**2).sum(1, keepdims=True)),
    ),
    "l2_normalize all": (
        lambda x: tf.nn.l2_normalize(x, dim=[0, 1]),
        [X],
        lambda x: x / np.sqrt((x**2).sum()),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_function(name: str) -> None:
    build, inputs, expect = ROWS[name]
    check(build, *inputs, expect=expect)


def test_far_logits() -> None:
    x, z = np.array([-100.0, 100.0, -100.0, 100.0]), np.array([0.0, 0.0, 1.0, 1.0])
    check(ROWS["sigmoid_cross_entropy"][0], x, z, expect=np.array([0.0, 100, 100, 0]))


def test_gradient_at_zero() -> None:
    check(ROWS["sigmoid_cross_entropy"][0], np.zeros(2), np.array([0.2, 0.9]), gradient=[0])


def test_full_loss_of_small_targets_has_no_stirling_term() -> None:
    z, c = np.array([0.0, 0.5, 1.0]), np.ones(3)
    check(ROWS["full log_poisson_loss"][0], z, c, expect=poisson(z, c), gradient=False)


def test_zero_fraction() -> None:
    for dtype in (np.float64, np.int32, np.bool_):
        x = np.array([[0, 1, 0], [2, 0, 3]]).astype(dtype)
        check(tf.nn.zero_fraction, x, expect=np.float32(0.5), gradient=False)


def test_l2_normalize_of_nothing() -> None:
    check(lambda x: tf.nn.l2_normalize(x, 0), np.zeros(3), expect=np.zeros(3), gradient=False)


@pytest.mark.parametrize(
    "function", [tf.nn.sigmoid_cross_entropy_with_logits, tf.nn.log_poisson_loss]
)
def test_shapes_must_match(function) -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match="same shape"):
        function([[2.0, 1.0]], [1.0, 2.0, 3.0])
