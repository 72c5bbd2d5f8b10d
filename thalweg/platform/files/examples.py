"""The message classes of `tf.train.Example` and its parts, made when a program first asks for one.

They are real protobuf classes (extra `[board]`), for programs that write data or look into it;
parsing in a graph does without them.
"""

from __future__ import annotations

import importlib
from functools import cache, partial
from typing import Any, Final

from thalweg.public import publish_lazily

_PACKAGE: Final = "tensorflow"

# Message -> (field, number, type), where `*` marks a list and `map` one from strings to messages.
_MESSAGES: Final = {
    "BytesList": [("value", 1, "*bytes")],
    "FloatList": [("value", 1, "*float")],
    "Int64List": [("value", 1, "*int64")],
    "Feature": [
        ("bytes_list", 1, "BytesList"),
        ("float_list", 2, "FloatList"),
        ("int64_list", 3, "Int64List"),
    ],
    "Features": [("feature", 1, "map Feature")],
    "FeatureList": [("feature", 1, "*Feature")],
    "FeatureLists": [("feature_list", 1, "map FeatureList")],
    "Example": [("features", 1, "Features")],
    "SequenceExample": [("context", 1, "Features"), ("feature_lists", 2, "FeatureLists")],
}
_ONE_OF: Final = {"Feature": "kind"}


def example_class(name: str) -> Any:
    """A message class such as `example_class("SequenceExample")`."""
    factory = _protobuf("message_factory", name)
    return factory.GetMessageClass(_pool().FindMessageTypeByName(f"{_PACKAGE}.{name}"))


def _protobuf(module: str, wanted: str = "Example") -> Any:
    try:
        return importlib.import_module(f"google.protobuf.{module}")
    except ImportError as error:
        raise ImportError(
            f"{wanted} needs the package protobuf: pip install 'thalweg[board]'"
        ) from error


@cache
def _pool() -> Any:
    """A pool of our own: TensorFlow, if it is there too, knows the same names."""
    pool = _protobuf("descriptor_pool").DescriptorPool()
    pool.AddSerializedFile(_file().SerializeToString())
    return pool


def _file() -> Any:
    file = _protobuf("descriptor_pb2").FileDescriptorProto(
        name="tensorflow/core/example/example.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if name in _ONE_OF:
            message.oneof_decl.add(name=_ONE_OF[name])
        for field in fields:
            _add_field(message, *field)
    return file


def _add_field(message: Any, name: str, number: int, kind: str) -> None:
    if kind.startswith("map "):
        kind = f"*{message.name}.{_add_entry(message, name, kind.removeprefix('map '))}"
    field = message.field.add(name=name, number=number)
    is_list, kind = kind.startswith("*"), kind.removeprefix("*")
    field.label = field.LABEL_REPEATED if is_list else field.LABEL_OPTIONAL
    simple = getattr(field, f"TYPE_{kind.upper()}", None)
    field.type = field.TYPE_MESSAGE if simple is None else simple
    if simple is None:
        field.type_name = f".{_PACKAGE}.{kind}"
    if message.oneof_decl:
        field.oneof_index = 0


def _add_entry(message: Any, field: str, value: str) -> str:
    """Add the entry of a map to a message, as protobuf wants it; returns its name."""
    name = f"{field.title().replace('_', '')}Entry"
    entry = message.nested_type.add(name=name)
    entry.options.map_entry = True
    _add_field(entry, "key", 1, "string")
    _add_field(entry, "value", 2, value)
    return name


for _name in _MESSAGES:
    publish_lazily(f"train.{_name}", partial(example_class, _name))
