"""TFRecord files: a sequence of byte strings with lengths and checksums.

A record is its length (8 bytes), a checksum of the length, the data, and a checksum of the data. A
file may be compressed as a whole. Files are read in large blocks; one call of machine code finds
and verifies all records of a block. A truncated or corrupted record raises a DataLossError with the
file and offset, after the records before it have been returned.
"""

from __future__ import annotations

import ctypes
import os
import struct
import zlib
from collections.abc import Iterator
from functools import cache
from typing import Any, ClassVar, Final, NamedTuple, Self

import numpy as np

from thalweg import errors
from thalweg.platform import machine_code
from thalweg.platform.compat import as_str_any
from thalweg.platform.files import checksum, remote
from thalweg.platform.files.gfile import GFile, Stat
from thalweg.platform.files.gfile import opened as opened_file
from thalweg.public import public

Path = str | bytes | os.PathLike[str]

_BLOCK: Final = 1 << 19
_OVERHEAD: Final = 16  # bytes of a record besides its data
_HEADER: Final = 12
_MAX_SCANNED: Final = 4096  # records of one scan
_MEMORY_LEVEL: Final = 9  # of zlib: the maximum, as in TensorFlow's writer
_MAX_RATIO: Final = 1032  # the maximum compression ratio of deflate

#: zlib's `wbits` by the type of the header.
_WINDOW_BITS: Final = {"ZLIB": zlib.MAX_WBITS, "GZIP": zlib.MAX_WBITS | 16}

# Why a scan ended.
_INCOMPLETE, _IS_FULL, _BAD_LENGTH, _BAD_DATA = range(4)


# Options


@public("python_io.TFRecordCompressionType", "io.TFRecordCompressionType")
class TFRecordCompressionType:
    """How a file of records is compressed: NONE, ZLIB or GZIP.

    Example:
        >>> gzip = tf.python_io.TFRecordOptions(tf.python_io.TFRecordCompressionType.GZIP)
        >>> with tf.python_io.TFRecordWriter("data.gz", gzip) as writer:
        ...     writer.write(b"record")
        >>> list(tf.python_io.tf_record_iterator("data.gz", gzip))
        [b'record']
    """

    NONE = 0
    ZLIB = 1
    GZIP = 2


@public("python_io.TFRecordOptions", "io.TFRecordOptions")
class TFRecordOptions:
    """The compression of records; all options but the type apply only to writing.

    Args:
        compression_type: "ZLIB", "GZIP", "" or a TFRecordCompressionType.
        flush_mode, compression_method, mem_level, compression_strategy: as in `zlib`.
        input_buffer_size, output_buffer_size: ignored; accepted for old programs.
        window_bits: the size of zlib's window, as a power of two.
        compression_level: from 0, fast, to 9, small.

    Example:
        >>> options = tf.python_io.TFRecordOptions("GZIP")
        >>> with tf.python_io.TFRecordWriter("records.gz", options) as writer:
        ...     writer.write(b"one")
        >>> list(tf.python_io.tf_record_iterator("records.gz", options))
        [b'one']
    """

    compression_type_map: ClassVar[dict[Any, str]] = {
        TFRecordCompressionType.ZLIB: "ZLIB",
        TFRecordCompressionType.GZIP: "GZIP",
        TFRecordCompressionType.NONE: "",
    }

    def __init__(
        self,
        compression_type: int | str | TFRecordOptions | None = None,
        flush_mode: int | None = None,
        input_buffer_size: int | None = None,
        output_buffer_size: int | None = None,
        window_bits: int | None = None,
        compression_level: int | None = None,
        compression_method: int | None = None,
        mem_level: int | None = None,
        compression_strategy: int | None = None,
    ) -> None:
        self.get_compression_type_string(compression_type)  # raises if the type is unknown
        self.compression_type = compression_type
        self.flush_mode = flush_mode
        self.input_buffer_size = input_buffer_size
        self.output_buffer_size = output_buffer_size
        self.window_bits = window_bits
        self.compression_level = compression_level
        self.compression_method = compression_method
        self.mem_level = mem_level
        self.compression_strategy = compression_strategy

    @classmethod
    def get_compression_type_string(cls, options: int | str | TFRecordOptions | None) -> str:
        """The compression type of options, a TFRecordCompressionType or a string, as a string."""
        if isinstance(options, TFRecordOptions):
            return cls.get_compression_type_string(options.compression_type)
        if not options:
            return ""
        if options in cls.compression_type_map:
            return cls.compression_type_map[options]
        if options not in cls.compression_type_map.values():
            raise ValueError(f'Not a valid compression_type: "{options}"')
        return str(options)


# Reading


class Block(NamedTuple):
    """Records that were read together, and their offsets in the uncompressed file."""

    records: list[bytes]
    offsets: list[int]


