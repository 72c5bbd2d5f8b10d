"""Rows of the op table: broadcasting, as an op and as shapes."""

import itertools
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check
from thalweg.ops.core import broadcast

R = np.random.default_rng(0)
X = R.normal(size=(2, 1, 3))


@pytest.mark.parametrize("shape", [[2, 1, 3], [2, 4, 3], [2, 2, 4, 3], [2, 0, 3]])
def test_broadcast_to(shape: list[int]) -> None:
    check(lambda x: tf.broadcast_to(x, shape), X, expect=lambda x: np.broadcast_to(x, shape))


def test_broadcast_to_a_fed_shape() -> None:
    shape = np.array([2, 4, 3], np.int64)
    check(tf.broadcast_to, X, shape, expect=np.broadcast_to(X, shape), gradient=[0])


PAIRS: list[tuple[Any, Any]] = [([2, 1], [3]), ([], [4, 5]), ([0], [1]), ([2, 3], [2, 3])]


@pytest.mark.parametrize(("one", "two"), PAIRS)
def test_broadcast_shapes(one: list[int], two: list[int]) -> None:
    expected = list(np.broadcast_shapes(tuple(one), tuple(two)))
    static = tf.broadcast_static_shape(tf.TensorShape(one), tf.TensorShape(two))
    assert static.as_list() == expected
    with tf.Session() as session:
        assert session.run(tf.broadcast_dynamic_shape(one, two)).tolist() == expected


def test_partly_known_dynamic_shape() -> None:
    x, y = tf.placeholder(tf.float32, [None, 1]), tf.placeholder(tf.float32, [5])
    full = tf.broadcast_dynamic_shape(tf.shape(x), tf.shape(y))
    assert tf.zeros(full).shape.as_list() == [None, 5]


def test_wrong() -> None:
    with pytest.raises(ValueError, match="Dimensions must be equal"):
        tf.broadcast_to(X, [2, 2, 2])
    with pytest.raises(ValueError, match="Dimensions must be equal"):
        tf.broadcast_static_shape(tf.TensorShape([2]), tf.TensorShape([3]))


SIZES = [(), (1,), (3,), (2, 1), (1, 3), (2, 3), (2, 1, 3), (1, 1, 1)]


@pytest.mark.parametrize("mine", SIZES)
@pytest.mark.parametrize("theirs", SIZES)
def test_known_stretched_axes_match_the_full_shapes(mine, theirs):
    """With any sizes unknown, the axes are those of the full shapes, or None."""
    full = set(broadcast.summed_axes(mine, theirs))
    offset = max(len(theirs) - len(mine), 0)
    ones = {offset + i for i, size in enumerate(mine) if size == 1}
    for hidden in itertools.product([False, True], repeat=len(mine) + len(theirs)):
        sizes = [None if hide else size for hide, size in zip(hidden, mine + theirs, strict=True)]
        axes = broadcast._known_axes(tuple(sizes[: len(mine)]), tuple(sizes[len(mine) :]))
        if axes is not None:
            assert full <= set(axes) <= full | ones


def test_gradients_of_batches_compute_no_shapes_at_run_time():
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [None, 3])
        bias = tf.constant([1.0, 2.0, 3.0])
        tf.gradients((x + bias) * 2.0, [x, bias])
        assert "BroadcastGradientArgs" not in {node.type for node in graph.nodes}
