"""Rows of the op table: poolings of images and volumes."""

import itertools

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import NARROW_FLOATS, check
from thalweg.ops.nn.pooling import MaxPoolGradGrad
from thalweg.ops.nn.pooling3d import MaxPool3DGradGrad
from thalweg.ops.rare.argmax_pooling import MaxPoolGradGradWithArgmax
from thalweg.runtime import engine

R = np.random.default_rng(0)


def regions(x, ksize, strides, padding):
    """For each output place, the part of x under the window that lies inside x."""
    counts, starts = [], []
    for n, k, s in zip(x.shape, ksize, strides, strict=True):
        count = -(-n // s) if padding == "SAME" else (n - k) // s + 1
        before = max((count - 1) * s + k - n, 0) // 2 if padding == "SAME" else 0
        counts.append(count)
        starts.append(before)
    for place in itertools.product(*map(range, counts)):
        cut = tuple(
            slice(max(p * s - b, 0), p * s - b + k)
            for p, s, b, k in zip(place, strides, starts, ksize, strict=True)
        )
        yield place, counts, x[cut]


def pooled(x, function, ksize, strides, padding):
    parts = [(counts, function(part)) for _, counts, part in regions(x, ksize, strides, padding)]
    return np.array([value for _, value in parts]).reshape(parts[0][0])


CASES = {
    "halves": ((1, 4, 2, 2), (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
    "overlapping": ((1, 4, 3, 1), (1, 2, 2, 1), (1, 1, 1, 1), "VALID"),
    "over the edge": ((1, 5, 3, 1), (1, 3, 2, 1), (1, 2, 2, 1), "SAME"),
    "with gaps": ((1, 5, 4, 1), (1, 1, 2, 1), (1, 2, 3, 1), "SAME"),
    "across depth": ((1, 2, 2, 4), (1, 1, 1, 2), (1, 1, 1, 2), "VALID"),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_pool(name: str, kind: str) -> None:
    shape, *arguments = CASES[name]
    x = R.permutation(int(np.prod(shape))).reshape(shape) / 7.0
    function = tf.nn.max_pool if kind == "max" else tf.nn.avg_pool
    numpy = np.max if kind == "max" else np.mean
    check(lambda x: function(x, *arguments), x, expect=pooled(x, numpy, *arguments))
    check(lambda x: squared_gradient(function(x, *arguments), x), x, gradient=False)


def squared_gradient(y, x):
    """The gradient of y², so that the backward ops have rows of their own."""
    return tf.gradients(y * y, x)


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_channels_first(kind: str) -> None:
    x = R.permutation(24).reshape(1, 2, 3, 4) / 7.0
    arguments = (1, 1, 2, 2), (1, 1, 2, 1), "SAME"
    function = tf.nn.max_pool if kind == "max" else tf.nn.avg_pool
    numpy = np.max if kind == "max" else np.mean
    expected = pooled(x, numpy, *arguments)
    check(lambda x: function(x, *arguments, data_format="NCHW"), x, expect=expected)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_volumes(kind: str, padding: str) -> None:
    x = R.permutation(24).reshape(1, 3, 2, 4, 1) / 7.0
    arguments = (1, 2, 2, 2, 1), (1, 2, 1, 2, 1), padding
    function = tf.nn.max_pool3d if kind == "max" else tf.nn.avg_pool3d
    numpy = np.max if kind == "max" else np.mean
    check(lambda x: function(x, *arguments), x, expect=pooled(x, numpy, *arguments))
    check(lambda x: squared_gradient(function(x, *arguments), x), x, gradient=False)


@pytest.mark.parametrize("batch", [False, True])
def test_argmax(batch: bool) -> None:
    x = R.permutation(36).reshape(2, 3, 3, 2) / 7.0
    arguments = (1, 2, 2, 1), (1, 2, 2, 1), "SAME"
    wanted = pooled(x, np.max, *arguments)
    flat = x.ravel() if batch else x.reshape(2, -1)

    def expect(x):
        if batch:
            return wanted, np.array([np.flatnonzero(flat == v)[0] for v in wanted.ravel()])
        places = [np.flatnonzero(flat[b] == v)[0] for b in range(2) for v in wanted[b].ravel()]
        return wanted, np.array(places)

    def build(x):
        y, place = tf.nn.max_pool_with_argmax(x, *arguments, include_batch_in_index=batch)
        return y, tf.reshape(place, [-1])

    check(build, x, expect=expect)
    check(lambda x: squared_gradient(build(x)[0], x), x, gradient=False)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_argmax_among_equal_elements_and_nan_is_that_of_the_reference(
    dtype: type, padding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(2).integers(-1, 2, (2, 9, 7, 3)).astype(dtype)
    if dtype is np.float32:
        special = np.random.default_rng(3).choice([np.nan, np.inf, -np.inf], x.size)
        x = np.where(np.arange(x.size).reshape(x.shape) % 5, x, special.reshape(x.shape)).astype(
            dtype
        )
    actual = []
    for compiles in (False, True):
        monkeypatch.setattr(engine, "COMPILES", compiles)
        with tf.Graph().as_default(), tf.Session() as session:
            given = tf.placeholder(dtype, x.shape)
            y, place = tf.nn.max_pool_with_argmax(given, 3, 2, padding)
            actual.append(session.run([y, place], {given: x}))
    for own, expected in zip(*actual, strict=True):
        np.testing.assert_array_equal(own, expected)


def test_the_first_of_equal_elements_takes_the_gradient() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.ones([1, 3, 3, 1])
        y = tf.nn.max_pool(x, 2, 1, "VALID")
        (dx,) = tf.gradients(y, x, tf.reshape(tf.range(4.0) + 1.0, [1, 2, 2, 1]))
        expected = np.array([[1, 2, 0], [3, 4, 0], [0, 0, 0]])
        np.testing.assert_array_equal(session.run(dx)[0, :, :, 0], expected)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(
    ("ksize", "stride"), [(2, 2), (3, 3), (2, 3), (4, 4), (3, 2), (1, 2), (2, 1), (3, 1)]
)
@pytest.mark.parametrize("channels", [1, 3, 20])
def test_gradients_among_equal_elements_are_those_of_the_reference(
    ksize: int, stride: int, channels: int, padding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, seed = np.random.default_rng(1).integers(0, 3, (2, 2, 9, 7, channels)).astype(np.float32)
    x_nan = x.copy()
    x_nan[0, 5, 3, -1] = np.nan
    actual = []
    for compiles in (False, True):
        monkeypatch.setattr(engine, "COMPILES", compiles)
        with tf.Graph().as_default(), tf.Session() as session:
            given = tf.placeholder(tf.float32, x.shape)
            y = tf.nn.max_pool(given, ksize, stride, padding)
            dy = tf.placeholder(tf.float32, y.shape)
            slope = tf.gradients(y, given, dy)[0]
            adjoint = tf.gradients(slope, dy, seed)[0]
            ones = np.ones(y.shape.as_list(), np.float32)
            steps = [{given: values, dy: ones} for values in (x, x_nan)]
            actual.append([part for fed in steps for part in session.run([slope, adjoint], fed)])
    for own, expected in zip(*actual, strict=True):
        np.testing.assert_array_equal(own, expected)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, *NARROW_FLOATS])
def test_other_dtypes(dtype: type) -> None:
    x = R.permutation(20).reshape(1, 5, 4, 1).astype(dtype)
    arguments = (1, 2, 3, 1), (1, 2, 2, 1), "SAME"
    expected = pooled(x.astype(float), np.max, *arguments)
    check(lambda x: tf.nn.max_pool(x, *arguments), x, expect=expected.astype(dtype), gradient=False)


@pytest.mark.parametrize("dtype", NARROW_FLOATS)
def test_means_of_narrow_floats(dtype: type) -> None:
    x = R.permutation(20).reshape(1, 5, 4, 1).astype(dtype)
    arguments = (1, 3, 3, 1), (1, 2, 2, 1), "SAME"
    check(lambda x: tf.nn.avg_pool(x, *arguments), x, gradient=False)
    check(lambda x: squared_gradient(tf.nn.avg_pool(x, *arguments), x), x, gradient=False)


def test_windows_may_be_given_for_space_alone() -> None:
    x = R.normal(size=(1, 4, 4, 2))
    expected = pooled(x, np.mean, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    check(lambda x: tf.nn.avg_pool2d(x, 2, [2, 2], "VALID"), x, expect=expected, gradient=False)
    expected = pooled(x, np.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    check(lambda x: tf.nn.max_pool2d(x, 2, [2, 2], "VALID"), x, expect=expected, gradient=False)


@pytest.mark.parametrize(
    "ksize, strides, match",
    [
        ((2, 1, 1, 1), (1, 1, 1, 1), "batch"),
        ((1, 1, 1, 1), (2, 1, 1, 1), "batch"),
        ((1, 2, 2, 2), (1, 1, 1, 2), "exactly one"),
        ((1, 1, 1, 2), (1, 1, 1, 1), "equal the depth stride"),
        ((1, 1, 1, 3), (1, 1, 1, 3), "evenly divide"),
    ],
)
def test_unsupported_poolings(ksize: tuple, strides: tuple, match: str) -> None:
    with tf.Graph().as_default(), pytest.raises(tf.errors.UnimplementedError, match=match):
        tf.nn.max_pool(tf.ones([1, 2, 2, 4]), ksize, strides, "SAME")


def test_wrong_arguments() -> None:
    with tf.Graph().as_default():
        with pytest.raises(ValueError, match="Negative dimension size"):
            tf.nn.max_pool(tf.ones([1, 2, 2, 1]), 3, 1, "VALID")
        with pytest.raises(ValueError, match="rank 4"):
            tf.nn.avg_pool(tf.ones([2, 2]), 1, 1, "VALID")
        with pytest.raises(ValueError, match="padding"):
            tf.nn.avg_pool(tf.ones([1, 2, 2, 1]), 1, 1, "FULL")


def test_adjoints_of_the_gradients_of_largest_elements() -> None:
    """They pick, from a gradient of x, the elements that were the largest."""
    x = R.permutation(32).reshape(1, 4, 4, 2).astype(float)
    with tf.Graph().as_default(), tf.Session() as session:
        y, places = session.run(tf.nn.max_pool_with_argmax(x, [1, 2, 2, 1], [1, 2, 2, 1], "VALID"))
    windows = {"ksize": (1, 2, 2, 1), "strides": (1, 2, 2, 1), "padding": "VALID"}
    images = MaxPoolGradGrad(**windows)
    check(lambda g: images(x, y, g), R.normal(size=x.shape), expect=lambda g: g.flat[places])
    picked = MaxPoolGradGradWithArgmax(**windows)
    check(lambda g: picked(x, g, places), R.normal(size=x.shape), expect=lambda g: g.flat[places])
    volumes = MaxPool3DGradGrad(ksize=(1, 1, 2, 2, 1), strides=(1, 1, 2, 2, 1), padding="VALID")
    check(
        lambda g: volumes(x[None], y[None], g),
        R.normal(size=(1, *x.shape)),
        expect=lambda g: g.flat[places][None],
    )
