"""Runs the test files of each library in processes of their own and counts what passed."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as Xml
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.library_tests.table import BROKEN, GROUNDS, LIBRARIES, Library

ROOT = Path(__file__).resolve().parents[2]
_HEAD = """# Conformance: libraries

The own tests of libraries that were written for TensorFlow 1, unmodified, with Thalweg under the
name `tensorflow`: `make conformance-libraries LIB_TESTS=<their sources>` (`tools/library_tests`).
Beside it TensorFlow 2.21, its `compat.v1` under that name, on the same files with the same patches
([old libraries](migrate/tf1.md)). What Python, NumPy, h5py or pytest of today break is left out of
both, by name and reason. GPT-2 has no tests of its own: four programs of ours train and sample it.
A file that cannot be loaded counts as one test that failed.

"""
SMOKE = {"gpt-2": Path(__file__).with_name("smoke_gpt2.py")}


@dataclass
class Result:
    """What became of the tests of a library."""

    library: Library
    passed: int = 0
    skipped: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def run(self) -> int:
        """How many tests passed or failed."""
        return self.passed + self.failures.total()

    def add(self, other: Result) -> None:
        """Count the tests of another file too."""
        self.passed += other.passed
        self.skipped += other.skipped
        self.left_out += other.left_out
        self.failures += other.failures

    def line(self, peers: dict[str, Result]) -> str:
        """The row of the table."""
        cells = (self.library.folder, self.passed, self.run, self.share)
        peer = peers.get(self.library.folder)
        counted = ("not run", "") if peer is None else (f"{peer.passed} of {peer.run}", peer.share)
        beside = counted if peers else ()
        row = (*cells, *beside, self.skipped, self.left_out.total())
        return "| " + " | ".join(map(str, row)) + " |"

    @property
    def share(self) -> str:
        """How much of what ran passed."""
        return f"{self.passed / max(self.run, 1):.1%}"

    def counts(self) -> dict[str, Any]:
        """All but the library, to be written."""
        return {key: value for key, value in vars(self).items() if key != "library"}


#: Results by the path of their file below the folder of the library.
Files = dict[str, Result]


def main() -> int:
    """Run the tool."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", action="append", default=[], help="a library; may be repeated")
    parser.add_argument("--file", action="append", default=[], help="a part of a file's path")
    parser.add_argument("--seconds", type=int, default=300, help="for a test")
    parser.add_argument("--peer", default=sys.executable, help="another Python, with TensorFlow 2")
    parser.add_argument("--results", type=Path, help="counts by file, which a run adds to")
    parser.add_argument("--missing", action="store_true", help="only files without results yet")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no file after them")
    parser.add_argument("--beside", type=Path, help="counts of the peer, for the page")
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    given.deadline = time.monotonic() + 60 * given.minutes
    known = _read(given.results)
    for library in LIBRARIES:
        if given.only and library.folder not in given.only:
            continue
        if (given.folder / library.folder).is_dir():
            run_library(library, known.setdefault(library.folder, {}), given)
            print(report({library.folder: known[library.folder]}, {}), flush=True)
    if given.markdown:
        given.markdown.write_text(_HEAD + report(known, _read(given.beside)))
    return 0


def _read(path: Path | None) -> dict[str, Files]:
    """Results of files by library."""
    if path is None or not path.exists():
        return {}
    written = json.loads(path.read_text())
    libraries = {library.folder: library for library in LIBRARIES}
    return {
        folder: {file: _result(libraries[folder], counts) for file, counts in of_files.items()}
        for folder, of_files in written.items()
    }


def _result(library: Library, counts: dict[str, Any]) -> Result:
    reasons = Counter[str](counts["left_out"]), Counter[str](counts["failures"])
    return Result(library, counts["passed"], counts["skipped"], *reasons)


def _write(path: Path, library: Library, file: str, result: Result) -> None:
    """Put the result of a file in its place; it is read anew, others may have written to it."""
    written: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    written.setdefault(library.folder, {})[file] = result.counts()
    path.write_text(json.dumps(written, indent=1, sort_keys=True))


def run_library(library: Library, known: Files, given: argparse.Namespace) -> None:
    """Run the test files of a library that are asked for."""
    for file in files(library, given.folder):
        base = given.folder / library.folder
        name = str(file.relative_to(base)) if file.is_relative_to(base) else file.name
        if given.file and not any(part in name for part in given.file):
            continue
        if (given.missing and name in known) or time.monotonic() > given.deadline:
            continue
        known[name] = result = Result(library)
        run_file(result, file, given)
        if given.results:
            _write(given.results, library, name, result)
        print(f"{name}: {result.passed} of {result.run}", file=sys.stderr, flush=True)


