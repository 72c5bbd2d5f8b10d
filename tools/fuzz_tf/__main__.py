"""`make fuzz-tf`: draw cases, run them on both sides, report.

Exit status 0 when every disagreement is a known one.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import time
from collections.abc import Iterator

import numpy as np

from tools.fuzz_tf import compare, specs
from tools.fuzz_tf.case import Case, program
from tools.fuzz_tf.draw import SPECS, draw_case
from tools.fuzz_tf.known import TABLE
from tools.fuzz_tf.process import Pair, Process
from tools.fuzz_tf.report import Report


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="fuzz_tf", description=__doc__)
    parser.add_argument(
        "--peer", default=".bench-venv/bin/python", help="a Python that has TensorFlow"
    )
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--only", default="", help="a regular expression that functions must match")
    parser.add_argument("--seconds", type=float, default=20, help="a case may take")
    parser.add_argument("--case", type=int, help="run this case alone and show all of it")
    parser.add_argument("--no-programs", action="store_true", help="print groups without programs")
    parser.add_argument(
        "--functions", action="store_true", help="list the functions covered and stop"
    )
    return parser.parse_args(given)


def pair(options: argparse.Namespace) -> Pair:
    """The two workers."""
    module = ["-m", "tools.fuzz_tf.worker"]
    ours = Process([sys.executable, *module, "thalweg"], options.seconds)
    theirs = Process([options.peer, *module, "tensorflow"], options.seconds)
    return Pair(ours, theirs)


def usable(workers: Pair, only: str) -> dict[str, list[str]]:
    """Function -> the names by which both libraries have it."""
    wanted = {name for name, spec in SPECS.items() if re.search(only, name)}
    ours = workers.ours.ask({"kind": "names", "names": sorted(_public(wanted))})
    groups = {name: group for group in ours["aliases"] for name in group}
    every = sorted({alias for name in wanted for alias in groups.get(name, [name])})
    theirs = set(workers.theirs.ask({"kind": "names", "names": every})["names"])
    result: dict[str, list[str]] = {}
    for name in sorted(wanted):
        if not _public([name]):
            result[name] = [name]
        elif name in ours["names"] and name in theirs:
            result[name] = [n for n in groups.get(name, [name]) if n in theirs]
    return result


def _public(names: set[str] | list[str]) -> list[str]:
    """Without the specs of programs, which have a colon in their names and are no function."""
    return [name for name in names if ":" not in name]


def cases(options: argparse.Namespace, functions: dict[str, list[str]]) -> Iterator[Case]:
    """The cases of a run, each from its own number alone."""
    names = sorted(functions)
    numbers = range(options.first, options.first + options.cases)
    for number in numbers if options.case is None else [options.case]:
        rng = np.random.default_rng([options.seed, number])
        name = names[int(rng.integers(len(names)))]
        aliases = functions[name]
        shown = aliases[int(rng.integers(len(aliases)))] if rng.random() < 0.25 else name
        yield draw_case(SPECS[name], shown, number, rng)


def main() -> int:
    """Run."""
    options = arguments()
    specs.load()
    workers = pair(options)
    try:
        return run(options, workers)
    finally:
        workers.stop()


def run(options: argparse.Namespace, workers: Pair) -> int:
    """All cases through both workers, and the report."""
    functions = usable(workers, options.only)
    if options.functions:
        print("\n".join(sorted(functions)))
        return 0
    report = Report(TABLE, lambda line: print(line, file=sys.stderr, flush=True))
    with contextlib.suppress(KeyboardInterrupt):  # the report so far
        run_cases(options, functions, workers, report)
    print("\n".join(report.lines(options.seed, not options.no_programs)))
    return 1 if report.groups else 0


def run_cases(
    options: argparse.Namespace, functions: dict[str, list[str]], workers: Pair, report: Report
) -> None:
    """Every case, with a line about the pace now and then."""
    start = time.monotonic()
    for case in cases(options, functions):
        one(case, workers, report, options.case is not None)
        if report.cases % 500 == 0:
            rate = report.cases / (time.monotonic() - start)
            print(f"{report.cases} cases, {rate:.1f} per second", file=sys.stderr, flush=True)


def one(case: Case, workers: Pair, report: Report, verbose: bool) -> None:
    """One case through both workers."""
    ours, theirs = workers.run(case.message())
    if verbose:
        print(
            program(case, bool(case.gradient)),
            f"thalweg: {ours}",
            f"tensorflow: {theirs}",
            sep="\n",
        )
    if compare.unsupported(theirs):
        report.unsupported += 1
        report.add(case, [])
        return
    found = compare.disagreements(case, ours, theirs)
    report.both_raised += not found and theirs["kind"] == "error"
    report.add(case, found)


if __name__ == "__main__":
    sys.exit(main())
