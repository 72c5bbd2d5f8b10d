"""Quantization acted out in floats, and what flows back through it."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check, check_lowerings

X = np.array([[-2.0, -0.4, 0.0], [0.26, 1.0, 3.0]], np.float32)


def rounded(x: Any, low: Any, high: Any, first: int, last: int) -> Any:
    """The definition: nudge the range to hold zero, clip, round to the grid."""
    step = (high - low) / (last - first)
    zero = np.clip(np.floor(first - low / step + 0.5), first, last)
    least, most = (first - zero) * step, (last - zero) * step
    return np.floor((np.clip(x, least, most) - least) / step + 0.5) * step + least


@pytest.mark.parametrize(("bits", "narrow"), [(8, False), (4, True), (2, False), (16, True)])
@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.1), (-0.13, 0.97), (0.0, 2.1), (-2.0, -0.5)])
def test_fixed_range(low: float, high: float, bits: int, narrow: bool) -> None:
    check(
        lambda x: tf.fake_quant_with_min_max_args(x, low, high, bits, narrow),
        X,
        expect=lambda x: rounded(x, low, high, int(narrow), 2**bits - 1),
        gradient=False,
        atol=1e-5,
    )
    check(
        lambda x, a, b: tf.fake_quant_with_min_max_vars(x, a, b, bits, narrow),
        X,
        np.float32(low),
        np.float32(high),
        expect=lambda x, a, b: rounded(x, low, high, int(narrow), 2**bits - 1),
        gradient=False,
        atol=1e-5,
    )


LOW, HIGH = np.array([-1, -0.5, -1], np.float32), np.array([1, 0.5, 2], np.float32)


def test_per_channel() -> None:
    check(
        tf.fake_quant_with_min_max_vars_per_channel,
        X,
        LOW,
        HIGH,
        expect=lambda x, a, b: rounded(x, a, b, 0, 255),
        gradient=False,
        atol=1e-5,
    )


def test_gradients_go_to_inputs_inside_and_to_the_ends_outside() -> None:
    dy = np.arange(1.0, 7.0).reshape(2, 3).astype(np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        x, low, high = tf.constant(X), tf.constant(LOW), tf.constant(HIGH)
        y = tf.fake_quant_with_min_max_vars_per_channel(x, low, high)
        dx, dlow, dhigh = session.run(tf.gradients(y, [x, low, high], dy))
        assert dx.tolist() == [[0, 2, 3], [4, 0, 0]]
        assert dlow.tolist() == [1, 0, 0]
        assert dhigh.tolist() == [0, 5, 6]
        y = tf.fake_quant_with_min_max_vars(x, -1.0, 1.0)
        assert session.run(tf.gradients(y, x, dy))[0].tolist() == [[0, 2, 3], [4, 5, 0]]
        y = tf.fake_quant_with_min_max_args(x, -1, 1)
        assert session.run(tf.gradients(y, x, dy))[0].tolist() == [[0, 2, 3], [4, 5, 0]]


@pytest.mark.parametrize(
    "build",
    [
        lambda d, x: tf.fake_quant_with_min_max_args_gradient(d, x, -1, 1),
        lambda d, x: tf.fake_quant_with_min_max_vars_gradient(d, x, -1.0, 1.0)[0],
        lambda d, x: tf.fake_quant_with_min_max_vars_per_channel_gradient(d, x, LOW, HIGH)[0],
    ],
)
def test_gradients_are_linear_and_flow_on(build: Any) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        dy = tf.constant(np.ones_like(X))
        dx = build(dy, tf.constant(X))
        back = tf.gradients(dx, dy, 2 * np.ones_like(X))[0]
        mask, doubled = session.run([dx, back])
    np.testing.assert_array_equal(doubled, 2 * mask)


def test_a_range_of_zero_gives_zeros() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        y = tf.fake_quant_with_min_max_vars(X, 0.0, 0.0)
        assert not session.run(y).any()


@pytest.mark.parametrize(
    "build",
    [
        lambda: tf.fake_quant_with_min_max_args(X, 1, 1),
        lambda: tf.fake_quant_with_min_max_args(X, num_bits=1),
        lambda: tf.fake_quant_with_min_max_vars(X, [0.0], [1.0]),
        lambda: tf.fake_quant_with_min_max_vars_per_channel(X, LOW[:2], HIGH),
    ],
)
def test_impossible_arguments(build: Any) -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match=r"\w"):
        build()


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.1), (0.0, 0.0)])
def test_loops_of_gradients(low: float, high: float) -> None:
    """Twice, so that the side of the range that a value lies on is asked for too."""
    names = "fake_quant_with_min_max_vars", "fake_quant_with_min_max_vars_per_channel"

    def build(x: tf.Tensor, weights: tf.Tensor) -> None:
        for name, width in zip(names, ([], [3]), strict=True):
            ends = [tf.fill(width, end) for end in (low, high)]
            slopes = tf.gradients(getattr(tf, name)(x, *ends) * weights, [x, *ends])
            tf.gradients([slope * slope for slope in slopes], weights)
        tf.gradients(tf.fake_quant_with_min_max_args(x, -1.0, 1.1), x)

    check_lowerings(build, [X, np.arange(1.0, 7.0, dtype=np.float32).reshape(2, 3)])
