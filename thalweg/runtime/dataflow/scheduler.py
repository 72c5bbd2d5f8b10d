"""The scheduler of the dataflow executor: ready work, deferred calls and calls in flight.

One thread runs the token graphs of a step. It defers blocking and long calls until nothing else is
ready. Several deferred calls then run on worker threads; a single one runs on the caller's thread,
unless it sends values during its run that calls in flight may wait for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from thalweg import errors
from thalweg.device.workers import WORKERS
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.kernels import Call
from thalweg.runtime.sending import SendingExecutable

_MAX_WAIT = 0.1  # seconds; signals are handled between waits


#: Runs a function on one particular thread: synchronously if that is the caller's thread.
Submit = Callable[[Callable[[], None]], None]


#: Accepts the result of a call.
Take = Callable[[Any], None]


class Done(NamedTuple):
    """A completed call: from a worker, or the completion of an asynchronous op."""

    take: Take
    result: Any
    error: BaseException | None = None
    running: Lock | None = None  # calls on workers only: the lock held while it ran


class Deferred(NamedTuple):
    """A call to make when nothing else is ready."""

    call: Call
    make: Callable[[], Any]
    take: Take


class Scheduler:
    """The work of one thread that runs token graphs. Other threads only put to `done`."""

    def __init__(self, cancellation: Cancellation, defers: bool) -> None:
        self.defers = defers  # whether long calls are deferred
        self.active: deque[Callable[[], None]] = deque()  # each drains one ready queue
        self.deferred: list[Deferred] = []
        self.done: SimpleQueue[Done] = SimpleQueue()  # filled by any thread
        self.in_flight = 0  # calls in flight
        self._running: set[Lock] = set()  # of calls on workers, each held during its call
        self._cancellation = cancellation

    def work(self) -> None:
        """Fire ready vertices until no vertex is ready and no call is deferred or in flight."""
        try:
            self._work()
        except BaseException as error:
            self._stop(error)
            raise

    def _work(self) -> None:
        while True:
            while self.active:
                self.active.popleft()()
            if self.deferred:
                self._release()
            elif self.in_flight:
                self._finish(self._next_done())
            else:
                return

    def _next_done(self) -> Done:
        """Wait for a call to complete. The wait is divided into short ones, since a signal that
        arrives just before a wait does not interrupt it."""
        while True:
            try:
                return self.done.get(timeout=_MAX_WAIT)
            except Empty:
                continue

    def _release(self) -> None:
        """Make the deferred calls: several on workers, a single one on this thread."""
        deferred, self.deferred = self.deferred, []
        is_single = len(deferred) == 1 and not self._running
        # Calls in flight may wait for values that it sends during its run.
        is_awaited = self.in_flight > 0 and isinstance(deferred[0].call.function, SendingExecutable)
        self.in_flight += len(deferred)
        if is_single and not is_awaited:
            ((_, make, take),) = deferred
            self._finish(Done(take, make()))
            return
        for _, make, take in deferred:
            running = Lock()
            self._running.add(running)
            WORKERS.start(partial(self._call_on_worker, running, make, take))

    def _call_on_worker(self, running: Lock, make: Callable[[], Any], take: Take) -> None:
        with running, np.errstate(all="ignore"):  # errstate is per thread
            try:
                done = Done(take, make(), None, running)
            except BaseException as error:  # re-raised on the caller's thread
                done = Done(take, None, error, running)
        self.done.put(done)

    def _finish(self, done: Done) -> None:
        self.in_flight -= 1
        if done.running is not None:
            self._running.discard(done.running)
        if done.error is not None:
            raise done.error
        done.take(done.result)

    def _stop(self, error: BaseException) -> None:
        """Cancel the calls on workers and wait for those that have started. A call that starts
        later sees the cancellation."""
        if not self._running:
            return
        reason = error if isinstance(error, errors.OpError) else None
        self._cancellation.cancel(
            reason or errors.CancelledError(None, None, "another node of the step failed")
        )
        for running in self._running:
            with running:
                pass