def total(of_files: Files) -> Result:
    """What became of all tests of a library."""
    summed = Result(next(iter(of_files.values())).library)
    for of_file in of_files.values():
        summed.add(of_file)
    return summed


def files(library: Library, folder: Path) -> Iterator[Path]:
    """The test files of a library; one without any has a program of ours."""
    smoke = SMOKE.get(library.folder)
    if smoke is not None:
        yield smoke
        return
    base = folder / library.folder
    found = {path for pattern in library.tests for path in base.glob(pattern)}
    yield from sorted(path for path in found if path.name != "conftest.py")


def run_file(result: Result, file: Path, given: argparse.Namespace) -> None:
    """Run one file and add what it did."""
    reason = _reason_to_leave_out(result.library, str(file))
    if reason:
        result.left_out[reason] += 1
        return
    with tempfile.TemporaryDirectory() as scratch:
        report_file = Path(scratch, "report.xml")
        base = (given.folder / result.library.folder).resolve()
        Path(scratch, base.name.partition("-")[0]).symlink_to(base)  # where tests look for data
        done = subprocess.run(
            _command(file, report_file, given),
            cwd=scratch,
            env=_environment(result.library, file, given) | {"TEST_SRCDIR": scratch},
            capture_output=True,
            text=True,
            check=False,
        )
        if not report_file.exists():
            result.failures[f"{_last_line(done.stdout + done.stderr)} ({file.name})"] += 1
            return
        for case in Xml.parse(report_file).iter("testcase"):
            _count(result, case)


def _command(file: Path, report_file: Path, given: argparse.Namespace) -> list[str]:
    options = ["-q", "-o", "addopts=", "-p", "no:cacheprovider", "--import-mode=importlib"]
    options += ["-W", "ignore", "-c", os.devnull, f"--timeout={given.seconds}"]
    options += ["-p", "tools.library_tests.plugin"]
    return [given.peer, "-P", "-m", "pytest", *options, f"--junitxml={report_file}", str(file)]


def _environment(library: Library, file: Path, given: argparse.Namespace) -> dict[str, str]:
    base = (given.folder / library.folder).resolve()
    paths = [str(base / library.root), str(base), str(file.resolve().parent), str(ROOT)]
    inherited = os.environ.get("PYTHONPATH")
    joined = os.pathsep.join([*paths, *([inherited] if inherited else [])])
    return os.environ | {
        "PYTHONPATH": joined,
        "KERAS_BACKEND": "tensorflow",
        "MPLBACKEND": "agg",
        "PYTHONWARNINGS": "ignore",
        "LIBRARY_PACKAGE": library.package,
        "LIBRARY_LEFT_OUT": "|".join(pattern for pattern, _ in library.left_out),
        "LIBRARY_PEER": "" if given.peer == sys.executable else given.peer,
    }


def _count(result: Result, case: Xml.Element) -> None:
    trouble = case.find("failure") if case.find("error") is None else case.find("error")
    message = "" if trouble is None else trouble.get("message", "")
    reason = _reason_to_leave_out(result.library, case.get("name", ""))
    reason = reason or next((why for text, why in BROKEN if re.search(text, message)), None)
    if reason:
        result.left_out[reason] += 1
    elif case.find("skipped") is not None:
        result.skipped += 1
    elif trouble is None:
        result.passed += 1
    else:
        name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
        result.failures[f"{_grouped(message)} ({name})"] += 1


def _reason_to_leave_out(library: Library, name: str) -> str | None:
    return next((reason for part, reason in library.left_out if re.search(part, name)), None)


def _grouped(message: str) -> str:
    """The first line of an error, without what differs between tests."""
    line = next((line for line in message.splitlines() if line.strip()), "no message")
    return re.sub(r"0x[0-9a-f]+", "0x…", line).replace("|", "/")[:160]


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return _grouped(lines[-1] if lines else "no output")


def _ground(failure: str) -> str:
    """Why a test fails, where that is known."""
    return next((f": {why}" for test, why in GROUNDS if re.search(test, failure)), "")


def report(ours: dict[str, Files], peers: dict[str, Files]) -> str:
    """The table of libraries, and the reasons of failures."""
    names = ["library", "passed", "run", "share", "skipped", "left out"]
    names[4:4] = ["TensorFlow 2.21", "share"] if peers else []
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    beside = {name: total(of_files) for name, of_files in peers.items() if of_files}
    order = [library.folder for library in LIBRARIES if ours.get(library.folder)]
    results = [total(ours[name]) for name in order]
    lines += [each.line(beside) for each in results]
    for result in results:
        lines += ["", f"## {result.library.folder}", ""]
        lines += [f"- left out: {count}, {why}" for why, count in result.left_out.most_common()]
        lines += [f"- {count}: {why}{_ground(why)}" for why, count in result.failures.most_common()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
