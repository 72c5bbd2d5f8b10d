"""The disk cache of programs: later processes need not lower equal regions or loops again.

Given a region, a conditional or a loop, and its input shapes, it returns the program that an
earlier process stored, or the lowering of a region inside a conditional or a loop. The name of an
entry is a hash of all that it depends on: the region's content, the shapes, which of their sizes
vary from call to call, the device, the tuned schedules, and the code of this package. A damaged
entry is a miss. Eviction is least recently used first.
"""

from __future__ import annotations

import importlib
import platform
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, partial
from hashlib import blake2b
from typing import Any

import ml_dtypes
import numpy as np

from thalweg.codegen.cache import shared_disk
from thalweg.codegen.contraction.tune import winners
from thalweg.codegen.sources import own_digest
from thalweg.codegen.winograd import ENABLED
from thalweg.device import tuning
from thalweg.device.device import Device
from thalweg.graph.node import Node, Tensor
from thalweg.ir.target import Target
from thalweg.lower.dynamic_shapes import Form, SpecializedKernel, Varying, adapted
from thalweg.lower.fingerprint import control_fingerprint, control_nodes, fingerprint
from thalweg.lower.lowered import Launch, Lowered
from thalweg.lower.specialise import ControlRegion, NotCompiled, Region, Shape
from thalweg.runtime.program_format import UNREADABLE, Unwritable, decode, encode

Shapes = Sequence[tuple[Any, ...]]  # of each input, the properties that its program depends on

MAX_BYTES = 1 << 20  # of an entry of a lowering or step; larger ones have large constants
#: The subpackages whose code programs depend on.
FOLDERS = ("autodiff", "codegen", "control", "device", "graph", "ir", "lower", "ops", "runtime")


class ProgramCache:
    """The disk entries of the programs of one region, conditional or loop."""

    def __init__(self, unit: Region | ControlRegion, device: Device) -> None:
        self._unit, self._device = unit, device
        self._first: Shapes | None = None
        self._varying_sizes: set[tuple[int, int]] = set()  # (input, dimension)
        self._name: str | None = None  # of the last lookup
        self._varying = Varying()
        #: Forms of restored programs that `_varying` has not been given yet.
        self._not_restored: list[Callable[[], Form]] = []
        self._form: Form | None = None  # of the last lowering

    def find(self, shapes: Shapes) -> tuple[Any, Any, Callable[[], Form]] | None:
        """Look up the program that an earlier process stored for these shapes: its template, its
        kernels, and a function that decodes the form of its lowering. Raises NotCompiled if it is
        known to have none. Programs are not restored while tuning: it measures those that are
        compiled."""
        if tuning.TUNES:
            return None
        self._note(shapes)
        self._name = self._name_of(shapes)
        match read_entry(self._name, self._region):
            case Node() as node, str(reason):
                raise NotCompiled(node, reason)
            case template, bytes(form):
                loaded = self._device.find_kernels(template.kernels)
                if loaded is not None:
                    self._not_restored.append(partial(decode, form, self._region))
                    return template, loaded, self._not_restored[-1]
            case _:
                pass
        return None

    def specialized(self, launches: Sequence[Launch]) -> list[SpecializedKernel]:
        """The kernels of a new lowering; integers that differ from earlier ones are read at run
        time."""
        for form in self._not_restored:
            self._varying.restore(form())
        self._not_restored.clear()
        self._form = self._varying.see(launches)
        return adapted(launches, self._form)

    def store(self, template: Any) -> None:
        """Store the program of the last lowering; its form is decoded only on demand."""
        form = self._form
        write_entry(self._name, self._region, lambda: (template, encode(form, self._region)))

    def store_failure(self, failure: NotCompiled) -> None:
        """Record that the region cannot be compiled because of a node."""
        write_entry(self._name, self._region, lambda: (failure.node, failure.reason))

    def _note(self, shapes: Shapes) -> None:
        """Record the sizes that vary: integers derived from them are read at run time."""
        first = self._first = self._first or shapes
        for position, (old, new) in enumerate(zip(first, shapes, strict=True)):
            if len(old) != len(new):
                self._varying_sizes.add((position, -1))
            if old != new:
                pairs = enumerate(zip(old, new, strict=False))
                self._varying_sizes |= {(position, axis) for axis, (a, b) in pairs if a != b}

    def _name_of(self, shapes: Shapes) -> str | None:
        shapes_text = f"{shapes} {sorted(self._varying_sizes)}"
        return entry_name(self._fingerprint, f"{winners().state} {self._device.key} {shapes_text}")

    @cached_property
    def _fingerprint(self) -> bytes | None:
        unit = self._unit
        return fingerprint(unit) if isinstance(unit, Region) else control_fingerprint(unit)

    @cached_property
    def _region(self) -> Region:
        """Entries refer to nodes by their position in this region."""
        unit = self._unit
        return unit if isinstance(unit, Region) else Region(control_nodes(unit), (), (), (), {})


def lower(region: Region, shapes: Mapping[Tensor, Shape], target: Target) -> Lowered:
    """Lower a region. The compiler, a third of the package, is imported on the first call: a
    process that finds all its programs on disk never imports it."""
    return importlib.import_module("thalweg.lower.lowering").lower(region, shapes, target)


def cached_lower(region: Region, shapes: Mapping[Tensor, Shape], target: Target) -> Lowered:
    """Lower a region for concrete shapes, or read the lowering of an earlier process."""
    sizes = [shapes[tensor] for tensor in (*region.inputs, *region.references)]
    name = entry_name(fingerprint(region), f"lowering {target} {sizes}")
    entry = read_entry(name, region)
    if not isinstance(entry, Lowered):
        entry = lower(region, shapes, target)
        write_entry(name, region, lambda: entry, MAX_BYTES)
    return entry


# Entries


def entry_name(content: bytes | None, dependencies: str) -> str | None:
    """The name of an entry; None if it cannot be stored."""
    if content is None or shared_disk() is None:
        return None
    text = f"{environment_key()} {dependencies}"
    return blake2b(content + text.encode(), digest_size=32).hexdigest()


@cache
def environment_key() -> str:
    """The part of the key that all entries share: versions and a digest of the code."""
    versions = f"{platform.python_version()} {np.__version__} {ml_dtypes.__version__}"
    return f"{versions} {own_digest(FOLDERS)} {ENABLED}"


def read_entry(name: str | None, region: Region) -> Any:
    """The value of an entry for a region; None if there is none, or it is damaged."""
    disk = shared_disk()
    content = disk.read(name) if disk and name else None
    try:
        return None if content is None else decode(content, region)
    except UNREADABLE:
        return None  # damaged or foreign


def write_entry(
    name: str | None, region: Region, value: Callable[[], Any], limit: int | None = None
) -> None:
    """Write an entry for a region, unless it is larger than the limit."""
    disk = shared_disk()
    if disk is None or name is None:
        return
    try:
        content = encode(value(), region)
    except Unwritable:
        return
    if limit is None or len(content) <= limit:
        disk.write(name, content)
