"""A reader of TensorFlow's checkpoints of version 2.

The index is a sorted table: a header under the empty key, an entry for each tensor, and for each
slice of a partitioned one an entry under a key of its own. The bytes of the tensors are in
`<prefix>.data-00000-of-00001` files, which are mapped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from thalweg import errors
from thalweg.platform.arrays import Array
from thalweg.platform.dtype_traits import TABLE
from thalweg.platform.files import wire
from thalweg.platform.files.checkpoint_files import index_path, mapped
from thalweg.platform.files.checksum import crc32c, masked_crc32c
from thalweg.platform.files.safetensors import damaged
from thalweg.platform.files.sorted_table import MAGIC, TableError, pairs
from thalweg.platform.files.tensor_slices import (
    NUMPY,
    Checkpoint,
    Entry,
    Part,
    Sizes,
    Slice,
    as_sizes,
    checked_slice,
    whole,
)

#: The names of dtypes by their enums.
DTYPES = {row.enum: row.name for row in TABLE}
_SIGN = 1 << 63


#: The first index and the length along each axis; a length of -1 is all of the axis.
Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Record:
    """A BundleEntryProto of the index."""

    dtype: str
    shape: Sizes
    shard: int
    offset: int
    size: int
    checksum: int
    boxes: tuple[Box, ...]


def is_bundle(path: str) -> bool:
    """Whether a file is an index of TensorFlow's, by its last bytes."""
    return mapped(path)[-8:].tobytes() == MAGIC


def open_bundle(prefix: str) -> Checkpoint:
    """A checkpoint that TensorFlow wrote."""
    path = index_path(prefix)
    try:
        records = dict(pairs(mapped(path).tobytes()))
        shards, is_big_endian = _header(records.pop(b"", b""))
        return _Bundle(prefix, _entries(prefix, records, shards), is_big_endian)
    except TableError as error:
        raise errors.DataLossError(None, None, f"{path}: {error.message}") from error
    except ValueError as error:
        raise damaged(path, 0, str(error)) from error


def _header(message: bytes) -> tuple[int, bool]:
    """The number of data files, and whether they are big-endian."""
    values = {field.number: field.value for field in wire.fields(message)}
    return signed(values.get(1, 0)), values.get(2, 0) == 1


def _entries(prefix: str, records: Mapping[bytes, bytes], shards: int) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for key, message in records.items():
        if not key.startswith(b"\0"):  # the key of a slice, which is read with its tensor
            record = _record(message)
            slices = _slices(key, record, records)
            parts = tuple(_part(prefix, shards, extent, own) for extent, own in slices)
            entries[key.decode()] = Entry(record.dtype, record.shape, parts)
    return entries


def _slices(
    key: bytes, record: _Record, records: Mapping[bytes, bytes]
) -> Iterator[tuple[Slice, _Record]]:
    """The slices of a tensor with their entries."""
    if not record.boxes:
        yield whole(record.shape), record
    for box in record.boxes:
        message = records.get(slice_key(key, box))
        if message is None:
            raise ValueError(f"the slice {box} of {key.decode()!r} has no entry")
        own, extent = _record(message), extent_of(box, record.shape)
        if (own.dtype, own.shape) != (record.dtype, extent.shape):
            raise ValueError(f"the slice {box} of {key.decode()!r} is {own}")
        yield extent, own


def _part(prefix: str, shards: int, extent: Slice, record: _Record) -> Part:
    if not 0 <= record.shard < shards or record.offset < 0 or record.size < 0:
        raise ValueError(f"{record} lies outside the {shards} data files")
    path = f"{prefix}.data-{record.shard:05d}-of-{shards:05d}"
    return Part(path, record.offset, record.offset + record.size, extent, record.checksum)


def _record(message: bytes) -> _Record:
    numbers = {1: 0, 3: 0, 4: 0, 5: 0}
    shape: Sizes = ()
    checksum = b""
    boxes: list[bytes] = []
    for field in wire.fields(message):
        if isinstance(field.value, int):
            numbers[field.number] = field.value
        elif field.number == 2:
            shape = tuple(shape_of(field.value))
        elif field.number == 6:
            checksum = field.value
        elif field.number == 7:
            boxes.append(field.value)
    dtype = DTYPES.get(numbers[1], "")
    if dtype not in NUMPY or as_sizes(shape, NUMPY[dtype].itemsize) is None:
        raise ValueError(f"an entry has dtype {numbers[1]} and shape {list(shape)}")
    shard, offset, size = (signed(numbers[number]) for number in (3, 4, 5))
    crc = int.from_bytes(checksum, "little")
    return _Record(dtype, shape, shard, offset, size, crc, tuple(box_of(box) for box in boxes))


def shape_of(message: bytes) -> Iterator[int]:
    """The sizes in a TensorShapeProto."""
    for field in wire.fields(message):
        if field.number == 2 and isinstance(field.value, bytes):
            inner = {f.number: f.value for f in wire.fields(field.value)}
            yield signed(inner.get(1, 0))


