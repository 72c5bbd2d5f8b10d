"""Rows of the op table: reductions by segment."""

from collections.abc import Callable

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import NARROW_FLOATS, check

R = np.random.default_rng(3)
X = R.normal(size=(5, 2))
IDS = np.array([0, 0, 1, 1, 3], np.int32)
MIXED = np.array([2, 0, -1, 2, 0], np.int64)
GRID = R.normal(size=(2, 2, 3))
GRID_IDS = np.array([[1, 0], [1, 1]], np.int32)


def by_segment(function: Callable, empty: float, count: int = 4) -> Callable:
    def expected(x: np.ndarray, ids: np.ndarray) -> np.ndarray:
        rest = x.shape[ids.ndim :]
        rows = [x[ids == i] for i in range(count)]
        filled = [function(r, axis=0) if len(r) else np.full(rest, empty) for r in rows]
        return np.array(filled).reshape(count, *rest)

    return expected


SORTED = {
    "sum": (tf.segment_sum, by_segment(np.sum, 0)),
    "mean": (tf.segment_mean, by_segment(np.mean, 0)),
    "prod": (tf.segment_prod, by_segment(np.prod, 1)),
    "max": (tf.segment_max, by_segment(np.max, 0)),
    "min": (tf.segment_min, by_segment(np.min, 0)),
}


@pytest.mark.parametrize("name", SORTED)
def test_sorted(name: str) -> None:
    build, expect = SORTED[name]
    check(build, X, IDS, expect=expect)


def root(x: np.ndarray, axis: int) -> np.ndarray:
    return np.sum(x, axis) / np.sqrt(len(x))


LARGEST = np.finfo(np.float64).max
UNSORTED = {
    "sum": (tf.unsorted_segment_sum, np.sum, 0),
    "prod": (tf.unsorted_segment_prod, np.prod, 1),
    "max": (tf.unsorted_segment_max, np.max, -LARGEST),
    "min": (tf.unsorted_segment_min, np.min, LARGEST),
    "mean": (tf.unsorted_segment_mean, np.mean, 0),
    "sqrt_n": (tf.unsorted_segment_sqrt_n, root, 0),
}


@pytest.mark.parametrize("name", UNSORTED)
def test_unsorted(name: str) -> None:
    ours, numpys, empty = UNSORTED[name]
    smooth = bool(abs(empty) < 2)  # weights times the largest number overflow
    check(
        lambda x, ids: ours(x, ids, 4),
        X,
        MIXED,
        expect=by_segment(numpys, empty),
        gradient=smooth,
    )
    check(lambda x, ids: ours(x, ids, 2), GRID, GRID_IDS, expect=by_segment(numpys, empty, 2))


def test_scalar_rows() -> None:
    check(
        lambda x, ids, n: tf.unsorted_segment_sum(x, ids, n),
        X[:, 0],
        MIXED,
        np.array(3, np.int32),
        expect=lambda x, ids, n: by_segment(np.sum, 0, 3)(x, ids),
    )


def test_one_id_for_all() -> None:
    check(
        lambda x, one: tf.unsorted_segment_sum(x, one, 2),
        X[0],
        np.array(1, np.int32),
        expect=lambda x, one: np.stack([0 * x, x]),
    )


def test_products_with_zeros() -> None:
    x = np.array([0.0, 2.0, 0.0, 0.0, 3.0])
    check(tf.segment_prod, x, IDS, expect=by_segment(np.prod, 1), second=False)


def test_ties_share_the_gradient() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.constant([2.0, 2.0, 1.0, 3.0])
        maxima = tf.segment_max(x, [0, 0, 0, 1])
        assert session.run(tf.gradients(maxima, x)[0]).tolist() == [0.5, 0.5, 0, 1]


def test_no_rows() -> None:
    check(tf.segment_sum, X[:0], IDS[:0], expect=lambda x, ids: x)
    check(
        lambda x, ids: tf.unsorted_segment_sum(x, ids, 2), X[:0], IDS[:0], expect=np.zeros((2, 2))
    )
    check(
        lambda x, ids: tf.unsorted_segment_mean(x, ids, 2), X[:0], IDS[:0], expect=np.zeros((2, 2))
    )


@pytest.mark.parametrize("dtype", [np.int32, np.float32, np.complex64])
def test_dtypes(dtype: type) -> None:
    x = np.arange(10).reshape(5, 2).astype(dtype)
    check(tf.segment_sum, x, IDS, expect=by_segment(np.sum, 0), gradient=False)
    check(tf.segment_mean, x, IDS, gradient=False)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, 1, 0, 1, 1], "segment ids are not increasing"),
        ([0, 1, 2, 2, 0], r"Segment id 1 out of range \[0, 1\)"),
        ([0, 0, 0, 0, -1], "segment ids must be >= 0"),
        ([-1, 0, 0, 0, 0], "segment ids do not start at 0"),
        ([0, 1], "should be the same size"),
    ],
)
def test_wrong_ids(ids: list[int], message: str) -> None:
    with (
        tf.Graph().as_default(),
        tf.Session() as session,
        pytest.raises(tf.errors.InvalidArgumentError, match=message),
    ):
        session.run(tf.segment_sum(X, ids))


def test_wrong_unsorted_ids() -> None:
    with (
        tf.Graph().as_default(),
        tf.Session() as session,
        pytest.raises(tf.errors.InvalidArgumentError, match=r"segment_ids\[1\] = 7 is out of"),
    ):
        session.run(tf.unsorted_segment_sum(X[:2], [0, 7], 2))
    with pytest.raises(ValueError, match="num_segments must be >= 0"):
        tf.unsorted_segment_sum(X[:2], [0, 1], -2)


@pytest.mark.parametrize("name", SORTED)
def test_loops_of_sorted_gradients(name: str) -> None:
    build = SORTED[name][0]
    check(lambda x: tf.gradients(build(x, IDS), x)[0], X, gradient=False)


@pytest.mark.parametrize("name", UNSORTED)
def test_loops_of_unsorted_gradients(name: str) -> None:
    build = UNSORTED[name][0]
    check(lambda x: tf.gradients(build(x, MIXED, 4), x)[0], X, gradient=False)
    check(lambda x: tf.gradients(build(x, GRID_IDS, 2), x)[0], GRID, gradient=False)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, *NARROW_FLOATS])
def test_extremes_of_dtypes(dtype: type) -> None:
    x = np.array([[7, 3], [2, 9], [4, 4], [5, 1], [6, 8]]).astype(dtype)
    for name in ("max", "min"):
        build, expect = SORTED[name]
        check(build, x, IDS, expect=lambda x, ids, f=expect: f(x, ids), gradient=False)
        check(lambda x, ids, f=UNSORTED[name][0]: f(x, ids, 4), x, MIXED, gradient=False)


def test_means_of_whole_numbers_are_truncated() -> None:
    x = np.array([[-7, 3], [2, 9], [4, -4], [5, 1], [6, 8]], np.int32)
    expected = np.array([[-2, 6], [4, -1], [0, 0], [6, 8]], np.int32)
    check(tf.segment_mean, x, IDS, expect=expected, gradient=False)
