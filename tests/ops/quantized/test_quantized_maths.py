"""Products, sums and changes of range of quantized tensors, against the same in reals."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check_lowerings
from thalweg.ops.quantized import quantized_maths, quantized_pooling

RANGE = (-3.0, 3.0)
A = np.random.default_rng(0).uniform(-2, 2, size=(3, 4)).astype(np.float32)
B = np.random.default_rng(1).uniform(-2, 2, size=(4, 2)).astype(np.float32)


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


def run(value: Any, feeds: Any = None) -> Any:
    with tf.Session() as session:
        return session.run(value, feeds)


def quantized(array: Any, kind: tf.DType = tf.quint8) -> Any:
    return tf.quantize_v2(array, *RANGE, kind, "MIN_FIRST")


def reals(result: Any) -> Any:
    return run(tf.dequantize(*result, mode="MIN_FIRST"))


@pytest.mark.parametrize("kind", [tf.quint8, tf.qint8])
@pytest.mark.parametrize("flip", [False, True])
def test_matmul(kind: tf.DType, flip: bool) -> None:
    a, b = quantized(A, kind), quantized(B.T if flip else B, kind)
    op = quantized_maths.QuantizedMatMul(transpose_b=flip)
    product = op(a[0], b[0], *a[1:], *b[1:])
    assert product[0].dtype == tf.qint32 and product[0].shape.as_list() == [3, 2]
    np.testing.assert_allclose(reals(product), A @ B, atol=0.15)


def test_bias_add() -> None:
    x, bias = quantized(A), quantized(A[0])
    total = quantized_maths.QuantizedBiasAdd()(x[0], bias[0], *x[1:], *bias[1:])
    assert total[0].dtype == tf.qint32
    np.testing.assert_allclose(reals(total), A + A[0], atol=0.03)


def test_wide_results_are_requantized_to_eight_bits() -> None:
    a, b = quantized(A), quantized(B)
    product = quantized_maths.QuantizedMatMul()(a[0], b[0], *a[1:], *b[1:])
    used = quantized_maths.RequantizationRange()(*product)
    asked = quantized_maths.Requantize(out_type=tf.quint8)(*product, *used)
    shrunk = quantized_maths.QuantizeDownAndShrinkRange(out_type=tf.quint8)(*product)
    assert asked[0].dtype == tf.quint8
    low, high = run(list(used))
    assert low == pytest.approx((A @ B).min(), abs=0.15)
    assert high == pytest.approx((A @ B).max(), abs=0.15)
    np.testing.assert_allclose(reals(asked), A @ B, atol=0.2)
    np.testing.assert_array_equal(*run([asked[0], shrunk[0]]))


def test_a_range_of_nothing_but_zero() -> None:
    zeros = quantized(np.zeros((2,), np.float32), tf.qint32)
    shrunk = quantized_maths.QuantizeDownAndShrinkRange(out_type=tf.quint8)(*zeros)
    np.testing.assert_allclose(reals(shrunk), [0, 0], atol=1e-6)


@pytest.mark.parametrize(("low", "high"), [(0.5, 1.0), (-1.0, -2.0)])
def test_requested_ranges_hold_zero_and_are_in_order(low: float, high: float) -> None:
    op = quantized_maths.Requantize(out_type=tf.quint8)
    with pytest.raises(tf.errors.InvalidArgumentError, match="requested_output"):
        run(op(*quantized(A, tf.qint32), low, high)[0])


def test_reshape() -> None:
    flat = quantized_maths.QuantizedReshape()(quantized(A)[0], [2, -1], *RANGE)
    assert flat[0].shape.as_list() == [2, 6]
    np.testing.assert_allclose(reals(flat), A.reshape(2, 6), atol=0.02)


@pytest.mark.parametrize(("name", "top"), [("QuantizedRelu", 7), ("QuantizedRelu6", 6)])
def test_relu(name: str, top: float) -> None:
    features = tf.quantize_v2([-4.0, 0.0, 2.0, 7.0], -8.0, 8.0, tf.quint8, "MIN_FIRST")
    result = getattr(quantized_pooling, name)()(*features)
    expected = [0, 0, 2, top]
    np.testing.assert_allclose(reals(result), expected, atol=0.05)


def test_constants_and_feeds_are_plain_integers() -> None:
    fixed = tf.constant(np.array([0, 128, 255]), dtype=tf.quint8)
    fed = tf.placeholder(tf.quint8, [3])
    made = [tf.dequantize(x, 0.0, 255.0) for x in (fixed, fed)]
    for value in run(made, {fed: [0, 128, 255]}):
        np.testing.assert_allclose(value, [0, 128, 255])
    assert fixed.dtype == tf.quint8
    for value in run([fixed, tf.identity(fixed)]):
        assert value.dtype == np.uint8 and value.tolist() == [0, 128, 255]


@pytest.mark.parametrize("kind", [tf.quint8, tf.qint8])
@pytest.mark.parametrize("flips", [(False, False), (True, False), (True, True)])
def test_loop_of_matmul(kind: tf.DType, flips: tuple[bool, bool]) -> None:
    def build() -> None:
        a = quantized(A.T if flips[0] else A, kind)
        b = quantized(B.T if flips[1] else B, kind)
        op = quantized_maths.QuantizedMatMul(transpose_a=flips[0], transpose_b=flips[1])
        op(a[0], b[0], *a[1:], *b[1:])

    check_lowerings(build, [])


def test_loops_of_ranges() -> None:
    def build() -> None:
        x, bias = quantized(A), quantized(A[0])
        total = quantized_maths.QuantizedBiasAdd()(x[0], bias[0], *x[1:], *bias[1:])
        for wide in (total, quantized(np.zeros((2, 2)), tf.qint32)):
            found = quantized_maths.RequantizationRange()(*wide)
            quantized_maths.Requantize(out_type=tf.quint8)(*wide, *found)
            quantized_maths.QuantizeDownAndShrinkRange(out_type=tf.quint8)(*wide)
        quantized_maths.QuantizedReshape()(x[0], [2, 6], *x[1:])

    check_lowerings(build, [])
