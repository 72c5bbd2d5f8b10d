"""Loops on a GPU: iterations a second, and an LSTM that trains, next to PyTorch.

    python benchmarks/cuda/loops.py [--peers] [--only lstm]   # with a GPU

The LSTM has two layers of 256 units and 64 steps, batch 16, in float32; feeds are on the device.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import thalweg as tf

STEPS, BATCH, WIDTH, UNITS, CLASSES = 64, 16, 256, 256, 64


def milliseconds(call: Callable[[], Any], count: int = 20, rounds: int = 3) -> float:
    """The best of some rounds, per call."""
    call(), call()
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(count):
            call()
        best = min(best, (time.perf_counter() - start) / count)
    return best * 1e3


def counting(width: int, iterations: int = 1000) -> float:
    """Microseconds for an iteration of a loop over a vector of so many numbers."""
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder_with_default(np.zeros(width, np.float32), [width])
        y = tf.while_loop(
            lambda i, _: i < iterations, lambda i, a: (i + 1, tf.sin(a) + 1.0), [0, x]
        )[1]
        step = session.make_callable(tf.reduce_sum(y))
        return milliseconds(step, 3) * 1e3 / iterations


def newton() -> float:
    """Microseconds for an iteration of a loop that ends when what it computes says so."""
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder_with_default(np.full(64, 1e30, np.float32), [64])
        count, _ = tf.while_loop(
            lambda n, a: tf.reduce_max(a) > 2.0, lambda n, a: (n + 1, a * 0.99), [0, x]
        )
        step = session.make_callable(count)
        return milliseconds(step, 3) * 1e3 / int(step())


def lstm() -> tuple[float, list[float]]:
    """Milliseconds for a training step, and the losses of the first ones."""
    random = np.random.default_rng(0)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        sequence = random.standard_normal((STEPS, BATCH, WIDTH)).astype(np.float32)
        classes = random.integers(CLASSES, size=STEPS * BATCH).astype(np.int32)
        x = tf.Variable(sequence, trainable=False)
        labels = tf.Variable(classes, trainable=False)
        cells = [tf.nn.rnn_cell.BasicLSTMCell(UNITS, forget_bias=0.0) for _ in range(2)]
        cell = tf.nn.rnn_cell.MultiRNNCell(cells)
        output, _ = tf.nn.dynamic_rnn(cell, x, dtype=tf.float32, time_major=True)
        logits = tf.layers.dense(tf.reshape(output, [-1, UNITS]), CLASSES)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        loss = tf.reduce_mean(losses)
        train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        session.run(tf.global_variables_initializer())
        step = session.make_callable([loss, train])
        first = [float(step()[0]) for _ in range(5)]
        return milliseconds(step), first


def torch_lstm() -> tuple[float, float]:
    """Milliseconds for a training step of PyTorch: issued by the host, and as one CUDA graph."""
    import torch

    torch.manual_seed(0)
    x = torch.randn(STEPS, BATCH, WIDTH, device="cuda")
    labels = torch.randint(CLASSES, (STEPS * BATCH,), device="cuda")
    layers = torch.nn.LSTM(WIDTH, UNITS, 2).cuda()
    dense = torch.nn.Linear(UNITS, CLASSES).cuda()
    weights = [*layers.parameters(), *dense.parameters()]
    optimizer = torch.optim.SGD(weights, 0.1, fused=True)

    def step() -> Any:
        loss = torch.nn.functional.cross_entropy(dense(layers(x)[0].view(-1, UNITS)), labels)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        return loss

    def fetched() -> float:
        return step().item()

    eager = milliseconds(fetched)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replayed() -> float:
        graph.replay()
        return loss.item()

    return eager, milliseconds(replayed)


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser()
    options.add_argument("--peers", action="store_true")
    options.add_argument("--only", default="")
    given = options.parse_args()
    if given.only != "lstm":
        for width in (64, 1 << 20):
            print(
                f"loop over {width:7} numbers  {counting(width):8.2f} us an iteration", flush=True
            )
        print(f"loop until it is small     {newton():8.2f} us an iteration", flush=True)
    took, losses = lstm()
    shown = ", ".join(f"{loss:.4f}" for loss in losses)
    print(f"LSTM 2x256, 64 steps       {took:8.3f} ms a step, losses {shown}", flush=True)
    if given.peers:
        eager, graph = torch_lstm()
        print(f"PyTorch                    {eager:8.3f} ms a step, {graph:.3f} ms as a CUDA graph")


if __name__ == "__main__":
    main()
