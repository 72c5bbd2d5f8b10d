"""Tensors out of a mapped file, block by block: copied to new arrays, checked, handed over.

The caller's thread and another one copy, and check what they copy on its way. A tensor is handed
over when all blocks that it has bytes in were found sound; what the receiver gives back for it is
filled next, so that of a large file only a few tensors are in memory twice.
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
from numpy.typing import NDArray

from thalweg.platform.c_library import c_function
from thalweg.platform.files import durable
from thalweg.platform.files.checksum import copied
from thalweg.platform.files.safetensors import damaged
from thalweg.platform.files.tensor_slices import Receiver

Array = NDArray[Any]

_DONT_NEED = 4  # Linux's advice to unmap pages
_UNMAPPED_BLOCKS = 4  # at once: every time, the other thread's processor is interrupted
_MIN_SHARED_BLOCKS = 4  # of fewer it does not pay to wake a second thread
_MAX_FILLING = 4  # large arrays that two threads fill at once


class Mapped:
    """A file in memory, read-only."""

    def __init__(self, path: str) -> None:
        self.array: Array = np.empty(0, np.uint8)
        with durable.file_errors(path), open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size:
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                self.array = np.frombuffer(content, np.uint8)

    def advise(self, advice: int, begin: int, end: int) -> None:
        """Give the system advice on a part; one that does not know the advice ignores it.

        `mmap.madvise` holds the interpreter's lock, for which other threads then wait."""
        start = begin // mmap.PAGESIZE * mmap.PAGESIZE
        if (tell := _madvise()) is not None:
            tell(self.array.ctypes.data + start, min(end, self.array.size) - start, advice)


def _madvise() -> Any:
    """The system's function, if it is one that takes Linux's advice."""
    if sys.platform != "linux":
        return None
    return c_function("madvise", ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


@dataclass(frozen=True)
class Wanted:
    """A tensor in a file: where its bytes lie, what they are, and who gets them."""

    begin: int
    end: int
    dtype: Any
    shape: tuple[int, ...]
    receive: Receiver

    @property
    def kind(self) -> tuple[Any, tuple[int, ...]]:
        """What an array must be to be filled with it."""
        return self.dtype, self.shape


def stream(path: str, content: Mapped, checksums: Sequence[int], wanted: Sequence[Wanted]) -> None:
    """Hand over the tensors of a mapped file; without checksums nothing is checked."""
    for tensor in wanted:
        if tensor.begin == tensor.end:
            tensor.receive(np.empty(tensor.shape, tensor.dtype))
    filled = [tensor for tensor in wanted if tensor.begin < tensor.end]
    _Stream(path, content, checksums, filled).run()


class _Stream:
    """A file that is read: the blocks that matter, and the arrays that are being filled."""

    def __init__(
        self,
        path: str,
        content: Mapped,
        checksums: Sequence[int],
        wanted: Sequence[Wanted],
    ) -> None:
        self._path = path
        self._mapped = content
        self._content = content.array
        self._checksums = checksums
        self._blocks: dict[int, list[Wanted]] = defaultdict(list)
        self._waiting: dict[Wanted, int] = {}
        for tensor in sorted(wanted, key=lambda tensor: tensor.begin):
            blocks = range(tensor.begin // durable.BLOCK, -(-tensor.end // durable.BLOCK))
            self._waiting[tensor] = len(blocks)
            for block in blocks:
                self._blocks[block].append(tensor)
        self._unread = deque(self._blocks)
        self._unfilled = Counter(tensor.kind for tensor in wanted)  # those without an array
        self._lock = threading.Lock()
        self._filling: dict[Wanted, Array] = {}
        self._spare: dict[Any, list[Array]] = defaultdict(list)

    def run(self) -> None:
        """Read everything."""
        if len(self._blocks) < _MIN_SHARED_BLOCKS or os.cpu_count() == 1:
            self._read_blocks()
            return
        self._reserve()
        with ThreadPoolExecutor(1) as helper:
            other = helper.submit(self._read_blocks)
            self._read_blocks()
            other.result()

    def _reserve(self) -> None:
        """Allocate the first arrays here. What the last variables give back is freed into the heap
        of the thread that made them, mostly this one; the other thread's would have to grow."""
        for tensor in islice(self._waiting, _MAX_FILLING):
            self._spare[tensor.kind].append(np.empty(tensor.shape, tensor.dtype))

    def _read_blocks(self) -> None:
        """Read blocks until there are none left; the other thread stops where this one fails."""
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
        for memory, at in self._pieces(block):
            crc = self._read(memory, at, crc)
        if self._checksums and crc != self._checksums[block]:
            begin, end = self._extent(block)
            raise damaged(
                self._path, begin, f"these {end - begin} bytes are not those that were saved"
            )
        self._unmap_behind(block)
        for tensor in self._blocks[block]:
            self._count(tensor)

    def _unmap_behind(self, block: int) -> None:
        """Both threads unmap what was read: the end of the whole mapping would be one's work. What
        the other one is still reading there is mapped again."""
        if (block + 1) % _UNMAPPED_BLOCKS == 0:
            begin, _ = self._extent(block + 1 - _UNMAPPED_BLOCKS)
            self._mapped.advise(_DONT_NEED, begin, self._extent(block)[1])

    def _extent(self, block: int) -> tuple[int, int]:
        begin = block * durable.BLOCK
        return begin, min(begin + durable.BLOCK, self._content.size)

    def _pieces(self, block: int) -> Iterator[tuple[Array, int]]:
        """What to read, in order: the memory for it, and its place in the file."""
        at, end = self._extent(block)
        for tensor in self._blocks[block]:
            begin, until = max(at, tensor.begin), min(end, tensor.end)
            yield from self._between(at, begin)
            yield self._memory(tensor)[begin - tensor.begin : until - tensor.begin], begin
            at = until
        yield from self._between(at, end)

    def _between(self, begin: int, end: int) -> Iterator[tuple[Array, int]]:
        """Bytes that nobody wants are read only because a checksum is of them too."""
        if begin < end and self._checksums:
            yield np.empty(end - begin, np.uint8), begin

    def _memory(self, tensor: Wanted) -> Array:
        """The bytes of the array that a tensor is read into."""
        with self._lock:
            array = self._filling.get(tensor)
            if array is None:
                spare = self._spare[tensor.kind]
                array = spare.pop() if spare else np.empty(tensor.shape, tensor.dtype)
                self._filling[tensor] = array
                self._unfilled[tensor.kind] -= 1
        return array.reshape(-1).view(np.uint8)

    def _read(self, memory: Array, at: int, crc: int) -> int:
        """Fill memory with what lies there; the checksum so far."""
        return copied(self._content[at : at + memory.size], memory, crc)

    def _count(self, tensor: Wanted) -> None:
        """A block of a tensor is there; the last one completes it."""
        with self._lock:
            self._waiting[tensor] -= 1
            if self._waiting[tensor]:
                return
            array = self._filling.pop(tensor)
        former = tensor.receive(array)
        if former is not None:
            self._keep(former, tensor.kind)

    def _keep(self, array: Array, kind: Any) -> None:
        """Have an array filled next, unless there are enough for all that are left."""
        with self._lock:
            if len(self._spare[kind]) < self._unfilled[kind]:
                self._spare[kind].append(array)
