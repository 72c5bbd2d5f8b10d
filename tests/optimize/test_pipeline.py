"""The whole pipeline: sessions agree with the reference kernels up to rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.optimize.options import OptimizerSwitches
from thalweg.optimize.pipeline import MAX_ROUNDS, PASSES, optimize
from thalweg.runtime.plan import Step, prune


def optimized(fetches: Any, feeds: Any = (), targets: Any = ()) -> Any:
    """A step after all passes."""
    step = Step(tuple(fetches), tuple(targets), tuple(feeds))
    return optimize(prune(*step), *step)


def types(fetches: Any, feeds: Any = ()) -> list[str]:
    """The ops of a step after all passes."""
    return [node.type for node in optimized(fetches, feeds).nodes]


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def test_equal_products_are_multiplied_once() -> None:
    x = tf.placeholder(tf.float32, [3, 3])
    assert types([tf.matmul(x, x) + tf.matmul(x, x)], [x]).count("MatMul") == 1


def test_neutral_elements_leave_nothing() -> None:
    x = tf.placeholder(tf.float32, [3])
    assert types([x * 1 + 0], [x]) == ["Identity"]


def test_fetches_are_arrays_of_their_own() -> None:
    x = tf.placeholder(tf.float32, [2])
    fed = np.ones(2, np.float32)
    with tf.Session() as session:
        one, two, three = session.run([tf.negative(x), -x, tf.identity(x)], {x: fed})
    one += 5
    three += 5
    np.testing.assert_array_equal(two, [-1, -1])
    np.testing.assert_array_equal(fed, [1, 1])


def test_a_tensor_that_is_fetched_twice_is_one_value() -> None:
    y = tf.constant([1.0, 2.0]) * 2
    first, second = optimized([y, y]).fetches
    assert first is second


def test_a_folded_fetch_belongs_to_the_caller() -> None:
    y = tf.constant([1.0, 2.0]) * 2
    with tf.Session() as session:
        session.run(y)[:] = 7
        np.testing.assert_array_equal(session.run(y), [2, 4])


def test_nothing_to_do_changes_nothing() -> None:
    x = tf.placeholder(tf.float32, [2])
    y = tf.exp(x)
    step = Step((y,), (), (x,))
    nodes = prune(*step)
    assert optimize(nodes, *step).nodes is nodes


def test_every_pass_reports() -> None:
    x = tf.placeholder(tf.float32, [2])
    done = optimized([x * 1], [x])
    assert [each.name for each in done.passes] == [each.name for each in PASSES if not each.needs]
    fired = {each.name: each.fired for each in done.passes}
    assert fired["neutral_elements"] == {"multiply by one": 1}


def test_passes_can_be_left_out() -> None:
    x = tf.placeholder(tf.float32, [2])
    step = Step((x * 1,), (), (x,))
    without = OptimizerSwitches(without=frozenset({"neutral_elements"}))
    assert "Mul" in [node.type for node in optimize(prune(*step), *step, None, without).nodes]


def test_rounds_are_bounded() -> None:
    x = tf.placeholder(tf.float32, [2])
    y = x
    for number in range(40):
        y = tf.negative(tf.negative(y + number)) * 1
    done = optimized([y], [x])
    assert len(done.nodes) <= 4
    assert MAX_ROUNDS <= 4


def test_every_pass_says_why() -> None:
    assert all(each.reason for each in PASSES)
    assert len({each.name for each in PASSES}) == len(PASSES)


# Stable forms


def naive_loss(logits: Any, labels: Any) -> tf.Tensor:
    return -tf.reduce_sum(labels * tf.log(tf.nn.softmax(logits)))


@pytest.mark.parametrize("batch", [None, 4])
def test_the_naive_cross_entropy_is_stable_with_its_gradient(batch: int | None) -> None:
    logits = tf.placeholder(tf.float32, [batch, 5])
    labels = tf.placeholder(tf.float32, [batch, 5])
    naive = naive_loss(logits, labels)
    fused = tf.reduce_sum(tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    both = [naive, fused, *tf.gradients(naive, logits), *tf.gradients(fused, logits)]
    rng = np.random.default_rng(0)
    values = rng.choice([-1000.0, 0.0, 1000.0], (4, 5)).astype(np.float32)
    onehot = np.eye(5, dtype=np.float32)[rng.integers(0, 5, 4)]
    with tf.Session() as session:
        loss, expected, slope, wanted_slope = session.run(both, {logits: values, labels: onehot})
    assert np.isfinite(slope).all()
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    np.testing.assert_allclose(slope, wanted_slope, atol=1e-6)


def test_the_naive_sigmoid_cross_entropy_is_stable_with_its_gradient() -> None:
    x, z = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.float32, [None, 3])
    s = tf.sigmoid(x)
    naive = -(z * tf.log(s) + (1 - z) * tf.log(1 - s))
    fused = tf.nn.sigmoid_cross_entropy_with_logits(labels=z, logits=x)
    both = [naive, fused, *tf.gradients(naive, x), *tf.gradients(fused, x)]
    feeds = {
        x: np.array([[-1000, 0, 1000], [1000, -3, -1000]], np.float32),
        z: np.array([[0, 1, 1], [0, 0, 1]], np.float32),
    }
    with tf.Session() as session:
        loss, expected, slope, wanted_slope = session.run(both, feeds)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    np.testing.assert_allclose(slope, wanted_slope, atol=1e-6)


def test_training_on_the_naive_loss_meets_no_nan() -> None:
    x, labels = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.float32, [None, 3])
    w = tf.Variable(tf.zeros([4, 3]))
    loss = naive_loss(tf.matmul(x, w) * 1000, labels)
    train = tf.train.GradientDescentOptimizer(0.5).minimize(loss)
    rng = np.random.default_rng(0)
    feeds = {x: rng.normal(size=(16, 4)), labels: np.eye(3)[rng.integers(0, 3, 16)]}
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        losses = [session.run([loss, train], feeds)[0] for _ in range(10)]
    assert np.isfinite(losses).all()
