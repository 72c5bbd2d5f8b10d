"""Tensors out of a file, block by block: read into new arrays, checked, handed to their receivers.

Two threads read. A block is checked in pieces that were just read and are still in the cache. A
tensor is handed over when all blocks that it has bytes in were found sound; what the receiver gives
back for it is filled next, so that of a large file only a few tensors are in memory twice.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.platform import checksum, durable, machine_code
from thalweg.platform.checksum import crc32c
from thalweg.platform.safetensors import damaged
from thalweg.platform.tensor_slices import Receiver

Array = NDArray[Any]

_PIECE = 256 << 10  # bytes read and then checked: they stay in a core's cache in between
_FEW_BLOCKS = 4  # of which it does not pay to wake a second thread


@dataclass(frozen=True)
class Wanted:
    """A tensor in a file: where its bytes lie, what they are, and who gets them."""

    begin: int
    end: int
    dtype: Any
    shape: tuple[int, ...]
    receive: Receiver


def stream(path: str, size: int, checksums: Sequence[int], wanted: Sequence[Wanted]) -> None:
    """Hand over the tensors of a file; without checksums nothing is checked."""
    for tensor in wanted:
        if tensor.begin == tensor.end:
            tensor.receive(np.empty(tensor.shape, tensor.dtype))
    filled = [tensor for tensor in wanted if tensor.begin < tensor.end]
    with durable.file_errors(path), open(path, "rb", buffering=0) as file:
        _Stream(path, file.fileno(), size, checksums, filled).run()


class _Stream:
    """A file that is read: the blocks that matter, and the arrays that are being filled."""

    def __init__(
        self,
        path: str,
        descriptor: int,
        size: int,
        checksums: Sequence[int],
        wanted: Sequence[Wanted],
    ) -> None:
        self._path = path
        self._descriptor = descriptor
        self._size = size
        self._checksums = checksums
        self._blocks: dict[int, list[Wanted]] = defaultdict(list)
        self._waiting: dict[Wanted, int] = {}
        for tensor in sorted(wanted, key=lambda tensor: tensor.begin):
            blocks = range(tensor.begin // durable.BLOCK, -(-tensor.end // durable.BLOCK))
            self._waiting[tensor] = len(blocks)
            for block in blocks:
                self._blocks[block].append(tensor)
        self._lock = threading.Lock()
        self._filling: dict[Wanted, Array] = {}
        self._spare: dict[Any, list[Array]] = defaultdict(list)

    def run(self) -> None:
        """Read everything."""
        if len(self._blocks) < _FEW_BLOCKS:
            for block in self._blocks:
                self._read_block(block)
            return
        first, last = min(self._blocks), max(self._blocks)  # so that the disk begins at once
        size = (last + 1 - first) * durable.BLOCK
        os.posix_fadvise(self._descriptor, first * durable.BLOCK, size, os.POSIX_FADV_WILLNEED)
        with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
            reading = [pool.submit(self._read_block, block) for block in self._blocks]
            ended, _ = wait(reading, return_when=FIRST_EXCEPTION)
            pool.shutdown(cancel_futures=True)
        for each in ended:
            each.result()

    def _read_block(self, block: int) -> None:
        crc = 0
        for memory, at in self._pieces(block):
            crc = self._read(memory, at, crc)
        if self._checksums and crc != self._checksums[block]:
            begin, end = self._extent(block)
            raise damaged(
                self._path, begin, f"these {end - begin} bytes are not those that were saved"
            )
        for tensor in self._blocks[block]:
            self._count(tensor)

    def _extent(self, block: int) -> tuple[int, int]:
        begin = block * durable.BLOCK
        return begin, min(begin + durable.BLOCK, self._size)

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
                spare = self._spare[tensor.dtype, tensor.shape]
                array = spare.pop() if spare else np.empty(tensor.shape, tensor.dtype)
                self._filling[tensor] = array
        return array.reshape(-1).view(np.uint8)

    def _read(self, memory: Array, at: int, crc: int) -> int:
        """Fill memory with what lies there; the checksum so far."""
        state = ctypes.c_uint32(crc)
        done = _reader()(self._descriptor, memory.ctypes.data, memory.size, at, state)
        while done < memory.size:  # what the system had to say, Python knows how to hear
            rest = memory[done:]
            count = os.preadv(self._descriptor, [rest.data], at + done)
            if count == 0:
                raise damaged(
                    self._path, at + done, f"the file ends here, before its {self._size} bytes"
                )
            state.value = crc32c(rest[:count].data, state.value)
            done += count
        return state.value

    def _count(self, tensor: Wanted) -> None:
        """A block of a tensor is there; the last one completes it."""
        with self._lock:
            self._waiting[tensor] -= 1
            if self._waiting[tensor]:
                return
            array = self._filling.pop(tensor)
        former = tensor.receive(array)
        if former is not None:
            with self._lock:
                self._spare[tensor.dtype, tensor.shape].append(former)


@cache
def _reader() -> Callable[..., int]:
    """`i64 read(i32 file, ptr memory, i64 length, i64 offset, ptr checksum)`: the bytes read."""
    system = ctypes.cast(ctypes.CDLL(None).pread, ctypes.c_void_p).value
    types = (
        ctypes.c_int64,
        ctypes.c_int32,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_void_p,
    )
    (function,) = machine_code.functions(_text(system or 0, checksum.address()), {"read": types})
    return lambda *given: function(*given[:-1], ctypes.addressof(given[-1]))


def _text(system: int, checksum: int) -> str:
    """Read a piece, check it, and so on; stop where the system gives nothing."""
    return f"""
declare i64 @llvm.umin.i64(i64, i64)

define i64 @read(i32 %file, ptr %memory, i64 %length, i64 %offset, ptr %checksum) {{
entry:
  %system = inttoptr i64 {system} to ptr
  %check = inttoptr i64 {checksum} to ptr
  %first = load i32, ptr %checksum
  br label %loop
loop:
  %done = phi i64 [0, %entry], [%next, %piece]
  %state = phi i32 [%first, %entry], [%changed, %piece]
  %left = sub i64 %length, %done
  %some = icmp ne i64 %left, 0
  br i1 %some, label %ask, label %end
ask:
  %most = call i64 @llvm.umin.i64(i64 %left, i64 {_PIECE})
  %here = getelementptr i8, ptr %memory, i64 %done
  %place = add i64 %offset, %done
  %count = call i64 %system(i32 %file, ptr %here, i64 %most, i64 %place)
  %given = icmp sgt i64 %count, 0
  br i1 %given, label %piece, label %end
piece:
  %changed = call i32 %check(ptr %here, i64 %count, i32 %state)
  %next = add i64 %done, %count
  br label %loop
end:
  store i32 %state, ptr %checksum
  ret i64 %done
}}
"""
