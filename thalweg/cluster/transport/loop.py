"""The event loop of an endpoint: its I/O thread polls sockets and runs timers and queued calls.

Callbacks run one at a time on the I/O thread, so state that only they touch needs no lock. An
exception in a callback is logged, and the loop goes on. The thread is a daemon: it never keeps a
process alive.

The I/O thread is a role, as in the leader/followers pattern. A thread that waits for the result of
messages takes the role itself while it waits: to be woken by another thread takes as long as to
read a message. Meanwhile the loop's own thread stands by; it takes the role back when no other
thread has led for a while. `Waiter` is the waiting thread's side of this.

The clock of timers stops while the process is stopped, as by a signal, a debugger or a suspended
machine, so that no timer expires because of it.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from heapq import heappop, heappush
from importlib import import_module
from itertools import count
from queue import SimpleQueue
from signal import SIGKILL, SIGRTMIN, SIGSTOP
from typing import Any

import numpy as np

from thalweg.cluster.transport.outbox import BatchedSends, Outbox
from thalweg.platform import tf_logging

Callback = Callable[[], None]

_signal: Any = import_module("_signal")  # the wrappers in `signal` are ten times slower
_SIGNALS = [number for number in range(1, SIGRTMIN) if number not in (SIGKILL, SIGSTOP)]

_MAX_WAIT = 1.0  # seconds: longest poll, and largest step of the clock
_MAX_EVENTS = 64  # of one poll
_STAND_BY, _MAX_STAND_BY = 1e-3, 8e-3  # seconds between checks that another thread leads
_AWAKE = 500e-6  # seconds to spin after a message before sleeping
_MAX_GAP = 5e-3  # seconds between two messages for which spinning is worth it
_MAX_AWAY = 20e-6  # seconds in sched_yield after which the core counts as busy, and spinning ends
_MAX_LOST = 200e-6  # seconds: mean cost of yielding above which to sleep at once


class Loop:
    """An event loop and the thread that runs it."""

    def __init__(self, name: str) -> None:
        self._epoll = select.epoll()
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._callbacks: dict[int, Callback] = {}
        self._calls: deque[Callback] = deque()
        self._timers: list[tuple[float, int, Callback]] = []  # heap, of the I/O thread alone
        self._order = count()
        self._now = 0.0  # seconds on the clock of timers
        self._last_poll = time.monotonic()
        self._stopped = False
        self._ending = threading.Lock()  # guards _wakeup: nobody writes to a closed descriptor
        self._outbox = Outbox()
        self.outboxes: dict[int, Outbox] = {}  # by thread, while it batches messages
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.ident = 0  # of the thread that leads now; 0 for none
        self._leading = threading.Lock()  # held by the leader
        self._awake = 0.0  # seconds to spin in the next poll
        self._lost = 0.0  # running mean of the seconds lost to other threads per sched_yield
        self._led = 0  # how often a waiting thread has led
        self.waiters: set[Waiter] = set()
        self._next: Waiter | None = None  # is to lead in its next wait, once it has its item
        self._stands_by, self._resumed = False, threading.Lock()  # released to end the standby
        self._resumed.acquire()
        self.watch(self._wakeup, self._clear_wakeup)

    def start(self) -> None:
        """Start the I/O thread."""
        self._thread.start()

    def run_batched(self, work: Callback) -> None:
        """Call a function, which must not block, and batch its messages to each peer in one packet;
        they are sent even if a signal handler raises."""
        batched_sends = BatchedSends(self.outboxes)
        try:
            with batched_sends:
                work()
        except BaseException:
            batched_sends.end()
            raise

    def flush(self) -> None:
        """Send the batched messages of this thread."""
        outbox = self.outboxes.get(threading.get_ident())
        if outbox is not None and outbox.pending:
            outbox.flush()

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is the I/O thread."""
        return threading.get_ident() == self.ident

    def watch(self, file: int, readable: Callback) -> None:
        """Call `readable` whenever a file descriptor is readable (level-triggered)."""
        self._callbacks[file] = readable
        self._epoll.register(file, select.EPOLLIN)

    def unwatch(self, file: int) -> None:
        """Stop watching a file descriptor; to be called before it is closed."""
        if self._callbacks.pop(file, None) is not None:
            with suppress(OSError, ValueError):  # the descriptor or the loop is closed already
                self._epoll.unregister(file)

    def call(self, function: Callback) -> None:
        """Queue a call on the I/O thread; from any thread."""
        self._calls.append(function)
        self.wake()
        if not self.ident:
            self.resume()

    def wake(self) -> None:
        """Interrupt the poll of the I/O thread; from any thread."""
        with self._ending:
            if self._wakeup >= 0:
                os.eventfd_write(self._wakeup, 1)

    def resume(self) -> None:
        """End the standby of the loop's own thread at once, if it stands by."""
        if self._stands_by:
            with suppress(RuntimeError):  # another thread has released it already
                self._resumed.release()

    def call_later(self, seconds: float, function: Callback) -> None:
        """Call a function on the I/O thread after a delay; from any thread."""
        order = next(self._order)
        self.call(lambda: heappush(self._timers, (self._now + seconds, order, function)))

    def stop(self) -> None:
        """Stop the loop, and join its thread unless the caller is the I/O thread."""
        self._stopped = True
        self.call(_no_op)
        if not self.is_current and self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        _wake_without_preempting()
        np.seterr(all="ignore")  # for kernels that callbacks run
        self._leading.acquire()
        while not self._stopped:
            self._lead_until_handover()
            if not self._stopped:
                self._stands_by = True
                self._leading.release()
                self._stand_by()
        self._epoll.close()
        with self._ending:
            os.close(self._wakeup)
            self._wakeup = -1

    def _lead_until_handover(self) -> None:
        """Lead until the waiter chosen to lead next has been given its item."""
        self._become_leader()
        timeout = 0.0
        while not self._stopped:
            self._run_callbacks(self._poll(timeout))
            timeout = self._run_due()
            if self._next is not None and not self._next.is_empty():
                self._next = None
                break
        self._stop_leading()

    def _stand_by(self) -> None:
        """Wait until no other thread leads, and lead; backs off while others do."""
        last_led, interval = -1, _STAND_BY
        while True:
            is_wanted = self._resumed.acquire(timeout=interval) or self._stopped
            if (is_wanted or last_led == self._led) and self._leading.acquire(blocking=is_wanted):
                break
            last_led, interval = self._led, min(2 * interval, _MAX_STAND_BY)
        self._stands_by = False

    def lead(self, waiter: Waiter) -> None:
        """Lead until the waiter has an item. If another thread leads, return at once: the loop's
        own thread stands by once this waiter has its item, unless there are other waiters."""
        if self._stopped or not self._leading.acquire(blocking=False):
            self._next = waiter if len(self.waiters) == 1 else None
            return
        try:
            self._become_leader()
            self._lead_for(waiter)
        finally:
            self._stop_leading()
            self._led += 1
            self._leading.release()
            if self._stopped or len(self.waiters) > 1 or self._calls:
                self.resume()

    def _lead_for(self, waiter: Waiter) -> None:
        timeout, is_empty = self._run_due(), waiter.is_empty
        while is_empty() and not self._stopped:
            self._run_callbacks(self._poll(timeout))
            timeout = self._run_due()

    def _poll(self, timeout: float) -> list[tuple[int, int]]:
        """Poll for events. While messages come at short intervals, spin with `sched_yield` between
        them: waking a sleeping core takes longer than reading a message. Stop spinning if another
        thread got the core, which is awake then. If yielding has cost too much lately, sleep at
        once: the scheduler prefers a woken thread to one that has yielded."""
        poll, now = self._epoll.poll, time.monotonic()
        if self._lost > _MAX_LOST:
            self._lost -= self._lost / 64  # decays until spinning is tried again
            spin_until = 0.0
        else:
            spin_until = now + self._awake
        while now < spin_until:
            events = poll(0, _MAX_EVENTS)
            if events:
                self._lost -= self._lost / 8
                return events
            os.sched_yield()
            previous, now = now, time.monotonic()
            if now - previous > _MAX_AWAY:
                self._lost += (now - previous - self._lost) / 8
                break
        events = poll(timeout, _MAX_EVENTS)
        self._awake = _AWAKE if time.monotonic() - now < _MAX_GAP else 0.0
        return events

    def _become_leader(self) -> None:
        self.ident = threading.get_ident()
        self.outboxes[self.ident] = self._outbox

    def _stop_leading(self) -> None:
        del self.outboxes[self.ident]
        self.ident = 0

    def _run_callbacks(self, events: list[tuple[int, int]]) -> None:
        callbacks, outbox = self._callbacks, self._outbox
        for file, _ in events:
            try:
                callbacks.get(file, _no_op)()
                if outbox.pending:
                    outbox.flush()
            except Exception:
                log_failure()
                guarded(outbox.flush)

    def _run_due(self) -> float:
        """Advance the clock, by at most the longest poll, and run queued calls and due timers;
        returns the timeout of the next poll."""
        now, timers = time.monotonic(), self._timers
        elapsed = now - self._last_poll
        self._now += elapsed if elapsed < _MAX_WAIT else _MAX_WAIT
        self._last_poll = now
        if self._calls:
            self._run_calls()
        if timers and timers[0][0] <= self._now:
            self._run_timers()
        if self._calls:
            return 0.0
        delay = timers[0][0] - self._now if timers else _MAX_WAIT
        return delay if delay < _MAX_WAIT else _MAX_WAIT

    def _run_calls(self) -> None:
        """Run the calls queued now, not those that they queue: sockets must not starve."""
        for _ in range(len(self._calls)):
            self._call(self._calls.popleft())

    def _run_timers(self) -> None:
        while self._timers and self._timers[0][0] <= self._now:
            self._call(heappop(self._timers)[2])

    def _call(self, function: Callback) -> None:
        guarded(function)
        if self._outbox.pending:
            guarded(self._outbox.flush)

    def _clear_wakeup(self) -> None:
        os.eventfd_read(self._wakeup)


