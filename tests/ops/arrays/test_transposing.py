"""Rows of the op table: transposes, reversals and rolls."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check

R = np.random.default_rng(0)
X = R.normal(size=(2, 3, 4))
C = X + 1j * R.normal(size=X.shape)
LENGTHS = np.array([2, 0, 4], np.int64)


def reversed_rows(x: Any, lengths: Any) -> Any:
    """The first lengths[b] elements along axis 2 reversed, for each b along axis 1."""
    result = x.copy()
    for batch, length in enumerate(lengths):
        result[:, batch, :length] = x[:, batch, :length][:, ::-1]
    return result


ROWS: dict[str, Any] = {
    "transpose": (tf.transpose, [X], np.transpose),
    "transpose perm": (lambda x: tf.transpose(x, [1, 2, 0]), [X], lambda x: x.transpose(1, 2, 0)),
    "transpose scalar": (lambda x: tf.transpose(x, []), [np.array(1.5)], lambda x: x),
    "transpose empty": (tf.transpose, [X[:, :0]], np.transpose),
    "transpose complex": (tf.transpose, [C], np.transpose),
    "conjugate": (lambda x: tf.transpose(x, conjugate=True), [C], lambda x: x.conj().T),
    "matrix": (tf.matrix_transpose, [X], lambda x: np.swapaxes(x, -1, -2)),
    "reverse": (lambda x: tf.reverse(x, [0, -1]), [X], lambda x: np.flip(x, (0, 2))),
    "reverse nothing": (lambda x: tf.reverse(x, []), [X], lambda x: x),
    "reverse old": (
        lambda x: tf.reverse(x, [True, False, True]),
        [X],
        lambda x: np.flip(x, (0, 2)),
    ),
    "roll": (lambda x: tf.roll(x, 2, 1), [X], lambda x: np.roll(x, 2, 1)),
    "roll axes": (
        lambda x: tf.roll(x, [1, -3], [0, 2]),
        [X],
        lambda x: np.roll(x, (1, -3), (0, 2)),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_op(name: str) -> None:
    build, inputs, expect = ROWS[name]
    check(build, *inputs, expect=expect)


def test_transpose_with_perm_of_the_step() -> None:
    order = np.array([2, 0, 1], np.int32)
    check(tf.transpose, X, order, expect=np.transpose, gradient=[0])


def test_reverse_sequence() -> None:
    check(
        lambda x, n: tf.reverse_sequence(x, n, seq_axis=2, batch_axis=1),
        *(X, LENGTHS),
        expect=reversed_rows,
        gradient=[0],
    )
    old = tf.reverse_sequence(X, LENGTHS, seq_dim=2, batch_dim=1)
    with tf.Session() as session:
        np.testing.assert_array_equal(session.run(old), reversed_rows(X, LENGTHS))


def test_invert_permutation() -> None:
    check(
        tf.invert_permutation,
        np.array([2, 0, 3, 1], np.int32),
        expect=np.array([1, 3, 0, 2]),
        gradient=False,
    )


def test_static_shape() -> None:
    x = tf.placeholder(tf.float32, [None, 3, 4])
    assert tf.transpose(x).shape.as_list() == [4, 3, None]
    assert tf.matrix_transpose(x).shape.as_list() == [None, 4, 3]
    assert tf.transpose(x, tf.placeholder(tf.int32)).shape.as_list() == [None] * 3


WRONG: dict[str, Any] = {
    "perm twice": (lambda: tf.transpose(X, [0, 1, 1]), "2 is missing"),
    "perm outside": (lambda: tf.transpose(X, [0, 1, 3]), "out of range"),
    "perm short": (lambda: tf.transpose(X, [0, 1]), "rank 2"),
    "vector": (lambda: tf.matrix_transpose([1, 2]), "should be a "),
    "reverse outside": (lambda: tf.reverse(X, [3]), "out of valid range"),
    "reverse twice": (lambda: tf.reverse(X, [0, -3]), "axis 0 specified more than once"),
    "batch outside": (lambda: tf.reverse_sequence(X, LENGTHS, 0, 3), "batch_dim must be < input"),
    "sequence outside": (lambda: tf.reverse_sequence(X, LENGTHS, 3, 1), "seq_dim must be < input"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name: str) -> None:
    build, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("lengths", [[5, 0, 0], [-1, 0, 0]])
def test_wrong_lengths(lengths: list[int]) -> None:
    result = tf.reverse_sequence(X, lengths, 2, 1)
    with (
        tf.Session() as session,
        pytest.raises(tf.errors.InvalidArgumentError, match="seq_lengths"),
    ):
        session.run(result)


@pytest.mark.parametrize("order", [[0, 2], [1, 1]])
def test_wrong_permutation(order: list[int]) -> None:
    result = tf.invert_permutation(tf.placeholder_with_default(order, [None]))
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError):
        session.run(result)
