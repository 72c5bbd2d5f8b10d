"""TensorArrays inside loops and branches: values, gradients of both orders, errors."""

import numpy as np
import pytest

import thalweg as tf
from tests.control.test_tensor_array import matrix, reusable_array
from tests.ops.harness import check_gradient


def loop(times, body, start):
    """The last of `variable = body(i, variable)` for i below `times`."""
    _, last = tf.while_loop(
        lambda i, _: i < times, lambda i, variable: (i + 1, body(i, variable)), [0, start]
    )
    return last


def read_and_written(x):
    start = reusable_array(4).write(0, x[0] ** 2)
    array = loop(3, lambda i, array: array.write(i + 1, array.read(i) * x[i]), start)
    return array.stack()


def read_from_outside(x):
    rows = reusable_array(3).unstack(x)
    total = loop(3, lambda i, total: total * rows.read(i), tf.ones([2], tf.float64))
    return total * rows.read(1)


def growing(x):
    array = reusable_array(0, dynamic_size=True)
    array = loop(3, lambda i, array: array.write(i, x[i] ** 2), array)
    return tf.reshape(array.stack(), [3, 2]) ** 2


def ragged(x):
    array = reusable_array(3, infer_shape=False)
    array = loop(3, lambda i, array: array.write(i, x[:i] ** 2), array)
    return tf.reshape(array.concat(), [3, 2]) ** 2


def partly_written_before(x):
    array = reusable_array(3).write(2, x[2])
    array = loop(2, lambda i, array: array.write(i, x[i] ** 2), array)
    return array.read(0) * array.read(2) ** 2


def in_a_branch(x):
    array = reusable_array(3).write(0, x[0])
    array = tf.cond(
        x[0, 0] > 0, lambda: array.write(1, x[1] ** 2), lambda: array.write(1, x[2] ** 3)
    )
    return array.read(0) * array.read(1)


@pytest.mark.parametrize(
    "build",
    [read_and_written, read_from_outside, growing, ragged, partly_written_before, in_a_branch],
)
def test_gradients_of_both_orders(build):
    check_gradient(build, [matrix(3)], [0], True, 1e-6, 1e-6)


def ones(times, **options):
    array = tf.TensorArray(tf.float32, 3, **options)
    return loop(times, lambda i, array: array.write(i, 1.0), array)


def read_twice(array):
    with tf.control_dependencies([array.read(0)]):
        return array.read(0)


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: ones(2).stack(), "index 2 because it has not yet been written"),
        (lambda: ones(4).flow, "write to index 3"),
        (lambda: read_twice(ones(3)), "index 0 twice"),
        (lambda: ones(3).write(0, 1.0).flow, "index 0 because it has already been written"),
    ],
)
def test_a_loop_leaves_a_list_as_strict_as_it_was(build, message):
    with tf.Graph().as_default(), tf.Session() as session:
        value = build()
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            session.run(value)


def test_a_loop_leaves_a_list_as_long_as_it_may_get():
    with tf.Graph().as_default(), tf.Session() as session:
        array = ones(3, dynamic_size=True).write(5, 2.0)
        assert session.run(array.size()) == 6


@pytest.mark.parametrize("times", [0, 3, 64, 65, 300])
def test_a_list_grows_past_its_initial_capacity(times):
    x = tf.constant([1.0, 2.0])
    array = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[2])
    array = loop(times, lambda i, array: array.write(i, tf.to_float(i) * x), array)
    stacked = array.stack()
    with tf.Session() as session:
        actual, slope = session.run([stacked, tf.gradients(stacked, x)[0]])
    np.testing.assert_array_equal(actual, np.arange(times)[:, None] * [1.0, 2.0])
    np.testing.assert_array_equal(slope, [times * (times - 1) / 2] * 2)


def test_a_loop_reads_a_list_whose_rows_are_columns_in_memory():
    x = tf.placeholder(tf.float64, [3, 2])
    rows = reusable_array(3).unstack(x)

    def body(i, total, rows):
        written = tf.cond(i > 3, lambda: rows.write(i, total), lambda: rows)  # never
        return i + 1, total + rows.read(i) * tf.to_double(i), written

    total = tf.while_loop(lambda i, *_: i < 3, body, [0, tf.zeros([2], tf.float64), rows])[1]
    columns = np.asfortranarray(matrix(3))
    with tf.Session() as session:
        actual = session.run(total, {x: columns})
    np.testing.assert_allclose(actual, columns[1] + 2 * columns[2])


@pytest.mark.parametrize("is_row", [True, False])
def test_a_loop_writes_rows_and_indices_of_unknown_rank(is_row):
    def body(i, array):
        row, index = x * tf.to_float(i), i
        if is_row:
            row = tf.placeholder_with_default(row, None)
        else:
            index = tf.placeholder_with_default(index, None)
        return i + 1, array.write(index, row)

    x = tf.constant([1.0, 2.0])
    array = tf.TensorArray(tf.float32, 3).write(0, x * 0.0)
    stacked = tf.while_loop(lambda i, _: i < 3, body, [1, array])[1].stack()
    with tf.Session() as session:
        assert session.run(stacked).tolist() == [[0.0, 0.0], [1.0, 2.0], [2.0, 4.0]]
