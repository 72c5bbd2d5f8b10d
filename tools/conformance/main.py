"""The command line of the conformance run."""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

from conformance import report, suite

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_LIST = ROOT.parent / "shared" / "api" / "tf_tests_open.csv"


def main() -> int:
    """Run the chosen files, print the report, write the reasons."""
    options = parse_options()
    listing = None if options.all else options.list
    files = suite.find(options.directory, listing, options.only, options.skip)
    limits = suite.Limits(options.timeout, options.method_timeout, options.jobs)
    results = []
    for result in suite.run(options.directory, files, limits):
        print(report.progress(result), flush=True)
        results.append(result)
    results.sort(key=lambda result: result.file.path)
    print(report.markdown(results) if options.markdown else report.text(results))
    if options.reasons:
        write_lines(options.reasons, (reason for r in results for reason in report.reasons(r)))
    return 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("directory", type=Path, help="folder that holds tensorflow/python/kernel_tests and so on")
    add("--list", type=Path, default=default_list(), help="CSV of path,test_methods")
    add("--all", action="store_true", help="run every *_test.py, whatever the list says")
    add("--only", action="append", default=[], help="run files whose path contains this")
    add("--skip", action="append", default=[], help="leave out files whose path contains this")
    add("--timeout", type=float, default=120, help="seconds a file may take")
    add("--method-timeout", type=float, default=60, help="seconds a test method may take")
    add("--jobs", type=int, default=2, help="files that run at the same time")
    add("--markdown", action="store_true", help="print the report as Markdown")
    add("--reasons", type=Path, help="write one JSON line per failure to this file")
    return parser.parse_args()


def default_list() -> Path | None:
    return DEFAULT_LIST if DEFAULT_LIST.exists() else None


def write_lines(file: Path, rows: Iterable[dict[str, str]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
