"""Poolings and clipping of quantized images."""

import numpy as np

import thalweg as tf
from tests.ops.harness import check_loop
from thalweg.graph.literal import plain_integers
from thalweg.ops.quantized.quantized_pooling import QuantizedRelu, QuantizedRelu6

X = np.array([[0, 10, 20], [30, 41, 50], [60, 70, 255]], np.uint8).reshape(1, 3, 3, 1)


def run(build):
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.quantize(X.astype(np.float32), 0.0, 255.0, tf.quint8)[0]
        y, low, high = build(x)
        assert y.dtype == tf.quint8
        value, *ends = session.run([tf.dequantize(y, low, high), low, high])
        assert ends == [0.0, 255.0]
        found = [plain_integers(a) for a in session.run([*y.op.inputs, *y.op.outputs])]
        count = len(y.op.inputs)
        check_loop(y.op, found[:count], found[count:])
        return value[0, :, :, 0]


def test_max_pool() -> None:
    y = run(lambda x: tf.nn.quantized_max_pool(x, 0.0, 255.0, [1, 2, 2, 1], [1, 1, 1, 1], "VALID"))
    np.testing.assert_allclose(y, [[41, 50], [70, 255]])


def test_avg_pool_is_cut_to_integers() -> None:
    y = run(lambda x: tf.nn.quantized_avg_pool(x, 0.0, 255.0, [1, 2, 2, 1], [1, 2, 2, 1], "SAME"))
    np.testing.assert_allclose(y, [[20, 35], [65, 255]])


def test_relu_x() -> None:
    y = run(lambda x: tf.nn.quantized_relu_x(x, 45.0, 0.0, 255.0))
    np.testing.assert_allclose(y, np.minimum(X[0, :, :, 0], 45))


def test_relu_and_relu_6() -> None:
    y = run(lambda x: QuantizedRelu()(x, 0.0, 255.0))
    np.testing.assert_allclose(y, X[0, :, :, 0])
    y = run(lambda x: QuantizedRelu6()(x, 0.0, 255.0))
    np.testing.assert_allclose(y, np.minimum(X[0, :, :, 0], 6))
