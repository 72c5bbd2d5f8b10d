"""What runs in each process: one TensorFlow test file, loaded and run method by method.

Every outcome is written to the journal at once, so that a process that hangs or dies loses only
the methods it had not reached.
"""

import faulthandler
import importlib.util
import json
import os
import signal
import sys
import threading
import traceback
import types
import unittest
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from conformance import alias
from thalweg.alias import legacy, old_arrays
from thalweg.cluster.addresses import free_ports


class MethodTimeout(Exception):
    """A test method took too long."""


class Journal:
    """The file of JSON lines that the parent process reads."""

    def __init__(self, path: str) -> None:
        self.file = open(path, "w", buffering=1)  # noqa: SIM115 - open as long as the process

    def write(self, **record: Any) -> None:
        self.file.write(json.dumps(record) + "\n")


class Recorder(unittest.TestResult):
    """Writes the outcome of each method to the journal when it ends."""

    def __init__(self, journal: Journal, package: Path, seconds: float) -> None:
        super().__init__()
        self.journal = journal
        self.package = package
        self.seconds = seconds
        self.outcome: dict[str, str] = {}

    def startTest(self, test: unittest.TestCase) -> None:
        self.outcome = {"status": "passed"}
        signal.setitimer(signal.ITIMER_REAL, self.seconds)
        super().startTest(test)

    def stopTest(self, test: unittest.TestCase) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.journal.write(method=method_name(test), **self.outcome)
        super().stopTest(test)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.note("failed", err)

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self.note("error", err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err:
            self.note("failed" if issubclass(err[0], test.failureException) else "error", err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.outcome = {"status": "skipped", "message": reason}

    def note(self, status: str, err: Any) -> None:
        """Keep the first trouble of a method: what follows is mostly its consequence."""
        if self.outcome.get("status") == "passed":
            self.outcome = {"status": status, **describe(err[1], self.package)}


def describe(error: BaseException, package: Path) -> dict[str, str]:
    """Exception type, the first line that says something, and the last frame inside Thalweg."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [f for f in traceback.extract_tb(error.__traceback__) if str(package) in f.filename]
    frame = ""
    if ours:
        file = Path(ours[-1].filename).relative_to(package.parent)
        frame = f"{file}:{ours[-1].lineno} in {ours[-1].name}"
    return {
        "exception": type(error).__name__,
        "message": lines[0][:300] if lines else "",
        "frame": frame,
    }


def method_name(test: unittest.TestCase) -> str:
    return ".".join(test.id().split(".")[-2:])


def load(path: Path) -> types.ModuleType:
    """Run the file as the main program: some files add test methods only then."""
    module = types.ModuleType("__main__")
    module.__file__ = str(path)
    sys.modules["__main__"] = module
    sys.argv = [str(path)]
    source = path.read_text(encoding="utf-8-sig")
    exec(old_arrays.compiled(source, str(path)), module.__dict__)  # as `thalweg run` does
    return module


def collect(module: types.ModuleType) -> list[unittest.TestCase]:
    """The tests of a module; `test_session` is a helper of TestCase, not a test."""
    tests = flatten(unittest.defaultTestLoader.loadTestsFromModule(module))
    return [test for test in tests if not method_name(test).endswith(".test_session")]


def flatten(suite: Any) -> Iterator[unittest.TestCase]:
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from flatten(item)
        else:
            yield item


def run(tests: list[unittest.TestCase], recorder: Recorder) -> None:
    """Run through a suite, so that class and module fixtures work."""
    unittest.TestSuite(tests).run(recorder)


def on_alarm(*_: object) -> None:
    raise MethodTimeout("the method took too long")


def main(file: str, journal_path: str, seconds: str) -> None:
    faulthandler.enable()
    warnings.simplefilter("always")  # some tests record them
    warnings.showwarning = lambda *_, **__: None
    signal.signal(signal.SIGALRM, on_alarm)
    journal = Journal(journal_path)
    attempt(journal, lambda: run_file(Path(file), journal, float(seconds)))


def attempt(journal: Journal, work: Callable[[], None]) -> None:
    """Do the work; whatever stops it is written down as the trouble of the file."""
    try:
        work()
    except BaseException as error:
        first = (str(error).strip() or "no message").splitlines()[0]
        journal.write(trouble=f"{type(error).__name__}: {first}")
        traceback.print_exc()
        leave(1)
    leave(0)


def run_file(path: Path, journal: Journal, seconds: float) -> None:
    legacy.restore()
    if importlib.util.find_spec("portpicker") is None:
        make_portpicker()
    package = alias.install()
    tests = collect(load(path.resolve()))
    journal.write(methods=[method_name(test) for test in tests])
    run(tests, Recorder(journal, package, seconds))


def make_portpicker() -> None:
    """A stand-in for the `portpicker` package."""
    picker = types.ModuleType("portpicker")
    vars(picker)["pick_unused_port"] = lambda: free_ports(1)[0]
    sys.modules["portpicker"] = picker


def leave(status: int) -> None:
    """End now: threads that a test left behind must not hold the process."""
    sys.stdout.flush()
    sys.stderr.flush()
    if threading.active_count() > 1:
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
