"""Scaled losses: the same updates, steps that overflow left out, a scale that follows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.train.optimizers import loss_scale

Scaled = tf.train.experimental.MixedPrecisionLossScaleOptimizer


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def scale_of(optimizer: Any) -> Any:
    return optimizer._scale


@pytest.mark.parametrize("scale", ["dynamic", 128.0])
@pytest.mark.parametrize("inner", [tf.train.AdamOptimizer, tf.train.GradientDescentOptimizer])
def test_updates_are_those_of_the_plain_optimizer(inner: Any, scale: Any) -> None:
    table = np.ones((4, 2), np.float32)
    found = []
    for wrapped in (False, True):
        v, e = tf.Variable([1.0, -2.0]), tf.Variable(table)
        loss = tf.reduce_sum(v * v) + tf.reduce_sum(tf.gather(e, [1, 1, 3]) ** 2)
        optimizer = Scaled(inner(0.1), scale) if wrapped else inner(0.1)
        train = optimizer.minimize(loss, var_list=[v, e])
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for _ in range(3):
                session.run(train)
            found.append(session.run([v, e]))
    for plain, scaled in zip(*found, strict=True):
        np.testing.assert_allclose(scaled, plain, rtol=1e-5)


def test_a_step_that_overflows_is_left_out_and_halves_the_scale() -> None:
    x, v = tf.placeholder(tf.float32, []), tf.Variable(1.0)
    step = tf.train.get_or_create_global_step()
    optimizer = Scaled(tf.train.MomentumOptimizer(0.1, 0.9))
    train = optimizer.minimize(v * x, global_step=step)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train, {x: np.inf})
        assert session.run([v, step, scale_of(optimizer)]) == [1.0, 0, 2.0**14]
        session.run(train, {x: 1.0})
        np.testing.assert_allclose(session.run([v, step, scale_of(optimizer)]), [0.9, 1, 2.0**14])


def test_good_steps_double_the_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_scale, "_PERIOD", 2)
    v = tf.Variable(1.0)
    optimizer = Scaled(tf.train.GradientDescentOptimizer(0.1))
    train = optimizer.minimize(v * v)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        scales = []
        for _ in range(4):
            session.run(train)
            scales.append(float(session.run(scale_of(optimizer))))
    assert scales == [2.0**15, 2.0**16, 2.0**16, 2.0**17]


def test_a_wrong_scale_is_named() -> None:
    with pytest.raises(ValueError, match="'static'"):
        Scaled(tf.train.GradientDescentOptimizer(0.1), "static")


@pytest.mark.parametrize("inner", [tf.train.AdamOptimizer, tf.train.MomentumOptimizer])
def test_updates_in_a_branch_are_made_only_there(inner: Any) -> None:
    x, v = tf.placeholder(tf.float32, []), tf.Variable(1.0)
    optimizer = inner(0.1, 0.9)

    def train() -> tf.Tensor:
        with tf.control_dependencies([optimizer.apply_gradients([(x * 2, v)])]):
            return tf.constant(True)

    done = tf.cond(x > 0, train, lambda: tf.constant(False))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert not session.run(done, {x: -1})
        assert session.run(v) == 1.0
        assert session.run(done, {x: 1})
        assert session.run(v) < 1.0
