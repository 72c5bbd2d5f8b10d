"""Ops as canonical text: equal for equal ops and attributes, in this process and in others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from hashlib import blake2b
from typing import Any, cast

import numpy as np

from thalweg.graph.dtypes import DType
from thalweg.graph.op import Op
from thalweg.graph.shapes import Dimension, TensorShape
from thalweg.platform.caches import memoized

_MAX_LITERAL = 8  # elements of an array that are written out; larger ones are hashed

#: Where the ops are defined that mean the same in every process with the same code.
_HOMES = tuple(f"{__name__.partition('.')[0]}.{name}." for name in ("autodiff", "control", "ops"))


class Unnamed(Exception):
    """A part of a region that has no name in other processes."""


def canonical_text(op: Op) -> str | None:
    """The text of an op and its attributes; None for one that only this process knows."""
    try:
        return op_text(op)
    except Unnamed:
        return None


def op_text(op: Op) -> str:
    """The same; raises for an op that only this process knows."""
    name, fields = _fields_of(type(op))
    if not fields:
        return name
    values = op.__dict__
    return f"{name}({','.join([_text(values[field]) for field in fields])})"


@memoized(5_000)
def _fields_of(block: type[Op]) -> tuple[str, tuple[str, ...]]:
    """The name of an op and its attributes; those of users may mean something else later."""
    if not block.__module__.startswith(_HOMES):
        raise Unnamed
    return block.type_name, tuple(block.fields)


def _text(value: Any) -> str:
    """The text of an attribute, which no other value has."""
    write = _WRITERS.get(cast("type[Any]", type(value)))
    if write is None:
        write = next((t for kind, t in _WRITERS.items() if isinstance(value, kind)), None)
    if write is None:
        raise Unnamed
    return write(value)


def _array(value: Any) -> str:
    if value.dtype.hasobject:
        return f"objects{value.shape}{_sequence(value.reshape(-1).tolist())}"
    if value.size <= _MAX_LITERAL:
        return f"{value.dtype}{value.shape}{value.tobytes().hex()}"
    content: Any = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return f"{value.dtype}{value.shape}{blake2b(content, digest_size=20).hexdigest()}"


def _sequence(values: Sequence[Any]) -> str:
    return f"[{','.join([_text(value) for value in values])}]"


def _mapping(values: Mapping[Any, Any]) -> str:
    return "{" + _sequence([_sequence([key, values[key]]) for key in values]) + "}"


#: The text of attribute values by their type; a type that is not here is a process's own.
_WRITERS: dict[type[Any], Callable[[Any], str]] = {
    type(None): repr,
    bool: repr,
    int: repr,
    float: repr,
    complex: repr,
    str: repr,
    bytes: repr,
    DType: lambda value: value.name,
    TensorShape: lambda value: f"shape{value.sizes}",
    Dimension: lambda value: f"size{value.value}",
    np.ndarray: _array,
    np.generic: lambda value: _array(np.asarray(value)),
    np.dtype: lambda value: f"dtype {value}",
    Enum: lambda value: f"{type(value).__qualname__}.{value.name}",
    list: _sequence,
    tuple: _sequence,
    dict: _mapping,
}
