"""Executables: regions as kernels of a plan, compiled for each set of input shapes.

The first call with new shapes lowers and compiles the region. If the shapes of a small region keep
changing, shapes that were seen only a few times run on the reference kernels. If native code gives
up (an index out of range), the reference kernels run the region again and raise a precise error. A
node that cannot be compiled runs on its NumPy kernel, between the compiled rest of the region.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import numpy as np

from thalweg.device.device import Device
from thalweg.device.program import AnyProgram
from thalweg.graph.node import Node, Tensor
from thalweg.lower.dynamic_shapes import Form, adapted
from thalweg.lower.specialise import NotCompiled, Region
from thalweg.ops.core.buffer import Buffer, HostBuffer
from thalweg.ops.core.context import VariableCell
from thalweg.platform.caches import Bounded
from thalweg.platform.collector import gc_paused
from thalweg.platform.depth import deep_calls
from thalweg.platform.forks import freed_after_fork
from thalweg.runtime.program_cache import ProgramCache, lower

Shapes = tuple[tuple[int, ...], ...]
Run = Callable[..., list[Any]]  # (context, inputs, variable cells) -> outputs of the region
#: (region, device, the node to run on its NumPy kernel or None for all) -> runs the region
Fallback = Callable[[Region, Device, Node | None], Run]


@dataclass(frozen=True)
class RemoteDevice:
    """A device of another process; nodes inside a conditional or a loop may be placed on it."""

    name: str
    call: Callable[[Any], Any]  # a node or a region -> its remote call


@dataclass(frozen=True)
class Backend:
    """Runs the units of a plan: a device, and the fallback for regions it cannot compile."""

    device: Device
    fallback: Fallback
    compiled: bool = True
    #: the device of each node; None if all are on `device`
    devices: Mapping[Node, Device | RemoteDevice] | None = None
    has_accelerator: bool = False  # whether values may be in device memory

    def device_of(self, node: Node) -> Device | RemoteDevice:
        """The device that a node is on."""
        return self.device if self.devices is None else self.devices[node]

    def reaches_elsewhere(self) -> bool:
        """Whether inputs may be references to variables of other processes."""
        devices = () if self.devices is None else self.devices.values()
        return any(isinstance(device, RemoteDevice) for device in devices)


def host_arrays(values: Iterable[Any]) -> list[Any]:
    """The values, with device buffers converted to host arrays."""
    return [value.lease() if isinstance(value, Buffer) else value for value in values]


def host_cells(cells: Iterable[VariableCell]) -> list[VariableCell]:
    """The variables, with host copies of those on other devices. Reading a copy is enough: a region
    that writes a variable runs on the variable's device."""
    return [cell if isinstance(cell.buffer, HostBuffer | None) else _copy(cell) for cell in cells]


def _copy(cell: VariableCell) -> VariableCell:
    copy = VariableCell(cell.name, cell.dtype, cell.shape)
    copy.assign(cell.read())
    return copy


#: The number of latest programs of a region that keep their memory between runs.
_MAX_WITH_MEMORY = 8
#: Compilation attempts, each for other shapes, of a region without any program. If they all fail at
#: the same node, the node stays on its NumPy kernel.
_MAX_TRIES = 4
_MAX_PROGRAMS = 128  # per region; the oldest are evicted first
#: The first `_PROGRAMS_AT_ONCE` sets of shapes are compiled at their first occurrence. In a small
#: region, later ones must occur `_SIGHTINGS` times before: lowering takes as long as a few dozen
#: runs of the reference kernels.
_PROGRAMS_AT_ONCE, _SIGHTINGS = 16, 32
_MAX_SMALL_WORK = 200_000  # vector instructions of the programs of a small region
_MAX_SIGHTED = 1024  # sets of shapes whose occurrences are counted


