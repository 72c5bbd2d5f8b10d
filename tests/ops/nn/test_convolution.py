"""Rows of the op table: convolutions, their adjoints, and depthwise ones."""

import itertools

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import NARROW_FLOATS, check, rounding

R = np.random.default_rng(0)


def direct(x, w, strides, padding, rates):
    """The definition: channels last, any number of spatial axes, one product at a time."""
    sizes, window = x.shape[1:-1], w.shape[:-2]
    extents = [(k - 1) * r + 1 for k, r in zip(window, rates, strict=True)]
    if padding == "SAME":
        counts = [-(-n // s) for n, s in zip(sizes, strides, strict=True)]
        totals = [
            max((c - 1) * s + e - n, 0)
            for c, s, e, n in zip(counts, strides, extents, sizes, strict=True)
        ]
        pads = [(t // 2, t - t // 2) for t in totals]
    else:
        pads = [(0, 0)] * len(sizes) if padding == "VALID" else padding
        counts = [
            (n + sum(p) - e) // s + 1
            for n, p, e, s in zip(sizes, pads, extents, strides, strict=True)
        ]
    padded = np.pad(x, [(0, 0), *pads, (0, 0)])
    y = np.zeros((len(x), *counts, w.shape[-1]))
    for place in itertools.product(*map(range, counts)):
        for tap in itertools.product(*map(range, window)):
            at = tuple(p * s + t * r for p, s, t, r in zip(place, strides, tap, rates, strict=True))
            y[(slice(None), *place)] += padded[(slice(None), *at)] @ w[tap]
    return y


CASES = {
    "valid": ((1, 3, 4, 2), (2, 2, 2, 2), (1, 1), "VALID", (1, 1)),
    "same": ((2, 3, 2, 1), (2, 3, 1, 2), (1, 1), "SAME", (1, 1)),
    "strided": ((1, 5, 4, 1), (3, 2, 1, 2), (2, 2), "SAME", (1, 1)),
    "strides larger than the window": ((1, 5, 5, 1), (1, 2, 1, 2), (3, 2), "VALID", (1, 1)),
    "one by one": ((2, 2, 2, 2), (1, 1, 2, 3), (1, 1), "VALID", (1, 1)),
    "one by one, strided": ((1, 3, 4, 2), (1, 1, 2, 2), (2, 3), "SAME", (1, 1)),
    "dilated": ((1, 5, 5, 1), (2, 2, 1, 2), (1, 1), "SAME", (2, 3)),
    "dilated and strided": ((1, 6, 5, 1), (2, 2, 1, 2), (2, 1), "VALID", (2, 3)),
    "many in, few out": ((1, 3, 3, 3), (2, 2, 3, 1), (1, 1), "SAME", (1, 1)),
    "explicit": ((1, 3, 3, 1), (2, 2, 1, 1), (1, 2), ((2, 0), (1, 3)), (1, 1)),
}


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("name", CASES)
def test_conv2d(name: str, data_format: str) -> None:
    x_shape, w_shape, strides, padding, rates = CASES[name]
    x, w = R.normal(size=x_shape), R.normal(size=w_shape)
    first = data_format == "NCHW"
    given = np.moveaxis(x, -1, 1) if first else x
    pads = padding
    if not isinstance(padding, str):
        pads = [(0, 0), (0, 0), *padding] if first else [(0, 0), *padding, (0, 0)]

    def build(x, w):
        return tf.nn.conv2d(x, w, strides, pads, data_format=data_format, dilations=rates)

    wanted = direct(x, w, strides, padding, rates)
    check(build, given, w, expect=np.moveaxis(wanted, -1, 1) if first else wanted)
    check(adjoints(build), given, w, gradient=False)


def adjoints(build):
    """The two adjoints of a convolution, so that their own rows are checked."""

    def both(x, w):
        y = build(x, w)
        return tf.gradients(y * y, [x, w])

    return both


def test_conv3d() -> None:
    x, w = R.normal(size=(1, 3, 2, 3, 2)), R.normal(size=(2, 2, 1, 2, 1))
    strides = (1, 1, 2)

    def build(x, w):
        return tf.nn.conv3d(x, w, [1, *strides, 1], "SAME")

    check(build, x, w, expect=direct(x, w, strides, "SAME", (1, 1, 1)))
    check(adjoints(build), x, w, gradient=False)

    def channels_first(x, w):
        return tf.nn.conv3d(x, w, [1, 1, *strides], "SAME", data_format="NCDHW")

    expected = np.moveaxis(direct(x, w, strides, "SAME", (1, 1, 1)), -1, 1)
    check(channels_first, np.moveaxis(x, -1, 1), w, expect=expected)


@pytest.mark.parametrize("strides, rates", [((1, 1), (1, 1)), ((2, 2), (1, 1)), ((1, 1), (2, 1))])
@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_depthwise(strides: tuple, rates: tuple, data_format: str) -> None:
    x, w = R.normal(size=(1, 4, 3, 2)), R.normal(size=(2, 2, 2, 3))
    parts = [
        direct(x[..., c : c + 1], w[:, :, c : c + 1], strides, "SAME", rates) for c in range(2)
    ]
    wanted = np.concatenate(parts, -1)
    first = data_format == "NCHW"
    steps = (1, 1, *strides) if first else (1, *strides, 1)

    def build(x, w):
        return tf.nn.depthwise_conv2d(x, w, steps, "SAME", rates, data_format=data_format)

    given = np.moveaxis(x, -1, 1) if first else x
    check(build, given, w, expect=np.moveaxis(wanted, -1, 1) if first else wanted)
    check(adjoints(build), given, w, gradient=False)


def test_adjoints_by_name() -> None:
    x, w = R.normal(size=(2, 4, 4, 2)), R.normal(size=(2, 2, 2, 3))
    dy = R.normal(size=(2, 2, 2, 3))
    with tf.Graph().as_default(), tf.Session() as session:
        args = ([1, 2, 2, 1], "VALID")
        y = tf.nn.conv2d(tf.constant(x), tf.constant(w), *args)
        dx = tf.nn.conv2d_backprop_input([2, 4, 4, 2], w, dy, *args)
        dw = tf.nn.conv2d_backprop_filter(x, [2, 2, 2, 3], dy, *args)
        wanted = tf.gradients(y, list(y.op.inputs), dy)
        for actual, right in zip(session.run([dx, dw]), session.run(wanted), strict=True):
            np.testing.assert_allclose(actual, right)


@pytest.mark.parametrize("dtype", NARROW_FLOATS)
def test_narrow_floats(dtype: type) -> None:
    x, w = (R.normal(size=s).astype(dtype) for s in ((1, 4, 4, 2), (3, 3, 2, 2)))
    expected = direct(x.astype(float), w.astype(float), (1, 1), "SAME", (1, 1))
    check(
        lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"),
        x,
        w,
        expect=expected,
        gradient=False,
        rtol=1.01 * rounding(dtype),
        atol=1e-3,
    )


def test_a_batch_of_many_blocks() -> None:
    """More windows than one block holds: the blocks add up to the whole."""
    x, w = R.normal(size=(40, 20, 20, 8)), R.normal(size=(3, 3, 8, 4))
    with tf.Graph().as_default(), tf.Session() as session:
        tensors = [tf.constant(x), tf.constant(w)]
        y = tf.nn.conv2d(*tensors, 1, "SAME")
        grads = tf.gradients(tf.nn.l2_loss(y), tensors)
        value, (dx, dw) = session.run([y, grads])
        np.testing.assert_allclose(value, direct(x, w, (1, 1), "SAME", (1, 1)), atol=1e-10)
        # Both sums are the same number: y is linear in x and in w.
        np.testing.assert_allclose((dx * x).sum(), (value**2).sum())
        np.testing.assert_allclose((dw * w).sum(), (value**2).sum())


def test_empty_batch() -> None:
    x, w = np.zeros((0, 4, 4, 2)), np.ones((3, 3, 2, 5))
    build = lambda x, w: tf.nn.conv2d(x, w, 1, "VALID")  # noqa: E731 - a row
    check(build, x, w, expect=np.zeros((0, 2, 2, 5)), gradient=False)
    with tf.Graph().as_default(), tf.Session() as session:
        tensor, filters = tf.constant(x), tf.constant(w)
        dx, dw = session.run(tf.gradients(build(tensor, filters), [tensor, filters]))
        assert dx.shape == x.shape
        np.testing.assert_array_equal(dw, np.zeros_like(w))


W = np.ones((2, 2, 3, 1), np.float32)


@pytest.mark.parametrize(
    "x, w, match",
    [
        ((1, 3), W.shape, "rank 4"),
        ((1, 4, 4, 3), (2, 3), "rank 4"),
        ((1, 4, 4, 2), W.shape, "must be equal"),
        ((1, 1, 4, 3), W.shape, "Negative dimension size"),
    ],
)
def test_wrong_shapes(x: tuple, w: tuple, match: str) -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match=match):
        tf.nn.conv2d(tf.placeholder(tf.float32, x), tf.placeholder(tf.float32, w), 1, "VALID")


def test_wrong_arguments() -> None:
    with tf.Graph().as_default():
        x = tf.zeros([1, 4, 4, 3])
        with pytest.raises(tf.errors.InvalidArgumentError, match="batch and depth"):
            tf.nn.conv2d(x, W, [2, 1, 1, 1], "SAME")
        with pytest.raises(ValueError, match="data_format"):
            tf.nn.conv2d(x, W, 1, "SAME", data_format="HWNC")
        with pytest.raises(ValueError, match="padding"):
            tf.nn.conv2d(x, W, 1, "FULL")
        with pytest.raises(ValueError, match="both"):
            tf.nn.conv2d(x, W, 1, "SAME", filters=W)


def test_wrong_depth_at_run_time() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32)
        with pytest.raises(tf.errors.InvalidArgumentError, match="same depth: 2 vs 3"):
            session.run(tf.nn.conv2d(x, W, 1, "SAME"), {x: np.zeros((1, 4, 4, 2))})


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("size", [(1, 3, 4, 2), (1, 2, 3, 2), (2, 2, 2, 2)])
def test_adjoints_of_wrong_sizes_at_run_time(size: tuple, known: bool) -> None:
    """A graph may hold them, as in TensorFlow; they never compute anything."""
    with tf.Graph().as_default(), tf.Session() as session:
        dy = tf.placeholder(tf.float32, size if known else None)
        w, x = tf.ones([2, 2, 1, 2]), tf.ones([1, 4, 4, 1])
        for adjoint in (
            tf.nn.conv2d_transpose(dy, w, [1, 4, 4, 1], 2, "SAME"),
            tf.nn.conv2d_backprop_filter(x, [2, 2, 1, 2], dy, [1, 2, 2, 1], "SAME"),
        ):
            with pytest.raises(tf.errors.InvalidArgumentError, match="out_backprop has shape"):
                session.run(adjoint, {dy: np.ones(size)})
