"""Rows of the op table: products of matrices."""

import ml_dtypes
import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import NARROW_FLOATS, check

R = np.random.default_rng(1)
A, B = R.normal(size=(2, 3)), R.normal(size=(3, 4))
BATCH_A, BATCH_B = R.normal(size=(2, 2, 3)), R.normal(size=(2, 3, 1))
COMPLEX = R.normal(size=(2, 2)) + 1j * R.normal(size=(2, 2))
BATCH_COMPLEX = COMPLEX * np.array([1, 1j]).reshape(2, 1, 1)

ROWS = {
    "matmul": (tf.matmul, [A, B], np.matmul),
    "operator": (lambda a, b: a @ b, [A, B], np.matmul),
    "value on the left": (lambda b: tf.matmul(A.tolist(), b), [B], lambda b: A @ b),
    "transposed left": (
        lambda a, b: tf.matmul(a, b, transpose_a=True),
        [A.T, B],
        lambda a, b: a.T @ b,
    ),
    "transposed right": (
        lambda a, b: tf.matmul(a, b, transpose_b=True),
        [A, B.T],
        lambda a, b: a @ b.T,
    ),
    "both transposed": (
        lambda a, b: tf.matmul(a, b, transpose_a=True, transpose_b=True),
        [A.T, B.T],
        lambda a, b: a.T @ b.T,
    ),
    "complex adjoint": (
        lambda a, b: tf.matmul(a, b, adjoint_a=True),
        [COMPLEX, COMPLEX.T],
        lambda a, b: a.conj().T @ b,
    ),
    "complex transposed": (
        lambda a, b: tf.matmul(a, b, transpose_b=True),
        [COMPLEX, COMPLEX.T],
        lambda a, b: a @ b.T,
    ),
    "batch": (tf.matmul, [BATCH_A, BATCH_B], np.matmul),
    "batch, old name": (tf.batch_matmul, [BATCH_A, BATCH_B], np.matmul),
    "batch adjoint": (
        lambda a, b: tf.batch_matmul(a, b, adj_x=True, adj_y=True),
        [BATCH_A, np.swapaxes(BATCH_A, 1, 2)],
        lambda a, b: np.swapaxes(a, 1, 2) @ np.swapaxes(b, 1, 2),
    ),
    "batch complex": (
        lambda a, b: tf.matmul(a, b, adjoint_a=True, transpose_b=True),
        [BATCH_COMPLEX, BATCH_COMPLEX],
        lambda a, b: np.swapaxes(a, 1, 2).conj() @ np.swapaxes(b, 1, 2),
    ),
    "broadcast batch": (tf.matmul, [BATCH_A, B[:, :1]], np.matmul),
    "broadcast both": (tf.matmul, [BATCH_A[:, None], BATCH_B[None]], np.matmul),
    "no rows": (tf.matmul, [A[:0], B], np.matmul),
    "nothing inside": (tf.matmul, [A[:, :0], B[:0]], np.matmul),
    "matvec": (tf.linalg.matvec, [A, B[:, 0]], np.matmul),
}


@pytest.mark.parametrize("name", ROWS)
def test_op(name: str) -> None:
    build, inputs, expect = ROWS[name]
    check(build, *inputs, expect=expect)


@pytest.mark.parametrize("dtype", [*NARROW_FLOATS, np.float32, np.int32, np.int64])
def test_dtypes(dtype: type) -> None:
    a, b = np.arange(6).reshape(2, 3).astype(dtype), np.arange(12).reshape(3, 4).astype(dtype)
    expected = (a.astype(float) @ b.astype(float)).astype(dtype)
    check(tf.matmul, a, b, expect=expected, gradient=False)


@pytest.mark.parametrize("kind", [np.float32, ml_dtypes.bfloat16])
def test_sparse_matmul(kind: type) -> None:
    a, b = np.diag([1.0, 2.0, 3.0]).astype(kind), np.arange(12).reshape(4, 3).astype(np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        left, right = tf.constant(a), tf.constant(b)
        product = tf.matmul(left, right, transpose_b=True, a_is_sparse=True)
        da, db = tf.gradients(product, [left, right])
        assert product.op.type == "SparseMatMul"
        value, left_gradient, right_gradient = session.run([product, da, db])
    np.testing.assert_allclose(value, a.astype(float) @ b.T)
    np.testing.assert_allclose(left_gradient.astype(float), np.ones((3, 4)) @ b)
    np.testing.assert_allclose(right_gradient, np.ones((4, 3)) @ a.astype(float))


def test_a_variable_is_not_another_dtype() -> None:
    with tf.Graph().as_default():
        weights = tf.Variable(np.ones((2, 2), np.float32))
        for operand in (weights, weights._ref()):
            assert tf.matmul(tf.ones([1, 2]), operand).op.type == "MatMul"


def test_wrong_shapes() -> None:
    with pytest.raises(ValueError, match="Dimensions must be equal, but are 3 and 4"):
        tf.matmul(tf.zeros([2, 3]), tf.zeros([4, 2]))
    with pytest.raises(ValueError, match="must be rank 2 but is rank 1"):
        tf.matmul(tf.zeros([2, 3]), tf.zeros([3]))
    with pytest.raises(ValueError, match="Only one of transpose_a and adjoint_a"):
        tf.matmul(tf.zeros([2, 2]), tf.zeros([2, 2]), transpose_a=True, adjoint_a=True)
    with tf.Graph().as_default(), tf.Session() as session:
        left, right = tf.placeholder(tf.float32), tf.placeholder(tf.float32)
        with pytest.raises(tf.errors.InvalidArgumentError, match="size-incompatible"):
            session.run(left @ right, {left: np.zeros((2, 3)), right: np.zeros((2, 3))})


@pytest.mark.parametrize("shape", [[], [3]])
def test_products_of_what_is_no_matrix_are_refused(shape: list[int]) -> None:
    with tf.Graph().as_default():
        x, matrix = tf.zeros(shape), tf.zeros([3, 3])
        for factors in ((x, matrix), (matrix, x)):
            for product in (tf.matmul, tf.sparse_matmul):
                with pytest.raises(ValueError, match=f"rank 2 but is rank {len(shape)}"):
                    product(*factors)


def test_names() -> None:
    with tf.Graph().as_default():
        assert tf.matmul(tf.zeros([1, 2]), tf.zeros([2, 1]), name="product").op.name == "product"
        assert (tf.zeros([1, 2]) @ tf.zeros([2, 1])).op.name == "matmul"


def test_products_of_mostly_zeros() -> None:
    a, b = A.astype(np.float32), B.astype(np.float32)
    check(lambda a: tf.sparse_matmul(a, b), a, expect=a @ b, rtol=1e-5, single=True)
    check(
        lambda b: tf.sparse_matmul(a.T, b, transpose_a=True, transpose_b=True, a_is_sparse=True),
        b.T,
        expect=a @ b,
        rtol=1e-5,
        single=True,
    )
