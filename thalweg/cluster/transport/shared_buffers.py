"""Shared buffers: large variables live in shared memory, and peers on the host read them in place.

A task allocates the buffers of its variables here. Sending one sends the number of its segment and
the offset of a lease byte in the segment's first page, which the peer clears when the last
reference to its array is gone. Until then the buffer is leased, exactly as to a reader in this
process: a writer copies on write. Segments of freed buffers are reused.
"""

from __future__ import annotations

import mmap
import threading
import time
import weakref
from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple, cast

import numpy as np

from thalweg.cluster.transport.shared_memory import FIRST_LEASE, IDLE, SharedMemory
from thalweg.ops.core.buffer import HostBuffer, is_lease
from thalweg.platform.arrays import Array
from thalweg.platform.forks import renewed_after_fork

MIN_SHARED = 1 << 20  # bytes; copying a smaller array is cheap enough
_FIRST_NUMBER = 1 << 24  # of segments, above the numbers that pools use
_MAX_FREE = 1 << 30  # bytes of free segments kept for reuse


class PeerLease(NamedTuple):
    """A lease of an array to a peer: its segment, and the offset of the byte the peer clears."""

    segment: BufferSegment
    offset: int

    @property
    def is_over(self) -> bool:
        """Whether the peer has cleared the byte; False, too, once the byte is in use again."""
        return not self.segment.memory[self.offset]


class BufferSegment(SharedMemory):
    """A shared-memory segment for one buffer."""

    def __init__(self, nbytes: int, order: int) -> None:
        super().__init__(nbytes, order, is_populated=False)
        self._leased_arrays: dict[int, Array] = {}  # by the offset of their lease byte
        self._lock = threading.Lock()
        self.is_tainted = False  # a lost peer may still read it
        self.freed = 0.0  # monotonic time at which its buffer was freed

    def lease(self, array: Array) -> PeerLease | None:
        """Lease an array of the buffer to a peer; None if no lease byte is free."""
        with self._lock:
            self.reap()
            offset = self.memory.find(b"\0", FIRST_LEASE, mmap.PAGESIZE)
            if offset < 0:
                return None
            self.memory[offset] = 1
            self._leased_arrays[offset] = array
            return PeerLease(self, offset)

    def reap(self) -> None:
        """Drop references to arrays whose lease byte is cleared."""
        for offset in list(self._leased_arrays):
            if not self.memory[offset]:
                self._leased_arrays.pop(offset, None)

    @property
    def has_leases(self) -> bool:
        """Whether it holds references for leases."""
        return bool(self._leased_arrays)

    def revoke(self, offset: int) -> None:
        """End the lease of a lost peer; taints the segment if the peer has not cleared its byte."""
        if self.memory[offset]:
            self.is_tainted = True
        self._leased_arrays.pop(offset, None)

    @property
    def is_free(self) -> bool:
        """Whether no lease byte is set."""
        return self.memory.find(b"\1", FIRST_LEASE, mmap.PAGESIZE) < 0


class LendableBuffer(HostBuffer):
    """A host buffer in shared memory that can be leased to peers."""

    __slots__ = ("_allocator", "_leases", "_segment")

    def __init__(
        self, array: Array, device: str, segment: BufferSegment, allocator: SharedAllocator
    ) -> None:
        self._segment, self._allocator = segment, allocator
        super().__init__(array, device)

    @property
    def leases(self) -> set[int]:
        """Leases of this process and, by the arrays held for them, of peers; 0 never ends."""
        segment = self._segment
        segment.reap()
        is_leased_forever = segment.is_tainted or self._allocator.is_inherited
        return self._leases | {0} if is_leased_forever else self._leases

    @leases.setter
    def leases(self, value: set[int]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride] - the base has a slot
        self._leases = value

    def copy(self) -> HostBuffer:
        """A new, unleased buffer with the same elements."""
        buffer = self._allocator.allocate(self.shape, self.dtype, self.device)
        np.copyto(buffer.array, self.array)
        return buffer

    def adopt(self, value: Array) -> Array:  # pyright: ignore[reportIncompatibleMethodOverride] - it never keeps the array
        """Copy the elements of an array: the buffer must stay in shared memory."""
        self.fill(value)
        return value


