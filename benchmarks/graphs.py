"""How building, planning, differentiating and running a graph grows with its size.

Chains of n additions and multiplications, each made on a line of the user's own (captured), at
1,000, 10,000 and 100,000 ops. Gives microseconds per op; flat columns mean linear growth.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import thalweg as tf

SIZES = (1_000, 10_000, 100_000)
ROUNDS = 3


def chain(size: int) -> tuple[Any, Any]:
    """A placeholder and the end of a chain of `size` ops on it."""
    x = tf.placeholder(tf.float32, [8], name="x")
    y = x
    for _ in range(size // 2):
        y = y + x
        y = y * x
    return x, y


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds and result of a call, the collector kept out."""
    gc.collect()
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def measure(size: int) -> dict[str, float]:
    """Seconds for each stage at one size."""
    with tf.Graph().as_default(), tf.Session() as session:
        build, (x, y) = timed(lambda: chain(size))
        feed = {x: [1e-3] * 8}
        plan, _ = timed(lambda: session.make_callable(y, [x]))
        run, _ = timed(lambda: session.run(y, feed))
        gradient, (dx,) = timed(lambda: tf.gradients(y, x))
        plan_gradient, _ = timed(lambda: session.make_callable(dx, [x]))
    return {
        "build": build,
        "plan": plan,
        "run": run,
        "gradients": gradient,
        "plan of gradients": plan_gradient,
    }


def table() -> str:
    """The times per op at every size, best of several rounds, as a Markdown table."""
    stages = list(measure(100))
    lines = ["| ops | " + " | ".join(f"{stage}, µs/op" for stage in stages) + " |"]
    lines.append("|---" * (len(stages) + 1) + "|")
    for size in SIZES:
        rounds = [measure(size) for _ in range(ROUNDS)]
        best = [min(r[stage] for r in rounds) / size * 1e6 for stage in stages]
        lines.append(f"| {size:,} | " + " | ".join(f"{value:.1f}" for value in best) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
