"""Quantized tensors: the grid, the way back, and what is computed on it."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check, check_lowerings

X = np.array([-10.0, -0.5, 0.0, 0.31, 1.0, 5.0], np.float32)
KINDS = [tf.qint8, tf.quint8, tf.qint16, tf.quint16, tf.qint32]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["MIN_COMBINED", "MIN_FIRST", "SCALED"])
def test_there_and_back(kind: tf.DType, mode: str) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        output, low, high = tf.quantize_v2(X, -1.0, 2.0, kind, mode)
        assert output.dtype == kind
        reals, low_value, high_value = session.run(
            [tf.dequantize(output, low, high, mode), low, high]
        )
    bits = 8 * np.dtype(kind.as_numpy_dtype).itemsize
    step = (high_value - low_value) / 2**bits
    least = 0 if mode == "SCALED" and kind in (tf.quint8, tf.quint16) else low_value
    np.testing.assert_allclose(reals, np.clip(X, least, high_value), atol=1.01 * step + 1e-6)


@pytest.mark.parametrize(
    ("mode", "kind", "wanted"),
    [
        ("MIN_COMBINED", tf.quint8, [0, 85, 255]),
        ("MIN_COMBINED", tf.qint8, [-128, -43, 127]),
        ("MIN_FIRST", tf.quint8, [0, 85, 255]),
        ("SCALED", tf.qint8, [-64, 0, 127]),
    ],
)
def test_grid(mode: str, kind: tf.DType, wanted: list[int]) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        values = session.run(tf.quantize([-1.0, 0.0, 2.0], -1.0, 2.0, kind, mode).output)
    assert values.tolist() == wanted


def test_narrow_and_bad_ranges() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        _, low, high = session.run(tf.quantize_v2([1.0], 3.0, 3.0, tf.quint8))
        assert (low, high) == (0, 3)
        _, low, high = session.run(tf.quantize_v2([0.0], 0.0, 0.0, tf.quint8))
        assert high == pytest.approx(0.01)
        with pytest.raises(tf.errors.InvalidArgumentError, match="larger than max_range"):
            session.run(tf.quantize_v2([1.0], 3.0, 2.0, tf.quint8))
        with pytest.raises(ValueError, match="mode must be"):
            tf.quantize_v2([1.0], 0.0, 1.0, tf.quint8, mode="MAX")


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"num_bits": 3}, [-0.8, -0.2667, 0, 0.5333]),
        ({"num_bits": 3, "range_given": True}, [-0.4, -0.3, 0, 0.3]),
        ({"num_bits": 3, "narrow_range": True}, [-0.8, -0.2667, 0, 0.5333]),
        ({"num_bits": 2, "signed_input": False, "range_given": True}, [0, 0, 0, 0.3]),
    ],
)
def test_quantize_and_dequantize(options: dict[str, Any], wanted: list[float]) -> None:
    x = np.array([-0.8, -0.3, 0.0, 0.6], np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        given = tf.constant(x)
        node = tf.quantization.quantize_and_dequantize(given, -0.4, 0.3, **options)
        slope = tf.gradients(node, given)[0]
        value, ones = session.run([node, slope])
    if not options.get("range_given") and not options.get("narrow_range"):
        wanted = [-0.8, -0.4, 0, 0.6]
    assert ones.tolist() == [1] * 4
    np.testing.assert_allclose(value, wanted, atol=1e-3)


def test_concat_brings_ranges_together() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        parts = [tf.quantize_v2([[v]], 0.0, top, tf.quint8) for v, top in ((1.0, 1.0), (4.0, 4.0))]
        outputs, lows, highs = zip(*parts, strict=True)
        joined, low, high = tf.quantized_concat(1, outputs, lows, highs)
        assert joined.shape.as_list() == [1, 2]
        reals = session.run(tf.dequantize(joined, low, high, "MIN_FIRST"))
    np.testing.assert_allclose(reals, [[1, 4]], atol=0.02)


def test_round_trip_of_plain_rows() -> None:
    check(
        lambda x: tf.dequantize(*tf.quantize_v2(x, -1.0, 2.0, tf.quint8)),
        X,
        expect=lambda x: np.floor((np.clip(x, -1, 2) + 1) * 85 + 0.5) / 85 - 1,
        gradient=False,
        atol=1e-5,
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["MIN_COMBINED", "MIN_FIRST", "SCALED"])
@pytest.mark.parametrize("round_mode", ["HALF_AWAY_FROM_ZERO", "HALF_TO_EVEN"])
def test_loops_there_and_back(kind: tf.DType, mode: str, round_mode: str) -> None:
    def build() -> None:
        for low, high in ((-1.0, 2.0), (0.5, 3.0), (0.0, 0.0)):
            made = tf.quantize_v2(X, low, high, kind, mode, round_mode=round_mode)
            tf.dequantize(*made, mode=mode)

    check_lowerings(build, [])


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("round_mode", ["HALF_UP", "HALF_TO_EVEN"])
def test_loops_of_rounding(given: bool, round_mode: str) -> None:
    def build(x: tf.Tensor) -> None:
        round_to = tf.quantization.quantize_and_dequantize
        for low, high in ((-0.4, 0.3), (0.0, 0.0)):
            for signed in (True, False):
                round_to(x, low, high, signed, 3, given, round_mode)
        round_to(tf.zeros_like(x), 0.0, 0.0, range_given=given)

    check_lowerings(build, [X])


@pytest.mark.parametrize("tops", [(1.0, 4.0, 2.0), (3.0, 3.0, 3.0)])
def test_loop_of_concat(tops: tuple[float, ...]) -> None:
    def build() -> None:
        parts = [tf.quantize_v2([[0.5, i], [1, 2]], -1.0, t, tf.qint8) for i, t in enumerate(tops)]
        outputs, lows, highs = zip(*parts, strict=True)
        for axis in (0, 1):
            tf.quantized_concat(axis, outputs, lows, highs)

    check_lowerings(build, [])


def test_equal_empty_ranges_are_joined_as_they_are() -> None:
    integers = np.array([[1], [2]], np.uint8)
    with tf.Graph().as_default(), tf.Session() as session:
        values = tf.bitcast(integers, tf.quint8)
        joined = tf.quantized_concat(0, [values, values], [0.0, 0.0], [0.0, 0.0])
        assert session.run(joined.output).tolist() == [[1], [2], [1], [2]]
