"""Control nodes as kernels of a plan: a conditional or a loop with all that is inside it.

What can be is run as native code. What cannot (strings, Python, shapes that change from one
iteration to the next, nodes on several devices) and what native code gives up is unfolded to a
token graph for the dataflow executor. Within one process that executor runs the vertices of all
devices, each with the state of its own; between processes every device would run its own vertices
and a copy of the loop's condition, as Send and Recv would carry a frame and an iteration in their
keys.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from thalweg.device.device import Device
from thalweg.graph.node import Node, Tensor
from thalweg.lower.specialise import ControlRegion
from thalweg.ops.core.context import VariableCell
from thalweg.partition.cut import spans
from thalweg.runtime.calls import Call
from thalweg.runtime.compiled import Fallback
from thalweg.runtime.dataflow import Dataflow
from thalweg.runtime.program_cache import cached_lower
from thalweg.runtime.unfold import Homes, unfold, unfold_step

#: Where this is False, everything is left to the executor: both must give the same.
NATIVE = True


class ControlledCall:
    """The kernel of a control node and its traces."""

    def __init__(
        self,
        unit: ControlRegion,
        device: Device,
        compiled: bool,
        fallback: Fallback,
        fed: Sequence[int] = (),
        homes: Homes | None = None,
    ) -> None:
        self.unit = unit
        self._device = device
        self._compiled = compiled
        self._fallback = fallback
        self._fed = fed  # inputs that are values where the bodies want references
        self._homes = homes if homes and spans(unit.nodes[0], homes) else None
        is_native = compiled and self._homes is None
        self.native = device.load_control(unit, cached_lower) if is_native else None
        self.was_native: bool | None = None  # how it ran the last time, if it did

    @cached_property
    def dataflow(self) -> Dataflow:
        """The unit as a token graph."""
        nested = self._nested if self._compiled else None
        graph = unfold(self.unit, self._compiled, self._device, self._fallback, nested, self._homes)
        return Dataflow(graph)

    @property
    def reason(self) -> str:
        """Why it ran on the executor, where native code is wanted."""
        if self._homes is not None:
            return "its nodes are on several devices"
        if self.native is None or not NATIVE:
            return "nothing is compiled"
        return self.native.reason or "native code gave up"

    def _nested(self, unit: ControlRegion) -> Call:
        return controlled_call(unit, (), self._device, self._compiled, self._fallback, self._homes)

    def __call__(self, context: Any, *values: Any) -> list[Any]:
        inputs = list(values)
        for place in self._fed:
            inputs[place] = _cell(self.unit.inputs[place], inputs[place])
        if self.native is not None and NATIVE:
            results = self.native(context, inputs)
            if results is not None:
                self.was_native = True
                return results
        self.was_native = False
        return self.dataflow.run(inputs, context)


def controlled_call(
    unit: ControlRegion,
    fed: Collection[Tensor],
    device: Device,
    compiled: bool,
    fallback: Fallback,
    homes: Homes | None = None,
) -> Call:
    """The call that computes a control node and its traces."""
    first = len(unit.inputs) - len(unit.node.op.bodies[0].arguments)
    references = [p for p, tensor in enumerate(unit.inputs) if tensor.dtype.is_ref_dtype]
    read = [p for p in references if p < first and unit.inputs[p] not in fed]
    given = [p for p in references if p >= first and unit.inputs[p] in fed]
    function = ControlledCall(unit, device, compiled, fallback, given, homes)
    return Call(function, True, tuple(read), unit.node, unit.nodes)


@dataclass(frozen=True)
class DataflowStep:
    """A step that runs as one token graph, since its nodes are control primitives."""

    nodes: tuple[Node, ...]
    inputs: tuple[Tensor, ...]  # what is fed
    outputs: tuple[Tensor, ...]  # what is fetched and not fed
    homes: Homes | None = None  # of its nodes, where there are several

    def call(self, device: Device, fallback: Fallback) -> Call:
        """The call that computes the step."""
        graph = unfold_step(self.nodes, self.outputs, self.inputs, device, fallback, self.homes)
        return Call(DataflowCall(Dataflow(graph)), True, (), self.nodes[-1], self.nodes)


@dataclass(frozen=True)
class DataflowCall:
    """The kernel of a step that runs as one token graph."""

    dataflow: Dataflow

    def __call__(self, context: Any, *values: Any) -> list[Any]:
        return self.dataflow.run(values, context)


def _cell(tensor: Tensor, value: Any) -> VariableCell:
    """A fed value that stands for a variable."""
    cell = VariableCell(tensor.op.name, tensor.dtype.base_dtype, tensor.shape)
    cell.assign(value)
    return cell
