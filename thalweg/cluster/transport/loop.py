"""The I/O thread of an endpoint: it waits for sockets, timers and calls from other threads.

Callbacks run one at a time on this thread, so what only they touch needs no lock. An error in one
is logged and ends nothing. The thread is a daemon: it never keeps a process alive.

Its clock stands still while the process is stopped, as by a signal, a debugger or a suspended
machine: nobody's time runs out then.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count
from typing import Any

import numpy as np

from thalweg.cluster.transport.outbox import Outbox, Together
from thalweg.platform import tf_logging

Callback = Callable[[], None]

_MAX_WAIT = 1.0  # seconds between two looks at the timers
_MAX_EVENTS = 64  # that are looked at in one go


class Loop:
    """A thread that calls back."""

    def __init__(self, name: str) -> None:
        self._epoll = select.epoll()
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._callbacks: dict[int, Callback] = {}
        self._calls: deque[Callback] = deque()
        self._timers: list[tuple[float, int, Callback]] = []  # touched by this thread alone
        self._order = count()
        self._now = 0.0  # seconds that the thread has run
        self._looked = time.monotonic()
        self._stopped = False
        self._ending = threading.Lock()  # nobody writes to a descriptor that is closed
        self._outbox = Outbox()
        self.outboxes: dict[int, Outbox] = {}  # of threads that send several messages at once
        self.watch(self._wakeup, self._clear_wakeup)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.ident = 0  # of the thread, once it runs

    def start(self) -> None:
        """Begin to call back."""
        self._thread.start()

    def together(self) -> Together:
        """Has what this thread sends to one peer leave in one packet, at the end of a `with`."""
        return Together(self.outboxes)

    def do_together(self, work: Callback) -> None:
        """Call a function, which waits for nobody, and have what it sends to one peer leave in one
        packet; also where a signal stops it."""
        together = self.together()
        try:
            with together:
                work()
        except BaseException:
            together.end()
            raise

    def flush(self) -> None:
        """Have leave what this thread has sent."""
        outbox = self.outboxes.get(threading.get_ident())
        if outbox is not None and outbox.held:
            outbox.flush()

    @property
    def is_current(self) -> bool:
        """Whether this is the I/O thread."""
        return threading.get_ident() == self.ident

    def watch(self, file: int, readable: Callback) -> None:
        """Call back while a file descriptor is readable."""
        self._callbacks[file] = readable
        self._epoll.register(file, select.EPOLLIN)

    def unwatch(self, file: int) -> None:
        """No longer call back for a file descriptor, before it is closed."""
        if self._callbacks.pop(file, None) is not None:
            with suppress(OSError, ValueError):  # closed already, or the whole loop is
                self._epoll.unregister(file)

    def call(self, function: Callback) -> None:
        """Call a function soon, on the I/O thread; from any thread."""
        self._calls.append(function)
        with self._ending:
            if self._wakeup >= 0:
                os.eventfd_write(self._wakeup, 1)

    def later(self, seconds: float, function: Callback) -> None:
        """Call a function after a time."""
        order = next(self._order)
        self.call(lambda: heappush(self._timers, (self._now + seconds, order, function)))

    def stop(self) -> None:
        """End the thread, and wait for that unless it is this one."""
        self._stopped = True
        self.call(_nothing)
        if not self.is_current and self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        _wake_without_preempting()
        np.seterr(all="ignore")  # of the kernels that callbacks run
        self.ident = threading.get_ident()
        self.outboxes[self.ident] = outbox = self._outbox
        poll, callbacks, timeout = self._epoll.poll, self._callbacks, 0.0
        while not self._stopped:
            for file, _ in poll(timeout, _MAX_EVENTS):
                try:
                    callbacks.get(file, _nothing)()
                    if outbox.held:
                        outbox.flush()
                except Exception:
                    log_failure()
                    guarded(outbox.flush)
            timeout = self._attend()
        self._epoll.close()
        with self._ending:
            os.close(self._wakeup)
            self._wakeup = -1

    def _attend(self) -> float:
        """Move the clock on, by no more than a running thread can have waited, and call all that is
        due; how long nothing else is."""
        now, timers = time.monotonic(), self._timers
        passed = now - self._looked
        self._now += passed if passed < _MAX_WAIT else _MAX_WAIT
        self._looked = now
        if self._calls:
            self._run_calls()
        if timers and timers[0][0] <= self._now:
            self._run_timers()
        if self._calls:
            return 0.0
        left = timers[0][0] - self._now if timers else _MAX_WAIT
        return left if left < _MAX_WAIT else _MAX_WAIT

    def _run_calls(self) -> None:
        """Those that are there now: one that calls again must not keep the sockets waiting."""
        for _ in range(len(self._calls)):
            self._call(self._calls.popleft())

    def _run_timers(self) -> None:
        while self._timers and self._timers[0][0] <= self._now:
            self._call(heappop(self._timers)[2])

    def _call(self, function: Callback) -> None:
        guarded(function)
        if self._outbox.held:
            guarded(self._outbox.flush)

    def _clear_wakeup(self) -> None:
        os.eventfd_read(self._wakeup)


def _wake_without_preempting() -> None:
    """Let whoever wakes this thread by a message go on. The system would rather run this thread on
    the sender's core at once, though another is idle, and the sender's next message leaves late."""
    if os.sched_getscheduler(0) == os.SCHED_OTHER:
        with suppress(OSError):  # the system may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH | os.SCHED_RESET_ON_FORK, os.sched_param(0))


def guarded(function: Callable[..., None], *args: Any) -> None:
    """Call back; whatever that raises, other messages must still be read."""
    try:
        function(*args)
    except Exception:
        log_failure()


def log_failure() -> None:
    """Tell of what a callback raised, after which others go on."""
    tf_logging.error("A callback of the cluster's transport failed", exc_info=True)


def _nothing() -> None:
    """Wake up only."""
