"""Conversion of Examples from JSON, in protobuf's standard mapping, to serialised protobufs."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from thalweg import errors
from thalweg.graph.node import Tensor
from thalweg.graph.shapes import TensorShape
from thalweg.ops.text import text
from thalweg.ops.text.strings import StringMap
from thalweg.platform.arrays import Array
from thalweg.platform.files import wire
from thalweg.public import public


class DecodeJSONExample(StringMap):
    """y = the serialised Example of each JSON string"""

    signature = "json_examples: string -> binary_examples: string"

    def shape(self, json_examples: Tensor) -> TensorShape:
        return json_examples.shape

    def numpy(self, json_examples: Array) -> Array:
        items = text.text_array(json_examples)
        binary = [_example(number, item) for number, item in enumerate(items.ravel())]
        return text.text_of(binary, items.shape)


def _example(number: int, item: bytes) -> bytes:
    try:
        return _message(json.loads(item), {"features": _features})
    except (ValueError, TypeError, RecursionError) as error:
        raise errors.invalid(f"Error while parsing JSON: {error} (in example {number})") from error


def _message(value: Any, fields: Mapping[str, Callable[[Any], bytes]]) -> bytes:
    """Encode the fields of an object; null is absent.

    Fields are named as in JSON (`bytesList`) or as in the protobuf (`bytes_list`).
    """
    result = b""
    for name, inner in _object(value).items():
        encode = fields.get(_ORIGINAL_NAMES.get(name, name))
        if encode is None:
            raise ValueError(f"no field is named {name!r}")
        result += b"" if inner is None else encode(inner)
    return result


_ORIGINAL_NAMES = {
    "bytesList": "bytes_list",
    "floatList": "float_list",
    "int64List": "int64_list",
}


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, got {value!r}")
    return cast("Mapping[str, Any]", value)


def _features(value: Any) -> bytes:
    return wire.bytes_field(1, _message(value, {"feature": _entries}))


def _entries(value: Any) -> bytes:
    """Encode the entries of the map of features."""
    return b"".join(
        wire.bytes_field(1, wire.bytes_field(1, key.encode()) + _feature(inner))
        for key, inner in _object(value).items()
    )


def _feature(value: Any) -> bytes:
    if sum(inner is not None for inner in _object(value).values()) > 1:
        raise ValueError(f"a feature has one kind of list, not {', '.join(value)}")
    return wire.bytes_field(2, _message(value, _LISTS))


def _list(number: int, encode: Callable[[list[Any]], bytes]) -> Callable[[Any], bytes]:
    """An encoder of a list of values as a field of a feature."""

    def values(value: Any) -> bytes:
        if not isinstance(value, list):
            raise TypeError(f"expected a list, got {value!r}")
        return encode(cast("list[Any]", value)) if value else b""

    return lambda value: wire.bytes_field(number, _message(value, {"value": values}))


def _strings(values: list[Any]) -> bytes:
    return b"".join(wire.bytes_field(1, _decoded(value)) for value in values)


def _decoded(value: Any) -> bytes:
    """Decode base64 of either alphabet; padding is optional."""
    if not isinstance(value, str):
        raise TypeError(f"expected base64, got {value!r}")
    plain = value.rstrip("=").replace("-", "+").replace("_", "/")
    return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)


def _floats(values: list[Any]) -> bytes:
    numbers = np.array([_number(value, float) for value in values], np.float64)
    return wire.bytes_field(1, numbers.astype("<f4").tobytes())


def _ints(values: list[Any]) -> bytes:
    return wire.bytes_field(1, b"".join(wire.varint(_whole(value)) for value in values))


def _whole(value: Any) -> int:
    number = _number(value, int)
    if number != int(number) or not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{value!r} is not an integer of 64 bits")
    return int(number)


def _number(value: Any, kind: type[Any]) -> Any:
    """A number that may be written as a string."""
    if isinstance(value, str) and value.strip() == value:
        return kind(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"expected a number, got {value!r}")
    return value


_LISTS = {
    "bytes_list": _list(1, _strings),
    "float_list": _list(2, _floats),
    "int64_list": _list(3, _ints),
}


@public("decode_json_example", "io.decode_json_example")
def decode_json_example(json_examples: Any, name: str | None = None) -> Tensor:
    """Examples in JSON as serialised protobufs."""
    return DecodeJSONExample()(json_examples, name=name)
