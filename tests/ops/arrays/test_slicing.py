"""Rows of the op table: slices of every kind, their gradients, and assignment to them."""

from types import EllipsisType
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check, check_loop
from thalweg.ir.interpret import run_loop
from thalweg.ir.loop import Operand
from thalweg.ops.arrays import slicing, subscripts

R = np.random.default_rng(0)
X = R.normal(size=(3, 2, 4))

KEYS: dict[str, Any] = {
    "element": (1, 0, 2),
    "row": 1,
    "negative": (-1, ..., -2),
    "range": slice(1, 3),
    "past the end": (slice(1, 9), slice(-7, 1)),
    "nothing": slice(2, 1),
    "step": (slice(None), slice(None), slice(None, None, 2)),
    "backwards": (slice(None, None, -1), slice(None), slice(3, 0, -2)),
    "backwards past the end": (..., slice(None, -9, -1)),
    "ellipsis": (..., 1),
    "only ellipsis": ...,
    "new axis": (None, 1, None, ..., None),
    "all at once": (slice(None, 2), None, ..., slice(-3, None, 2)),
}


@pytest.mark.parametrize("name", KEYS)
def test_getitem(name: str) -> None:
    key = KEYS[name]
    check(lambda x: x[key], X, expect=lambda x: x[key])


@pytest.mark.parametrize("name", KEYS)
def test_gradient_of_getitem(name: str) -> None:
    key = KEYS[name]
    expected = np.zeros_like(X)
    expected[key] = 2 * X[key]
    check(lambda x: tf.gradients(x[key] * x[key], x), X, expect=expected, gradient=False)


@pytest.mark.parametrize("start", [1, -2])
def test_loop_of_a_slice_whose_begin_only_the_step_knows(start: int) -> None:
    bounds = [np.array([start, 0]), np.array([start + 1, 2]), np.array([1, 1])]
    begin, end, strides = (Operand(i + 1, b.shape, b.dtype) for i, b in enumerate(bounds))
    strides = Operand(3, strides.shape, strides.dtype, bounds[2])
    op = slicing.StridedSlice(shrink_axis_mask=1)
    operands = [Operand(0, X.shape, X.dtype), begin, end, strides]
    np.testing.assert_array_equal(run_loop(op, operands, [X, *bounds], (2, 4)), X[start])
    moved = [X, np.array([1, 0, 2]), np.array([2, 1, 2])]
    operands = [Operand(i, a.shape, a.dtype) for i, a in enumerate(moved)]
    result = run_loop(slicing.Slice(), operands, moved, (2, 1, 2))
    np.testing.assert_array_equal(result, X[1:3, :1, 2:])


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_tensors_as_bounds(dtype: Any) -> None:
    check(
        lambda x, i, j: x[i, :, i:j],
        *(X, np.array(1, dtype), np.array(3, dtype)),
        expect=lambda x, i, j: x[i, :, i:j],
    )


def test_int64_and_int_bounds_mix() -> None:
    with tf.Session() as session:
        begin = tf.constant(1, tf.int64)
        np.testing.assert_array_equal(session.run(tf.constant(X)[begin, 1:]), X[1, 1:])


def test_strings_stay_strings() -> None:
    with tf.Session() as session:
        words = tf.constant([["a", "b"], ["c", "d"]])
        assert session.run(words[1, 0]) == b"c"
        assert session.run(words[:, ::-1]).tolist() == [[b"b", b"a"], [b"d", b"c"]]


STATIC: dict[str, tuple[list[int | None], Any, list[int | None]]] = {
    "whole axis": ([None, 4], slice(None), [None, 4]),
    "unknown axis dropped": ([None, 4], 0, [4]),
    "known axis": ([None, 4], (slice(None), slice(1, 3)), [None, 2]),
    "new axis": ([None, 4], (..., None), [None, 4, 1]),
}


@pytest.mark.parametrize("name", STATIC)
def test_static_shape(name: str) -> None:
    shape, key, expected = STATIC[name]
    assert tf.placeholder(tf.float32, shape)[key].shape.as_list() == expected


def test_bounds_known_in_part() -> None:
    x, n = tf.placeholder(tf.float32, [5, 6]), tf.placeholder(tf.int32, [])
    assert x[n:, 1:].shape.as_list() == [None, 5]


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "too many": ((0, 0, 0, 0), ValueError, "out of range"),
    "outside": (3, ValueError, "slice index 3 of dimension 0 out of bounds"),
    "before": (-4, ValueError, "out of bounds"),
    "two ellipses": ((..., 0, ...), ValueError, "Multiple ellipses"),
    "no step": (slice(None, None, 0), ValueError, "must be non-zero"),
    "float": (1.5, TypeError, "not in list of allowed values"),
    "mask": (np.array([True, False, True]), TypeError, "boolean_mask"),
    "list": ([[0, 1]], TypeError, "cannot index a tensor"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_key(name: str) -> None:
    key, error, message = WRONG[name]
    with pytest.raises(error, match=message):
        tf.constant(X)[key]


def test_wrong_key_at_run_time() -> None:
    x = tf.placeholder(tf.float32)
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match="bounds"):
        session.run(x[5], {x: [1.0]})


