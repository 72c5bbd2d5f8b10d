"""Learning rate schedules against their formulas."""

import math

import numpy as np
import pytest

import thalweg as tf

T = tf.train


def values(schedule, steps, dtype=tf.int64):
    """The learning rate at each of some steps."""
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.placeholder(dtype, [])
        rate = schedule(step)
        return [float(session.run(rate, {step: s})) for s in steps]


def wave(fraction):
    return 0.5 * (1 + math.cos(math.pi * fraction))


@pytest.mark.parametrize(
    ("schedule", "formula"),
    [
        (lambda s: T.exponential_decay(0.1, s, 10, 0.96), lambda s: 0.1 * 0.96 ** (s / 10)),
        (lambda s: T.exponential_decay(0.1, s, 10, 0.96, True), lambda s: 0.1 * 0.96 ** (s // 10)),
        (lambda s: T.natural_exp_decay(0.1, s, 10, 0.5), lambda s: 0.1 * math.exp(-0.5 * s / 10)),
        (
            lambda s: T.natural_exp_decay(0.1, s, 10, 0.5, True),
            lambda s: 0.1 * math.exp(-0.5 * (s // 10)),
        ),
        (lambda s: T.inverse_time_decay(0.1, s, 10, 0.5), lambda s: 0.1 / (1 + 0.5 * s / 10)),
        (
            lambda s: T.polynomial_decay(0.1, s, 20, 0.01, 2.0),
            lambda s: 0.09 * (1 - min(s, 20) / 20) ** 2 + 0.01,
        ),
        (
            lambda s: T.polynomial_decay(0.1, s, 20, 0.01, cycle=True),
            lambda s: 0.09 * (1 - s / (20 * max(1, math.ceil(s / 20)))) + 0.01,
        ),
        (
            lambda s: T.cosine_decay(0.1, s, 20, 0.1),
            lambda s: 0.1 * (0.9 * wave(min(s, 20) / 20) + 0.1),
        ),
        (lambda s: T.cosine_decay_restarts(0.1, s, 10, 1.0), lambda s: 0.1 * wave(s / 10 % 1)),
        (
            lambda s: T.linear_cosine_decay(0.1, s, 50, 2.0, 0.1, 0.01),
            lambda s: 0.1 * ((0.1 + (50 - s) / 50) * wave(4.0 * s / 50) + 0.01),
        ),
        (
            lambda s: T.piecewise_constant(s, [5, 21], [1.0, 0.5, 0.1]),
            lambda s: 1.0 if s <= 5 else 0.5 if s <= 21 else 0.1,
        ),
    ],
)
def test_formulas(schedule, formula):
    steps = [0, 1, 5, 9, 13, 21, 33]
    np.testing.assert_allclose(values(schedule, steps), [formula(s) for s in steps], 1e-5, 1e-7)


def test_growing_restarts():
    def formula(step):
        length, height = 10, 1.0
        while step >= length:
            step, length, height = step - length, length * 2, height * 0.5
        return 0.1 * height * wave(step / length)

    steps = [0, 3, 9, 12, 25, 31, 69]
    schedule = values(lambda s: T.cosine_decay_restarts(0.1, s, 10, 2.0, 0.5), steps)
    np.testing.assert_allclose(schedule, [formula(s) for s in steps], 1e-4, 1e-6)


def test_restarts_with_a_tensor():
    for factor in (1.0, 2.0):
        fed = values(
            lambda s, f=factor: T.cosine_decay_restarts(
                0.1, s, 10, tf.placeholder_with_default(f, [])
            ),
            [0, 12, 25],
        )
        known = values(lambda s, f=factor: T.cosine_decay_restarts(0.1, s, 10, f), [0, 12, 25])
        np.testing.assert_allclose(fed, known, 1e-5)


def test_noise_falls():
    tf.set_random_seed(3)
    noisy = values(lambda s: T.noisy_linear_cosine_decay(0.1, s, 1000, 1e-12), [10])
    plain = values(lambda s: T.linear_cosine_decay(0.1, s, 1000), [10])
    np.testing.assert_allclose(noisy, plain, 1e-3)


def test_errors():
    with pytest.raises(ValueError, match="global_step is required for exponential_decay"):
        T.exponential_decay(0.1, None, 10, 0.9)
    step = tf.constant(1, tf.int32)
    with pytest.raises(ValueError, match="1 less"):
        T.piecewise_constant(step, [1, 2], [1.0, 2.0])
    with pytest.raises(ValueError, match="same dtype as x"):
        T.piecewise_constant(step, [1.5], [1.0, 2.0])
    with pytest.raises(ValueError, match="same dtype"):
        T.piecewise_constant(step, [1], [1.0, 2])


def test_names_and_dtypes():
    with tf.Graph().as_default():
        step = tf.train.create_global_step()
        rate = T.exponential_decay(tf.constant(0.1, tf.float64), step, 10, 0.9)
        assert rate.op.name == "ExponentialDecay"
        assert rate.dtype == tf.float64
        assert T.piecewise_constant(step, [1], [1.0, 2.0], name="steps").op.name == "steps"
