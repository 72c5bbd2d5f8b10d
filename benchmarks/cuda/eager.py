"""A training step written three ways on a GPU: in a session, as a function, line by line.

    python benchmarks/cuda/eager.py [--steps 200]

An MLP of 784-1024-10 learns from 256 examples by gradient descent. The table has milliseconds a
step on each device, the best of several rounds, in which each step's loss is looked at.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np

import thalweg as tf

ROUNDS, RATE = 5, 1e-3
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(256, 784)).astype(np.float32)
Y = RANDOM.normal(size=(256, 10)).astype(np.float32)
WEIGHTS = [RANDOM.normal(size=s).astype(np.float32) / 50 for s in ((784, 1024), (1024, 10))]


def loss_of(x: Any, y: Any, weights: list[Any]) -> Any:
    first, second = weights
    return tf.reduce_mean((tf.matmul(tf.nn.relu(tf.matmul(x, first)), second) - y) ** 2)


def in_session() -> Callable[[], float]:
    weights = [tf.Variable(w) for w in WEIGHTS]
    loss = loss_of(tf.Variable(X, trainable=False), tf.Variable(Y, trainable=False), weights)
    train = tf.train.GradientDescentOptimizer(RATE).minimize(loss)
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    return lambda: session.run([loss, train])[0]


def line_by_line() -> Callable[[Any, Any], Any]:
    weights = [tf.Variable(w) for w in WEIGHTS]
    optimizer = tf.train.GradientDescentOptimizer(RATE)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(x, y, weights)
        slopes = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(slopes, weights, strict=True))
        return loss

    return step


def measured(step: Callable[[], float], steps: int) -> tuple[float, float]:
    """Milliseconds a step, and the last loss."""
    for _ in range(3):
        loss = step()
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(steps):
            loss = float(step())
        best = min(best, (time.perf_counter() - start) / steps)
    return best * 1e3, loss


def ways(device: str, steps: int) -> dict[str, tuple[float, float]]:
    result: dict[str, tuple[float, float]] = {}
    with tf.Graph().as_default(), tf.device(device):
        result["session"] = measured(in_session(), steps)
    with tf.eager_mode(), tf.device(device):
        x, y = tf.constant(X), tf.constant(Y)
        step, function = line_by_line(), tf.function(line_by_line())
        result["line by line"] = measured(lambda: step(x, y), steps)
        result["function"] = measured(lambda: function(x, y), steps)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    print("| device | way | ms a step | last loss |\n|---|---|---|---|")
    for device in ("/gpu:0", "/cpu:0"):
        for way, (milliseconds, loss) in ways(device, steps).items():
            print(f"| {device} | {way} | {milliseconds:.3f} | {loss:.6f} |", flush=True)


if __name__ == "__main__":
    main()
