"""The readers of a session: they take work units, mostly names of files, from a queue.

A record is a key and a value. Readers are thread-safe: one thread waits for the next work unit on
the queue, the others wait for that thread, and none holds a lock meanwhile.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.ops.core.context import Cancellation
from thalweg.ops.state.queue_state import Queue
from thalweg.ops.text import text
from thalweg.platform.files import records, wire
from thalweg.platform.files.gfile import GFile
from thalweg.platform.forks import renewed_after_fork

Record = tuple[bytes, bytes]

_MAX_RECORDS = (1 << 63) - 1
_BLOCK = 1 << 18


class State(NamedTuple):
    """The position of a reader; the fields are numbered as in TensorFlow's ReaderBaseState."""

    work_started: int = 0
    work_finished: int = 0
    records_produced: int = 0
    current_work: bytes = b""
    records_of_work: int = 0  # of the current unfinished work unit; not in TensorFlow

    def to_bytes(self) -> bytes:
        """The state as a protobuf."""
        return b"".join(
            wire.bytes_field(number, value)
            if isinstance(value, bytes)
            else wire.integer_field(number, value)
            for number, value in enumerate(self, 1)
            if value
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> State:
        """Parse a state; raises ValueError for invalid bytes."""
        values: list[Any] = list(cls())
        for field in wire.fields(data):
            place = field.number - 1
            if place not in range(len(values)) or type(field.value) is not type(values[place]):
                raise ValueError(f"field {field.number} is not one of a reader's state")
            values[place] = field.value
        return cls(*values)._checked()

    def _checked(self) -> State:
        numbers = (self.work_started, self.work_finished, self.records_produced)
        if max(*numbers, self.records_of_work) > _MAX_RECORDS:
            raise ValueError("a count is negative")
        if self.work_started - self.work_finished not in (0, 1):
            raise ValueError("more than one work is under way")
        return self


class Reader:
    """The protocol of all readers; subclasses define the records of a work unit."""

    kind: ClassVar[str] = ""
    #: a work unit is a single record
    is_single: ClassVar[bool] = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.renew_locks()
        renewed_after_fork(self)
        self._set(State())

    def renew_locks(self) -> None:
        """Replace the lock by one that is not held, without waiters."""
        self._changed = threading.Condition()
        self._fetching = False

    def records(self, work: bytes) -> Iterator[Record]:
        """The records of a work unit."""
        raise TypeError(f"{type(self).__name__} must define records")

    @property
    def state(self) -> State:
        """The position of the reader."""
        with self._changed:
            return State(self._started, self._finished, self._produced, self._work, self._of_work)

    # Operations of steps

    def read(self, queue: Queue, cancellation: Cancellation, most: int = 1) -> list[Record]:
        """Up to `most` next records of one work unit; blocks if the queue has no work unit."""
        check_queue(queue)
        unregister = cancellation.on_cancel(self._wake)
        try:
            with self._changed:
                while not (found := self._next_records(most)):
                    self._await_work(queue, cancellation)
                return found
        finally:
            unregister()

    def reset(self) -> None:
        """Drop the current work unit and reset the counts."""
        self._set(State())

    def restore(self, data: bytes) -> None:
        """Restore the state of a reader of this kind."""
        try:
            state = State.from_bytes(data)
        except ValueError as error:
            raise errors.invalid(
                f"Could not parse state for {self.kind} '{self.name}': {data!r} ({error})"
            ) from error
        self._set(state)

    # Internals

    def _set(self, state: State) -> None:
        with self._changed:
            self._started, self._finished, self._produced = state[:3]
            self._work, self._of_work = state[3:]
            self._current: Iterator[Record] | None = None
            if self._started > self._finished:
                rest = itertools.islice(self.records(self._work), self._of_work, None)
                self._current = rest

    def _next_records(self, most: int) -> list[Record]:
        """Up to `most` records of the current work unit; finishes it at its end."""
        if self._current is None:
            return []
        result: list[Record] = []
        try:
            result.extend(itertools.islice(self._current, most))
        except errors.OpError as error:
            if not result:
                self._finish()
                raise
            self._current = _failing(error)
        self._produced += len(result)
        self._of_work += len(result)
        if self.is_single or not result:
            self._finish()
        return result

    def _finish(self) -> None:
        self._current, self._of_work = None, 0
        self._finished += 1

    def _await_work(self, queue: Queue, cancellation: Cancellation) -> None:
        """Wait for the next work unit, or for a thread that does. Releases the lock meanwhile."""
        if self._current is not None:
            return
        if self._fetching:
            cancellation.check()
            self._changed.wait()
            return
        self._fetching = True
        try:
            work = self._fetched(queue, cancellation)
        finally:
            self._fetching = False
            self._changed.notify_all()
        self._work, self._of_work = work, 0
        self._started += 1
        self._current = self.records(work)

    def _fetched(self, queue: Queue, cancellation: Cancellation) -> bytes:
        self._changed.release()
        try:
            return text.text_item(queue.dequeue(cancellation, -1)[0])
        finally:
            self._changed.acquire()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


def _failing(error: errors.OpError) -> Iterator[Record]:
    """The rest of a work unit that failed after some records: raises its error."""
    raise error
    yield  # makes this a generator


def check_queue(queue: Queue) -> None:
    """Raise unless the elements of a queue are single strings."""
    if queue.components.dtypes != (dtypes.string,):
        found = ", ".join(dtype.name for dtype in queue.components.dtypes)
        raise errors.invalid(
            f"A reader takes single strings from a queue, '{queue.name}' has {found}"
        )


# Kinds of readers


class IdentityReader(Reader):
    """The record is the work unit itself."""

    kind = "IdentityReader"
    is_single = True

    def records(self, work: bytes) -> Iterator[Record]:
        yield work, work


class WholeFileReader(Reader):
    """A record is a whole file."""

    kind = "WholeFileReader"
    is_single = True

    def records(self, work: bytes) -> Iterator[Record]:
        with GFile(work, "rb") as file:
            yield work, file.read()


class TextLineReader(Reader):
    """A record is a line without its line end; the key has its number, from one."""

    kind = "TextLineReader"

    def __init__(self, name: str, skip_header_lines: int) -> None:
        self._header = skip_header_lines
        super().__init__(name)

    def records(self, work: bytes) -> Iterator[Record]:
        with GFile(work, "rb") as file:
            numbered = itertools.islice(enumerate(file, 1), self._header, None)
            for number, line in numbered:
                # TensorFlow removes all carriage returns, also inside lines.
                yield b"%b:%d" % (work, number), line.removesuffix(b"\n").replace(b"\r", b"")


class FixedLengthRecordReader(Reader):
    """Records of a fixed length between header and footer; the key has the number, from zero."""

    kind = "FixedLengthRecordReader"

    def __init__(
        self, name: str, record: int, header: int, footer: int, hop: int, encoding: str
    ) -> None:
        self._record, self._header, self._footer = record, header, footer
        self._hop = hop or record  # from the start of a record to that of the next
        self._encoding = encoding
        super().__init__(name)

    def records(self, work: bytes) -> Iterator[Record]:
        source = records.opened(work.decode(), self._encoding)
        try:
            yield from self._cut(work, source)
        finally:
            source.close()

    def _cut(self, work: bytes, source: records.PlainFile | records.PackedFile) -> Iterator[Record]:
        size, start = self._record + self._footer, self._header
        data, offset = b"", 0
        for number in itertools.count():
            while offset + len(data) < start + size:
                piece = source.read(max(_BLOCK, start + size - offset - len(data)))
                if not piece:
                    return
                kept = data[start - offset :]
                offset += len(data) - len(kept)
                data = kept + piece
            place = start - offset
            yield b"%b:%d" % (work, number), data[place : place + self._record]
            start += self._hop


class TFRecordReader(Reader):
    """The records of TFRecord files; the key has the offset."""

    kind = "TFRecordReader"

    def __init__(self, name: str, compression_type: str) -> None:
        self._compression_type = compression_type
        super().__init__(name)

    def records(self, work: bytes) -> Iterator[Record]:
        reader = records.RecordReader(work, self._compression_type)
        try:
            for block in reader.blocks():
                for value, offset in zip(block.records, block.offsets, strict=True):
                    yield b"%b:%d" % (work, offset), value
        finally:
            reader.close()