class RecordReader:
    """Reads the records of one file, from an `offset` in the uncompressed file.

    A record of more than `max_record` bytes is an error before it is read, so that a corrupted
    length cannot exhaust the memory.
    """

    def __init__(
        self,
        path: Path,
        compression_type: str = "",
        offset: int = 0,
        max_record: int | None = None,
    ) -> None:
        self._name = as_str_any(os.fspath(path))
        self._max_record = max_record
        self._source = opened(self._name, compression_type, offset)
        self._offset = offset
        self._begins, self._ends = np.empty((2, _MAX_SCANNED), np.int64)
        self._stop = np.empty(3, np.uint64)
        results = [array.ctypes.data for array in (self._begins, self._ends, self._stop)]
        self._scan_arguments = (*results, _MAX_SCANNED, checksum.address())

    @property
    def offset(self) -> int:
        """The offset of the next record in the uncompressed file."""
        return self._offset

    def blocks(self) -> Iterator[Block]:
        """The remaining records, in blocks."""
        while True:
            start = self._offset
            data, begins, ends = self._next()
            if not begins:
                return
            records = [data[begin:end] for begin, end in zip(begins, ends, strict=True)]
            yield Block(records, [start + begin - _HEADER for begin in begins])

    def __iter__(self) -> Iterator[bytes]:
        while True:
            data, begins, ends = self._next()
            if not begins:
                return
            for begin, end in zip(begins, ends, strict=True):
                yield data[begin:end]

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def _next(self) -> tuple[bytes, list[int], list[int]]:
        """Data, and the bounds of the records in them; no records at the end of the file."""
        data = self._source.read(_BLOCK)
        while data:
            count, end, status, size = self._scan(data)
            if count:
                self._source.unread(data, end)
                self._offset += end
                return data, self._begins[:count].tolist(), self._ends[:count].tolist()
            if status in (_BAD_LENGTH, _BAD_DATA):
                raise self._damaged(status)
            data = self._extend(data, _OVERHEAD + size)
        return b"", [], []

    def _scan(self, data: bytes) -> list[int]:
        """The number of complete records, the offset after them, why the scan ended there, and the
        size of the record there."""
        count = _scanner()(data, len(data), *self._scan_arguments)
        return [count, *self._stop.tolist()]

    def _extend(self, data: bytes, size: int) -> bytes:
        """The data with the bytes after them, at least `size` in all."""
        if size - len(data) > self._source.max_remaining():
            raise self._truncated()
        if self._max_record is not None and size > self._max_record:
            raise _data_loss(self._name, f"a record at {self._offset} claims {size:,} bytes")
        pieces, total = [data], len(data)
        while total < size and (piece := self._source.read(size - total)):
            pieces.append(piece)
            total += len(piece)
        if total < size:
            raise self._truncated()
        return b"".join(pieces)

    def _truncated(self) -> errors.DataLossError:
        return _data_loss(
            self._name, f"truncated record at {self._offset}: the file ends within it"
        )

    def _damaged(self, status: int) -> errors.DataLossError:
        part = "length" if status == _BAD_LENGTH else "data"
        return _data_loss(
            self._name, f"corrupted record at {self._offset}: the checksum of its {part} is wrong"
        )


def _data_loss(name: str, message: str) -> errors.DataLossError:
    return errors.DataLossError(None, None, f"{name}: {message}")


class PlainFile:
    """The bytes of a file."""

    def __init__(self, name: str, offset: int = 0) -> None:
        with GFile(name, "rb") as file:
            file.read(0)  # raises a `tf.errors` error if the file cannot be read
        is_remote = remote.is_remote(name)
        self._remote_size = Stat(name).length if is_remote else None
        self._file: Any = opened_file(name, "rb")
        self.offset = offset  # of the next read

    def read(self, count: int) -> bytes:
        """Up to `count` bytes; none at the end."""
        if self._remote_size is None:
            data = os.pread(self._file.fileno(), count, self.offset)
        else:
            self._file.seek(self.offset)
            data = self._file.read(count)
        self.offset += len(data)
        return data

    def unread(self, data: bytes, end: int) -> None:
        """Push back the bytes of `data`, the result of the last read, from `end` on."""
        self.offset -= len(data) - end

    def max_remaining(self) -> int:
        """An upper bound of the number of bytes that are left."""
        if self._remote_size is not None:
            return self._remote_size - self.offset
        return os.fstat(self._file.fileno()).st_size - self.offset

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()


