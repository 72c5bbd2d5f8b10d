"""Protocol messages as stub source, from their descriptors."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tools.stubs.module_text import ModuleText

#: The public name of a class, if it has one.
Home = Callable[[object], str | None]

_SCALARS = {
    FieldDescriptor.CPPTYPE_BOOL: "bool",
    FieldDescriptor.CPPTYPE_DOUBLE: "float",
    FieldDescriptor.CPPTYPE_FLOAT: "float",
    FieldDescriptor.CPPTYPE_STRING: "str",
}


def is_message(value: object) -> bool:
    """Whether a value is the class of a message."""
    return isinstance(value, type) and issubclass(value, Message)


def written_message(module: ModuleText, name: str, kind: Any, home: Home) -> str:
    """A message class: its fields, and a constructor that takes them by name."""
    return _written(module, name, kind.DESCRIPTOR, home)


def _written(module: ModuleText, name: str, descriptor: Any, home: Home) -> str:
    base = module.local("google.protobuf.message.Message")
    fields = {field.name: module.local(_type(field, home)) for field in descriptor.fields}
    named = ", ".join(f"{field}: {module.local('typing.Any')} = ..." for field in fields)
    lines = [
        f'"""The message `{descriptor.full_name}`."""',
        *(f"{field}: {text}" for field, text in fields.items()),
        *_values(module, descriptor),
        *(_written(module, inner.name, inner, home) for inner in descriptor.nested_types),
        f"def __init__(self{', *, ' + named if named else ''}) -> None: ...",
    ]
    return f"class {name}({base}):\n" + textwrap.indent("\n".join(lines), "    ")


def _values(module: ModuleText, descriptor: Any) -> Iterator[str]:
    """The values of the message's enums, which are attributes of the class."""
    for kind in descriptor.enum_types:
        yield f"{kind.name}: {module.local('typing.Any')}"
        yield from (f"{value.name}: {module.local('int')}" for value in kind.values)


def _type(field: Any, home: Home) -> str:
    is_repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == 3
    if is_repeated:
        return "typing.Any"
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return home(field.message_type._concrete_class) or "typing.Any"
    if field.type == FieldDescriptor.TYPE_BYTES:
        return "bytes"
    return _SCALARS.get(field.cpp_type, "int")
