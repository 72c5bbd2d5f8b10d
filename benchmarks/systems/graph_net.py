"""The vocabulary of the models in the TensorFlow 1.x API, and steps run by a session.

Thalweg and TensorFlow's graph mode share these lines: `tf` is the one package or the other.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import models
import numpy as np
from models import trainable
from works import SAMPLES, VOCABULARY, Work

from systems import graph_loops
from systems.step import Step, planned


class GraphNet:
    """Words of the models as ops on variables; `updates` collects the moving averages' ops."""

    def __init__(self, tf: Any, variables: Mapping[str, Any], training: bool) -> None:
        self.tf, self.variables, self.training = tf, variables, training
        self.updates: list[Any] = []

    def conv(
        self,
        x: Any,
        name: str,
        depth: int,
        size: int,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
        relu: bool = True,
    ) -> Any:
        pads = [[0, 0], [padding, padding], [padding, padding], [0, 0]]
        y = self.tf.nn.conv2d(
            x,
            self.variables[f"{name}/kernel"],
            strides=[1, stride, stride, 1],
            padding=pads if padding else "VALID",
        )
        if bias:
            y = self.tf.nn.bias_add(y, self.variables[f"{name}/bias"])
        return self.tf.nn.relu(y) if relu else y

    def max_pool(self, x: Any, size: int, stride: int, same: bool = False) -> Any:
        window, strides = [1, size, size, 1], [1, stride, stride, 1]
        return self.tf.nn.max_pool(x, window, strides, "SAME" if same else "VALID")

    def mean(self, x: Any) -> Any:
        return self.tf.reduce_mean(x, [1, 2])

    def flatten(self, x: Any) -> Any:
        return self.tf.reshape(x, [x.shape[0], int(np.prod(x.shape[1:]))])

    def concat(self, xs: Sequence[Any]) -> Any:
        return self.tf.concat(xs, 3)

    def add_relu(self, x: Any, y: Any) -> Any:
        return self.tf.nn.relu(x + y)

    def dense(self, x: Any, name: str, units: int, relu: bool = False) -> Any:
        flat = self.tf.reshape(x, [-1, x.shape[-1]]) if len(x.shape) > 2 else x
        y = self.tf.matmul(flat, self.variables[f"{name}/kernel"])
        y = self.tf.nn.bias_add(y, self.variables[f"{name}/bias"])
        y = self.tf.nn.relu(y) if relu else y
        return self.tf.reshape(y, [*x.shape[:-1], units]) if len(x.shape) > 2 else y

    def batch_norm(self, x: Any, name: str, relu: bool) -> Any:
        scale, offset, *moving = (
            self.variables[f"{name}/{part}"]
            for part in ("scale", "offset", "moving_mean", "moving_variance")
        )
        given = (None, None) if self.training else moving
        y, *moments = self.tf.nn.fused_batch_norm(
            x, scale, offset, *given, epsilon=1e-3, is_training=self.training
        )
        if self.training:
            pairs = zip(moving, moments, strict=True)
            self.updates += [old.assign_sub(0.1 * (old - new)) for old, new in pairs]
        return self.tf.nn.relu(y) if relu else y

    def layer_norm(self, x: Any, name: str) -> Any:
        scale, offset = self.variables[f"{name}/scale"], self.variables[f"{name}/offset"]
        mean, variance = self.tf.nn.moments(x, [-1], keep_dims=True)
        return self.tf.nn.batch_normalization(x, mean, variance, offset, scale, 1e-5)

    def gelu(self, x: Any) -> Any:
        return 0.5 * x * (1.0 + self.tf.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))

    def embed(self, ids: Any, tokens: str, rows: int, places: str, length: int, width: int) -> Any:
        table, positions = self.variables[f"{tokens}/table"], self.variables[f"{places}/table"]
        return self.tf.nn.embedding_lookup(table, ids) + positions

    def tied_logits(self, x: Any, tokens: str) -> Any:
        table = self.variables[f"{tokens}/table"]
        y = self.tf.matmul(self.tf.reshape(x, [-1, x.shape[-1]]), table, transpose_b=True)
        return self.tf.reshape(y, [*x.shape[:-1], table.shape[0]])

    def causal_attention(self, qkv: Any, heads: int) -> Any:
        tf, (batch, length, width) = self.tf, qkv.shape
        each = int(width) // 3 // heads
        parts = tf.reshape(qkv, [batch, length, 3, heads, each])
        q, k, v = tf.unstack(tf.transpose(parts, [2, 0, 3, 1, 4]))
        mask = np.triu(np.full((int(length), int(length)), -1e9), 1)
        mask = mask.astype(qkv.dtype.base_dtype.as_numpy_dtype)
        scores = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) * each**-0.5 + mask)
        mixed = tf.transpose(tf.matmul(scores, v), [0, 2, 1, 3])
        return tf.reshape(mixed, [batch, length, heads * each])

    def lstm(self, x: Any, name: str, units: int, layers: int) -> Any:
        for i in range(layers):
            x = self.lstm_layer(x, self.variables[f"{name}{i}/kernel"], f"{name}{i}", units)
        return x

    def lstm_layer(self, x: Any, kernel: Any, name: str, units: int) -> Any:
        """Unrolled; the inputs' share of the gates is one product for all steps."""
        tf, (length, batch, width) = self.tf, x.shape
        of_input, of_state = kernel[: int(width)], kernel[int(width) :]
        shares = tf.matmul(tf.reshape(x, [-1, width]), of_input) + self.variables[f"{name}/bias"]
        h = c = tf.zeros([batch, units], x.dtype.base_dtype)
        outputs: list[Any] = []
        for share in tf.unstack(tf.reshape(shares, [length, batch, 4 * units])):
            i, j, f, o = tf.split(share + tf.matmul(h, of_state), 4, 1)
            c = tf.sigmoid(f + 1.0) * c + tf.sigmoid(i) * tf.tanh(j)
            h = tf.tanh(c) * tf.sigmoid(o)
            outputs.append(h)
        return tf.stack(outputs)


