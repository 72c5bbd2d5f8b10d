"""What the compiler makes of a region, as bytes: a pickle that makes nothing but parts of programs.

Comes in: a region and a value made of it, of plain Python values, arrays, dtypes and objects of
`thalweg.ir`, `thalweg.lower` and program templates. Goes out: bytes, from which a process with an
equal region makes an equal value. An object that is used twice is written once, so identity
survives; nodes, tensors and constants of the region are written as numbers. Reading calls the
constructors of classes of these packages and nothing else.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cached_property
from importlib import import_module
from io import BytesIO
from types import FunctionType
from typing import Any, cast

import numpy as np

from thalweg.graph.dtypes import as_dtype
from thalweg.lower.specialise import Region
from thalweg.ops.core.basic import Const
from thalweg.platform.caches import memoized

#: What an entry that is not of our making raises when it is read.
UNREADABLE = (
    *(pickle.UnpicklingError, AttributeError, EOFError, ImportError, LookupError),
    *(OverflowError, TypeError, ValueError),
)

_PACKAGE = __name__.partition(".")[0]
_TEMPLATES = ("program_template", "cpu.table_template", "cuda.graph_template")
_PARTS = ("ir", "lower", "codegen.cuda.launch", *(f"device.{name}" for name in _TEMPLATES))
_PACKAGES = tuple(f"{_PACKAGE}.{name}." for name in _PARTS)


class Unwritable(Exception):
    """A value that means nothing outside of this process."""


def encode(value: Any, region: Region) -> bytes:
    """A value that was made of a region, as bytes; raises Unwritable."""
    content = BytesIO()
    try:
        _Writer(content, region).dump(value)
    except RecursionError:
        raise Unwritable("A program is nested too deeply.") from None
    return content.getvalue()


def decode(content: bytes, region: Region) -> Any:
    """The value that was written for an equal region; raises one of UNREADABLE."""
    return _Reader(content, region).load()


def _parts_of(region: Region) -> list[Any]:
    """What values have in common with the region: itself, its nodes and its tensors."""
    inside = [tensor for node in region.nodes for tensor in node.outputs]
    border = (*region.inputs, *region.references, *region.roots)
    return [region, *region.nodes, *dict.fromkeys((*border, *inside))]


class _Writer(pickle.Pickler):
    """Writes each object as a call of what makes it."""

    def __init__(self, file: BytesIO, region: Region) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._numbers = {id(part): number for number, part in enumerate(_parts_of(region))}
        for number, node in enumerate(region.nodes):
            if isinstance(node.op, Const):
                self._numbers[id(node.op.value)] = ~number

    def persistent_id(self, obj: Any) -> int | None:
        """The number of what the region has."""
        return self._numbers.get(id(obj))

    def reducer_override(self, obj: Any) -> Any:
        """What makes an object, and of what; a class or function is found by its name."""
        kind = cast("Any", type(obj))
        if issubclass(kind, np.ndarray | np.generic):
            return array, (obj.tobytes(), obj.dtype, kind is np.ndarray, obj.shape)
        if issubclass(kind, np.dtype):
            return numpy_dtype, (as_dtype(obj).name,)
        if kind is type and issubclass(obj, np.generic):
            return scalar_type, (as_dtype(cast("Any", obj)).name,)
        named = obj if isinstance(obj, type | FunctionType) else kind
        _found(named.__module__, named.__qualname__, Unwritable)
        return NotImplemented if named is obj else (kind, _arguments(obj, kind))


def _arguments(value: Any, kind: Any) -> tuple[Any, ...]:
    """What the constructor of a class of the compiler makes an equal object of."""
    if issubclass(kind, Enum):
        return (value.value,)
    if issubclass(kind, tuple):
        return tuple(value)
    if is_dataclass(kind):
        return tuple([getattr(value, field.name) for field in fields(kind)])
    made_by, arguments = value.__reduce__()[:2]
    if made_by is not kind:
        raise Unwritable(f"{kind} has no constructor for its parts.")
    return arguments


class _Reader(pickle.Unpickler):
    """Makes values of calls."""

    def __init__(self, content: bytes, region: Region) -> None:
        super().__init__(BytesIO(content))
        self._region = region

    @cached_property
    def _parts(self) -> list[Any]:
        return _parts_of(self._region)

    def persistent_load(self, pid: Any) -> Any:
        """What the region has under a number."""
        if pid >= 0:
            return self._parts[pid]
        constant: Any = self._region.nodes[~cast("int", pid)].op
        return np.require(constant.numpy(), requirements=["C", "A"])

    def find_class(self, module_name: str, global_name: str) -> Any:
        """A class of the compiler, or one of the functions below."""
        return _found(module_name, global_name, pickle.UnpicklingError)


@memoized(1_000)
def _found(module: str, name: str, error: type[Exception]) -> Any:
    if module == __name__ and name in _MAKERS:
        return _MAKERS[name]
    is_ours = f"{module}.".startswith(_PACKAGES)
    found = getattr(import_module(module), name, None) if is_ours else None
    if not isinstance(found, type) or found.__module__ != module:
        raise error(f"{module}.{name} is no part of a program.")
    return cast("Any", found)


def array(content: bytes, dtype: Any, is_array: bool, shape: tuple[int, ...]) -> Any:
    """An array of its own, or a scalar."""
    made = np.frombuffer(content, dtype).reshape(shape)
    return made.copy() if is_array else made[()]


def numpy_dtype(name: str) -> Any:
    """The dtype of a name."""
    return np.dtype(scalar_type(name))


def scalar_type(name: str) -> Any:
    """The type of a dtype's elements."""
    return as_dtype(name).as_numpy_dtype


_MAKERS: dict[str, Callable[..., Any]] = {f.__name__: f for f in (array, numpy_dtype, scalar_type)}
