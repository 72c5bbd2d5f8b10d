"""Large values over a network: chunks, which come to where the value will be.

That memory serves again once the value is gone, so that it is mapped already. Over a connection
that has messages, too, a sender may have a window of bytes under way, and waits, on the thread that
sends, until the receiver says that it took some.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from thalweg import errors
from thalweg.cluster.wire import ValueHeader, WireError

CHUNK = 1 << 20  # bytes
WINDOW = 16 * CHUNK  # bytes under way to a peer; memory and delay grow with it
_MAX_KEPT = 256 << 20  # bytes of memory that waits to serve again


def chunks(content: memoryview) -> Iterator[memoryview]:
    """The pieces in which a value travels."""
    for start in range(0, content.nbytes, CHUNK):
        yield content[start : start + CHUNK]


class Window:
    """How many bytes may leave."""

    def __init__(self) -> None:
        self._room = WINDOW
        self._changed = threading.Condition()
        self._is_closed = False

    def take(self, nbytes: int) -> None:
        """Wait until so many bytes may leave, or there is nowhere to go."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._room >= nbytes)
            self._room -= nbytes

    def give(self, nbytes: int) -> None:
        """The receiver took so many bytes."""
        with self._changed:
            self._room = min(self._room + nbytes, WINDOW)
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing leaves any more, and nobody waits."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


class Recycler:
    """Memory for values that come in. It is used again when the array made of it is gone."""

    def __init__(self) -> None:
        self._kept: deque[mmap.mmap] = deque()

    def take(self, nbytes: int) -> mmap.mmap:
        """So much memory. It is no array: views of an array made of it refer to that, whose end
        is then theirs."""
        for _ in range(len(self._kept)):
            try:
                memory = self._kept.popleft()
            except IndexError:  # another thread was faster
                break
            if len(memory) == nbytes:
                return memory
            self._kept.append(memory)
        return mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def keep_after(self, owner: Any, memory: mmap.mmap) -> None:
        """Have memory serve again once an object is gone."""
        weakref.finalize(owner, self.keep, memory).atexit = False

    def keep(self, memory: mmap.mmap) -> None:
        """Have memory serve again. The collector of garbage calls it, so it takes no lock."""
        self._kept.append(memory)
        if sum(map(len, self._kept.copy())) > _MAX_KEPT:
            self._kept.popleft()


class _Incoming:
    """The values of one message whose chunks come in."""

    def __init__(self, missing: int, done: Callable[[], None]) -> None:
        self.missing, self.done = missing, done


class _Stream:
    """A value whose chunks come in."""

    def __init__(self, memory: mmap.mmap, message: _Incoming) -> None:
        self.memory, self.message = memoryview(memory), message
        self.taken = 0  # bytes that a chunk has come for, or comes now
        self.missing = len(memory)  # bytes that are not there


class Streams:
    """The values of a peer whose chunks come in; on the I/O thread."""

    def __init__(self, recycler: Recycler) -> None:
        self._recycler = recycler
        self._streams: dict[int, _Stream] = {}
        self._announced = 0  # bytes of all of them

    def expect(self, headers: Sequence[ValueHeader], done: Callable[[], None]) -> list[mmap.mmap]:
        """Memory for values that are about to come; `done` is called when all are there."""
        nbytes = sum(header.nbytes for header in headers)
        if self._announced + nbytes > _physical_memory():
            raise errors.ResourceExhaustedError(None, None, f"{nbytes} bytes are announced")
        if any(header.number in self._streams or not header.nbytes for header in headers):
            raise WireError("a stream of no bytes, or one that is open already")
        message = _Incoming(nbytes, done)
        memory = [self._recycler.take(header.nbytes) for header in headers]
        for header, each in zip(headers, memory, strict=True):
            self._streams[header.number] = _Stream(each, message)
        self._announced += nbytes
        return memory

    def room(self, number: int, nbytes: int) -> memoryview:
        """Where the next chunk of a stream belongs; on the thread that chunks come on."""
        stream = self._streams.get(number)
        if stream is None or not 0 < nbytes <= stream.memory.nbytes - stream.taken:
            raise WireError(f"{nbytes} bytes for stream {number}")
        start, stream.taken = stream.taken, stream.taken + nbytes
        return stream.memory[start : stream.taken]

    def filled(self, number: int, nbytes: int) -> None:
        """The next chunk of a stream is there."""
        stream = self._streams[number]
        stream.missing -= nbytes
        if not stream.missing:
            del self._streams[number]
            self._announced -= stream.memory.nbytes
        stream.message.missing -= nbytes
        if not stream.message.missing:
            stream.message.done()


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
