"""Ops told as text, equal for equal ops and attributes, in this process and in others."""

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

_FEW = 8  # elements of an array that are told as they are

#: Where the ops are defined that mean the same in every process with the same code.
_HOMES = tuple(f"{__name__.partition('.')[0]}.{name}." for name in ("autodiff", "control", "ops"))


class Unnamed(Exception):
    """A part of a region that has no name in other processes."""


def told(op: Op) -> str | None:
    """An op and its attributes in words that no other one has; None for one that only this process
    knows."""
    try:
        return op_text(op)
    except Unnamed:
        return None


def op_text(op: Op) -> str:
    """The same for an op that must be known to other processes."""
    name, fields = _kind_of(type(op))
    if not fields:
        return name
    values = op.__dict__
    return f"{name}({','.join([_text(values[field]) for field in fields])})"


@memoized(5_000)
def _kind_of(kind: type[Op]) -> tuple[str, tuple[str, ...]]:
    """The name of an op and its attributes; those of users may mean something else later."""
    if not kind.__module__.startswith(_HOMES):
        raise Unnamed
    return kind.type_name, tuple(kind.fields)


def _text(value: Any) -> str:
    """An attribute in words that no other value has."""
    tell = _TELL.get(cast("type[Any]", type(value)))
    if tell is None:
        tell = next((t for kind, t in _TELL.items() if isinstance(value, kind)), None)
    if tell is None:
        raise Unnamed
    return tell(value)


def _array(value: Any) -> str:
    if value.dtype.hasobject:
        return f"objects{value.shape}{_sequence(value.reshape(-1).tolist())}"
    if value.size <= _FEW:
        return f"{value.dtype}{value.shape}{value.tobytes().hex()}"
    content: Any = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return f"{value.dtype}{value.shape}{blake2b(content, digest_size=20).hexdigest()}"


def _sequence(values: Sequence[Any]) -> str:
    return f"[{','.join([_text(value) for value in values])}]"


def _mapping(values: Mapping[Any, Any]) -> str:
    return "{" + _sequence([_sequence([key, values[key]]) for key in values]) + "}"


#: How the values of attributes are told; a type that is not here is a process's own.
_TELL: dict[type[Any], Callable[[Any], str]] = {
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
