"""Thalweg: a session's callable; images, tokens and labels lie on the GPU."""

from __future__ import annotations

from typing import Any

import models
import numpy as np
from rows import NULL, Row, row_of
from systems.graph_net import GraphNet, mean_loss

import thalweg as tf
from sides.side import Side
from thalweg.device.cuda.device import CudaDevice

_ON = 1  # of a switch of `rewrite_options`


def make(name: str, is_tiny: bool) -> Side:
    """The step of a row."""
    tf.config.experimental.enable_tensor_float_32_execution(name.endswith("-tf32"))
    graph = tf.Graph()
    with graph.as_default():
        if name == NULL:
            return _null_step(tf.Session(graph=graph))
        return _training_step(row_of(name, is_tiny), graph)


def _null_step(session: Any) -> Side:
    x = tf.Variable(1.0)
    session.run(tf.global_variables_initializer())
    call = session.make_callable(x + 1.0)
    return Side(lambda: float(call()))


def _training_step(row: Row, graph: Any) -> Side:
    feeds: dict[Any, np.ndarray] = {}

    def variable(value: np.ndarray, dtype: Any, trainable: bool) -> Any:
        given = tf.placeholder(tf.as_dtype(value.dtype), value.shape)
        feeds[given] = value
        return tf.Variable(tf.cast(given, dtype), trainable=trainable)

    x, labels = row.data
    inputs = variable(x, tf.int32 if x.dtype == np.int32 else row.weight_dtype, False)
    answers = variable(labels, tf.int32, False)
    variables = {
        name: variable(value, row.dtype_of(name), models.trainable(name))
        for name, value in row.weights.items()
    }
    net = GraphNet(tf, variables, training=True)
    logits = row.model(net, inputs)
    loss = mean_loss(tf, tf.cast(logits, tf.float32), answers)
    kinds = {"sgd": tf.train.GradientDescentOptimizer, "adam": tf.train.AdamOptimizer}
    train = tf.group(kinds[row.optimizer](row.rate).minimize(loss), *net.updates)
    config = tf.ConfigProto()
    if row.precision == "mixed":
        config.graph_options.rewrite_options.auto_mixed_precision = _ON
    session = tf.Session(graph=graph, config=config)
    session.run(tf.global_variables_initializer(), feeds)
    call = session.make_callable([loss, train])
    pool = _pool(session)

    def forget_peak() -> None:
        pool.peak = pool.used

    return Side(
        lambda: float(call()[0]),
        lambda: pool.peak,
        forget_peak,
        lambda: session.plan([loss, train]),
    )


def _pool(session: Any) -> Any:
    """The memory of the session's GPU."""
    (gpu, *_) = [d for d in session._engine.devices if isinstance(d, CudaDevice)]
    return gpu.shared.memory.pool
