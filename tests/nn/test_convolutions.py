"""Convolutions made of convolution ops: against `conv2d` and its gradient."""

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check

R = np.random.default_rng(0)


def run(build):
    with tf.Graph().as_default(), tf.Session() as session:
        return session.run(build())


def by_conv2d(x, w, **options):
    return run(lambda: tf.nn.conv2d(x, w, **options))


LINE, LINE_FILTER = R.normal(size=(2, 5, 2)), R.normal(size=(3, 2, 2))
IMAGE, FILTER = R.normal(size=(1, 4, 5, 2)), R.normal(size=(2, 2, 2, 3))


@pytest.mark.parametrize("stride, rate", [(1, 1), (2, 1), (1, 2)])
def test_conv1d(stride: int, rate: int) -> None:
    options = {"padding": "SAME", "strides": [1, stride], "dilations": [1, rate]}
    expected = by_conv2d(LINE[:, None], LINE_FILTER[None], **options)[:, 0]

    def build(x, w):
        return tf.nn.conv1d(x, w, stride, "SAME", dilations=rate)

    check(build, LINE, LINE_FILTER, expect=expected)

    def channels_first(x, w):
        return tf.nn.conv1d(x, w, stride, "SAME", data_format="NCW", dilations=rate)

    check(
        channels_first,
        LINE.swapaxes(1, 2),
        LINE_FILTER,
        expect=expected.swapaxes(1, 2),
        gradient=False,
    )


@pytest.mark.parametrize("options", [{}, {"strides": (2, 1)}, {"dilation_rate": (1, 2)}])
def test_convolution_of_images(options: dict) -> None:
    def build(x, w):
        return tf.nn.convolution(tf.reshape(x, IMAGE.shape), w, "SAME", **options)

    expected = by_conv2d(
        IMAGE,
        FILTER,
        padding="SAME",
        strides=options.get("strides", (1, 1)),
        dilations=options.get("dilation_rate", (1, 1)),
    )
    check(build, IMAGE, FILTER, expect=expected, gradient=False)


def test_convolution_by_rank() -> None:
    with tf.Graph().as_default():
        for rank in (1, 2, 3):
            x, w = tf.ones([1, *[4] * rank, 2]), tf.ones([*[3] * rank, 2, 5])
            y = tf.nn.convolution(x, w, "VALID")
            assert y.shape.as_list() == [1, *[2] * rank, 5]
        with pytest.raises(ValueError, match="rank"):
            tf.nn.convolution(tf.ones([1, 2]), tf.ones([1, 2]), "VALID")
        with pytest.raises(ValueError, match="in conjunction"):
            tf.nn.convolution(IMAGE, FILTER, "SAME", strides=[2, 2], dilation_rate=[2, 2])
        with pytest.raises(ValueError, match="input channels"):
            tf.nn.convolution(IMAGE[..., :1], FILTER, "SAME")


@pytest.mark.parametrize("strides, padding", [((1, 1), "VALID"), ((2, 2), "SAME")])
def test_transpose_is_the_adjoint(strides: tuple, padding: str) -> None:
    y = by_conv2d(IMAGE, FILTER, strides=strides, padding=padding)
    dy = R.normal(size=y.shape)

    def build(dy, w):
        return tf.nn.conv2d_transpose(dy, w, IMAGE.shape, strides, padding)

    back = run(lambda: build(dy, FILTER))
    assert back.shape == IMAGE.shape
    np.testing.assert_allclose((back * IMAGE).sum(), (dy * y).sum())


def test_transposes_of_lines_and_volumes() -> None:
    dy = R.normal(size=(1, 2, 3))
    line = run(lambda: tf.nn.conv1d_transpose(dy, np.ones((2, 1, 3)), [1, 4, 1], 2))
    np.testing.assert_allclose(line[0, :, 0], np.repeat(dy.sum(-1)[0], 2))
    volume = run(
        lambda: tf.nn.conv3d_transpose(
            np.ones((1, 2, 2, 2, 1)), np.ones((2, 2, 2, 1, 1)), [1, 4, 4, 4, 1], [1, 2, 2, 2, 1]
        )
    )
    np.testing.assert_array_equal(volume, np.ones((1, 4, 4, 4, 1)))
    general = run(lambda: tf.nn.conv_transpose(dy, np.ones((2, 1, 3)), [1, 4, 1], 2))
    np.testing.assert_array_equal(general, line)


