"""Rows of the op table: positive definite systems and least squares."""

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


def definite(x: tf.Tensor) -> tf.Tensor:
    """A Hermitian positive definite matrix that depends smoothly on any x."""
    return tf.matmul(x, x, adjoint_b=True) + tf.eye(tf.shape(x)[-1], dtype=x.dtype)


def np_definite(x: np.ndarray) -> np.ndarray:
    return x @ np.swapaxes(x, -1, -2).conj() + np.eye(x.shape[-1])


ROWS = {
    "cholesky": (
        lambda x: tf.cholesky(definite(x)),
        A,
        lambda x: np.linalg.cholesky(np_definite(x)),
    ),
    "cholesky, complex": (
        lambda x: tf.cholesky(definite(x)),
        COMPLEX,
        lambda x: np.linalg.cholesky(np_definite(x)),
    ),
    "cholesky_solve": (
        lambda x: tf.cholesky_solve(tf.cholesky(definite(x)), x),
        BATCH,
        lambda x: np.linalg.solve(np_definite(x), x),
    ),
    "logdet": (
        lambda x: tf.linalg.logdet(definite(x)),
        COMPLEX,
        lambda x: np.linalg.slogdet(np_definite(x))[1],
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_op(name: str) -> None:
    build, x, expect = ROWS[name]
    check(build, x, expect=expect, rtol=1e-4, atol=1e-5)


LEAST_SQUARES = {
    "least squares, tall": (
        tf.matrix_solve_ls,
        [A[:, :2], B],
        lambda a, b: np.linalg.lstsq(a, b)[0],
    ),
    "least squares, wide": (
        tf.matrix_solve_ls,
        [A[:2], B[:2]],
        lambda a, b: np.linalg.lstsq(a, b)[0],
    ),
    "least squares, complex": (
        tf.matrix_solve_ls,
        [COMPLEX[:, :1], COMPLEX_B],
        lambda a, b: np.linalg.lstsq(a, b)[0],
    ),
    "ridge": (
        lambda a, b: tf.matrix_solve_ls(a, b, l2_regularizer=0.5),
        [A[:, :2], B],
        lambda a, b: np.linalg.solve(a.T @ a + 0.5 * np.eye(2), a.T @ b),
    ),
    "least squares, slow": (
        lambda a, b: tf.matrix_solve_ls(a, b, fast=False),
        [A[:2], B[:2]],
        lambda a, b: np.linalg.lstsq(a, b)[0],
    ),
}


@pytest.mark.parametrize("name", LEAST_SQUARES)
def test_least_squares(name: str) -> None:
    build, inputs, expect = LEAST_SQUARES[name]
    check(build, *inputs, expect=expect)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: tf.cholesky(-A), "not successful"),
        (lambda: tf.matrix_solve_ls(0 * A, B), "rank deficient"),
    ],
)
def test_run_time_errors(build: Callable[[], tf.Tensor], message: str) -> None:
    with (
        tf.Graph().as_default(),
        tf.Session() as session,
        pytest.raises(tf.errors.InvalidArgumentError, match=message),
    ):
        session.run(build())


@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("shape", [(4, 2), (2, 4), (3, 3)])
def test_gradients_of_least_squares_whose_sizes_and_l2_the_step_knows(shape, l2) -> None:
    """Where shapes and l2 are fed, the gradients are those where they are constants."""
    rng = np.random.default_rng(2)
    matrix, rhs = rng.normal(size=shape), rng.normal(size=(shape[0], 2))
    grads = []
    for fed in (False, True):
        with tf.Graph().as_default(), tf.Session() as session:
            values = matrix, rhs, np.float64(l2)
            inputs = [tf.placeholder(v.dtype) if fed else tf.constant(v) for v in values]
            solution = tf.matrix_solve_ls(*inputs)
            found = tf.gradients(solution**2, inputs[:2])
            grads.append(session.run(found, dict(zip(inputs, values, strict=True)) if fed else {}))
    for one, other in zip(*grads, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8)
