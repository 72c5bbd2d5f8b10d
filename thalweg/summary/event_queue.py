"""A queue of events and the thread that writes them to a file.

Events come in from the thread that trains and wait there for at most as long as the queue is full;
what goes wrong in the writing thread is raised at the next call.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from os import PathLike

from thalweg import protos
from thalweg.platform.compat import as_str_any, path_to_str
from thalweg.platform.files import gfile
from thalweg.platform.forks import renewed_after_fork
from thalweg.public import public
from thalweg.summary.events import EventsWriter


class EventQueue:
    """Serialised events on their way to a file; at most `limit` wait, any number if it is 0."""

    def __init__(self, writer: EventsWriter, limit: int, flush_seconds: float) -> None:
        self._writer = writer
        self._limit = limit if limit > 0 else float("inf")
        self._flush_seconds = flush_seconds
        self.renew_locks()
        renewed_after_fork(self)

    def renew_locks(self) -> None:
        """A child of a fork has no writing thread; what waits is the parent's to write."""
        self._changed = threading.Condition()
        self._waiting: list[bytes] = []
        self._is_writing = False
        self._is_closing = False
        self._failure: Exception | None = None
        self._thread: threading.Thread | None = None
        self._next_flush = 0.0  # the first event is flushed at once
        self._is_flushed = True

    def put(self, event: bytes) -> None:
        """Add an event; waits while the queue is full."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure or len(self._waiting) < self._limit)
            self._raise_failure()
            self._waiting.append(event)
            self._start()
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all events are in the file."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._waiting or self._is_writing))
            self._raise_failure()
        self._writer.flush()

    def close(self) -> None:
        """End the thread when all events are in the file, and close the file."""
        with self._changed:
            thread, self._thread = self._thread, None
            self._is_closing = True
            self._changed.notify_all()
        if thread is threading.current_thread():
            return  # the garbage collector called from there; the thread closes the file itself
        if thread is not None:
            thread.join()
        else:
            self._writer.close()
        with self._changed:
            self._raise_failure()

    def _start(self) -> None:
        if self._thread is None:
            self._is_closing = False
            self._thread = threading.Thread(target=self._run, name="event writer", daemon=True)
            self._thread.start()

    def _raise_failure(self) -> None:
        """Raise once what the thread could not do."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closing, self._patience())
                events, self._waiting = self._waiting, []
                self._is_writing = True
                is_closing = self._is_closing and not events
                self._changed.notify_all()
            failure = self._write(events, is_closing)
            with self._changed:
                self._is_writing = False
                self._failure = failure or self._failure
                self._changed.notify_all()
            if is_closing:
                return

    def _patience(self) -> float | None:
        """How long the thread may sleep before it has to flush."""
        return None if self._is_flushed else max(0.0, self._next_flush - time.monotonic())

    def _write(self, events: list[bytes], is_closing: bool) -> Exception | None:
        """Write, and flush when it is time; what went wrong, if anything did."""
        try:
            for event in events:
                self._writer.write(event)
                self._is_flushed = False
            if not self._is_flushed and time.monotonic() >= self._next_flush:
                self._writer.flush()
                self._is_flushed = True
                self._next_flush = time.monotonic() + self._flush_seconds
            if is_closing:
                self._writer.close()
        except Exception as error:  # whatever it is, the caller of the next method gets it
            return error
        return None


@public("summary.EventFileWriter")
class EventFileWriter:
    """Writes Event messages to a new event file in `logdir`, from a thread of its own."""

    def __init__(
        self,
        logdir: str | PathLike[str],
        max_queue: int = 10,
        flush_secs: float = 120,
        filename_suffix: str | bytes | None = None,
    ) -> None:
        self._logdir = as_str_any(path_to_str(logdir))
        gfile.MakeDirs(self._logdir or ".")
        prefix = os.path.join(self._logdir, "events")
        self._writer = EventsWriter(prefix, as_str_any(filename_suffix or ""))
        self._queue = EventQueue(self._writer, max_queue, flush_secs)
        self._closed = False
        # What waits is written also when nobody closes this object, or the program ends.
        weakref.finalize(self, self._queue.close)

    def get_logdir(self) -> str:
        """The folder of the event file."""
        return self._logdir

    def add_event(self, event: protos.Event) -> None:
        """Add an Event message; nothing happens if the writer is closed."""
        self.add_bytes(event.SerializeToString())

    def add_bytes(self, event: bytes) -> None:
        """Add a serialised Event; nothing happens if the writer is closed."""
        if not self._closed:
            self._queue.put(event)

    def flush(self) -> None:
        """Wait until all events are in the file."""
        if not self._closed:
            self._queue.flush()

    def close(self) -> None:
        """Flush and close the file."""
        if not self._closed:
            self._closed = True
            self._queue.close()

    def reopen(self) -> None:
        """Go on in a new file after `close`; nothing happens if it was not closed."""
        if self._closed:
            self._closed = False
            self._writer.open()
