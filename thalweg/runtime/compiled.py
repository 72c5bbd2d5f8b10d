"""Regions of a step as kernels of a plan: compiled for the shapes that come in.

The first call with new shapes lowers and compiles; of a small region whose shapes change all the
time, the reference kernels run those that came a few times only. What native code gives up (an
index out of range) is run again on the reference kernels, which say what is wrong, where, in words;
and a node that cannot be compiled is run on its NumPy kernel, between what can.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg.device import tuning
from thalweg.device.device import Device
from thalweg.device.program import AnyProgram
from thalweg.graph.node import Node, Tensor
from thalweg.ir.target import Target
from thalweg.lower.dynamic_shapes import Form, Varying, adapted
from thalweg.lower.specialise import NotCompiled, Region
from thalweg.ops.core.buffer import Buffer, HostBuffer
from thalweg.ops.core.context import VariableCell
from thalweg.platform.caches import Bounded
from thalweg.platform.collector import gc_paused
from thalweg.platform.depth import deep_calls
from thalweg.platform.forks import freed_after_fork
from thalweg.runtime.program_cache import CachedProgram, ProgramCache

if TYPE_CHECKING:
    from thalweg.lower.lowered import Lowered

Shapes = tuple[tuple[int, ...], ...]
Run = Callable[..., list[Any]]  # (context, the region's inputs, its variables) -> its outputs
#: (region, the node to run on its NumPy kernel or None for all, device) -> what runs the region
Fallback = Callable[[Region, Node | None, Device], Run]


@dataclass(frozen=True)
class Elsewhere:
    """A device of another process, which nodes inside a conditional or a loop may be on."""

    name: str
    call: Callable[[Any], Any]  # a node or a region -> what calls it there


@dataclass(frozen=True)
class Backend:
    """What runs the units of a plan: a device, and what runs regions that it cannot compile."""

    device: Device
    fallback: Fallback
    compiled: bool = True
    #: of nodes, where they are not all on one
    devices: Mapping[Node, Device | Elsewhere] | None = None
    has_accelerator: bool = False  # values may be in memory that is not the host's

    def device_of(self, node: Node) -> Device | Elsewhere:
        """The device that a node is on."""
        return self.device if self.devices is None else self.devices[node]

    def reaches_elsewhere(self) -> bool:
        """Whether references to variables of other processes may come in."""
        every = () if self.devices is None else self.devices.values()
        return any(isinstance(device, Elsewhere) for device in every)


def host_arrays(values: Iterable[Any]) -> list[Any]:
    """Values, with arrays of the host for buffers of devices."""
    return [each.lease() if isinstance(each, Buffer) else each for each in values]


def host_cells(cells: Iterable[VariableCell]) -> list[VariableCell]:
    """Variables, with copies for those of other devices. A region writes none of them: whatever
    does is where they are."""
    return [each if isinstance(each.buffer, HostBuffer | None) else _copy(each) for each in cells]


def _copy(cell: VariableCell) -> VariableCell:
    made = VariableCell(cell.name, cell.dtype, cell.shape)
    made.assign(cell.read())
    return made


#: Of a region's programs, those that keep the memory they ran in when one for other shapes is made.
_MAX_WITH_MEMORY = 8
#: Sets of shapes for which a region without any program is tried; if the same node could not be
#: compiled for all of them, it is left on its NumPy kernel for good.
_MAX_TRIES = 4
_MAX_PROGRAMS = 128  # sets of shapes that a region keeps programs for; the oldest ones go first
#: Sets of shapes that a region has a program for at once. Further ones must come so many times, if
#: the region is small: to lower it takes as long as its reference kernels do in some dozen runs.
_PROGRAMS_AT_ONCE, _SIGHTINGS = 16, 32
_MAX_SMALL_WORK = 200_000  # vector instructions of a program whose region is small
_MAX_SIGHTED = 1024  # sets of shapes whose runs are counted


def lower(region: Region, shapes: Mapping[Tensor, Any], target: Target) -> Lowered:
    """A region, lowered now. The compiler is imported for that and not before: it is a third of the
    package, and a process whose programs are all on disk does without."""
    return importlib.import_module("thalweg.lower.lowering").lower(region, shapes, target)


class Executable:
    """The kernel of a region: native programs by the shapes that came in."""

    def __init__(
        self, region: Region, device: Device, fallback: Fallback, converts: bool = False
    ) -> None:
        """`converts`: what comes in may be in the memory of another device."""
        self.region, self._converts = region, converts
        self.programs = Bounded[Shapes, AnyProgram]("programs of a region", _MAX_PROGRAMS)
        #: For shapes with which a node of the region cannot be compiled.
        self._partly_compiled = Bounded[Shapes, Run]("fallbacks of a region", _MAX_PROGRAMS)
        self.device = device
        self._fallback = fallback
        self._fallbacks: dict[Node, Run] = {}  # by the node that cannot be compiled
        self._sightings = Bounded[Shapes, int]("runs without a program", _MAX_SIGHTED)
        self._is_small = True  # as far as is known
        self._varying = Varying()
        self._cache = ProgramCache(region, device)
        self._not_restored: list[Callable[[], Form]] = []  # what earlier processes saw
        self._lock = freed_after_fork(threading.Lock())
        self.holds_gil = (
            False  # whether every run is shorter than the interpreter's switch interval
        )

    def __call__(self, context: Any, *values: Any) -> Any:
        count = len(self.region.inputs)
        return self.run(context, values[:count], values[count:])

    def run(
        self,
        context: Any,
        arrays: Sequence[Any],
        cells: Sequence[VariableCell],
        deliver: Callable[[int, Any], None] | None = None,
    ) -> Any:
        """The region's outputs; some may be delivered, by number, while others are computed."""
        if self._converts:
            arrays, cells = host_arrays(arrays), host_cells(cells)
        try:
            shapes = (
                (arrays[0].shape,)  # often, and no comprehension is called for it
                if len(arrays) == 1
                else tuple([array.shape for array in arrays])
            )
        except AttributeError:  # a number
            shapes = tuple([np.shape(array) for array in arrays])
        program = self.programs.get(shapes)
        if program is None and shapes not in self._partly_compiled and not self._is_rare(shapes):
            program = self.compile(shapes, cells)
        results = None if program is None else program(context, arrays, cells, deliver)
        if results is not None:
            return results
        with np.errstate(all="ignore"):
            return (self._partly_compiled.get(shapes) or self._reference)(context, arrays, cells)

    def _is_rare(self, shapes: Shapes) -> bool:
        """Whether shapes, one set of many, came too seldom as yet to lower the region for them: the
        numbers of rows that each shard of a table looks up are others in every step."""
        if len(self.programs) < _PROGRAMS_AT_ONCE or not self._is_small:
            return False
        self._sightings[shapes] = count = self._sightings.get(shapes, 0) + 1
        return count <= _SIGHTINGS

    def by_rows(self, values: Sequence[Any], is_row: Sequence[bool], count: int) -> Any:
        """The outputs for each of the rows that some values have; None if native code cannot."""
        pairs = zip(values, is_row, strict=True)
        shapes = tuple([np.shape(value)[is_row:] for value, is_row in pairs])
        program = self.programs.get(shapes) or self.compile(shapes, ())
        return None if program is None else program.by_rows(values, is_row, count)

    @property
    def is_inexpensive(self) -> bool:
        """Whether reference kernels run it for good, in time in proportion to its inputs."""
        return self._is_hopeless() and self._is_linear

    @cached_property
    def _is_linear(self) -> bool:
        return all(node.op.inexpensive or node.op.of_shapes for node in self.region.nodes)

    def _are_short(self) -> bool:
        programs = list(self.programs.values())
        return bool(programs) and not self._partly_compiled and all(p.holds_gil for p in programs)

    @cached_property
    def _reference(self) -> Run:
        """The region on its reference kernels, which tell what native code cannot."""
        return self._fallback(self.region, None, self.device)

    def compile(self, shapes: Shapes, cells: Sequence[VariableCell]) -> AnyProgram | None:
        """The program for inputs of these shapes; None where a node cannot be compiled."""
        with self._lock:
            found = self.programs.get(shapes)
            if found is not None or shapes in self._partly_compiled:
                return found
            try:
                return self._compile_new(shapes, cells)
            finally:
                self.holds_gil = self._are_short()

    def _compile_new(self, shapes: Shapes, cells: Sequence[VariableCell]) -> AnyProgram | None:
        if self._is_hopeless():
            (self._partly_compiled[shapes],) = self._fallbacks.values()
            return None
        try:
            with deep_calls():
                found = self._compiled(shapes, cells)
        except NotCompiled as failure:
            self._partly_compiled[shapes] = self._without(failure.node)
            return None
        self.programs[shapes] = found
        self._is_small = self._is_small and found.work < _MAX_SMALL_WORK
        self._release_memory()
        return found

    def _is_hopeless(self) -> bool:
        """Whether one and the same node could never be compiled: to try again takes long, and sizes
        may change with every step."""
        is_one = len(self._fallbacks) == 1 and not self.programs
        return is_one and len(self._partly_compiled) >= _MAX_TRIES

    def _without(self, node: Node) -> Run:
        """The region with a node on its NumPy kernel. There is one for all shapes: what it compiles
        of the other nodes serves again."""
        if node not in self._fallbacks:
            self._fallbacks[node] = self._fallback(self.region, node, self.device)
        return self._fallbacks[node]

    def _release_memory(self) -> None:
        """Let programs of shapes that came long ago give back the memory they run in."""
        for program in list(self.programs.values())[:-_MAX_WITH_MEMORY]:
            program.release_memory()

    def _compiled(self, key: Shapes, cells: Sequence[VariableCell]) -> AnyProgram:
        shapes: dict[Tensor, Any] = dict(zip(self.region.inputs, key, strict=True))
        for tensor, cell in zip(self.region.references, cells, strict=True):
            buffer = cell.buffer
            shapes[tensor] = cell.shape.sizes if buffer is None else buffer.shape
        return self._restored(shapes) or self._made(shapes)

    def _restored(self, shapes: Mapping[Tensor, Any]) -> AnyProgram | None:
        """The program that an earlier process made."""
        with gc_paused():
            found = None if tuning.TUNES else self._cache.find(list(shapes.values()))
        if found is None:
            return None
        self._not_restored.append(found.form)
        listing = partial(_listed, self.region, shapes, self.device, found)
        return self.device.restore(found.template, found.loaded, self.region, listing)

    def _made(self, shapes: Mapping[Tensor, Any]) -> AnyProgram:
        for form in self._not_restored:
            self._varying.restore(form())
        self._not_restored.clear()
        try:
            with gc_paused():
                lowered = lower(self.region, shapes, self.device.target)
        except NotCompiled as failure:
            self._cache.store_failure(failure)
            raise
        form = self._varying.see(lowered.launches)
        program = self.device.load(lowered, adapted(lowered.launches, form))
        self._cache.store(program.template, form)
        return program


def _listed(
    region: Region, shapes: Mapping[Tensor, Any], device: Device, found: CachedProgram
) -> Any:
    """What a program from an earlier process was made of: the region is lowered after all."""
    with gc_paused(), deep_calls():
        lowered = lower(region, shapes, device.target)
        launches = adapted(lowered.launches, found.form())
        return device.list_launches(lowered, launches, found.template, found.loaded)
