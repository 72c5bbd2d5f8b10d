"""What a step on a GPU costs on the host: launches of graphs, new addresses, feeds and fetches.

    python benchmarks/cuda/host_time.py     # with a GPU, or THALWEG_CUDA=emulated

`host` is the time until the step is issued (nobody waits for the GPU), `step` the whole of it. Of
loops, which the GPU runs by itself, an iteration is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import thalweg as tf
from thalweg.device.cuda.device import CudaDevice
from thalweg.device.cuda.driver import Context


def microseconds(call: Callable[[], Any], count: int = 200, rounds: int = 5) -> float:
    """The best of some rounds, per call."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(count):
            call()
        best = min(best, (time.perf_counter() - start) / count)
    return best * 1e6


def issued(call: Callable[[], Any], context: Context) -> float:
    """The time until a step is issued."""
    kind, wait = type(context), type(context).wait
    kind.wait = lambda self, stream: None  # type: ignore[method-assign]
    try:
        return microseconds(call, 20)
    finally:
        kind.wait = wait  # type: ignore[method-assign]
        for _ in range(3):
            call()


def chain(kernels: int) -> tuple[Any, Any]:
    """A step of so many dependent kernels, which cannot be fused."""
    x = tf.placeholder(tf.float32, [64])
    y = x
    for _ in range(kernels):
        y = tf.cumsum(y, reverse=True) * 0.1
    return x, tf.reduce_sum(y)


def updates(variables: int) -> tuple[Any, Any, Any]:
    """A step that updates so many variables."""
    x = tf.placeholder(tf.float32, [])
    held = [tf.Variable(tf.ones([300])) for _ in range(variables)]
    return x, tf.group(*[tf.assign_add(v, tf.ones([300]) * x) for v in held]), held


def counting(width: int, iterations: int = 1000) -> float:
    """Microseconds for an iteration of a loop over so many numbers."""
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder_with_default(np.zeros(width, np.float32), [width])
        y = tf.while_loop(
            lambda i, _: i < iterations, lambda i, a: (i + 1, tf.sin(a) + 1.0), [0, x]
        )[1]
        step = session.make_callable(tf.reduce_sum(y))
        return microseconds(step, 3, 3) / iterations


def shrinking() -> float:
    """Microseconds for an iteration of a loop that ends when what it computes says so."""
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder_with_default(np.full(64, 1e30, np.float32), [64])
        count, _ = tf.while_loop(
            lambda n, a: tf.reduce_max(a) > 2.0, lambda n, a: (n + 1, a * 0.99), [0, x]
        )
        step = session.make_callable(count)
        return microseconds(step, 3, 3) / int(step())


def recurrent(steps: int = 64) -> float:
    """Microseconds for a time step of a recurrent network that trains, forwards and back."""
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.Variable(tf.random_normal([steps, 16, 256]), trainable=False)
        cell = tf.nn.rnn_cell.BasicLSTMCell(256)
        output, _ = tf.nn.dynamic_rnn(cell, x, dtype=tf.float32, time_major=True)
        loss = tf.reduce_mean(tf.square(output))
        train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        session.run(tf.global_variables_initializer())
        step = session.make_callable([loss, train])
        step(), step()
        return microseconds(step, 5, 3) / steps


def main() -> None:
    """Print the table."""
    session = tf.Session()
    (gpu,) = [d for d in session._engine.devices if isinstance(d, CudaDevice)][:1]
    print(gpu.description)
    with session.graph.as_default():
        x = tf.placeholder(tf.float32, [])
        rows: list[tuple[str, Any, Any, Any]] = [("null step", x, x + 1, np.float32(1))]
        for count in (30, 300):
            source, total = chain(count)
            rows.append((f"{count} kernels", source, total, np.ones(64, np.float32)))
        for count in (10, 100):
            source, update, _ = updates(count)
            rows.append((f"{count} variables", source, update, np.float32(1)))
        large = tf.placeholder(tf.float32, [128, 224, 224, 3])
        image = np.ones([128, 224, 224, 3], np.float32)
        rows.append(("77 MB feed", large, tf.reduce_sum(large), image))
        rows.append(("77 MB fetch", large, large * 2, image))
        session.run(tf.global_variables_initializer())
    for name, source, fetch, value in rows:
        call = session.make_callable(fetch, [source])
        for _ in range(3):
            call(value)
        count = 5 if "MB" in name else 200

        def step(call: Any = call, value: Any = value) -> Any:
            return call(value)

        host = issued(step, gpu.context) if "MB" not in name else float("nan")
        print(
            f"{name:16} host {host:9.1f} us   step {microseconds(step, count):9.1f} us", flush=True
        )
    for name, found in (
        ("64 numbers", counting(64)),
        ("a million", counting(1 << 20)),
        ("until small", shrinking()),
        ("LSTM trains", recurrent()),
    ):
        print(f"loop, {name:16} iteration {found:9.2f} us", flush=True)


if __name__ == "__main__":
    main()
