"""TensorFlow's own checkpoints of version 1, read.

A file is a sorted table: under the empty key stands which tensors there are and which slices of
them this file has, under every other key a slice with its values as a TensorProto. A checkpoint may
be several such files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg import errors
from thalweg.platform.files import wire
from thalweg.platform.files.checkpoint_files import mapped
from thalweg.platform.files.safetensors import NUMPY, damaged
from thalweg.platform.files.sorted_table import Damage, pairs
from thalweg.platform.files.tensor_slices import (
    Checkpoint,
    Entry,
    Part,
    Sizes,
    as_sizes,
    whole,
)
from thalweg.platform.files.tf_bundle import DTYPES, box_of, extent_of, shape_of, signed

Array = NDArray[Any]

#: The fields of a TensorProto that hold values, and how their elements are packed.
_PACKED = {5: "<f4", 6: "<f8", 9: "<c8", 12: "<c16"}
_VARINTS = {7, 10, 11, 13, 16, 17}
_STRINGS = 8


class _Slice(NamedTuple):
    """The values of one slice, as the file has them."""

    name: str
    box: bytes
    values: bytes


def open_tables(prefix: str, paths: Sequence[str]) -> Checkpoint:
    """The checkpoint that some files are together."""
    entries: dict[str, Entry] = {}
    values: dict[int, bytes] = {}
    for path in paths:
        try:
            _add(path, entries, values)
        except Damage as damage:
            raise errors.DataLossError(None, None, f"{path}: {damage.message}") from damage
        except ValueError as error:
            raise damaged(path, 0, str(error)) from error
    return _Tables(prefix, entries, values)


def _add(path: str, entries: dict[str, Entry], values: dict[int, bytes]) -> None:
    """Add the tensors and slices of a file. A part begins where the values before it end."""
    records = dict(pairs(mapped(path).tobytes()))
    for name, dtype, shape in _described(records.pop(b"", b"")):
        known = entries.setdefault(name, Entry(dtype, shape, ()))
        if (known.dtype, known.shape) != (dtype, shape):
            raise ValueError(f"{name!r} has another dtype or shape in another file")
    begin = sum(map(len, values.values()))
    for message in records.values():
        part = _slice(message)
        entry = entries.get(part.name)
        if entry is None:
            raise ValueError(f"a slice is of {part.name!r}, which is not among the tensors")
        box = box_of(part.box)
        extent = extent_of(box, entry.shape) if box else whole(entry.shape)
        added = Part(path, begin, begin + len(part.values), extent)
        entries[part.name] = replace(entry, parts=(*entry.parts, added))
        values[begin], begin = part.values, added.end


def _described(message: bytes) -> Iterator[tuple[str, str, Sizes]]:
    """The name, dtype and shape of each tensor, from what stands under the empty key."""
    for meta in _inner(message, 1):
        for tensor in _inner(meta, 1):
            found = {field.number: field.value for field in wire.fields(tensor)}
            dtype = DTYPES.get(signed(found.get(3, 0)), "")
            shape = tuple(shape_of(_bytes(found.get(2, b""))))
            if dtype not in NUMPY or as_sizes(shape, NUMPY[dtype].itemsize) is None:
                raise ValueError(f"a tensor has dtype {found.get(3)} and shape {list(shape)}")
            yield _bytes(found.get(1, b"")).decode(), dtype, shape


def _slice(message: bytes) -> _Slice:
    for data in _inner(message, 2):
        found = {field.number: _bytes(field.value) for field in wire.fields(data)}
        return _Slice(found.get(1, b"").decode(), found.get(2, b""), found.get(3, b""))
    raise ValueError("a record has no slice")


def _inner(message: bytes, number: int) -> Iterator[bytes]:
    """The messages in one field of a message."""
    for field in wire.fields(message):
        if field.number == number:
            yield _bytes(field.value)


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a message is written as a number")
    return value


class _Tables(Checkpoint):
    """A checkpoint of version 1; arrays are made when they are asked for."""

    def __init__(
        self, prefix: str, entries: Mapping[str, Entry], values: Mapping[int, bytes]
    ) -> None:
        super().__init__(prefix, entries)
        self._values = values

    def empty_dtype(self, entry: Entry) -> Any:
        return NUMPY[entry.dtype]

    def load(self, entry: Entry, part: Part) -> Array:
        """The array of a slice."""
        try:
            elements = _elements(self._values[part.begin], NUMPY[entry.dtype])
        except (ValueError, OverflowError) as error:
            raise damaged(part.path, 0, str(error)) from error
        if elements.size != prod(part.extent.shape):
            raise damaged(part.path, 0, f"{elements.size} values are not {list(part.extent.shape)}")
        return elements.reshape(part.extent.shape)


def _elements(message: bytes, dtype: Any) -> Array:
    """The values of a TensorProto, whichever field they are in."""
    pieces = [_values(field, dtype) for field in wire.fields(message)]
    found = [piece for piece in pieces if piece is not None]
    return np.concatenate(found) if found else np.empty(0, dtype)


def _values(field: wire.Field, dtype: Any) -> Array | None:
    """The values in a field; a list of numbers may be packed or come one by one."""
    number, value = field.number, field.value
    if number == 4 and value:  # their bytes as they are
        return np.frombuffer(_bytes(value), dtype)
    if number == _STRINGS:
        return np.array([_bytes(value)], object)
    if number in _PACKED:
        return np.frombuffer(_bytes(value), _PACKED[number]).astype(dtype, copy=False)
    if number in _VARINTS:
        integers = [value] if isinstance(value, int) else list(wire.varints(value))
        return _narrowed(integers, dtype, by_bits=number == 13)
    return None


def _narrowed(integers: Sequence[int], dtype: Any, by_bits: bool) -> Array:
    """Integers of 64 bits as the elements that they stand for; narrow floats by their bits."""
    wide = np.array(integers, np.uint64)
    if by_bits:
        return wide.astype(f"u{dtype.itemsize}").view(dtype)
    kind = dtype[0] if dtype.names else dtype  # quantized numbers are stored as integers
    return wide.view(np.int64).astype(kind).view(dtype)
