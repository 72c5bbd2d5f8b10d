"""`tf.test.TestCase`: a unittest case that starts from a fresh, seeded graph and lends sessions."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from typing import Any

import numpy as np

from thalweg import errors, protos
from thalweg.graph import context
from thalweg.graph.device import DeviceSpec, canonical_name
from thalweg.graph.graph import Graph, get_default_graph, reset_default_graph
from thalweg.graph.likes import Structure
from thalweg.graph.scopes import DEFAULT_GRAPH_SEED
from thalweg.inspect.session import Session
from thalweg.public import public
from thalweg.testing import program
from thalweg.testing.assertions import ArrayAssertions
from thalweg.testing.graphs import GraphAssertions

Predicate = Callable[[Exception], Any]


@public("test.TestCase")
class TestCase(ArrayAssertions, GraphAssertions):
    """The base of tests: every method begins with an empty default graph of a known seed.

    Beside what `unittest` has there are `test_session()`, `assertAllClose`, `assertAllEqual` and
    others that compare arrays and tell where they differ.

    Args:
        methodName: the method that this test runs; `unittest` passes it.

    Example:
        >>> class ScaleTest(tf.test.TestCase):
        ...     def test_scale(self):
        ...         with self.test_session() as session:
        ...             self.assertAllClose(session.run(tf.constant([1.0, 2.0]) * 3), [3.0, 6.0])
        >>> ScaleTest("test_scale").run().wasSuccessful()
        True
    """

    def __init__(self, methodName: str = "runTest") -> None:  # noqa: N803 - unittest's own name
        super().__init__(methodName)
        self._threads: list[CheckedThread] = []
        self._temp_dir: str | None = None
        self._cached_session: Session | None = None

    def setUp(self) -> None:
        """Empty the default graph and seed all random generators."""
        super().setUp()
        self._close_cached_session()
        random.seed(DEFAULT_GRAPH_SEED)
        np.random.seed(DEFAULT_GRAPH_SEED)
        reset_default_graph()
        get_default_graph().seed = DEFAULT_GRAPH_SEED

    def tearDown(self) -> None:
        """Check that all threads ended, and close the session."""
        for thread in self._threads:
            self.assertFalse(thread.is_alive(), "A checkedThread did not terminate")
        self._close_cached_session()
        super().tearDown()

    def _close_cached_session(self) -> None:
        if self._cached_session is not None:
            self._cached_session.close()
            self._cached_session = None

    def get_temp_dir(self) -> str:
        """A folder of this test's own, gone when the process ends."""
        if self._temp_dir is None:
            self._temp_dir = program.fresh_folder()
        return self._temp_dir

    # Sessions

    def test_session(
        self,
        graph: Graph | None = None,
        config: protos.ConfigProto | None = None,
        use_gpu: bool = False,
        force_gpu: bool = False,
    ) -> AbstractContextManager[Session]:
        """The session of this test (one for all calls), or a new one where a graph is given."""
        if self._testMethodName == "test_session":
            self.skipTest("Not a test.")
        opened = self.cached_session if graph is None else self.session
        return opened(graph, config, use_gpu, force_gpu)

    @contextmanager
    def cached_session(
        self,
        graph: Graph | None = None,
        config: protos.ConfigProto | None = None,
        use_gpu: bool = False,
        force_gpu: bool = False,
    ) -> Generator[Session]:
        """The session of this test: variables keep their values from one call to the next."""
        if self._cached_session is None:
            self._cached_session = Session(graph=graph, config=_prepared(config, force_gpu))
        session = self._cached_session
        with (
            session.graph.as_default(),
            session.as_default(),
            _device(session.graph, use_gpu, force_gpu),
        ):
            yield session

    @contextmanager
    def session(
        self,
        graph: Graph | None = None,
        config: protos.ConfigProto | None = None,
        use_gpu: bool = False,
        force_gpu: bool = False,
    ) -> Generator[Session]:
        """A new session that ends with the block."""
        with (
            Session(graph=graph, config=_prepared(config, force_gpu)) as session,
            _device(session.graph, use_gpu, force_gpu),
        ):
            yield session

    def evaluate(self, tensors: Structure) -> Structure:
        """The values of (nested) tensors in the default session, or in this test's."""
        session = context.sessions.top
        if session is not None:
            return session.run(tensors)
        with self.test_session() as session:
            return session.run(tensors)

    # Errors

    @contextmanager
    def assertRaisesWithPredicateMatch(
        self, exception_type: type[Exception], expected_err_re_or_predicate: str | Predicate
    ) -> Generator[None]:
        """The block raises an error whose text the regex finds or the predicate accepts."""
        try:
            yield
        except Exception as error:
            matches = _matches(error, expected_err_re_or_predicate)
            if isinstance(error, exception_type) and matches:
                return
            raise AssertionError(
                f"Exception of type {type(error)}: {error}\n"
                f"Expected {exception_type.__name__}: {expected_err_re_or_predicate!r}"
            ) from error
        self.fail(f"{exception_type.__name__} not raised")

    def assertRaisesOpError(
        self, expected_err_re_or_predicate: str | Predicate
    ) -> AbstractContextManager[None]:
        """The block raises a `tf.errors.OpError` whose text the regex finds."""
        return self.assertRaisesWithPredicateMatch(errors.OpError, expected_err_re_or_predicate)

    # Devices and threads

    def assertDeviceEqual(
        self,
        device1: str | DeviceSpec | None,
        device2: str | DeviceSpec | None,
        msg: str | None = None,
    ) -> None:
        """Two device names or specs mean the same device."""
        one, other = canonical_name(device1), canonical_name(device2)
        self.assertEqual(one, other, msg or f"Devices {one} and {other} are not equal")

    def checkedThread(
        self,
        target: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> CheckedThread:
        """A thread whose `join` fails the test if `target` raised."""
        thread = CheckedThread(self, target, tuple(args or ()), dict(kwargs or {}))
        self._threads.append(thread)
        return thread


class CheckedThread:
    """A thread that tells its test how it ended."""

    def __init__(
        self,
        case: TestCase,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._case = case
        self._work = lambda: target(*args, **kwargs)
        self._thread = threading.Thread(target=self._run)
        self._error: Exception | None = None

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:
            self._error = error

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the end; fail the test if the target raised."""
        self._thread.join()
        if self._error is not None:
            self._case.fail(f"Error in checkedThread: {self._error}")

    def is_alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()


def _prepared(config: Any, force_gpu: bool) -> Any:
    """A configuration without optimisation: tests are about the ops they name."""
    chosen = protos.ConfigProto(allow_soft_placement=True) if config is None else deepcopy(config)
    chosen.allow_soft_placement = chosen.allow_soft_placement and not force_gpu
    chosen.graph_options.optimizer_options.opt_level = protos.OptimizerOptions.L0
    return chosen


@contextmanager
def _device(graph: Graph, use_gpu: bool, force_gpu: bool) -> Generator[None]:
    if use_gpu and not force_gpu:
        yield
        return
    with graph.device((program.gpu_device_name() or "/gpu:0") if force_gpu else "/cpu:0"):
        yield


def _matches(error: Exception, expected: str | Predicate) -> Any:
    if callable(expected):
        return expected(error)
    text = str(error)
    if isinstance(error, errors.OpError):
        text = f"{error.message}\nCaused by: {getattr(error.op, 'name', '')}\n{text}"
    return re.search(expected, text)
