"""A reader of TensorFlow's checkpoints of version 1.

A file is a sorted table: the empty key has the dtypes and shapes of all tensors, every other key a
slice with its values as a TensorProto. A checkpoint may be several such files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from thalweg import errors
from thalweg.platform.arrays import Array
from thalweg.platform.files import wire
from thalweg.platform.files.checkpoint_files import mapped
from thalweg.platform.files.safetensors import damaged
from thalweg.platform.files.sorted_table import TableError, pairs
from thalweg.platform.files.tensor_slices import (
    NUMPY,
    Checkpoint,
    Entry,
    Part,
    Sizes,
    as_sizes,
    whole,
)
from thalweg.platform.files.tf_bundle import (
    DTYPES,
    box_of,
    content_of,
    extent_of,
    shape_of,
    signed,
)

#: The fields of a TensorProto that hold values, and how their elements are packed.
_PACKED = {5: "<f4", 6: "<f8", 9: "<c8", 12: "<c16"}
_VARINTS = {7, 10, 11, 13, 16, 17}
_STRINGS = 8


class _Slice(NamedTuple):
    """A slice of a tensor: its encoded box and values."""

    name: str
    box: bytes
    values: bytes


def open_tables(prefix: str, paths: Sequence[str]) -> Checkpoint:
    """The checkpoint in some files."""
    entries: dict[str, Entry] = {}
    values: dict[int, bytes] = {}
    for path in paths:
        try:
            _add(path, entries, values)
        except TableError as error:
            raise errors.DataLossError(None, None, f"{path}: {error.message}") from error
        except ValueError as error:
            raise damaged(path, 0, str(error)) from error
    return _Tables(prefix, entries, values)


def _add(path: str, entries: dict[str, Entry], values: dict[int, bytes]) -> None:
    """Add the tensors and slices of a file. A part begins where the values before it end."""
    records = dict(pairs(mapped(path).tobytes()))
    for name, dtype, shape in _tensors(records.pop(b"", b"")):
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


def _tensors(message: bytes) -> Iterator[tuple[str, str, Sizes]]:
    """The name, dtype and shape of each tensor, from the value of the empty key."""
    for meta in _inner(message, 1):
        for tensor in _inner(meta, 1):
            values = {field.number: field.value for field in wire.fields(tensor)}
            dtype = DTYPES.get(signed(values.get(3, 0)), "")
            shape = tuple(shape_of(content_of(values.get(2, b""))))
            if dtype not in NUMPY or as_sizes(shape, NUMPY[dtype].itemsize) is None:
                raise ValueError(f"a tensor has dtype {values.get(3)} and shape {list(shape)}")
            yield content_of(values.get(1, b"")).decode(), dtype, shape


def _slice(message: bytes) -> _Slice:
    for data in _inner(message, 2):
        values = {field.number: content_of(field.value) for field in wire.fields(data)}
        return _Slice(values.get(1, b"").decode(), values.get(2, b""), values.get(3, b""))
    raise ValueError("a record has no slice")


def _inner(message: bytes, number: int) -> Iterator[bytes]:
    """The messages in one field of a message."""
    for field in wire.fields(message):
        if field.number == number:
            yield content_of(field.value)


class _Tables(Checkpoint):
    """A checkpoint of version 1; arrays are decoded on demand."""

    def __init__(
        self, prefix: str, entries: Mapping[str, Entry], values: Mapping[int, bytes]
    ) -> None:
        super().__init__(prefix, entries)
        self._values = values

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
    """The values of a TensorProto, in whichever field they are."""
    fields = [_values(field, dtype) for field in wire.fields(message)]
    arrays = [values for values in fields if values is not None]
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)


def _values(field: wire.Field, dtype: Any) -> Array | None:
    """The values in a field; a list of numbers may be packed or one field each."""
    number, value = field.number, field.value
    if number == 4 and value:  # tensor_content
        return np.frombuffer(content_of(value), dtype)
    if number == _STRINGS:
        return np.array([content_of(value)], object)
    if number in _PACKED:
        return np.frombuffer(content_of(value), _PACKED[number]).astype(dtype, copy=False)
    if number in _VARINTS:
        integers = [value] if isinstance(value, int) else list(wire.varints(value))
        return _narrowed(integers, dtype, by_bits=number == 13)
    return None


def _narrowed(integers: Sequence[int], dtype: Any, by_bits: bool) -> Array:
    """Integers of 64 bits as elements of a dtype; narrow floats are stored as their bits."""
    wide = np.array(integers, np.uint64)
    if by_bits:
        return wide.astype(f"u{dtype.itemsize}").view(dtype)
    storage = dtype[0] if dtype.names else dtype  # quantized elements are stored as integers
    return wide.view(np.int64).astype(storage).view(dtype)
