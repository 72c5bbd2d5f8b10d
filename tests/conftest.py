"""The whole suite covers every op: what each process ran is gathered, and gaps fail the session.

Gaps are judged only when every test file was collected and all tests passed; `op_coverage` says
what counts.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pytest

from tests import op_coverage
from thalweg.graph import context
from thalweg.graph.graph import graphs
from thalweg.ops.random import philox
from thalweg.runtime import native_control, step_cache
from thalweg.runtime.engine import list_local_devices

HERE = Path(__file__).parent
_WHOLE = pytest.StashKey[bool]()
_FAULTS = pytest.StashKey[list[str]]()

op_coverage.watch()
#: Every run plans its steps and lowers its loops, whatever earlier runs left on disk: a restored
#: step would skip the planner, the folding of constants and the op counts above, and so would a
#: restored loop. Nor may what tests make with patched compilers be left to other processes.
step_cache.ENABLED = native_control.RESTORES = False


def pytest_configure(config: pytest.Config) -> None:
    _require_device(os.environ.get("THALWEG_TEST_DEVICE", ""))


def _require_device(wanted: str) -> None:
    """Fail at once where the tests are to run on a device that is not there. Where it is, sessions
    prefer it for all that it can compile."""
    kind = wanted.strip("/").partition(":")[0].upper()
    if kind and kind not in {device.device_type for device in list_local_devices()}:
        raise pytest.UsageError(f"THALWEG_TEST_DEVICE is {wanted}, and this process has no {kind}")


#: What `thalweg run` leaves to the children of its process.
_INHERITED = {name: os.environ.get(name) for name in ("THALWEG_RUN", "PYTHONPATH")}


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """A test that runs the command in this process leaves nothing to those that start others. What
    the tests of a file leave in caches lives on, and is not looked through with those of others."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    for name, value in _INHERITED.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Tests that are collected all stay: the collector would look for garbage among them again and
    again, a quarter of the time."""
    gc.disable()
    try:
        if session.config.args == session.config.getini("testpaths"):
            _import_from_the_end()
        return (yield)
    finally:
        gc.enable()


def _import_from_the_end() -> None:
    """In every other worker, import the test files beginning with the last one. Each worker would
    compile all of them at the same time as the others; so it finds half of the bytecode made."""
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0")[-1] not in "13579":
        return
    for file in sorted(HERE.rglob("test_*.py"), reverse=True):
        name = ".".join(file.relative_to(HERE.parent).with_suffix("").parts)
        with suppress(Exception, pytest.skip.Exception):  # which collecting the file tells of
            importlib.import_module(name)


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()  # modules and tests live on: the collector need not look through them each time
    gc.set_threshold(20_000)  # graphs and plans live until a test ends, and few are in cycles
    config = session.config
    collected = {item.path for item in session.items}
    narrowed = config.option.keyword or config.option.markexpr or config.getoption("lf", False)
    named = any("::" in argument for argument in config.args)
    config.stash[_WHOLE] = not (narrowed or named) and collected >= set(HERE.rglob("test_*.py"))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A worker of xdist ends: take over what it recorded."""
    output = getattr(node, "workeroutput", {})
    op_coverage.record.merge(output.get("op_coverage", {}))
    node.config.stash[_WHOLE] = output.get("whole_suite", False)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    whole = config.stash.get(_WHOLE, False)
    if hasattr(config, "workeroutput"):
        config.workeroutput["op_coverage"] = op_coverage.record.lists()
        config.workeroutput["whole_suite"] = whole
    elif whole and exitstatus == pytest.ExitCode.OK:
        config.stash[_FAULTS] = list(op_coverage.record.faults())
        if config.stash[_FAULTS]:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for fault in config.stash.get(_FAULTS, []):
        terminalreporter.write_line(f"op coverage: {fault}", red=True)


@pytest.fixture(autouse=True, scope="session")
def _interrupts_are_heard():
    """A shell that starts tests in the background has them ignore Ctrl-C, which some tests send."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seeds_are_those_of_the_test(request: pytest.FixtureRequest):
    """A test that chooses no seed draws the same numbers in every run: one that fails once in a
    thousand draws would fail on someone who changed nothing."""
    seeds = Random(request.node.nodeid)
    with mock.patch.object(philox, "fresh_seed", lambda: seeds.getrandbits(64)):
        yield


@pytest.fixture(autouse=True)
def _default_graph_and_session_are_left():
    """What a test makes the default, it takes back: the next test would run in it."""
    yield
    left = [*context.sessions.items, *graphs.items]
    context.sessions.items.clear()
    graphs.items.clear()
    assert not left
