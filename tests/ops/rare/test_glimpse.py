"""Glimpses: the positions of windows, and the noise outside of images."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf

IMAGE = np.arange(2 * 6 * 8 * 1, dtype=np.float32).reshape(2, 6, 8, 1)


def glimpse(offsets: Any, size: Any = (2, 4), **options: Any) -> Any:
    with tf.Graph().as_default(), tf.Session() as session:
        found = tf.image.extract_glimpse(IMAGE, size, offsets, **options)
        value = session.run(found)
        assert found.shape.as_list() == list(value.shape)
        return value


def test_centre_and_offsets() -> None:
    actual = glimpse([[0.0, 0.0], [0.0, -0.5]])
    np.testing.assert_array_equal(actual[0], IMAGE[0, 2:4, 2:6])
    np.testing.assert_array_equal(actual[1], IMAGE[1, 2:4, 0:4])
    actual = glimpse([[2.0, 3.0], [5.0, 6.0]], centered=False, normalized=False)
    np.testing.assert_array_equal(actual[0], IMAGE[0, 1:3, 1:5])
    np.testing.assert_array_equal(actual[1], IMAGE[1, 4:6, 4:8])


@pytest.mark.parametrize("uniform", [True, False])
def test_noise_outside(uniform: bool) -> None:
    actual = glimpse([[-1.0, -1.0], [5.0, 5.0]], uniform_noise=uniform)
    np.testing.assert_array_equal(actual[0, 1:, 2:], IMAGE[0, :1, :2])
    assert np.all(np.isfinite(actual))
    if uniform:
        assert actual[1].min() >= IMAGE[1].min()
        assert actual[1].max() <= IMAGE[1].max()


def test_bad_sizes() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="two positive numbers"):
        glimpse([[0.0, 0.0], [0.0, 0.0]], size=(0, 4))
