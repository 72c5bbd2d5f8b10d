"""The memory of a GPU: one pool of which everything is allocated, and buffers in it.

The pool takes memory from the driver in large segments and gives it out in blocks, the smallest
free one that is large enough; blocks that are free side by side become one again. Whoever frees a
block has waited for the work that used it, so it may be given out at once.
"""

from __future__ import annotations

import math
import threading
from bisect import insort
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg import errors
from thalweg.device.cuda.driver import Context
from thalweg.device.cuda.pinned import PinnedArrays, is_pinned
from thalweg.device.cuda.staging import Staging
from thalweg.ops.core.buffer import Buffer, read_only
from thalweg.platform import amounts
from thalweg.platform.forks import freed_after_fork

Array = NDArray[Any]

_ALIGNMENT = 256
_SEGMENT = 32 << 20  # the least that is taken from the driver at a time
_MIN_STAGED = 1 << 20  # bytes of an array that is worth pinned memory


class Block:
    """A part of a segment: memory that somebody has, or that is free. Blocks side by side know each
    other."""

    __slots__ = ("address", "after", "before", "is_free", "size")

    def __init__(self, address: int, size: int) -> None:
        self.address, self.size = address, size
        self.before: Block | None = None
        self.after: Block | None = None
        self.is_free = False


