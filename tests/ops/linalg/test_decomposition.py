"""Rows of the op table: orthogonal decompositions."""

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check

R = np.random.default_rng(8)
A = R.normal(size=(3, 3)) + 2 * np.eye(3)
BATCH = R.normal(size=(2, 2, 2)) + 2 * np.eye(2)
B = R.normal(size=(3, 2))
COMPLEX = R.normal(size=(2, 2)) + 1j * R.normal(size=(2, 2)) + 2 * np.eye(2)


def definite(x: tf.Tensor) -> tf.Tensor:
    """A Hermitian positive definite matrix that depends smoothly on any x."""
    return tf.matmul(x, x, adjoint_b=True) + tf.eye(tf.shape(x)[-1], dtype=x.dtype)


def np_definite(x: np.ndarray) -> np.ndarray:
    return x @ np.swapaxes(x, -1, -2).conj() + np.eye(x.shape[-1])


ROWS = {
    "qr": (tf.qr, A, lambda x: list(np.linalg.qr(x))),
    "qr, tall": (tf.qr, A[:, :2], lambda x: list(np.linalg.qr(x))),
    "qr, wide": (tf.qr, A[:2], lambda x: list(np.linalg.qr(x))),
    "qr, full": (
        lambda x: tf.qr(x, full_matrices=True),
        A[:2],
        lambda x: list(np.linalg.qr(x, "complete")),
    ),
    "qr, complex": (tf.qr, COMPLEX, lambda x: list(np.linalg.qr(x))),
    "eigenvalues": (
        lambda x: tf.self_adjoint_eigvals(definite(x)),
        A,
        lambda x: np.linalg.eigvalsh(np_definite(x)),
    ),
    "lower half alone": (tf.self_adjoint_eig, A, lambda x: list(np.linalg.eigh(x))),
    "eigenvectors, complex": (
        lambda x: tf.abs(tf.self_adjoint_eig(definite(x))[1]),
        COMPLEX,
        lambda x: abs(np.linalg.eigh(np_definite(x))[1]),
    ),
    "singular values": (
        lambda x: tf.svd(x, compute_uv=False),
        A[:, :2],
        lambda x: np.linalg.svd(x, compute_uv=False),
    ),
    "svd": (tf.svd, A, None),
    "svd, tall": (tf.svd, A[:, :2], None),
    "svd, wide": (tf.svd, A[:2], None),
    "svd, complex values": (
        lambda x: tf.svd(x)[0],
        COMPLEX,
        lambda x: np.linalg.svd(x, compute_uv=False),
    ),
    "svd, complex": (lambda x: _turned_back(*tf.svd(x)), COMPLEX, None),
    "pinv": (tf.linalg.pinv, A[:, :2], np.linalg.pinv),
}


def _turned_back(s: object, u: object, v: object) -> list:
    """What does not depend on the phases of complex singular vectors."""
    return [s, tf.matmul(u * [[1.0, 2.0]], v, adjoint_b=True)]


@pytest.mark.parametrize("name", ROWS)
def test_op(name: str) -> None:
    build, x, expect = ROWS[name]
    check(build, x, expect=expect, rtol=1e-4, atol=1e-5)


def test_full_singular_vectors() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        s, u, v = session.run(tf.svd(B, full_matrices=True))
    middle = np.zeros((3, 2))
    middle[:2] = np.diag(s)
    np.testing.assert_allclose(u @ middle @ v.T, B, atol=1e-12)


def test_rank() -> None:
    x = np.array([np.diag([1.0, 1e-20, 2.0]), np.eye(3), np.zeros((3, 3))])
    check(tf.linalg.matrix_rank, x, expect=np.array([2, 3, 0], np.int32), gradient=False)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_dtypes(dtype: type) -> None:
    x = BATCH.astype(dtype)
    for build in (tf.svd, tf.qr, tf.self_adjoint_eig):
        check(build, x, gradient=False)


def test_wrong_shapes() -> None:
    with pytest.raises(ValueError, match="at least rank 2 but is rank 1"):
        tf.svd([1.0])
    with pytest.raises(ValueError, match="Dimensions must be equal"):
        tf.self_adjoint_eig(B)


def test_arbitrary_vectors_have_no_gradient() -> None:
    with tf.Graph().as_default():
        x = tf.constant(B)
        with pytest.raises(NotImplementedError, match="not defined"):
            tf.gradients(tf.qr(x, full_matrices=True), x)
        with pytest.raises(NotImplementedError, match="square matrices alone"):
            tf.gradients(tf.svd(x, full_matrices=True), x)
