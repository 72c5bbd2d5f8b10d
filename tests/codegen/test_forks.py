"""Selections among many loads: all lanes take one side, and only that is computed."""

from __future__ import annotations

import numpy as np
import pytest

import thalweg as tf


def _run(fetch):
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(fetch), session.plan(fetch)


def _variables(count, *shape):
    values = [np.random.RandomState(i).randn(*shape).astype(np.float32) for i in range(count)]
    return values, [tf.Variable(value) for value in values]


@pytest.mark.parametrize("count", [2, 3, 5, 17, 64])
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 37), (4, 64), (2, 3, 5)])
def test_many_pieces_are_put_together(count, shape):
    with tf.Graph().as_default():
        values, variables = _variables(count, *shape)
        actual, _ = _run(tf.stack(variables))
        np.testing.assert_array_equal(actual, np.stack(values))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_pieces_of_different_sizes(axis):
    with tf.Graph().as_default():
        sizes = [np.insert([5, 33], axis, size) for size in (1, 16, 3, 40, 2)]
        values = [np.random.RandomState(i).randn(*s).astype("f") for i, s in enumerate(sizes)]
        actual, _ = _run(tf.concat([tf.Variable(v) for v in values], axis) * 2.0)
        np.testing.assert_array_equal(actual, np.concatenate(values, axis) * 2)


def test_reductions_and_arithmetic_on_the_way():
    with tf.Graph().as_default():
        values, variables = _variables(6, 8, 24)
        scaled = [tf.nn.softmax(v) * float(i) for i, v in enumerate(variables)]
        actual, _ = _run(tf.reduce_sum(tf.stack(scaled), [1]))
        powers = [np.exp(v - v.max(1, keepdims=True)) for v in values]
        expected = [i * (p / p.sum(1, keepdims=True)).sum(0) for i, p in enumerate(powers)]
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_a_piece_takes_one_load_for_each_vector():
    with tf.Graph().as_default():
        _, variables = _variables(32, 16, 256)
        _, plan = _run(tf.stack(variables))
        (kernel,) = [kernel for kernel in plan.kernels if "pack" in kernel.name]
        assert "masked.load" not in kernel.llvm.partition("define void @kernel")[0]


def test_conditions_that_differ_from_lane_to_lane_stay_selections():
    with tf.Graph().as_default():
        values, variables = _variables(4, 50)
        picks = tf.constant(np.arange(50) % 4)
        found = variables[0]
        for i, variable in enumerate(variables):
            found = tf.where(tf.equal(picks, i), variable, found)
        result, _ = _run(found)
        np.testing.assert_array_equal(result, np.choose(np.arange(50) % 4, values))


def test_selections_a_hundred_deep():
    with tf.Graph().as_default():
        values, variables = _variables(100, 20)
        row = tf.placeholder(tf.int32, [3, 1])
        found = variables[0] + tf.zeros([3, 1])
        for i, variable in enumerate(variables):
            chosen = tf.tile(tf.equal(row, i), [1, 20])
            found = tf.where(chosen, variable + tf.zeros([3, 1]), found)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            result = session.run(found, {row: [[0], [99], [50]]})
        np.testing.assert_array_equal(result, [values[0], values[99], values[50]])