class Pool:
    """The memory of one device."""

    def __init__(self, context: Context, limit: int, reserve: int = 0) -> None:
        """At most `limit` bytes, of which so many are taken right away."""
        self._context, self.limit = context, limit
        self._lock = freed_after_fork(threading.RLock())  # a finalizer may free amid anything
        self._free: list[tuple[int, int, Block]] = []  # (size, address, block), the smallest first
        self._dropped: list[Block] = []  # freed by finalizers, which must not wait
        self.reserved = self.used = self.peak = 0
        self.release_idle: Callable[[], None] = _nothing  # frees what is only kept to be used again
        if reserve:
            self._insert(self._segment(min(reserve, limit)))

    def allocate(self, size: int) -> Block:
        """A block of at least so many bytes; raises ResourceExhaustedError."""
        size = max(-(-size // _ALIGNMENT), 1) * _ALIGNMENT
        with self._lock:
            block = self._take(size)
            if block is None:
                self.release_idle()
                block = self._take(size)
            if block is None:
                raise self._exhausted(size)
            self.used += block.size
            self.peak = max(self.peak, self.used)
            return block

    def free(self, block: Block) -> None:
        """Take a block back."""
        with self._lock:
            self._return(block)

    def drop(self, block: Block) -> None:
        """Take a block back soon; for finalizers, which may run while this thread has the lock."""
        self._dropped.append(block)

    def trim(self) -> None:
        """Give segments of which nothing is used back to the driver."""
        with self._lock:
            self._collect()
            for entry in list(self._free):
                block = entry[2]
                if block.before is None and block.after is None:
                    self._free.remove(entry)
                    self.reserved -= block.size
                    self._context.free(block.address)

    def _take(self, size: int) -> Block | None:
        self._collect()
        found = self._fit(size)
        if found is None:
            found = self._grow(size)
        return None if found is None else self._split(found, size)

    def _fit(self, size: int) -> Block | None:
        """The smallest free block that is large enough, which is free no more."""
        for index, (found, _, block) in enumerate(self._free):
            if found >= size:
                del self._free[index]
                block.is_free = False
                return block
        return None

    def _grow(self, size: int) -> Block | None:
        """More memory from the driver, which may have less left than this process is allowed."""
        for wanted in (max(size, _SEGMENT), size):
            if self.reserved + wanted <= self.limit:
                try:
                    return self._segment(wanted)
                except errors.ResourceExhaustedError:
                    pass
        self.trim()
        try:
            return self._segment(size) if self.reserved + size <= self.limit else None
        except errors.ResourceExhaustedError:
            return None

    def _segment(self, size: int) -> Block:
        block = Block(self._context.allocate(size), size)
        self.reserved += size
        return block

    def _split(self, block: Block, size: int) -> Block:
        """The first bytes of a block; the rest is free."""
        if block.size > size:
            rest = Block(block.address + size, block.size - size)
            rest.before, rest.after = block, block.after
            if rest.after is not None:
                rest.after.before = rest
            block.after, block.size = rest, size
            self._insert(rest)
        return block

    def _collect(self) -> None:
        while self._dropped:
            self._return(self._dropped.pop())

    def _return(self, block: Block) -> None:
        self.used -= block.size
        self._insert(block)

    def _insert(self, block: Block) -> None:
        """Have a free block, together with those beside it that are free."""
        for beside in (block.before, block.after):
            if beside is not None and beside.is_free:
                self._free.remove((beside.size, beside.address, beside))
                block = _joined(block, beside)
        block.is_free = True
        insort(self._free, (block.size, block.address, block), key=_order)

    def _exhausted(self, size: int) -> errors.ResourceExhaustedError:
        total = self._context.memory()[1]
        return errors.ResourceExhaustedError(
            None,
            None,
            f"{self._context.name} has no {amounts.size(size)} left: {amounts.size(self.used)} of "
            f"the {amounts.size(min(self.limit, total))} that this process may use are taken",
        )


def _nothing() -> None:
    """Nothing is kept."""


def _order(entry: tuple[int, int, Block]) -> tuple[int, int]:
    return entry[:2]


def _joined(one: Block, other: Block) -> Block:
    first, second = (one, other) if one.address < other.address else (other, one)
    first.size += second.size
    first.after = second.after
    if first.after is not None:
        first.after.before = first
    return first


class Memory:
    """What buffers need of their device: its pool, and ways from and to the host."""

    def __init__(self, context: Context, pool: Pool) -> None:
        self.context, self.pool = context, pool
        self.stream = context.stream()
        self._staging, self._results = Staging(context), PinnedArrays(context)

    def upload(self, address: int, value: Array) -> None:
        """Copy an array to an address of the device, and return when it is there."""
        value = np.require(value, requirements=["C", "A"])
        if value.nbytes > _MIN_STAGED and not is_pinned(value):
            self._staging.upload(address, value)
            return
        self.context.upload(address, value.ctypes.data, value.nbytes, self.stream)
        self.context.wait(self.stream)

    def download(self, address: int, shape: tuple[int, ...], dtype: Any) -> Array:
        """A copy of what is at an address of the device."""
        value = self._results.empty(shape, dtype)
        if value.nbytes > _MIN_STAGED and not is_pinned(value):
            self._staging.download(value, address)
            return value
        self.context.download(value.ctypes.data, address, value.nbytes, self.stream)
        self.context.wait(self.stream)
        return value

    def buffer(self, shape: tuple[int, ...], dtype: Any, device: str) -> DeviceBuffer:
        """A new buffer; what it holds is undefined."""
        kind = np.dtype(dtype)
        size = kind.itemsize * math.prod(shape)
        return DeviceBuffer(self, self.pool.allocate(size), shape, kind, device)


class DeviceBuffer(Buffer):
    """An array in the memory of a GPU. The host sees copies of it, so nobody ever leases it: one
    for each reader, or one for all of them once the buffer is frozen."""

    __slots__ = ("__weakref__", "_block", "_host", "_is_frozen", "_memory")

    def __init__(
        self,
        memory: Memory,
        block: Block,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        device: str,
    ) -> None:
        self._memory, self._block = memory, block
        self._host: Array | None = None
        self._is_frozen = False
        super().__init__(block.address, shape, dtype, device)

    def __del__(self) -> None:
        self._memory.pool.drop(self._block)

    def first_rows(self, count: int) -> DeviceBuffer:
        """The first rows, in the same memory."""
        return self if count == self.shape[0] else _FirstRows(self, count)

    @property
    def ndim(self) -> int:
        """The number of its axes."""
        return len(self.shape)

    def freeze(self) -> None:
        """Promise that the elements never change again."""
        self._is_frozen = True

    @property
    def host_copy(self) -> Array | None:
        """The copy that readers on the host share, once there is one."""
        return self._host

    def lease(self) -> Array:
        """A copy of the elements on the host, read-only."""
        if not self._is_frozen:
            return read_only(self.snapshot())
        if self._host is None:
            self._host = read_only(self.snapshot())
        return self._host

    def snapshot(self) -> Array:
        """A copy of the elements on the host."""
        return self._memory.download(self.address, self.shape, self.dtype)

    def copy(self) -> DeviceBuffer:
        """A buffer with the same elements that nobody else has."""
        buffer = self._memory.buffer(self.shape, self.dtype, self.device)
        context, stream = self._memory.context, self._memory.stream
        context.copy(buffer.address, self.address, self.nbytes, stream)
        context.wait(stream)
        return buffer

    def fill(self, value: Any) -> None:
        """Write the elements of an array, converted where they are others."""
        self._memory.upload(self.address, np.asarray(value).astype(self.dtype, copy=False))

    def adopt(self, value: Array) -> Array:
        """Have a copy of an array, which is given back."""
        self.fill(value)
        return value

    def update(self, change: Callable[[Array], None]) -> None:
        """Let `change` write into a copy on the host, and have what it left."""
        value = self.snapshot()
        change(value)
        self.fill(value)


class _FirstRows(DeviceBuffer):
    """The first rows of a buffer, which it keeps alive."""

    __slots__ = ("_whole",)

    def __init__(self, whole: DeviceBuffer, count: int) -> None:
        shape = (count, *whole.shape[1:])
        super().__init__(whole._memory, whole._block, shape, whole.dtype, whole.device)
        self._whole = whole

    def __del__(self) -> None:
        """The memory is the other one's."""