class PackedFile:
    """The uncompressed bytes of a compressed file, which may be several concatenated streams."""

    def __init__(self, name: str, compression_type: str, offset: int = 0) -> None:
        self._name = name
        self._packed = PlainFile(name)
        self._window_bits = _WINDOW_BITS[compression_type]
        self._stream: Any = None  # None between two streams
        self._compressed = b""  # input that was read but not decompressed
        self._unread = b""  # output that was pushed back
        while offset > 0 and (skipped := len(self.read(min(offset, _BLOCK)))):
            offset -= skipped

    def read(self, count: int) -> bytes:
        """About `count` bytes; none at the end."""
        unread, self._unread = self._unread, b""
        return unread + self._next(count)

    def _next(self, count: int) -> bytes:
        while True:
            self._compressed = self._compressed or self._packed.read(_BLOCK)
            if self._stream is None and not self._compressed:
                return b""
            is_last = not self._compressed
            piece = self._decompress(min(count, _BLOCK))
            if piece:
                return piece
            if is_last and self._stream is not None:
                raise self._corrupted("the file ends within a compressed stream")

    def _decompress(self, count: int) -> bytes:
        stream = self._stream or zlib.decompressobj(self._window_bits)
        try:
            piece = stream.decompress(self._compressed, count)
        except zlib.error as error:
            raise self._corrupted(str(error)) from error
        self._stream = None if stream.eof else stream
        self._compressed = stream.unused_data if stream.eof else stream.unconsumed_tail
        return piece

    def unread(self, data: bytes, end: int) -> None:
        """Push back the bytes of `data`, the result of the last read, from `end` on."""
        self._unread = data[end:]

    def _corrupted(self, reason: str) -> errors.DataLossError:
        offset = self._packed.offset - len(self._compressed)
        return _data_loss(self._name, f"cannot decompress from {offset} on: {reason}")

    def max_remaining(self) -> int:
        """An upper bound of the number of bytes that are left."""
        compressed = len(self._compressed) + self._packed.max_remaining()
        return _BLOCK + compressed * _MAX_RATIO  # _BLOCK: output that zlib has buffered

    def close(self) -> None:
        """Close the file."""
        self._packed.close()


def opened(name: str, compression_type: str = "", offset: int = 0) -> PlainFile | PackedFile:
    """The bytes of a file, uncompressed, from `offset` on."""
    if not compression_type:
        return PlainFile(name, offset)
    return PackedFile(name, compression_type, offset)


@public("python_io.tf_record_iterator", "io.tf_record_iterator")
def tf_record_iterator(
    path: Path, options: TFRecordOptions | int | str | None = None
) -> Iterator[bytes]:
    """Iterate over the records of a TFRecord file.

    Args:
        path: the name of the file.
        options: a `tf.python_io.TFRecordOptions`, where the file is compressed.

    Returns:
        An iterator of bytes.

    Example:
        >>> with tf.python_io.TFRecordWriter("data.tfrecord") as writer:
        ...     writer.write(b"one")
        >>> [record for record in tf.python_io.tf_record_iterator("data.tfrecord")]
        [b'one']
    """
    return iter(RecordReader(path, TFRecordOptions.get_compression_type_string(options)))


# Writing


@public("python_io.TFRecordWriter", "io.TFRecordWriter")
class TFRecordWriter:
    """Writes a file of records, which are bytes: `tf.data.TFRecordDataset` reads it.

    Args:
        path: the name of the file.
        options: a `tf.python_io.TFRecordOptions` or compression type.

    Example:
        >>> with tf.python_io.TFRecordWriter("data.tfrecord") as writer:
        ...     for record in (b"one", b"two"):
        ...         writer.write(record)
        >>> list(tf.python_io.tf_record_iterator("data.tfrecord"))
        [b'one', b'two']
    """

    def __init__(self, path: Path, options: TFRecordOptions | int | str | None = None) -> None:
        options = options if isinstance(options, TFRecordOptions) else TFRecordOptions(options)
        self._compressor = _compressor(options)
        self._flush_mode = options.flush_mode or zlib.Z_NO_FLUSH
        self._file: GFile | None = GFile(path, "wb")
        self._file.write(b"")  # creates the file, even if no record is written

    def write(self, record: bytes | bytearray | memoryview | str) -> None:
        """Add a record."""
        data = record.encode() if isinstance(record, str) else record
        if not isinstance(data, bytes | bytearray | memoryview):  # pyright: ignore[reportUnnecessaryIsInstance] - user input
            raise TypeError(f"A record is bytes or text, not {data!r}")
        self._append(framed(data))

    def flush(self) -> None:
        """Pass all records so far to the operating system."""
        if self._compressor is not None:
            self._opened().write(self._compressor.flush(zlib.Z_PARTIAL_FLUSH))
        self._opened().flush()

    def close(self) -> None:
        """Flush and close the file."""
        if self._file is None:
            return
        file, self._file = self._file, None
        if self._compressor is not None:
            file.write(self._compressor.flush(zlib.Z_FINISH))
        file.close()

    def _append(self, data: bytes) -> None:
        file = self._opened()
        if self._compressor is None:
            file.write(data)
            return
        file.write(self._compressor.compress(data))
        if self._flush_mode != zlib.Z_NO_FLUSH:
            file.write(self._compressor.flush(self._flush_mode))

    def _opened(self) -> GFile:
        if self._file is None:
            raise errors.FailedPreconditionError(None, None, "Writer is closed.")
        return self._file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()


