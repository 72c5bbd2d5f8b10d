"""Streaming reads of tensors from a mapped file, block by block, into new arrays.

The caller's thread and a second one copy blocks and compute their checksums on the way. A tensor is
passed to its receiver when all its blocks have been verified. An array that the receiver returns is
filled next, so that only a few tensors of a large file are in memory twice.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from thalweg.platform.arrays import Array
from thalweg.platform.c_library import c_function
from thalweg.platform.files import durable
from thalweg.platform.files.checksum import copy_crc32c
from thalweg.platform.files.safetensors import damaged
from thalweg.platform.files.tensor_slices import Receiver

_DONT_NEED = 4  # MADV_DONTNEED: unmap pages
_UNMAPPED_BLOCKS = 4  # at once, since each unmapping interrupts the other thread's processor
_MIN_SHARED_BLOCKS = 4  # fewer blocks are not worth a second thread
_MAX_FILLING = 4  # large arrays that two threads fill at once


class Mapped:
    """A read-only memory mapping of a file."""

    def __init__(self, path: str) -> None:
        self.array: Array = np.empty(0, np.uint8)
        with durable.file_errors(path), open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size:
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                self.array = np.frombuffer(content, np.uint8)

    def advise(self, advice: int, begin: int, end: int) -> None:
        """Call `madvise` on a part of the mapping; does nothing on other systems than Linux.

        Python's `mmap.madvise` would hold the GIL meanwhile."""
        start = begin // mmap.PAGESIZE * mmap.PAGESIZE
        if (madvise := _madvise()) is not None:
            madvise(self.array.ctypes.data + start, min(end, self.array.size) - start, advice)


def _madvise() -> Any:
    """The C function, on Linux."""
    if sys.platform != "linux":
        return None
    return c_function("madvise", ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


@dataclass(frozen=True)
class StreamedTensor:
    """A tensor to read: the location of its bytes, its type, and its receiver."""

    begin: int
    end: int
    dtype: Any
    shape: tuple[int, ...]
    receive: Receiver

    @property
    def array_type(self) -> tuple[Any, tuple[int, ...]]:
        """The dtype and shape of its array."""
        return self.dtype, self.shape


def stream(
    path: str, content: Mapped, checksums: Sequence[int], tensors: Sequence[StreamedTensor]
) -> None:
    """Read disjoint tensors of a mapped file; without checksums nothing is verified."""
    for tensor in tensors:
        if tensor.begin == tensor.end:
            tensor.receive(np.empty(tensor.shape, tensor.dtype))
    filled = [tensor for tensor in tensors if tensor.begin < tensor.end]
    _Stream(path, content, checksums, filled).run()


class _Stream:
    """One read of a file: the blocks to read, and the arrays that are being filled."""

    def __init__(
        self,
        path: str,
        content: Mapped,
        checksums: Sequence[int],
        tensors: Sequence[StreamedTensor],
    ) -> None:
        self._path = path
        self._mapped = content
        self._content = content.array
        self._checksums = checksums
        self._blocks: dict[int, list[StreamedTensor]] = defaultdict(list)
        self._unread_blocks: dict[StreamedTensor, int] = {}
        for tensor in sorted(tensors, key=lambda tensor: tensor.begin):
            blocks = range(tensor.begin // durable.BLOCK, -(-tensor.end // durable.BLOCK))
            self._unread_blocks[tensor] = len(blocks)
            for block in blocks:
                self._blocks[block].append(tensor)
        self._unread = deque(self._blocks)
        self._unfilled = Counter(tensor.array_type for tensor in tensors)  # without an array yet
        self._lock = threading.Lock()
        self._filling: dict[StreamedTensor, Array] = {}
        self._spare: dict[Any, list[Array]] = defaultdict(list)

    def run(self) -> None:
        """Read all blocks."""
        if len(self._blocks) < _MIN_SHARED_BLOCKS or os.cpu_count() == 1:
            self._read_blocks()
            return
        self._reserve()
        with ThreadPoolExecutor(1) as helper:
            other = helper.submit(self._read_blocks)
            self._read_blocks()
            other.result()

    def _reserve(self) -> None:
        """Allocate the first arrays on this thread: the arrays that variables release last are
        freed into its heap, so that the other thread's heap need not grow."""
        for tensor in islice(self._unread_blocks, _MAX_FILLING):
            self._spare[tensor.array_type].append(np.empty(tensor.shape, tensor.dtype))

    def _read_blocks(self) -> None:
        """Read blocks until none is left; an error stops the other thread too."""
        try:
            while (block := self._next_block()) is not None:
                self._read_block(block)
        except BaseException:
            with self._lock:
                self._unread.clear()
            raise

    def _next_block(self) -> int | None:
        with self._lock:
            return self._unread.popleft() if self._unread else None

    def _read_block(self, block: int) -> None:
        crc = 0
        for memory, begin in self._pieces(block):
            crc = copy_crc32c(self._content[begin : begin + memory.size], memory, crc)
        if self._checksums and crc != self._checksums[block]:
            begin, end = self._extent(block)
            raise damaged(
                self._path, begin, f"these {end - begin} bytes are not those that were saved"
            )
        self._unmap_read(block)
        for tensor in self._blocks[block]:
            self._count_block(tensor)

    def _unmap_read(self, block: int) -> None:
        """Unmap blocks that were read, so that both threads share this work. Pages that the other
        thread still reads are mapped again."""
        if (block + 1) % _UNMAPPED_BLOCKS == 0:
            begin, _ = self._extent(block + 1 - _UNMAPPED_BLOCKS)
            self._mapped.advise(_DONT_NEED, begin, self._extent(block)[1])

    def _extent(self, block: int) -> tuple[int, int]:
        begin = block * durable.BLOCK
        return begin, min(begin + durable.BLOCK, self._content.size)

    def _pieces(self, block: int) -> Iterator[tuple[Array, int]]:
        """The destination and file offset of each piece of a block, in order."""
        position, end = self._extent(block)
        for tensor in self._blocks[block]:
            begin, until = max(position, tensor.begin), min(end, tensor.end)
            yield from self._gap(position, begin)
            yield self._memory(tensor)[begin - tensor.begin : until - tensor.begin], begin
            position = until
        yield from self._gap(position, end)

    def _gap(self, begin: int, end: int) -> Iterator[tuple[Array, int]]:
        """Scratch memory for bytes between tensors, which are read only for the checksum."""
        if begin < end and self._checksums:
            yield np.empty(end - begin, np.uint8), begin

    def _memory(self, tensor: StreamedTensor) -> Array:
        """The bytes of the array that a tensor is read into."""
        array_type = tensor.array_type
        with self._lock:
            array = self._filling.get(tensor)
            if array is None:
                spare = self._spare[array_type]
                array = spare.pop() if spare else np.empty(tensor.shape, tensor.dtype)
                self._filling[tensor] = array
                self._unfilled[array_type] -= 1
        return array.reshape(-1).view(np.uint8)

    def _count_block(self, tensor: StreamedTensor) -> None:
        """Count a verified block of a tensor; the last one passes it to its receiver."""
        with self._lock:
            self._unread_blocks[tensor] -= 1
            if self._unread_blocks[tensor]:
                return
            array = self._filling.pop(tensor)
        returned = tensor.receive(array)
        if returned is not None:
            self._recycle(returned, tensor.array_type)

    def _recycle(self, array: Array, array_type: Any) -> None:
        """Keep an array to be filled next, unless there are enough for all remaining tensors."""
        with self._lock:
            if len(self._spare[array_type]) < self._unfilled[array_type]:
                self._spare[array_type].append(array)
