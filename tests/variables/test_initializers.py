"""Initializers: shapes, scales, seeds and configurations."""

import numpy as np
import pytest

import thalweg as tf


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def value(initializer, shape, **options):
    with tf.Session() as session:
        return session.run(initializer(shape, **options))


def test_fixed_values():
    assert value(tf.zeros_initializer(), [2]).tolist() == [0, 0]
    assert value(tf.ones_initializer(), [2], dtype=tf.int32).tolist() == [1, 1]
    assert value(tf.zeros_initializer(tf.bool), [2]).tolist() == [False, False]
    assert value(tf.constant_initializer([1, 2]), [2, 2]).tolist() == [[1, 2], [2, 2]]
    assert value(tf.initializers.identity(gain=2.0), [2, 3]).tolist() == [[2, 0, 0], [0, 2, 0]]
    with pytest.raises(TypeError, match="Invalid type for initial value"):
        tf.constant_initializer(object())
    with pytest.raises((TypeError, ValueError)):
        value(tf.constant_initializer([1, 2], verify_shape=True), [2, 2])


def test_a_large_constant_of_one_value_is_no_part_of_the_graph():
    made = tf.constant_initializer(0.5)([1 << 10, 1 << 10], tf.float16)
    assert made.op.type == "Fill"
    assert made.dtype is tf.float16
    assert made.shape == [1 << 10, 1 << 10]
    assert (tf.Session().run(made) == 0.5).all()


@pytest.mark.parametrize(
    ("initializer", "variance"),
    [
        (tf.random_uniform_initializer(-1, 1), 1 / 3),
        (tf.random_normal_initializer(stddev=2.0), 4.0),
        (tf.truncated_normal_initializer(), 0.774),
        (tf.uniform_unit_scaling_initializer(), 1 / 100),
        (tf.glorot_uniform_initializer(), 2 / 150),
        (tf.glorot_normal_initializer(), 2 / 150),
        (tf.initializers.lecun_normal(), 1 / 100),
        (tf.initializers.lecun_uniform(), 1 / 100),
        (tf.initializers.he_normal(), 2 / 100),
        (tf.initializers.he_uniform(), 2 / 100),
        (tf.variance_scaling_initializer(mode="fan_out"), 1 / 50),
        (tf.variance_scaling_initializer(distribution="untruncated_normal"), 1 / 100),
        (tf.contrib.layers.xavier_initializer(), 2 / 150),
    ],
)
def test_variances(initializer, variance):
    tf.set_random_seed(1)
    numbers = value(initializer, [100, 50])
    assert numbers.dtype == np.float32
    assert abs(numbers.mean()) < 0.05 * max(1.0, numbers.std())
    np.testing.assert_allclose(numbers.var(), variance, rtol=0.1)


def test_seeds_repeat():
    for make in (tf.random_normal_initializer, tf.random_uniform_initializer):
        first, again = (value(make(seed=7), [5]) for _ in range(2))
        np.testing.assert_array_equal(first, again)


def test_windows_count_in_the_fans():
    fans = tf.variables.initializers.fans
    assert fans([]) == (1, 1)
    assert fans([4]) == (4, 4)
    assert fans([3, 3, 8, 16]) == (72, 144)


@pytest.mark.parametrize("shape", [(4, 4), (6, 3), (3, 6), (2, 3, 4)])
def test_orthogonal(shape):
    matrix = value(tf.orthogonal_initializer(gain=2.0), shape).reshape(-1, shape[-1])
    if matrix.shape[0] < matrix.shape[1]:
        matrix = matrix.T
    np.testing.assert_allclose(matrix.T @ matrix, 4 * np.eye(matrix.shape[1]), atol=1e-5)


def test_bad_arguments():
    for make in (tf.random_normal_initializer, tf.orthogonal_initializer):
        with pytest.raises(ValueError, match="floating point"):
            make(dtype=tf.string)
    with pytest.raises(ValueError, match="two-dimensional"):
        tf.orthogonal_initializer()([3])
    with pytest.raises(ValueError, match="mode"):
        tf.variance_scaling_initializer(mode="sideways")
    with pytest.raises(ValueError, match="distribution"):
        tf.variance_scaling_initializer(distribution="odd")
    with pytest.raises(ValueError, match="positive"):
        tf.variance_scaling_initializer(scale=0.0)


def test_configurations_round_trip():
    made = tf.random_uniform_initializer(-2, 3, seed=5, dtype=tf.float64)
    config = made.get_config()
    assert config == {"minval": -2, "maxval": 3, "seed": 5, "dtype": "float64"}
    assert type(made).from_config(config).get_config() == config


def test_regularizers():
    w = tf.get_variable("w", initializer=tf.constant([3.0, -4.0]))
    layers = tf.contrib.layers
    losses = [
        layers.l1_regularizer(0.5)(w),
        layers.l2_regularizer(0.5)(w),
        layers.l1_l2_regularizer(0.5, 0.5)(w),
        layers.apply_regularization(layers.l2_regularizer(1.0), [w, w]),
    ]
    assert layers.l1_regularizer(0.0)(w) is None
    assert tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES) == losses[-1:]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(losses) == [3.5, 6.25, 9.75, 25.0]
    with pytest.raises(ValueError, match="integer"):
        layers.l2_regularizer(1)
    with pytest.raises(ValueError, match="less than 0"):
        layers.l1_regularizer(-1.0)
