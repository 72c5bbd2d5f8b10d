"""Rows of the op table: reductions and softmax of sparse tensors."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check, check_lowerings
from tests.ops.sparse.test_sparse import DENSE, PLACES, VALUES, dense, sparse

AXES: list[Any] = [None, 0, 1, -1, [0, 1], [1], []]


def _axes(axis: Any) -> Any:
    return tuple(axis) if isinstance(axis, list) else axis


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("keep", [False, True])
def test_sum(axis: Any, keep: bool) -> None:
    expected = DENSE.sum(_axes(axis), keepdims=keep)
    given = np.zeros(0, np.int32) if axis == [] else axis
    check(
        lambda v: _with_shape(tf.sparse_reduce_sum(sparse(v), given, keep), expected),
        VALUES,
        expect=expected,
    )
    check(
        lambda v: _with_shape(dense(tf.sparse_reduce_sum_sparse(sparse(v), given, keep)), expected),
        VALUES,
        expect=expected,
    )


def _with_shape(tensor: Any, wanted: Any) -> Any:
    tensor.set_shape(np.shape(wanted))
    return tensor


@pytest.mark.parametrize(("axis", "wanted"), [(0, [-2, 1.5, 3]), (1, [1.5, 3]), (None, 3.0)])
def test_max_is_that_of_the_values_held(axis: Any, wanted: Any) -> None:
    values = np.array(wanted, float)
    check(
        lambda v: _with_shape(tf.sparse_reduce_max(sparse(v), axis), values), VALUES, expect=values
    )
    check(
        lambda v: _with_shape(dense(tf.sparse_reduce_max_sparse(sparse(v), axis)), values),
        VALUES,
        expect=values,
    )


def test_equal_largest_values_share_the_gradient() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        values = tf.constant([2.0, 2.0, 1.0])
        for reduction in (tf.sparse_reduce_max, tf.sparse_reduce_max_sparse):
            largest = reduction(tf.SparseTensor([[0], [1], [2]], values, [4]), 0)
            total = getattr(largest, "values", None)
            slope = tf.gradients(largest if isinstance(largest, tf.Tensor) else total, values)
            assert session.run(slope)[0].tolist() == [0.5, 0.5, 0]


def test_bad_axis_fails_the_step() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        node = tf.sparse_reduce_sum(sparse(tf.constant(VALUES)), 2)
        with pytest.raises(tf.errors.InvalidArgumentError, match="Invalid reduction dimension 2"):
            session.run(node)


def test_softmax() -> None:
    raised = np.exp(VALUES[1:] - 3)
    expected = np.array([1, *(raised / raised.sum())])
    check(lambda v: tf.sparse_softmax(sparse(v)).values, VALUES, expect=expected)
    check(
        lambda v: tf.sparse_softmax(sparse(v, PLACES[[1, 0, 2]])).values,
        VALUES[[1, 0, 2]],
        expect=expected[[1, 0, 2]],
    )


def test_softmax_of_nothing_and_of_a_vector() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        empty = tf.SparseTensor(np.zeros((0, 2), np.int64), np.zeros(0), [2, 2])
        assert session.run(tf.sparse_softmax(empty).values).shape == (0,)
        with pytest.raises(tf.errors.InvalidArgumentError, match="rank >= 2"):
            session.run(tf.sparse_softmax(tf.SparseTensor([[0]], [1.0], [2])).values)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("keep", [False, True])
def test_loops_of_gradients(axis: Any, keep: bool) -> None:
    given = np.zeros(0, np.int32) if axis == [] else axis

    def build(v: tf.Tensor) -> None:
        for reduce in (tf.sparse_reduce_sum, tf.sparse_reduce_max):
            tf.gradients(reduce(sparse(v), given, keep), v)
        for reduce in (tf.sparse_reduce_sum_sparse, tf.sparse_reduce_max_sparse):
            tf.gradients(reduce(sparse(v), given, keep).values, v)

    check_lowerings(build, [VALUES])
