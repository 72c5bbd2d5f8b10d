"""Conversion between arrays and serialized TensorProto messages, without message classes.

An array is written with its elements in `tensor_content`; strings there are their lengths followed
by their bytes. All forms that TensorFlow writes are read: also repeated fields, whose last element
repeats for missing ones. A message may describe at most two gigabytes of elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, cast

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.ops.text import text
from thalweg.platform.arrays import Array
from thalweg.platform.files import wire

_DTYPE, _SHAPE, _CONTENT, _STRINGS = 1, 2, 4, 8
_MAX_BYTES = 1 << 31

#: The field of each dtype for single elements, and their NumPy format there; None for varints.
_FIELDS: dict[str, tuple[int, str | None]] = {
    "float_val": (5, "<f4"),
    "double_val": (6, "<f8"),
    "int_val": (7, None),
    "scomplex_val": (9, "<f4"),
    "int64_val": (10, None),
    "bool_val": (11, None),
    "dcomplex_val": (12, "<f8"),
    "half_val": (13, None),
    "uint32_val": (16, None),
    "uint64_val": (17, None),
    "float8_val": (18, "<u1"),
}


def to_bytes(array: Array) -> bytes:
    """An array as a serialised TensorProto."""
    kind = as_dtype(array.dtype)
    sizes = b"".join(wire.bytes_field(2, wire.integer_field(1, size)) for size in array.shape)
    head = wire.integer_field(_DTYPE, kind.as_datatype_enum) + wire.bytes_field(_SHAPE, sizes)
    return head + wire.bytes_field(_CONTENT, _content(array))


def _content(array: Array) -> bytes:
    if array.dtype != object:
        return np.ascontiguousarray(array).tobytes()
    items = text.elements(array)
    return b"".join(wire.varint(len(item)) for item in items) + b"".join(items)


def from_bytes(data: bytes) -> Array:
    """The array of a serialised TensorProto; raises ValueError for other bytes."""
    found: dict[int, list[int | bytes]] = {}
    for field in wire.fields(data):
        found.setdefault(field.number, []).append(field.value)
    if not isinstance(found.get(_DTYPE, [None])[-1], int):
        raise ValueError("no dtype found")
    dtype = _dtype(cast("int", found[_DTYPE][-1]))
    shape = _sizes(_pieces(found, _SHAPE))
    if dtype is dtypes.string:
        return _strings(found, shape)
    return _numbers(found, dtype, shape)


def _dtype(number: int) -> DType:
    try:
        return as_dtype(number)
    except TypeError as error:
        raise ValueError(f"there is no dtype {number}") from error


def _pieces(found: dict[int, list[int | bytes]], field: int) -> list[bytes]:
    pieces = found.get(field, [])
    if not all(isinstance(piece, bytes) for piece in pieces):
        raise ValueError(f"field {field} holds a number")
    return cast("list[bytes]", pieces)


def _sizes(shapes: list[bytes]) -> tuple[int, ...]:
    dimensions = [field for shape in shapes for field in wire.fields(shape) if field.number == 2]
    sizes = tuple(_size(field.value) for field in dimensions)
    if any(size >= 1 << 63 for size in sizes) or prod(sizes) > _MAX_BYTES:
        raise ValueError(f"the shape {list(sizes)} is unknown or too large")
    return sizes


def _size(dimension: int | bytes) -> int:
    if not isinstance(dimension, bytes):
        raise ValueError("a dimension is no message")
    sizes = [field.value for field in wire.fields(dimension) if field.number == 1]
    if not all(isinstance(size, int) for size in sizes):
        raise ValueError("the size of a dimension is no number")
    return cast("int", sizes[-1]) if sizes else 0


def _strings(found: dict[int, list[int | bytes]], shape: tuple[int, ...]) -> Array:
    count, items = prod(shape), _pieces(found, _STRINGS)
    content = _pieces(found, _CONTENT)
    if content and not items:
        items = list(_split(content[-1], count))
    if len(items) > count:
        raise ValueError(f"{len(items)} strings do not fit the shape {list(shape)}")
    missing = count - len(items)
    return text.text_of(items + (items[-1:] or [b""]) * missing, shape)


def _split(content: bytes, count: int) -> Iterator[bytes]:
    if count > len(content):
        raise ValueError(f"{len(content)} bytes do not hold {count} strings")
    lengths, at = _varints(content, count)
    for length in lengths:
        if at + length > len(content):
            raise ValueError("the strings end too early")
        yield content[at : at + length]
        at += length


def _varints(data: bytes, count: int = -1) -> tuple[list[int], int]:
    """Up to `count` varints (-1: all), and the offset of their end."""
    values: list[int] = []
    value = shift = at = 0
    while at < len(data) and len(values) != count:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        if data[at] < 0x80:
            values.append(value & ((1 << 64) - 1))
            value = shift = 0
        at += 1
        if shift >= 70:
            raise ValueError("a number has more than 64 bits")
    if shift or len(values) < count:
        raise ValueError("the numbers end too early")
    return values, at


def _numbers(found: dict[int, list[int | bytes]], dtype: DType, shape: tuple[int, ...]) -> Array:
    kind, count = np.dtype(dtype.as_numpy_dtype), prod(shape)
    if count * kind.itemsize > _MAX_BYTES:
        raise ValueError(f"the shape {list(shape)} is too large")
    content = _pieces(found, _CONTENT)
    if content and content[-1]:
        return _whole(content[-1], kind, shape)
    if dtype.traits.proto_field not in _FIELDS:
        raise ValueError(f"elements of {dtype.name} cannot be read")
    flat = _elements(found, dtype, kind)
    if flat.size > count:
        raise ValueError(f"{flat.size} elements do not fit the shape {list(shape)}")
    filler = flat[-1:] if flat.size else np.zeros(1, kind)
    return np.concatenate([flat, np.repeat(filler, count - flat.size)]).reshape(shape)


def _whole(content: bytes, kind: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    if len(content) != prod(shape) * kind.itemsize:
        raise ValueError(f"{len(content)} bytes do not hold a {kind} tensor of {list(shape)}")
    return np.frombuffer(content, kind).reshape(shape)


def _elements(found: dict[int, list[int | bytes]], dtype: DType, kind: np.dtype[Any]) -> Array:
    """Elements of a repeated field: narrow floats as bits, complex numbers as two elements."""
    field, form = _FIELDS[dtype.traits.proto_field]
    values = found.get(field, [])
    if form is not None:
        return _fixed(values, np.dtype(form)).view(kind)
    numbers = [v for value in values for v in _listed(value)]
    unsigned = np.array(numbers, np.uint64)
    if dtype.traits.is_narrow_float:
        return unsigned.astype(f"u{kind.itemsize}").view(kind)
    if dtype.is_quantized:
        return unsigned.view(np.int64).astype(kind[0].base).view(kind)
    return unsigned.view(np.int64 if kind.kind != "u" else np.uint64).astype(kind)


def _listed(value: int | bytes) -> list[int]:
    return _varints(value)[0] if isinstance(value, bytes) else [value]


def _fixed(values: Sequence[int | bytes], form: np.dtype[Any]) -> Array:
    if not all(isinstance(v, bytes) and len(v) % form.itemsize == 0 for v in values):
        raise ValueError("the numbers end too early")
    content = b"".join(cast("Sequence[bytes]", values))
    return np.frombuffer(content, form).astype(form.newbyteorder("="))
