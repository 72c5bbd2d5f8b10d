"""Scatters whose updates depend on what they change: all updates are of the old values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import thalweg as tf


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.mark.parametrize("indices", [[1, 1, 3], [0, 2, 2], [3, 1, 0]])
@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("scatter", [tf.scatter_add, tf.scatter_sub])
def test_updates_read_what_was_there_before(scatter: Any, shift: int, indices: list[int]) -> None:
    before = np.arange(1.0, 9.0, dtype=np.float32).reshape(4, 2)
    v, at = tf.Variable(before), tf.placeholder(tf.int32, [3])
    read = [(index + shift) % 4 for index in indices]
    update = scatter(v, at, tf.square(tf.gather(v, (at + shift) % 4)) * 0.5)
    expected = before.copy()
    sign = 1 if scatter is tf.scatter_add else -1
    np.add.at(expected, indices, sign * before[read] ** 2 * 0.5)
    with tf.Session() as session:
        session.run(v.initializer)
        np.testing.assert_allclose(session.run(update, {at: indices}), expected)


def test_rows_that_a_batch_has_twice_are_trained_twice() -> None:
    table = tf.Variable(np.ones((4, 2), np.float32))
    loss = tf.reduce_sum(tf.square(tf.gather(table, [1, 1, 3])))
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as session:
        session.run(table.initializer)
        session.run(train)
        np.testing.assert_allclose(session.run(table)[:, 0], [1, 0.6, 1, 0.8], rtol=1e-6)
