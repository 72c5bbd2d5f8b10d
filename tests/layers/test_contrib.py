"""The older layer functions: names of variables, normalizers, collections."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf

layers = tf.contrib.layers


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


def names() -> list[str]:
    return [v.op.name for v in tf.global_variables()]


def run(value: Any) -> Any:
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(value)


def test_fully_connected() -> None:
    x = np.array([[1.0, -2.0]], np.float32)
    y = layers.fully_connected(
        x, 2, weights_initializer=tf.ones_initializer(), outputs_collections="outputs"
    )
    np.testing.assert_array_equal(run(y), [[0, 0]])
    plain = layers.linear(
        x, 2, weights_initializer=tf.ones_initializer(), variables_collections={"weights": ["w"]}
    )
    np.testing.assert_array_equal(run(plain), [[-1, -1]])
    assert names()[:2] == ["fully_connected/weights", "fully_connected/biases"]
    assert names()[2] == "fully_connected_1/weights"
    assert tf.get_collection(tf.GraphKeys.MODEL_VARIABLES) == tf.global_variables()
    assert tf.get_collection("outputs") == [y]
    assert [v.op.name for v in tf.get_collection("w")] == ["fully_connected_1/weights"]


def test_scopes_are_shared() -> None:
    x = tf.ones([1, 2])
    layers.fully_connected(x, 3, scope="a")
    layers.fully_connected(x, 3, scope="a", reuse=True)
    assert names() == ["a/weights", "a/biases"]


def test_convolution_with_normalizer() -> None:
    x = tf.ones([2, 6, 6, 3])
    y = layers.conv2d(
        x, 4, 3, stride=2, normalizer_fn=layers.batch_norm, normalizer_params={"decay": 0.5}
    )
    assert y.shape.as_list() == [2, 3, 3, 4]
    moments = ["Conv/BatchNorm/moving_mean", "Conv/BatchNorm/moving_variance"]
    assert names() == ["Conv/weights", "Conv/BatchNorm/beta", *moments]
    assert len(tf.get_collection(tf.GraphKeys.UPDATE_OPS)) == 2
    assert layers.convolution2d(x, 4, 3, data_format="NHWC").shape.as_list() == [2, 6, 6, 4]
    with pytest.raises(ValueError, match="NCHW or NHWC"):
        layers.conv2d(x, 4, 3, data_format="HWC")


def test_averages_that_move_within_the_step() -> None:
    x = tf.constant([[1.0], [3.0]])
    y = layers.batch_norm(x, decay=0.5, updates_collections=None)
    mean = tf.global_variables()[1]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(y)
        np.testing.assert_allclose(session.run(mean), [1.0])


def test_pools_flatten_and_dropout() -> None:
    x = tf.ones([2, 4, 4, 3])
    assert layers.max_pool2d(x, 2).shape.as_list() == [2, 2, 2, 3]
    assert layers.avg_pool2d(x, [3, 3], padding="SAME").shape.as_list() == [2, 2, 2, 3]
    assert layers.flatten(x).shape.as_list() == [2, 48]
    np.testing.assert_array_equal(run(layers.dropout(x, is_training=False)), np.ones((2, 4, 4, 3)))
