"""Control nodes as kernels of a plan: a conditional or a loop with all that is inside it.

What can be is run as native code. What cannot (strings, Python, shapes that change from one
iteration to the next, nodes on several devices) and what native code gives up is unfolded to a
token graph for the dataflow executor, which runs the vertices of all devices, each with the state
of its own. What is on a device of another process is called there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from thalweg.control.loops import While
from thalweg.control.traces import BranchTrace
from thalweg.graph.analysis.order import Order
from thalweg.graph.node import Node, Tensor
from thalweg.lower.regions import Unit, regions, with_traces
from thalweg.lower.specialise import ControlRegion
from thalweg.ops.core.context import VariableCell
from thalweg.partition.cut import spans
from thalweg.runtime.compiled import Backend, Elsewhere, host_arrays
from thalweg.runtime.dataflow.run import Dataflow
from thalweg.runtime.dataflow.tokens import TokenGraph, VertexKind
from thalweg.runtime.dataflow.unfold import Section, Unfolder, has_primitives, values_in
from thalweg.runtime.kernels import Call, call_of, local_cells
from thalweg.runtime.program_cache import cached_lower

#: Where this is False, everything is left to the executor: both must give the same.
NATIVE = True


class ControlCall:
    """The kernel of a control node and its traces."""

    def __init__(self, unit: ControlRegion, backend: Backend, fed: Sequence[int] = ()) -> None:
        self.unit = unit
        self._fed = fed  # inputs that are values where the bodies want references
        devices = backend.devices
        self._spans = devices is not None and spans(unit.nodes[0], devices)
        self._backend = backend if self._spans else replace(backend, devices=None)
        is_native = backend.compiled and not self._spans
        self.native = backend.device.load_control(unit, cached_lower) if is_native else None
        self.was_native: bool | None = None  # how it ran the last time, if it did

    @cached_property
    def dataflow(self) -> Dataflow:
        """The unit as a token graph."""
        nested = self._nested if self._backend.compiled else None
        return Dataflow(unfold(self.unit, self._backend, nested))

    @property
    def reason(self) -> str:
        """Why it ran on the executor, where native code is wanted."""
        if self._spans:
            return "its nodes are on several devices"
        if self.native is None and self._backend.compiled:
            return "its device runs regions, not loops"
        if self.native is None or not NATIVE:
            return "nothing is compiled"
        return self.native.reason or "native code gave up"

    def _nested(self, unit: ControlRegion) -> Call:
        return control_call(unit, (), self._backend)

    def __call__(self, context: Any, *values: Any) -> list[Any]:
        inputs = list(values)
        for place in self._fed:
            inputs[place] = _cell(self.unit.inputs[place], inputs[place])
        if not self._spans:  # so nothing inside writes to a variable of another process
            inputs = local_cells(inputs)
        if self.native is not None and NATIVE:
            if self._backend.has_accelerator and self._backend.device.is_host:
                inputs = host_arrays(inputs)
            results = self.native(context, inputs)
            if results is not None:
                self.was_native = True
                return results
        self.was_native = False
        return self.dataflow.run(inputs, context)


def control_call(unit: ControlRegion, fed: Collection[Tensor], backend: Backend) -> Call:
    """The call that computes a control node and its traces."""
    device = backend.device_of(unit.nodes[0])
    if isinstance(device, Elsewhere) and not spans(unit.nodes[0], backend.devices or {}):
        return device.call(unit)
    first = len(unit.inputs) - len(unit.node.op.bodies[0].arguments)
    references = [p for p, tensor in enumerate(unit.inputs) if tensor.dtype.is_ref_dtype]
    read = [p for p in references if p < first and unit.inputs[p] not in fed]
    given = [p for p in references if p >= first and unit.inputs[p] in fed]
    function = ControlCall(unit, backend, given)
    return Call(function, True, tuple(read), unit.node, unit.nodes)


@dataclass(frozen=True)
class DataflowStep:
    """A step that runs as one token graph, since its nodes are control primitives."""

    nodes: tuple[Node, ...]
    inputs: tuple[Tensor, ...]  # what is fed
    outputs: tuple[Tensor, ...]  # what is fetched and not fed

    def call(self, backend: Backend) -> Call:
        """The call that computes the step."""
        graph = unfold_step(self.nodes, self.outputs, self.inputs, backend)
        return Call(Dataflow(graph), True, (), self.nodes[-1], self.nodes)


def _cell(tensor: Tensor, value: Any) -> VariableCell:
    """A fed value that stands for a variable."""
    cell = VariableCell(tensor.op.name, tensor.dtype.base_dtype, tensor.shape)
    cell.assign(value)
    return cell


# Token graphs


Nested = Callable[[ControlRegion], Call]


def unfold(unit: ControlRegion, backend: Backend, nested: Nested | None = None) -> TokenGraph:
    """A conditional or a loop as a token graph; loops inside it, unless they may block, are calls
    where `nested` gives such."""
    unfolder = _StepUnfolder(backend, nested=nested)
    around = Section()
    for tensor in unit.inputs:
        around.values[tensor] = unfolder.add(around, VertexKind.PASS, node=tensor.op)
    unfolder.control(unit, around, {})
    fetches = tuple(around.values[tensor] for tensor in unit.outputs)
    if not fetches:
        unfolder.done(around, unit.node)
    dead = [p for p, t in enumerate(unit.outputs) if isinstance(t.op.op, BranchTrace)]
    return TokenGraph(tuple(unfolder.vertices), len(unit.inputs), fetches, frozenset(dead))


def unfold_step(
    nodes: Sequence[Node], fetches: Sequence[Tensor], feeds: Sequence[Tensor], backend: Backend
) -> TokenGraph:
    """A step that has control primitives as a token graph: its nodes one by one."""
    unfolder = _StepUnfolder(replace(backend, compiled=False), feeds)
    around = Section()
    for tensor in feeds:
        around.values[tensor] = unfolder.add(around, VertexKind.PASS, node=tensor.op)
    order = {node: set(node.controls) for node in nodes}
    for unit in with_traces(nodes, fetches):
        unfolder.unit(unit, around, order)
    unfolder.close_loops(nodes, around)
    ends = tuple(around.values[tensor] for tensor in fetches)
    return TokenGraph(tuple(unfolder.vertices), len(feeds), ends)


class _StepUnfolder(Unfolder):
    """A part of a step, to be run."""

    def __init__(
        self, backend: Backend, fed: Collection[Tensor] = (), nested: Nested | None = None
    ) -> None:
        super().__init__(fed)
        self._backend = backend
        self._nested = nested

    def units(
        self, nodes: Sequence[Node], wanted: Sequence[Tensor], section: Section, order: Order
    ) -> Sequence[Unit]:
        if not self._backend.compiled or has_primitives(nodes):
            return with_traces(nodes, wanted)
        devices = self._backend.devices
        names = None if devices is None else {node: devices[node].name for node in nodes}
        return regions(nodes, wanted, values_in(section), order, devices=names)

    def call(self, unit: Unit) -> Call | None:
        """Of control nodes inside others, only loops are calls: only dead tokens can say that a
        trace of a branch has no value."""
        if not isinstance(unit, ControlRegion):
            found = call_of(unit, self._fed, self._backend)
        elif self._nested and not unit.node.op.blocking and isinstance(unit.node.op, While):
            found = self._nested(unit)
        else:
            return None
        devices = self._backend.devices
        return found if devices is None else found._replace(device=devices[found.nodes[-1]].name)
