"""TensorFlow's own checkpoints of version 2, read.

The index is a sorted table: a header under the empty key, an entry for each tensor, and for a
partitioned one an entry for each slice under a key of its own. The bytes of the tensors lie in
`<prefix>.data-00000-of-00001` files, which are mapped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg import errors
from thalweg.platform.dtype_traits import TABLE
from thalweg.platform.files import wire
from thalweg.platform.files.checkpoint_files import index_path, mapped
from thalweg.platform.files.checksum import crc32c, masked_crc32c
from thalweg.platform.files.safetensors import NUMPY, damaged
from thalweg.platform.files.sorted_table import MAGIC, Damage, pairs
from thalweg.platform.files.tensor_slices import (
    Checkpoint,
    Entry,
    Part,
    Sizes,
    Slice,
    as_sizes,
    is_inside,
    whole,
)

Array = NDArray[Any]

#: The names of dtypes by their numbers.
DTYPES = {row.enum: row.name for row in TABLE}
_SIGN = 1 << 63


#: The first index and the length along each axis; a length of -1 is all of the axis.
Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Record:
    """An entry of the index as it is written."""

    dtype: str
    shape: Sizes
    shard: int
    offset: int
    size: int
    checksum: int
    boxes: tuple[Box, ...]


def is_bundle(path: str) -> bool:
    """Whether a file is an index of TensorFlow's, by how it ends."""
    return mapped(path)[-8:].tobytes() == MAGIC


def open_bundle(prefix: str) -> Checkpoint:
    """A checkpoint that TensorFlow wrote."""
    path = index_path(prefix)
    try:
        records = dict(pairs(mapped(path).tobytes()))
        shards, big = _header(records.pop(b"", b""))
        return _Bundle(prefix, _entries(prefix, records, shards), big)
    except Damage as damage:
        raise errors.DataLossError(None, None, f"{path}: {damage.message}") from damage
    except ValueError as error:
        raise damaged(path, 0, str(error)) from error


def _header(message: bytes) -> tuple[int, bool]:
    """How many data files there are, and whether they are in the order of big-endian machines."""
    found = {field.number: field.value for field in wire.fields(message)}
    return signed(found.get(1, 0)), found.get(2, 0) == 1


def _entries(prefix: str, records: Mapping[bytes, bytes], shards: int) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for key, message in records.items():
        if not key.startswith(b"\0"):  # those are slices, found by the tensors they are of
            record = _record(message)
            parts = [_part(prefix, shards, *each) for each in _slices(key, record, records)]
            found[key.decode()] = Entry(record.dtype, record.shape, tuple(parts))
    return found


def _slices(
    key: bytes, record: _Record, records: Mapping[bytes, bytes]
) -> Iterator[tuple[Slice, _Record]]:
    """The slices of a tensor and the entries of their bytes."""
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
    kept = int.from_bytes(checksum, "little")
    return _Record(dtype, shape, shard, offset, size, kept, tuple(box_of(box) for box in boxes))


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
        inner = {f.number: f.value for f in wire.fields(_content(field.value))}
        pairs.append((signed(inner.get(1, 0)), signed(inner.get(2, 2 * _SIGN - 1))))
    return tuple(pairs)


def extent_of(box: Box, shape: Sizes) -> Slice:
    """The slice that a box is of a tensor of some shape; a ValueError if it is none."""
    if len(box) != len(shape):
        raise ValueError(f"a slice {box} of a tensor of shape {list(shape)}")
    lengths = tuple(size if n == -1 else n for (_, n), size in zip(box, shape, strict=True))
    extent = Slice(shape, tuple(start for start, _ in box), lengths)
    if not is_inside(extent):
        raise ValueError(f"the slice {extent.text} is not inside {list(shape)}")
    return extent


def signed(value: int | bytes) -> int:
    """A number of 64 bits with its sign."""
    if isinstance(value, bytes):
        raise ValueError("a number is written as bytes")
    return value - 2 * _SIGN if value >= _SIGN else value


def _content(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a message is written as a number")
    return value


# The keys of slices: codes whose order as bytes is that of what they stand for


def slice_key(name: bytes, box: Box) -> bytes:
    """The key that the bytes of a slice are kept under."""
    escaped = re.sub(b"[\0\xff]", lambda found: found[0] + bytes([found[0][0] ^ 0xFF]), name)
    key = _ordered(0) + escaped + b"\0\1" + _ordered(len(box))
    return key + b"".join(_ordered_signed(number) for pair in box for number in pair)


def _ordered(number: int) -> bytes:
    content = number.to_bytes(-(-number.bit_length() // 8), "big")
    return bytes([len(content)]) + content


def _ordered_signed(number: int) -> bytes:
    """Seven bits a byte; the leading ones say how many bytes there are, and of which sign."""
    bits = (~number if number < 0 else number).bit_length()
    count = bits // 7 + 1
    mark = ((1 << count) - 1) << (8 * count - count)
    return ((number & ((1 << 8 * count) - 1)) ^ mark).to_bytes(count, "big")


class _Bundle(Checkpoint):
    """A checkpoint of TensorFlow's; arrays are views of the mapped files."""

    def __init__(self, prefix: str, entries: Mapping[str, Entry], is_big_endian: bool) -> None:
        super().__init__(prefix, entries)
        self._is_big_endian = is_big_endian
        self._contents: dict[str, Array] = {}

    def empty_dtype(self, entry: Entry) -> Any:
        return NUMPY[entry.dtype]

    def load(self, entry: Entry, part: Part) -> Array:
        """A view of the file, checked."""
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
    """Lengths as varints, their checksum, then the strings."""
    raw, count = content.tobytes(), prod(shape)
    if count > len(raw):
        raise damaged(part.path, part.begin, f"{len(raw)} bytes are too few for {count} strings")
    lengths, place = _lengths(part, raw, count)
    place += 4
    checked = crc32c(b"".join(n.to_bytes(4 if n < 1 << 32 else 8, "little") for n in lengths))
    checked = crc32c(raw[place - 4 :], checked)
    if len(raw) != place + sum(lengths) or masked(checked) != part.checksum:
        raise damaged(part.path, part.begin, "the strings do not have their length or checksum")
    result = np.empty(count, object)
    for index, length in enumerate(lengths):
        result[index] = raw[place : place + length]
        place += length
    return result.reshape(shape)


def _lengths(part: Part, raw: bytes, count: int) -> tuple[list[int], int]:
    lengths: list[int] = []
    place = 0
    for _ in range(count):
        number = shift = 0
        while True:
            if place >= len(raw) or shift > 63:
                raise damaged(part.path, part.begin + place, "a length is cut off")
            group = raw[place]
            place, number, shift = place + 1, number | (group & 0x7F) << shift, shift + 7
            if group < 0x80:
                break
        lengths.append(number)
    return lengths, place


def masked(crc: int) -> int:
    """A checksum as files keep it."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
