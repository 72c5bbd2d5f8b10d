"""Rows of the op table: sparse tensors joined, cut and chosen from."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check, check_lowerings
from tests.ops.sparse.test_sparse import DENSE, PLACES, SHAPE, VALUES, dense, sparse

ROWS: dict[str, Any] = {
    "concat 0": (
        lambda v: dense(tf.sparse_concat(0, [sparse(v), sparse(v)])),
        [VALUES],
        np.concatenate([DENSE, DENSE]),
    ),
    "concat last": (
        lambda v: dense(tf.sparse_concat(-1, [sparse(v), sparse(v)])),
        [VALUES],
        np.concatenate([DENSE, DENSE], 1),
    ),
    "concat one": (lambda v: dense(tf.sparse_concat(1, [sparse(v)])), [VALUES], DENSE),
    "concat expanded": (
        lambda v: dense(
            tf.sparse_concat(
                1, [sparse(v), sparse(v[:1], [[2, 0]], [3, 1])], expand_nonconcat_dim=True
            )
        ),
        [VALUES],
        np.block([[DENSE, np.zeros((2, 1))], [np.zeros((1, 3)), np.array([[1.5]])]]),
    ),
    "split": (
        lambda v: [dense(s) for s in tf.sparse_split(sp_input=sparse(v), num_split=2, axis=1)],
        [VALUES],
        [DENSE[:, :2], DENSE[:, 2:]],
    ),
    "slice": (
        lambda v: dense(tf.sparse_slice(sparse(v), [0, 1], [2, 9])),
        [VALUES],
        DENSE[:, 1:],
    ),
    "retain": (
        lambda v: dense(tf.sparse_retain(sparse(v), [True, False, True])),
        [VALUES],
        np.where(DENSE == -2, 0, DENSE),
    ),
    "merge": (
        lambda v: dense(tf.sparse_merge(sparse(tf.constant([2, 1, 0])), sparse(v), 4)),
        [VALUES],
        np.array([[0, 0, 1.5, 0], [3, -2, 0, 0]]),
    ),
    "merge two": (
        lambda v: dense(
            tf.sparse_merge(
                [sparse(tf.constant([1, 1, 0])), sparse(tf.constant([0, 1, 0]))], sparse(v), [2, 2]
            )
        ),
        [VALUES],
        np.array([[[0, 0], [1.5, 0]], [[3, 0], [0, -2.0]]]),
    ),
    "indicator": (
        lambda ids: tf.sparse_to_indicator(sparse(ids), 4),
        [np.array([2, 1, 0])],
        np.array([[0, 0, 1, 0], [1, 1, 0, 0]], bool),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_op(name: str) -> None:
    build, inputs, expect = ROWS[name]
    check(build, *inputs, expect=expect, gradient=False)
    if name != "indicator":
        check(lambda *x: _with_shapes(build(*x), expect), *inputs)


def _with_shapes(outputs: Any, wanted: Any) -> Any:
    pairs = zip(outputs, wanted, strict=True) if isinstance(outputs, list) else [(outputs, wanted)]
    for tensor, array in pairs:
        tensor.set_shape(np.shape(array))
    return outputs


def test_slice_gradient() -> None:
    def build(values: Any) -> Any:
        cut = tf.sparse_slice(sparse(values), [1, 0], [1, 3]).values
        cut.set_shape([2])
        return cut * cut

    check(build, VALUES, expect=np.array([4.0, 9.0]))


def test_fill_empty_rows() -> None:
    def build(values: Any, default: Any) -> Any:
        filled, empty = tf.sparse_fill_empty_rows(sparse(values, [[1, 2], [3, 0]], [4, 3]), default)
        filled.values.set_shape([4])
        return filled.indices, filled.values, empty

    check(
        build,
        VALUES[:2],
        np.array(9.0),
        expect=[
            np.array([[0, 0], [1, 2], [2, 0], [3, 0]]),
            np.array([9, 1.5, 9, -2.0]),
            np.array([True, False, True, False]),
        ],
    )


def test_mask_drops_slices() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        rows = tf.IndexedSlices(tf.constant([[1], [2], [3]]), tf.constant([4, 5, 6]))
        values, indices, _ = session.run(tf.sparse_mask(rows, [5, 9]))
    assert (values.tolist(), indices.tolist()) == ([[1], [3]], [4, 6])


def test_errors() -> None:
    one = tf.SparseTensorValue(PLACES, VALUES, np.array(SHAPE))
    other = tf.SparseTensorValue([[0, 0]], [1.0], [3, 3])
    with tf.Graph().as_default(), tf.Session() as session:
        joined = tf.sparse_concat(1, [one, tf.SparseTensorValue([[0, 0]], np.array([1.0]), [3, 3])])
        with pytest.raises(tf.errors.InvalidArgumentError, match="shapes must match"):
            session.run(joined)
        with pytest.raises(ValueError, match=r"\w"):
            tf.sparse_concat(0, [other, tf.SparseTensorValue([[0]], [1.0], [3])])
        with pytest.raises(ValueError, match="Keyword arguments are required"):
            tf.sparse_split(1, one, 2)
        with pytest.raises(ValueError, match="num_split is required"):
            tf.sparse_split(sp_input=one)
        with pytest.raises(ValueError, match="equal lengths"):
            tf.sparse_merge([one, one], one, [4])
        with pytest.raises(ValueError, match=r"\w"):
            tf.sparse_retain(one, [True])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_loops_of_gradients(axis: int) -> None:
    def build(v: tf.Tensor) -> None:
        tf.gradients(tf.sparse_concat(axis, [sparse(v)] * 3).values, v)
        pieces = tf.sparse_split(sp_input=sparse(v), num_split=2, axis=abs(axis))
        tf.gradients([piece.values for piece in pieces], v)

    check_lowerings(build, [VALUES])
