"""Rows of the op table: gather, scatter, one-hot, masks."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check, check_lowerings

R = np.random.default_rng(0)
X = R.normal(size=(3, 2, 4))
ROWS_AT = np.array([[2, 0], [1, 1]], np.int32)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("indices", [[1, 0, 1], [[0], [1]], 1, []])
def test_gather(axis: int, indices: Any) -> None:
    where = np.array(indices, np.int64)
    check(
        lambda x, i: tf.gather(x, i, axis=axis),
        *(X, where),
        expect=lambda x, i: np.take(x, i, axis),
        gradient=[0],
    )
    check_lowerings(lambda x, i: _gradient(x, tf.gather(x, i, axis=axis)), [X, where])


def _gradient(x: tf.Tensor, y: tf.Tensor) -> Any:
    """A gradient with something else for each element of y."""
    return tf.gradients(y * y, x)


def test_gather_is_sparse_along_rows() -> None:
    x = tf.constant(X)
    (by_row,) = tf.gradients(tf.gather(x, ROWS_AT), x)
    (by_column,) = tf.gradients(tf.gather(x, [1], axis=1), x)
    assert isinstance(by_row, tf.IndexedSlices)
    assert isinstance(by_column, tf.Tensor)


def test_gather_in_batches() -> None:
    where = np.array([[1, 0, 3], [2, 2, 0]], np.int32)
    batch = X.transpose(1, 2, 0)  # (2, 4, 3)
    expected = np.stack([batch[b][where[b]] for b in range(2)])
    check(lambda x, i: tf.gather(x, i, batch_dims=1), batch, where, expect=expected, gradient=[0])
    check_lowerings(lambda x, i: _gradient(x, tf.gather(x, i, batch_dims=1)), [batch, where])
    last = np.stack([batch[b][:, where[b] % 3] for b in range(2)])
    check(
        lambda x, i: tf.gather(x, i, axis=2, batch_dims=1),
        *(batch, where % 3),
        expect=last,
        gradient=[0],
    )
    with tf.Session() as session:
        np.testing.assert_array_equal(session.run(tf.batch_gather(batch, where)), expected)


def test_gather_strings() -> None:
    with tf.Session() as session:
        assert session.run(tf.gather(["a", "b"], 1)) == b"b"


def test_gather_names_the_index_outside() -> None:
    with tf.Session() as session:
        message = r"indices\[0,1\] = 3 is not in \[0, 3\)"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            session.run(tf.gather(X, [[0, 3]]))


COORDINATES: dict[str, Any] = {
    "elements": [[0, 1, 2], [2, 0, 3]],
    "rows": [[0], [2], [0]],
    "deep": [[[0, 1], [1, 1]], [[2, 0], [0, 0]]],
    "one": [1, 1],
    "everything": np.zeros((2, 0), np.int32),
    "nothing": np.zeros((0, 2), np.int32),
}


@pytest.mark.parametrize("name", COORDINATES)
def test_gather_nd(name: str) -> None:
    where = np.array(COORDINATES[name], np.int32)
    expected = np.zeros(where.shape[:-1] + X.shape[where.shape[-1] :])
    for place in np.ndindex(where.shape[:-1]):
        expected[place] = X[tuple(where[place])]
    check(tf.gather_nd, X, where, expect=expected, gradient=[0])
    check_lowerings(lambda x, i: _gradient(x, tf.gather_nd(x, i)), [X, where])


def test_gather_nd_in_batches() -> None:
    where = np.array([[[1, 0]], [[0, 3]], [[1, 1]]], np.int32)
    expected = np.array([[X[b, i, j] for i, j in where[b]] for b in range(3)])
    with tf.Session() as session:
        result = session.run(tf.gather_nd(X, where, batch_dims=1))
    np.testing.assert_array_equal(result, expected)


def test_gather_nd_outside() -> None:
    message = r"flat indices\[1, :\] = \[7\] does not index into param \(shape: \[3,2,4\]\)"
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match=message):
        session.run(tf.gather_nd(X, [[0], [7]]))
    with pytest.raises(ValueError, match=r"must be <= params\.rank"):
        tf.gather_nd(X, [[0, 0, 0, 0]])


def test_scatter_nd() -> None:
    where = np.array([[1], [3], [1]], np.int32)
    updates = R.normal(size=(3, 2))
    expected = np.zeros((5, 2))
    np.add.at(expected, where[:, 0], updates)
    check(lambda i, u: tf.scatter_nd(i, u, [5, 2]), where, updates, expect=expected, gradient=[1])


def test_scatter_nd_wrong() -> None:
    with pytest.raises(ValueError, match=r"The outer 1 dimensions of indices\.shape="):
        tf.scatter_nd([[0]], np.zeros((2, 2)), [5, 2])
    with pytest.raises(ValueError, match=r"The inner 1 dimensions of output\.shape="):
        tf.scatter_nd([[0]], np.zeros((1, 3)), [5, 2])
    with pytest.raises(ValueError, match="empty output shape"):
        tf.scatter_nd([[0]], np.zeros((1, 2)), [0, 2])
    with (
        tf.Session() as session,
        pytest.raises(tf.errors.InvalidArgumentError, match="Invalid ind"),
    ):
        session.run(tf.scatter_nd([[5]], np.zeros((1, 2)), [5, 2]))


def test_unravel_index() -> None:
    flat = np.array([5, 0, 11], np.int32)
    check(
        lambda i: tf.unravel_index(i, [3, 4]),
        flat,
        expect=np.stack(np.unravel_index(flat, (3, 4))),
        gradient=False,
    )
    check(lambda i: tf.unravel_index(i, [3, 4]), flat[0], expect=np.array([1, 1]), gradient=False)


@pytest.mark.parametrize("axis", [-1, 0, 1, 2])
def test_one_hot(axis: int) -> None:
    where = np.array([[0, 2, -1], [1, 1, 3]], np.int64)
    marks = np.moveaxis(where[..., None] == np.arange(3), -1, axis)
    check(
        lambda i, on, off: tf.one_hot(i, 3, on, off, axis),
        *(where, np.array(2.5), np.array(-1.0)),
        expect=lambda i, on, off: np.where(marks, on, off),
        gradient=[1, 2],
    )


def test_one_hot_dtypes() -> None:
    assert tf.one_hot([0], 2).dtype == tf.float32
    assert tf.one_hot([0], 2, dtype=tf.int64).dtype == tf.int64
    assert tf.one_hot([0], 2, on_value=1, dtype=tf.float64).dtype == tf.float64
    assert tf.one_hot([0], 2, on_value=True, off_value=False).dtype == tf.bool
    assert tf.one_hot([0], 2, on_value="a", off_value="b").dtype == tf.string
    with pytest.raises(TypeError, match="does not match"):
        tf.one_hot([0], 2, on_value=np.float32(1), dtype=tf.int32)
    with pytest.raises(TypeError, match="does not match"):
        tf.one_hot([0], 2, on_value=1, off_value=0.0)
    with pytest.raises(TypeError, match="must both be given"):
        tf.one_hot([0], 2, on_value="a")


MASKS: dict[str, Any] = {
    "rows": ([True, False, True], 0),
    "rows and columns": ([[True, False], [False, False], [True, True]], 0),
    "columns": ([False, True], 1),
    "last": ([True, False, True, True], -1),
    "none": ([False] * 3, 0),
}


@pytest.mark.parametrize("name", MASKS)
def test_boolean_mask(name: str) -> None:
    mask, axis = np.array(MASKS[name][0]), MASKS[name][1]
    index = (*[slice(None)] * (axis % 3), mask)
    with tf.Session() as session:
        for shape in (X.shape, (None, None, None)):
            x = tf.placeholder(tf.float64, shape)
            result = tf.boolean_mask(x, mask, axis=axis)
            value = session.run(result, {x: X})
            np.testing.assert_array_equal(value, X[index])
            assert result.shape.is_compatible_with(value.shape)


def test_a_mask_of_numbers() -> None:
    with tf.Session() as session:
        masked = tf.boolean_mask([1, 2, 3], tf.constant([0.0, -1.0, 2.0]))
        assert session.run(masked).tolist() == [2, 3]
    with pytest.raises(TypeError, match="not strings"):
        tf.boolean_mask([1, 2], ["a", "b"])


def test_boolean_mask_of_the_step() -> None:
    x, mask = tf.placeholder(tf.float64), tf.placeholder(tf.bool, [None])
    with tf.Session() as session:
        result = session.run(tf.boolean_mask(x, mask), {x: X, mask: [False, True, False]})
    np.testing.assert_array_equal(result, X[1:2])


def test_boolean_mask_wrong() -> None:
    with pytest.raises(ValueError, match="mask cannot be scalar"):
        tf.boolean_mask(X, True)
    with pytest.raises(ValueError, match="dimensions must be specified"):
        tf.boolean_mask(X, tf.placeholder(tf.bool))
    with pytest.raises(ValueError, match="incompatible"):
        tf.boolean_mask(X, [True, False])
