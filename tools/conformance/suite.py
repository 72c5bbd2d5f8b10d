"""Which test files run, and the processes that run them.

Comes in: a folder of TensorFlow sources and a list of files. Goes out: a `FileResult` per file with
one `Outcome` per test method, whatever happened to the process.
"""

import ast
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class TestFile:
    """A test file below the TensorFlow folder and how many test methods it is said to have."""

    path: str
    methods: int


@dataclass(frozen=True)
class Limits:
    """Seconds for a file and for a method, and how many files run at once."""

    file_seconds: float
    method_seconds: float
    jobs: int


@dataclass(frozen=True)
class Outcome:
    """What one method did: `status` is passed, failed, error or skipped; `lost` if it never ran."""

    method: str
    status: str
    exception: str = ""
    message: str = ""
    frame: str = ""
    lost: bool = False


@dataclass
class FileResult:
    """All outcomes of a file; `trouble` says why it did not load or end, if it did not."""

    file: TestFile
    outcomes: list[Outcome] = field(default_factory=list)
    trouble: str = ""

    def count(self, *statuses: str) -> int:
        """How many methods ended in one of `statuses`."""
        return sum(outcome.status in statuses for outcome in self.outcomes)


def find(
    directory: Path, listing: Path | None, only: Sequence[str], skip: Sequence[str]
) -> list[TestFile]:
    """The files of a CSV list, or all test files below `directory`, filtered by substrings."""
    files = _listed(listing) if listing else _all(directory)
    return [
        file
        for file in files
        if (not only or any(part in file.path for part in only))
        and not any(part in file.path for part in skip)
    ]


def run(directory: Path, files: Sequence[TestFile], limits: Limits) -> Iterator[FileResult]:
    """Run each file in a process of its own; results come as they are ready."""
    with ThreadPoolExecutor(limits.jobs) as pool:
        runs = [pool.submit(run_file, directory.resolve(), file, limits) for file in files]
        yield from (done.result() for done in as_completed(runs))


def run_file(directory: Path, file: TestFile, limits: Limits) -> FileResult:
    """Run one file and account for every method that it has."""
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        journal = Path(folder, "journal.jsonl")
        command = [sys.executable, "-P", "-m", "conformance.worker", file.path, str(journal)]
        command.append(str(limits.method_seconds))
        trouble = _run(command, directory, folder, limits.file_seconds)
        return _read(file, journal, trouble)


def _listed(listing: Path) -> list[TestFile]:
    with listing.open(newline="") as rows:
        return [TestFile(row["path"], int(row["test_methods"])) for row in csv.DictReader(rows)]


def _all(directory: Path) -> list[TestFile]:
    paths = sorted(directory.rglob("*_test.py"))
    return [TestFile(str(path.relative_to(directory)), _count_methods(path)) for path in paths]


def _count_methods(path: Path) -> int:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8-sig"))
    except SyntaxError:
        return 0
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return sum(function.name.startswith("test") for function in functions)


def _run(command: list[str], directory: Path, folder: str, seconds: float) -> str:
    """Run the worker; the last line it wrote if it broke, empty if it ended well."""
    try:
        done = subprocess.run(
            command,
            cwd=directory,  # tests name their data files relative to the sources
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"Timeout: the file ran longer than {seconds:g} s"
    if done.returncode == 0:
        return ""
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return f"Crash: exit status {done.returncode}; {lines[-1] if lines else 'no output'}"


def _environment(folder: str) -> dict[str, str]:
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    paths = os.pathsep.join([str(TOOLS), str(TOOLS.parent)])
    inner = Path(folder, "tests")  # some tests remove the folder that they are given
    inner.mkdir(exist_ok=True)
    given = {"PYTHONPATH": paths, "TEST_TMPDIR": str(inner), "PYTHONHASHSEED": "0"}
    return os.environ | single | given


def _read(file: TestFile, journal: Path, trouble: str) -> FileResult:
    """Outcomes from the journal: one line with all methods, then one line per method that ended."""
    lines = journal.read_text(encoding="utf-8-sig").splitlines() if journal.exists() else []
    records = [json.loads(line) for line in lines]
    failure = next((r["trouble"] for r in records if "trouble" in r), trouble)
    outcomes = [Outcome(**record) for record in records if "status" in record]
    collected = next((r["methods"] for r in records if "methods" in r), None)
    if collected is None:
        collected = [f"method {number + 1}" for number in range(file.methods)]
    ended = {outcome.method for outcome in outcomes}
    kind, _, message = failure.partition(": ")
    lost = [Outcome(m, "error", kind, message, lost=True) for m in collected if m not in ended]
    return FileResult(file, outcomes + lost, failure)
