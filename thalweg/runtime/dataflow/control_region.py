"""Control nodes as kernels of a plan: a conditional or a loop, with its bodies.

A control node runs as native code where possible. Otherwise (strings, Python calls, shapes that
change between iterations, nodes on several devices), or if native code gives up, it is unfolded to
a token graph for the dataflow executor. The executor runs the vertices of all devices, each with
its own device's state; vertices on a device of another process are called remotely.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from thalweg.control.loops import While
from thalweg.control.traces import BranchTrace
from thalweg.graph.analysis.order import Order
from thalweg.graph.node import Node, Tensor
from thalweg.lower.regions import Unit, regions, with_traces
from thalweg.lower.specialise import ControlRegion
from thalweg.partition.cut import spans
from thalweg.runtime.compiled import Backend, RemoteDevice, host_arrays
from thalweg.runtime.dataflow.run import Dataflow
from thalweg.runtime.dataflow.tokens import TokenGraph, VertexKind
from thalweg.runtime.dataflow.unfold import Section, Unfolder, has_primitives, values_in
from thalweg.runtime.kernels import Call, call_of, local_cells, temporary_cell
from thalweg.runtime.native_control import NativeControl

#: If False, the dataflow executor runs all control nodes; results are the same.
NATIVE = True


class ControlCall:
    """The kernel of a control node and its traces."""

    def __init__(self, unit: ControlRegion, backend: Backend, fed: Sequence[int] = ()) -> None:
        self.unit = unit
        self._fed = fed  # inputs that are fed values where the bodies expect references
        self._backend = backend
        self._spans = backend.devices is not None
        is_native = backend.compiled and not self._spans and backend.device.runs_control
        self.native = NativeControl(unit, backend.device) if is_native else None
        self.was_native: bool | None = None  # how the last run was executed; None before the first

    @cached_property
    def dataflow(self) -> Dataflow:
        """The unit as a token graph, unfolded on first use."""
        return Dataflow(unfold(self.unit, self._backend))

    @property
    def reason(self) -> str:
        """Why the last run was on the dataflow executor; empty if it was not."""
        if self.was_native is not False:
            return ""
        if self._spans:
            return "its nodes are on several devices"
        if self.native is None and self._backend.compiled:
            return "its device runs regions, not loops"
        if self.native is None or not NATIVE:
            return "nothing is compiled"
        return self.native.reason or "native code gave up"

    def __call__(self, context: Any, *values: Any) -> list[Any]:
        inputs = list(values)
        for place in self._fed:
            inputs[place] = temporary_cell(self.unit.inputs[place], inputs[place])
        if not self._spans:  # then no body writes to a variable of another process
            inputs = local_cells(inputs)
        if self.native is not None and NATIVE:
            if self._backend.has_accelerator and self._backend.device.is_host:
                inputs = host_arrays(inputs)
            results = self.native(context, inputs)
            if results is not None:
                self.was_native = True
                return results
        self.was_native = False
        return self.dataflow(context, *inputs)


def control_call(unit: ControlRegion, fed: Collection[Tensor], backend: Backend) -> Call:
    """The call that computes a control node and its traces."""
    node, devices = unit.nodes[0], backend.devices
    if devices is not None and not spans(node, devices):
        device = devices[node]  # perhaps not that of a control node around it
        if isinstance(device, RemoteDevice):
            return device.call(unit)
        backend = replace(backend, device=device, devices=None)
    first_argument = len(unit.inputs) - len(unit.node.op.bodies[0].arguments)
    references = [p for p, tensor in enumerate(unit.inputs) if tensor.dtype.is_ref_dtype]
    read = [p for p in references if p < first_argument and unit.inputs[p] not in fed]
    fed_references = [p for p in references if p >= first_argument and unit.inputs[p] in fed]
    function = ControlCall(unit, backend, fed_references)
    return Call(function, True, tuple(read), unit.node, unit.nodes)


@dataclass(frozen=True)
class DataflowStep:
    """A step that runs as one token graph, since its nodes are control primitives."""

    nodes: tuple[Node, ...]
    inputs: tuple[Tensor, ...]  # the feeds
    outputs: tuple[Tensor, ...]  # the fetches that are not fed

    def call(self, backend: Backend) -> Call:
        """The call that computes the step, unfolded node by node."""
        unfolder = _StepUnfolder(replace(backend, compiled=False), self.inputs)
        root = unfolder.root(self.inputs)
        order = {node: set(node.controls) for node in self.nodes}
        for unit in with_traces(self.nodes, self.outputs):
            unfolder.unit(unit, root, order)
        unfolder.close_loops(self.nodes, root)
        sources = tuple(root.values[tensor] for tensor in self.outputs)
        graph = TokenGraph(tuple(unfolder.vertices), len(self.inputs), sources)
        return Call(Dataflow(graph), True, (), self.nodes[-1], self.nodes)


# Token graphs


def unfold(unit: ControlRegion, backend: Backend) -> TokenGraph:
    """Unfold a conditional or a loop to a token graph."""
    unfolder = _StepUnfolder(backend)
    root = unfolder.root(unit.inputs)
    unfolder.control(unit, root, {})
    fetches = tuple(root.values[tensor] for tensor in unit.outputs)
    if not fetches:
        unfolder.done(root, unit.node)
    dead = [p for p, t in enumerate(unit.outputs) if isinstance(t.op.op, BranchTrace)]
    return TokenGraph(tuple(unfolder.vertices), len(unit.inputs), fetches, frozenset(dead))


class _StepUnfolder(Unfolder):
    """Unfolds a part of a step for execution."""

    def __init__(self, backend: Backend, fed: Collection[Tensor] = ()) -> None:
        super().__init__(fed)
        self._backend = backend

    def root(self, inputs: Sequence[Tensor]) -> Section:
        """The section of a whole graph, with the vertices of its inputs."""
        root = Section()
        for tensor in inputs:
            root.values[tensor] = self.add(root, VertexKind.PASS, node=tensor.op)
        return root

    def units(
        self, nodes: Sequence[Node], wanted: Sequence[Tensor], section: Section, order: Order
    ) -> Sequence[Unit]:
        if not self._backend.compiled or has_primitives(nodes):
            return with_traces(nodes, wanted)
        devices = self._backend.devices
        names = None if devices is None else {node: devices[node].name for node in nodes}
        return regions(nodes, wanted, values_in(section), order, devices=names)

    def call(self, unit: Unit) -> Call | None:
        """Of nested control nodes, only loops that cannot block become calls, if anything is
        compiled: a branch trace without a value needs a dead token."""
        backend = self._backend
        if not isinstance(unit, ControlRegion):
            call = call_of(unit, self._fed, backend)
        elif backend.compiled and not unit.node.op.blocking and isinstance(unit.node.op, While):
            call = control_call(unit, (), backend)
        else:
            return None
        devices = backend.devices
        return call if devices is None else call._replace(device=devices[call.nodes[-1]].name)
