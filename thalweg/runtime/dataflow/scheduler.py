"""What one thread has to do in the token graphs that it runs: what is ready, deferred, under way.

Calls are deferred until nothing else is ready: several then run on workers, a single one on the
caller's thread, unless it sends values that others wait for while it runs.
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

_MAX_WAIT = 0.1  # seconds without handling signals


#: Has a function called on one certain thread, at once where that is the caller's.
Soon = Callable[[Callable[[], None]], None]


#: Takes what a call gave.
Take = Callable[[Any], None]


class Done(NamedTuple):
    """A call that came back, from a worker or from who sent a value."""

    take: Take
    result: Any
    error: BaseException | None = None
    running: Lock | None = None  # of a call on a worker


class Deferred(NamedTuple):
    """A call that is made when nothing else is ready."""

    call: Call
    make: Callable[[], Any]
    take: Take


class Scheduler:
    """What one thread has to do in the token graphs that it runs."""

    def __init__(self, cancellation: Cancellation, defers: bool) -> None:
        self.defers = defers  # calls that may take long
        self.active: deque[Callable[[], None]] = deque()  # what fires all that is ready somewhere
        self.deferred: list[Deferred] = []
        self.done: SimpleQueue[Done] = SimpleQueue()  # from any thread
        self.under_way = 0  # calls that have not come back
        self._running: set[Lock] = set()  # of calls on workers: held while the call runs
        self._cancellation = cancellation

    def work(self) -> None:
        """Fire all that is ready, and what that makes ready, until nothing is left."""
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
        # Others may wait for values that it sends while it runs.
        is_awaited = self.under_way > 0 and isinstance(deferred[0].call.function, SendingExecutable)
        self.under_way += len(deferred)
        if is_single and not is_awaited:
            ((_, make, take),) = deferred
            self._finish(Done(take, make()))
            return
        for _, make, take in deferred:
            running = Lock()
            self._running.add(running)
            WORKERS.start(partial(self._call_on_worker, running, make, take))

    def _call_on_worker(self, running: Lock, make: Callable[[], Any], take: Take) -> None:
        with running, np.errstate(all="ignore"):  # a thread has its own
            try:
                done = Done(take, make(), None, running)
            except BaseException as error:  # carried to the caller's thread
                done = Done(take, None, error, running)
        self.done.put(done)

    def _finish(self, done: Done) -> None:
        self.under_way -= 1
        if done.running is not None:
            self._running.discard(done.running)
        if done.error is not None:
            raise done.error
        done.take(done.result)

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
