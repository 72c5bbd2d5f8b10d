"""Arrays as the bytes of TensorProto messages, to and from, without message classes.

An array is written with its elements in `tensor_content`; strings there are their lengths followed
by their bytes. Any form that TensorFlow writes is read: elements one by one, the last one standing
for all that are missing. A message may stand for no more elements than two gigabytes hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from thalweg.graph import dtypes
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.ops.text import text
from thalweg.platform.files import wire

Array = NDArray[Any]

_DTYPE, _SHAPE, _CONTENT, _STRINGS = 1, 2, 4, 8
_LARGEST = 1 << 31

#: The field for elements one by one, and how they are kept there: None is as varints.
_ELEMENTS: dict[int, tuple[tuple[DType, ...], str | None]] = {
    5: ((dtypes.float32,), "<f4"),
    6: ((dtypes.float64,), "<f8"),
    7: (
        (
            *(dtypes.int8, dtypes.int16, dtypes.int32, dtypes.uint8, dtypes.uint16),
            *(dtypes.qint8, dtypes.qint16, dtypes.qint32, dtypes.quint8, dtypes.quint16),
        ),
        None,
    ),
    9: ((dtypes.complex64,), "<f4"),
    10: ((dtypes.int64,), None),
    11: ((dtypes.bool,), None),
    12: ((dtypes.complex128,), "<f8"),
    13: ((dtypes.float16, dtypes.bfloat16), None),
    16: ((dtypes.uint32,), None),
    17: ((dtypes.uint64,), None),
}
_FIELD_OF = {dtype: field for field, (kinds, _) in _ELEMENTS.items() for dtype in kinds}


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
    """The array that a serialised TensorProto holds; a ValueError if it is none."""
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
    if any(size >= 1 << 63 for size in sizes) or prod(sizes) > _LARGEST:
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
    """Up to `count` varints (all of them: -1), and where they end."""
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
    if count * kind.itemsize > _LARGEST:
        raise ValueError(f"the shape {list(shape)} is too large")
    content = _pieces(found, _CONTENT)
    if content and content[-1]:
        return _whole(content[-1], kind, shape)
    if dtype not in _FIELD_OF:
        raise ValueError(f"elements of {dtype.name} cannot be read")
    flat = _elements(found.get(_FIELD_OF[dtype], []), dtype, kind)
    if flat.size > count:
        raise ValueError(f"{flat.size} elements do not fit the shape {list(shape)}")
    filler = flat[-1:] if flat.size else np.zeros(1, kind)
    return np.concatenate([flat, np.repeat(filler, count - flat.size)]).reshape(shape)


def _whole(content: bytes, kind: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    if len(content) != prod(shape) * kind.itemsize:
        raise ValueError(f"{len(content)} bytes do not hold a {kind} tensor of {list(shape)}")
    return np.frombuffer(content, kind).reshape(shape)


def _elements(values: Sequence[int | bytes], dtype: DType, kind: np.dtype[Any]) -> Array:
    """Elements that are kept one by one: halves by their bits, complex numbers in two parts."""
    _, form = _ELEMENTS[_FIELD_OF[dtype]]
    if form is not None:
        return _fixed(values, np.dtype(form)).astype(_part(dtype)).view(kind)
    numbers = [v for value in values for v in _listed(value)]
    unsigned = np.array(numbers, np.uint64)
    if dtype in (dtypes.float16, dtypes.bfloat16):
        return unsigned.astype(np.uint16).view(kind)
    if dtype.is_quantized:
        return unsigned.view(np.int64).astype(kind[0].base).view(kind)
    return unsigned.view(np.int64 if kind.kind != "u" else np.uint64).astype(kind)


def _listed(value: int | bytes) -> list[int]:
    return _varints(value)[0] if isinstance(value, bytes) else [value]


def _fixed(values: Sequence[int | bytes], form: np.dtype[Any]) -> Array:
    if not all(isinstance(v, bytes) and len(v) % form.itemsize == 0 for v in values):
        raise ValueError("the numbers end too early")
    return np.frombuffer(b"".join(cast("Sequence[bytes]", values)), form)


def _part(dtype: DType) -> Any:
    """What an element consists of."""
    return (dtype.real_dtype if dtype.is_complex else dtype).as_numpy_dtype
