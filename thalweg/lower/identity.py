"""What a region is, beyond the process it was made in.

Comes in: a region. Goes out: a digest that is equal for regions of the same ops, attributes,
constants, dtypes and wiring, whatever their nodes are called and wherever they were made; or None
for a region that holds something which only this process knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache
from hashlib import blake2b
from typing import Any, cast

import numpy as np

from thalweg.graph.dtypes import DType
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import Dimension, TensorShape
from thalweg.lower.specialise import Region

_FEW = 8  # elements of an array that are told as they are

#: Where the ops are defined that mean the same in every process with the same code.
_HOMES = tuple(f"{__name__.partition('.')[0]}.{name}." for name in ("autodiff", "control", "ops"))


class _Unnamed(Exception):
    """A part of a region that has no name in other processes."""


def identity(region: Region) -> bytes | None:
    """A digest of all that lowering a region depends on, besides the shapes that come in."""
    try:
        return _Account(region).digest()
    except _Unnamed:
        return None


class _Account:
    """A region told as text: tensors by number, in the order in which they appear."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._numbers: dict[Tensor, int] = {}
        self._ops: dict[int, str] = {}  # of ops that several nodes share

    def digest(self) -> bytes:
        region = self._region
        border = [
            [self._enter(tensor) for tensor in region.inputs],
            [(self._enter(tensor), tensor in region.carried) for tensor in region.references],
        ]
        for tensor in region.roots:  # references that come in beside their variable
            self._number(tensor)
        told = [self._node(node) for node in region.nodes]
        roots = [(self._number(t), self._number(root)) for t, root in region.roots.items()]
        outputs = [self._number(tensor) for tensor in region.outputs]
        text = f"{border}{roots}{outputs}\n" + "\n".join(told)
        return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=20).digest()

    def _enter(self, tensor: Tensor) -> str:
        return f"{self._number(tensor)} {tensor.dtype.name}"

    def _number(self, tensor: Tensor) -> int:
        return self._numbers.setdefault(tensor, len(self._numbers))

    def _node(self, node: Node) -> str:
        numbers = self._numbers
        try:
            taken = [numbers[tensor] for tensor in node.inputs]
        except KeyError:
            raise _Unnamed from None
        for tensor in node.outputs:
            numbers.setdefault(tensor, len(numbers))
        given = [numbers[tensor] for tensor in node.outputs]
        op = node.op
        counts = node.input_counts() if op.parsed.has_lists else ""
        waits = "after" if node.control_inputs else ""
        return f"{self._op(op)}{taken}{counts}{waits}{given}"

    def _op(self, op: Op) -> str:
        known = self._ops.get(id(op))
        if known is None:
            self._ops[id(op)] = known = _op_text(op)
        return known


def told(op: Op) -> str | None:
    """An op and its attributes in words that no other one has; None for one that only this process
    knows."""
    try:
        return _op_text(op)
    except _Unnamed:
        return None


def _op_text(op: Op) -> str:
    name, fields = _kind_of(type(op))
    if not fields:
        return name
    values = op.__dict__
    return f"{name}({','.join([_text(values[field]) for field in fields])})"


@cache
def _kind_of(kind: type[Op]) -> tuple[str, tuple[str, ...]]:
    """The name of an op and its attributes; those of users may mean something else later."""
    if not kind.__module__.startswith(_HOMES):
        raise _Unnamed
    return kind.type_name, tuple(kind.fields)


def _text(value: Any) -> str:
    """An attribute in words that no other value has."""
    tell = _TELL.get(cast("type[Any]", type(value)))
    if tell is None:
        tell = next((t for kind, t in _TELL.items() if isinstance(value, kind)), None)
    if tell is None:
        raise _Unnamed
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
