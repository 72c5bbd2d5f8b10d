"""The I/O thread of an endpoint: it waits for sockets, timers and calls from other threads.

Callbacks run one at a time on this thread, so what only they touch needs no lock. An error in one
is logged and ends nothing. The thread is a daemon: it never keeps a process alive.

A thread that waits for what messages bring may be the I/O thread meanwhile: to wake it from another
one takes as long as to read a message. The thread that is there for it stands by then, and takes
over when nobody else did the work for a while. `Waiter` is such a thread's side of it.

Its clock stands still while the process is stopped, as by a signal, a debugger or a suspended
machine: nobody's time runs out then.
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

from thalweg.cluster.transport.outbox import Outbox, Together
from thalweg.platform import tf_logging

Callback = Callable[[], None]

_signal: Any = import_module("_signal")  # `signal` takes ten times as long
_SIGNALS = [number for number in range(1, SIGRTMIN) if number not in (SIGKILL, SIGSTOP)]

_MAX_WAIT = 1.0  # seconds between two looks at the timers
_MAX_EVENTS = 64  # that are looked at in one go
_STAND_BY, _MAX_STAND_BY = 1e-3, 8e-3  # seconds after which another thread must have been it again
_AWAKE = 500e-6  # seconds that the I/O thread does not sleep for after a message
_MAX_GAP = 5e-3  # seconds between two messages that it does so for
_MAX_AWAY = 20e-6  # seconds that another thread had the core: then it need not stay awake
_MAX_LOST = 200e-6


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
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.ident = 0  # of the I/O thread: who is it now, or nobody
        self._leading = threading.Lock()  # held by the I/O thread
        self._awake = 0.0  # seconds
        self._lost = 0.0  # seconds that others had the core for, once it was given to them; a mean
        self._led = 0  # how often a thread that waits was it
        self.waiters: set[Waiter] = set()
        self._next: Waiter | None = None  # who is to be it from what it waits for on
        self._stands_by, self._resumed = False, threading.Lock()  # free where it is to resume
        self._resumed.acquire()
        self.watch(self._wakeup, self._clear_wakeup)

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
        self.wake()
        if not self.ident:
            self.resume()

    def wake(self) -> None:
        """Have the I/O thread look at what it has to do."""
        with self._ending:
            if self._wakeup >= 0:
                os.eventfd_write(self._wakeup, 1)

    def resume(self) -> None:
        """Have the I/O thread be there for messages at once, if it stands by."""
        if self._stands_by:
            with suppress(RuntimeError):  # another thread has just done so
                self._resumed.release()

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
        self._leading.acquire()
        while not self._stopped:
            self._lead_on()
            if not self._stopped:
                self._stands_by = True
                self._leading.release()
                self._stand_by()
        self._epoll.close()
        with self._ending:
            os.close(self._wakeup)
            self._wakeup = -1

    def _lead_on(self) -> None:
        """Be the I/O thread until one that waited for something has got it, and may be it next."""
        self._take_over()
        timeout = 0.0
        while not self._stopped:
            self._call_back(self._poll(timeout))
            timeout = self._attend()
            if self._next is not None and not self._next.is_empty():
                self._next = None
                break
        self._leave()

    def _stand_by(self) -> None:
        """Wait until nobody else is the I/O thread, looking less often while others are."""
        led, pause = -1, _STAND_BY
        while True:
            is_wanted = self._resumed.acquire(timeout=pause) or self._stopped
            if (is_wanted or led == self._led) and self._leading.acquire(blocking=is_wanted):
                break
            led, pause = self._led, min(2 * pause, _MAX_STAND_BY)
        self._stands_by = False

    def lead(self, waiter: Waiter) -> None:
        """Be the I/O thread until somebody who waits has got something. Where another thread is it,
        do nothing: that one stands by the next time, unless others wait, too."""
        if self._stopped or not self._leading.acquire(blocking=False):
            self._next = waiter if len(self.waiters) == 1 else None
            return
        try:
            self._take_over()
            self._lead_for(waiter)
        finally:
            self._leave()
            self._led += 1
            self._leading.release()
            if self._stopped or len(self.waiters) > 1 or self._calls:
                self.resume()

    def _lead_for(self, waiter: Waiter) -> None:
        timeout, is_empty = self._attend(), waiter.is_empty
        while is_empty() and not self._stopped:
            self._call_back(self._poll(timeout))
            timeout = self._attend()

    def _poll(self, timeout: float) -> list[tuple[int, int]]:
        """Wait for what comes. While messages follow each other soon, stay awake between them and
        give way to other threads: a core that sleeps takes longer to wake than to read a message.
        One that has others to run does not sleep. Where these take long before they give way, sleep
        at once: who is woken by a message waits less than who has given way."""
        poll, now = self._epoll.poll, time.monotonic()
        if self._lost > _MAX_LOST:
            self._lost -= self._lost / 64  # till it is tried again
            asleep = 0.0
        else:
            asleep = now + self._awake
        while now < asleep:
            events = poll(0, _MAX_EVENTS)
            if events:
                self._lost -= self._lost / 8
                return events
            os.sched_yield()
            before, now = now, time.monotonic()
            if now - before > _MAX_AWAY:
                self._lost += (now - before - self._lost) / 8
                break
        events = poll(timeout, _MAX_EVENTS)
        self._awake = _AWAKE if time.monotonic() - now < _MAX_GAP else 0.0
        return events

    def _take_over(self) -> None:
        self.ident = threading.get_ident()
        self.outboxes[self.ident] = self._outbox

    def _leave(self) -> None:
        del self.outboxes[self.ident]
        self.ident = 0

    def _call_back(self, events: list[tuple[int, int]]) -> None:
        callbacks, outbox = self._callbacks, self._outbox
        for file, _ in events:
            try:
                callbacks.get(file, _nothing)()
                if outbox.held:
                    outbox.flush()
            except Exception:
                log_failure()
                guarded(outbox.flush)

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


class Waiter:
    """What one thread waits for: things that callbacks, or other threads, have put there."""

    def __init__(self, loop: Loop) -> None:
        self._loop, self._thread = loop, threading.get_ident()
        self._things: SimpleQueue[Any] = SimpleQueue()
        self.is_empty = self._things.empty
        self._is_leading = False

    def put(self, thing: Any) -> None:
        """Have the thread that waits get something; from any thread."""
        self._things.put(thing)
        if self._is_leading and threading.get_ident() != self._thread:
            self._loop.wake()

    def get(self) -> Any:
        """The next thing, in their order; on the thread that made this one."""
        if not self._things.empty():
            return self.get_elsewhere()
        self._is_leading = True  # before it is looked for again
        self._loop.waiters.add(self)
        try:
            with _Uninterrupted(self):
                self._loop.lead(self)
            return self.get_elsewhere()
        finally:
            self._is_leading = False
            self._loop.waiters.discard(self)

    def get_elsewhere(self) -> Any:
        """The next thing, on any thread."""
        while (thing := self._things.get()) is _SIGNAL:
            pass
        return thing


_SIGNAL = object()  # has arrived


class _PythonHandlers:
    """Which signals have handlers in Python. Asked before every wait, and seldom another answer."""

    def __init__(self) -> None:
        self._dispositions: list[Any] = []
        self._handlers: dict[int, Callable[[int, Any], Any]] = {}

    def current(self) -> Mapping[int, Callable[[int, Any], Any]]:
        """The handlers that are installed now, by signal."""
        dispositions = [*map(_signal.getsignal, _SIGNALS)]
        if dispositions != self._dispositions:
            pairs = zip(_SIGNALS, dispositions, strict=True)
            self._handlers = {number: handler for number, handler in pairs if callable(handler)}
            self._dispositions = dispositions
        return self._handlers


_python_handlers = _PythonHandlers()


class _Uninterrupted:
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
