"""Regions of a step as kernels of a plan: compiled for the shapes that come in.

The first call with new shapes lowers and compiles. What native code cannot settle (an index out of
range) is run again on the reference kernels, which say what is wrong, where, in words; and a node
that cannot be compiled is run on its NumPy kernel, between what can.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from thalweg.device.cpu import loading as native
from thalweg.device.cpu.listing import Listing, listed
from thalweg.device.cpu.program import Program
from thalweg.device.device import Device, DeviceProgram
from thalweg.graph.node import Node, Tensor
from thalweg.lower.dynamic_shapes import Form, Varying, adapted
from thalweg.lower.lowering import lower
from thalweg.lower.specialise import NotCompiled, Region
from thalweg.ops.core.context import VariableCell
from thalweg.platform.caches import Bounded
from thalweg.platform.collector import gc_paused
from thalweg.platform.depth import deep_calls
from thalweg.platform.forks import renewed_after_fork
from thalweg.runtime.program_cache import Recalled, Remembered

#: (region, the node to run on its NumPy kernel or None for all, device) -> a function that runs it
InParts = Callable[[Region, Node | None, Device], Callable[..., list[Any]]]

#: Of a region's programs, those that keep the memory they ran in when one for other shapes is made.
_MAX_WITH_MEMORY = 8
_MOST_STEPS = 128  # sets of shapes that a region keeps programs for; the oldest ones go first


class Executable:
    """The kernel of a region: native programs by the shapes that came in."""

    def __init__(self, region: Region, device: Device, in_parts: InParts) -> None:
        self.region = region
        self.steps = Bounded[Any, Callable[..., Any]]("programs of a region", _MOST_STEPS)
        self._device = device
        self._in_parts = in_parts
        self._reference: Callable[..., list[Any]] | None = None
        self._varying = Varying()
        self._remembered = Remembered(region, device)
        self._not_restored: list[Callable[[], Form]] = []  # what earlier processes saw
        self.renew_locks()
        renewed_after_fork(self)

    def renew_locks(self) -> None:
        """Have a lock that nobody holds."""
        self._lock = threading.Lock()

    def __call__(self, context: Any, *values: Any) -> Any:
        count = len(self.region.inputs)
        return self.run(context, values[:count], values[count:])

    def run(self, context: Any, arrays: Sequence[Any], cells: Sequence[VariableCell]) -> Any:
        """The region's outputs."""
        key = tuple([np.shape(a) for a in arrays])
        step = self.steps.get(key) or self.compiled(key, cells)
        results = step(context, arrays, cells)
        return self._settled(context, arrays, cells) if results is None else results

    def by_rows(self, values: Sequence[Any], is_row: Sequence[bool], count: int) -> Any:
        """The outputs for each of the rows that some values have; None if native code cannot."""
        kinds = zip(values, is_row, strict=True)
        key = tuple([np.shape(value)[is_row:] for value, is_row in kinds])
        step = self.steps.get(key) or self.compiled(key, ())
        return step.by_rows(values, is_row, count) if isinstance(step, Program) else None

    def _settled(self, context: Any, arrays: Sequence[Any], cells: Sequence[VariableCell]) -> Any:
        """The region on its reference kernels, which say what native code cannot."""
        if self._reference is None:
            self._reference = self._in_parts(self.region, None, self._device)
        return self._reference(context, arrays, cells)

    def compiled(self, key: Any, cells: Sequence[VariableCell]) -> Callable[..., Any]:
        """What runs the region on inputs of these shapes."""
        with self._lock:
            found = self.steps.get(key)
            if found is None:
                found = self._compiled(key, cells)
                self.steps[key] = found
                self._release_memory()
            return found

    def _release_memory(self) -> None:
        """Let programs of shapes that came long ago give back the memory they run in."""
        for step in list(self.steps.values())[:-_MAX_WITH_MEMORY]:
            if isinstance(step, Program):
                step.release_memory()

    def _compiled(self, key: Any, cells: Sequence[VariableCell]) -> Callable[..., Any]:
        shapes: dict[Tensor, Any] = dict(zip(self.region.inputs, key, strict=True))
        for tensor, cell in zip(self.region.references, cells, strict=True):
            buffer = cell.buffer
            shapes[tensor] = cell.shape.sizes if buffer is None else buffer.shape
        try:
            with deep_calls():
                return self._recalled(shapes) or self._made(shapes)
        except NotCompiled as failure:
            return self._in_parts(self.region, failure.node, self._device)

    def _recalled(self, shapes: Mapping[Tensor, Any]) -> DeviceProgram | None:
        """The program that an earlier process made."""
        with gc_paused():
            found = None if native.TUNES else self._remembered.find(list(shapes.values()))
        if found is None:
            return None
        self._not_restored.append(found.form)
        listing = partial(self._listed, shapes, found)
        return self._device.restore(found.image, found.loaded, self.region, listing)

    def _made(self, shapes: Mapping[Tensor, Any]) -> DeviceProgram:
        for form in self._not_restored:
            self._varying.restore(form())
        self._not_restored.clear()
        try:
            with gc_paused():
                lowered = lower(self.region, shapes, self._device.target)
        except NotCompiled as failure:
            self._remembered.keep_failure(failure)
            raise
        form = self._varying.see(lowered.launches)
        self._remembered.saw(list(shapes.values()))
        step = self._device.load(lowered, adapted(lowered.launches, form))
        self._remembered.keep(step.template, form)
        return step

    def _listed(self, shapes: Mapping[Tensor, Any], found: Recalled) -> Listing:
        """What a program from an earlier process was made of: the region is lowered after all."""
        with gc_paused(), deep_calls():
            lowered = lower(self.region, shapes, self._device.target)
            launches = adapted(lowered.launches, found.form())
            loaded = [found.loaded[call.kernel] for call in found.image.calls]
            return listed(lowered, launches, loaded, self._device.target)
