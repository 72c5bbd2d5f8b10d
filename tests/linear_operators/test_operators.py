"""Every operator does what its dense matrix does: products, solutions, determinants, adjoints."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import thalweg as tf

L = tf.linalg
R = np.random.default_rng(6)


def numbers(*shape: int) -> Any:
    return R.normal(size=shape).astype(np.float64)


FULL = numbers(2, 3, 3) + 4 * np.eye(3)
SMALL = numbers(2, 2) + 3 * np.eye(2)
SYMMETRIC = FULL @ FULL.swapaxes(-1, -2)
TRIANGLE = np.tril(FULL)
DIAG = R.uniform(1, 2, size=(2, 3))
COLUMN = np.array([5.0, 1.0, 0.5])
ROW = np.array([5.0, -1.0, 0.25])
LOW = numbers(3, 1)


def full(**hints: Any) -> Any:
    return L.LinearOperatorFullMatrix(FULL, **hints)


def circulant() -> Any:
    spectrum = tf.signal.fft(tf.constant(COLUMN, tf.complex128))
    return L.LinearOperatorCirculant(spectrum, tf.float64)


def block_circulant() -> Any:
    spectrum = tf.signal.fft2d(tf.constant([[9.0, 1.0], [2.0, 0.5]], tf.complex128))
    return L.LinearOperatorCirculant2D(spectrum, tf.float64)


def dense_block_circulant() -> Any:
    entries = np.array([[9.0, 1.0], [2.0, 0.5]])
    result = np.empty((4, 4))
    for row, column in np.ndindex(4, 4):
        (a, b), (c, d) = divmod(row, 2), divmod(column, 2)
        result[row, column] = entries[(a - c) % 2, (b - d) % 2]
    return result


def kronecker(one: Any, other: Any) -> Any:
    return np.stack([np.kron(a, other) for a in one])


def blocks() -> Any:
    array = np.zeros((2, 5, 5))
    array[:, :3, :3], array[:, 3:, 3:] = FULL, SMALL
    return array


CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "full": (full, lambda: FULL),
    "positive definite": (
        lambda: L.LinearOperatorFullMatrix(
            SYMMETRIC, is_self_adjoint=True, is_positive_definite=True
        ),
        lambda: SYMMETRIC,
    ),
    "triangle": (lambda: L.LinearOperatorLowerTriangular(FULL), lambda: TRIANGLE),
    "diagonal": (lambda: L.LinearOperatorDiag(DIAG), lambda: DIAG[..., None] * np.eye(3)),
    "identity": (lambda: L.LinearOperatorIdentity(3, dtype=tf.float64), lambda: np.eye(3)),
    "identities": (
        lambda: L.LinearOperatorIdentity(3, [2], dtype=tf.float64),
        lambda: np.stack([np.eye(3)] * 2),
    ),
    "multiple": (
        lambda: L.LinearOperatorScaledIdentity(3, np.array([2.0, 3.0])),
        lambda: np.array([2.0, 3.0])[:, None, None] * np.eye(3),
    ),
    "composition": (
        lambda: L.LinearOperatorComposition([full(), L.LinearOperatorDiag(DIAG)]),
        lambda: FULL * DIAG[:, None, :],
    ),
    "blocks": (
        lambda: L.LinearOperatorBlockDiag([full(), L.LinearOperatorFullMatrix(SMALL)]),
        blocks,
    ),
    "kronecker": (
        lambda: L.LinearOperatorKronecker([full(), L.LinearOperatorFullMatrix(SMALL)]),
        lambda: kronecker(FULL, SMALL),
    ),
    "adjoint": (lambda: L.LinearOperatorAdjoint(full()), lambda: FULL.swapaxes(-1, -2)),
    "inverse": (lambda: L.LinearOperatorInversion(full()), lambda: np.linalg.inv(FULL)),
    "householder": (
        lambda: L.LinearOperatorHouseholder(COLUMN),
        lambda: np.eye(3) - 2 * np.outer(COLUMN, COLUMN) / (COLUMN @ COLUMN),
    ),
    "update": (
        lambda: L.LinearOperatorLowRankUpdate(L.LinearOperatorDiag(DIAG), LOW, [0.5]),
        lambda: DIAG[..., None] * np.eye(3) + 0.5 * LOW @ LOW.T,
    ),
    "update of two sides": (
        lambda: L.LinearOperatorLowRankUpdate(full(), LOW, v=COLUMN[:, None]),
        lambda: FULL + LOW @ COLUMN[None],
    ),
    "circulant": (
        circulant,
        lambda: np.stack([np.roll(COLUMN, shift) for shift in range(3)], 1),
    ),
    "block circulant": (block_circulant, dense_block_circulant),
    "toeplitz": (
        lambda: L.LinearOperatorToeplitz(COLUMN, ROW),
        lambda: np.array([[5, -1, 0.25], [1, 5, -1], [0.5, 1, 5]]),
    ),
}


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


def close(found: Any, expected: Any) -> None:
    with tf.Session() as session:
        value = session.run(found)
    np.testing.assert_allclose(value, expected, 1e-6, 1e-9)


@pytest.mark.parametrize("name", CASES)
def test_it_does_what_its_matrix_does(name: str) -> None:
    operator, dense = CASES[name][0](), CASES[name][1]()
    size = dense.shape[-1]
    assert operator.shape.as_list() == list(dense.shape)
    assert operator.is_square
    x, v = numbers(2, size, 2), numbers(2, size)
    adjoint_matrix = dense.swapaxes(-1, -2)
    close(operator.shape_tensor(), dense.shape)
    close(operator.to_dense(), dense)
    close(operator.matmul(x), dense @ x)
    close(operator.matmul(x, adjoint=True), adjoint_matrix @ x)
    rows = numbers(2, size)
    close(operator.matmul(rows, adjoint_arg=True), dense @ rows.T)
    close(operator.solve(rows, adjoint_arg=True), np.linalg.solve(dense, rows.T))
    close(operator.matvec(v), (dense @ v[..., None])[..., 0])
    close(operator.solve(x), np.linalg.solve(dense, x))
    close(operator.solve(x, adjoint=True), np.linalg.solve(adjoint_matrix, x))
    close(operator.solvevec(v), np.linalg.solve(dense, v[..., None])[..., 0])
    close(operator.determinant(), np.linalg.det(dense))
    close(operator.log_abs_determinant(), np.linalg.slogdet(dense)[1])
    close(operator.diag_part(), np.diagonal(dense, axis1=-2, axis2=-1))
    close(operator.trace(), np.trace(dense, axis1=-2, axis2=-1))
    close(operator.add_to_tensor(np.ones(dense.shape)), dense + 1)


@pytest.mark.parametrize("name", CASES)
def test_what_is_derived_of_it(name: str) -> None:
    operator, dense = CASES[name][0](), CASES[name][1]()
    close(operator.adjoint().to_dense(), dense.swapaxes(-1, -2))
    close(operator.H.H.to_dense(), dense)
    close(operator.inverse().to_dense(), np.linalg.inv(dense))
    close(operator.matmul(operator).to_dense(), dense @ dense)
    close(
        operator.solve(operator).to_dense(), np.broadcast_to(np.eye(dense.shape[-1]), dense.shape)
    )
    with tf.Session() as session:
        check = operator.assert_non_singular()
        if check is not None:
            session.run(check)


def test_shapes_may_be_known_only_in_the_step() -> None:
    matrix = tf.placeholder(tf.float64)
    operator = L.LinearOperatorFullMatrix(matrix, is_square=True)
    diag = tf.placeholder(tf.float64, [None])
    both = L.LinearOperatorComposition([operator, L.LinearOperatorDiag(diag)])
    with tf.Session() as session:
        actual = session.run(both.to_dense(), {matrix: SMALL, diag: [2, 3]})
    np.testing.assert_allclose(actual, SMALL * [2, 3])


def test_the_cholesky_factor() -> None:
    operator = CASES["positive definite"][0]()
    close(operator.cholesky().to_dense(), np.linalg.cholesky(SYMMETRIC))
    with pytest.raises(ValueError, match="Not a positive definite"):
        full().cholesky()


def test_zeros() -> None:
    operator = L.LinearOperatorZeros(2, 3, batch_shape=[4], dtype=tf.float64)
    close(operator.matmul(numbers(3, 5)), np.zeros((4, 2, 5)))
    assert operator.is_square is False
    with pytest.raises(NotImplementedError, match=r"singular|square"):
        operator.solve(numbers(2, 1))


def test_gradients_flow_to_the_parts() -> None:
    diag = tf.constant(DIAG)
    operator = L.LinearOperatorLowRankUpdate(L.LinearOperatorDiag(diag), LOW)
    (gradient,) = tf.gradients(operator.log_abs_determinant(), diag)
    dense = DIAG[..., None] * np.eye(3) + LOW @ LOW.T
    close(gradient, np.diagonal(np.linalg.inv(dense), axis1=-2, axis2=-1))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: L.LinearOperatorDiag([1.0], is_self_adjoint=False), "always self adjoint"),
        (lambda: full(is_non_singular=False, is_positive_definite=True), "always non-singular"),
        (lambda: full(is_square=False).is_square, "but the operator was square"),
        (lambda: L.LinearOperatorFullMatrix([1.0]), "at least two dimensions"),
        (lambda: L.LinearOperatorComposition([]), "non-empty list"),
        (lambda: full().matmul(np.ones((2, 2))), "not compatible"),
        (lambda: full().matmul(L.LinearOperatorFullMatrix(SMALL)), "incompatible"),
    ],
)
def test_contradictions_are_errors(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


def test_another_dtype_is_an_error() -> None:
    with pytest.raises(TypeError, match="Expected argument to have dtype"):
        full().matvec(np.ones(3, np.float32))


def test_a_singular_operator_is_found() -> None:
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match="Singular"):
        session.run(L.LinearOperatorDiag([1.0, 0.0]).assert_non_singular())


@pytest.mark.parametrize("values", [["a", "b"], [True, False]])
def test_entries_are_numbers(values):
    with tf.Graph().as_default(), pytest.raises(TypeError, match="LinearOperatorDiag must be of"):
        tf.linalg.LinearOperatorDiag(values)
