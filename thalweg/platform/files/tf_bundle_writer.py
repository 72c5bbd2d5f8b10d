"""A writer of TensorFlow's checkpoints of version 2: `<prefix>.index` and one data file."""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np

from thalweg.platform.arrays import Array
from thalweg.platform.files import durable, wire
from thalweg.platform.files.checkpoint_files import index_path
from thalweg.platform.files.checksum import crc32c, masked_crc32c
from thalweg.platform.files.safetensors import Piece
from thalweg.platform.files.sorted_table import table
from thalweg.platform.files.tensor_slices import Sizes
from thalweg.platform.files.tf_bundle import DTYPES, lengths_content, slice_key

_ENUMS = {name: enum for enum, name in DTYPES.items()}
_FIXED32 = 5


def write_bundle(prefix: str, pieces: Iterable[Piece]) -> None:
    """Write a checkpoint that TensorFlow reads."""
    segments: list[Array] = []
    records: dict[bytes, bytes] = {b"": _header()}
    slices: dict[str, list[Piece]] = {}
    offset = 0
    for piece in pieces:
        content, checksum = _content(piece.array)
        shape = piece.array.shape
        record = _record(piece.dtype, shape, offset, content.nbytes, checksum)
        if piece.extent is None:
            records[piece.name.encode()] = record
        else:
            records[slice_key(piece.name.encode(), _box(piece))] = record
            slices.setdefault(piece.name, []).append(piece)
        segments.append(content)
        offset += content.nbytes
    for name, parts in slices.items():
        records[name.encode()] = _partitioned_record(parts)
    durable.write_stream(f"{prefix}.data-00000-of-00001", segments)
    durable.sync_folder(os.path.abspath(prefix))
    durable.replace_file(index_path(prefix), table(sorted(records.items())))


def _header() -> bytes:
    """The header: one little-endian data file, for readers of version 1 of the format."""
    return wire.integer_field(1, 1) + wire.bytes_field(3, wire.integer_field(1, 1))


def _content(array: Array) -> tuple[Array, int]:
    """The bytes of a tensor and their checksum."""
    if array.dtype.kind == "O":
        return _strings(array)
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return content, masked_crc32c(content.data)


def _strings(array: Array) -> tuple[Array, int]:
    items: list[bytes] = array.reshape(-1).tolist()
    lengths = [len(item) for item in items]
    fixed = lengths_content(lengths)
    rest = masked_crc32c(fixed).to_bytes(4, "little") + b"".join(items)
    content = b"".join(wire.varint(n) for n in lengths) + rest
    return np.frombuffer(content, np.uint8), masked_crc32c(rest, crc32c(fixed))


def _record(dtype: str, shape: Sizes, offset: int, size: int, checksum: int) -> bytes:
    return (
        _dtype_and_shape(dtype, shape)
        + wire.integer_field(4, offset)
        + wire.integer_field(5, size)
        + wire.varint(6 << 3 | _FIXED32)
        + checksum.to_bytes(4, "little")
    )


def _dtype_and_shape(dtype: str, shape: Sizes) -> bytes:
    sizes = b"".join(wire.bytes_field(2, wire.integer_field(1, size)) for size in shape)
    return wire.integer_field(1, _ENUMS[dtype]) + wire.bytes_field(2, sizes)


def _partitioned_record(parts: list[Piece]) -> bytes:
    """The entry of a tensor that is written in slices."""
    extent = parts[0].extent
    full = () if extent is None else extent.full
    return _dtype_and_shape(parts[0].dtype, full) + b"".join(
        wire.bytes_field(7, b"".join(wire.bytes_field(1, axis) for axis in _axes(part)))
        for part in parts
    )


def _box(piece: Piece) -> tuple[tuple[int, int], ...]:
    extent = piece.extent
    return () if extent is None else tuple(zip(extent.start, extent.shape, strict=True))


def _axes(piece: Piece) -> Iterable[bytes]:
    for start, length in _box(piece):
        # The length is written even if it is zero: a missing one means the whole axis.
        yield wire.integer_field(1, start) + wire.varint(2 << 3) + wire.varint(length)
