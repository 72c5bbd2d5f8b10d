"""Large variables in memory that peers of the host can map: they are read where they are.

A task allocates the buffers of its variables here. To send one is to tell a peer its segment and a
byte of the segment's first page, which the peer clears when the last reference to its array is
gone. Until then the buffer is leased, as to a reader of this process: whoever wants to write to it
writes to a copy. Memory of buffers that are gone serves again.
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
from numpy.typing import NDArray

from thalweg.cluster.transport.shared_memory import FIRST_LEASE, IDLE, SharedMemory
from thalweg.ops.core.buffer import HostBuffer, is_lease
from thalweg.platform.forks import renewed_after_fork

Array = NDArray[Any]

MIN_LENT = 1 << 20  # bytes of an array that is lent; copies of smaller ones are soon made
_FIRST_NUMBER = 1 << 24  # of segments, above those of pools
_MAX_FREE = 1 << 30  # bytes of segments that wait to serve again


class Lent(NamedTuple):
    """Where a peer finds an array, and which byte it clears when it has done with it."""

    segment: LentSegment
    place: int

    @property
    def is_over(self) -> bool:
        """Whether the peer has done with it; a byte that is lent again is somebody's still."""
        return not self.segment.memory[self.place]


class LentSegment(SharedMemory):
    """Shared memory for one buffer."""

    def __init__(self, nbytes: int, order: int) -> None:
        super().__init__(nbytes, order, is_populated=False)
        self._held: dict[int, Array] = {}  # what peers read, by their bytes
        self._lock = threading.Lock()
        self.is_tainted = False  # a lost peer may still read it
        self.freed = 0.0  # when its buffer was gone

    def lend(self, array: Array) -> Lent | None:
        """Let a peer read an array of the buffer; None where too many do."""
        with self._lock:
            self.reap()
            place = self.memory.find(b"\0", FIRST_LEASE, mmap.PAGESIZE)
            if place < 0:
                return None
            self.memory[place] = 1
            self._held[place] = array
            return Lent(self, place)

    def reap(self) -> None:
        """Let go of what peers have done with."""
        for place in list(self._held):
            if not self.memory[place]:
                self._held.pop(place, None)

    @property
    def is_held(self) -> bool:
        """Whether arrays of it are kept for peers."""
        return bool(self._held)

    def forfeit(self, place: int) -> None:
        """A peer that may never clear its byte is lost."""
        if self.memory[place]:
            self.is_tainted = True
        self._held.pop(place, None)

    @property
    def is_free(self) -> bool:
        """Whether no peer reads it."""
        return self.memory.find(b"\1", FIRST_LEASE, mmap.PAGESIZE) < 0


class LentBuffer(HostBuffer):
    """A buffer of the host that peers can read."""

    __slots__ = ("_leases", "_lender", "_segment")

    def __init__(self, array: Array, device: str, segment: LentSegment, lender: Lender) -> None:
        self._segment, self._lender = segment, lender
        super().__init__(array, device)

    @property
    def leases(self) -> set[int]:
        """The readers of this process and of others."""
        segment = self._segment
        segment.reap()
        is_for_good = segment.is_tainted or self._lender.is_inherited
        return self._leases | {0} if is_for_good else self._leases

    @leases.setter
    def leases(self, value: set[int]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride] - the base has a slot
        self._leases = value

    def copy(self) -> HostBuffer:
        """A buffer with the same elements that nobody else has."""
        made = self._lender.allocate(self.shape, self.dtype, self.device)
        np.copyto(made.array, self.array)
        return made

    def adopt(self, value: Array) -> Array:  # pyright: ignore[reportIncompatibleMethodOverride] - it never keeps the array
        """Take over the elements of an array; its own memory is where peers look."""
        self.fill(value)
        return value


class Lender:
    """The segments of a process whose buffers peers can read."""

    def __init__(self) -> None:
        self._by_address = weakref.WeakValueDictionary[int, LentSegment]()
        self._lent: dict[LentSegment, None] = {}  # what peers may read
        self._free: list[LentSegment] = []
        self._forgotten: list[int] = []
        self._order = count(_FIRST_NUMBER)
        self._is_closed = False
        self.renew_locks()
        self.is_inherited = False
        renewed_after_fork(self)

    def renew_locks(self) -> None:
        """The child of a fork shares the memory with its parent: it writes to copies only."""
        self._lock = threading.RLock()  # the collector of garbage may free one meanwhile
        self.is_inherited = True

    def allocate(self, shape: tuple[int, ...], dtype: Any, device: str) -> HostBuffer:
        """Memory for an array; what it holds is undefined."""
        kind = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        segment = None if nbytes < MIN_LENT or kind.hasobject else self._take(nbytes)
        if segment is None:
            return HostBuffer(np.empty(shape, kind), device)
        array: Array = np.ndarray(shape, kind, segment.content)
        self._by_address[array.ctypes.data] = segment
        weakref.finalize(array, self._recycle, segment).atexit = False
        return LentBuffer(array, device, segment, self)

    def find(self, value: Any) -> LentSegment | None:
        """The segment that a leased array is the content of, from its start, if there is one."""
        if not isinstance(value, np.ndarray):
            return None
        array = cast("Array", value)
        if array.nbytes < MIN_LENT:
            return None
        found = None if self.is_inherited else self._by_address.get(array.ctypes.data)
        return found if found and array.flags.c_contiguous and is_lease(array) else None

    def lend(self, array: Any) -> Lent | None:
        """Let a peer read an array; None where that is not in lent memory."""
        segment = self.find(array)
        lent = segment.lend(array) if segment is not None else None
        if lent is not None:
            self._lent[lent.segment] = None
        return lent

    def _reap(self) -> None:
        """Let go of what peers have done with; buffers that their variables have left go, too."""
        for segment in list(self._lent):
            segment.reap()
            if not segment.is_held:
                self._lent.pop(segment, None)

    def forgotten(self) -> Sequence[int]:
        """Segments that peers may unmap, each told once: nobody used them for a while."""
        self._reap()
        oldest = time.monotonic() - IDLE
        with self._lock:
            while self._free and self._free[0].freed < oldest:
                self._drop_oldest()
            found, self._forgotten = self._forgotten, []
        return found

    def _drop_oldest(self) -> None:
        self._forgotten.append(self._free.pop(0).number)

    def close(self) -> None:
        """Keep nothing to serve again."""
        with self._lock:
            self._is_closed = True
            self._free.clear()
            self._lent.clear()

    def _take(self, nbytes: int) -> LentSegment | None:
        if self._is_closed or self.is_inherited:
            return None
        self._reap()
        with self._lock:
            for segment in self._free:
                if segment.capacity == _rounded(nbytes) and segment.is_free:
                    self._free.remove(segment)
                    return segment
        try:
            return LentSegment(_rounded(nbytes), next(self._order))
        except OSError:  # no memory, or no descriptor
            return None

    def _recycle(self, segment: LentSegment) -> None:
        """The array of a segment is gone; the collector of garbage tells so."""
        if self.is_inherited:
            return
        with self._lock:
            if segment.is_tainted or self._is_closed:
                self._forgotten.append(segment.number)
                return
            segment.freed = time.monotonic()
            self._free.append(segment)
            while sum(each.capacity for each in self._free) > _MAX_FREE:
                self._drop_oldest()


def _rounded(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
