"""The memory of a GPU: a pool for all allocations, and buffers in it.

The pool allocates large segments from the driver and hands out blocks of them, best fit first;
adjacent free blocks are merged. A block is freed only after the work that used it is done, so it
can be reused at once.
"""

from __future__ import annotations

import math
import threading
from bisect import insort
from collections.abc import Callable
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.device.cuda.driver import Context
from thalweg.device.cuda.pinned import PinnedArrays, is_pinned
from thalweg.device.cuda.staging import Staging
from thalweg.ops.core.buffer import Buffer, read_only
from thalweg.platform import amounts
from thalweg.platform.arrays import Array
from thalweg.platform.forks import freed_after_fork

_ALIGNMENT = 256
_SEGMENT = 32 << 20  # bytes: the minimum size of a segment
_MIN_STAGED = 1 << 20  # bytes: larger arrays are copied through pinned memory


class Block:
    """A part of a segment, in use or free, linked to the adjacent blocks."""

    __slots__ = ("address", "after", "before", "is_free", "size")

    def __init__(self, address: int, size: int) -> None:
        self.address, self.size = address, size
        self.before: Block | None = None
        self.after: Block | None = None
        self.is_free = False


class Pool:
    """The memory pool of one device."""

    def __init__(self, context: Context, limit: int, reserve: int = 0) -> None:
        """`limit`: the maximum number of bytes; `reserve`: those allocated at once."""
        self._context, self.limit = context, limit
        self._lock = freed_after_fork(threading.RLock())  # reentrant: finalizers may free
        self._free: list[tuple[int, int, Block]] = []  # (size, address, block), ascending
        self._dropped: list[Block] = []  # freed by finalizers, which must not block
        self.reserved = self.used = self.peak = 0
        self.release_idle: Callable[[], None] = _nothing  # frees memory that is only cached
        if reserve:
            self._insert(self._segment(min(reserve, limit)))

    def allocate(self, size: int) -> Block:
        """Allocate a block of at least `size` bytes; raises ResourceExhaustedError."""
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
        """Free a block."""
        with self._lock:
            self._return(block)

    def drop(self, block: Block) -> None:
        """Free a block in the next allocation; for finalizers, which may run under the lock."""
        self._dropped.append(block)

    def trim(self) -> None:
        """Return unused segments to the driver."""
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
        """Take the smallest free block that is large enough."""
        for index, (found, _, block) in enumerate(self._free):
            if found >= size:
                del self._free[index]
                block.is_free = False
                return block
        return None

    def _grow(self, size: int) -> Block | None:
        """Allocate a segment; the driver may have less memory than this process is allowed."""
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
        """Shorten a block to `size` bytes and free the rest."""
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
        """Insert a free block, merged with adjacent free ones."""
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
    """Free nothing."""


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
    """The memory of a device: its pool, and transfers from and to the host."""

    def __init__(self, context: Context, pool: Pool) -> None:
        self.context, self.pool = context, pool
        self.stream = context.stream()
        self._staging, self._results = Staging(context), PinnedArrays(context)

    def upload(self, address: int, value: Array) -> None:
        """Copy an array to an address of the device, and wait for the copy."""
        value = np.require(value, requirements=["C", "A"])
        if value.nbytes > _MIN_STAGED and not is_pinned(value):
            self._staging.upload(address, value)
            return
        self.context.upload(address, value.ctypes.data, value.nbytes, self.stream)
        self.context.wait(self.stream)

    def download(self, address: int, shape: tuple[int, ...], dtype: Any) -> Array:
        """Copy from an address of the device to a new array."""
        value = self._results.empty(shape, dtype)
        if value.nbytes > _MIN_STAGED and not is_pinned(value):
            self._staging.download(value, address)
            return value
        self.context.download(value.ctypes.data, address, value.nbytes, self.stream)
        self.context.wait(self.stream)
        return value

    def buffer(self, shape: tuple[int, ...], dtype: Any) -> DeviceBuffer:
        """A new, uninitialised buffer."""
        kind = np.dtype(dtype)
        size = kind.itemsize * math.prod(shape)
        return DeviceBuffer(self, self.pool.allocate(size), shape, kind)

    def uploaded(self, value: Array) -> DeviceBuffer:
        """A new buffer with the elements of an array."""
        result = self.buffer(value.shape, value.dtype)
        self.upload(result.address, value)
        return result


class DeviceBuffer(Buffer):
    """An array in the memory of a GPU. It is never leased: readers on the host get copies, which
    they share once the buffer is frozen."""

    __slots__ = ("__weakref__", "_block", "_host", "_is_frozen", "_memory")

    def __init__(
        self, memory: Memory, block: Block, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self._memory, self._block = memory, block
        self._host: Array | None = None
        self._is_frozen = False
        super().__init__(block.address, shape, dtype, memory.context.name)

    def __del__(self) -> None:
        self._memory.pool.drop(self._block)

    def first_rows(self, count: int) -> DeviceBuffer:
        """The first rows, in the same memory."""
        return self if count == self.shape[0] else _FirstRows(self, count)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def freeze(self) -> None:
        """Declare that the elements never change again."""
        self._is_frozen = True

    @property
    def host_copy(self) -> Array | None:
        """The copy that readers on the host share; None if there is none."""
        return self._host

    def lease(self) -> Array:
        """A read-only copy of the elements on the host."""
        if not self._is_frozen:
            return read_only(self.snapshot())
        if self._host is None:
            self._host = read_only(self.snapshot())
        return self._host

    def snapshot(self) -> Array:
        """A copy of the elements on the host."""
        return self._memory.download(self.address, self.shape, self.dtype)

    def copy(self) -> DeviceBuffer:
        """A new buffer with the same elements."""
        buffer = self._memory.buffer(self.shape, self.dtype)
        context, stream = self._memory.context, self._memory.stream
        context.copy(buffer.address, self.address, self.nbytes, stream)
        context.wait(stream)
        return buffer

    def fill(self, value: Any) -> None:
        """Write the elements of an array, converted to the buffer's dtype."""
        self._memory.upload(self.address, np.asarray(value).astype(self.dtype, copy=False))

    def adopt(self, value: Array) -> Array:
        """Copy the elements of an array, which is returned."""
        self.fill(value)
        return value

    def update(self, change: Callable[[Array], None]) -> None:
        """Call `change` on a copy on the host, and write the copy back."""
        value = self.snapshot()
        change(value)
        self.fill(value)


class _FirstRows(DeviceBuffer):
    """The first rows of a buffer, which it keeps alive."""

    __slots__ = ("_whole",)

    def __init__(self, whole: DeviceBuffer, count: int) -> None:
        shape = (count, *whole.shape[1:])
        super().__init__(whole._memory, whole._block, shape, whole.dtype)
        self._whole = whole

    def __del__(self) -> None:
        """Does nothing: the other buffer owns the memory."""
