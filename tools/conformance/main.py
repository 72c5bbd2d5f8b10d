"""The command line of the conformance run."""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

from conformance import report, suite


def main() -> int:
    """Run the chosen files, print the report, write the reasons."""
    options = parse_options()
    files = suite.find(options.directory, options.list, options.only, options.skip)
    limits = suite.Limits(options.timeout, options.method_timeout, options.jobs)
    results = []
    for result in suite.run(options.directory, files, limits):
        print(report.progress(result), flush=True)
        results.append(result)
    results.sort(key=lambda result: result.file.path)
    print(report.text(results))
    if options.markdown:
        options.markdown.write_text(report.markdown(results))
    if options.reasons:
        write_lines(options.reasons, (reason for r in results for reason in report.reasons(r)))
    return 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("directory", type=Path, help="folder that holds tensorflow/python/kernel_tests and so on")
    add("--list", type=Path, help="CSV of path,test_methods; without it every *_test.py is run")
    add("--only", action="append", default=[], help="run files whose path contains this")
    add("--skip", action="append", default=[], help="leave out files whose path contains this")
    add("--timeout", type=float, default=120, help="seconds a file may take")
    add("--method-timeout", type=float, default=60, help="seconds a test method may take")
    add("--jobs", type=int, default=2, help="files that run at the same time")
    add("--markdown", type=Path, help="write the report to this file as Markdown")
    add("--reasons", type=Path, help="write one JSON line per failure to this file")
    return parser.parse_args()


def write_lines(file: Path, rows: Iterable[dict[str, str]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