class SharedAllocator:
    """Allocates the shared buffers of a process, and reuses their segments."""

    def __init__(self) -> None:
        self._by_address = weakref.WeakValueDictionary[int, BufferSegment]()
        self._leased: dict[BufferSegment, None] = {}  # ordered set of segments with leases
        self._free: list[BufferSegment] = []
        self._forgotten: list[int] = []
        self._order = count(_FIRST_NUMBER)
        self._is_closed = False
        self.renew_locks()
        self.is_inherited = False
        renewed_after_fork(self)

    def renew_locks(self) -> None:
        """In the child of a fork: memory is shared with the parent, so writes must copy."""
        self._lock = threading.RLock()  # reentrant: garbage collection may call _recycle
        self.is_inherited = True

    def allocate(self, shape: tuple[int, ...], dtype: Any, device: str) -> HostBuffer:
        """An uninitialized buffer; shared if it is large enough and memory is available."""
        element_type = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * element_type.itemsize
        segment = None if nbytes < MIN_SHARED or element_type.hasobject else self._take(nbytes)
        if segment is None:
            return HostBuffer(np.empty(shape, element_type), device)
        array: Array = np.ndarray(shape, element_type, segment.content)
        self._by_address[array.ctypes.data] = segment
        weakref.finalize(array, self._recycle, segment).atexit = False
        return LendableBuffer(array, device, segment, self)

    def find(self, value: Any) -> BufferSegment | None:
        """The segment whose content starts with this leased, contiguous array, or None."""
        if not isinstance(value, np.ndarray):
            return None
        array = cast("Array", value)
        if array.nbytes < MIN_SHARED:
            return None
        segment = None if self.is_inherited else self._by_address.get(array.ctypes.data)
        return segment if segment and array.flags.c_contiguous and is_lease(array) else None

    def lease(self, array: Any) -> PeerLease | None:
        """Lease an array to a peer; None if it is not in a shared segment."""
        segment = self.find(array)
        lease = segment.lease(array) if segment is not None else None
        if lease is not None:
            self._leased[lease.segment] = None
        return lease

    def _reap(self) -> None:
        """Drop ended leases; this frees buffers whose variables are gone."""
        for segment in list(self._leased):
            segment.reap()
            if not segment.has_leases:
                self._leased.pop(segment, None)

    def unmappable(self) -> Sequence[int]:
        """Drop segments idle for `IDLE` s; returns the numbers peers may unmap, each once."""
        self._reap()
        cutoff = time.monotonic() - IDLE
        with self._lock:
            while self._free and self._free[0].freed < cutoff:
                self._drop_oldest()
            forgotten, self._forgotten = self._forgotten, []
        return forgotten

    def _drop_oldest(self) -> None:
        self._forgotten.append(self._free.pop(0).number)

    def close(self) -> None:
        """Free the segments kept for reuse; allocate no more."""
        with self._lock:
            self._is_closed = True
            self._free.clear()
            self._leased.clear()

    def _take(self, nbytes: int) -> BufferSegment | None:
        if self._is_closed or self.is_inherited:
            return None
        self._reap()
        with self._lock:
            for segment in self._free:
                if segment.capacity == _round_to_pages(nbytes) and segment.is_free:
                    self._free.remove(segment)
                    return segment
        try:
            return BufferSegment(_round_to_pages(nbytes), next(self._order))
        except OSError:  # out of memory or of descriptors
            return None

    def _recycle(self, segment: BufferSegment) -> None:
        """Keep a segment for reuse; the finalizer of its array, so called on any thread."""
        if self.is_inherited:
            return
        with self._lock:
            if segment.is_tainted or self._is_closed:
                self._forgotten.append(segment.number)
                return
            segment.freed = time.monotonic()
            self._free.append(segment)
            while sum(free.capacity for free in self._free) > _MAX_FREE:
                self._drop_oldest()


def _round_to_pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