def framed(data: bytes | bytearray | memoryview) -> bytes:
    """A record as it is written to a file."""
    head = struct.pack("<Q", len(data))
    sums = (struct.pack("<I", checksum.masked_crc32c(part)) for part in (head, data))
    return b"".join((head, next(sums), data, next(sums)))


def _compressor(options: TFRecordOptions) -> Any:
    """The zlib object that compresses a file; None if it is not compressed."""
    kind = TFRecordOptions.get_compression_type_string(options)
    if not kind:
        return None

    def chosen(value: int | None, default: int) -> int:
        return default if value is None else value

    return zlib.compressobj(
        chosen(options.compression_level, zlib.Z_DEFAULT_COMPRESSION),
        chosen(options.compression_method, zlib.DEFLATED),
        chosen(options.window_bits, _WINDOW_BITS[kind]),
        chosen(options.mem_level, _MEMORY_LEVEL),
        chosen(options.compression_strategy, zlib.Z_DEFAULT_STRATEGY),
    )


# Machine code


@cache
def _scanner() -> Any:
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    types = (size, pointer, size, pointer, pointer, pointer, size, pointer)
    (function,) = machine_code.functions(_SCAN, {"scan": types})
    return function


# Stores the bounds of the data of complete records, up to `most` of them, and returns their number.
# `stop` gets the offset after the last one, why the scan ended, and the size of the record there.
_SCAN: Final = """
define private i1 @is_wrong(ptr %data, i64 %length, ptr %stored, ptr %crc32c) {
  %crc = call i32 %crc32c(ptr %data, i64 %length, i32 0)
  %rotated = call i32 @llvm.fshr.i32(i32 %crc, i32 %crc, i32 15)
  %masked = add i32 %rotated, 2726488792
  %found = load i32, ptr %stored, align 1
  %differs = icmp ne i32 %masked, %found
  ret i1 %differs
}

declare i32 @llvm.fshr.i32(i32, i32, i32)

define i64 @scan(ptr %data, i64 %length, ptr %begins, ptr %ends, ptr %stop, i64 %most,
                 ptr %crc32c) {
entry:
  br label %record
record:
  %at = phi i64 [0, %entry], [%next, %whole]
  %count = phi i64 [0, %entry], [%counted, %whole]
  %left = sub i64 %length, %at
  %is_full = icmp eq i64 %count, %most
  br i1 %is_full, label %enough, label %header
header:
  %has_header = icmp uge i64 %left, 12
  br i1 %has_header, label %check_length, label %enough
check_length:
  %head = getelementptr i8, ptr %data, i64 %at
  %head_sum = getelementptr i8, ptr %head, i64 8
  %bad_length = call i1 @is_wrong(ptr %head, i64 8, ptr %head_sum, ptr %crc32c)
  br i1 %bad_length, label %enough, label %check_size
check_size:
  %size = load i64, ptr %head, align 1
  %room = call i64 @llvm.usub.sat.i64(i64 %left, i64 16)
  %fits = icmp ule i64 %size, %room
  %is_long_enough = icmp uge i64 %left, 16
  %is_whole = and i1 %fits, %is_long_enough
  br i1 %is_whole, label %check_data, label %enough
check_data:
  %body = getelementptr i8, ptr %head, i64 12
  %body_sum = getelementptr i8, ptr %body, i64 %size
  %bad_data = call i1 @is_wrong(ptr %body, i64 %size, ptr %body_sum, ptr %crc32c)
  br i1 %bad_data, label %enough, label %whole
whole:
  %begin = add i64 %at, 12
  %finish = add i64 %begin, %size
  %begin_slot = getelementptr i64, ptr %begins, i64 %count
  %finish_slot = getelementptr i64, ptr %ends, i64 %count
  store i64 %begin, ptr %begin_slot
  store i64 %finish, ptr %finish_slot
  %next = add i64 %finish, 4
  %counted = add i64 %count, 1
  br label %record
enough:
  %status = phi i64 [1, %record], [0, %header], [2, %check_length], [0, %check_size],
                    [3, %check_data]
  %wanted = phi i64 [0, %record], [0, %header], [0, %check_length], [%size, %check_size],
                    [%size, %check_data]
  %status_slot = getelementptr i64, ptr %stop, i64 1
  %size_slot = getelementptr i64, ptr %stop, i64 2
  store i64 %at, ptr %stop
  store i64 %status, ptr %status_slot
  store i64 %wanted, ptr %size_slot
  ret i64 %count
}

declare i64 @llvm.usub.sat.i64(i64, i64)
"""
