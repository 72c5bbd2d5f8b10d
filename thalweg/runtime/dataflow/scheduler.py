"""The scheduler of the dataflow executor: which thread makes the calls of a run, and when.

Any thread may deliver the result of a call; it then continues the run, unless another thread is
doing so. Blocking and long calls are deferred until nothing else is ready. Several deferred calls
then run on worker threads; a single one runs on the thread for long calls. The thread that made a
call continues the run. All these threads have NumPy's floating-point warnings ignored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import Any

from thalweg import errors
from thalweg.device import workers
from thalweg.graph.node import Node
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.dataflow.frames import Iteration
from thalweg.runtime.dataflow.wiring import WiredVertex, Wiring
from thalweg.runtime.kernels import Context
from thalweg.runtime.sending import SendingExecutable

#: Runs a function on one particular thread: synchronously if that is the caller's thread.
Submit = Callable[[Callable[[], None]], None]


#: The threads that continue a run: when a value arrives, on a thread that must not block; to make a
#: long call, and after it; and a function that continues there and batches what is sent meanwhile.
Threads = tuple[Submit, Submit, Submit]
#: A token graph, its feeds and the context of its nodes.
Graph = tuple[Wiring, Sequence[Any], Context]
#: A call to make when nothing else is ready: its vertex and inputs.
Deferred = tuple[Iteration, WiredVertex, list[Any]]
#: (fetched values of each graph, error)
Ended = Callable[[list[list[Any]], BaseException | None], None]


class Scheduler(ABC):
    """The threads of one run of token graphs."""

    def __init__(
        self,
        graphs: Sequence[Graph],
        cancellation: Cancellation,
        threads: Threads,
        ended: Ended,
        defers: bool = True,
    ) -> None:
        self._graphs, self._cancellation = graphs, cancellation
        self._submit_short, self._submit_long, self._run_batched = threads
        self._ended, self._defers = ended, defers
        self._contexts: dict[Node, Context] = {}
        self._roots: list[Iteration] = []
        for wiring, _, context in graphs:
            root = Iteration(wiring.start(context), wiring.frames[0].vertices, context)
            root.queued = True
            self._roots.append(root)
        self._active = deque(self._roots)  # iterations that may have ready vertices
        #: The results, or the errors, of calls that were deferred or started.
        self._arrived: deque[tuple[Iteration, WiredVertex, Any, BaseException | None]] = deque()
        self._deferred: list[Deferred] = []
        self._unstarted: deque[Deferred] = deque()  # to be started when nothing else is ready
        self._in_flight = 0  # calls that were deferred or started and have not arrived
        self._running: set[Lock] = set()  # of calls on other threads, each held during its call
        self._turn = Lock()  # held by the thread that runs, and forever after the end

    @abstractmethod
    def fire(self) -> None:
        """Accept what has arrived and fire ready vertices until there are none."""

    @abstractmethod
    def result(self, iteration: Iteration, vertex: WiredVertex, inputs: list[Any]) -> Any:
        """Make a call and return its result; an error is attributed to the call's node."""

    @abstractmethod
    def end(self, error: BaseException | None) -> None:
        """Tell that the run has ended. Called once."""

    def resume(self, own: Lock | None = None) -> None:
        """Continue the run, unless another thread is doing so: it then sees what arrived. `own`:
        this thread's lock in `_running`."""
        while self._turn.acquire(blocking=False):
            try:
                self.fire()
            except BaseException as error:
                self._fail(error, own)
                return
            if not self._in_flight:
                self.end(None)
                return
            if self._deferred:
                self._release(own)
            self._turn.release()
            if not self._arrived:
                return

    def _release(self, own: Lock | None) -> None:
        """Have the deferred calls made: several on workers. One that sends values during its run
        leaves the caller's thread to the calls that wait for them."""
        deferred, self._deferred = self._deferred, []
        short, long = self._submit_short, self._submit_long
        is_sending = isinstance(deferred[0][1].executable, SendingExecutable)
        is_awaited = short == long and is_sending and self._in_flight > 1
        is_single = len(deferred) == 1 and not self._running - {own}
        submit = long if is_single and not is_awaited else workers.start
        for each in deferred:
            running = Lock()
            self._running.add(running)
            submit(partial(self._call_elsewhere, running, each))

    def _call_elsewhere(self, running: Lock, deferred: Deferred) -> None:
        """Make a call, then continue the run. A call that may wait sends its values at once."""
        run_batched = self._run_batched
        with running:
            if deferred[1].executable is None:
                self._make(deferred)
                run_batched(partial(self.resume, running))
            else:
                run_batched(partial(self._make_and_resume, deferred, running))
        self._running.discard(running)

    def _make_and_resume(self, deferred: Deferred, running: Lock) -> None:
        self._make(deferred)
        self.resume(running)

    def _make(self, deferred: Deferred) -> None:
        iteration, vertex, _ = deferred
        try:
            self._cancellation.check()
            self._arrived.append((iteration, vertex, self.result(*deferred), None))
        except BaseException as error:  # raised again by the thread that continues the run
            self._arrived.append((iteration, vertex, None, error))

    def _fail(self, error: BaseException, own: Lock | None) -> None:
        """End the run with an error, after the calls on other threads have ended."""
        if self._running - {own}:
            workers.start(partial(self._end_after_calls, error))
        else:
            self._end_after_calls(error, own)

    def _end_after_calls(self, error: BaseException, own: Lock | None = None) -> None:
        if self._in_flight > len(self._deferred):
            self.cancel(error, own)
        self.end(error)

    def cancel(self, error: BaseException, own: Lock | None = None) -> None:
        """Cancel the run and wait for the calls that other threads are making, and for those that
        continue the run. A call that is made later sees the cancellation."""
        reason = error if isinstance(error, errors.OpError) else None
        self._cancellation.cancel(
            reason or errors.CancelledError(None, None, "another node of the step failed")
        )
        for running in self._running - {own}:
            with running:
                pass
