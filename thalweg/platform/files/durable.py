"""Files that are there whole or not at all, whatever moment the machine stops at.

What is written goes to a file beside its target, is synced to the disk and then renamed. Large
streams are written past the page cache by two threads, and give a checksum for each block. A
partial file whose writer died is found by its lock, which died with the writer, and swept away.
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
from contextlib import contextmanager, suppress
from itertools import accumulate
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg import errors
from thalweg.platform.files.checksum import crc32c

Array = NDArray[Any]

#: A stream is written and checked in blocks of this many bytes.
BLOCK = 4 << 20
_DIRECT_FROM = 4 * BLOCK  # below this the page cache costs nothing
_SECTOR = 4096  # what writes past the page cache are aligned to
_MARK = ".partial-"

_KINDS: dict[int | None, Callable[[None, None, str], errors.OpError]] = {
    errno.ENOENT: errors.NotFoundError,
    errno.EACCES: errors.PermissionDeniedError,
    errno.EPERM: errors.PermissionDeniedError,
    errno.EROFS: errors.PermissionDeniedError,
    errno.ENOTDIR: errors.FailedPreconditionError,
    errno.EISDIR: errors.FailedPreconditionError,
    errno.ENOSPC: errors.ResourceExhaustedError,
    errno.EDQUOT: errors.ResourceExhaustedError,
    errno.EFBIG: errors.ResourceExhaustedError,
    errno.EMFILE: errors.ResourceExhaustedError,
}


@contextmanager
def file_errors(path: str) -> Generator[None]:
    """Raise an OSError inside the block as the class of `tf.errors` that its number stands for."""
    try:
        yield
    except OSError as error:
        kind = _KINDS.get(error.errno, errors.UnknownError)
        raise kind(None, None, f"{path}: {error.strerror or error}") from error


@contextmanager
def written_beside(path: str, flags: int = 0) -> Generator[int]:
    """A descriptor of a file that becomes `path` when the block ends, and vanishes if it fails."""
    with file_errors(path):
        side, descriptor = _open_side(path, flags)
        try:
            try:
                yield descriptor
                os.fsync(descriptor)
                os.rename(side, path)
            finally:
                os.close(descriptor)
        except BaseException:
            with suppress(FileNotFoundError):
                os.remove(side)
            raise


def _open_side(path: str, flags: int) -> tuple[str, int]:
    """A new locked file. A sweeper may take it before it has its lock: then there is another."""
    while True:
        side = f"{path}{_MARK}{secrets.token_hex(4)}"
        descriptor = os.open(side, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | flags, 0o666)
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(side):
                return side, descriptor
        os.close(descriptor)


def replace_file(path: str, content: bytes) -> None:
    """Put a small file in place of what is there, if anything is, to last."""
    put_file(path, content)
    sync_folder(path)


def put_file(path: str, content: bytes) -> None:
    """Put a small file in place of what is there; its name lasts once the folder is synced."""
    with written_beside(path) as descriptor:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]


def sync_folder(path: str) -> None:
    """Make the names in the folder of `path` last."""
    folder = os.path.dirname(path) or "."
    with file_errors(folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sweep(folder: str) -> None:
    """Remove partial files whose writers are dead."""
    with os.scandir(folder or ".") as found:
        partial = [entry.path for entry in found if _MARK in entry.name]
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
    """Write arrays of bytes one after the other; returns the checksum of every block.

    `rest` is called between blocks, by a writer that is to leave time to others.
    """
    size = sum(segment.nbytes for segment in segments)
    flags = os.O_DIRECT if size >= _DIRECT_FROM and _is_direct(path) else 0
    with written_beside(path, flags) as descriptor:
        _reserve(descriptor, size)
        stream = _Stream(descriptor, segments, size, rest)
        checksums = stream.write(max(1, min(threads, -(-size // BLOCK))))
        os.ftruncate(descriptor, size)
    return checksums


def _is_direct(path: str) -> bool:
    """Whether the file system of `path` lets writes pass the page cache."""
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
    """Take the space now: a full disk is known before a byte is written."""
    if not size:
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise


class _Stream:
    """The segments as one run of bytes, cut into blocks that threads write in any order."""

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
            # Past the end of the last block whole sectors are written, and cut off afterwards.
            _write_at(self._descriptor, buffer[: -(-length // _SECTOR) * _SECTOR], begin)
            return crc32c(buffer[:length].data)
        finally:
            self._buffers.put(buffer)

    def _pieces(self, begin: int, end: int) -> Iterator[Array]:
        """The parts of the segments between two places of the stream."""
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
