"""Tensors between processes of one host: written once to shared memory, and read in place.

A sender has a pool of segments for each peer, each cut into slots of one size. It copies a tensor
to a free slot and tells the peer which; the peer maps the segment, once, and makes an array of the
slot. When the last reference to that array is gone, the peer writes so into the segment's first
page, where the sender finds it: nothing is sent, nothing waits.

Segments have no names: a peer opens them through the sender's file descriptors in /proc, which only
processes of the same user may. The system frees them with the last process that has them mapped,
however that ends. A slot that a lost peer may still read is never written to again.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import struct
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple

from thalweg.cluster.wire import WireError
from thalweg.platform.forks import renewed_after_fork

_PAGE = mmap.PAGESIZE
FIRST_LEASE = 64  # where in its first page a segment has a byte for each slot: 1 while it is lent
_MAX_SLOTS = 64
_SEGMENT_BYTES = 4 << 20  # of a segment with several slots
_MIN_SLOT = 64 << 10
_SLOT_STEPS = 8  # sizes of slots between two powers of two
IDLE = 10.0  # seconds after which an unused segment is given back
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW  # with these, mapped memory stays mapped
_SLOT_SIZE = struct.Struct("<Q")
_SECRET_BYTES = 16
_FILE_BITS = 32  # of a segment's number: the descriptor; above them a count, so that none recurs
_OPENING = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class Slot(NamedTuple):
    """Memory for one tensor: where a peer finds it, and the memory."""

    segment: int
    offset: int
    memory: memoryview


class SharedMemory:
    """A segment of this process: a page that tells what is in use, and content."""

    def __init__(self, nbytes: int, order: int, is_populated: bool = True) -> None:
        self.capacity = nbytes
        self._file = _sealed_memory(_PAGE + nbytes)
        self.number = order << _FILE_BITS | self._file
        flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if is_populated else 0)
        self.memory = mmap.mmap(self._file, _PAGE + nbytes, flags)
        self.memory[: _SLOT_SIZE.size] = _SLOT_SIZE.pack(nbytes)
        self._closing = weakref.finalize(self, os.close, self._file)

    @property
    def content(self) -> memoryview:
        """All but the first page."""
        return memoryview(self.memory)[_PAGE:]

    def close(self) -> None:
        """Let go of the memory; who has it mapped still sees it."""
        self._closing()
        with suppress(BufferError):  # a thread copies to it: it goes with that thread's view
            self.memory.close()


class Segment(SharedMemory):
    """Shared memory of this process, cut into slots."""

    def __init__(self, slot_bytes: int, order: int) -> None:
        self.slot_bytes = slot_bytes
        self.slots = max(1, min(_MAX_SLOTS, _SEGMENT_BYTES // slot_bytes))
        super().__init__(self.slots * slot_bytes, order)
        self.nbytes = _PAGE + self.capacity
        self.memory[: _SLOT_SIZE.size] = _SLOT_SIZE.pack(slot_bytes)
        self.used = time.monotonic()

    def take(self) -> Slot | None:
        """A slot that is free now, which then is not."""
        place = self.memory.find(b"\0", FIRST_LEASE, FIRST_LEASE + self.slots)
        if place < 0:
            return None
        self.memory[place] = 1
        self.used = time.monotonic()
        offset = (place - FIRST_LEASE) * self.slot_bytes
        return Slot(self.number, offset, self.content[offset : offset + self.slot_bytes])

    @property
    def is_free(self) -> bool:
        """Whether nobody reads any slot."""
        return self.memory.find(b"\1", FIRST_LEASE, FIRST_LEASE + self.slots) < 0


class Pool:
    """The segments whose slots are lent to one peer, at most `limit` bytes."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit or default_limit()
        self._segments: dict[int, list[Segment]] = {}  # by the size of their slots
        self._nbytes = 0
        self._forgotten: list[int] = []
        self._order = count(1)
        self._is_closed = False
        self.renew_locks()
        renewed_after_fork(self)

    def renew_locks(self) -> None:
        """Have a lock that nobody holds."""
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> Slot | None:
        """A slot of at least so many bytes; None where all the memory is lent."""
        slot_bytes = _slot_bytes(nbytes)
        with self._lock:
            for segment in self._segments.get(slot_bytes, ()):
                if (slot := segment.take()) is not None:
                    return slot
            return self._grow(slot_bytes)

    def _grow(self, slot_bytes: int) -> Slot | None:
        if self._is_closed:
            return None
        if self._nbytes + slot_bytes > self._limit:
            self._drop_idle(0)
        if self._nbytes and self._nbytes + slot_bytes > self._limit:
            return None
        try:
            segment = Segment(slot_bytes, next(self._order))
        except OSError:  # no memory, or no descriptor
            return None
        self._segments.setdefault(slot_bytes, []).append(segment)
        self._nbytes += segment.nbytes
        return segment.take()

    def trim(self, idle: float = IDLE) -> list[int]:
        """Give back segments that were not used for a while; returns those that peers may unmap."""
        with self._lock:
            self._drop_idle(idle)
            forgotten, self._forgotten = self._forgotten, []
        return forgotten

    def _drop_idle(self, idle: float) -> None:
        now = time.monotonic()
        for segments in self._segments.values():
            for segment in [s for s in segments if s.is_free and now - s.used >= idle]:
                segments.remove(segment)
                self._forgotten.append(segment.number)
                self._nbytes -= segment.nbytes
                segment.close()

    def close(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._is_closed = True
            for segments in self._segments.values():
                for segment in segments:
                    segment.close()
            self._segments.clear()


def _slot_bytes(nbytes: int) -> int:
    """The size of the slots for a tensor: few sizes, so that slots serve again, and little waste"""
    step = max(_MIN_SLOT, (1 << nbytes.bit_length()) // (2 * _SLOT_STEPS))
    return -(-nbytes // step) * step


def default_limit() -> int:
    """Bytes that may be lent to a peer: an eighth of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8


def _sealed_memory(nbytes: int) -> int:
    """A descriptor of so much new memory, whose size is fixed."""
    file = os.memfd_create("thalweg", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(file, nbytes)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(file)
        raise
    return file


class Mapping:
    """A segment of another process, mapped: its tensors cannot be written to."""

    def __init__(self, path: str) -> None:
        file = _opened(path)
        try:
            self._nbytes = os.fstat(file).st_size - _PAGE
            self._first = mmap.mmap(file, _PAGE)
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
            self._memory = mmap.mmap(file, self._nbytes, flags, mmap.PROT_READ, offset=_PAGE)
        finally:
            os.close(file)
        (self._slot_bytes,) = _SLOT_SIZE.unpack_from(self._first)
        self._leases: dict[int, weakref.ref[Any]] = {}
        self._is_inherited = False
        renewed_after_fork(self)

    def renew_locks(self) -> None:
        """The child of a fork has copies of arrays, but only the parent's say what is in use."""
        self._is_inherited = True

    def memory(self, offset: int, nbytes: int) -> memoryview:
        """The bytes of a tensor, until its slot is released."""
        if not self._slot_bytes or offset % self._slot_bytes or nbytes > self._slot_bytes:
            raise WireError(f"{nbytes} bytes from {offset} are no slot")
        if offset + nbytes > self._nbytes or offset // self._slot_bytes >= _MAX_SLOTS:
            raise WireError(f"{nbytes} bytes from {offset} are beyond the segment")
        return memoryview(self._memory)[offset : offset + nbytes]

    def release_with(self, owner: Any, offset: int) -> None:
        """Free a slot once an object is gone: the array in it, which all its views refer to."""
        self.clear_with(owner, FIRST_LEASE + offset // self._slot_bytes)

    def clear_with(self, owner: Any, place: int) -> None:
        """Clear a byte of the first page once an object is gone."""
        if not FIRST_LEASE <= place < _PAGE:
            raise WireError(f"byte {place} tells of no lease")
        self._leases[place] = weakref.ref(owner, lambda _: self._release(place))

    def release(self, offset: int) -> None:
        """Free a slot now."""
        self._release(FIRST_LEASE + offset // self._slot_bytes)

    def _release(self, place: int) -> None:
        """Anywhere: the collector of garbage calls it, so it takes no lock."""
        self._leases.pop(place, None)
        if not self._is_inherited:
            self._first[place] = 0


def _opened(path: str) -> int:
    """A descriptor of sealed memory, which nothing else is taken for."""
    try:
        file = os.open(path, _OPENING)
    except OSError as error:
        raise WireError(f"shared memory cannot be opened: {error}") from None
    try:
        status = os.fstat(file)
        is_sealed = fcntl.fcntl(file, fcntl.F_GET_SEALS) & _SEALS == _SEALS
        if stat.S_ISREG(status.st_mode) and is_sealed and status.st_size > 0:
            return file
    except OSError:
        pass
    os.close(file)
    raise WireError(f"{path} is no shared memory of Thalweg")


class Mappings:
    """The segments of one peer that this process has mapped."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._mappings: dict[int, Mapping] = {}

    def find(self, number: int) -> Mapping:
        """The segment of a number."""
        found = self._mappings.get(number)
        if found is None:
            file = number & ((1 << _FILE_BITS) - 1)
            found = self._mappings[number] = Mapping(f"/proc/{self._process}/fd/{file}")
        return found

    def forget(self, numbers: Sequence[int]) -> None:
        """Unmap segments; arrays in them keep theirs."""
        for number in numbers:
            self._mappings.pop(number, None)


class Probe:
    """A little shared memory with a secret: who can read that can map this process's segments."""

    def __init__(self) -> None:
        self._secret = os.urandom(_SECRET_BYTES)
        self._file = _sealed_memory(len(self._secret))
        os.pwrite(self._file, self._secret, 0)

    def fields(self) -> dict[str, Any]:
        """What the other process needs to try."""
        return {"process": os.getpid(), "file": self._file, "secret": self._secret.hex()}

    def close(self) -> None:
        """Let go of the memory."""
        os.close(self._file)


def mappable_process(fields: Any) -> int | None:
    """The process that sent the fields of its probe, if this one can map its memory."""
    match fields:
        case {"process": int(process), "file": int(file), "secret": str(secret)}:
            with suppress(WireError):
                return process if _content(f"/proc/{process}/fd/{file}") == secret else None
        case _:
            pass
    return None


def _content(path: str) -> str:
    file = _opened(path)
    try:
        return os.pread(file, _SECRET_BYTES, 0).hex()
    finally:
        os.close(file)
