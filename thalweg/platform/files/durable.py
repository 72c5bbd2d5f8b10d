"""Atomic and durable writes: after a crash, a file is either complete or absent.

Content is written to a partial file beside the target, synced and then renamed. Large streams are
written with direct I/O by two threads, with a checksum for each block. A writer locks its partial
file: `sweep` removes those without a lock, whose writers have died.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import secrets
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import accumulate
from queue import SimpleQueue
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.platform.arrays import Array
from thalweg.platform.files.checksum import crc32c
from thalweg.platform.files.gfile import ERROR_CLASSES, ErrorClasses, os_errors

#: A stream is written and checked in blocks of this many bytes.
BLOCK = 4 << 20
_MIN_DIRECT = 4 * BLOCK  # bytes: smaller files fit the page cache
_SECTOR = 4096  # the alignment of direct I/O
_MARK = ".partial-"

_ERROR_CLASSES: ErrorClasses = {
    **ERROR_CLASSES,
    errno.EDQUOT: errors.ResourceExhaustedError,
    errno.EFBIG: errors.ResourceExhaustedError,
}


def file_errors(path: str) -> AbstractContextManager[None]:
    """Convert an OSError inside the block to the class of `tf.errors` for its number."""
    return os_errors(path, _ERROR_CLASSES, ": ")


@contextmanager
def partial_file(path: str, flags: int = 0) -> Generator[int]:
    """A descriptor of a file that is renamed to `path` when the block ends, or removed on error."""
    with file_errors(path):
        partial, descriptor = _open_partial(path, flags)
        try:
            try:
                yield descriptor
                os.fsync(descriptor)
                os.rename(partial, path)
            finally:
                os.close(descriptor)
        except BaseException:
            with suppress(FileNotFoundError):
                os.remove(partial)
            raise


def _open_partial(path: str, flags: int) -> tuple[str, int]:
    """A new locked file; tries again if a sweep removes the file before it is locked."""
    while True:
        partial = f"{path}{_MARK}{secrets.token_hex(4)}"
        mode = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | flags
        descriptor = os.open(partial, mode, 0o666)
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(partial):
                return partial, descriptor
        os.close(descriptor)


def replace_file(path: str, content: bytes) -> None:
    """Write or replace a small file, durably."""
    put_file(path, content)
    sync_folder(path)


def put_file(path: str, content: bytes) -> None:
    """Write or replace a small file; it is durable once the folder is synced."""
    with partial_file(path) as descriptor:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]


def sync_folder(path: str) -> None:
    """Make the names in the folder of `path` durable."""
    folder = os.path.dirname(path) or "."
    with file_errors(folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sweep(folder: str) -> None:
    """Remove partial files whose writers have died."""
    with os.scandir(folder or ".") as entries:
        partial = [entry.path for entry in entries if _MARK in entry.name]
    for path in partial:
        with suppress(OSError):
            _remove_unlocked(path)


def _remove_unlocked(path: str) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.remove(path)
    finally:
        os.close(descriptor)


# Large streams


def write_stream(
    path: str, segments: Sequence[Array], threads: int = 2, rest: Callable[[], Any] | None = None
) -> list[int]:
    """Write the concatenation of byte arrays to a file; returns the checksum of every block.

    `rest` is called between blocks: a background writer sleeps in it.
    """
    size = sum(segment.nbytes for segment in segments)
    flags = os.O_DIRECT if size >= _MIN_DIRECT and _allows_direct(path) else 0
    with partial_file(path, flags) as descriptor:
        _reserve(descriptor, size)
        stream = _Stream(descriptor, segments, size, rest)
        checksums = stream.write(max(1, min(threads, -(-size // BLOCK))))
        os.ftruncate(descriptor, size)
    return checksums


def _allows_direct(path: str) -> bool:
    """Whether the file system of `path` supports direct I/O."""
    probe = f"{path}{_MARK}{secrets.token_hex(4)}"
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600))
    except OSError:
        return False
    finally:
        with suppress(FileNotFoundError):
            os.remove(probe)
    return True


def _reserve(descriptor: int, size: int) -> None:
    """Allocate the space, so that a full disk is an error before anything is written."""
    if not size:
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise


class _Stream:
    """The concatenated segments in blocks, which threads write in any order."""

    def __init__(
        self,
        descriptor: int,
        segments: Sequence[Array],
        size: int,
        rest: Callable[[], Any] | None = None,
    ) -> None:
        self._descriptor = descriptor
        self._rest = rest
        self._segments = segments
        self._size = size
        self._starts = list(accumulate((s.nbytes for s in segments), initial=0))
        self._buffers: SimpleQueue[Array] = SimpleQueue()

    def write(self, threads: int) -> list[int]:
        """Write all blocks; their checksums in order."""
        count = -(-self._size // BLOCK)
        for _ in range(threads):
            self._buffers.put(np.frombuffer(mmap.mmap(-1, BLOCK), np.uint8))
        if threads == 1:
            return [self._write_block(index) for index in range(count)]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(self._write_block, range(count)))

    def _write_block(self, index: int) -> int:
        if index and self._rest is not None:
            self._rest()
        buffer = self._buffers.get()
        try:
            begin = index * BLOCK
            length = min(BLOCK, self._size - begin)
            at = 0
            for piece in self._pieces(begin, begin + length):
                buffer[at : at + piece.nbytes] = piece
                at += piece.nbytes
            # The last block is padded to whole sectors; the file is truncated afterwards.
            _write_at(self._descriptor, buffer[: -(-length // _SECTOR) * _SECTOR], begin)
            return crc32c(buffer[:length].data)
        finally:
            self._buffers.put(buffer)

    def _pieces(self, begin: int, end: int) -> Iterator[Array]:
        """The parts of segments between two offsets of the stream."""
        index = bisect_right(self._starts, begin) - 1
        while begin < end:
            start = self._starts[index]
            piece = self._segments[index][begin - start : end - start]
            yield piece
            begin += piece.nbytes
            index += 1


def _write_at(descriptor: int, content: Array, offset: int) -> None:
    done = 0
    while done < content.nbytes:
        done += os.pwrite(descriptor, content[done:].data, offset + done)
