"""Shared memory between processes on one host: tensors are copied once and read in place.

A sender has a pool of segments for each peer; each segment is divided into slots of one size. It
copies a tensor to a free slot and sends the slot's segment and offset. The peer maps each segment
once, and returns an array over the slot. When the last reference to that array is gone, the peer
clears the slot's lease byte in the segment's first page, which the sender reads: no message is
sent, and nothing blocks.

Segments are memfds, without a path: a peer opens them through the sender's descriptors in /proc,
which the kernel allows to processes of the same user only. The kernel frees a segment with the last
process that maps it, however that process ends. A slot that a lost peer may still read is never
written again.
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
FIRST_LEASE = 64  # offset of the lease bytes in the first page, one per slot: 1 while leased
_MAX_SLOTS = 64
_SEGMENT_BYTES = 4 << 20  # content of a segment with several slots
_MIN_SLOT = 64 << 10
_SLOT_STEPS = 8  # slot sizes between two powers of two
IDLE = 10.0  # seconds after which an unused segment is freed
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW  # a fixed size: mapped pages cannot vanish
_SLOT_SIZE = struct.Struct("<Q")
_SECRET_BYTES = 16
_FILE_BITS = 32  # of a segment's number, for its descriptor; above, a counter makes it unique
_OPENING = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class Slot(NamedTuple):
    """Memory for one tensor: its segment and offset for the peer, and a view of it."""

    segment: int
    offset: int
    memory: memoryview


class SharedMemory:
    """A segment of this process: one page of lease bytes, then the content."""

    def __init__(self, nbytes: int, order: int, is_populated: bool = True) -> None:
        self.capacity = nbytes
        self._file = _create_sealed(_PAGE + nbytes)
        self.number = order << _FILE_BITS | self._file
        flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if is_populated else 0)
        self.memory = mmap.mmap(self._file, _PAGE + nbytes, flags)
        self.memory[: _SLOT_SIZE.size] = _SLOT_SIZE.pack(nbytes)
        self._closing = weakref.finalize(self, os.close, self._file)

    @property
    def content(self) -> memoryview:
        """The memory after the first page."""
        return memoryview(self.memory)[_PAGE:]

    def close(self) -> None:
        """Unmap and close the segment; it lives on in processes that have it mapped."""
        self._closing()
        with suppress(BufferError):  # a thread still copies to it, and its view keeps it mapped
            self.memory.close()


class Segment(SharedMemory):
    """A segment of this process, divided into slots."""

    def __init__(self, slot_bytes: int, order: int) -> None:
        self.slot_bytes = slot_bytes
        self.slots = max(1, min(_MAX_SLOTS, _SEGMENT_BYTES // slot_bytes))
        super().__init__(self.slots * slot_bytes, order)
        self.nbytes = _PAGE + self.capacity
        self.memory[: _SLOT_SIZE.size] = _SLOT_SIZE.pack(slot_bytes)
        self.used = time.monotonic()

    def allocate(self) -> Slot | None:
        """Allocate a free slot; None if there is none."""
        place = self.memory.find(b"\0", FIRST_LEASE, FIRST_LEASE + self.slots)
        if place < 0:
            return None
        self.memory[place] = 1
        self.used = time.monotonic()
        offset = (place - FIRST_LEASE) * self.slot_bytes
        return Slot(self.number, offset, self.content[offset : offset + self.slot_bytes])

    @property
    def is_free(self) -> bool:
        """Whether no slot is leased."""
        return self.memory.find(b"\1", FIRST_LEASE, FIRST_LEASE + self.slots) < 0


class Pool:
    """The segments for tensors to one peer, at most `limit` bytes."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit or default_limit()
        self._segments: dict[int, list[Segment]] = {}  # by slot size
        self._nbytes = 0
        self._forgotten: list[int] = []
        self._order = count(1)
        self._is_closed = False
        self.renew_locks()
        renewed_after_fork(self)

    def renew_locks(self) -> None:
        """Replace the lock, which another thread of the parent may have held."""
        self._lock = threading.Lock()

    def allocate(self, nbytes: int) -> Slot | None:
        """Allocate a slot of at least `nbytes`; None if the pool is exhausted."""
        slot_bytes = _slot_bytes(nbytes)
        with self._lock:
            for segment in self._segments.get(slot_bytes, ()):
                if (slot := segment.allocate()) is not None:
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
        except OSError:  # out of memory or of descriptors
            return None
        self._segments.setdefault(slot_bytes, []).append(segment)
        self._nbytes += segment.nbytes
        return segment.allocate()

    def trim(self, idle: float = IDLE) -> list[int]:
        """Free segments unused for `idle` seconds; returns those that the peer may unmap."""
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
        """Free all segments; allocate no more."""
        with self._lock:
            self._is_closed = True
            for segments in self._segments.values():
                for segment in segments:
                    segment.close()
            self._segments.clear()


