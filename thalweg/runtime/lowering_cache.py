"""Lowered regions, kept on disk beside their kernels: the parts of native loops and conditionals.

Comes in: a region and the shapes of its inputs. Goes out: the region, lowered in this process or an
earlier one. An entry is a pickle in which nodes and tensors are numbers in the region; reading it
makes objects of a few listed kinds and nothing else, and one that is damaged counts as not there.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np

from thalweg.codegen.cache import shared_disk
from thalweg.graph.node import Node, Tensor
from thalweg.ir.target import Target
from thalweg.lower import kept, lowering
from thalweg.lower.fingerprint import fingerprint
from thalweg.lower.lowering import Lowered
from thalweg.lower.specialise import Region, Shape
from thalweg.platform.dtype_traits import TABLE
from thalweg.runtime.program_cache import surroundings

_MOST_BYTES = 1 << 20  # of a lowering: a larger one has large constants
_UNREADABLE = (pickle.UnpicklingError, AttributeError, EOFError, LookupError, TypeError, ValueError)
_UNWRITABLE = (pickle.PicklingError, AttributeError, TypeError, RecursionError)


def lowered(region: Region, shapes: Mapping[Tensor, Shape], target: Target) -> Lowered:
    """A region on concrete shapes, lowered now or in an earlier process."""
    disk, name = shared_disk(), _name(region, shapes, target)
    if disk is None or name is None:
        return lowering.lower(region, shapes, target)
    parts = _Parts(region)
    content = disk.read(name)
    found = None if content is None else _read(content, parts, name)
    if found is None:
        found = lowering.lower(region, shapes, target)
        content = _written(found, parts, name)
        if content is not None and len(content) <= _MOST_BYTES:
            disk.write(name, content)
    return found


def _name(region: Region, shapes: Mapping[Tensor, Shape], target: Target) -> str | None:
    what = fingerprint(region)
    if what is None:
        return None
    sizes = [shapes[tensor] for tensor in (*region.inputs, *region.references)]
    told = f"lowering {surroundings()} {target} {sizes}"
    return blake2b(what + told.encode(), digest_size=32).hexdigest()


class _Parts:
    """The nodes and tensors of a region by number, and back."""

    def __init__(self, region: Region) -> None:
        inside = [tensor for node in region.nodes for tensor in node.outputs]
        border = (*region.inputs, *region.references, *region.roots)
        self.all: list[Any] = [region, *region.nodes, *dict.fromkeys((*border, *inside))]
        self.numbers = {id(part): number for number, part in enumerate(self.all)}


class _Writer(pickle.Pickler):
    """Pickles with the parts of a region as numbers."""

    def __init__(self, file: io.BytesIO, parts: _Parts) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._numbers = parts.numbers

    def persistent_id(self, obj: Any) -> int | None:
        number = self._numbers.get(id(obj))
        if number is None and isinstance(obj, Node | Tensor):
            raise pickle.PicklingError("A node from outside the region has no number.")
        return number


class _Reader(pickle.Unpickler):
    """Makes what a lowering consists of, and nothing else."""

    def __init__(self, file: io.BytesIO, parts: _Parts) -> None:
        super().__init__(file)
        self._parts = parts

    def persistent_load(self, pid: Any) -> Any:
        return self._parts.all[pid]

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) in _FUNCTIONS:
            return super().find_class(module_name, global_name)
        is_ours = module_name.startswith(("thalweg.ir.", "thalweg.lower."))
        found: Any = super().find_class(module_name, global_name) if is_ours else None
        if isinstance(found, type) and found.__module__ == module_name:  # no call of a function
            return found
        raise pickle.UnpicklingError(f"A lowering has no {module_name}.{global_name}.")


def _global(thing: Any) -> tuple[str, str]:
    return thing.__module__, thing.__name__


#: What makes arrays, their elements and dtypes, and the kinds of numbers.
_FUNCTIONS = {
    *(
        _global(part)
        for value in (np.zeros(1), np.float32(1))
        for part in value.__reduce_ex__(5)[:1]
    ),
    *(_global(kind) for kind in (np.ndarray, np.dtype, frozenset, set)),
    *(_global(kind) for kind in np.sctypeDict.values()),
    *(_global(row.storage.type) for row in TABLE),
}


def _written(found: Lowered, parts: _Parts, name: str) -> bytes | None:
    file = io.BytesIO()
    try:
        _Writer(file, parts).dump((name, found))
    except _UNWRITABLE:
        return None
    return file.getvalue()


def _read(content: bytes, parts: _Parts, name: str) -> Lowered | None:
    try:
        under, found = _Reader(io.BytesIO(content), parts).load()
    except _UNREADABLE:
        return None
    return found if under == name and isinstance(found, Lowered) else None


kept.keeper[:] = [lowered]
