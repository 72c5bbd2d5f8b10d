"""Rows of the op table: copies with slices replaced or added to."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.arrays.test_indexing import COORDINATES, X
from tests.ops.harness import check

R = np.random.default_rng(1)

OPERATIONS: dict[str, tuple[Any, Any]] = {
    "update": (tf.tensor_scatter_update, lambda old, new: new),
    "add": (tf.tensor_scatter_add, lambda old, new: old + new),
    "sub": (tf.tensor_scatter_sub, lambda old, new: old - new),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", COORDINATES)
def test_slices(name: str, operation: str) -> None:
    function, combine = OPERATIONS[operation]
    where = np.array(COORDINATES[name], np.int32)
    updates = R.normal(size=where.shape[:-1] + X.shape[where.shape[-1] :])
    expected = X.copy()
    for place in np.ndindex(where.shape[:-1]):
        at = tuple(where[place])
        expected[at] = combine(expected[at], updates[place])
    # Which of two updates of one slice stays is not a smooth question.
    smooth = operation != "update" or name in ("elements", "deep", "one", "nothing")
    check(function, X, where, updates, expect=expected, gradient=[0, 2] if smooth else False)


def test_other_dtypes() -> None:
    with tf.Session() as session:
        words = tf.tensor_scatter_update(["a", "b", "c"], [[1]], ["x"])
        truths = tf.tensor_scatter_nd_update([True, True], [[0]], [False])
        result = session.run([words, truths, tf.tensor_scatter_nd_add([1, 2], [[1]], [5])])
    assert result[0].tolist() == [b"a", b"x", b"c"]
    assert result[1].tolist() == [False, True] and result[2].tolist() == [1, 7]


@pytest.mark.parametrize("function", [row[0] for row in OPERATIONS.values()])
def test_invalid_shapes_and_indices(function: Any) -> None:
    with pytest.raises(ValueError, match=r"The outer 1 dimensions of indices\.shape="):
        function(X, [[0]], np.zeros((2, 2, 4)))
    with pytest.raises(ValueError, match=r"The inner 2 dimensions of tensor\.shape="):
        function(X, [[0]], np.zeros((1, 3)))
    where = tf.placeholder(tf.int32, [None, 1])
    outside = function(X, where, np.zeros((1, 2, 4)))
    with (
        tf.Session() as session,
        pytest.raises(tf.errors.InvalidArgumentError, match=r"\[3\] does not index into \[3,2,4\]"),
    ):
        session.run(outside, {where: [[3]]})
