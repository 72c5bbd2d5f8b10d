"""Rows of the op table: inverses, determinants, linear systems, factorisations and norms."""

import numpy as np
import pytest
import scipy.linalg

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


def definite(x: object) -> object:
    """A Hermitian positive definite matrix that depends smoothly on any x."""
    return tf.matmul(x, x, adjoint_b=True) + tf.eye(x.shape.as_list()[-1], dtype=x.dtype)


def np_definite(x: np.ndarray) -> np.ndarray:
    return x @ adjoint(x) + np.eye(x.shape[-1])


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
    "exponential": (tf.linalg.expm, [np.array([[0.0, 3.0], [-3.0, 0.0]])], scipy.linalg.expm),
    "exponential, complex": (tf.linalg.expm, [COMPLEX], scipy.linalg.expm),
    "square root": (tf.linalg.sqrtm, [np_definite(BATCH[0])], scipy.linalg.sqrtm),
    "square root, complex": (tf.matrix_square_root, [COMPLEX], scipy.linalg.sqrtm),
    "logarithm": (tf.linalg.logm, [COMPLEX], scipy.linalg.logm),
    "adjoint": (tf.linalg.adjoint, [COMPLEX], adjoint),
    "nothing": (tf.matrix_inverse, [A[:0, :0]], np.linalg.inv),
}


@pytest.mark.parametrize("name", ROWS)
def test_op(name: str) -> None:
    build, inputs, expect = ROWS[name]
    known = name.startswith(("least", "ridge"))
    if known:
        static(build, inputs, expect)
    else:
        check(build, *inputs, expect=expect)


def static(build: object, inputs: list, expect: object, **options: object) -> None:
    """`check` for what needs static sizes: unknown ones are told."""
    shapes = [np.shape(i) for i in inputs]

    def told(*tensors: object) -> object:
        return build(*[_told(t, s) for t, s in zip(tensors, shapes, strict=True)])

    check(told, *inputs, expect=expect, **options)


def _told(tensor: object, shape: tuple[int, ...]) -> object:
    tensor.set_shape(shape)
    return tensor


def test_exponential_value() -> None:
    x = np.array([[[0.0, 3.0], [-3.0, 0.0]], [[40.0, 0.0], [0.0, -2.0]]])
    turn = [[np.cos(3), np.sin(3)], [-np.sin(3), np.cos(3)]]
    wanted = np.array([turn, np.diag(np.exp([40.0, -2.0]))])
    check(tf.linalg.expm, x, expect=wanted, gradient=False)


FACTORS = {
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
    "norm": (lambda x: tf.norm(x, 2, axis=(0, 1)), A, lambda x: np.linalg.norm(x, 2)),
}


def _turned_back(s: object, u: object, v: object) -> list:
    """What does not depend on the phases of complex singular vectors."""
    return [s, tf.matmul(u * [[1.0, 2.0]], v, adjoint_b=True)]


@pytest.mark.parametrize("name", FACTORS)
def test_factors(name: str) -> None:
    build, x, expect = FACTORS[name]
    static(build, [x], expect, rtol=1e-4, atol=1e-5)


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
    check(tf.matrix_inverse, x, expect=np.linalg.inv, gradient=False)
    check(tf.matrix_determinant, x, expect=np.linalg.det, gradient=False)
    check(tf.svd, x, gradient=False)
    check(tf.qr, x, gradient=False)
    check(tf.linalg.expm, x, gradient=False)


ERRORS = {
    "not square": (lambda: tf.matrix_inverse(B), ValueError, "Dimensions must be equal"),
    "a vector": (lambda: tf.svd([1.0]), ValueError, "at least rank 2 but is rank 1"),
    "no fit": (lambda: tf.matrix_solve(A, B[:2]), ValueError, "Dimensions must be equal"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_static_errors(name: str) -> None:
    build, kind, message = ERRORS[name]
    with pytest.raises(kind, match=message):
        build()


SINGULAR = np.array([[1.0, 0.0, -1.0], [-1.0, 0.0, 1.0], [0.0, -1.0, 1.0]])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: tf.matrix_inverse(SINGULAR), "not invertible"),
        (lambda: tf.matrix_solve(SINGULAR, B), "not invertible"),
        (lambda: tf.matrix_triangular_solve(SINGULAR, B), "not invertible"),
        (lambda: tf.cholesky(-A), "not successful"),
        (lambda: tf.matrix_solve_ls(0 * A, B), "rank deficient"),
        (lambda: tf.matrix_determinant(1e200 * A), "not finite"),
        (lambda: tf.linalg.sqrtm(np.diag([1.0, -1.0])), "no real square root"),
    ],
)
def test_run_time_errors(build: object, message: str) -> None:
    with (
        tf.Graph().as_default(),
        tf.Session() as session,
        pytest.raises(tf.errors.InvalidArgumentError, match=message),
    ):
        session.run(build())


# Norms

X = R.normal(size=(2, 3, 2))

NORMS = {
    "all": ({}, lambda x: np.linalg.norm(x.ravel())),
    "vectors": ({"axis": 1}, lambda x: np.linalg.norm(x, axis=1)),
    "kept": ({"axis": -1, "keepdims": True}, lambda x: np.linalg.norm(x, axis=-1, keepdims=True)),
    "one": ({"ord": 1, "axis": 1}, lambda x: np.linalg.norm(x, 1, axis=1)),
    "three": ({"ord": 3, "axis": 1}, lambda x: np.linalg.norm(x, 3, axis=1)),
    "infinity": ({"ord": np.inf}, lambda x: np.max(np.abs(x))),
    "frobenius": ({"ord": "fro", "axis": [0, 1]}, lambda x: np.linalg.norm(x, "fro", (0, 1))),
    "matrix one": ({"ord": 1, "axis": (0, 2)}, lambda x: np.linalg.norm(x, 1, (0, 2))),
    "matrix two": ({"ord": 2, "axis": (1, 2)}, lambda x: np.linalg.norm(x, 2, (1, 2))),
    "matrix infinity": (
        {"ord": np.inf, "axis": (1, -1), "keep_dims": True},
        lambda x: np.linalg.norm(x, np.inf, (1, 2), keepdims=True),
    ),
}


@pytest.mark.parametrize("name", NORMS)
def test_norm(name: str) -> None:
    options, expect = NORMS[name]
    static(lambda x: tf.norm(x, **options), [X], expect)


def test_normalize() -> None:
    length = np.linalg.norm(X, axis=1, keepdims=True)
    check(lambda x: tf.linalg.normalize(x, axis=1), X, expect=lambda x: [x / length, length])


@pytest.mark.parametrize(
    "options", [{"ord": "fro"}, {"ord": -1}, {"ord": 3, "axis": (0, 1)}, {"axis": (0, 0)}]
)
def test_wrong_norms(options: dict) -> None:
    with pytest.raises(ValueError, match=r"'ord'|'axis'"):
        tf.norm(X, **options)
