"""The serialization of iterators' states: trees of numbers, strings and arrays.

The format is a JSON header, in which arrays are references, and the arrays one after the other.
Decoding runs no code from the data; damaged data raise a DataLossError.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import numpy as np

from thalweg import errors
from thalweg.data.flow import InMemoryPipeline
from thalweg.graph.composite import SparseTensorValue
from thalweg.graph.dtypes import as_dtype
from thalweg.ops.text import text
from thalweg.platform.arrays import Array
from thalweg.runtime.compiled import host_arrays

_MAGIC: Final = b"thalweg iterator 1\n"
_LENGTH: Final = struct.Struct("<Q")


def encode(tree: Any) -> bytes:
    """Encode a tree of None, numbers, strings, bytes, lists, mappings and arrays."""
    pieces: list[bytes] = []
    header = json.dumps(_Packer(pieces).packed(tree)).encode()
    return b"".join([_MAGIC, _LENGTH.pack(len(header)), header, *pieces])


def decode(data: bytes) -> Any:
    """Decode a tree from bytes."""
    start = len(_MAGIC) + _LENGTH.size
    try:
        if not data.startswith(_MAGIC):
            raise ValueError("it does not begin as one")
        (length,) = _LENGTH.unpack(data[len(_MAGIC) : start])
        header = json.loads(data[start : start + length])
        return _unpacked(header, memoryview(data)[start + length :])
    except (ValueError, KeyError, TypeError, LookupError, struct.error, RecursionError) as error:
        raise errors.DataLossError(None, None, f"not the state of an iterator: {error}") from error


class _Packer:
    """Separates the arrays of a tree from the rest, which is JSON."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self._size = 0

    def packed(self, tree: Any) -> Any:
        if tree is None or isinstance(tree, bool | int | float | str):
            return tree
        if isinstance(tree, Mapping):
            parts = cast("Mapping[str, Any]", tree)
            return {"map": {key: self.packed(part) for key, part in parts.items()}}
        if isinstance(tree, SparseTensorValue):
            return {"sparse": [self.packed(part) for part in tree]}
        if isinstance(tree, InMemoryPipeline):
            return {"kept": self.packed(packed_elements(tree.inputs))}
        if isinstance(tree, bytes):
            return {"bytes": self._placed(tree)}
        if isinstance(tree, list | tuple):
            return [self.packed(part) for part in cast("Sequence[Any]", tree)]
        if isinstance(tree, np.ndarray | np.generic):
            return self._array(np.asarray(cast("Any", tree)))
        raise errors.UnimplementedError(
            None, None, f"a {type(tree).__name__} cannot be part of the state of an iterator"
        )

    def _placed(self, data: bytes) -> list[int]:
        self._pieces.append(data)
        self._size += len(data)
        return [self._size - len(data), len(data)]

    def _array(self, array: Array) -> Any:
        if array.dtype == object:
            items: list[Any] = list(text.elements(array))
            if not all(isinstance(item, bytes) for item in items):
                return self.packed(items[0])  # raises: neither numbers nor strings
            lengths = np.array([len(item) for item in items], np.int64)
            places = [self._placed(lengths.tobytes()), self._placed(b"".join(items))]
            return {"texts": [list(array.shape), *places]}
        name = as_dtype(array.dtype).name
        return {"array": [name, list(array.shape), self._placed(array.tobytes())]}


def _unpacked(tree: Any, data: memoryview) -> Any:
    if isinstance(tree, list):
        return [_unpacked(part, data) for part in cast("list[Any]", tree)]
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = cast("dict[str, Any]", tree).items()
    match kind:
        case "map":
            return {key: _unpacked(part, data) for key, part in content.items()}
        case "sparse":
            return SparseTensorValue(*(_unpacked(part, data) for part in content))
        case "kept":
            return InMemoryPipeline(unpacked_elements(_unpacked(content, data)))
        case "bytes":
            return bytes(_part(data, content))
        case "texts":
            return _texts(content, data)
        case "array":
            return _array(content, data)
        case _:
            raise ValueError(f"it has a part of kind {kind!r}")


def _part(data: memoryview, place: Sequence[int]) -> memoryview:
    start, size = place
    if not 0 <= start <= start + size <= len(data):
        raise ValueError("a part of it is missing")
    return data[start : start + size]


def _array(content: Any, data: memoryview) -> Array:
    name, shape, place = content
    dtype = np.dtype(as_dtype(name).as_numpy_dtype)
    return np.frombuffer(bytes(_part(data, place)), dtype).reshape(shape)


def _texts(content: Any, data: memoryview) -> Array:
    shape, lengths, place = content
    ends = np.cumsum(np.frombuffer(_part(data, lengths), np.int64)).tolist()
    joined = bytes(_part(data, place))
    items = [joined[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return text.text_of(items, shape)


# Elements


def packed_elements(elements: Sequence[Sequence[Any]]) -> Any:
    """Elements by column, each column as one array if possible."""
    held = [host_arrays(element) for element in elements]
    return {"count": len(held), "columns": [_column(c) for c in zip(*held, strict=True)]}


def _column(values: Sequence[Any]) -> Any:
    if all(isinstance(value, bytes) for value in values):
        return {"rows": text.text_of(values)}
    if not all(isinstance(value, np.ndarray | np.generic) for value in values):
        return list(values)
    kinds = {(value.dtype, value.shape) for value in values}
    return {"rows": np.stack(values)} if len(kinds) == 1 else list(values)


def unpacked_elements(packed: Any) -> list[tuple[Any, ...]]:
    """The inverse of `packed_elements`."""
    columns = [_values(column, packed["count"]) for column in packed["columns"]]
    return list(zip(*columns, strict=True)) if columns else [()] * packed["count"]


def _values(column: Any, count: int) -> list[Any]:
    if not isinstance(column, dict):
        return column
    rows = cast("dict[str, Array]", column)["rows"]
    return [rows[index] for index in range(count)]
