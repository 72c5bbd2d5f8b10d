"""Mixed precision: which nodes become narrow; weights stay wide, and training converges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.optimize.steps import after, step
from thalweg.optimize.passes.mixed_precision import narrowing
from thalweg.optimize.step_graph import StepGraph

ON, AGGRESSIVE = 1, 3


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def network(images: Any) -> Any:
    """A convolution and two dense layers."""
    filters = tf.get_variable("filters", [3, 3, 1, 8])
    bias = tf.get_variable("bias", [8])
    maps = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(images, filters, [1, 1, 1, 1], "SAME"), bias))
    pooled = tf.nn.max_pool(maps, [1, 2, 2, 1], [1, 2, 2, 1], "SAME")
    hidden = tf.tanh(tf.matmul(tf.reshape(pooled, [-1, 128]), tf.get_variable("w", [128, 16])))
    return tf.matmul(hidden, tf.get_variable("u", [16, 10]))


def training() -> tuple[Any, Any, Any]:
    """A step, its feeds, its loss."""
    tf.set_random_seed(1)
    rng = np.random.default_rng(0)
    images = tf.placeholder(tf.float32, [8, 8, 8, 1])
    labels = tf.placeholder(tf.int32, [8])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=network(images))
    feeds = {images: rng.normal(size=(8, 8, 8, 1)), labels: rng.integers(0, 10, 8)}
    return tf.reduce_mean(losses), feeds, labels


def dtypes_of(graph: StepGraph) -> dict[str, set[str]]:
    result: dict[str, set[str]] = {}
    for node in graph.nodes:
        result.setdefault(node.type, set()).update(t.dtype.name for t in node.outputs)
    return result


def test_products_and_what_lies_between_them_are_narrow() -> None:
    loss, feeds, _ = training()
    graph = step([loss, *tf.gradients(loss, tf.trainable_variables())], feeds=list(feeds))
    after(narrowing(tf.bfloat16), graph)
    actual = dtypes_of(graph)
    for kind in ("Conv2D", "MatMul", "BiasAdd", "Relu", "MaxPool", "Tanh", "ReluGrad"):
        assert actual[kind] == {"bfloat16"}, kind
    for kind in ("SparseSoftmaxCrossEntropyWithLogits", "Mean", "BiasAddGrad", "Identity"):
        assert "bfloat16" not in actual.get(kind, set()), kind
    assert all(tensor.dtype is tf.float32 for tensor in graph.fetches)


def test_what_is_used_twice_is_cast_once() -> None:
    x, w = tf.placeholder(tf.float32, [4, 4]), tf.placeholder(tf.float32, [4, 4])
    graph = step([tf.matmul(tf.tanh(tf.matmul(x, w)), w)], feeds=[x, w])
    assert after(narrowing(tf.bfloat16), graph).count("= Cast(") == 3


def test_integers_and_other_floats_stay() -> None:
    x, i = tf.placeholder(tf.float64, [4, 4]), tf.placeholder(tf.int32, [4, 4])
    graph = step([tf.matmul(x, x), tf.matmul(i, i)], feeds=[x, i])
    narrowing(tf.bfloat16)(graph)
    assert not graph.is_changed


@pytest.mark.parametrize("state", [ON, AGGRESSIVE])
def test_training_goes_on(state: int) -> None:
    loss, feeds, _ = training()
    descent: Any = tf.train.GradientDescentOptimizer(0.1)
    if state == AGGRESSIVE:
        descent = tf.train.experimental.MixedPrecisionLossScaleOptimizer(descent)
    train = descent.minimize(loss)
    losses = []
    for each in (0, state):
        config = tf.ConfigProto()
        config.graph_options.rewrite_options.auto_mixed_precision = each
        with tf.Session(config=config) as session:
            session.run(tf.global_variables_initializer())
            losses.append([session.run([loss, train], feeds)[0] for _ in range(5)])
            assert all(v.dtype == np.float32 for v in session.run(tf.trainable_variables()))
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.02)
    assert losses[1] != losses[0]
