"""Spans of work outside a traced step's kernels: what a thread did or waited for, and when.

While a `Recorder` is active, threads add spans to it; otherwise they only test an empty tuple. A
span that may outlast a recording, such as a wait for room in a queue, is registered when it begins
and clipped to the time of the recording. All times are nanoseconds of `time.perf_counter_ns`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

_MAX_SPANS = 100_000  # of one recording


class Subject(Protocol):
    """The node that a span belongs to, with the user's line."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def origin(self) -> str: ...


class Span(NamedTuple):
    """A time interval in which a thread did one thing, `what`, for a node."""

    what: str
    subject: Subject
    thread: int
    start: int
    end: int


class Recorder:
    """Collects the spans of all threads while it is entered."""

    def __init__(self) -> None:
        self.spans: list[Span] = []  # set at exit, sorted by start
        self._recorded: list[Span] = []
        self._names: dict[int, str] = {}
        self._start = 0

    def __enter__(self) -> Recorder:
        self._start = time.perf_counter_ns()
        _switch(lambda: (*_recorders, self))
        return self

    def __exit__(self, *_: Any) -> None:
        _switch(lambda: tuple([other for other in _recorders if other is not self]))
        end = time.perf_counter_ns()
        self._names |= {t.ident: t.name for t in threading.enumerate() if t.ident is not None}
        spans = [*self._recorded, *(open_span.span(end) for open_span in list(_open_spans))]
        clipped = [span._replace(start=max(span.start, self._start)) for span in spans]
        self.spans = sorted(clipped, key=lambda span: (span.start, -span.end))

    def add(self, span: Span) -> None:
        """Record a span of this thread."""
        if len(self._recorded) < _MAX_SPANS:
            self._names[span.thread] = threading.current_thread().name
            self._recorded.append(span)

    def lane(self, thread: int) -> str:
        """The name of a thread."""
        return self._names.get(thread, f"thread {thread}")


_recorders: tuple[Recorder, ...] = ()
_open_spans: dict[BlockSpan, None] = {}  # open spans that may outlast a recording
_watchers: list[Callable[[bool], None]] = []
_lock = threading.Lock()


def is_on() -> bool:
    """Whether a recorder is active."""
    return bool(_recorders)


def on_switch(watcher: Callable[[bool], None]) -> None:
    """Call a function with True when the first recording begins, with False when the last ends."""
    _watchers.append(watcher)


def _switch(change: Callable[[], tuple[Recorder, ...]]) -> None:
    global _recorders
    with _lock:
        was_on, _recorders = is_on(), change()
        if was_on != is_on():
            for watcher in _watchers:
                watcher(is_on())


def record_span(what: str, subject: Subject, start: int) -> None:
    """Record a span from `start` to now."""
    _record(Span(what, subject, threading.get_ident(), start, time.perf_counter_ns()))


def _record(span: Span) -> None:
    for recorder in _recorders:
        recorder.add(span)


class BlockSpan:
    """A span of this thread, the time of the block, which may begin before a recording or end after
    it."""

    __slots__ = ("_start", "_subject", "_thread", "_what")

    def __init__(self, what: str, subject: Subject) -> None:
        self._what, self._subject = what, subject

    def __enter__(self) -> None:
        self._thread, self._start = threading.get_ident(), time.perf_counter_ns()
        _open_spans[self] = None

    def __exit__(self, *_: Any) -> None:
        del _open_spans[self]
        if _recorders:
            _record(self.span(time.perf_counter_ns()))

    def span(self, end: int) -> Span:
        """The span, ended at `end`."""
        return Span(self._what, self._subject, self._thread, self._start, end)


os.register_at_fork(after_in_child=_open_spans.clear)  # spans of threads that the child has not
