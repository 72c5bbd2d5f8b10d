"""Conditionals and loops whose nodes are on several tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import thalweg as tf

pytest.importorskip("zmq")

FIRST, SECOND = "/job:worker/task:0", "/job:worker/task:1"


@pytest.fixture(scope="module")
def workers() -> Iterator[list[Any]]:
    servers, _ = tf.test.create_local_cluster(2, 0)
    yield servers
    for each in servers:
        each.stop()


@pytest.fixture
def session(workers: list[Any]) -> Iterator[tf.Session]:
    tf.Session.reset(workers[0].target)
    with tf.Graph().as_default(), tf.Session(workers[0].target) as opened:
        yield opened


def test_a_loop_puts_to_and_takes_from_a_queue_of_another_task(session: tf.Session) -> None:
    with tf.device(SECOND):
        queue = tf.FIFOQueue(9, [tf.float32], [[]])

    def body(i: Any, total: Any) -> Any:
        with tf.device(SECOND):
            put = queue.enqueue(tf.to_float(i))
        with tf.control_dependencies([put]):
            return i + 1, total + queue.dequeue()

    with tf.device(FIRST):
        _, total = tf.while_loop(lambda i, _: i < 4, body, [0, 0.0])
    assert session.run(total) == 6.0
    assert session.run([total, queue.size()])[0] == 6.0


def test_a_branch_adds_to_an_accumulator_of_another_task(session: tf.Session) -> None:
    given = tf.placeholder(tf.bool, [])
    with tf.device(SECOND):
        sums = tf.ConditionalAccumulator(tf.float32, shape=[2])

    def taken() -> Any:
        with tf.control_dependencies([sums.apply_grad(tf.ones([2]))]):
            return tf.constant(1.0)

    with tf.device(FIRST):
        chosen = tf.cond(given, taken, lambda: tf.constant(0.0))
    assert [session.run(chosen, {given: value}) for value in (True, False, True)] == [1, 0, 1]
    assert session.run(sums.num_accumulated()) == 2


def test_a_reference_that_an_assignment_on_another_task_returned(session: tf.Session) -> None:
    given = tf.placeholder(tf.float32, [3])
    with tf.device(SECOND):
        variable = tf.Variable(tf.zeros([3]))

    def taken() -> Any:
        with tf.device(SECOND):
            assigned = tf.assign(variable, given)
        with tf.device(FIRST):
            noted = tf.py_func(lambda x: x * 10, [given], tf.float32)
        with tf.device(SECOND), tf.control_dependencies([noted]):
            return tf.assign_add(assigned, noted + assigned)

    with tf.device(FIRST):
        result = tf.cond(given[0] > 0, taken, lambda: given)
    session.run(variable.initializer)
    value = np.array([1, 2, 3], np.float32)
    assert session.run(result, {given: value}).tolist() == [12.0, 24.0, 36.0]
    assert session.run(variable).tolist() == [12.0, 24.0, 36.0]


def test_the_gradient_of_a_loop_on_another_task_inside_a_loop(session: tf.Session) -> None:
    x = tf.placeholder(tf.float32, [2])

    def body(i: Any, y: Any) -> Any:
        with tf.device(SECOND):
            _, z = tf.while_loop(lambda j, _: j < 2, lambda j, z: (j + 1, z * x), [0, y])
        return i + 1, tf.sin(z)

    with tf.device(FIRST):
        _, result = tf.while_loop(lambda i, _: i < 2, body, [0, x])
        (gradient,) = tf.gradients(result, x)
    value = np.array([0.5, 1.25], np.float32)
    found = session.run([result, gradient], {x: value})
    y, slope = value.astype(np.float64), np.ones(2)
    for _ in range(2):
        z = y * value**2
        slope = np.cos(z) * (slope * value**2 + 2 * y * value)
        y = np.sin(z)
    np.testing.assert_allclose(found[0], y, rtol=1e-5)
    np.testing.assert_allclose(found[1], slope, rtol=1e-5)


def test_a_list_cannot_be_fetched_from_another_task(session: tf.Session) -> None:
    with tf.device(SECOND):
        array = tf.TensorArray(tf.float32, 1, colocate_with_first_write_call=False)
        written = array.write(0, 1.0)
    with pytest.raises(tf.errors.InternalError, match="cannot be sent to another process"):
        session.run(written.flow)
    assert session.run(written.stack()).tolist() == [1.0]
