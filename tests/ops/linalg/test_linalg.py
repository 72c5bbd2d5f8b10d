"""Rows of the op table: inverses, determinants and linear systems."""

from collections.abc import Callable

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check

R = np.random.default_rng(8)
A = R.normal(size=(3, 3)) + 2 * np.eye(3)
BATCH = R.normal(size=(2, 2, 2)) + 2 * np.eye(2)
B = R.normal(size=(3, 2))
COMPLEX = R.normal(size=(2, 2)) + 1j * R.normal(size=(2, 2)) + 2 * np.eye(2)
COMPLEX_B = R.normal(size=(2, 1)) + 1j * R.normal(size=(2, 1))


def adjoint(x: np.ndarray) -> np.ndarray:
    return np.swapaxes(x, -1, -2).conj()


ROWS = {
    "inverse": (tf.matrix_inverse, [A], np.linalg.inv),
    "inverse, batch": (tf.matrix_inverse, [BATCH], np.linalg.inv),
    "inverse, adjoint": (
        lambda a: tf.matrix_inverse(a, adjoint=True),
        [COMPLEX],
        lambda a: adjoint(np.linalg.inv(a)),
    ),
    "determinant": (tf.matrix_determinant, [BATCH], np.linalg.det),
    "determinant, complex": (tf.matrix_determinant, [COMPLEX], np.linalg.det),
    "slogdet": (tf.linalg.slogdet, [-A], lambda a: list(np.linalg.slogdet(a))),
    "slogdet, complex": (tf.linalg.slogdet, [COMPLEX], lambda a: list(np.linalg.slogdet(a))),
    "solve": (tf.matrix_solve, [A, B], np.linalg.solve),
    "solve, batch": (tf.matrix_solve, [BATCH, BATCH[:, :, :1]], np.linalg.solve),
    "solve, adjoint": (
        lambda a, b: tf.matrix_solve(a, b, adjoint=True),
        [COMPLEX, COMPLEX_B],
        lambda a, b: np.linalg.solve(adjoint(a), b),
    ),
    "lower triangular": (
        tf.matrix_triangular_solve,
        [A, B],
        lambda a, b: np.linalg.solve(np.tril(a), b),
    ),
    "upper triangular, adjoint": (
        lambda a, b: tf.matrix_triangular_solve(a, b, lower=False, adjoint=True),
        [COMPLEX, COMPLEX_B],
        lambda a, b: np.linalg.solve(adjoint(np.triu(a)), b),
    ),
    "adjoint": (tf.linalg.adjoint, [COMPLEX], adjoint),
    "nothing": (tf.matrix_inverse, [A[:0, :0]], np.linalg.inv),
}


@pytest.mark.parametrize("name", ROWS)
def test_op(name: str) -> None:
    build, inputs, expect = ROWS[name]
    check(build, *inputs, expect=expect)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_dtypes(dtype: type) -> None:
    x = BATCH.astype(dtype)
    check(tf.matrix_inverse, x, expect=np.linalg.inv, gradient=False)
    check(tf.matrix_determinant, x, expect=np.linalg.det, gradient=False)


def test_wrong_shapes() -> None:
    with pytest.raises(ValueError, match="Dimensions must be equal"):
        tf.matrix_inverse(B)
    with pytest.raises(ValueError, match="Dimensions must be equal"):
        tf.matrix_solve(A, B[:2])
    with pytest.raises(ValueError, match="at least rank 2 but is rank 1"):
        tf.matrix_determinant([1.0])


SINGULAR = np.array([[1.0, 0.0, -1.0], [-1.0, 0.0, 1.0], [0.0, -1.0, 1.0]])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: tf.matrix_inverse(SINGULAR), "not invertible"),
        (lambda: tf.matrix_solve(SINGULAR, B), "not invertible"),
        (lambda: tf.matrix_triangular_solve(SINGULAR, B), "not invertible"),
        (lambda: tf.matrix_determinant(1e200 * A), "not finite"),
    ],
)
def test_run_time_errors(build: Callable[[], tf.Tensor], message: str) -> None:
    with (
        tf.Graph().as_default(),
        tf.Session() as session,
        pytest.raises(tf.errors.InvalidArgumentError, match=message),
    ):
        session.run(build())
