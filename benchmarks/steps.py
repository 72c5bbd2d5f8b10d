"""What a step costs: the null step, and a small training step, on the NumPy kernels."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import thalweg as tf

REPEATS = 300
ROUNDS = 5


def best(call: Callable[[], Any]) -> float:
    """Microseconds per call: the best of several rounds."""
    call()
    times: list[float] = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(REPEATS):
            call()
        times.append((time.perf_counter() - start) / REPEATS * 1e6)
    return min(times)


def null_step() -> dict[str, float]:
    """A scalar plus one, through `run` and through a callable."""
    with tf.Graph().as_default(), tf.Session() as session:
        y = tf.constant(1.0) + 1.0
        call = session.make_callable(y)
        return {
            "null step, `sess.run`": best(lambda: session.run(y)),
            "null step, `make_callable`": best(call),
        }


def perceptron(batch: int) -> dict[str, float]:
    """One step of gradient descent on a 784-100-10 perceptron."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(batch, 784)).astype(np.float32)
    labels = rng.integers(0, 10, batch)
    with tf.Graph().as_default(), tf.Session() as session:
        x, y = tf.placeholder(tf.float32, [None, 784]), tf.placeholder(tf.int64, [None])
        hidden = tf.layers.dense(x, 100, activation=tf.nn.relu)
        logits = tf.layers.dense(hidden, 10)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
        step = tf.train.GradientDescentOptimizer(0.01).minimize(tf.reduce_mean(losses))
        session.run(tf.global_variables_initializer())
        call = session.make_callable(step, [x, y])
        return {f"MLP 784-100-10, SGD step, batch {batch}": best(lambda: call(images, labels))}


def table() -> str:
    """All works as a Markdown table."""
    rows = null_step() | perceptron(1) | perceptron(64)
    lines = ["| work | µs |", "|---|---|"]
    return "\n".join(lines + [f"| {work} | {micros:.1f} |" for work, micros in rows.items()])


if __name__ == "__main__":
    print(table())
