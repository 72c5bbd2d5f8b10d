"""Event files: Event protocol buffers as TFRecords, in a file whose name TensorBoard looks for.

Serialised events come in; records go out to a file in whole pieces, so that a reader that follows
the file, or a crash, finds no more than the last record cut short. `summary_iterator` reads back.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from thalweg import errors, protos
from thalweg.platform.compat import as_str_any
from thalweg.platform.files.records import RecordReader, framed
from thalweg.platform.files.wire import bytes_field, double_field, integer_field
from thalweg.platform.forks import renewed_after_fork
from thalweg.public import public

VERSION = b"brain.Event:2"

# The numbers of the fields of the message Event.
FILE_VERSION, GRAPH, SUMMARY, SESSION_LOG, TAGGED_RUN_METADATA, META_GRAPH = 3, 4, 5, 7, 8, 9

_MAX_BUFFERED = 1 << 16


def event_bytes(field: int, content: bytes, step: int | None = None) -> bytes:
    """An Event of this moment with one field."""
    return double_field(1, time.time()) + integer_field(2, step or 0) + bytes_field(field, content)


class EventsWriter:
    """Appends serialised events to a new file `<prefix>.out.tfevents.<seconds>.<host><suffix>`."""

    def __init__(self, prefix: str, suffix: str = "") -> None:
        self._prefix = os.path.abspath(prefix)  # wherever the program goes
        self._suffix = suffix
        self._file: int | None = None
        self._path = ""
        self._size = 0  # of the whole records in the file
        self.renew_locks()
        renewed_after_fork(self)
        self.open()

    @property
    def path(self) -> str:
        """The file that is written now, or was last."""
        return self._path

    def renew_locks(self) -> None:
        """A child of a fork begins a file of its own; what waits is the parent's to write."""
        self._lock = threading.Lock()
        self._close()
        self._waiting: list[bytes] = []
        self._waiting_size = 0

    def open(self) -> None:
        """Begin a file, unless one is open."""
        with self._lock:
            if self._file is None:
                self._open()

    def write(self, event: bytes) -> None:
        """Append an event; it may stay in memory until `flush`."""
        record = framed(event)
        with self._lock:
            if self._file is None:
                self._open()
            self._waiting.append(record)
            self._waiting_size += len(record)
            if self._waiting_size >= _MAX_BUFFERED:
                self._write_out()

    def flush(self) -> None:
        """Hand all events to the operating system."""
        with self._lock:
            self._write_out()

    def close(self) -> None:
        """Flush and close; a later `write` begins another file."""
        with self._lock:
            try:
                self._write_out()
            finally:
                self._close()

    def _open(self) -> None:
        """Make a file of its own: of two writers in one second, the later takes a later name."""
        host = socket.gethostname()
        seconds = int(time.time())
        while self._file is None:
            path = f"{self._prefix}.out.tfevents.{seconds:010d}.{host}{self._suffix}"
            self._file = _created(path)
            self._path = path
            seconds += 1
        self._size = 0
        self._append(framed(event_bytes(FILE_VERSION, VERSION)))

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write_out(self) -> None:
        """Write what waits. What cannot be written is lost, and the error says so."""
        if not self._waiting:
            return
        records, self._waiting, self._waiting_size = self._waiting, [], 0
        try:
            if not os.path.exists(self._path):
                self._close()  # somebody removed it: what follows goes to a new one
                self._open()
            self._append(b"".join(records))
        except OSError as error:
            raise errors.DataLossError(
                None,
                None,
                f"{self._path}: {len(records)} events could not be written at byte {self._size}: "
                f"{error.strerror}",
            ) from error

    def _append(self, data: bytes) -> None:
        """Write all of the data, or nothing that a reader would stumble over."""
        assert self._file is not None
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(data)


def _created(path: str) -> int | None:
    """A new file that is appended to; None if there is one of that name."""
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return None


@public("train.summary_iterator")
def summary_iterator(path: Any) -> Iterator[Any]:
    """The Event messages of an event file.

    Args:
        path: the file.

    Returns:
        An iterator of `tf.Event`s.

    Example:
        >>> with tf.summary.FileWriter("logs") as writer:
        ...     writer.add_summary(sess.run(tf.summary.scalar("loss", 0.5)), global_step=3)
        >>> first, second = tf.train.summary_iterator(tf.gfile.Glob("logs/*")[0])
        >>> second.step, second.summary.value[0].tag
        (3, 'loss')
    """
    reader = RecordReader(path)
    event = protos.Event
    try:
        for record in reader:
            yield _parsed(event, record, path)
    finally:
        reader.close()


def _parsed(event: Any, record: bytes, path: Any) -> Any:
    try:
        return event.FromString(record)
    except Exception as error:  # protobuf's own class is not known before it is imported
        raise errors.DataLossError(
            None, None, f"{as_str_any(path)}: a record is no Event: {error}"
        ) from error
