"""What a step on a GPU costs on the host: launches of graphs, new addresses, feeds and fetches.

    python benchmarks/cuda/host_time.py     # with a GPU, or THALWEG_CUDA=emulated

`host` is the time until the step is issued (nobody waits for the GPU), `step` the whole of it.
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
        print(f"{name:16} host {host:9.1f} us   step {microseconds(step, count):9.1f} us")


if __name__ == "__main__":
    main()
