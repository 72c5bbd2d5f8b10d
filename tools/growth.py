"""How lowering and compiling grow with a graph, in every direction a graph can grow.

Each row is a family of graphs of n nodes, measured at n, 4n and 16n: milliseconds per node from the
first line of the graph to the end of its first run, and of that run alone, of all threads of the
process. Kernels are compiled again every time (the cache is a folder that is removed). Flat columns
mean linear growth; the last column is the largest factor from one size to the next.

    make growth                     # all rows
    make growth ROWS="add_n chain"  # some rows

The last row is of the optimiser alone, without building and running, at n, 10n and 100n.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

STEP = 4  # from one size to the next
LIMIT = 600  # seconds for one graph

Feeds = dict[Any, Any]
Graph = tuple[Any, Sequence[Feeds]]  # what to fetch, and the feeds of each run


def _input(tf: Any, *shape: int | None) -> tuple[Any, Any]:
    sizes = [8 if size is None else size for size in shape]
    return tf.placeholder(tf.float32, shape), np.full(sizes, 1e-3, np.float32)


def add_n(tf: Any, count: int) -> Graph:
    """One sum of n terms, each computed."""
    x, value = _input(tf, 64)
    return tf.add_n([tf.tanh(x * float(n)) for n in range(count // 2)]), [{x: value}]


def sum_of_terms(tf: Any, count: int) -> Graph:
    """A sum of n computed terms, added one by one."""
    x, value = _input(tf, 64)
    total = x
    for number in range(count // 2):
        total = total + x * float(number)
    return total, [{x: value}]


def inputs(tf: Any, count: int) -> Graph:
    """One sum of n tensors that are fed."""
    fed = [_input(tf, 8) for _ in range(count)]
    return tf.add_n([x for x, _ in fed]), [dict(fed)]


def chain(tf: Any, count: int) -> Graph:
    """A deep chain of elementwise ops."""
    x, value = _input(tf, 64)
    y = x
    for _ in range(count // 2):
        y = tf.tanh(y) + x
    return y, [{x: value}]


def matmuls(tf: Any, count: int) -> Graph:
    """A chain of matrix products, each by a matrix of its own."""
    x, value = _input(tf, 16, 16)
    y = x
    for number in range(count):
        y = tf.matmul(y, tf.constant(np.full((16, 16), 1 / (16 + number % 7), np.float32)))
    return y, [{x: value}]


def outputs(tf: Any, count: int) -> Graph:
    """Many tensors that are fetched."""
    x, value = _input(tf, 64)
    return [tf.sqrt(x + float(number)) for number in range(count)], [{x: value}]


def optimizer(tf: Any, count: int) -> Graph:
    """Many variables with an optimizer."""
    x, value = _input(tf, 8, 8)
    y = x
    for number in range(count):
        weights = tf.get_variable(f"w{number}", [8, 8], initializer=tf.constant_initializer(0.1))
        y = tf.tanh(tf.matmul(y, weights))
    train = tf.train.AdamOptimizer().minimize(tf.reduce_mean(tf.square(y)))
    return [tf.global_variables_initializer(), train], [{}, {x: value}]


def regions(tf: Any, count: int) -> Graph:
    """Small regions between host ops."""
    x, value = _input(tf, 8)
    y = x
    for _ in range(count // 2):
        y = tf.py_func(np.copy, [tf.sqrt(y)], tf.float32)
        y.set_shape([8])
    return y, [{x: value}]


def independent(tf: Any, count: int) -> Graph:
    """Many small computations of shapes of their own that share nothing."""
    fed = [_input(tf, 1 + number % 50, 1 + number // 50) for number in range(count)]
    return [tf.reduce_sum(tf.exp(x)) for x, _ in fed], [dict(fed)]


def concat(tf: Any, count: int) -> Graph:
    """A concatenation of n computed tensors."""
    x, value = _input(tf, 8)
    return tf.concat([x * float(number) for number in range(count)], 0), [{x: value}]


def stack(tf: Any, count: int) -> Graph:
    """A stack of n computed tensors, reduced."""
    x, value = _input(tf, 8)
    return tf.reduce_sum(tf.stack([x + float(number) for number in range(count)]), 0), [{x: value}]


def pieces(tf: Any, count: int) -> Graph:
    """A tensor taken apart into n, each used."""
    x, value = _input(tf, count, 8)
    return tf.add_n([tf.tanh(piece) for piece in tf.unstack(x)]), [{x: value}]


def slices(tf: Any, count: int) -> Graph:
    """n slices of a tensor, put together again in another order."""
    x, value = _input(tf, count, 8)
    return tf.concat([x[number : number + 1] for number in reversed(range(count))], 0), [{x: value}]


def gradient(tf: Any, count: int) -> Graph:
    """The gradient of a deep chain."""
    x, value = _input(tf, 64)
    y = x
    for _ in range(count // 4):
        y = tf.tanh(y) * x
    return tf.gradients(y, x), [{x: value}]


def wide_gradient(tf: Any, count: int) -> Graph:
    """The gradient of a tensor that n others read."""
    x, value = _input(tf, 64)
    y = tf.exp(x)
    return tf.gradients([tf.sin(y * float(n)) for n in range(count // 4)], x), [{x: value}]


def shapes(tf: Any, count: int) -> Graph:
    """One graph run on n batch sizes."""
    x, _ = _input(tf, None, 8)
    y = tf.reduce_sum(tf.tanh(tf.matmul(x, tf.ones([8, 8]))))
    return y, [{x: np.ones((1 + number, 8), np.float32)} for number in range(count)]


def loop(tf: Any, count: int) -> Graph:
    """A loop whose body has n nodes."""
    x, value = _input(tf, 8)

    def body(i: Any, y: Any) -> tuple[Any, Any]:
        for _ in range(count // 2):
            y = tf.tanh(y) + x
        return i + 1, y

    return tf.while_loop(lambda i, _: i < 3, body, (0, x))[1], [{x: value}]


def conds(tf: Any, count: int) -> Graph:
    """n conditionals, one after another."""
    x, value = _input(tf, 8)
    y = x
    for number in range(count):
        least = float(number)
        y = tf.cond(tf.reduce_sum(y) > least, lambda y=y: y + 1.0, lambda y=y: y * 2.0)
    return y, [{x: value}]


def optimizer_passes(tf: Any, count: int) -> Graph:
    """Layers with what the optimiser removes, and their gradient: some n nodes."""
    x, value = _input(tf, 16, 16)
    y = x
    for number in range(count // 16):
        y = tf.tanh(tf.identity(y) * 1 + float(number % 7)) + tf.reshape(y, tf.shape(y)) / 2
    return tf.gradients(tf.reduce_sum(y), x), [{x: value}]


#: By row: what makes its graph, and the nodes of the smallest.
ROWS: dict[str, tuple[Callable[[Any, int], Graph], int]] = {
    "add_n": (add_n, 1000),
    "sum_of_terms": (sum_of_terms, 1000),
    "inputs": (inputs, 250),
    "chain": (chain, 1000),
    "matmuls": (matmuls, 100),
    "outputs": (outputs, 250),
    "optimizer": (optimizer, 50),
    "regions": (regions, 100),
    "independent": (independent, 100),
    "concat": (concat, 250),
    "stack": (stack, 250),
    "pieces": (pieces, 250),
    "slices": (slices, 250),
    "gradient": (gradient, 1000),
    "wide_gradient": (wide_gradient, 1000),
    "shapes": (shapes, 60),
    "loop": (loop, 250),
    "conds": (conds, 20),
    "optimize": (optimizer_passes, 1000),
}


def measure_passes(count: int) -> tuple[float, float]:
    """Seconds to optimise a graph of so many nodes."""
    import thalweg as tf
    from thalweg.optimize.pipeline import optimize
    from thalweg.runtime.plan import prune

    with tf.Graph().as_default():
        (fetch,), (feeds,) = optimizer_passes(tf, count)
        ends = (fetch,), (), tuple(feeds)
        nodes = prune(*ends)
        start = time.process_time()
        optimize(nodes, *ends)
        seconds = time.process_time() - start
    return seconds * count / len(nodes), seconds * count / len(nodes)


PASSES = "optimize"
FACTORS = {PASSES: 10}  # from one size to the next, where it is not STEP


def measure(row: str, count: int) -> tuple[float, float]:
    """Seconds from the first line of a graph to its first results, and of its runs alone."""
    import thalweg as tf

    if row == PASSES:
        return measure_passes(count)
    with tf.Graph().as_default(), tf.Session() as session:
        x, value = _input(tf, 3)
        session.run(tf.sqrt(x), {x: value})  # what is made once in a process
    make, _ = ROWS[row]
    with tf.Graph().as_default(), tf.Session() as session:
        start = time.process_time()
        fetches, feeds = make(tf, count)
        built = time.process_time()
        in_turn = (
            fetches if len(feeds) > 1 and isinstance(fetches, list) else [fetches] * len(feeds)
        )
        for fetch, feed in zip(in_turn, feeds, strict=True):
            session.run(fetch, feed)
        end = time.process_time()
    return end - start, end - built


def measured(row: str, count: int) -> tuple[float, float] | str:
    """The same in a process of its own, with nothing compiled before; or how it failed."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "THALWEG_CACHE": cache}
        command = [sys.executable, __file__, "--measure", row, str(count)]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
            )
        except subprocess.TimeoutExpired:
            return f"over {LIMIT} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["died"])[-1][:60]
    whole, run = done.stdout.split()[-2:]
    return float(whole), float(run)


def line(row: str) -> str:
    """A row of the table."""
    _, least = ROWS[row]
    cells: list[str] = []
    each: list[float] = []
    factor = FACTORS.get(row, STEP)
    for count in (least, least * factor, least * factor**2):
        found = measured(row, count)
        if isinstance(found, str):
            cells.append(f"{count:,}: {found}")
            break
        each.append(found[0] / count)
        cells.append(f"{count:,}: {found[0] / count * 1e3:.2f} ({found[1] / count * 1e3:.2f})")
    cells += [""] * (3 - len(cells))
    growth = [after / before for before, after in pairwise(each)]
    cells.append(f"{max(growth):.2f}" if growth else "")
    return f"| {row} | " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table, or one measurement of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", default=[])
    parser.add_argument("--measure", nargs=2, metavar=("ROW", "COUNT"))
    given = parser.parse_args()
    if given.measure:
        print(*measure(given.measure[0], int(given.measure[1])))
        return
    print(
        "| graph | n: ms per node (of that, the run) | 4n | 16n | growth |\n|---|---|---|---|---|"
    )
    for row in given.rows or ROWS:
        print(line(row), flush=True)


if __name__ == "__main__":
    main()