def test_transpose_with_a_shape_known_in_the_step() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 2, 2, 3])
        y = tf.nn.conv2d_transpose(x, np.ones((2, 2, 1, 3), "f"), [tf.shape(x)[0], 4, 4, 1], 2)
        assert y.shape.as_list() == [None, 4, 4, 1]
        assert session.run(y, {x: np.ones((5, 2, 2, 3))}).shape == (5, 4, 4, 1)


def test_wrong_transposes() -> None:
    x, w = tf.ones, np.ones((2, 2, 1, 3), "f")
    with tf.Graph().as_default():
        with pytest.raises(ValueError, match="input channels"):
            tf.nn.conv2d_transpose(x([1, 2, 2, 2]), w, [1, 4, 4, 1], 2)
        with pytest.raises(ValueError, match="output channels"):
            tf.nn.conv2d_transpose(x([1, 2, 2, 3]), w, [1, 4, 4, 2], 2)
        with pytest.raises(ValueError, match="output_shape"):
            tf.nn.conv2d_transpose(x([1, 2, 2, 3]), w, [4, 4, 1], 2)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_atrous(padding: str) -> None:
    wide = np.zeros((3, 3, 2, 3))
    wide[::2, ::2] = FILTER
    expected = by_conv2d(IMAGE, wide, strides=1, padding=padding)
    y = run(lambda: tf.nn.atrous_conv2d(IMAGE, FILTER, 2, padding))
    np.testing.assert_allclose(y, expected)
    dy = R.normal(size=y.shape)
    back = run(lambda: tf.nn.atrous_conv2d_transpose(dy, FILTER, IMAGE.shape, 2, padding))
    np.testing.assert_allclose((back * IMAGE).sum(), (dy * y).sum())


def test_separable() -> None:
    each, mix = R.normal(size=(2, 2, 2, 2)), R.normal(size=(1, 1, 4, 3))
    joint = np.einsum("klcm,cmo->klco", each, mix[0, 0].reshape(2, 2, 3))
    expected = by_conv2d(IMAGE, joint, strides=(1, 2), padding="SAME")

    def build(x, a, b):
        return tf.nn.separable_conv2d(x, a, b, [1, 1, 2, 1], "SAME")

    check(build, IMAGE[:, :3, :3], each, mix, gradient=[1, 2], second=False)
    np.testing.assert_allclose(run(lambda: build(IMAGE, each, mix)), expected)


@pytest.mark.parametrize("shape_of", [lambda s: s, lambda s: [None] * len(s)])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_space_to_batch_is_dilation(shape_of, padding: str) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float64, shape_of(list(IMAGE.shape)))

        def plain(moved, rank, how):
            assert rank == 2
            return tf.nn.conv2d(moved, FILTER, 1, how)

        rate = tf.placeholder_with_default([1, 2], [2])
        known = tf.nn.with_space_to_batch(x, [1, 2], padding, plain, FILTER.shape)
        fed = tf.nn.with_space_to_batch(x, rate, padding, plain, FILTER.shape)
        wanted = tf.nn.conv2d(x, FILTER, 1, padding, dilations=[1, 2])
        values = session.run([known, fed, wanted], {x: IMAGE})
        np.testing.assert_allclose(values[0], values[2])
        np.testing.assert_allclose(values[1], values[2])


def test_wrong_space_to_batch() -> None:
    def same(x, rank, padding):
        return x

    with tf.Graph().as_default():
        with pytest.raises(ValueError, match="positive"):
            tf.nn.with_space_to_batch(IMAGE, [0, 2], "VALID", same)
        with pytest.raises(ValueError, match="filter_shape"):
            tf.nn.with_space_to_batch(IMAGE, [1, 2], "SAME", same)
        with pytest.raises(ValueError, match="spatial_dims"):
            tf.nn.with_space_to_batch(IMAGE, [1, 2], "VALID", same, spatial_dims=[2, 1])
