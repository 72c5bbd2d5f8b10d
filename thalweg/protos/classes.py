"""Message classes of the `.proto` files beside this one, in a descriptor pool of their own.

A file is read, with those that it imports, when a name of it is first asked for.
"""

from __future__ import annotations

import copyreg
import functools
import importlib
import re
import threading
from pathlib import Path
from typing import Any, Final

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message

from thalweg.protos.docstrings import DOCSTRINGS
from thalweg.protos.parser import parse

_FOLDER: Final = Path(__file__).parent
_DECLARED: Final = re.compile(r"^(?:message|enum) (\w+)", re.MULTILINE)
_LOCK: Final = threading.Lock()  # a pool takes a file only once

#: file -> what it declares, by name
_loaded: dict[str, dict[str, Any]] = {}


def find(name: str) -> Any:
    """The class of a message, or the wrapper of an enum; an AttributeError if there is none."""
    if name not in _index():
        raise AttributeError(f"there is no protocol buffer {name!r}")
    file = _index()[name]
    with _LOCK:
        _load(_POOL.FindFileByName(file))
    return _loaded[file][name]


def declared_names() -> list[str]:
    """The names of all messages and enums that are not inside another."""
    return sorted(_index())


@functools.cache
def _index() -> dict[str, str]:
    """In which file each name is declared."""
    return {
        name: path.name
        for path in sorted(_FOLDER.glob("*.proto"))
        for name in _DECLARED.findall(path.read_text(encoding="utf-8"))
    }


def _load(file: Any) -> None:
    """Make what a file declares, and first what those that it imports do."""
    if file.name in _loaded:
        return
    for imported in file.dependencies:
        _load(imported)
    messages = {name: _class(found) for name, found in file.message_types_by_name.items()}
    enums = {name: EnumTypeWrapper(found) for name, found in file.enum_types_by_name.items()}
    _loaded[file.name] = messages | enums


def _class(descriptor: Any, outer: str = "") -> Any:
    """The class of a descriptor, under the name that pickles find it by."""
    result: Any = message_factory.GetMessageClass(descriptor)
    result.__module__ = __package__
    result.__qualname__ = f"{outer}{descriptor.name}"
    result.__doc__ = DOCSTRINGS.get(result.__qualname__) or _summary(descriptor)
    copyreg.pickle(result, _reduced)  # protobuf looks for nested ones in its default pool
    for inner in descriptor.nested_types:
        setattr(result, inner.name, _class(inner, f"{result.__qualname__}."))
    return result


def _summary(descriptor: Any) -> str:
    fields = ", ".join(field.name for field in descriptor.fields)
    return f"A message with the fields {fields}." if fields else "A message without fields."


def _reduced(message: Message) -> tuple[type[Message], tuple[()], Any]:
    return type(message), (), message.__getstate__()


class _Files:
    """Where the pool has its files from."""

    def FindFileByName(self, name: str) -> FileDescriptorProto:
        """The description in one file, ours or one that comes with protobuf."""
        if name.startswith("google/"):
            return _well_known(name)
        return parse(name, (_FOLDER / name).read_text(encoding="utf-8"))

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptorProto:
        """Never found: the pool knows all that the files which it was asked for declare."""
        raise KeyError(symbol)


def _well_known(name: str) -> FileDescriptorProto:
    module = importlib.import_module(f"{name.removesuffix('.proto').replace('/', '.')}_pb2")
    return FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


_POOL: Final = descriptor_pool.DescriptorPool(_Files())
