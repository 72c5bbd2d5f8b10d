"""DLPack: memory shared with other libraries without a copy."""

from __future__ import annotations

import numpy as np
import pytest

import thalweg as tf


def test_an_eager_tensor_gives_its_memory():
    with tf.eager_mode():
        x = tf.constant(np.arange(6.0).reshape(2, 3)) + 1.0
        view = np.from_dlpack(x)
        assert np.shares_memory(view, np.asarray(x))
        np.testing.assert_array_equal(view, [[1, 2, 3], [4, 5, 6]])
        assert not view.flags.writeable
        assert x.__dlpack_device__() == (1, 0)


def test_a_library_that_knows_no_read_only_memory_gets_a_copy():
    class Old:
        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self, stream=None):
            return self.tensor.__dlpack__(stream=stream)

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

    with tf.eager_mode():
        x = tf.constant([1.0, 2.0])
        view = np.from_dlpack(Old(x))
        np.testing.assert_array_equal(view, [1, 2])
        assert not np.shares_memory(view, np.asarray(x))


def test_from_dlpack():
    array = np.arange(4.0)
    with tf.eager_mode():
        x = tf.from_dlpack(array)
        assert np.shares_memory(np.asarray(x), array)
        np.testing.assert_array_equal((x + 1.0).numpy(), [1, 2, 3, 4])
        np.testing.assert_array_equal(tf.from_dlpack(x).numpy(), array)
    with tf.Graph().as_default(), tf.Session() as session:
        np.testing.assert_array_equal(session.run(tf.from_dlpack(array)), array)


def test_images_of_pillow_are_constants():
    image = pytest.importorskip("PIL.Image")
    picture = image.fromarray(np.arange(24, dtype=np.uint8).reshape(2, 4, 3))
    with tf.Graph().as_default(), tf.Session() as session:
        made = tf.constant(picture)
        assert made.dtype == tf.uint8
        np.testing.assert_array_equal(session.run(made), np.asarray(picture))
        floats = tf.convert_to_tensor(picture, tf.float32)
        np.testing.assert_array_equal(session.run(floats), np.asarray(picture))
