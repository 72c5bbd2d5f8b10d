"""Conditionals and loops in eager code, which Python runs on values."""

from __future__ import annotations

import numpy as np
import pytest

import thalweg as tf


@pytest.fixture(autouse=True)
def eager():
    with tf.eager_mode():
        yield


def test_only_the_branch_that_is_taken_runs() -> None:
    ran: list[str] = []

    def branch(name: str, value: float):
        ran.append(name)
        return tf.constant(value)

    x = tf.constant(3.0)
    y = tf.cond(x > 2, lambda: branch("yes", 1.0), lambda: branch("no", 2.0))
    assert float(y) == 1.0
    assert ran == ["yes"]


def test_a_loop_runs_its_body_once_per_iteration() -> None:
    seen: list[int] = []

    def body(i, total):
        seen.append(int(i))
        return i + 1, total + i

    i, total = tf.while_loop(lambda i, _: i < 4, body, [tf.constant(0), tf.constant(0)])
    assert (int(i), int(total), seen) == (4, 6, [0, 1, 2, 3])


def test_a_loop_ends_at_its_maximum() -> None:
    end = tf.while_loop(lambda x: x > 0, lambda x: x + 1, [1.0], maximum_iterations=3)
    assert float(end) == 4.0


def test_numbered_branches() -> None:
    functions = [lambda k=k: tf.constant(k) for k in range(3)]
    assert [int(tf.switch_case(tf.constant(k), functions)) for k in (0, 1, 2, 7, -1)] == [
        0,
        1,
        2,
        2,
        2,
    ]


def test_gradients_go_through_what_ran() -> None:
    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        _, y = tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * x), [tf.constant(0), x])
        z = tf.cond(tf.reduce_sum(y) > 0, lambda: tf.reduce_sum(y), lambda: -tf.reduce_sum(y))
    np.testing.assert_allclose(tape.gradient(z, x).numpy(), [4.0, 32.0])


def test_map_and_scan() -> None:
    x = tf.constant([1.0, 2.0, 3.0])
    np.testing.assert_allclose(tf.map_fn(lambda v: v * v, x).numpy(), [1, 4, 9])
    np.testing.assert_allclose(tf.scan(lambda a, v: a + v, x).numpy(), [1, 3, 6])
