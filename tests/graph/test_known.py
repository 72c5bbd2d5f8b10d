"""What is known of values while the graph is built."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.graph.known import constant_elements, constant_value, constant_value_as_shape


def partly() -> Any:
    """A tensor of shape (?, 4, 6)."""
    return tf.placeholder(tf.float32, [None, 4, 6])


VALUES: dict[str, Any] = {
    "constant": (lambda: tf.constant([1, 2]), [1, 2]),
    "shape": (lambda: tf.shape(tf.zeros([2, 3])), [2, 3]),
    "size": (lambda: tf.size(tf.zeros([2, 3])), 6),
    "rank": (lambda: tf.rank(partly()), 3),
    "element of a shape": (lambda: tf.shape(partly())[1], 4),
    "elements of a shape": (lambda: tf.shape(partly())[1:], [4, 6]),
    "sum": (lambda: tf.shape(partly())[1] + 1, 5),
    "cast": (lambda: tf.cast(tf.shape(partly())[1], tf.int64), 4),
    "range": (lambda: tf.range(3), [0, 1, 2]),
    "stack": (lambda: tf.stack([tf.shape(partly())[2], 7]), [6, 7]),
    "concat": (lambda: tf.concat([tf.shape(partly())[1:], [7]], 0), [4, 6, 7]),
    "fill": (lambda: tf.fill([2], 5), [5, 5]),
    "string": (lambda: tf.constant("a"), b"a"),
}


@pytest.mark.parametrize("name", VALUES)
def test_constant_value(name: str) -> None:
    build, expected = VALUES[name]
    tensor = build()
    value = constant_value(tensor)
    assert value is not None
    assert value.tolist() == expected
    assert tf.as_dtype(value.dtype) == tensor.dtype


NOT_VALUES: dict[str, Any] = {
    "placeholder": lambda: tf.placeholder(tf.int32, []),
    "unknown element": lambda: tf.shape(partly())[0],
    "unknown in part": lambda: tf.stack([tf.shape(partly())[0], 1]),
    "random": lambda: tf.random_uniform([2]),
    "wrong": lambda: tf.gather([1, 2], 5),
    "large": lambda: tf.fill([100, 100], 1),
    "no tensor": lambda: 5,
}


@pytest.mark.parametrize("name", NOT_VALUES)
def test_no_constant_value(name: str) -> None:
    assert constant_value(NOT_VALUES[name]()) is None


def test_constant_value_in_part() -> None:
    value = constant_value(tf.stack([tf.placeholder(tf.int32, []), -1]), partial=True)
    assert value is not None
    assert value.tolist() == [None, -1]
    assert tf.contrib.util.constant_value(tf.constant(3)) == 3


SHAPES: dict[str, Any] = {
    "shape": (lambda: tf.shape(partly()), [None, 4, 6]),
    "identity": (lambda: tf.identity(tf.shape(partly())), [None, 4, 6]),
    "cast": (lambda: tf.cast(tf.shape(partly()), tf.int64), [None, 4, 6]),
    "stack": (lambda: tf.stack([tf.shape(partly())[0], 5, -1]), [None, 5, None]),
    "slice": (lambda: tf.shape(partly())[:2], [None, 4]),
    "backwards": (lambda: tf.shape(partly())[::-1], [6, 4, None]),
    "concat": (lambda: tf.concat([[2], tf.shape(partly())[:-1]], 0), [2, None, 4]),
    "product": (lambda: tf.shape(partly()) * [1, 2, 3], [None, 8, 18]),
    "product by one": (lambda: 2 * tf.shape(partly()), [None, 8, 12]),
    "quotient": (lambda: tf.shape(partly()) // 2, [None, 2, 3]),
    "placeholder": (lambda: tf.placeholder(tf.int32, [2]), [None, None]),
}


@pytest.mark.parametrize("name", SHAPES)
def test_as_shape(name: str) -> None:
    build, expected = SHAPES[name]
    assert constant_value_as_shape(build()).as_list() == expected


def test_unknown_rank() -> None:
    assert constant_value_as_shape(tf.placeholder(tf.int32, [None])).rank is None
    assert constant_value_as_shape(tf.shape(tf.placeholder(tf.float32))).rank is None
    assert constant_value_as_shape(tf.constant(-1)).rank is None


@pytest.mark.parametrize("size", [1, 2])
def test_a_set_shape_that_the_inputs_do_not_have(size: int) -> None:
    unknown = tf.placeholder(tf.int32)
    for value in (unknown - [1, 2, 3], tf.maximum([1, 2, 3], unknown)):
        value.set_shape([size])
        assert constant_elements(value) == (None,) * size


def test_elements_keep_their_sign() -> None:
    assert constant_elements(tf.stack([tf.placeholder(tf.int32, []), -3])) == (None, -3)


def test_long_chains_are_given_up_not_followed() -> None:
    value = tf.shape(partly())
    for _ in range(400):
        value = value + value
    scalar = tf.constant(1)
    for _ in range(2000):
        scalar = scalar + 1
    assert constant_value_as_shape(value).rank in (None, 3)
    assert constant_value(scalar) in (None, np.int32(2001))


def test_a_body_knows_what_it_captures() -> None:
    x = tf.placeholder(tf.float32, [None, 5])
    shape = tf.shape(x)
    inside = tf.while_loop(
        lambda row: tf.constant(True),
        lambda row: [tf.fill([1, shape[1]], 0.0) + row],
        [tf.zeros([1, 5])],
        maximum_iterations=1,
    )
    assert inside.shape.as_list() == [1, 5]
    taken = tf.cond(tf.constant(True), lambda: tf.range(shape[1]), lambda: tf.range(shape[1]) * 2)
    assert taken.shape.as_list() == [5]
