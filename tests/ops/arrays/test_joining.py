"""Rows of the op table: concat, stack, unstack, split, tile, and lists as tensors."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check
from thalweg.ops.arrays import joining

R = np.random.default_rng(0)
X, Y, Z = R.normal(size=(2, 3)), R.normal(size=(2, 3)), R.normal(size=(2, 1))
EMPTY = np.zeros((2, 0))

ROWS: dict[str, Any] = {
    "concat": (lambda *x: tf.concat(x, 0), [X, Y], lambda *x: np.concatenate(x)),
    "concat last": (lambda *x: tf.concat(x, -1), [X, Z, EMPTY], lambda *x: np.concatenate(x, 1)),
    "concat one": (lambda x: tf.concat([x], 0), [X], lambda x: x),
    "concat old order": (lambda *x: tf.concat(1, list(x)), [X, Z], lambda *x: np.hstack(x)),
    "concat_v2": (lambda *x: tf.concat_v2(x, 1), [X, Z], lambda *x: np.hstack(x)),
    "stack": (lambda *x: tf.stack(x), [X, Y], lambda *x: np.stack(x)),
    "stack 1": (lambda *x: tf.stack(x, 1), [X, Y, X], lambda *x: np.stack(x, 1)),
    "stack last": (lambda *x: tf.stack(x, axis=-1), [X, Y], lambda *x: np.stack(x, -1)),
    "stack nested": (lambda *x: tf.stack([x, x]), [X, Y], lambda *x: np.stack([x, x])),
    "tile": (lambda x: tf.tile(x, [2, 3]), [X], lambda x: np.tile(x, [2, 3])),
    "tile none": (lambda x: tf.tile(x, [1, 0]), [X], lambda x: np.tile(x, [1, 0])),
    "tile scalar": (lambda x: tf.tile(x, []), [np.array(2.0)], lambda x: x),
    "split": (lambda x: tf.split(x, 3, 1), [X], lambda x: np.split(x, 3, 1)),
    "split old order": (lambda x: tf.split(1, 3, x), [X], lambda x: np.split(x, 3, 1)),
    "split sizes": (lambda x: tf.split(x, [1, 2], -1), [X], lambda x: np.split(x, [1], 1)),
    "split rest": (lambda x: tf.split(x, [0, -1, 1], 1), [X], lambda x: np.split(x, [0, 2], 1)),
}


@pytest.mark.parametrize("name", ROWS)
def test_op(name: str) -> None:
    build, inputs, expect = ROWS[name]
    check(build, *inputs, expect=expect)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_unstack(axis: int) -> None:
    size = X.shape[axis]
    check(lambda x: tf.unstack(x, size, axis), X, expect=lambda x: list(np.moveaxis(x, axis, 0)))


@pytest.mark.parametrize(("times", "axis"), [(2, None), ([2, 0], 0), ([1, 3, 0], -1), ([2], 1)])
def test_repeat(times: Any, axis: int | None) -> None:
    check(
        lambda x: tf.repeat(x, times, axis),
        X,
        expect=lambda x: np.repeat(x, times, axis),
        gradient=False,
    )


def test_parallel_stack() -> None:
    with tf.Session() as session:
        result = session.run(tf.parallel_stack([tf.constant(X), tf.constant(Y)]))
    np.testing.assert_array_equal(result, np.stack([X, Y]))


def test_join_with_axis_of_the_step() -> None:
    check(
        lambda x, y, axis: tf.concat([x, y], axis),
        *(X, Y, np.array(-1, np.int64)),
        expect=lambda x, y, axis: np.concatenate([x, y], axis),
        gradient=[0, 1],
    )


def test_gradients_of_sizes_of_the_step() -> None:
    with tf.Session() as session:
        for axis in (-1, tf.placeholder_with_default(-1, []), np.int64(1)):
            x, y = (tf.placeholder(tf.float64, [None, None]) for _ in range(2))
            joined = tf.concat([x, y], axis)
            grads = session.run(tf.gradients(joined * joined, [x, y]), {x: X, y: Z})
            np.testing.assert_allclose(grads[0], 2 * X)
            np.testing.assert_allclose(grads[1], 2 * Z)


def test_tile_with_multiples_of_the_step() -> None:
    check(
        tf.tile,
        *(X, np.array([2, 1], np.int64)),
        expect=np.tile,
        gradient=[0],
    )


def test_join_strings() -> None:
    with tf.Session() as session:
        joined, stacked = session.run([tf.concat([["a"], ["b"]], 0), tf.stack(["a", "b"])])
    assert joined.tolist() == stacked.tolist() == [b"a", b"b"]


def test_constants_are_stacked_at_once() -> None:
    assert tf.stack([[1, 2], [3, 4]]).op.type == "Const"


def test_list_with_tensors_takes_their_dtype() -> None:
    mixed = tf.convert_to_tensor([1, tf.constant(2.0, tf.float64)])
    assert mixed.dtype == tf.float64
    with pytest.raises(TypeError, match="a list containing a tensor of dtype float32 to float64"):
        tf.convert_to_tensor([tf.constant(1.0, tf.float64), tf.constant(2.0)])


def test_static_shapes() -> None:
    x, y = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.float32, [2, None])
    assert tf.concat([x, y], 0).shape.as_list() == [None, 3]
    assert tf.concat([x, y], 1).shape.as_list() == [2, None]
    assert tf.stack([x, y], 1).shape.as_list() == [2, 2, 3]
    multiples = [tf.placeholder(tf.int32, []), 2]
    assert tf.tile(x, multiples).shape.as_list() == [None, 6]
    pieces = tf.split(x, [1, tf.placeholder(tf.int32, [])], 1)
    assert [piece.shape.as_list() for piece in pieces] == [[None, 1], [None, 2]]


WRONG: dict[str, Any] = {
    "concat axis": (lambda: tf.concat([X, Y], 2), "range"),
    "concat sizes": (lambda: tf.concat([X, Z], 0), "not compatible"),
    "concat ranks": (lambda: tf.concat([X, X[0]], tf.placeholder(tf.int32)), "rank 2"),
    "concat scalars": (lambda: tf.concat([1, 2], 0), "tf.stack"),
    "stack shapes": (lambda: tf.stack([tf.constant(X), Z]), "not compatible"),
    "stack axis": (lambda: tf.stack([X, Y], 4), r"axis = 4 not in \[-3, 3\)"),
    "unstack axis": (lambda: tf.unstack(X, axis=2), r"axis = 2 not in \[-2, 2\)"),
    "unstack unknown": (lambda: tf.unstack(tf.placeholder(tf.int32)), "Cannot infer num"),
    "split uneven": (lambda: tf.split(X, 2, 1), "evenly divide"),
    "split scalar": (lambda: tf.split(X, tf.constant(3), 1), "Rank-0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name: str) -> None:
    build, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        build()


def test_wrong_sizes_at_run_time() -> None:
    sizes = tf.placeholder(tf.int32, [2])
    pieces = tf.split(tf.placeholder_with_default(X, [None, None]), sizes, 1)
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match="add up"):
        session.run(pieces, {sizes: [1, 1]})


def test_concat_offset() -> None:
    shapes = [np.array(sizes, np.int32) for sizes in ([2, 3, 5], [2, 7, 5], [2, 20, 5])]
    check(
        lambda *shapes: joining.ConcatOffset()(1, list(shapes)),
        *shapes,
        expect=[np.array(start) for start in ([0, 0, 0], [0, 3, 0], [0, 10, 0])],
        gradient=False,
    )


@pytest.mark.parametrize(
    ("axis", "other", "message"),
    [
        (1, [[2, 3]], "vector"),
        (2, [2, 3], "out of range: 2 vs. 2"),
        (1, [2, 3, 4], "should contain 2 elem"),
        (1, [3, 3], r"Input 1 has shape \[3 3\] and doesn't match input 0 with shape \[2 3\]"),
    ],
)
def test_shapes_that_cannot_be_joined(axis: int, other: list[Any], message: str) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        offsets = joining.ConcatOffset()(axis, [tf.constant([2, 3]), tf.constant(other)])
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            session.run(offsets)


def test_constant_repeats_tell_the_size() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [2, 3])
        assert tf.repeat(x, [2, 0, 3], 1).shape.as_list() == [2, 5]
        assert tf.repeat(x, 2).shape.as_list() == [12]
