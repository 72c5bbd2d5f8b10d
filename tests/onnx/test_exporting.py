"""ONNX models out: each op written means the same when it is read back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg as tf

pytest.importorskip("onnx")

X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(2, 3, 4)
IMAGE = np.linspace(-1, 1, 2 * 6 * 5 * 4, dtype=np.float32).reshape(2, 6, 5, 4)
MATRIX = np.linspace(-1, 1, 20, dtype=np.float32).reshape(4, 5)
FILTER = np.linspace(-1, 1, 3 * 3 * 4 * 2, dtype=np.float32).reshape(3, 3, 4, 2)

ROWS: dict[str, Callable[[Any], Any]] = {
    "arithmetic": lambda x: (x + 1) * x / 3 - tf.maximum(x, 0.5) ** 2,
    "activations": lambda x: tf.nn.relu6(x) + tf.nn.leaky_relu(x) + tf.nn.elu(x) + tf.nn.selu(x),
    "functions": lambda x: tf.exp(x) + tf.rsqrt(tf.square(x) + 1) + tf.erf(x) + tf.nn.gelu(x),
    "logs": lambda x: tf.log1p(tf.abs(x)) + tf.expm1(x) + tf.floor(x) + tf.round(x),
    "division": lambda x: tf.floordiv(x, 0.7) + tf.floormod(x, 0.7),
    "integers": lambda x: tf.cast(tf.cast(x * 9, tf.int32) // 4 % 3, tf.float32),
    "comparisons": lambda x: tf.where(tf.logical_and(x > 0, tf.not_equal(x, 1)), x, -x),
    "squared difference": lambda x: tf.squared_difference(x, 1.0),
    "reductions": lambda x: tf.reduce_mean(x, [0, 2]) + tf.reduce_max(x, 1, keepdims=True)[0, 0, 0],
    "sums": lambda x: tf.reduce_sum(x, 1) + tf.reduce_prod(x, 1) + tf.reduce_min(x, 1),
    "truths": lambda x: tf.cast(tf.reduce_any(x > 0, 1), tf.float32),
    "argmax": lambda x: tf.cast(tf.argmax(x, 2), tf.float32),
    "top k": lambda x: tf.nn.top_k(x, 2).values,
    "softmax": lambda x: tf.nn.softmax(x) + tf.nn.log_softmax(x),
    "cumsum": lambda x: tf.cumsum(x, 1, exclusive=True),
    "matmul": lambda x: tf.matmul(tf.reshape(x, [6, 4]), MATRIX),
    "transposed matmul": lambda x: tf.matmul(x, x, transpose_b=True),
    "shapes": lambda x: tf.reshape(tf.transpose(x, [2, 0, 1]), [tf.shape(x)[2], -1]),
    "axes": lambda x: tf.squeeze(tf.expand_dims(x, 1), [1]),
    "joining": lambda x: tf.concat([x, tf.stack([x[0], x[1]])], 1),
    "splitting": lambda x: tf.add_n([*tf.split(x, 2, 2), *tf.split(x, [2, 2], 2)]),
    "unstack": lambda x: tf.unstack(x, axis=1)[1],
    "slices": lambda x: x[:, ::-1, 1:3] + x[1, ..., 0][:, tf.newaxis],
    "slice": lambda x: tf.slice(x, [0, 1, 1], [-1, 2, 2]),
    "padding": lambda x: tf.pad(x, [[0, 0], [1, 2], [0, 1]], constant_values=3.0),
    "reflection": lambda x: tf.pad(x, [[0, 0], [1, 1], [0, 0]], "REFLECT"),
    "tiles": lambda x: tf.tile(x, [1, 2, 1]) + tf.zeros_like(tf.tile(x, [1, 2, 1])),
    "gather": lambda x: tf.gather(x, [2, 0], axis=1) + tf.gather_nd(x, [[0, 1]])[0, 0],
    "one hot": lambda x: tf.one_hot(tf.cast(x[:, :, 0] + 2, tf.int32), 4),
    "fills": lambda x: x + tf.fill([3, 1], 2.0) + tf.cast(tf.range(4), tf.float32),
}
IMAGES: dict[str, Callable[[Any], Any]] = {
    "conv2d": lambda x: tf.nn.conv2d(x, FILTER, [1, 2, 2, 1], "SAME"),
    "valid conv2d": lambda x: tf.nn.conv2d(x, FILTER, [1, 1, 1, 1], "VALID") + 1.0,
    "dilated": lambda x: tf.nn.conv2d(x, FILTER, [1, 1, 1, 1], "SAME", dilations=[1, 2, 2, 1]),
    "depthwise": lambda x: tf.nn.depthwise_conv2d(x, FILTER, [1, 1, 1, 1], "SAME"),
    "max pool": lambda x: tf.nn.max_pool(x, [1, 3, 3, 1], [1, 2, 2, 1], "SAME"),
    "average pool": lambda x: tf.nn.avg_pool(x, [1, 2, 2, 1], [1, 2, 2, 1], "SAME"),
    "bias": lambda x: tf.nn.bias_add(x, np.arange(4, dtype=np.float32)),
    "batch norm": lambda x: tf.nn.fused_batch_norm(
        x, np.ones(4, "f"), np.ones(4, "f"), np.ones(4, "f"), np.ones(4, "f"), is_training=False
    )[0],
}


def check(build: Callable[[Any], Any], value: Any) -> Any:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, value.shape, name="x")
        y = build(x)
        model = tf.onnx.export(y)
        again = tf.onnx.load(model)(x)
        expected, found = session.run([y, again], {x: value})
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
        assert found.dtype == expected.dtype
        return model


@pytest.mark.parametrize("name", ROWS)
def test_an_op_means_the_same(name: str):
    check(ROWS[name], X)


@pytest.mark.parametrize("name", IMAGES)
def test_an_op_on_images_means_the_same(name: str):
    check(IMAGES[name], IMAGE)


def test_variables_are_constants_of_the_model(tmp_path: Path):
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 4], name="x")
        y = tf.layers.dense(x, 2, activation=tf.nn.relu, name="d")
        session.run(tf.global_variables_initializer())
        path = tmp_path / "m.onnx"
        tf.onnx.export(y, str(path))
        expected = session.run(y, {x: np.ones([3, 4])})
        loaded = tf.onnx.load(str(path))
    with tf.Graph().as_default(), tf.Session() as session:
        np.testing.assert_allclose(session.run(loaded(np.ones([3, 4], "f"))), expected, rtol=1e-6)


def test_inputs_may_be_any_tensors():
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [2], name="x")
        middle = tf.exp(x, name="middle")
        model = tf.onnx.export([middle + 1.0, middle * 2.0], inputs=[middle])
        assert [each.name for each in model.graph.input] == ["middle"]
        assert len(model.graph.output) == 2


def test_an_op_without_an_onnx_form_is_named_with_its_line():
    with tf.Graph().as_default():
        y = tf.svd(tf.placeholder(tf.float32, [2, 2]), compute_uv=False, name="odd")
        with pytest.raises(NotImplementedError, match=r"Svd .*'odd'.*test_exporting\.py"):
            tf.onnx.export(y)


def test_a_variable_needs_a_session():
    with tf.Graph().as_default(), pytest.raises(ValueError, match="'v' needs a session"):
        tf.onnx.export(tf.Variable(1.0, name="v") + 1.0)
