"""Rows of the op table: contraction over axes."""

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check

R = np.random.default_rng(6)
A, B = R.normal(size=(2, 3, 2)), R.normal(size=(2, 3, 2))

AXES = [0, 1, [[1], [1]], [[0, 1], [0, 1]], [[2, 1], [0, 1]], [-1, 0], [[-1, 0], [0, -1]]]


@pytest.mark.parametrize("axes", AXES)
def test_axes(axes: object) -> None:
    a, b = (A, B) if axes != 0 else (A[0], B[0, :1])
    check(lambda a, b: tf.tensordot(a, b, axes), a, b, expect=lambda a, b: np.tensordot(a, b, axes))


def test_axes_as_a_tensor() -> None:
    axes = np.array([[2, 1], [0, 1]], np.int32)
    check(
        tf.tensordot,
        A,
        B,
        axes,
        expect=lambda a, b, axes: np.tensordot(a, b, axes.tolist()),
    )


def test_static_shape() -> None:
    with tf.Graph().as_default():
        a = tf.placeholder(tf.float32, [None, 3, 5])
        b = tf.placeholder(tf.float32, [5, None])
        assert tf.tensordot(a, b, 1).shape.as_list() == [None, 3, None]
        assert tf.tensordot(a, tf.zeros([3, 7]), [[1], [0]]).shape.as_list() == [None, 5, 7]


def test_wrong_axes() -> None:
    a, b = tf.zeros([2, 3]), tf.zeros([3, 2])
    for axes, message in (
        (-1, "must be at least 0"),
        (3, "must not be larger"),
        ([0], "integer or have length 2"),
        ([[0], [0, 1]], "Different number of contraction axes"),
        ([[0], [0]], "Dimensions must be equal, but are 2 and 3"),
        ([[2], [0]], "not in the range"),
    ):
        with pytest.raises(ValueError, match=message):
            tf.tensordot(a, b, axes)
