"""Streams: large values sent over a network in chunks, received into the value's own memory.

That memory is recycled once the value is freed, so that its pages are mapped already. On a
connection that also carries messages, flow control is by credit: a sender has at most a window of
bytes in flight, and the sending thread blocks until the receiver returns credit.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from thalweg import errors
from thalweg.cluster.wire import ValueHeader, WireError

CHUNK = 1 << 20  # bytes
WINDOW = 16 * CHUNK  # bytes in flight to a peer; bounds memory and latency
_MAX_KEPT = 256 << 20  # bytes of free memory kept for reuse
_MIN_HUGE = 4 << 20  # bytes from which memory is in huge pages


def chunks(content: memoryview) -> Iterator[memoryview]:
    """Views of the successive chunks of a value."""
    for start in range(0, content.nbytes, CHUNK):
        yield content[start : start + CHUNK]


class Window:
    """The credit window of a sender."""

    def __init__(self) -> None:
        self._room = WINDOW
        self._changed = threading.Condition()
        self._is_closed = False

    def consume(self, nbytes: int) -> None:
        """Consume credit; blocks until there is enough, or the window is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._room >= nbytes)
            self._room -= nbytes

    def add(self, nbytes: int) -> None:
        """Add credit that the receiver returned."""
        with self._changed:
            self._room = min(self._room + nbytes, WINDOW)
            self._changed.notify_all()

    def close(self) -> None:
        """Wake all blocked senders; nothing blocks from now on."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


class Recycler:
    """Memory for received values, reused after the array over it is freed."""

    def __init__(self) -> None:
        self._free: deque[mmap.mmap] = deque()

    def allocate(self, nbytes: int) -> mmap.mmap:
        """Memory of exactly `nbytes`. It is an mmap, not an array: the base of all views is then
        the array created over it, which is freed last."""
        for _ in range(len(self._free)):
            try:
                memory = self._free.popleft()
            except IndexError:  # another thread took the last one
                break
            if len(memory) == nbytes:
                return memory
            self._free.append(memory)
        return _map(nbytes)

    def keep_after(self, owner: Any, memory: mmap.mmap) -> None:
        """Make memory available for reuse when `owner` is freed."""
        weakref.finalize(owner, self.keep, memory).atexit = False

    def keep(self, memory: mmap.mmap) -> None:
        """Make memory available for reuse; called during garbage collection, so takes no lock."""
        self._free.append(memory)
        if sum(map(len, self._free.copy())) > _MAX_KEPT:
            self._free.popleft()


class _IncompleteMessage:
    """A message of which chunks are missing: of how many values, and the completion callback."""

    def __init__(self, missing: int, done: Callable[[], None]) -> None:
        self.missing, self.done = missing, done


class _Stream:
    """A value of which chunks are missing."""

    def __init__(self, memory: mmap.mmap, message: _IncompleteMessage) -> None:
        self.memory, self.message = memoryview(memory), message
        self.received = 0  # bytes whose chunk has arrived or is being received


class Streams:
    """The incomplete values of a peer; on the I/O thread, except `buffer_for` and `is_received`."""

    def __init__(self, recycler: Recycler) -> None:
        self._recycler = recycler
        self._streams: dict[int, _Stream] = {}
        self._announced = 0  # bytes of all incomplete values

    def expect(self, headers: Sequence[ValueHeader], done: Callable[[], None]) -> list[mmap.mmap]:
        """Allocate memory for announced values; calls `done` when all have arrived."""
        nbytes = sum(header.nbytes for header in headers)
        if self._announced + nbytes > _physical_memory():
            raise errors.ResourceExhaustedError(None, None, f"{nbytes} bytes are announced")
        if any(header.number in self._streams or not header.nbytes for header in headers):
            raise WireError("a stream of no bytes, or one that is open already")
        message = _IncompleteMessage(len(headers), done)
        memory = [self._recycler.allocate(header.nbytes) for header in headers]
        for header, buffer in zip(headers, memory, strict=True):
            self._streams[header.number] = _Stream(buffer, message)
        self._announced += nbytes
        return memory

    def buffer_for(self, number: int, nbytes: int) -> memoryview:
        """The memory for the next chunk of a stream; on the thread that receives chunks."""
        stream = self._streams.get(number)
        if stream is None or not 0 < nbytes <= stream.memory.nbytes - stream.received:
            raise WireError(f"{nbytes} bytes for stream {number}")
        start, stream.received = stream.received, stream.received + nbytes
        return stream.memory[start : stream.received]

    def is_received(self, number: int) -> bool:
        """Whether all of a stream was received; on the thread that receives chunks, after it has
        filled what `room` returned."""
        stream = self._streams[number]
        return stream.received == stream.memory.nbytes

    def complete(self, number: int) -> None:
        """Take over a stream that was received."""
        stream = self._streams.pop(number)
        self._announced -= stream.memory.nbytes
        stream.message.missing -= 1
        if not stream.message.missing:
            stream.message.done()


def _map(nbytes: int) -> mmap.mmap:
    """New memory, in huge pages if possible: the first writes then fault a fifth of the time."""
    memory = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= _MIN_HUGE:
        with suppress(OSError):  # the kernel has none
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
