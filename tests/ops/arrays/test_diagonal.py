"""Rows of the op table: diagonals and bands."""

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check

R = np.random.default_rng(7)
X = R.normal(size=(2, 3))
M = R.normal(size=(2, 3, 4))


def matrices(x: np.ndarray) -> np.ndarray:
    return x[..., None] * np.eye(x.shape[-1])


def diagonals(m: np.ndarray, k: int = 0) -> np.ndarray:
    return np.diagonal(m, k, -2, -1)


def replaced(m: np.ndarray, d: np.ndarray) -> np.ndarray:
    result, i = m.copy(), np.arange(d.shape[-1])
    result[..., i, i] = d
    return result


BAND = np.array([[[1, 2, 0], [3, 4, 5]]], float)

ROWS = {
    "diag": (tf.diag, [X[0]], np.diag),
    "diag of a matrix": (tf.diag, [X], lambda x: np.diag(x.ravel()).reshape(2, 3, 2, 3)),
    "diag_part": (tf.diag_part, [M[0, :, :3]], np.diag),
    "diag_part, rank 4": (
        tf.diag_part,
        [R.normal(size=(2, 1, 2, 1))],
        lambda x: np.einsum("abab->ab", x),
    ),
    "matrix_diag": (tf.matrix_diag, [X], matrices),
    "matrix_diag above": (
        lambda x: tf.matrix_diag(x, k=1),
        [X[0]],
        lambda x: np.diag(x, 1),
    ),
    "matrix_diag, band": (
        lambda x: tf.matrix_diag(x, k=(-1, 0), num_rows=3, num_cols=3)[..., :3, :],
        [np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 0.0]])],
        np.array([[1.0, 0, 0], [4, 2, 0], [0, 5, 3]]),
    ),
    "matrix_diag, rectangular": (
        lambda x: tf.matrix_diag(x, num_rows=3, num_cols=5, padding_value=7.0),
        [X[0]],
        lambda x: np.where(np.eye(3, 5) == 1, np.append(x, [0, 0]), 7.0),
    ),
    "matrix_diag_part": (tf.matrix_diag_part, [M], diagonals),
    "matrix_diag_part below": (
        lambda m: tf.matrix_diag_part(m, k=-1),
        [M],
        lambda m: diagonals(m, -1),
    ),
    "matrix_diag_part, band": (
        lambda m: tf.matrix_diag_part(m, k=(-1, 1), padding_value=9.0),
        [np.arange(1.0, 10.0).reshape(3, 3)],
        np.array([[2.0, 6, 9], [1, 5, 9], [4, 8, 9]]),
    ),
    "matrix_set_diag": (tf.matrix_set_diag, [M, X], replaced),
    "matrix_set_diag, band": (
        lambda m, d: tf.matrix_set_diag(m, d, k=(0, 1)),
        [np.zeros((2, 2)), np.array([[5.0, 0], [1, 2]])],
        np.array([[1.0, 5], [0, 2]]),
    ),
    "lower": (lambda m: tf.matrix_band_part(m, -1, 0), [M], np.tril),
    "upper": (lambda m: tf.matrix_band_part(m, 0, -1), [M], np.triu),
    "band": (lambda m: tf.matrix_band_part(m, 1, 1), [M], lambda m: np.tril(np.triu(m, -1), 1)),
    "trace": (tf.trace, [M], lambda m: np.trace(m, axis1=-2, axis2=-1)),
    "no rows": (tf.matrix_diag_part, [M[:, :0]], np.zeros((2, 0))),
    "empty": (tf.matrix_diag, [X[:, :0]], np.zeros((2, 0, 0))),
}


@pytest.mark.parametrize("name", ROWS)
def test_op(name: str) -> None:
    build, inputs, expect = ROWS[name]
    if name.startswith("matrix_diag_part, band"):
        check(build, *inputs, expect=expect, second=False)
        return
    check(build, *inputs, expect=expect)


@pytest.mark.parametrize("dtype", [np.int32, np.bool_, np.complex64])
def test_dtypes(dtype: type) -> None:
    check(tf.diag, (X[0] > 0).astype(dtype), expect=np.diag, gradient=False)
    check(
        lambda m: tf.matrix_band_part(m, 0, 0),
        (M > 0).astype(dtype),
        expect=lambda m: m * np.eye(3, 4).astype(dtype),
        gradient=False,
    )


EYES = {
    "square": ({"num_rows": 3}, np.eye(3)),
    "wide": ({"num_rows": 2, "num_columns": 3}, np.eye(2, 3)),
    "tall": ({"num_rows": 3, "num_columns": 1}, np.eye(3, 1)),
    "batch": ({"num_rows": 2, "batch_shape": [3, 1]}, np.broadcast_to(np.eye(2), (3, 1, 2, 2))),
    "int32": ({"num_rows": 2, "dtype": tf.int32}, np.eye(2, dtype=np.int32)),
}


@pytest.mark.parametrize("name", EYES)
def test_eye(name: str) -> None:
    options, expected = EYES[name]
    with tf.Graph().as_default(), tf.Session() as session:
        known = tf.eye(**options)
        assert known.shape.as_list() == list(expected.shape)
        unknown = {k: v if k == "dtype" else _placeholder(v) for k, v in options.items()}
        for value in session.run([known, tf.eye(**unknown)]):
            np.testing.assert_array_equal(value, expected)


def _placeholder(value: object) -> object:
    array = np.array(value, np.int32)
    return tf.placeholder_with_default(array, [None] * array.ndim)


def test_wrong_shapes() -> None:
    with pytest.raises(ValueError, match="must be at least rank 1"):
        tf.diag(1.0)
    with pytest.raises(ValueError, match="even and non-zero rank"):
        tf.diag_part(tf.zeros([2, 2, 2]))
    with pytest.raises(ValueError, match="must be at least rank 2"):
        tf.matrix_diag_part([1.0])
    with pytest.raises(ValueError, match="not compatible"):
        tf.matrix_set_diag(tf.zeros([3, 3]), [1.0, 2.0])
    with pytest.raises(ValueError, match="has no diagonals"):
        tf.matrix_diag([1.0, 2.0], num_rows=5, num_cols=5)
    with (
        tf.Graph().as_default(),
        tf.Session() as session,
        pytest.raises(tf.errors.InvalidArgumentError, match="num_lower must be negative or"),
    ):
        session.run(tf.matrix_band_part(M, 4, 0))


def test_bools() -> None:
    x = np.array([[True, False, True], [False, True, True]])
    check(tf.matrix_diag_part, x, expect=np.diagonal, gradient=False)
    check(tf.matrix_diag, x[0], expect=np.diag, gradient=False)
    check(lambda x: tf.matrix_set_diag(x, [True, True]), x, gradient=False)
    check(
        lambda x: tf.matrix_band_part(x, 0, 1),
        x,
        expect=np.triu(x) & np.tri(2, 3, 1, bool),
        gradient=False,
    )
