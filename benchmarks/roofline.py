"""Where every kernel stands: `make roofline` profiles the steps and writes ROOFLINE.md.

A kernel is held to the nearer of two limits that are measured in the same process: multiply-adds in
registers, and a plain copy of as many bytes, on as many threads.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from systems import graph_net
from works import STEPS_OF_MODELS, Work, named

import thalweg as tf
from thalweg.device.cpu.peaks import arithmetic_peak, copy_peak
from thalweg.device.cpu.pool import default_threads

PAGE = Path(__file__).with_name("ROOFLINE.md")
_SECONDS = 2.0  # of profiling a step
_MIN_SHARE = 0.002  # of the time in kernels; smaller ones are one line

HEAD = """\
# Roofline

`make roofline`: every kernel of the steps in [RESULTS.md](RESULTS.md), and kernels by themselves,
next to what this machine can do at best: {flops:.0f} GFLOP/s of float32 multiply-adds in registers
and {bytes:.1f} GB/s of copies from memory to memory, on {threads} threads, measured in the same
process. *Of peak* is the nearer limit: arithmetic, or a copy of as many bytes as the kernel reads
and writes (what fits a cache is held to a copy there). Large 3x3 and 5x5 convolutions are computed
with fewer products than are counted here (Winograd's algorithm), so theirs may be above the
peak. Times are the best of the runs that fit two seconds.
"""

FITTING = """\
## Products whose operands fit a cache

The operands stay in the second cache from run to run.
"""

STREAMING = """\
## Streams

Arrays of 16 MiB and more, which come from memory and go there.
"""

ALL = """\
## The steps

Kernels of the same ops and sizes are one line, with their number. *Share* is of the time in
kernels; those below {least:.1%} of it are taken together, with the mean of their peaks. Small ones
are far from either limit: they end before the machine is at speed, and count by their share.
"""


# Kernels by themselves


def variable(*shape: int, dtype: Any = np.float32) -> Any:
    """A variable of noise."""
    values = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    return tf.Variable(values)


def product(m: int, n: int, k: int, **flips: bool) -> Callable[[], Any]:
    """A product of two matrices, either transposed."""

    def make() -> Any:
        a = variable(*((k, m) if flips.get("transpose_a") else (m, k)))
        b = variable(*((n, k) if flips.get("transpose_b") else (k, n)))
        return tf.matmul(a, b, **flips)

    return make


def convolution(
    side: int, depth: int, filters: int, size: int, batch: int = 1
) -> Callable[[], Any]:
    """A convolution of stride 1."""
    return lambda: tf.nn.conv2d(
        variable(batch, side, side, depth), variable(size, size, depth, filters), [1] * 4, "SAME"
    )


FITS: dict[str, Callable[[], Any]] = {
    "128×128×128": product(128, 128, 128),
    "256×256×256": product(256, 256, 256),
    "384×384×384": product(384, 384, 384),
    "256×512×128": product(256, 512, 128),
    "96×1024×96": product(96, 1024, 96),
    "192×192×768": product(192, 192, 768),
    "256×256×256, first transposed": product(256, 256, 256, transpose_a=True),
    "256×256×256, second transposed": product(256, 256, 256, transpose_b=True),
    "12 of 128×128×64": lambda: tf.matmul(variable(12, 128, 64), variable(12, 64, 128)),
    "256×256×256 of float64": lambda: tf.matmul(
        variable(256, 256, dtype=np.float64), variable(256, 256, dtype=np.float64)
    ),
    "convolution 1x1, 28×28×128 to 128": convolution(28, 128, 128, 1),
    "convolution 3x3, 14×14×128 to 128": convolution(14, 128, 128, 3),
    "convolution 7x7, 28×28×16 to 64": convolution(28, 16, 64, 7),
}


def updated(change: Callable[[Any], Any]) -> Callable[[], Any]:
    """A variable of 16 MiB becomes what is made of another."""
    return lambda: variable(4096, 1024).assign(change(variable(4096, 1024))).op


def adam() -> Any:
    """An optimizer's update."""
    weights, slopes = variable(4096, 1024), variable(4096, 1024)
    return tf.train.AdamOptimizer(1e-3).apply_gradients([(slopes, weights)])


STREAMS: dict[str, Callable[[], Any]] = {
    "x ← y": updated(lambda y: y + 0.0),
    "x ← relu(2y + 1)": updated(lambda y: tf.nn.relu(2.0 * y + 1.0)),
    "x ← x + y": lambda: variable(4096, 1024).assign_add(variable(4096, 1024)).op,
    "x ← tanh(y)": updated(tf.tanh),
    "x ← y + a row": updated(lambda y: tf.nn.bias_add(y, variable(1024))),
    "sums of rows": lambda: tf.reduce_sum(variable(4096, 1024), 1),
    "sums of columns": lambda: tf.reduce_sum(variable(4096, 1024), 0),
    "softmax of rows": updated(tf.nn.softmax),
    "transposed": lambda: variable(1024, 4096).assign(tf.transpose(variable(4096, 1024))).op,
    "to bfloat16": lambda: tf.cast(variable(4096, 1024), tf.bfloat16),
    "Adam": adam,
}


def profiled(make: Callable[[], Any]) -> Any:
    """The profile of a step that does one thing."""
    with tf.Graph().as_default(), tf.Session() as session:
        fetches = make()
        session.run(tf.global_variables_initializer())
        return session.plan(fetches).profile(60)


def fitting_rows() -> Iterator[list[str]]:
    """How near products come to the arithmetic limit."""
    for title, make in FITS.items():
        row = max(profiled(make).rows, key=lambda row: row.flops)
        is_double = title.endswith("float64")
        limit = arithmetic_peak(default_threads(), np.float64 if is_double else np.float32)
        rate = row.flops_per_second
        yield [title, f"{row.best * 1e6:.0f} µs", f"{rate / 1e9:.0f}", f"{rate / limit:.0%}"]


def streaming_rows() -> Iterator[list[str]]:
    """How near streams come to a copy."""
    for title, make in STREAMS.items():
        row = max(profiled(make).rows, key=lambda row: row.bytes)
        rate = row.bytes_per_second / 1e9
        yield [title, f"{row.best * 1e3:.2f} ms", f"{rate:.1f}", f"{row.peak:.0%} {row.bound}"]


# Steps


def step_lines(work: Work) -> list[str]:
    """The table of a step's kernels."""
    with tf.Graph().as_default():
        step = graph_net.session_step(tf, work, tf.ConfigProto())
        step.call(0)
        start = time.perf_counter()
        step.call(1)
        seconds = time.perf_counter() - start
        assert step.plan
        runs = int(min(max(_SECONDS / seconds, 5), 200))
        profile = step.plan().profile(runs)
    step.session.close()
    return [f"### {work.title}", "", *kernel_lines(profile.rows, 0.8, _MIN_SHARE)]


def kernel_lines(rows: Sequence[Any], near: float, least: float) -> list[str]:
    """How much of the time is spent near a limit, and a table of the kernels; those of less than a
    share of the time are one line."""
    total = sum(row.best for row in rows)
    fast = sum(row.best for row in rows if row.peak >= near)
    groups = grouped(rows)
    large = [g for g in groups if sum(row.best for row in g) >= least * total]
    small = [row for g in groups if g not in large for row in g]
    cells = [group_cells(g, total) for g in large]
    if small:
        cells.append([f"{len(small)} smaller ones", "", *figures(small, total), "", ""])
    return [
        f"{total * 1e3:.2f} ms in {len(rows)} kernels, {fast / total:.0%} of that time in kernels "
        f"at {near:.0%} of a limit or more; {mean_peak(rows):.0%} in the mean.",
        "",
        *table(
            ("kernel", "iterations", "number", "time", "share", "of peak", "GFLOP/s", "GB/s"), cells
        ),
    ]


def grouped(rows: Sequence[Any]) -> list[list[Any]]:
    """Kernels of the same ops and sizes, those that take longest first."""
    found: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for row in rows:
        found[row.name, row.iterations].append(row)
    return sorted(found.values(), key=lambda group: -sum(row.best for row in group))


def group_cells(group: Sequence[Any], total: float) -> list[str]:
    """A line of a step's table."""
    seconds = sum(row.best for row in group) or 1e-12
    rates = [
        sum(getattr(row, what) for row in group) / seconds / 1e9 for what in ("flops", "bytes")
    ]
    first = group[0]
    return [
        first.name,
        first.iterations,
        *figures(group, total, first.bound),
        *map("{:.1f}".format, rates),
    ]


def figures(rows: Sequence[Any], total: float, bound: str = "") -> list[str]:
    """Number, time, share and how near to a limit."""
    seconds = sum(row.best for row in rows)
    time_taken = f"{seconds * 1e3:.3f} ms"
    return [
        str(len(rows)),
        time_taken,
        f"{seconds / total:.1%}",
        f"{mean_peak(rows):.0%} {bound}".strip(),
    ]


def mean_peak(rows: Sequence[Any]) -> float:
    """How near to their limits, over their time."""
    seconds = sum(row.best for row in rows)
    return sum(row.peak * row.best for row in rows) / seconds if seconds else 0.0


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def main() -> None:
    """Profile everything and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="works, separated by commas; prints instead of writing")
    only = parser.parse_args().only
    works = [named(name) for name in only.split(",")] if only else STEPS_OF_MODELS
    lines: list[str] = []
    if not only:
        threads = default_threads()
        peaks = {
            "flops": arithmetic_peak(threads) / 1e9,
            "bytes": copy_peak(1 << 26, threads) / 1e9,
        }
        head = ("product", "time", "GFLOP/s", "of peak")
        lines += [
            HEAD.format(threads=threads, **peaks),
            FITTING,
            *table(head, list(fitting_rows())),
        ]
        head = ("stream", "time", "GB/s", "of peak")
        lines += [
            "",
            STREAMING,
            *table(head, list(streaming_rows())),
            "",
            ALL.format(least=_MIN_SHARE),
        ]
    for work in works:
        print(work.title, flush=True)
        lines += [*step_lines(work), ""]
    text = "\n".join(lines)
    if only:
        print(text)
    else:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
