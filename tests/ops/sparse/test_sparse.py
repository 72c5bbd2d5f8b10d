"""Rows of the op table: sparse tensors, made, made dense, ordered, reshaped."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check, check_lowerings

PLACES = np.array([[0, 1], [1, 0], [1, 2]])
VALUES = np.array([1.5, -2.0, 3.0])
SHAPE = [2, 3]
DENSE = np.array([[0, 1.5, 0], [-2, 0, 3]])


def sparse(values: Any, places: Any = PLACES, shape: Any = SHAPE) -> tf.SparseTensor:
    return tf.SparseTensor(tf.constant(places, tf.int64), values, tf.constant(shape, tf.int64))


def dense(value: tf.SparseTensor) -> tf.Tensor:
    return tf.sparse_tensor_to_dense(value)


ROWS: dict[str, Any] = {
    "to dense": (lambda v: dense(sparse(v)), [VALUES], DENSE),
    "to dense default": (
        lambda v, d: tf.sparse_tensor_to_dense(sparse(v), d),
        [VALUES, np.array(7.0)],
        np.where(DENSE == 0, 7, DENSE),
    ),
    "to dense vector": (
        lambda v: tf.sparse_to_dense([0, 2], [4], v),
        [VALUES[:2]],
        np.array([1.5, 0, -2, 0]),
    ),
    "to dense scalars": (
        lambda v: tf.sparse_to_dense(1, [3], v, 5.0),
        [np.array(2.0)],
        np.array([5.0, 2, 5]),
    ),
    "to dense empty": (
        lambda v: dense(sparse(v, np.zeros((0, 2)))),
        [np.zeros(0)],
        np.zeros((2, 3)),
    ),
    "to dense rank 0": (
        lambda v: dense(sparse(v, np.zeros((1, 0)), np.zeros(0))),
        [np.array([2.0])],
        np.array(2.0),
    ),
    "from dense": (lambda x: tf.sparse.from_dense(x), [DENSE], [PLACES, VALUES, np.array(SHAPE)]),
    "reorder": (
        lambda v: tf.sparse_reorder(sparse(v, PLACES[[2, 0, 1]])),
        [VALUES[[2, 0, 1]]],
        [PLACES, VALUES, np.array(SHAPE)],
    ),
    "reshape": (
        lambda v: dense(tf.sparse_reshape(sparse(v), [3, -1])),
        [VALUES],
        DENSE.reshape(3, 2),
    ),
    "reshape empty": (
        lambda v: dense(tf.sparse_reshape(sparse(v, np.zeros((0, 2))), [6])),
        [np.zeros(0)],
        np.zeros(6),
    ),
    "expand_dims": (lambda v: dense(tf.sparse.expand_dims(sparse(v), 1)), [VALUES], DENSE[:, None]),
    "expand_dims last": (
        lambda v: dense(tf.sparse.expand_dims(sparse(v))),
        [VALUES],
        DENSE[..., None],
    ),
    "transpose": (lambda v: dense(tf.sparse_transpose(sparse(v))), [VALUES], DENSE.T),
    "transpose same": (
        lambda v: dense(tf.sparse_transpose(sparse(v), [0, 1])),
        [VALUES],
        DENSE,
    ),
    "reset_shape": (
        lambda v: dense(tf.sparse_reset_shape(sparse(v), [3, 3])),
        [VALUES],
        np.pad(DENSE, [(0, 1), (0, 0)]),
    ),
    "reset_shape tight": (
        lambda v: tf.sparse_reset_shape(sparse(v, PLACES, [9, 9])).dense_shape,
        [VALUES],
        np.array(SHAPE),
    ),
    "eye": (lambda n: dense(tf.sparse.eye(n, 3)), [np.array(2)], np.eye(2, 3, dtype=np.float32)),
}
WITHOUT_GRADIENT = {"from dense", "reorder", "reset_shape tight", "eye"}


@pytest.mark.parametrize("name", ROWS)
def test_op(name: str) -> None:
    build, inputs, expect = ROWS[name]
    check(build, *inputs, expect=expect, gradient=False)
    if name not in WITHOUT_GRADIENT:
        check(lambda *x: _with_shape(build(*x), expect), *inputs)


def _with_shape(tensor: Any, wanted: Any) -> Any:
    tensor.set_shape(np.shape(wanted))
    return tensor


def test_reorder_gradient() -> None:
    check(lambda v: tf.sparse_reorder(sparse(v, PLACES[[2, 0, 1]])).values, VALUES)


def test_strings_and_bools_become_dense() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        words = tf.SparseTensor([[1]], ["a"], [2])
        assert session.run(dense(words)).tolist() == [b"", b"a"]
        truths = tf.SparseTensor([[1]], [True], [2])
        assert session.run(dense(truths)).tolist() == [False, True]


@pytest.mark.parametrize("shape", [None, [2, 3], [2, None]])
def test_placeholder(shape: Any) -> None:
    value = tf.SparseTensorValue(PLACES, VALUES, np.array(SHAPE))
    with tf.Graph().as_default(), tf.Session() as session:
        given = tf.sparse_placeholder(tf.float64, shape, name="given")
        assert given.values.op.name == "given/values"
        assert given.shape.as_list() == shape if shape else given.shape.rank is None
        np.testing.assert_array_equal(session.run(dense(given), {given: value}), DENSE)


BAD: dict[str, Any] = {
    "outside": (
        lambda: tf.sparse_to_dense([[5]], [5], [1.0]),
        r"indices\[0\] = \[5\] is out of bounds: need 0 <= index < \[5\]",
    ),
    "order": (
        lambda: tf.sparse_to_dense([2, 1], [5], 1.0),
        r"indices\[1\] = \[1\] is out of order",
    ),
    "repeat": (lambda: tf.sparse_to_dense([1, 1], [5], 1.0), r"indices\[1\] = \[1\] is repeated"),
    "values": (lambda: tf.sparse_to_dense([1], [5], [1.0, 2.0]), r"incorrect shape \[2\]"),
    "default": (
        lambda: tf.sparse_to_dense([1], [5], 1.0, [0.0]),
        "default_value should be a scalar",
    ),
    "columns": (lambda: tf.sparse_to_dense([[1, 1]], [5], 1.0), "indices have 2 columns"),
    "reshape": (
        lambda: tf.sparse_reshape(tf.SparseTensor([[0]], [1], [5]), [2, 2]).indices,
        "tensor with 5 dense values",
    ),
    "reshape rest": (
        lambda: tf.sparse_reshape(tf.SparseTensor([[0]], [1], [5]), [2, -1]).indices,
        "multiple of 2",
    ),
    "reset": (
        lambda: tf.sparse_reset_shape(tf.SparseTensor([[0]], [1], [5]), [4]).dense_shape,
        "x <= y did not hold",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_values_fail_the_step(name: str) -> None:
    build, message = BAD[name]
    with tf.Graph().as_default(), tf.Session() as session:
        node = build()
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            session.run(node)


def test_only_sparse_tensors_are_sparse() -> None:
    with tf.Graph().as_default(), pytest.raises(TypeError, match="must be a SparseTensor"):
        tf.sparse_reorder([1])


@pytest.mark.parametrize("places", [PLACES, np.array([2, 0, 4]), np.array(3)])
def test_loops_of_gradients(places: Any) -> None:
    sizes = SHAPE if places.ndim == 2 else [5]

    def build(values: tf.Tensor, default: tf.Tensor) -> None:
        ours = tf.sparse_to_dense(places, sizes, values, default, validate_indices=False)
        tf.gradients(ours * ours, [values, default])

    check_lowerings(build, [VALUES[0] if places.ndim == 0 else VALUES, np.array(0.5)])


@pytest.mark.parametrize("shape", [[3, -1], [-1], [1, 6, -1], [2, 3, 1]])
def test_loop_of_reshape(shape: list[int]) -> None:
    check_lowerings(lambda v: tf.sparse_reshape(sparse(v), shape), [VALUES])


def test_loops_of_nothing() -> None:
    def build() -> None:
        empty = tf.SparseTensor(np.zeros((0, 2), np.int64), np.zeros(0), np.array([2, 0]))
        dense(empty)
        tf.sparse_reshape(empty, [0, 4])
        tf.sparse_reset_shape(empty)

    check_lowerings(build, [])


@pytest.mark.parametrize("values", [np.array([1.0, 2.0]), np.array(3.0)])
def test_the_gradient_of_values_of_unknown_rank_has_their_shape(values: Any) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float64)
        dense = tf.sparse_to_dense([0, 2], [4], x)
        (actual,) = session.run(tf.gradients(dense * [1.0, 5.0, 2.0, 7.0], [x]), {x: values})
        np.testing.assert_array_equal(actual, [1.0, 2.0] if values.ndim else 3.0)
