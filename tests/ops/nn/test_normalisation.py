"""Rows of the op table: batch and local response normalisation."""

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check
from thalweg.ops.nn.normalisation import BatchNormWithGlobalNormalization, NeighbourSum

R = np.random.default_rng(0)
X = R.normal(size=(2, 2, 3, 2)) + 1
SCALE, OFFSET = R.normal(size=2), R.normal(size=2)
MEAN, VARIANCE = R.normal(size=2), R.uniform(0.5, 2, size=2)
EPSILON = 0.01


def normal(x, scale, offset, mean, variance):
    return (x - mean) / np.sqrt(variance + EPSILON) * scale + offset


def in_training(x, scale, offset):
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return normal(x, scale, offset, mean, variance), mean, variance * 12 / 11


def training(x, scale, offset, **options):
    return tf.nn.fused_batch_norm(x, scale, offset, epsilon=EPSILON, **options)


def test_training() -> None:
    check(training, X, SCALE, OFFSET, expect=in_training, gradient=False)
    check(lambda *a: training(*a)[0], X, SCALE, OFFSET)
    check(gradients(training), X, SCALE, OFFSET, gradient=False)


def gradients(build):
    """The gradients of y², so that the backward op has rows of its own."""

    def backward(*inputs):
        y = build(*inputs)
        return tf.gradients((y if isinstance(y, tf.Tensor) else y[0]) ** 2, inputs[:3])

    return backward


def test_channels_first() -> None:
    def build(x, scale, offset):
        return training(x, scale, offset, data_format="NCHW")[0]

    expected = np.moveaxis(in_training(X, SCALE, OFFSET)[0], -1, 1)
    check(build, np.moveaxis(X, -1, 1), SCALE, OFFSET, expect=expected)
    check(gradients(build), np.moveaxis(X, -1, 1), SCALE, OFFSET, gradient=False)


def test_inference() -> None:
    def build(x, scale, offset, mean, variance):
        return tf.nn.fused_batch_norm(
            x, scale, offset, mean, variance, epsilon=EPSILON, is_training=False
        )[0]

    inputs = X, SCALE, OFFSET, MEAN, VARIANCE
    check(build, *inputs, expect=normal, gradient=[0, 1, 2])
    check(gradients(build), *inputs, gradient=False)


def test_short_images_have_wide_statistics() -> None:
    x = X.astype(np.float16)
    with tf.Graph().as_default(), tf.Session() as session:
        y, mean, _ = training(tf.constant(x), SCALE.astype("f"), OFFSET.astype("f"))
        assert (y.dtype, mean.dtype) == (tf.float16, tf.float32)
        expected = in_training(x.astype(float), SCALE, OFFSET)[0]
        np.testing.assert_allclose(session.run(y), expected, atol=1e-2)


def test_wrong_arguments() -> None:
    with tf.Graph().as_default():
        with pytest.raises(ValueError, match="must be None"):
            training(X, SCALE, OFFSET, mean=MEAN)
        with pytest.raises(ValueError, match="must be given"):
            training(X, SCALE, OFFSET, is_training=False)
        with pytest.raises(ValueError, match="not compatible"):
            training(X, SCALE[:1], OFFSET)


def local_response(x, radius, bias, alpha, beta):
    y = np.empty_like(x)
    for c in range(x.shape[-1]):
        near = x[..., max(c - radius, 0) : c + radius + 1]
        y[..., c] = x[..., c] / (bias + alpha * (near**2).sum(-1)) ** beta
    return y


@pytest.mark.parametrize("radius", [0, 1, 5])
def test_local_response(radius: int) -> None:
    x = R.normal(size=(1, 1, 2, 5))
    arguments = radius, 1.5, 0.7, 0.6
    check(lambda x: tf.nn.lrn(x, *arguments), x, expect=local_response(x, *arguments))
    check(gradients(lambda x: tf.nn.lrn(x, *arguments)), x, gradient=False)


@pytest.mark.parametrize("scaled", [False, True])
def test_the_op_of_old_graphs(scaled: bool) -> None:
    op = BatchNormWithGlobalNormalization(
        variance_epsilon=EPSILON, scale_after_normalization=scaled
    )

    def expect(t, m, v, beta, gamma):
        return normal(t, gamma if scaled else 1, beta, m, v)

    check(op, X, MEAN, VARIANCE, OFFSET, SCALE, expect=expect, second=False)
    check(gradients(op), X, MEAN, VARIANCE, OFFSET, SCALE, gradient=False)


def test_the_sum_over_neighbours_is_its_own_transpose():
    x = R.normal(size=(2, 5))
    near = np.abs(np.subtract.outer(range(5), range(5))) <= 2
    check(NeighbourSum(depth_radius=2), x, expect=lambda x: x @ near)
