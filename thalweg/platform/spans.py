"""What happens beside a traced step: who worked or waited, on which thread, from when to when.

While a `Recorder` is on, threads add spans to it; with none on, they look at an empty tuple and
go on. What may outlast a recording, such as a wait for room in a queue, is known from its beginning
and is cut to the time of the recording. All times are nanoseconds of `time.perf_counter_ns`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

_MAX_SPANS = 100_000  # spans of one recording: more than anyone looks at


class Subject(Protocol):
    """What a span is about: a node, with the user's line."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def origin(self) -> str: ...


class Span(NamedTuple):
    """A time in which a thread did something."""

    what: str
    about: Subject
    thread: int
    start: int
    end: int


class Recorder:
    """Collects what happens on all threads while it is entered."""

    def __init__(self) -> None:
        self.spans: list[Span] = []  # when it is over, by their beginnings
        self._noted: list[Span] = []
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
        found = [*self._noted, *(each.span(end) for each in list(_lasting))]
        cut = [span._replace(start=max(span.start, self._start)) for span in found]
        self.spans = sorted(cut, key=lambda span: (span.start, -span.end))

    def add(self, span: Span) -> None:
        """Keep what this thread did."""
        if len(self._noted) < _MAX_SPANS:
            self._names[span.thread] = threading.current_thread().name
            self._noted.append(span)

    def lane(self, thread: int) -> str:
        """The name of a thread."""
        return self._names.get(thread, f"thread {thread}")


_recorders: tuple[Recorder, ...] = ()
_lasting: dict[Lasting, None] = {}
_watchers: list[Callable[[bool], None]] = []
_lock = threading.Lock()


def is_on() -> bool:
    """Whether anyone records."""
    return bool(_recorders)


def on_switch(watcher: Callable[[bool], None]) -> None:
    """Call a function with True when the first recording begins, with False when the last ended."""
    _watchers.append(watcher)


def _switch(change: Callable[[], tuple[Recorder, ...]]) -> None:
    global _recorders
    with _lock:
        was_on, _recorders = is_on(), change()
        if was_on != is_on():
            for watcher in _watchers:
                watcher(is_on())


def note(what: str, about: Subject, start: int) -> None:
    """Record what began at `start` and is over now."""
    _note(Span(what, about, threading.get_ident(), start, time.perf_counter_ns()))


def _note(span: Span) -> None:
    for recorder in _recorders:
        recorder.add(span)


class Lasting:
    """Inside the block this thread does what may have begun before a recording or end after it."""

    __slots__ = ("_about", "_start", "_thread", "_what")

    def __init__(self, what: str, about: Subject) -> None:
        self._what, self._about = what, about

    def __enter__(self) -> None:
        self._thread, self._start = threading.get_ident(), time.perf_counter_ns()
        _lasting[self] = None

    def __exit__(self, *_: Any) -> None:
        del _lasting[self]
        if _recorders:
            _note(self.span(time.perf_counter_ns()))

    def span(self, end: int) -> Span:
        """The span, if it ended now."""
        return Span(self._what, self._about, self._thread, self._start, end)


os.register_at_fork(after_in_child=_lasting.clear)  # threads that are not in the child
