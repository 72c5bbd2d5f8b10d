"""What one thread has to do in the token graphs that it runs: what is ready, deferred, under way.

Calls are deferred until nothing else is ready: several then run on workers, a single one on the
caller's thread, unless it sends values that others wait for while it runs. Threads that may not
wait do what is short, whenever something came back, and leave the rest to one that may.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, NamedTuple, Protocol

import numpy as np

from thalweg import errors
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.dataflow.wiring import FrameWiring, WiredVertex
from thalweg.runtime.dataflow.workers import WORKERS
from thalweg.runtime.kernels import Call
from thalweg.runtime.sending import SendingExecutable

_MAX_WAIT = 0.1  # seconds without handling signals


#: Has a function called on one certain thread, at once where that is the caller's.
Soon = Callable[[Callable[[], None]], None]


class GraphRun(Protocol):
    """One run of a token graph, as far as its scheduler knows it."""

    def drain(self, iteration: Iteration) -> None:
        """Fire all that is ready in an iteration."""
        ...

    def result(self, vertex: WiredVertex, inputs: list[Any]) -> Any:
        """What a call gives; its error is attributed to its node."""
        ...

    def come_back(self, iteration: Iteration, vertex: WiredVertex, result: Any) -> None:
        """Take what a call gave that was deferred or under way."""
        ...


@dataclass(slots=True, eq=False)
class Iteration:
    """The tokens of one iteration of a frame that have not been used yet."""

    frame: Frame
    index: int
    values: list[Any]
    pending: list[int]
    ready: list[int]
    dead: bytearray
    out: int = 0  # calls that may block and have not come back
    children: dict[int, Frame] = field(default_factory=dict[int, "Frame"])
    queued: bool = False


class Frame:
    """A frame that is running: a loop, for one iteration of what is around it."""

    def __init__(
        self, run: GraphRun, wiring: FrameWiring, place: int, parent: Iteration | None
    ) -> None:
        self.run = run
        self.wiring = wiring
        self.place = place
        self.parent = parent
        values, pending = wiring.values[:], wiring.pending[:]
        #: what iterations begin with: constants
        self.pattern = Iteration(self, -1, values, pending, [], bytearray(len(pending)))
        self.iterations: dict[int, Iteration] = {}
        self.oldest, self.newest = 0, -1
        self.missing = wiring.entering  # vertices that have not entered yet, dead or alive
        self.held: list[tuple[WiredVertex, Any]] = []  # for an iteration that may not begin yet
        self.exited: set[WiredVertex] = set()
        self.is_over = False
        self.collected: dict[WiredVertex, dict[int, Any]] = {}

    def begin(self) -> Iteration:
        """The next iteration."""
        self.newest += 1
        like = self.pattern
        begun = Iteration(
            self,
            self.newest,
            like.values[:],
            like.pending[:],
            like.ready[:],
            bytearray(len(like.pending)),
        )
        self.iterations[self.newest] = begun
        return begun


class Done(NamedTuple):
    """A call that came back, from a worker or from who sent a value."""

    iteration: Iteration
    vertex: WiredVertex
    result: Any
    error: BaseException | None = None
    running: Lock | None = None  # of a call on a worker


class Scheduler:
    """What one thread has to do in the token graphs that it runs."""

    def __init__(self, cancellation: Cancellation, defers: bool) -> None:
        self.defers = defers  # calls that may take long
        self.active: deque[Iteration] = deque()  # with vertices that are ready
        self.deferred: list[tuple[Iteration, WiredVertex, list[Any]]] = []
        self.done: SimpleQueue[Done] = SimpleQueue()
        self.under_way = 0  # calls that have not come back
        self.notify: Callable[[], None] | None = None  # of calls that come back
        self._running: set[Lock] = set()  # of calls on workers: held while the call runs
        self._cancellation = cancellation

    def work(self) -> None:
        """Fire all that is ready, and what that makes ready, until nothing is left."""
        try:
            self._work()
        except BaseException as error:
            self._stop(error)
            raise

    def advance(self) -> bool:
        """Fire all that is ready, take what came back, and do not wait; whether that was all. It
        is not where calls are under way, or deferred, which `work` makes."""
        while True:
            self._drain()
            if self.deferred or not self.under_way:
                return not self.deferred
            try:
                done = self.done.get_nowait()
            except Empty:
                return False
            self._finish(done)

    def come_back(self, done: Done) -> None:
        """Take a call that was under way; from any thread."""
        self.done.put(done)
        if self.notify is not None:
            self.notify()

    def _drain(self) -> None:
        active = self.active
        while active:
            iteration = active.popleft()
            iteration.frame.run.drain(iteration)

    def _work(self) -> None:
        while True:
            self._drain()
            if self.deferred:
                self._release()
            elif self.under_way:
                self._finish(self._next_done())
            else:
                return

    def _next_done(self) -> Done:
        """Wait for a call to come back, for a short time at once: a signal that arrives just before
        a wait begins does not end it."""
        while True:
            try:
                return self.done.get(timeout=_MAX_WAIT)
            except Empty:
                continue

    def _release(self) -> None:
        """Call what was deferred: on workers, a single one here."""
        deferred, self.deferred = self.deferred, []
        is_single = len(deferred) == 1 and not self._running
        is_awaited = self.under_way > 0 and _sends_early(deferred[0][1].call)
        self.under_way += len(deferred)
        if is_single and not is_awaited:
            ((iteration, vertex, inputs),) = deferred
            self._finish(Done(iteration, vertex, iteration.frame.run.result(vertex, inputs)))
            return
        for entry in deferred:
            running = Lock()
            self._running.add(running)
            WORKERS.start(partial(self._call_on_worker, running, *entry))

    def _call_on_worker(
        self, running: Lock, iteration: Iteration, vertex: WiredVertex, inputs: list[Any]
    ) -> None:
        with running, np.errstate(all="ignore"):  # a thread has its own
            try:
                result = iteration.frame.run.result(vertex, inputs)
                done = Done(iteration, vertex, result, None, running)
            except BaseException as error:  # carried to the caller's thread
                done = Done(iteration, vertex, None, error, running)
        self.done.put(done)

    def _finish(self, done: Done) -> None:
        self.under_way -= 1
        if done.running is not None:
            self._running.discard(done.running)
        if done.error is not None:
            raise done.error
        done.iteration.frame.run.come_back(done.iteration, done.vertex, done.result)

    def _stop(self, error: BaseException) -> None:
        """Cancel the calls that workers run, and wait for them. One that has yet to begin finds the
        step cancelled."""
        if not self._running:
            return
        reason = error if isinstance(error, errors.OpError) else None
        self._cancellation.cancel(
            reason or errors.CancelledError(None, None, "another node of the step failed")
        )
        for running in self._running:
            with running:
                pass


class EventDriven:
    """Has a scheduler work on threads that may not wait: whenever a call came back, it goes on.
    Once calls are deferred, the rest is done by who may wait."""

    def __init__(
        self,
        scheduler: Scheduler,
        soon: Soon,
        later: Callable[[Callable[[], None]], None],
        ended: Callable[[BaseException | None], None],
    ) -> None:
        self._scheduler, self._soon, self._later, self._ended = scheduler, soon, later, ended
        self._turn = Lock()  # held by who advances, and for good once nobody may
        scheduler.notify = self._notify

    def advance(self) -> None:
        """Do all that can be done now, unless another thread does: that sees what came back."""
        scheduler = self._scheduler
        while self._turn.acquire(blocking=False):
            try:
                with np.errstate(all="ignore"):
                    is_over = scheduler.advance()
            except BaseException as error:
                self._end(error)
                return
            if is_over:
                self._end(None)
                return
            if scheduler.deferred:
                scheduler.notify = None
                self._later(self._work)
                return
            self._turn.release()
            if scheduler.done.empty():
                return

    def _notify(self) -> None:
        self._soon(self.advance)

    def _work(self) -> None:
        error: BaseException | None = None
        try:
            with np.errstate(all="ignore"):
                self._scheduler.work()
        except BaseException as failure:
            error = failure
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        self._scheduler.notify = None
        self._ended(error)


def _sends_early(call: Call | None) -> bool:
    """Whether a call sends values, which others take, while it runs."""
    return call is not None and isinstance(call.function, SendingExecutable)
