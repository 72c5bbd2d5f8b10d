"""Rows of the op table: unique values, differences, counts and histograms."""

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check

X = np.array([4, 1, 4, 2, 1, 4], np.int64)
WORDS = np.array([b"b", b"a", b"b"], object)


def test_unique() -> None:
    index = np.array([0, 1, 0, 2, 1, 0], np.int32)
    check(tf.unique, X, expect=[np.array([4, 1, 2]), index], gradient=False)
    check(tf.unique, X[:0], expect=[X[:0], index[:0]], gradient=False)
    wide = index.astype(np.int64)
    check(lambda x: tf.unique(x, tf.int64), X, expect=[np.array([4, 1, 2]), wide], gradient=False)
    counts = np.array([3, 2, 1], np.int32)
    check(tf.unique_with_counts, X, expect=[np.array([4, 1, 2]), index, counts], gradient=False)


def test_unique_strings() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        y, index, count = session.run(tf.unique_with_counts(tf.constant(WORDS)))
    assert (y.tolist(), index.tolist(), count.tolist()) == ([b"b", b"a"], [0, 1, 0], [2, 1])


def test_unique_of_a_matrix() -> None:
    with pytest.raises(ValueError, match="must have rank 1"):
        tf.unique([[1, 2]])


def test_difference() -> None:
    expected = [np.array([4, 4, 4]), np.array([0, 2, 5], np.int32)]
    check(tf.setdiff1d, X, np.array([2, 1, 7]), expect=expected, gradient=False)
    check(tf.listdiff, X, np.array([2, 1, 7]), expect=expected, gradient=False)
    with tf.Graph().as_default(), tf.Session() as session:
        out, index = session.run(tf.setdiff1d(WORDS, ["a"], tf.int64))
    assert (out.tolist(), index.tolist(), index.dtype) == ([b"b", b"b"], [0, 2], np.int64)


BINS = {
    "plain": ({}, [0, 2, 1, 0, 3]),
    "longer": ({"minlength": 7}, [0, 2, 1, 0, 3, 0, 0]),
    "cut": ({"maxlength": 3}, [0, 2, 1]),
    "typed": ({"dtype": tf.float32}, [0, 2, 1, 0, 3]),
    "weighted": ({"weights": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}, [0, 7, 4, 0, 10]),
}


@pytest.mark.parametrize("name", BINS)
def test_bincount(name: str) -> None:
    options, wanted = BINS[name]
    kind = np.float32 if name in ("typed", "weighted") else np.int32
    check(
        lambda x: tf.bincount(x, **options),
        X.astype(np.int32),
        expect=np.array(wanted, kind),
        gradient=False,
    )


def test_bincount_of_nothing_and_of_negatives() -> None:
    check(tf.bincount, np.zeros(0, np.int32), expect=np.zeros(0, np.int32), gradient=False)
    with (
        tf.Graph().as_default(),
        tf.Session() as session,
        pytest.raises(tf.errors.InvalidArgumentError, match="must be non-negative"),
    ):
        session.run(tf.bincount([1, -1]))


VALUES = np.array([[-1.0, 0.0, 1.5], [2.0, 5.0, 15.0]])


def test_histogram() -> None:
    check(
        lambda v: tf.histogram_fixed_width(v, [0.0, 5.0], nbins=5),
        VALUES,
        expect=np.array([2, 1, 1, 0, 2], np.int32),
        gradient=False,
    )
    check(
        lambda v: tf.histogram_fixed_width_bins(v, [0.0, 5.0], nbins=5),
        VALUES,
        expect=np.array([[0, 0, 1], [2, 4, 4]], np.int32),
        gradient=False,
    )


def test_wrong_range() -> None:
    with (
        tf.Graph().as_default(),
        tf.Session() as session,
        pytest.raises(tf.errors.InvalidArgumentError, match="value_range should satisfy"),
    ):
        session.run(tf.histogram_fixed_width(VALUES, [5.0, 5.0]))


def test_bincount_of_a_matrix() -> None:
    x, weights = X.astype(np.int32).reshape(2, 3), np.arange(6.0).reshape(2, 3)
    expected = np.array([0, 5, 3, 0, 7])
    check(tf.bincount, x, weights, expect=expected.astype(float), gradient=False)