class Waiter:
    """A queue that one thread waits on, leading the loop meanwhile; any thread may put items."""

    def __init__(self, loop: Loop) -> None:
        self._loop, self._thread = loop, threading.get_ident()
        self._items: SimpleQueue[Any] = SimpleQueue()
        self.is_empty = self._items.empty
        self._is_leading = False

    def put(self, item: Any) -> None:
        """Add an item, and wake the waiting thread; from any thread."""
        self._items.put(item)
        if self._is_leading and threading.get_ident() != self._thread:
            self._loop.wake()

    def get(self) -> Any:
        """Wait for the next item, FIFO; only on the thread that created this waiter."""
        if not self._items.empty():
            return self.get_elsewhere()
        self._is_leading = True  # before the queue is checked again
        self._loop.waiters.add(self)
        try:
            with _DeferredSignals(self):
                self._loop.lead(self)
            return self.get_elsewhere()
        finally:
            self._is_leading = False
            self._loop.waiters.discard(self)

    def get_elsewhere(self) -> Any:
        """Wait for the next item without leading the loop; on any thread."""
        while (item := self._items.get()) is _SIGNAL:
            pass
        return item


_SIGNAL = object()  # an item that only wakes the waiter, as a signal has arrived


class _PythonHandlers:
    """The signals with Python handlers, cached: needed in every wait, and seldom changed."""

    def __init__(self) -> None:
        self._dispositions: list[Any] = []
        self._handlers: dict[int, Callable[[int, Any], Any]] = {}

    def current(self) -> Mapping[int, Callable[[int, Any], Any]]:
        """The currently installed Python handlers, by signal."""
        dispositions = [*map(_signal.getsignal, _SIGNALS)]
        if dispositions != self._dispositions:
            pairs = zip(_SIGNALS, dispositions, strict=True)
            self._handlers = {number: handler for number, handler in pairs if callable(handler)}
            self._dispositions = dispositions
        return self._handlers


