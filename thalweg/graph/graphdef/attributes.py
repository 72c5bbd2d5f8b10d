"""Conversion of node attributes to and from AttrValue protobufs.

The kind of a field is taken from its annotation in the op block (`strides: tuple[int, ...]`), or
from the value where there is no block.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from thalweg import protos
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.graphdef.tensor_proto import make_ndarray, make_tensor_proto
from thalweg.graph.op import REGISTRY, Op
from thalweg.graph.shapes import TensorShape
from thalweg.platform.arrays import Array
from thalweg.platform.caches import memoized
from thalweg.platform.compat import as_bytes


class FunctionName(str):
    """The name of a function in the library of a GraphDef."""


class AttributeKind(NamedTuple):
    """The kind of an attribute: its field of AttrValue, whether it is a list, and the name of the
    annotated type of its values."""

    field: str
    is_list: bool = False
    type_name: str = ""

    @property
    def op_def_type(self) -> str:
        """The name of this kind in an OpDef."""
        inner = {"b": "bool", "i": "int", "f": "float", "s": "string"}.get(self.field, self.field)
        return f"list({inner})" if self.is_list else inner

    def fits(self, declared: AttributeKind) -> bool:
        """Whether a value of this kind may stand where that kind is declared."""
        return self.is_list == declared.is_list and self.field in ("", declared.field)


@memoized(5_000)
def kinds(op: type[Op]) -> dict[str, AttributeKind]:
    """The kinds of an op's type variables, list lengths and fields, by name; fields with an
    annotation that is of no kind are left out."""
    found: dict[str, AttributeKind] = {}
    for argument in op.parsed.inputs + op.parsed.outputs:
        if argument.count:
            found[argument.count] = AttributeKind("i")
        if argument.fixed is None:
            found.setdefault(argument.type, AttributeKind("type", argument.is_mixed))
    annotations: dict[str, Any] = {}
    for base in reversed(op.__mro__):
        annotations |= inspect.get_annotations(base)
    of_fields = {name: _kind_of_annotation(str(annotations[name])) for name in op.fields}
    return found | {name: kind for name, kind in of_fields.items() if kind is not None}


def _kind_of_annotation(annotation: str) -> AttributeKind | None:
    inner = re.fullmatch(r"(?:tuple|list|Sequence)\[(\w+).*\]", annotation)
    type_name = inner[1] if inner else annotation.partition(" ")[0]
    if type_name not in _FIELD_OF_TYPE:
        return None
    return AttributeKind(_FIELD_OF_TYPE[type_name], inner is not None, type_name)


def kind_of(value: Any) -> AttributeKind:
    """The kind of a value."""
    if isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        return AttributeKind(kind_of(items[0]).field if items else "s", is_list=True)
    field = next((name for name, field in _FIELDS.items() if isinstance(value, field.types)), None)
    if field is None:
        raise TypeError(f"A {type(value).__name__} cannot be written to a GraphDef: {value!r}")
    return AttributeKind(field)


def stored_kind(proto: Any) -> AttributeKind | None:
    """The kind of the value in an AttrValue, an empty list being one of no field; None if unset."""
    field = proto.WhichOneof("value")
    if field != "list":
        return None if field is None else AttributeKind(field)
    inner = next((inner.name for inner, _ in proto.list.ListFields()), "")
    return AttributeKind(inner, is_list=True)


def encode(value: Any, kind: AttributeKind | None = None) -> Any:
    """A value as an AttrValue."""
    kind = kind or kind_of(value)
    convert = _FIELDS[kind.field].encode
    if not kind.is_list:
        return protos.AttrValue(**{kind.field: convert(value)})
    items = protos.AttrValue.ListValue(**{kind.field: [convert(item) for item in value]})
    return protos.AttrValue(list=items)


def _op_proto(op: Op | FunctionName) -> Any:
    """A function name, or an op without inputs, as an attribute of another op."""
    if isinstance(op, FunctionName):
        return protos.NameAttrList(name=str(op))
    proto = protos.NameAttrList(name=op.type_name)
    for name, value in op.attributes.items():
        proto.attr[name].CopyFrom(encode(value, kinds(type(op)).get(name)))
    return proto


def decode(proto: Any) -> Any:
    """The value of an AttrValue: lists as tuples, bytes as text where they are text."""
    field = proto.WhichOneof("value")
    if field is None:
        return None
    if field != "list":
        return _FIELDS[field].decode(getattr(proto, field))
    for inner, values in proto.list.ListFields():
        return tuple(map(_FIELDS[inner.name].decode, values))
    return ()


def _decode_function(value: Any) -> Op | FunctionName:
    if value.name not in REGISTRY:
        return FunctionName(value.name)
    return REGISTRY[value.name](**{name: decode(value.attr[name]) for name in value.attr})


def _read_only_array(value: Any) -> Array:
    array = make_ndarray(value)
    array.flags.writeable = False  # values that outlive a step are read-only
    return array


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _shortest_float(value: float) -> float:
    """The shortest decimal that rounds to a float32, which is what the producer wrote."""
    return float(str(np.float32(value)))


def _type_enum(value: Any) -> int:
    return as_dtype(value).as_datatype_enum


class _Field(NamedTuple):
    """A field of AttrValue: the types of its values, and both conversions."""

    types: tuple[type, ...]
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


#: A value has the first field with one of its types: a FunctionName is also text, a bool an int.
_FIELDS: dict[str, _Field] = {
    "func": _Field((FunctionName, Op), _op_proto, _decode_function),
    "b": _Field((bool, np.bool_), bool, bool),
    "i": _Field((int, np.integer), int, int),
    "f": _Field((float, np.floating), float, _shortest_float),
    "s": _Field((str, bytes), as_bytes, _text),
    "type": _Field((DType,), _type_enum, as_dtype),
    "shape": _Field((TensorShape,), TensorShape.as_proto, TensorShape),
    "tensor": _Field((np.ndarray,), make_tensor_proto, _read_only_array),
    "placeholder": _Field((), str, str),
}
_FIELD_OF_TYPE = {t.__name__: name for name, field in _FIELDS.items() for t in field.types}
_FIELD_OF_TYPE.update(Array="tensor", Body="func", Tensor="s")  # what stands for a body is its name