class Executable:
    """The kernel of a region: native programs by input shapes."""

    def __init__(
        self, region: Region, device: Device, fallback: Fallback, converts: bool = False
    ) -> None:
        """`converts`: inputs may be in the memory of another device."""
        self.region, self._converts = region, converts
        self.programs = Bounded[Shapes, AnyProgram]("programs of a region", _MAX_PROGRAMS)
        #: The node that cannot be compiled, by the shapes for which there is one.
        self._partly_compiled = Bounded[Shapes, Node]("fallbacks of a region", _MAX_PROGRAMS)
        self.device = device
        #: By the node on its NumPy kernel; None for the reference kernels, which raise precise
        #: errors. All shapes share them, and so the executables of the other nodes.
        self._fallback = cache(partial(fallback, region, device))
        self._runs_without_program = Bounded[Shapes, int]("runs without a program", _MAX_SIGHTED)
        self._is_small = True  # until a program is large
        self._cache = ProgramCache(region, device)
        self._lock = freed_after_fork(threading.Lock())
        #: Whether every run is shorter than the interpreter's switch interval.
        self.holds_gil = False

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
        """Run the region and return its outputs. `deliver(index, value)` may be called for early
        outputs while others are still computed."""
        if self._converts:
            arrays, cells = host_arrays(arrays), host_cells(cells)
        try:
            shapes = (
                (arrays[0].shape,)  # the common case, without a comprehension
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
            return self._fallback(self._partly_compiled.get(shapes))(context, arrays, cells)

    def _is_rare(self, shapes: Shapes) -> bool:
        """Whether shapes occurred too rarely so far to compile for them. Example: the number of
        rows looked up in each shard of a table is different in every step."""
        if len(self.programs) < _PROGRAMS_AT_ONCE or not self._is_small:
            return False
        self._runs_without_program[shapes] = count = self._runs_without_program.get(shapes, 0) + 1
        return count <= _SIGHTINGS

    def run_rows(self, values: Sequence[Any], is_row: Sequence[bool], count: int) -> Any:
        """The outputs for each row of the inputs with `is_row`; None if native code cannot run."""
        pairs = zip(values, is_row, strict=True)
        shapes = tuple([np.shape(value)[is_row:] for value, is_row in pairs])
        program = self.programs.get(shapes) or self.compile(shapes, ())
        return None if program is None else program.run_rows(values, is_row, count)

    @property
    def is_inexpensive(self) -> bool:
        """Whether it permanently runs on reference kernels, in time linear in its inputs."""
        return self._is_linear and self._has_given_up()

    @cached_property
    def _is_linear(self) -> bool:
        return all(node.op.inexpensive or node.op.of_shapes for node in self.region.nodes)

    def _all_hold_gil(self) -> bool:
        programs = list(self.programs.values())
        return bool(programs) and not self._partly_compiled and all(p.holds_gil for p in programs)

    def compile(self, shapes: Shapes, cells: Sequence[VariableCell]) -> AnyProgram | None:
        """The program for these input shapes; None if a node cannot be compiled for them."""
        with self._lock:
            program = self.programs.get(shapes)
            if program is not None or shapes in self._partly_compiled:
                return program
            try:
                return self._compile_new(shapes, cells)
            finally:
                self.holds_gil = self._all_hold_gil()

    def _compile_new(self, shapes: Shapes, cells: Sequence[VariableCell]) -> AnyProgram | None:
        if self._has_given_up():
            self._partly_compiled[shapes] = next(iter(self._partly_compiled.values()))
            return None
        try:
            with deep_calls():
                program = self._restore_or_lower(shapes, cells)
        except NotCompiled as failure:
            self._fallback(failure.node)
            self._partly_compiled[shapes] = failure.node
            return None
        self.programs[shapes] = program
        self._is_small = self._is_small and program.work < _MAX_SMALL_WORK
        self._release_memory()
        return program

    def _has_given_up(self) -> bool:
        """Whether all attempts failed at the same node. Trying again for every new set of shapes
        would take too long."""
        failures = self._partly_compiled.values()
        return not self.programs and len(failures) >= _MAX_TRIES and len({*failures}) == 1

    def _release_memory(self) -> None:
        """Release the memory of all but the latest programs."""
        for program in list(self.programs.values())[:-_MAX_WITH_MEMORY]:
            program.release_memory()

    def _restore_or_lower(self, key: Shapes, cells: Sequence[VariableCell]) -> AnyProgram:
        """The program that an earlier process stored, or else a new one."""
        shapes: dict[Tensor, Any] = dict(zip(self.region.inputs, key, strict=True))
        for tensor, cell in zip(self.region.references, cells, strict=True):
            buffer = cell.buffer
            shapes[tensor] = cell.shape.sizes if buffer is None else buffer.shape
        with gc_paused():
            cached = self._cache.find(list(shapes.values()))
        if cached is None:
            return self._lower_and_load(shapes)
        template, loaded, form = cached
        listing = partial(_listing, self.region, shapes, self.device, form)
        return self.device.restore(template, loaded, self.region, listing)

    def _lower_and_load(self, shapes: Mapping[Tensor, Any]) -> AnyProgram:
        try:
            with gc_paused():
                lowered = lower(self.region, shapes, self.device.target)
        except NotCompiled as failure:
            self._cache.store_failure(failure)
            raise
        program = self.device.load(lowered, self._cache.specialized(lowered.launches))
        self._cache.store(program.template)
        return program


def _listing(
    region: Region, shapes: Mapping[Tensor, Any], device: Device, form: Callable[[], Form]
) -> Any:
    """The listing of a restored program. It needs the lowering, so the region is lowered now; its
    kernels are loaded already."""
    with gc_paused(), deep_calls():
        lowered = lower(region, shapes, device.target)
        return device.load(lowered, adapted(lowered.launches, form())).listing
