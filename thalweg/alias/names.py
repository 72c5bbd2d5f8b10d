"""Finds the object that answers to a name of one of TensorFlow's internal modules."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, cast

from thalweg import protos
from thalweg.alias.paths import MESSAGES, RAW, RENAMED, SOURCES
from thalweg.graph import op
from thalweg.platform.caches import memoized

_ABSENT = object()


def root() -> Any:
    """Thalweg."""
    return sys.modules["thalweg"]


def find(module: str, name: str) -> Any:
    """The object for `name` in an internal module; AttributeError where there is none."""
    full_name = f"{module}.{name}"
    if full_name in RENAMED:
        return resolve(RENAMED[full_name])
    for source in sources_of(module):
        value = look_up(source, name)
        if value is not _ABSENT:
            return value
    raise AttributeError(f"Thalweg has no counterpart of tensorflow.{full_name}.")


def sources_of(module: str) -> tuple[str, ...]:
    """The row of the table for a module: its own, or that of the package it is in."""
    if module.startswith("python.ops.gen_"):
        return (RAW, *SOURCES[""])
    while module not in SOURCES:
        module = module.rpartition(".")[0]
    return SOURCES[module]


def look_up(source: str, name: str) -> Any:
    """What one source has under a name, `_ABSENT` if nothing."""
    if source == RAW:
        return raw_op(name)
    if source == MESSAGES:
        return message_or_type(name)
    if source.startswith("thalweg."):
        return names_in(source).get(name, _ABSENT)
    return getattr(namespace(source), name, _ABSENT)


def resolve(target: str) -> Any:
    """What a value of `RENAMED` means."""
    module, colon, name = target.partition(":")
    if colon:
        return getattr(importlib.import_module(module), name)
    path, _, leaf = target.rpartition(".")
    return getattr(namespace(path), leaf)


def namespace(path: str) -> Any:
    """The public namespace at a dotted path below `tf.`, None where there is none."""
    result: Any = root()
    for part in filter(None, path.split(".")):
        result = getattr(result, part, None)
    return result


def message_or_type(name: str) -> Any:
    """A message class, or the number of a data type."""
    if name in dict(protos.DataType.items()):
        return protos.DataType.Value(name)
    return getattr(protos, name, _ABSENT)


@memoized(limit=64)
def names_in(source: str) -> dict[str, Any]:
    """All names of a module of Thalweg and of the modules inside it; the first of a name counts."""
    found: dict[str, Any] = {}
    for module in modules_in(source):
        own = {name: value for name, value in vars(module).items() if not _is_module(value)}
        found = own | found
    return found


def _is_module(value: Any) -> bool:
    """Modules inside a package of ours are no names of TensorFlow's."""
    return isinstance(value, ModuleType)


def modules_in(name: str) -> Iterator[ModuleType]:
    """A module of Thalweg and, if it is a package, all modules inside it."""
    if importlib.util.find_spec(name) is None:
        return
    module = importlib.import_module(name)
    yield module
    for inner in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
        yield importlib.import_module(inner.name)


def raw_op(name: str) -> Any:
    """The constructor of the op whose type is `name` in snake case, or of a later version of it.

    A leading underscore does not count.
    """
    wanted = name.replace("_", "").lower()
    known = {type_name.lower(): kind for type_name, kind in op.REGISTRY.items()}
    kind = known.get(wanted) or known.get(f"{wanted}v2")
    return _ABSENT if kind is None else constructor(kind)


def constructor(kind: Any) -> Callable[..., Any]:
    """A function with the op's inputs and then its attributes as parameters, and `name`."""
    inputs = [argument.name for argument in kind.parsed.inputs]
    fields = {kind.graphdef_names.get(name, name): name for name in kind.fields}
    optional = [name for name, field in fields.items() if hasattr(kind, field)]
    required = [name for name in fields if name not in optional]
    parameters = [*inputs, *required, *optional]

    def construct(*args: Any, name: str | None = None, **named: Any) -> Any:
        given = dict(zip(parameters, args, strict=False)) | named
        attributes = {fields[key]: frozen(given[key]) for key in given if key not in inputs}
        if "given_shape" in attributes:
            attributes["given_shape"] = namespace("TensorShape")(attributes["given_shape"])
        return kind(**attributes)(*(given[key] for key in inputs), name=name)

    return construct


def frozen(value: Any) -> Any:
    """Attributes are hashable values: lists become tuples."""
    if not isinstance(value, list):
        return value
    return tuple(frozen(item) for item in cast("list[Any]", value))
