"""Moving averages: decay, debiasing, names and what a Saver restores."""

import numpy as np
import pytest

import thalweg as tf


@pytest.fixture(autouse=True)
def session():
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


def initialize(session):
    session.run(tf.global_variables_initializer())


def test_average_of_a_variable(session):
    w = tf.Variable([10.0, 20.0], name="w")
    ema = tf.train.ExponentialMovingAverage(0.75)
    update = ema.apply([w])
    assert ema.average(w).op.name == "w/ExponentialMovingAverage"
    assert ema.average_name(w) == "w/ExponentialMovingAverage"
    assert tf.moving_average_variables() == [w]
    initialize(session)
    assert session.run(ema.average(w)).tolist() == [10, 20]
    w.load([14.0, 20.0])
    session.run(update)
    assert session.run(ema.average(w)).tolist() == [11, 20]


def test_number_of_updates_speeds_up_the_start(session):
    w = tf.Variable(0.0)
    ema = tf.train.ExponentialMovingAverage(0.75, num_updates=1)
    update = ema.apply([w])
    initialize(session)
    w.load(11.0)
    session.run(update)
    np.testing.assert_allclose(session.run(ema.average(w)), 9.0)


def test_tensors_start_at_zero_and_can_be_debiased(session):
    value = tf.constant([3.0, 5.0]) + 0.0
    plain = tf.train.ExponentialMovingAverage(0.75, name="plain")
    fair = tf.train.ExponentialMovingAverage(0.75, zero_debias=True, name="fair")
    updates = [plain.apply([value]), fair.apply([value])]
    initialize(session)
    for _ in range(3):
        session.run(updates)
        np.testing.assert_allclose(session.run(fair.average(value)), [3, 5], rtol=1e-6)
    np.testing.assert_allclose(
        session.run(plain.average(value)), np.array([3, 5]) * (1 - 0.75**3), rtol=1e-6
    )
    assert tf.moving_average_variables() == []


def test_assign_moving_average(session):
    w = tf.Variable([10.0, 11.0])
    update = tf.train.assign_moving_average(w, [1.0, 2.0], 0.25, zero_debias=False)
    initialize(session)
    np.testing.assert_allclose(session.run(update), [3.25, 4.25])


def test_weighted_average(session):
    value, weight = tf.placeholder(tf.float32, []), tf.placeholder(tf.float32, [])
    average = tf.train.weighted_moving_average(value, 0.5, weight)
    initialize(session)
    np.testing.assert_allclose(session.run(average, {value: 3.0, weight: 4.0}), 3.0)
    expected = (3 * 4 * 0.25 + 7 * 2 * 0.5) / (4 * 0.25 + 2 * 0.5)
    np.testing.assert_allclose(session.run(average, {value: 7.0, weight: 2.0}), expected)


def test_what_is_restored():
    w, b = tf.Variable(1.0, name="w"), tf.Variable(1.0, name="b", trainable=False)
    ema = tf.train.ExponentialMovingAverage(0.9, name="mean")
    assert ema.average(w) is None
    assert ema.variables_to_restore() == {"w/mean": w, "b": b}
    ema.apply([w])
    assert ema.variables_to_restore() == {"w/mean": w, "b": b}
    assert ema.name == "mean"


def test_only_floats_have_averages():
    with pytest.raises(TypeError, match="half, float, or double"):
        tf.train.ExponentialMovingAverage(0.9).apply([tf.Variable(1)])


def test_a_branch_debiases():
    average, taken = tf.Variable([0.0]), tf.placeholder(tf.bool, [])
    moved = tf.cond(
        taken,
        lambda: tf.train.assign_moving_average(average, [2.0], 0.5),
        lambda: tf.identity(average),
    )
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(moved, {taken: False}) == [0.0]
        assert session.run(moved, {taken: True}) == [2.0]
