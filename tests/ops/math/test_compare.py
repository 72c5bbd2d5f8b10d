"""Rows of the op table: comparisons, logic, choosing, bits."""

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import assert_close, check
from thalweg.ops.math.compare import ApproximateEqual

R = np.random.default_rng(3)
X = np.array([[1.0, 2.0, np.nan], [4.0, -np.inf, 0.0]])
Y = np.array([1.0, 3.0, 0.0])
A, B = R.normal(size=(2, 3)), R.normal(size=(2, 3))
P, Q = np.array([True, True, False, False]), np.array([True, False, True, False])
MASK = np.array([[True, False, True], [False, False, True]])
BITS = np.array([0, 1, 5, 127], np.uint8)

ROWS = {
    "less": (tf.less, [X, Y], np.less),
    "less_equal": (tf.less_equal, [X, Y], np.less_equal),
    "greater": (tf.greater, [X, Y], np.greater),
    "greater_equal": (tf.greater_equal, [X, Y], np.greater_equal),
    "equal": (tf.equal, [X, Y], np.equal),
    "equal bool": (tf.equal, [P, Q], np.equal),
    "equal complex": (tf.equal, [Y * 1j, Y[::-1] * 1j], np.equal),
    "not_equal": (tf.not_equal, [X, Y], np.not_equal),
    "approximate_equal": (
        lambda x, y: ApproximateEqual(tolerance=0.5)(x, y),
        [A, B],
        lambda x, y: np.abs(x - y) < 0.5,
    ),
    "<": (lambda x, y: x < y, [X, Y], np.less),
    "<=": (lambda x, y: x <= y, [X, Y], np.less_equal),
    ">": (lambda x, y: x > y, [X, Y], np.greater),
    ">=": (lambda x, y: x >= y, [X, Y], np.greater_equal),
    "logical_and": (tf.logical_and, [P, Q], np.logical_and),
    "logical_or": (tf.logical_or, [P, Q], np.logical_or),
    "logical_xor": (tf.logical_xor, [P, Q], np.logical_xor),
    "logical_not": (tf.logical_not, [P], np.logical_not),
    "&": (lambda x, y: x & y, [P, Q], np.logical_and),
    "|": (lambda x, y: x | y, [P, Q], np.logical_or),
    "^": (lambda x, y: x ^ y, [P, Q], np.logical_xor),
    "~": (lambda x: ~x, [P], np.logical_not),
    "is_nan": (tf.is_nan, [X], np.isnan),
    "is_inf": (tf.is_inf, [X], np.isinf),
    "is_finite": (tf.is_finite, [X], np.isfinite),
    "where indices": (tf.where, [MASK], np.argwhere),
    "where indices of numbers": (tf.where, [np.array([0, 3, 0, 1])], np.argwhere),
    "bitwise_and": (tf.bitwise.bitwise_and, [BITS, BITS[::-1]], np.bitwise_and),
    "bitwise_or": (tf.bitwise.bitwise_or, [BITS, BITS[::-1]], np.bitwise_or),
    "bitwise_xor": (tf.bitwise.bitwise_xor, [BITS, BITS[1]], np.bitwise_xor),
    "invert": (tf.bitwise.invert, [BITS], np.invert),
    "left_shift": (tf.bitwise.left_shift, [BITS, BITS[:1]], np.left_shift),
    "right_shift": (tf.bitwise.right_shift, [BITS, BITS[1:2]], np.right_shift),
    "where": (tf.where, [MASK, A, B], np.where),
    "where scalar": (tf.where, [np.array(True), A, B], np.where),
    "where rows": (tf.where, [np.array([True, False]), A, B], [A[0], B[1]]),
    "where_v2": (tf.where_v2, [MASK[0], A, B[:, :1]], np.where),
}


@pytest.mark.parametrize("name", ROWS)
def test_op(name: str) -> None:
    build, inputs, expect = ROWS[name]
    expected = np.array(expect) if isinstance(expect, list) else expect
    check(build, *inputs, expect=expected, gradient=[1, 2] if len(inputs) == 3 else False)


def value(tensor):
    with tf.Session(graph=tensor.graph) as session:
        return session.run(tensor)


def test_strings_compare_whole():
    words = tf.constant([b"a", b"a\0", b"b"])
    assert value(tf.equal(words, [b"a", b"a", b"b"])).tolist() == [True, False, True]
    assert value(tf.not_equal(words, b"a")).tolist() == [False, True, True]


def test_approximate_equal():
    x = np.array([1.0, 1.1, 2.0])
    assert value(tf.approximate_equal(x, [1.0, 1.0, 1.0], 0.2)).tolist() == [True, True, False]


def test_equality_of_tensors_is_identity():
    x = tf.constant(1.0)
    assert x == x and x != tf.constant(1.0)


def test_logic_needs_booleans():
    with pytest.raises(TypeError):
        tf.logical_and(tf.constant(1), tf.constant(2))
    with pytest.raises(TypeError, match="bool"):
        tf.constant(True) & 1


def test_where_needs_both_or_neither():
    with pytest.raises(ValueError, match="both"):
        tf.where(MASK, A)
    with pytest.raises(ValueError, match="both"):
        tf.where_v2(MASK, y=A)


def test_where_checks_shapes_early_and_late():
    with pytest.raises(ValueError):
        tf.where(np.array([True]), A, B)
    with pytest.raises(ValueError):
        tf.where(MASK, A, B[:, :2])
    condition = tf.placeholder(tf.bool)
    chosen = tf.where(condition, A, B)
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match="row"):
        session.run(chosen, {condition: [True, False, True]})


def test_select_is_the_old_where():
    assert_close(value(tf.select(MASK, A, B)), np.where(MASK, A, B))
