"""What the compiler makes of a region, as bytes: JSON for the structure, raw bytes for arrays.

Comes in: a region and a value made of it, of plain Python values, arrays, dtypes and objects of
`thalweg.ir`, `thalweg.lower` and program templates. Goes out: bytes, from which a process with an
equal region makes an equal value. An object that is used twice is written once, so identity
survives; nodes, tensors and constants of the region are written as numbers. Reading calls the
constructors of classes of these packages and nothing else.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cached_property
from importlib import import_module
from typing import Any, cast

import numpy as np

from thalweg.graph.dtypes import as_dtype
from thalweg.lower.specialise import Region
from thalweg.ops.core.basic import Const

#: What an entry that is not of our making raises when it is read.
UNREADABLE = (AttributeError, ImportError, LookupError, TypeError, ValueError, struct.error)

_LENGTH = struct.Struct("<Q")
_ALIGNMENT = 16
_PACKAGE = __name__.partition(".")[0]
_PACKAGES = tuple(f"{_PACKAGE}.{name}." for name in ("ir", "lower", "device.cpu.program_template"))
_PLAIN = frozenset((int, float, str, bool, type(None)))
_COLLECTIONS = frozenset((tuple, list, frozenset, set))


class Unwritable(Exception):
    """A value that means nothing outside of this process."""


def encode(value: Any, region: Region) -> bytes:
    """A value that was made of a region, as bytes; raises Unwritable."""
    writer = _Writer(region)
    root = writer.reference(value)
    head = json.dumps([writer.kinds, writer.records, root], separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(head)), head, *writer.pieces])


def decode(content: bytes, region: Region) -> Any:
    """The value that was written for an equal region; raises one of UNREADABLE."""
    (length,) = _LENGTH.unpack_from(content)
    start = _LENGTH.size + length
    kinds, records, root = json.loads(content[_LENGTH.size : start])
    reader = _Reader(region, memoryview(content)[start:])
    makers = [reader.maker(kind) for kind in kinds]
    values: list[Any] = []
    for kind, *parts in records:
        if kind < 0:  # all parts are plain
            values.append(makers[~kind](parts))
        else:
            found = [values[part[0]] if type(part) is list else part for part in parts]
            values.append(makers[kind](found))
    return values[root[0]] if isinstance(root, list) else root


def _parts_of(region: Region) -> list[Any]:
    """What values have in common with the region: itself, its nodes and its tensors."""
    inside = [tensor for node in region.nodes for tensor in node.outputs]
    border = (*region.inputs, *region.references, *region.roots)
    return [region, *region.nodes, *dict.fromkeys((*border, *inside))]


class _Writer:
    """An entry while it is put together: records, each after those that it refers to."""

    def __init__(self, region: Region) -> None:
        self.kinds: list[str] = []
        self.records: list[list[Any]] = []
        self.pieces: list[bytes] = []
        self._size = 0
        self._numbers: dict[Any, int] = {}  # of records: by identity, of plain tuples by value
        self._alive: list[Any] = []
        self._parts = {id(part): number for number, part in enumerate(_parts_of(region))}
        self._constants = {
            id(node.op.value): n
            for n, node in enumerate(region.nodes)
            if isinstance(node.op, Const)
        }

    def reference(self, value: Any) -> Any:
        """A plain value as it is, any other as the number of its record."""
        if type(value) in _PLAIN:
            return value
        key = _identity(value)
        number = self._numbers.get(key)
        if number is None:
            record = self._record(value)
            number = self._numbers[key] = len(self.records)
            self.records.append(record)
            self._alive.append(value)  # no other object gets its identity meanwhile
        return [number]

    def _record(self, value: Any) -> list[Any]:
        name, parts = self._taken_apart(value)
        kind = self._kind(name)
        return [~kind if _are_plain(parts) else kind, *map(self.reference, parts)]

    def _taken_apart(self, value: Any) -> tuple[str, Sequence[Any]]:
        """The kind of a value, and what makes it."""
        kind = cast("Any", type(value))
        if id(value) in self._parts:
            return "part", [self._parts[id(value)]]
        if kind in _COLLECTIONS:
            return kind.__name__, list(value)
        if kind is dict:
            return "dict", [part for pair in value.items() for part in pair]
        if id(value) in self._constants:
            return "constant", [self._constants[id(value)]]
        if issubclass(kind, np.ndarray | np.generic):
            piece = self._piece(value.tobytes())
            return "array", [*piece, value.dtype, kind is np.ndarray, *value.shape]
        if issubclass(kind, np.dtype) or (kind is type and issubclass(value, np.generic)):
            return "dtype" if kind is not type else "scalar type", [
                as_dtype(cast("Any", value)).name
            ]
        if kind is bytes:
            return "bytes", self._piece(value)
        return _object_taken_apart(value, kind)

    def _kind(self, name: str) -> int:
        if name not in self.kinds:
            self.kinds.append(name)
        return self.kinds.index(name)

    def _piece(self, content: bytes) -> tuple[int, int]:
        """Where some bytes lie in the entry: from where to where."""
        start, padding = self._size, -len(content) % _ALIGNMENT
        self.pieces += [content, bytes(padding)]
        self._size += len(content) + padding
        return start, start + len(content)


def _are_plain(parts: Sequence[Any]) -> bool:
    return _PLAIN.issuperset(map(type, parts))


def _identity(value: Any) -> Any:
    """What tells values apart. Equal tuples of numbers are one: shapes occur again and again."""
    is_plain = cast("Any", type(value)) is tuple and _are_plain(value)
    return (value, *map(type, value)) if is_plain else id(value)


def _object_taken_apart(value: Any, kind: Any) -> tuple[str, Sequence[Any]]:
    """The class of an object of the compiler, and the arguments of its constructor."""
    name = f"{kind.__module__}:{kind.__qualname__}"
    if not _is_ours(kind.__module__):
        raise Unwritable(f"{name} is no part of a program.")
    if issubclass(kind, Enum):
        return name, [value.value]
    if issubclass(kind, tuple):
        return name, value
    if is_dataclass(kind):
        return name, [getattr(value, field.name) for field in fields(kind)]
    made_by, arguments = value.__reduce__()[:2]
    if made_by is not kind:
        raise Unwritable(f"{name} has no constructor for its parts.")
    return name, arguments


def _is_ours(module: str) -> bool:
    return f"{module}.".startswith(_PACKAGES)


class _Reader:
    """What makes values of records."""

    def __init__(self, region: Region, pieces: memoryview) -> None:
        self._region, self._pieces = region, pieces

    @cached_property
    def _parts(self) -> list[Any]:
        return _parts_of(self._region)

    def maker(self, kind: str) -> Callable[[list[Any]], Any]:
        """The function that makes a value of a kind from its parts."""
        if kind in _MAKERS:
            return _MAKERS[kind]
        own: dict[str, Callable[[list[Any]], Any]] = {
            "part": lambda parts: self._parts[parts[0]],
            "constant": self._constant,
            "array": lambda parts: self._array(*parts),
            "bytes": lambda parts: bytes(self._pieces[parts[0] : parts[1]]),
        }
        return own.get(kind) or _constructor(kind)

    def _constant(self, parts: list[Any]) -> Any:
        number: int = parts[0]
        return np.require(self._region.nodes[number].op.numpy(), requirements=["C", "A"])

    def _array(self, start: int, end: int, dtype: Any, is_array: bool, *shape: int) -> Any:
        array = np.frombuffer(self._pieces[start:end], dtype).reshape(shape)
        return array.copy() if is_array else array[()]


def _constructor(kind: str) -> Callable[[list[Any]], Any]:
    module, _, name = kind.partition(":")
    found = getattr(import_module(module), name) if _is_ours(module) else None
    if not isinstance(found, type) or found.__module__ != module:
        raise ValueError(f"A program has no {kind}.")
    make = cast("Callable[..., Any]", found)
    return lambda parts: make(*parts)


def _scalar_type(parts: list[Any]) -> Any:
    return as_dtype(parts[0]).as_numpy_dtype


#: What makes plain values.
_MAKERS: dict[str, Callable[[list[Any]], Any]] = {
    **{kind.__name__: kind for kind in _COLLECTIONS},
    "dict": lambda parts: dict(zip(parts[::2], parts[1::2], strict=True)),
    "dtype": lambda parts: np.dtype(_scalar_type(parts)),
    "scalar type": _scalar_type,
}