_python_handlers = _PythonHandlers()


class _DeferredSignals:
    """Defers signals with Python handlers, Ctrl-C among them, while the main thread runs callbacks:
    a handler that raises would leave a message half read."""

    def __init__(self, waiter: Waiter) -> None:
        self._waiter = waiter
        self._handlers: Mapping[int, Callable[[int, Any], Any]] = {}
        self._arrived = list[tuple[int, Any]]()

    def __enter__(self) -> None:
        if threading.get_ident() == threading.main_thread().ident:
            self._handlers = _python_handlers.current()
            for number in self._handlers:
                _signal.signal(number, self._defer)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            _signal.signal(number, handler)
        for number, frame in self._arrived:
            self._handlers[number](number, frame)

    def _defer(self, number: int, frame: Any) -> None:
        self._arrived.append((number, frame))
        self._waiter.put(_SIGNAL)


def _wake_without_preempting() -> None:
    """Use SCHED_BATCH, so that waking this thread does not preempt the sender. The scheduler would
    otherwise run it on the sender's core at once, even if others are idle, and delay the sender."""
    if os.sched_getscheduler(0) == os.SCHED_OTHER:
        with suppress(OSError):  # it may be forbidden
            os.sched_setscheduler(0, os.SCHED_BATCH | os.SCHED_RESET_ON_FORK, os.sched_param(0))


def guarded(function: Callable[..., None], *args: Any) -> None:
    """Call a function; an exception is logged, so that the loop goes on."""
    try:
        function(*args)
    except Exception:
        log_failure()


def log_failure() -> None:
    """Log the exception that a callback raised."""
    tf_logging.error("A callback of the cluster's transport failed", exc_info=True)


def _no_op() -> None:
    """The callback that only wakes the loop."""