def _slot_bytes(nbytes: int) -> int:
    """The slot size for a tensor: few size classes, so that slots are reused, and little waste."""
    step = max(_MIN_SLOT, (1 << nbytes.bit_length()) // (2 * _SLOT_STEPS))
    return -(-nbytes // step) * step


def default_limit() -> int:
    """The default size limit of a pool: an eighth of physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8


def _create_sealed(nbytes: int) -> int:
    """Create a memfd of a fixed size; returns its descriptor."""
    file = os.memfd_create("thalweg", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(file, nbytes)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(file)
        raise
    return file


class Mapping:
    """A mapped segment of another process; its content is read-only."""

    def __init__(self, path: str) -> None:
        file = _open_sealed(path)
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
        """In the child of a fork: its copies of arrays must not clear the parent's lease bytes."""
        self._is_inherited = True

    def memory(self, offset: int, nbytes: int) -> memoryview:
        """A view of a tensor's bytes, valid until its slot is released; checks the bounds."""
        if not self._slot_bytes or offset % self._slot_bytes or nbytes > self._slot_bytes:
            raise WireError(f"{nbytes} bytes from {offset} are no slot")
        if offset + nbytes > self._nbytes or offset // self._slot_bytes >= _MAX_SLOTS:
            raise WireError(f"{nbytes} bytes from {offset} are beyond the segment")
        return memoryview(self._memory)[offset : offset + nbytes]

    def lease_of(self, offset: int) -> int:
        """The place of a slot's lease byte."""
        return FIRST_LEASE + offset // self._slot_bytes

    def clear_with(self, owner: Any, place: int) -> None:
        """Clear a lease byte when `owner`, the array over its memory, is freed; the views of that
        array keep it alive."""
        if not FIRST_LEASE <= place < _PAGE:
            raise WireError(f"byte {place} tells of no lease")
        self._leases[place] = weakref.ref(owner, lambda _: self.clear(place))

    def clear(self, place: int) -> None:
        """Clear a lease byte; called during garbage collection on any thread, so takes no lock."""
        self._leases.pop(place, None)
        if not self._is_inherited:
            self._first[place] = 0


def _open_sealed(path: str) -> int:
    """Open a segment of another process; raises WireError unless it is a size-sealed memfd."""
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
    """The mapped segments of one peer, by number."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._mappings: dict[int, Mapping] = {}

    def find(self, number: int) -> Mapping:
        """The mapping of a segment, created on first use."""
        mapping = self._mappings.get(number)
        if mapping is None:
            file = number & ((1 << _FILE_BITS) - 1)
            mapping = self._mappings[number] = Mapping(f"/proc/{self._process}/fd/{file}")
        return mapping

    def forget(self, numbers: Sequence[int]) -> None:
        """Drop mappings of segments; live arrays keep theirs mapped."""
        for number in numbers:
            self._mappings.pop(number, None)


class Probe:
    """A memfd with a random secret: a process that can read it can map this one's segments."""

    def __init__(self) -> None:
        self._secret = os.urandom(_SECRET_BYTES)
        self._file = _create_sealed(len(self._secret))
        os.pwrite(self._file, self._secret, 0)

    def fields(self) -> dict[str, Any]:
        """What another process needs to read the secret and compare it."""
        return {"process": os.getpid(), "file": self._file, "secret": self._secret.hex()}

    def close(self) -> None:
        """Close the memfd."""
        os.close(self._file)


def mappable_process(fields: Any) -> int | None:
    """The process ID in the fields of a probe if this process can map that one's memory."""
    match fields:
        case {"process": int(process), "file": int(file), "secret": str(secret)}:
            with suppress(WireError):
                return process if _read_secret(f"/proc/{process}/fd/{file}") == secret else None
        case _:
            pass
    return None


def _read_secret(path: str) -> str:
    file = _open_sealed(path)
    try:
        return os.pread(file, _SECRET_BYTES, 0).hex()
    finally:
        os.close(file)
