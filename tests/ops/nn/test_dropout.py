"""Dropout: what it keeps, what it scales, and what it refuses."""

import numpy as np
import pytest

import thalweg as tf


def dropped(*arguments, **options):
    with tf.Graph().as_default(), tf.Session() as session:
        return session.run(tf.nn.dropout(tf.ones([50, 40]), *arguments, **options))


@pytest.mark.parametrize("options", [{"keep_prob": 0.25}, {"rate": 0.75}])
def test_elements_are_zero_or_scaled(options: dict) -> None:
    y = dropped(seed=1, **options)
    assert set(np.unique(y)) == {0.0, 4.0}
    assert abs(y.mean() - 1) < 0.15


def test_noise_shape_drops_rows_whole() -> None:
    for shape in ([50, 1], [None, 1]):
        y = dropped(0.5, noise_shape=shape, seed=2)
        assert np.array_equal(y, np.broadcast_to(y[:, :1], y.shape))
        assert 0 < (y == 0).sum() < y.size


def test_seeds() -> None:
    assert np.array_equal(dropped(0.5, seed=3), dropped(0.5, seed=3))
    assert not np.array_equal(dropped(0.5, seed=3), dropped(0.5, seed=4))


def test_keeping_all_is_nothing() -> None:
    with tf.Graph().as_default():
        x = tf.ones([2])
        assert tf.nn.dropout(x, 1.0) is x
        assert tf.nn.dropout(x, rate=0.0) is x


def test_probability_may_be_fed_and_shape_unknown() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x, keep = tf.placeholder(tf.float32), tf.placeholder(tf.float32)
        y = tf.nn.dropout(x, keep)
        ones = np.ones((3, 4), np.float32)
        np.testing.assert_array_equal(session.run(y, {x: ones, keep: 1.0}), ones)


def test_gradient_is_the_same_mask() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.ones([30])
        y = tf.nn.dropout(x, 0.5, seed=1)
        value, slope = session.run([y, tf.gradients(y, x)[0]])
        np.testing.assert_array_equal(value, slope)


@pytest.mark.parametrize(
    "options",
    [
        {"keep_prob": 0.0},
        {"keep_prob": 1.1},
        {"rate": 1.0},
        {"rate": -0.1},
        {},
        {"keep_prob": [0.5]},
    ],
)
def test_bad_probabilities(options: dict) -> None:
    with pytest.raises(ValueError):
        dropped(**options)


def test_integers_cannot_be_scaled() -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match="floating point"):
        tf.nn.dropout(tf.constant([1, 2]), 0.5)
