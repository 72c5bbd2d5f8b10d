"""Serialisation of programs: a pickle restricted to the types that programs consist of.

`encode` takes a region and a value derived from it: plain Python values, arrays, dtypes and objects
of `thalweg.ir`, `thalweg.lower` and program templates. A process with an equal region decodes an
equal value. Shared objects are written once, so identity is preserved; nodes, tensors and constants
of the region are written as indices. Decoding calls constructors of classes in these packages and
nothing else.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import import_module
from io import BytesIO
from types import FunctionType
from typing import Any, cast

import numpy as np

from thalweg.graph.dtypes import DType, as_dtype
from thalweg.lower.specialise import Region
from thalweg.ops.core.basic import Const
from thalweg.platform.caches import memoized

#: The exceptions that decoding damaged or foreign bytes raises.
UNREADABLE = (
    *(pickle.UnpicklingError, AttributeError, EOFError, ImportError, LookupError),
    *(OverflowError, TypeError, ValueError),
)

_PACKAGE = __name__.partition(".")[0]
_TEMPLATES = "program_template", "cpu.table_template", "cuda.graph_template"
_MODULES = ("ir", "lower", "codegen.cuda.launch", *(f"device.{name}" for name in _TEMPLATES))
_PACKAGES = tuple(f"{_PACKAGE}.{name}." for name in _MODULES)


class Unwritable(Exception):
    """The value has no meaning outside of this process."""


def encode(value: Any, region: Region) -> bytes:
    """Serialise a value derived from a region; raises Unwritable."""
    content = BytesIO()
    try:
        _Writer(content, region).dump(value)
    except RecursionError:
        raise Unwritable("A program is nested too deeply.") from None
    return content.getvalue()


def decode(content: bytes, region: Region) -> Any:
    """Deserialise a value written for an equal region; raises one of UNREADABLE."""
    return _Reader(content, region).load()


def _shared_objects(region: Region) -> list[Any]:
    """The objects that are written as indices: the region, its nodes and its tensors."""
    inside = [tensor for node in region.nodes for tensor in node.outputs]
    border = (*region.inputs, *region.references, *region.roots)
    return [region, *region.nodes, *dict.fromkeys((*border, *inside))]


class _Writer(pickle.Pickler):
    """Writes each object as a constructor call."""

    def __init__(self, file: BytesIO, region: Region) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._numbers = {id(part): number for number, part in enumerate(_shared_objects(region))}
        for number, node in enumerate(region.nodes):
            if isinstance(node.op, Const):
                self._numbers[id(node.op.value)] = ~number

    def persistent_id(self, obj: Any) -> int | None:
        """The index of an object of the region; None for any other object."""
        return self._numbers.get(id(obj))

    def reducer_override(self, obj: Any) -> Any:
        """The constructor and arguments of an object; classes and functions go by name."""
        kind = cast("Any", type(obj))
        if issubclass(kind, np.ndarray | np.generic):
            return array, (obj.tobytes(), obj.dtype, kind is np.ndarray, obj.shape)
        if kind is DType:
            return as_dtype, (obj.name,)
        if issubclass(kind, np.dtype):
            return np.dtype, (as_dtype(obj).as_numpy_dtype,)
        if kind is type and issubclass(obj, np.generic):
            return scalar_type, (as_dtype(cast("Any", obj)).name,)
        definition = obj if isinstance(obj, type | FunctionType) else kind
        _resolve(definition.__module__, definition.__qualname__, Unwritable)
        return NotImplemented if definition is obj else (kind, _arguments(obj, kind))


def _arguments(value: Any, kind: Any) -> tuple[Any, ...]:
    """The constructor arguments that create an equal object of a compiler class."""
    if issubclass(kind, Enum):
        return (value.value,)
    if issubclass(kind, tuple):
        return tuple(value)
    if is_dataclass(kind):
        return tuple([getattr(value, field.name) for field in fields(kind)])
    constructor, arguments = value.__reduce__()[:2]
    if constructor is not kind:
        raise Unwritable(f"{kind} has no constructor for its parts.")
    return arguments


class _Reader(pickle.Unpickler):
    """Evaluates the constructor calls."""

    def __init__(self, content: bytes, region: Region) -> None:
        super().__init__(BytesIO(content))
        self._region, self._parts = region, _shared_objects(region)

    def persistent_load(self, pid: Any) -> Any:
        """The object of the region with an index; the value of a constant if it is negative."""
        if pid >= 0:
            return self._parts[pid]
        constant: Any = self._region.nodes[~cast("int", pid)].op
        return np.require(constant.numpy(), requirements=["C", "A"])

    def find_class(self, module_name: str, global_name: str) -> Any:
        """Resolve a class of the compiler or one of the makers below; reject all others."""
        return _resolve(module_name, global_name, pickle.UnpicklingError)


@memoized(1_000)
def _resolve(module: str, name: str, error: type[Exception]) -> Any:
    if (module, name) in _MAKERS:
        return _MAKERS[module, name]
    is_ours = f"{module}.".startswith(_PACKAGES)
    definition = getattr(import_module(module), name, None) if is_ours else None
    if not isinstance(definition, type) or definition.__module__ != module:
        raise error(f"{module}.{name} is no part of a program.")
    return cast("Any", definition)


def array(content: bytes, kind: Any, is_array: bool, shape: tuple[int, ...]) -> Any:
    """A new array, or a scalar."""
    restored = np.frombuffer(content, kind).reshape(shape)
    return restored.copy() if is_array else restored[()]


def scalar_type(name: str) -> Any:
    """The scalar type of the dtype with a name."""
    return as_dtype(name).as_numpy_dtype


_MAKERS: dict[tuple[str, str], Callable[..., Any]] = {
    (maker.__module__, maker.__name__): maker for maker in (array, scalar_type, as_dtype, np.dtype)
}