def mean_loss(tf: Any, logits: Any, labels: Any) -> Any:
    """Softmax cross entropy, averaged."""
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.reduce_mean(each)


def sampled_loss(tf: Any, variables: Mapping[str, Any], batch: Sequence[Any]) -> Any:
    """Sampled softmax of the words' targets, the samples given."""
    words, targets, sampled, of_targets, of_sampled = batch
    losses = tf.nn.sampled_softmax_loss(
        weights=variables["softmax"],
        biases=variables["bias"],
        labels=tf.reshape(targets, [-1, 1]),
        inputs=tf.nn.embedding_lookup(variables["embedding"], words),
        num_sampled=SAMPLES,
        num_classes=VOCABULARY,
        sampled_values=(sampled, tf.reshape(of_targets, [-1, 1]), of_sampled),
        remove_accidental_hits=False,
    )
    return tf.reduce_mean(losses)


def outcome(tf: Any, work: Work, variables: Mapping[str, Any], batch: Sequence[Any]) -> Any:
    """The loss (or logits) of a work, and the ops that update moving averages."""
    losses = {"word2vec": sampled_loss, **graph_loops.LOSSES}
    if work.kind in losses:
        return losses[work.kind](tf, variables, batch), []
    net = GraphNet(tf, variables, work.trains)
    logits = work.model(net, batch[0])
    return (mean_loss(tf, logits, batch[1]) if work.trains else logits), net.updates


def session_step(tf: Any, work: Work, config: Any) -> Step:
    """A graph of the work, its weights loaded, run through a callable of a session."""
    weights, batches = work.weights(), work.batches()
    start = time.perf_counter()
    variables, feeds = {}, {}
    for name, value in weights.items():
        given = tf.placeholder(tf.float32, value.shape)
        variables[name] = tf.Variable(given, trainable=trainable(name))
        feeds[given] = value
    inputs = [tf.placeholder(tf.as_dtype(part.dtype), part.shape) for part in batches[0]]
    fetches = step_fetches(tf, work, variables, inputs)
    session = tf.Session(config=config)
    initializer = tf.global_variables_initializer()
    building = time.perf_counter() - start
    session.run(initializer, feeds)
    call, planning = planned(session, fetches, inputs)

    def run(i: int) -> Any:
        result = call(*batches[i % len(batches)])
        return result[0] if work.trains else result

    def plan() -> Any:
        return session.plan(fetches, dict(zip(inputs, batches[0], strict=True)))

    return Step(run, building + planning, plan=plan, session=session)


def step_fetches(tf: Any, work: Work, variables: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
    """What a step fetches: loss and training op, or the logits."""
    result, updates = outcome(tf, work, variables, inputs)
    if not work.trains:
        return result
    kinds = {"sgd": tf.train.GradientDescentOptimizer, "adam": tf.train.AdamOptimizer}
    training = kinds[work.optimizer](work.rate).minimize(result)
    return [result, tf.group(training, *updates)]


def step_without_weights(tf: Any, work: Work, config: Any) -> Step:
    """The counter, the chain, or nothing."""
    makers = {"counter": graph_loops.counter_step, "chain": chain_step}
    return makers.get(work.kind, null_step)(tf, work, config)


def chain_step(tf: Any, work: Work, config: Any) -> Step:
    """Elementwise ops, one after the other."""
    ((value,),) = work.batches()
    start = time.perf_counter()
    x = tf.placeholder(tf.float32, value.shape)
    y = models.chain(x)
    session = tf.Session(config=config)
    building = time.perf_counter() - start
    call, planning = planned(session, y, [x])
    taken = building + planning
    return Step(
        lambda i: call(value), taken, plan=lambda: session.plan(y, {x: value}), session=session
    )


def null_step(tf: Any, work: Work, config: Any) -> Step:
    """A variable plus one, through `run` or through a callable."""
    start = time.perf_counter()
    x = tf.Variable(1.0)
    y = x + 1.0
    session = tf.Session(config=config)
    initializer = tf.global_variables_initializer()
    building = time.perf_counter() - start
    session.run(initializer)
    plan = partial(session.plan, y, {})
    if work.kind == "null-run":
        return Step(lambda i: session.run(y), building, plan=plan, session=session)
    call, planning = planned(session, y, [])
    return Step(lambda i: call(), building + planning, plan=plan, session=session)
