"""Effects inside the branches and loops of a function happen, in the order of the program."""

from __future__ import annotations

import numpy as np
import pytest

import thalweg as tf


@pytest.fixture(autouse=True)
def eager():
    with tf.eager_mode():
        yield


def test_an_assignment_in_a_branch_happens_though_nothing_takes_it() -> None:
    v = tf.Variable(1.0)

    @tf.function
    def call(x):
        def yes():
            v.assign_add(100.0)
            return x

        tf.cond(x > 0, yes, lambda: x)
        return v.read_value()

    assert float(call(tf.constant(1.0))) == 101.0
    assert float(call(tf.constant(-1.0))) == 101.0
    assert float(v.numpy()) == 101.0


def test_a_read_after_a_write_in_a_branch_sees_it() -> None:
    v = tf.Variable(3.0)

    @tf.function
    def call(x):
        def yes():
            v.assign_add(100.0)
            return v + 0.0

        return tf.cond(x > 0, yes, lambda: v + 0.0)

    assert float(call(tf.constant(1.0))) == 103.0


def test_an_assignment_in_a_loop_happens_in_every_iteration() -> None:
    v = tf.Variable(0)

    @tf.function
    def call(n):
        def body(i):
            v.assign_add(i)
            return i + 1

        return tf.while_loop(lambda i: i < n, body, [tf.constant(0)])

    assert int(call(tf.constant(5))) == 5
    assert int(v.numpy()) == 10


def test_a_tape_inside_a_function_watches_the_variables_it_reads() -> None:
    w = tf.Variable([[1.0], [2.0]])

    @tf.function
    def slope(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.matmul(x, w) ** 2)
        return tape.gradient(loss, w)

    x = np.array([[1.0, 1.0]], np.float32)
    np.testing.assert_allclose(slope(x).numpy(), [[6.0], [6.0]])


def test_a_read_in_a_loop_sees_the_writes_to_a_variable_of_the_outer_graph() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        v = tf.Variable(1.0)

        @tf.function
        def total(n):
            def body(i, total):
                v.assign_add(1.0)
                return i + 1, total + v

            return tf.while_loop(lambda i, _: i < n, body, (0, 0.0))[1]

        result = total(3)
        session.run(v.initializer)
        assert session.run(result) == 2.0 + 3.0 + 4.0


def test_an_assignment_of_a_function_happens_in_the_function_that_calls_it() -> None:
    v = tf.Variable(1.0)

    @tf.function
    def inner(x):
        v.assign_add(x)
        return v + 0.0

    outer = tf.function(lambda x: inner(x) + 10.0 * inner(x + 1.0))
    for start in (1.0, 6.0):
        expected = (start + 2.0) + 10.0 * (start + 5.0)
        assert float(outer(tf.constant(2.0))) == expected
        assert float(v.numpy()) == start + 5.0


def test_an_assignment_happens_in_the_call_on_a_tensor_that_is_not_computed_yet() -> None:
    v = tf.Variable(1.0)

    @tf.function
    def call(x):
        v.assign_add(tf.reduce_sum(x))
        return x * 2.0

    x = tf.constant([1.0, 2.0])
    for expected in (5.0, 9.0):
        result = call(x + 0.5)
        assert float(v.numpy()) == expected
        np.testing.assert_array_equal(result.numpy(), [3.0, 5.0])


def test_a_call_on_a_tensor_that_failed_raises_its_error() -> None:
    @tf.function
    def call(x):
        return x + 1.0

    for _ in range(2):
        assert call(tf.constant([1.0])).numpy() == [2.0]
    failed = tf.check_numerics(tf.constant([np.nan]), "not a number")
    for read in (failed.numpy, lambda: call(failed).numpy()):
        with pytest.raises(tf.errors.InvalidArgumentError, match="not a number"):
            read()
