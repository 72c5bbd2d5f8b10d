"""Protocol messages as stub source, from their descriptors."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tools.stubs.module_text import ModuleText, quoted

_ANY = "typing.Any"
_CONTAINERS = "google.protobuf.internal.containers"
_MAPS = ("ScalarMap", "MessageMap")
_LISTS = ("RepeatedScalarFieldContainer", "RepeatedCompositeFieldContainer")
_ENUM = "google.protobuf.internal.enum_type_wrapper.EnumTypeWrapper"
_SCALARS = {
    FieldDescriptor.CPPTYPE_BOOL: "bool",
    FieldDescriptor.CPPTYPE_DOUBLE: "float",
    FieldDescriptor.CPPTYPE_FLOAT: "float",
    FieldDescriptor.CPPTYPE_STRING: "str",
}


def is_message(value: object) -> bool:
    """Whether a value is the class of a message."""
    return isinstance(value, type) and issubclass(value, Message)


def written_message(module: ModuleText, name: str, kind: Any) -> str:
    """A message class: its fields, and a constructor that takes them by name."""
    return _written(module, name, kind.DESCRIPTOR)


def _written(module: ModuleText, name: str, descriptor: Any) -> str:
    base = module.local("google.protobuf.message.Message")
    taken = ", ".join(f"{f.name}: {_taken(module, f)} = ..." for f in descriptor.fields)
    inner = [kind for kind in descriptor.nested_types if not kind.GetOptions().map_entry]
    lines = [
        quoted(inspect.cleandoc(descriptor._concrete_class.__doc__)),
        *(f"{f.name}: {_held(module, f)}" for f in descriptor.fields),
        *_values(module, descriptor),
        *(_written(module, kind.name, kind) for kind in inner),
        f"def __init__(self{', *, ' + taken if taken else ''}) -> None: ...",
    ]
    return f"class {name}({base}):\n" + textwrap.indent("\n".join(lines), "    ")


def _values(module: ModuleText, descriptor: Any) -> Iterator[str]:
    """The values of the message's enums, which are attributes of the class."""
    for kind in descriptor.enum_types:
        yield f"{kind.name}: {module.local(_ENUM)}[{module.local('int')}]"
        yield from (f"{value.name}: {module.local('int')}" for value in kind.values)


def _taken(module: ModuleText, field: Any) -> str:
    """What a constructor takes for a field: a dict stands for a message, a name for an enum."""
    if _is_map(field):
        start = module.local(f"collections.abc.Mapping[{_ANY}, ")
        return f"{start}{_taken(module, field.message_type.fields[1])}] | None"
    one = _one(module, field)
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        one += module.local(f" | dict[str, {_ANY}]")
    elif field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        one += f" | {module.local('str')}"
    many = module.local("collections.abc.Iterable")
    return f"{many}[{one}] | None" if _is_repeated(field) else f"{one} | None"


def _held(module: ModuleText, field: Any) -> str:
    """The type of a field's value."""
    if _is_map(field):
        key, value = field.message_type.fields
        return f"{_container(module, value, _MAPS)}[{_one(module, key)}, {_one(module, value)}]"
    one = _one(module, field)
    return f"{_container(module, field, _LISTS)}[{one}]" if _is_repeated(field) else one


def _container(module: ModuleText, field: Any, classes: tuple[str, str]) -> str:
    holds_messages = field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE
    return module.local(f"{_CONTAINERS}.{classes[holds_messages]}")


def _is_repeated(field: Any) -> bool:
    return field.is_repeated if hasattr(field, "is_repeated") else field.label == 3


def _is_map(field: Any) -> bool:
    kind = field.message_type
    return kind is not None and kind.GetOptions().map_entry


def _one(module: ModuleText, field: Any) -> str:
    """The type of one value of a field."""
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return _class(module, field.message_type)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return module.local("bytes")
    return module.local(_SCALARS.get(field.cpp_type, "int"))


def _class(module: ModuleText, descriptor: Any) -> str:
    """The name of a message class: one inside another is an attribute of it."""
    if descriptor.containing_type is not None:
        return f"{_class(module, descriptor.containing_type)}.{descriptor.name}"
    if descriptor.file.package == "google.protobuf":
        folder = descriptor.file.name.removesuffix(".proto").replace("/", ".")
        return module.local(f"{folder}_pb2.{descriptor.name}")
    return module.local(f"thalweg.protos.{descriptor.name}")
