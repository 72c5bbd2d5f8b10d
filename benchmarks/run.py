"""The benchmarks: works on all systems, then graphs; written to benchmarks/RESULTS.md.

`--only`, `--systems`, `--rounds`, `--batch` and `--quick` are for development: a run with any of
them prints its results and leaves the file alone. `--json FILE` keeps raw figures, and
`--join FILE,FILE` writes the results of several such runs, which the file then says.
`--profile WORK` prints Thalweg's plan of a step. `--against CHECKOUT` compares two versions,
`--ablate` the optimiser with and without each of its passes.
What is known to limit a ratio that falls short of its bar stands in limits.toml.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import report
from ablation import ablate
from against import compare
from measure import LOG, Measurement, Settings
from remote import PEERS_PYTHON, Remote, WorkerError
from works import ALL_SYSTEMS, Work, choose

RESULTS = Path(__file__).with_name("RESULTS.md")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="names of works, comma-separated")
    parser.add_argument("--systems", help=f"some of {','.join(ALL_SYSTEMS)}")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--batch", type=int, help="another batch size, to check results quickly")
    parser.add_argument("--quick", action="store_true", help="one first call, short rounds")
    parser.add_argument("--cpus", help="CPU numbers, comma-separated (default: the first two)")
    parser.add_argument("--json", type=Path, help="write the raw figures here")
    parser.add_argument("--join", help="raw figures to write the results from, comma-separated")
    parser.add_argument("--against", type=Path, help="a checkout to compare this one with")
    parser.add_argument(
        "--processes", type=int, default=1, help="of each side, with --against and --ablate"
    )
    parser.add_argument(
        "--ablate", action="store_true", help="each pass of the optimiser off in turn"
    )
    parser.add_argument("--profile", metavar="WORK", help="print Thalweg's plan of a work's step")
    return parser.parse_args()


def names(text: str | None) -> list[str]:
    return text.split(",") if text else []


def settings(given: argparse.Namespace) -> Settings:
    """How to measure, from the command line."""
    cpus = [int(n) for n in names(given.cpus)] or sorted(os.sched_getaffinity(0))[:2]
    base = Settings(cpus, batch=given.batch, processes=given.processes)
    if given.quick:
        base = replace(base, rounds=2, round_seconds=0.1, first_calls=1, warm_calls=1)
    return replace(base, rounds=given.rounds) if given.rounds else base


def measure_all(
    works: list[Work], systems: list[str], how: Settings, raw: Path | None
) -> list[tuple[Work, dict[str, Any]]]:
    """Every work in turn, telling how long it took; raw figures are written as they come."""
    results: list[tuple[Work, dict[str, Any]]] = []
    for work in works:
        start = time.perf_counter()
        wanted = [s for s in work.systems if not systems or s in systems]
        figures = Measurement(work, wanted, how).run()
        results.append((work, figures))
        print(report.line(work, figures, time.perf_counter() - start), flush=True)
        if raw is not None:
            raw.write_text(json.dumps({w.name: f for w, f in results}, indent=1))
    return results


def header(results: list[tuple[Work, dict[str, Any]]]) -> str:
    """What ran where."""
    versions = {f["version"]: None for _, figures in results for f in figures.values()}
    cpu = next(
        line.split(":")[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    )
    return (
        f"`make bench`: {', '.join(v for v in versions if v)}; Python {platform.python_version()}, "
        f"NumPy {np.__version__}; {cpu}, {os.cpu_count()} cores. Compare only within one run.\n"
    )


def document(results: list[tuple[Work, dict[str, Any]]], how: Settings, whole: bool) -> str:
    """The results as Markdown."""
    parts = ["# Results\n", header(results), report.steps(results, how)]
    if whole:
        parts += ["## Graphs\n", f"{graphs.__doc__.strip()}\n", graphs.table() + "\n"]
    return "\n".join(parts)


def join(files: list[str], how: Settings) -> None:
    """Write the results from the raw figures of several runs."""
    raw: dict[str, Any] = {}
    for file in files:
        raw |= json.loads(Path(file).read_text())
    results = [(work, raw[work.name]) for work in choose([]) if work.name in raw]
    left_out = [work.title for work in choose([]) if work.name not in raw]
    note = f"Put together from {len(files)} runs of some works each, systems interleaved in each."
    if left_out:
        note += f" Not run: {'; '.join(left_out)}."
    text = document(results, how, whole=True)
    RESULTS.write_text(text.replace("# Results\n", f"# Results\n\n{note}\n", 1))


def profile(name: str, how: Settings) -> None:
    """Print plan and profile of a Thalweg step."""
    with LOG.open("a") as log, tempfile.TemporaryDirectory() as caches:
        remote = Remote("thalweg", name, how.cpus, Path(caches), how.batch, log)
        try:
            remote.ask("make")
            print(remote.ask("plan")["plan"])
        except WorkerError as error:
            raise SystemExit(str(error)) from None
        finally:
            remote.close()


def main() -> None:
    """Run what was asked for."""
    given = arguments()
    how = settings(given)
    LOG.write_text("")
    if given.profile:
        profile(given.profile, how)
        return
    if given.join:
        join(names(given.join), how)
        return
    if given.ablate:
        ablate(choose(names(given.only)), how)
        return
    if given.against:
        compare(choose(names(given.only)), given.against, how)
        return
    whole = not (given.only or given.systems or given.rounds or given.batch or given.quick)
    if not PEERS_PYTHON.exists() and given.systems != "thalweg":
        raise SystemExit("the peers' environment is missing: make bench-peers")
    results = measure_all(choose(names(given.only)), names(given.systems), how, given.json)
    text = document(results, how, whole)
    if whole:
        RESULTS.write_text(text)
    print(text)
    if not report.sound(results):
        raise SystemExit("a system failed or its results differ: see the table")


if __name__ == "__main__":
    main()
