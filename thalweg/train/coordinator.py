"""Threads that end together: one asks for a stop, all see it, and an error is raised by `join`."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, cast

from thalweg import errors
from thalweg.platform import tf_logging
from thalweg.platform.described import described
from thalweg.public import public

#: How often a `join` without a stop in sight looks whether one was requested, in seconds.
_GLANCE = 0.05


@public("train.Coordinator")
class Coordinator:
    """Lets threads stop each other.

    Threads ask `should_stop()` now and then; any of them may call `request_stop()`, with the error
    that is the reason. `join` waits for all of them and raises that error.

    Args:
        clean_stop_exception_types: errors that end the work without being raised by `join`;
            `OutOfRangeError` if None.

    Example:
        >>> import threading
        >>> coord = tf.train.Coordinator()
        >>> def work():
        ...     while not coord.should_stop():
        ...         coord.request_stop()
        >>> thread = threading.Thread(target=work)
        >>> thread.start()
        >>> coord.join([thread])
        >>> coord.should_stop()
        True
    """

    def __init__(
        self, clean_stop_exception_types: Iterable[type[BaseException]] | None = None
    ) -> None:
        clean = clean_stop_exception_types
        self._clean = (errors.OutOfRangeError,) if clean is None else tuple(clean)
        self._lock = threading.Lock()
        self._stop_event = threading.Event()
        self._error: BaseException | None = None
        self._joined = False
        self._registered_threads: set[threading.Thread] = set()

    def __repr__(self) -> str:
        state = "stopping" if self._stop_event.is_set() else "running"
        threads = len(self._registered_threads)
        return described(self, threads=threads, state="joined" if self._joined else state)

    @property
    def joined(self) -> bool:
        """Whether the threads were joined since the last `clear_stop`."""
        return self._joined

    def request_stop(self, ex: BaseException | tuple[Any, Any, Any] | None = None) -> None:
        """Ask all threads to stop. The first error (or `sys.exc_info()`) given is kept for `join`.

        Once everything was joined an error has no other way out, and is raised at once.
        """
        with self._lock:
            error = self._reported(ex)
            if error is not None and self._joined:
                raise error
            if self._stop_event.is_set():
                return
            if error is not None:
                kind = type(error)
                tf_logging.info("Error reported to Coordinator: %s, %s", kind, error)
                self._error = error
            self._stop_event.set()

    def _reported(self, ex: Any) -> BaseException | None:
        """The error to report: none where it is the usual end."""
        error: Any = ex
        if isinstance(ex, tuple):
            _, error, traceback = cast("tuple[Any, Any, Any]", ex)
            error = error.with_traceback(traceback)
        if error is None or isinstance(error, self._clean):
            return None
        if isinstance(error, BaseException):
            return error
        return ValueError(f"a stop is requested with an exception or sys.exc_info(), not {ex!r}")

    def clear_stop(self) -> None:
        """Reset: no stop is requested, no error kept."""
        with self._lock:
            self._joined = False
            self._error = None
            self._stop_event.clear()

    def should_stop(self) -> bool:
        """Whether a stop was requested."""
        return self._stop_event.is_set()

    @contextlib.contextmanager
    def stop_on_exception(self) -> Generator[None]:
        """Request a stop with whatever the block raises."""
        try:
            yield
        except Exception as error:
            self.request_stop(error)

    def wait_for_stop(self, timeout: float | None = None) -> bool:
        """Wait until a stop is requested, at most `timeout` seconds; whether it was."""
        return self._stop_event.wait(timeout)

    def register_thread(self, thread: threading.Thread) -> None:
        """Have `join` wait for a thread."""
        with self._lock:
            self._registered_threads.add(thread)

    def join(
        self,
        threads: Iterable[threading.Thread] | None = None,
        stop_grace_period_secs: float = 120,
        ignore_live_threads: bool = False,
    ) -> None:
        """Wait for `threads` and those registered to end, and raise the error that stopped them.

        Once a stop is requested they have a grace period; a RuntimeError names those still alive
        after it, unless they are to be ignored.
        """
        with self._lock:
            awaited = self._registered_threads.union(threads or ())
        self._await_stop(awaited)
        deadline = time.monotonic() + stop_grace_period_secs
        for thread in awaited:
            _join(thread, deadline - time.monotonic())
        alive = [thread.name for thread in awaited if thread.is_alive()]
        with self._lock:
            self._joined = True
            self._registered_threads = set()
        self.raise_requested_exception()
        if alive:
            _report_alive(alive, ignore_live_threads)

    def _await_stop(self, threads: Iterable[threading.Thread]) -> None:
        """Wait until a stop is requested or all threads have ended."""
        for thread in threads:
            while thread.is_alive() and not self.should_stop():
                _join(thread, _GLANCE)

    def raise_requested_exception(self) -> None:
        """Raise the error that a stop was requested with, if there was one."""
        with self._lock:
            error = self._error
        if error is not None:
            raise error


def _join(thread: threading.Thread, seconds: float) -> None:
    """Wait for a thread to end; one that was never started has."""
    if thread.is_alive():
        thread.join(max(seconds, 0))


def _report_alive(names: Sequence[str], ignored: bool) -> None:
    message = f"Coordinator stopped with threads still running: {' '.join(names)}"
    if not ignored:
        raise RuntimeError(message)
    tf_logging.info(message)


@public("train.LooperThread")
class LooperThread(threading.Thread):
    """A thread that calls `target` (or `run_loop`) again and again until a stop is requested.

    With an interval it does so on a timer, otherwise back to back.
    """

    def __init__(
        self,
        coord: Coordinator,
        timer_interval_secs: float | None,
        target: Callable[..., Any] | None = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(coord, Coordinator):  # pyright: ignore[reportUnnecessaryIsInstance] - user input
            raise ValueError(f"'coord' argument must be a Coordinator: {coord}")
        if target is None and (args or kwargs):
            raise ValueError("'args' and 'kwargs' argument require that you also pass 'target'")
        super().__init__(daemon=True)
        self._coordinator = coord
        self._interval = timer_interval_secs
        self._call = target
        self._arguments = tuple(args or ())
        self._named = dict(kwargs or {})
        coord.register_thread(self)

    @staticmethod
    def loop(
        coord: Coordinator,
        timer_interval_secs: float | None,
        target: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> LooperThread:
        """Start a thread that calls `target` until a stop is requested."""
        looper = LooperThread(coord, timer_interval_secs, target, args, kwargs)
        looper.start()
        return looper

    def run(self) -> None:
        """What the thread does; an error of it requests a stop."""
        with self._coordinator.stop_on_exception():
            self.start_loop()
            if self._interval is None:
                while not self._coordinator.should_stop():
                    self.run_loop()
            else:
                self._run_on_timer(self._interval)
            self.stop_loop()

    def _run_on_timer(self, interval: float) -> None:
        due = time.monotonic()
        while not self._coordinator.wait_for_stop(due - time.monotonic()):
            due += interval
            self.run_loop()

    def start_loop(self) -> None:
        """Called once, before the first round."""

    def stop_loop(self) -> None:
        """Called once, after the last round."""

    def run_loop(self) -> None:
        """One round."""
        if self._call is not None:
            self._call(*self._arguments, **self._named)
