"""Training steps on a GPU: Thalweg's, and those of PyTorch (compiled) and JAX in the same run.

    python benchmarks/cuda/networks.py [--only alexnet gpt2 ...] [--peers torch jax] [--limit 60]
    python benchmarks/cuda/networks.py --only lstm --kernels 12        # what takes longest
    THALWEG_CUDA=emulated python benchmarks/cuda/networks.py --tiny    # that every row runs

Each row is measured in a process of its own with empty caches on disk, its systems in turn. `built`
is the time until a step can be called: the graph or module, the first use of the GPU, and weights
on it, which NumPy made before. `first` is that of the first step, which compiles. With `--warm`
another process then finds what the first one left on disk. With `--prepare 3`, three rows compile
at once, are then measured one after the other with what that left on disk, and the next three
follow: peers that compile for a minute a row keep a GPU waiting less. The ratio is the best peer's
time by ours, beside the bar; memory is the most that was in use at once.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), *(str(Path(__file__).parents[n]) for n in (1, 2))]

from rows import NAMES, NULL, NULL_BAR, ROWS, row_of  # noqa: E402 - found on the path above
from sides.side import Side  # noqa: E402

OURS = "thalweg"
CALLS = ("built", "first")
CACHES = ("THALWEG_CACHE", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")

# The process of a row


def makers(given: argparse.Namespace) -> dict[str, Callable[[str, bool], Side]]:
    """How each system, in each of its modes, makes the step of a row."""
    result: dict[str, Callable[[str, bool], Side]] = {}
    if given.ours:
        from sides import on_thalweg

        result[OURS] = on_thalweg.make
    if "torch" in given.peers:
        from sides import on_torch

        for mode in given.modes:
            result[f"torch {mode}"] = lambda name, tiny, mode=mode: on_torch.make(name, tiny, mode)
    if "jax" in given.peers:
        from sides import on_jax

        result["jax"] = on_jax.make
    return result


def measure(name: str, given: argparse.Namespace) -> None:
    """Measure a row and print what is found, a line of JSON each, as soon as it is."""
    sides: dict[str, Side] = {}
    if name != NULL:
        row = row_of(name, given.tiny)
        _ = row.weights, row.data  # nobody's time: random numbers that all systems begin with
    for system, make in makers(given).items():
        try:
            start = time.perf_counter()
            side = make(name, given.tiny)
            built = time.perf_counter()
            loss = side.step()
            tell(system, built=built - start, first=time.perf_counter() - built, loss=loss)
            side.forget_peak()
            sides[system] = side
        except Exception as error:  # one that fails leaves the others to be measured
            tell(system, error=f"{type(error).__name__}: {str(error)[:300]}")
    if given.first:
        return
    for side in sides.values():
        times(side, given.steps // 4)
    for _ in range(given.rounds):
        for system, side in sides.items():
            tell(system, time=median(times(side, given.steps)), peak=side.peak_bytes())
    plan = sides[OURS].plan if given.kernels and OURS in sides else None
    if plan is not None:
        print("\n".join(slowest(plan(), given.kernels)), flush=True)


def times(side: Side, count: int) -> list[float]:
    """The seconds of some steps."""
    result: list[float] = []
    for _ in range(count):
        start = time.perf_counter()
        side.step()
        result.append(time.perf_counter() - start)
    return result


def tell(system: str, **found: Any) -> None:
    """Say to the process that prints the table what was found."""
    print(json.dumps({"system": system, **found}), flush=True)


def slowest(plan: Any, count: int) -> list[str]:
    """The kernels of a step that take longest, run one after the other; those of one form, as the
    layers of a network have them, together."""
    profile = plan.profile(5)
    total = sum(row.median for row in profile.rows)
    forms: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for row in profile.rows:
        names = [re.sub(r"_\d+$", "", op.split("/")[-1]) for op in row.ops]
        forms[row.iterations, "+".join(dict.fromkeys(names))].append(row)
    lines = [f"    {len(profile.rows)} kernels, {1e6 * total:.0f} us one after the other"]
    ordered = sorted(forms.items(), key=lambda form: -sum(row.median for row in form[1]))
    for (iterations, names), alike in ordered[:count]:
        first, each = alike[0], median(row.median for row in alike)
        rates = (
            f"{first.flops_per_second / 1e12:6.1f} TFLOP/s {first.bytes_per_second / 1e9:6.0f} GB/s"
        )
        times = f"{1e6 * each * len(alike):8.1f} us = {len(alike):3} × {1e6 * each:7.1f}"
        lines.append(f"    {times} {rates} {iterations:24s} {names[:60]}")
    return lines


# The table


def run_row(name: str, folder: str, given: argparse.Namespace, *more: str) -> tuple[Any, list[str]]:
    """Have a process measure a row, within the limit; what it found by system, and other lines."""
    environment = {**os.environ, **{cache: f"{folder}/{cache}" for cache in CACHES}}
    environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    command = [sys.executable, __file__, "--measure", name, *sys.argv[1:], *more]
    ran = subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        text, errors = ran.communicate(timeout=given.limit)
    except subprocess.TimeoutExpired:
        ran.kill()
        text, errors = ran.communicate()
        text += f"\n    stopped after {given.limit} s"
    found: dict[str, dict[str, Any]] = {}
    lines: list[str] = []
    for line in filter(None, text.splitlines()):
        if line.startswith("{"):
            news = json.loads(line)
            merge(found.setdefault(news.pop("system"), {}), news)
        else:
            lines.append(line)
    if not found:
        lines += errors.splitlines()[-3:]
    return found, lines


def merge(known: dict[str, Any], news: dict[str, Any]) -> None:
    """Add what a process told; of times the best."""
    if "time" in known and "time" in news:
        news["time"] = min(known["time"], news["time"])
    known.update(news)


def report(name: str, given: argparse.Namespace) -> list[str]:
    """The lines of a row."""
    with tempfile.TemporaryDirectory() as folder:
        found, others = run_row(name, folder, given)
        warm, _ = run_row(name, folder, given, "--first") if given.warm else ({}, [])
    return lines_of(name, found, warm, others)


def report_prepared(given: argparse.Namespace) -> None:
    """Print all rows, some at a time: first calls of these at once, then the steps of one after the
    other."""
    for start in range(0, len(given.only), given.prepare):
        report_together(given.only[start : start + given.prepare], given)


def report_together(names: list[str], given: argparse.Namespace) -> None:
    """Print rows that compile at once."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(names)) as threads:
        first = {
            name: threads.submit(run_row, name, f"{folder}/{name}", given, "--first")
            for name in names
        }
        prepared = {name: ran.result() for name, ran in first.items()}
        for name, (cold, others) in prepared.items():
            found, more = run_row(name, f"{folder}/{name}", given)
            warm = {system: {k: one[k] for k in CALLS if k in one} for system, one in found.items()}
            for system, one in cold.items():
                known = found.setdefault(system, dict(one))
                known.update({k: one[k] for k in CALLS if k in one})
            print("\n".join(lines_of(name, found, warm, others + more)), flush=True)


