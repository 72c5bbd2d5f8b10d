"""Rows of the op table: arithmetic with sparse tensors."""

import operator
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check, check_lowerings
from tests.ops.sparse.test_sparse import DENSE, PLACES, VALUES, dense, sparse
from thalweg.ops.sparse.sparse_maths import sparse_dense_cwise_add, sparse_dense_cwise_div

OTHER = np.array([[0, 0], [1, 0]])
R = np.random.default_rng(0)
Y = R.normal(size=(2, 3)) + 3


def values_of(result: tf.SparseTensor, count: int) -> tf.Tensor:
    result.values.set_shape([count])
    return result.values


ROWS: dict[str, Any] = {
    "add": (
        lambda v, w: values_of(tf.sparse_add(sparse(v), sparse(w, OTHER)), 4),
        [VALUES, np.array([1.0, 5.0])],
        np.array([1, 1.5, 3, 3]),
    ),
    "add threshold": (
        lambda v, w: values_of(tf.sparse_add(sparse(v), sparse(w, OTHER), threshold=2.0), 2),
        [VALUES, np.array([1.0, 5.0])],
        np.array([3.0, 3]),
    ),
    "add dense": (lambda v, y: tf.sparse_add(sparse(v), y), [VALUES, Y], DENSE + Y),
    "add dense first": (lambda v, y: tf.sparse_add(y, sparse(v)), [VALUES, Y], DENSE + Y),
    "cwise add": (
        lambda v, y: sparse_dense_cwise_add(sparse(v), y).values,
        [VALUES, Y[:1]],
        VALUES + Y[0, [1, 0, 2]],
    ),
    "cwise mul": (
        lambda v, y: (sparse(v) * y).values,
        [VALUES, Y],
        VALUES * Y[tuple(PLACES.T)],
    ),
    "cwise mul vector": (
        lambda v, y: (sparse(v) * y).values,
        [VALUES, Y[0]],
        VALUES * Y[0, [1, 0, 2]],
    ),
    "cwise mul scalar": (
        lambda v, y: (sparse(v) * y).values,
        [VALUES, np.array(2.5)],
        VALUES * 2.5,
    ),
    "truediv": (
        lambda v, y: (sparse(v) / y).values,
        [VALUES, Y[:, :1]],
        VALUES / Y[[0, 1, 1], 0],
    ),
    "matmul": (
        lambda v, y: tf.sparse_tensor_dense_matmul(sparse(v), y),
        [VALUES, Y.T],
        DENSE @ Y.T,
    ),
    "matmul adjoint a": (
        lambda v, y: tf.sparse_tensor_dense_matmul(sparse(v), y, adjoint_a=True),
        [VALUES, Y],
        DENSE.T @ Y,
    ),
    "matmul adjoint b": (
        lambda v, y: tf.sparse.matmul(sparse(v), y, adjoint_b=True),
        [VALUES, Y],
        DENSE @ Y.T,
    ),
    "matmul both": (
        lambda v, y: tf.sparse_tensor_dense_matmul(sparse(v), y, True, True),
        [VALUES, Y.T],
        DENSE.T @ Y,
    ),
    "matmul empty": (
        lambda v, y: tf.sparse_tensor_dense_matmul(sparse(v, np.zeros((0, 2))), y),
        [np.zeros(0), Y.T],
        np.zeros((2, 2)),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_op(name: str) -> None:
    build, inputs, expect = ROWS[name]
    check(build, *inputs, expect=expect)


def test_complex_product_and_its_gradient() -> None:
    values, right = VALUES + 1j * VALUES[::-1], Y + 1j * Y[::-1]
    left = DENSE.astype(complex)
    left[tuple(PLACES.T)] = values
    check(
        lambda v, y: tf.sparse_tensor_dense_matmul(sparse(v), y, adjoint_a=True),
        values,
        right,
        expect=left.conj().T @ right,
        second=False,
    )


def test_integer_division() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        whole = tf.SparseTensor([[0], [1]], [-7, 7], [2])
        assert session.run(sparse_dense_cwise_div(whole, 2).values).tolist() == [-3, 3]
        assert session.run((whole / tf.constant(2)).values).tolist() == [-3.5, 3.5]
        with pytest.raises(tf.errors.InvalidArgumentError, match="division by zero"):
            session.run(sparse_dense_cwise_div(whole, 0).values)


@pytest.mark.parametrize(("build", "function"), [("maximum", np.maximum), ("minimum", np.minimum)])
def test_extremes(build: str, function: Any) -> None:
    other = np.zeros((2, 3))
    other[tuple(OTHER.T)] = [1.0, 5.0]
    check(
        lambda v, w: dense(getattr(tf, f"sparse_{build}")(sparse(v), sparse(w, OTHER))),
        VALUES,
        np.array([1.0, 5.0]),
        expect=function(DENSE, other),
    )


BAD: dict[str, Any] = {
    "ranks": (
        lambda: tf.sparse_maximum(
            tf.SparseTensor(np.zeros((1, 0)), [1], np.zeros(0)), tf.SparseTensor([[0]], [1], [2])
        ),
        "same ranks",
    ),
    "shapes": (
        lambda: tf.sparse_add(tf.SparseTensor([[0]], [1], [3]), tf.SparseTensor([[0]], [1], [2])),
        "shapes do not match",
    ),
    "broadcast": (lambda: sparse(tf.constant(VALUES)) * np.ones((2, 2)), "dense to sparse only"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_values_fail_the_step(name: str) -> None:
    build, message = BAD[name]
    with tf.Graph().as_default(), tf.Session() as session:
        node = build()
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            session.run(node)


def test_impossible_arguments() -> None:
    with tf.Graph().as_default():
        with pytest.raises(TypeError, match="At least one input should be SparseTensor"):
            tf.sparse_add([1], [2])
        with pytest.raises(ValueError, match="Dimensions must be equal"):
            tf.sparse_tensor_dense_matmul(sparse(tf.constant(VALUES)), np.ones((2, 2)))


@pytest.mark.parametrize("shape", [(2, 3), (1, 3), (3,), (2, 1), ()])
def test_loops_of_gradients(shape: tuple[int, ...]) -> None:
    def build(v: tf.Tensor, y: tf.Tensor) -> None:
        for combine in (sparse_dense_cwise_add, sparse_dense_cwise_div, operator.mul):
            tf.gradients(combine(sparse(v), y).values, [v, y])

    check_lowerings(build, [VALUES, R.normal(size=shape) + 3])


def test_loops_of_integers() -> None:
    def build(v: tf.Tensor, y: tf.Tensor) -> None:
        sparse_dense_cwise_div(sparse(v), y)
        tf.sparse_add(sparse(v), y)

    check_lowerings(build, [np.array([7, -7, 8]), np.array([[2, 2, 1], [2, 1, -3]])])


def test_loop_of_a_sum_with_a_scalar() -> None:
    row = np.zeros((2, 0), np.int64)
    check_lowerings(
        lambda v, y: tf.sparse_add(tf.SparseTensor(row, v, np.zeros(0, np.int64)), y),
        [VALUES[:2], np.array(1.0)],
    )
