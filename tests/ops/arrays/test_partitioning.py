"""Rows of the op table: partitions and stitches."""

from functools import partial
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check
from thalweg.ops.arrays import partitioning

X = np.random.default_rng(0).normal(size=(4, 2))
PARTS = [2, 0, 2, 0]

ROWS: dict[str, Any] = {
    "partition": (
        lambda x: tf.dynamic_partition(x, PARTS, 3),
        [X],
        lambda x: [x[[1, 3]], x[:0], x[[0, 2]]],
    ),
    "partition matrix": (
        lambda x: tf.dynamic_partition(x, [[0, 1], [1, 1], [0, 0], [1, 0]], 2),
        [X],
        lambda x: [x.ravel()[[0, 4, 5, 7]], x.ravel()[[1, 2, 3, 6]]],
    ),
    "partition scalar": (
        lambda x: tf.dynamic_partition(x, 1, 2),
        [np.array([1.0, 2.0])],
        lambda x: [np.zeros((0, 2)), x[None]],
    ),
    "stitch": (
        lambda x, y: tf.dynamic_stitch([[1, 3], [0, 2]], [x, y]),
        [X[:2], X[2:]],
        lambda x, y: np.stack([y[0], x[0], y[1], x[1]]),
    ),
    "stitch shapes": (
        lambda x, y: tf.dynamic_stitch([1, [[0, 2], [3, 4]]], [x, y]),
        [X[0], X.reshape(2, 2, 2)],
        lambda x, y: np.stack([y[0, 0], x, y[0, 1], y[1, 0], y[1, 1]]),
    ),
    "parallel stitch": (
        lambda x: tf.parallel_dynamic_stitch([[1, 0]], [x]),
        [X[:2]],
        lambda x: x[::-1],
    ),
}


def with_shapes(outputs: Any, arrays: Any) -> Any:
    """The outputs, told the shapes that only the step knows: gradients are checked statically."""
    pairs = zip(outputs, arrays, strict=True) if isinstance(outputs, list) else [(outputs, arrays)]
    for tensor, array in pairs:
        tensor.set_shape(np.shape(array))
    return outputs


@pytest.mark.parametrize("name", ROWS)
def test_op(name: str) -> None:
    build, inputs, expect = ROWS[name]
    expected = expect(*inputs)
    check(build, *inputs, expect=expected, gradient=False)
    check(lambda *x: with_shapes(build(*x), expected), *inputs)


def test_stitch_with_gaps_and_equal_indices() -> None:
    check(
        lambda x, y: tf.dynamic_stitch([[0, 0], [], [3, 0]], [x, y[:0], y]),
        *(X[:2], X[2:]),
        expect=lambda x, y: np.stack([y[1], 0 * x[0], 0 * x[0], y[0]]),
        gradient=False,
    )


@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
def test_positions(shape: tuple[int, ...]) -> None:
    expected = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    check(partitioning.Positions(), np.ones(shape), expect=expected, gradient=False)


@pytest.mark.parametrize("count", [0, 1, 5, 40])
def test_places_of_a_partition(count: int) -> None:
    partitions = np.random.default_rng(count).integers(0, 4, count).astype(np.int32)
    order = np.argsort(partitions, kind="stable")
    places = np.argsort(order)
    counts = np.bincount(partitions, minlength=4)
    rows = np.random.default_rng(0).normal(size=(count, 3))
    find = partial(partitioning.PartitionPlaces(num_partitions=4), name="find")
    check(find, partitions, expect=[places, counts], gradient=False)
    put = partial(partitioning.PutRows(), name="put")
    check(put, rows, places.astype(np.int32), expect=rows[order], gradient=False)
    ends = np.cumsum(counts)
    parts = np.split(rows[order], ends[:-1])
    cut = partial(partitioning.Parts(num_partitions=4), name="cut")
    check(cut, rows[order], counts.astype(np.int32), expect=parts, gradient=False)

    def stitch(*given: Any) -> Any:
        return partitioning.StitchParts()(given[0], given[1], list(given[2:]), name="stitch")

    numbers = places.astype(np.int32), counts.astype(np.int32)
    check(stitch, *numbers, *parts, expect=rows, gradient=False)


def test_many_elements_are_counted_on_the_host() -> None:
    partitions = np.random.default_rng(0).integers(0, 16, 70_000).astype(np.int32)
    with tf.Graph().as_default(), tf.Session() as session:
        fed = tf.placeholder(tf.int32, [None])
        parts = session.run(tf.dynamic_partition(tf.range(70_000), fed, 16), {fed: partitions})
    for number, part in enumerate(parts):
        np.testing.assert_array_equal(part, np.flatnonzero(partitions == number))


def test_stitch_undoes_partition_and_the_last_of_equal_indices_wins() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        data = tf.constant(["a", "b", "c", "d"])
        parts = tf.dynamic_partition(data, PARTS, 3)
        places = tf.dynamic_partition(tf.range(4), PARTS, 3)
        assert session.run(tf.dynamic_stitch(places, parts)).tolist() == [b"a", b"b", b"c", b"d"]
        assert session.run(tf.dynamic_stitch([[0, 0], [2]], [[1, 2], [3]])).tolist() == [2, 0, 3]


@pytest.mark.parametrize(
    ("partitions", "message"),
    [([0, 3], r"partitions\[1\] = 3 is not in \[0, 2\)"), ([[0, -1]], r"partitions\[0,1\] = -1")],
)
def test_partitions_out_of_range(partitions: Any, message: str) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        node = tf.dynamic_partition(np.ones(np.shape(partitions)), partitions, 2)
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            session.run(node)


@pytest.mark.parametrize(
    "build",
    [
        lambda: tf.dynamic_partition([1.0, 2.0], [[0]], 1),
        lambda: tf.dynamic_stitch([[0, 1]], [[1.0]]),
        lambda: tf.dynamic_stitch([0, 1], [[1.0], [[1.0]]]),
        lambda: tf.dynamic_stitch([], []),
    ],
)
def test_shapes_that_do_not_fit(build: Any) -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match=r"\w"):
        build()


def test_constant_indices_tell_the_number_of_rows() -> None:
    with tf.Graph().as_default():
        rows = [tf.placeholder(tf.float32, [2, 5]), tf.placeholder(tf.float32, [1, 5])]
        assert tf.dynamic_stitch([[0, 3], [1]], rows).shape.as_list() == [4, 5]