def lines_of(name: str, found: Any, warm: Any, others: list[str]) -> list[str]:
    """A row, from what its processes found by system, and what else they printed."""
    lines = [_shown(system, one, warm.get(system, {})) for system, one in found.items()]
    lines += others
    timed = {system: one["time"] for system, one in found.items() if "time" in one}
    best = min((t for system, t in timed.items() if system != OURS), default=None)
    title = name
    if OURS in timed and best is not None:
        bar = NULL_BAR if name == NULL else ROWS[name].bar
        title += f": ratio {best / timed[OURS]:.2f} (bar {bar})"
    return [title, *lines]


def _shown(system: str, found: dict[str, Any], warm: dict[str, Any]) -> str:
    text = f"  {system:32s}"
    if "error" in found:
        return text + f"FAILED {found['error']}"
    if "time" in found:
        text += f"{1e3 * found['time']:9.3f} ms  "
    for call in CALLS:
        text += f"{call} {found[call]:6.2f} s "
        text += f"(warm {warm[call]:5.2f}) " if call in warm else ""
    text += f" loss {found['loss']:8.4f}"
    return text + (f"  memory {found['peak'] / 2**30:6.2f} GiB" if found.get("peak") else "")


def main() -> None:
    """Measure what is asked for."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", nargs="*", default=list(NAMES), choices=NAMES, metavar="ROW")
    options.add_argument("--peers", nargs="*", default=[], choices=("torch", "jax"))
    options.add_argument("--no-ours", dest="ours", action="store_false", help="the peers alone")
    options.add_argument(
        "--modes", nargs="*", default=["max-autotune-no-cudagraphs"], help="of torch.compile"
    )
    options.add_argument("--kernels", type=int, default=0, help="list the slowest")
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--limit", type=float, default=300.0, help="seconds of a row")
    options.add_argument("--tiny", action="store_true", help="sizes for an emulated GPU")
    options.add_argument("--warm", action="store_true", help="first calls with warm caches, too")
    options.add_argument("--first", action="store_true", help="first calls alone")
    options.add_argument("--prepare", type=int, default=0, help="rows that compile at once, before")
    options.add_argument("--measure", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.measure is not None:
        measure(given.measure, given)
        return
    if given.prepare:
        report_prepared(given)
        return
    for name in given.only:
        print("\n".join(report(name, given)), flush=True)


if __name__ == "__main__":
    main()
