"""The protocol buffers of TensorFlow's files, described by the `.proto` files of this folder.

`protos.GraphDef` is a message class, `protos.DataType` an enum; each is made when a program first
asks for it, and one that never does imports no protobuf. The classes are of a descriptor pool of
their own: TensorFlow or TensorBoard, loaded in the same process, register the same names elsewhere.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from thalweg.public import publish_lazily


def __getattr__(name: str) -> Any:
    if name.startswith("_"):  # what Python itself looks for in modules
        raise AttributeError(name)
    classes = importlib.import_module("thalweg.protos.classes")  # not before: it imports protobuf
    globals()[name] = result = classes.find(name)
    return result


def is_message(value: object, kind: Any) -> bool:
    """Whether a value is of a message class, or of another package's class of the same name."""
    descriptor: Any = getattr(type(value), "DESCRIPTOR", None)
    return getattr(descriptor, "name", "") == kind.DESCRIPTOR.name


def as_message(value: Any, kind: Any) -> Any:
    """A message in our class: itself, or a copy of one whose class is another package's."""
    if isinstance(value, kind):
        return value
    if not is_message(value, kind):
        raise TypeError(f"a {kind.__qualname__} is needed, not {type(value)}")
    return kind.FromString(value.SerializeToString())


def publish(*names: str, below: str = "") -> None:
    """Make classes public under their own names, in `tf` or in a module below it."""
    for name in names:
        public_name = f"{below}.{name}" if below else name
        publish_lazily(public_name, functools.partial(__getattr__, name))