def test_strided_slice_masks() -> None:
    check(
        lambda x: tf.strided_slice(
            x, [9, 1, 0], [9, 2, -1], [1, 1, 1], begin_mask=1, end_mask=1, shrink_axis_mask=2
        ),
        X,
        expect=X[:, 1, :-1],
    )
    check(lambda x: tf.strided_slice(x, [1], [3]), X, expect=X[1:3])


def test_strided_slice_wants_bounds_of_one_length() -> None:
    with pytest.raises(ValueError, match="not compatible"):
        tf.strided_slice(X, [0], [1, 1], [1])


SLICES: dict[str, tuple[list[int], list[int]]] = {
    "part": ([1, 0, 1], [2, 1, 3]),
    "rest": ([1, 0, 2], [-1, -1, -1]),
    "nothing": ([3, 0, 0], [0, 2, 4]),
}


@pytest.mark.parametrize("name", SLICES)
def test_slice(name: str) -> None:
    begin, size = SLICES[name]
    index = tuple(slice(b, None if s < 0 else b + s) for b, s in zip(begin, size, strict=True))
    check(lambda x: tf.slice(x, begin, size), X, expect=X[index])


def test_slice_with_size_known_in_part() -> None:
    x, n = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.int32, [])
    assert tf.slice(x, [0, 1], [n, -1]).shape.as_list() == [None, 3]
    assert tf.slice(x, [n, n], [2, 3]).shape.as_list() == [2, 3]


@pytest.mark.parametrize(("begin", "size"), [([4, 0, 0], [0, 0, 0]), ([0, 0, 0], [4, 1, 1])])
def test_slice_outside(begin: list[int], size: list[int]) -> None:
    with pytest.raises(ValueError, match="Expected"):
        tf.slice(X, begin, size)


@pytest.mark.parametrize("key", [(slice(1, 3), 0), 2, (..., slice(None, None, -2)), (0, 1, 1)])
def test_assign_to_slice(key: EllipsisType | int | tuple[Any, ...]) -> None:
    expected = X.copy()
    expected[key] = 7
    with tf.Session() as session:
        variable = tf.Variable(X)
        session.run(variable.initializer)
        value = np.full(X[key].shape, 7.0)
        change = subscripts.slice_assign(variable[key], value)
        bounds = session.run(change.op.inputs[1:])
        session.run(change)
        np.testing.assert_array_equal(session.run(variable), expected)
        check_loop(change.op, [X, *bounds], [expected])


def test_assign_to_slice_refuses_other_shapes() -> None:
    with tf.Session() as session:
        variable = tf.Variable(X)
        session.run(variable.initializer)
        value = tf.placeholder(tf.float64)
        change = subscripts.slice_assign(variable[0], value)
        with pytest.raises(tf.errors.InvalidArgumentError, match="shape"):
            session.run(change, {value: np.zeros(3)})
        np.testing.assert_array_equal(session.run(variable), X)


def test_assign_to_slice_of_a_value() -> None:
    named = rf"only supported for variables.*'StridedSliceAssign'.*strided_slice.*{__file__}:\d+"
    with pytest.raises(ValueError, match=named):
        subscripts.slice_assign(tf.constant(X)[0], X[0])


@pytest.mark.parametrize("use_resource", [False, True])
def test_slices_of_variables_are_written_inside_branches_and_loops(use_resource: bool) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.get_variable("v", [6], use_resource=use_resource)
        place = tf.placeholder(tf.int32, [])

        def write() -> tf.Tensor:
            with tf.control_dependencies([tf.assign(variable[place : place + 2], [1.0, 2.0])]):
                return tf.constant(1)

        def body(i: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies([variable[i].assign(tf.cast(i, tf.float32) * 10)]):
                return i + 1

        branch = tf.cond(place > 0, write, lambda: tf.constant(0))
        loop = tf.while_loop(lambda i: i < 6, body, [tf.constant(4)])
        session.run(variable.assign(tf.zeros([6])))
        session.run(branch, {place: 0})
        session.run(branch, {place: 2})
        session.run(loop)
        np.testing.assert_array_equal(session.run(variable), [0, 0, 1, 2, 40, 50])