def box_of(message: bytes) -> Box:
    """The extents in a TensorSliceProto."""
    pairs: list[tuple[int, int]] = []
    for field in wire.fields(message):
        inner = {f.number: f.value for f in wire.fields(content_of(field.value))}
        pairs.append((signed(inner.get(1, 0)), signed(inner.get(2, 2 * _SIGN - 1))))
    return tuple(pairs)


def extent_of(box: Box, shape: Sizes) -> Slice:
    """The slice of a tensor of a shape that is a box; a ValueError if it is not inside."""
    if len(box) != len(shape):
        raise ValueError(f"a slice {box} of a tensor of shape {list(shape)}")
    starts = tuple(start for start, _ in box)
    lengths = tuple(size if n == -1 else n for (_, n), size in zip(box, shape, strict=True))
    extent = checked_slice(shape, starts, lengths)
    if extent is None:
        text = Slice(shape, starts, lengths).text
        raise ValueError(f"the slice {text} is not inside {list(shape)}")
    return extent


def signed(value: int | bytes) -> int:
    """A field's 64 bits as a signed integer; a ValueError if it holds bytes."""
    if isinstance(value, bytes):
        raise ValueError("a number is written as bytes")
    return value - 2 * _SIGN if value >= _SIGN else value


def content_of(value: int | bytes) -> bytes:
    """A field's bytes; a ValueError if it holds a number."""
    if isinstance(value, int):
        raise ValueError("a message is written as a number")
    return value


# The keys of slices: TensorFlow's order-preserving encoding


def slice_key(name: bytes, box: Box) -> bytes:
    """The key of the entry of a slice."""
    escaped = re.sub(b"[\0\xff]", lambda match: match[0] + bytes([match[0][0] ^ 0xFF]), name)
    key = _ordered(0) + escaped + b"\0\1" + _ordered(len(box))
    return key + b"".join(_ordered_signed(number) for pair in box for number in pair)


def _ordered(number: int) -> bytes:
    content = number.to_bytes(-(-number.bit_length() // 8), "big")
    return bytes([len(content)]) + content


def _ordered_signed(number: int) -> bytes:
    """Seven bits per byte, after a unary count of the bytes; the leading bit is the sign."""
    bits = (~number if number < 0 else number).bit_length()
    count = bits // 7 + 1
    mark = ((1 << count) - 1) << (8 * count - count)
    return ((number & ((1 << 8 * count) - 1)) ^ mark).to_bytes(count, "big")


class _Bundle(Checkpoint):
    """A checkpoint of version 2; arrays are views of the mapped files."""

    def __init__(self, prefix: str, entries: Mapping[str, Entry], is_big_endian: bool) -> None:
        super().__init__(prefix, entries)
        self._is_big_endian = is_big_endian
        self._contents: dict[str, Array] = {}

    def load(self, entry: Entry, part: Part) -> Array:
        """A view of the file, after a check of its checksum."""
        content = self._content(part)
        shape = part.extent.shape
        if entry.dtype == "string":
            return _strings(part, content, shape)
        dtype = NUMPY[entry.dtype]
        if content.nbytes != prod(shape) * dtype.itemsize:
            raise damaged(part.path, part.begin, f"{content.nbytes} bytes are not {list(shape)}")
        if masked_crc32c(content.data) != part.checksum:
            raise damaged(part.path, part.begin, "the tensor does not have its checksum")
        values = content.view(dtype).reshape(shape)
        return values.byteswap() if self._is_big_endian else values

    def _content(self, part: Part) -> Array:
        if part.path not in self._contents:
            self._contents[part.path] = mapped(part.path)
        content = self._contents[part.path]
        if not 0 <= part.begin <= part.end <= content.nbytes:
            raise damaged(part.path, content.nbytes, f"the file ends before byte {part.end}")
        return content[part.begin : part.end]


def _strings(part: Part, content: Array, shape: Sizes) -> Array:
    """Decode the lengths as varints, their checksum, then the strings."""
    raw, count = content.tobytes(), prod(shape)
    if count > len(raw):
        raise damaged(part.path, part.begin, f"{len(raw)} bytes are too few for {count} strings")
    lengths, offset = _lengths(part, raw, count)
    checksum = masked_crc32c(raw[offset:], crc32c(lengths_content(lengths)))
    offset += 4
    if len(raw) != offset + sum(lengths) or checksum != part.checksum:
        raise damaged(part.path, part.begin, "the strings do not have their length or checksum")
    result = np.empty(count, object)
    for index, length in enumerate(lengths):
        result[index] = raw[offset : offset + length]
        offset += length
    return result.reshape(shape)


def lengths_content(lengths: list[int]) -> bytes:
    """The bytes of string lengths that their checksum is of."""
    return b"".join(n.to_bytes(4 if n < 1 << 32 else 8, "little") for n in lengths)


def _lengths(part: Part, raw: bytes, count: int) -> tuple[list[int], int]:
    lengths: list[int] = []
    offset = 0
    for _ in range(count):
        try:
            number, offset = wire.read_varint(raw, offset)
        except ValueError:
            raise damaged(part.path, part.begin + offset, "a length is cut off") from None
        lengths.append(number)
    return lengths, offset
