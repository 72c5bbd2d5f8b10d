"""The benchmarks of clusters, next to TensorFlow's own servers; written to benchmarks/CLUSTER.md.

`--only`, `--rounds` and `--quick` are for development: a run with any of them prints its results
and leaves the file alone. `--only` takes beginnings of names: null, dense, sparse, mlp, word2vec,
start, raw.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from pathlib import Path

import raw
import report
from driver import LOG, PEERS_PYTHON
from measure import Figures, Measurement, Settings
from rows import Row, choose

RESULTS = Path(__file__).parents[1] / "CLUSTER.md"
RAW_REPEATS = 40


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="beginnings of the names of rows, comma-separated")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true", help="short rounds")
    return parser.parse_args()


def measured(names: list[str], settings: Settings) -> list[tuple[Row, dict[str, Figures]]]:
    """Every row in turn, telling how long it took."""
    result = list[tuple[Row, dict[str, Figures]]]()
    start = time.perf_counter()
    rows = [] if names == ["raw"] else choose(names)
    for row, figures in Measurement(rows, settings).run():
        result.append((row, figures))
        spent = time.perf_counter() - start
        print(f"{report.line(row, figures)} ({spent:.0f} s)", flush=True)
        start = time.perf_counter()
    return result


def header() -> str:
    """Where it ran."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return (
        f"`make bench-cluster`: Python {platform.python_version()} ({platform.python_compiler()}); "
        f"{cpu}, {os.cpu_count()} cores. Compare only within one run.\n"
    )


def main() -> None:
    """Run what was asked for."""
    given = arguments()
    if not PEERS_PYTHON.exists():
        raise SystemExit("the peers' environment is missing: make bench-peers")
    LOG.write_text("")
    names = given.only.split(",") if given.only else []
    settings = Settings(2, 0.3) if given.quick else Settings()
    if given.rounds:
        settings = Settings(given.rounds, settings.round_seconds)
    found = measured(names, settings)
    repeat = 5 if given.quick else RAW_REPEATS
    pairs = list(raw.comparisons(repeat)) if not names or "raw" in names else []
    text = report.document(header(), found, pairs, settings)
    if not (given.only or given.rounds or given.quick):
        RESULTS.write_text(text)
    print(text)
    failed = [f"{row.title}: {f.error}" for row, each in found for f in each.values() if f.error]
    if failed:
        raise SystemExit("\n".join(failed))


if __name__ == "__main__":
    main()
