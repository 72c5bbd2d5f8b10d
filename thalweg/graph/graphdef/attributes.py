"""The attributes of nodes as AttrValue protobufs, to and from.

What a field holds is read from its annotation in the op block (`strides: tuple[int, ...]`), and
from the value itself where there is no block to ask.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from thalweg import protos
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.graphdef.tensor_proto import make_ndarray, make_tensor_proto
from thalweg.graph.op import REGISTRY, Op
from thalweg.graph.shapes import TensorShape
from thalweg.platform.caches import memoized
from thalweg.platform.compat import as_bytes

Array = NDArray[Any]


class FunctionName(str):
    """The name of a function in the library of a GraphDef."""


_FIELDS = {
    "bool": "b",
    "int": "i",
    "float": "f",
    "str": "s",
    "bytes": "s",
    "DType": "type",
    "TensorShape": "shape",
    "Array": "tensor",
    "FunctionName": "func",
}
_TYPES: tuple[tuple[Any, str], ...] = (
    (FunctionName, "func"),
    ((bool, np.bool_), "b"),
    ((int, np.integer), "i"),
    ((float, np.floating), "f"),
    ((str, bytes), "s"),
    (DType, "type"),
    (TensorShape, "shape"),
    (np.ndarray, "tensor"),
    (Op, "func"),
)
_OP_DEF_TYPES = {"b": "bool", "i": "int", "f": "float", "s": "string"}


@dataclass(frozen=True)
class AttributeKind:
    """What an attribute holds: the field of AttrValue, and whether it is a list of them."""

    field: str
    is_list: bool = False
    is_text: bool = True

    @property
    def op_def_type(self) -> str:
        """The name of this kind in an OpDef."""
        inner = _OP_DEF_TYPES.get(self.field, self.field)
        return f"list({inner})" if self.is_list else inner


@memoized(5_000)
def kinds(op: type[Op]) -> dict[str, AttributeKind]:
    """The kinds of an op's fields, by name; those whose annotation says none are left out."""
    found: dict[str, AttributeKind | None] = {}
    for base in reversed(op.__mro__):
        names = vars(sys.modules[base.__module__])
        for name, annotation in inspect.get_annotations(base).items():
            found[name] = _annotated(str(annotation), names)
    return {name: kind for name in op.fields if (kind := found.get(name)) is not None}


def _annotated(annotation: str, names: Mapping[str, Any]) -> AttributeKind | None:
    """The kind that an annotation in a module with such names stands for."""
    inner = re.fullmatch(r"(?:tuple|list|Sequence)\[(\w+).*\]", annotation)
    word = inner[1] if inner else annotation.partition(" ")[0]
    named = names.get(word)
    if isinstance(named, type) and issubclass(named, Op):
        return AttributeKind("func", inner is not None)
    if word not in _FIELDS:
        return None
    return AttributeKind(_FIELDS[word], inner is not None, word != "bytes")


def kind_of(value: Any) -> AttributeKind:
    """The kind of a value."""
    if isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        return AttributeKind(kind_of(items[0]).field if items else "s", is_list=True)
    field = next((field for types, field in _TYPES if isinstance(value, types)), None)
    if field is None:
        raise TypeError(f"A {type(value).__name__} cannot be written to a GraphDef: {value!r}")
    return AttributeKind(field)


def encode(value: Any, kind: AttributeKind | None = None) -> Any:
    """A value as an AttrValue."""
    kind = kind or kind_of(value)
    if isinstance(value, FunctionName):
        kind = AttributeKind("func")
    proto = protos.AttrValue()
    if not kind.is_list:
        _set(proto, kind.field, _encode_item(value, kind.field))
        return proto
    proto.list.SetInParent()
    getattr(proto.list, kind.field).extend(_encode_item(item, kind.field) for item in value)
    return proto


def _set(proto: Any, field: str, value: Any) -> None:
    if field in ("shape", "tensor", "func"):
        getattr(proto, field).CopyFrom(value)
    else:
        setattr(proto, field, value)


def _encode_item(value: Any, field: str) -> Any:
    match field:
        case "s":
            return as_bytes(value)
        case "type":
            return as_dtype(value).as_datatype_enum
        case "shape":
            return value.as_proto()
        case "tensor":
            return make_tensor_proto(value)
        case "func":
            return _op_proto(value)
        case _:
            return {"b": bool, "i": int, "f": float}[field](value)


def _op_proto(op: Op | FunctionName) -> Any:
    """A function by its name, or an op without inputs, as the attribute of another one."""
    if isinstance(op, FunctionName):
        return protos.NameAttrList(name=str(op))
    proto = protos.NameAttrList(name=op.type_name)
    for name, value in op.attributes.items():
        proto.attr[name].CopyFrom(encode(value, kinds(type(op)).get(name)))
    return proto


def decode(proto: Any, kind: AttributeKind | None = None) -> Any:
    """The value of an AttrValue: lists as tuples, text as str unless the kind says bytes."""
    field = proto.WhichOneof("value")
    if field is None:
        return None
    is_text = kind is None or kind.is_text
    if field != "list":
        return _decode_item(getattr(proto, field), field, is_text)
    for inner, values in proto.list.ListFields():
        return tuple(_decode_item(item, inner.name, is_text) for item in values)
    return ()


def _decode_item(value: Any, field: str, is_text: bool) -> Any:
    match field:
        case "s":
            return _text(value) if is_text else value
        case "f":
            return float(str(np.float32(value)))  # the number that was meant, not its rounding
        case "type":
            return as_dtype(value)
        case "shape":
            return shape_from_proto(value)
        case "tensor":
            return _read_only(make_ndarray(value))
        case "func":
            if value.name not in REGISTRY:
                return FunctionName(value.name)
            attributes = {name: decode(value.attr[name]) for name in value.attr}
            return REGISTRY[value.name](**attributes)
        case _:
            return value


def _read_only(array: Array) -> Array:
    array.flags.writeable = False  # what outlives a step is read-only
    return array


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def shape_from_proto(proto: Any) -> TensorShape:
    """The shape of a TensorShapeProto."""
    if proto.unknown_rank:
        return TensorShape.of(None)
    return TensorShape.of(tuple(None if dim.size < 0 else int(dim.size) for dim in proto.dim))
