"""Clipping by norms, dense and sparse."""

import numpy as np
import pytest

import thalweg as tf


@pytest.fixture(autouse=True)
def session():
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


X = np.array([[-3.0, 0.0, 0.0], [4.0, 0.0, 0.0]])


def test_clip_by_norm(session):
    np.testing.assert_allclose(session.run(tf.clip_by_norm(X, 4.0)), X * 0.8)
    np.testing.assert_allclose(session.run(tf.clip_by_norm(X, 6.0)), X)
    rows = session.run(tf.clip_by_norm(X, 3.5, axes=1))
    np.testing.assert_allclose(rows, X * [[1.0], [3.5 / 4]])
    slices = tf.IndexedSlices(tf.constant(X), tf.constant([0, 5]), tf.constant([9, 3]))
    clipped = tf.clip_by_norm(slices, 4.0, name="clipped")
    assert clipped.indices is slices.indices
    np.testing.assert_allclose(session.run(clipped.values), X * 0.8)


def test_the_gradient_at_zero_is_finite(session):
    x = tf.zeros([3])
    (gradient,) = tf.gradients(tf.clip_by_norm(x, 1.0), x)
    assert np.all(np.isfinite(session.run(gradient)))


def test_global_norm(session):
    slices = tf.IndexedSlices(tf.constant([2.0, 1.0]), tf.constant([0, 1]))
    tensors = [tf.constant([4.0, 2.0]), None, slices]
    assert session.run(tf.global_norm(tensors)) == 5.0
    clipped, norm = tf.clip_by_global_norm(tensors, 2.5)
    assert clipped[1] is None
    assert session.run(norm) == 5.0
    np.testing.assert_allclose(session.run(clipped[0]), [2, 1])
    np.testing.assert_allclose(session.run(clipped[2].values), [1, 0.5])
    same, _ = tf.clip_by_global_norm(tensors, 10.0)
    np.testing.assert_allclose(session.run(same[0]), [4, 2])
    half, _ = tf.clip_by_global_norm(tensors, 5.0, use_norm=10.0)
    np.testing.assert_allclose(session.run(half[0]), [2, 1])


def test_norms_that_are_not_finite_spoil_everything(session):
    clipped, _ = tf.clip_by_global_norm([tf.constant([np.inf, 1.0])], 1.0)
    assert np.all(np.isnan(session.run(clipped[0])))


def test_lists_are_wanted():
    with pytest.raises(TypeError, match="sequence"):
        tf.clip_by_global_norm(tf.constant([1.0]), 1.0)


def test_average_norm(session):
    clipped = session.run(tf.clip_by_average_norm(X, 0.8))
    np.testing.assert_allclose(clipped, X * (0.8 / (5 / 6)))
    np.testing.assert_allclose(session.run(tf.clip_by_average_norm(X, 2.0)), X)


def test_limits_keep_the_digits_of_float64(session):
    (clipped,), _ = tf.clip_by_global_norm([tf.constant(X)], 0.1)
    np.testing.assert_allclose(session.run(clipped), X * 0.02, rtol=1e-15)
    averaged = tf.clip_by_average_norm(tf.constant(X), 0.1)
    np.testing.assert_allclose(session.run(averaged), X * (0.1 * 6 / 5), rtol=1e-15)
