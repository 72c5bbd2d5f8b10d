"""Rows of the op table: extremes, top k, orders and sorted places."""

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import NARROW_FLOATS, check
from thalweg.ops.arrays.searching import TakeAlongLast

R = np.random.default_rng(4)
X = R.permutation(24).reshape(2, 3, 4).astype(float)
TIES = np.array([[3.0, 1.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0]])


def largest(x: np.ndarray, k: int) -> list[np.ndarray]:
    order = np.argsort(-x, axis=-1, kind="stable")[..., :k]
    return [np.take_along_axis(x, order, -1), order.astype(np.int32)]


EXTREMES = {
    "argmax": (tf.argmax, lambda x: x.argmax(0)),
    "argmax along": (lambda x: tf.argmax(x, 1), lambda x: x.argmax(1)),
    "argmin, last": (lambda x: tf.argmin(x, axis=-1), lambda x: x.argmin(-1)),
    "old dimension": (lambda x: tf.argmax(x, dimension=2), lambda x: x.argmax(2)),
    "old name": (lambda x: tf.arg_min(x, 1), lambda x: x.argmin(1)),
    "int32": (
        lambda x: tf.argmax(x, 1, output_type=tf.int32),
        lambda x: x.argmax(1).astype(np.int32),
    ),
}


@pytest.mark.parametrize("name", EXTREMES)
def test_extremes(name: str) -> None:
    build, expect = EXTREMES[name]
    check(build, X, expect=expect, gradient=False)


@pytest.mark.parametrize("dtype", [*NARROW_FLOATS, np.int8, np.uint16])
def test_dtypes(dtype: type) -> None:
    x = X.astype(dtype)
    check(lambda x: tf.argmax(x, 1), x, expect=x.astype(float).argmax(1), gradient=False)
    check(lambda x: tf.nn.top_k(x, 2), x, expect=largest(x.astype(float), 2), gradient=False)


@pytest.mark.parametrize("k", [0, 1, 3])
def test_top_k(k: int) -> None:
    check(lambda x: tf.nn.top_k(x, k), X, expect=lambda x: largest(x, k))
    check(lambda x: tf.gradients(tf.nn.top_k(x, k)[0], x)[0], X, gradient=False)


def test_top_k_ties() -> None:
    check(lambda x: tf.nn.top_k(x, 3), TIES, expect=largest(TIES, 3), gradient=False)
    values = [[2, 3, 3], [0, 0, 0]]
    check(
        lambda x: tf.nn.top_k(x, 3, sorted=False),
        TIES,
        expect=[np.array(values, float), np.array([[3, 0, 2], [0, 1, 2]], np.int32)],
        gradient=False,
    )


def test_wrong_k() -> None:
    with pytest.raises(ValueError, match="must have last dimension >= k = 5 but is 4"):
        tf.nn.top_k(X, 5)
    with tf.Graph().as_default(), tf.Session() as session:
        k = tf.placeholder(tf.int32, [])
        with pytest.raises(tf.errors.InvalidArgumentError, match="Need k >= 0, got -7"):
            session.run(tf.nn.top_k(X, k), {k: -7})


def test_in_top_k() -> None:
    predictions = np.array([[0.1, 0.3, 0.2], [0.2, 0.2, 0.5], [np.nan, 0.1, 0.2]], np.float32)
    targets = np.array([2, 0, 2])
    expected = np.array([True, True, False])
    check(
        lambda p, t: tf.nn.in_top_k(p, t, 2), predictions, targets, expect=expected, gradient=False
    )
    outside = np.array([-1, 3, 0])
    check(
        lambda p, t: tf.nn.in_top_k(p, t, 3),
        predictions,
        outside,
        expect=np.array([False, False, False]),
        gradient=False,
    )


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("direction", ["ASCENDING", "DESCENDING"])
def test_sort(axis: int, direction: str) -> None:
    sign = 1 if direction == "ASCENDING" else -1

    def order(x: np.ndarray) -> np.ndarray:
        return np.argsort(sign * x, axis=axis, kind="stable").astype(np.int32)

    def build(x: tf.Tensor) -> list[tf.Tensor]:
        x.set_shape(X.shape)  # only the last axis can be sorted without knowing the rank
        return [tf.sort(x, axis, direction), tf.argsort(x, axis, direction)]

    check(build, X, expect=lambda x: [sign * np.sort(sign * x, axis), order(x)])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.float32])
def test_sort_bounds(dtype: type) -> None:
    x = np.array([0, 100, 1], dtype)
    if np.issubdtype(dtype, np.integer):
        x = np.append(x, [np.iinfo(dtype).min, np.iinfo(dtype).max]).astype(dtype)
    check(tf.sort, x, expect=np.sort, gradient=False)
    check(tf.argsort, x, expect=lambda x: np.argsort(x).astype(np.int32), gradient=False)


@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted(side: str) -> None:
    lines = np.array([[1.0, 2.0, 2.0, 4.0], [0.0, 0.0, 1.0, 9.0]])
    values = np.array([[2.0, 5.0, 0.0], [0.0, 1.5, 9.0]])
    expected = np.array([np.searchsorted(r, v, side) for r, v in zip(lines, values, strict=True)])
    check(
        lambda r, v: tf.searchsorted(r, v, side),
        lines,
        values,
        expect=expected.astype(np.int32),
        gradient=False,
    )


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="both 'axis' and 'dimension'"):
        tf.argmax(X, 0, dimension=1)
    with pytest.raises(ValueError, match=r"must be in the range \[-3, 3\)"):
        tf.argmax(X, 3)
    with pytest.raises(ValueError, match="Unknown direction"):
        tf.sort(X, direction="UP")
    with pytest.raises(ValueError, match="side must be either"):
        tf.searchsorted(X, X, "middle")
    with (
        tf.Graph().as_default(),
        tf.Session() as session,
        pytest.raises(tf.errors.InvalidArgumentError, match="Reduction axis 0 is empty"),
    ):
        session.run(tf.argmax(tf.zeros([0, 2]), 0))


def test_elements_at_places_along_the_last_axis() -> None:
    places = np.array([[0, 3, 3], [1, 0, 2]])
    take = TakeAlongLast()
    check(lambda x: take(x, places), TIES, expect=lambda x: np.take_along_axis(x, places, -1))


@pytest.mark.parametrize("axis", [0, 1, -2, -1])
def test_sort_of_unknown_rank(axis: int) -> None:
    values = np.random.default_rng(1).permutation(24).reshape(2, 3, 4)
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.int64)
        actual = session.run([tf.sort(x, axis), tf.argsort(x, axis)], {x: values})
        np.testing.assert_array_equal(actual[0], np.sort(values, axis))
        np.testing.assert_array_equal(actual[1], np.argsort(values, axis))
