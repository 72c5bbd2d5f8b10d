"""Old against new: Thalweg of another checkout and of this one, in turn, on the same works.

`make bench BENCH="--against ../other-checkout"` prints, for each work, old / new: above 1, this
checkout is faster, starts sooner or takes less memory. Both run under this environment's Python,
each from its own folder, with the rules of `make bench`. `best` compares the best rounds, `median`
is the median of the paired rounds' ratios: the two systems take turns, so a disturbance hits both.
`warm` is the first step of a process that finds the disk cache filled, `process` all from the start
of that process to the end of this step: what one checkout imports early, the other may import late.
Where a process's pages happen to lie can make all its rounds slow: `--processes 3` measures every
work in so many pairs of processes.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from measure import Measurement, Settings
from works import Work

COLUMNS = ("best", "median", "first", "warm", "process", "peak")


def compare(works: list[Work], checkout: Path, how: Settings) -> None:
    """Measure the works and print a table, row by row."""
    print("| work | " + " | ".join(f"{name}, old / new" for name in COLUMNS) + " |")
    print("|---|" + "---|" * len(COLUMNS))
    rows: list[dict[str, float]] = []
    for work in works:
        systems = [work.own, f"{work.own}@{checkout.resolve()}"]
        runs = [Measurement(work, systems, how).run() for _ in range(how.processes)]
        new, old = (merged([run[system] for run in runs]) for system in systems)
        rows.append(ratios(old, new))
        problem = new["error"] or old["error"]
        cells = [f"{rows[-1][name]:.3f}" if name in rows[-1] else "" for name in COLUMNS]
        print(
            f"| {work.name} | {' | '.join(cells)} |{f' {problem}' if problem else ''}", flush=True
        )
    means = [[row[name] for row in rows if name in row] for name in COLUMNS]
    cells = [f"{statistics.geometric_mean(mean):.3f}" if mean else "" for mean in means]
    print(f"| geometric mean | {' | '.join(cells)} |")


def merged(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of one system over several processes."""
    least = {
        name: min((run[name] for run in runs if run[name]), default=None)
        for name in COLUMNS
        if name != "median"
    }
    problem = next((run["error"] for run in runs if run["error"]), "")
    return least | {"seconds": [s for run in runs for s in run["seconds"]], "error": problem}


def ratios(old: dict[str, Any], new: dict[str, Any]) -> dict[str, float]:
    """Old / new of all that was measured of both."""
    result = {
        name: old[name] / new[name]
        for name in COLUMNS
        if old.get(name) and new.get(name) and old[name] > 0 and new[name] > 0
    }
    if old["seconds"] and new["seconds"]:
        pairs = zip(old["seconds"], new["seconds"], strict=False)
        result["median"] = statistics.median(a / b for a, b in pairs)
    return result
