"""The units of a plan as a step with these feeds would run them, found without running it.

The instructions of a plan are walked with the shapes that are known ahead; regions are lowered and
compiled as the step would. Goes out: host ops with the reason why they are not compiled, and
regions with their programs. Variables are looked at and never changed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from thalweg.codegen.cache import Statistics, statistics
from thalweg.device.compiled_kernel import CompiledKernel, kernels_of
from thalweg.device.device import Device
from thalweg.device.program import AnyProgram
from thalweg.graph.node import Node, Tensor
from thalweg.lower.regions import compilable
from thalweg.lower.specialise import ControlRegion, NotCompiled, Region, specialise
from thalweg.ops.core.basic import Const
from thalweg.ops.core.context import VariableCell
from thalweg.partition.transfers import Transfer
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.compiled import Executable
from thalweg.runtime.dataflow.control_region import ControlCall
from thalweg.runtime.dataflow.run import Dataflow
from thalweg.runtime.kernels import Context, Instruction
from thalweg.runtime.plan import Plan, region_plan
from thalweg.runtime.resources import Resources

Shape = tuple[int, ...]

_IN_TOKENS = "the step has control primitives: the executor runs its nodes one by one"


@dataclass(frozen=True)
class HostOp:
    """A node that runs on its NumPy kernel, and why it is not compiled."""

    node: Node
    reason: str
    joined: tuple[Node, ...] = ()  # the assignments that run with it, where it restores


class Made(NamedTuple):
    """What making a program took: seconds, and what the kernel cache had done before and after."""

    seconds: float
    before: Statistics
    after: Statistics


@dataclass(frozen=True, eq=False)
class PlannedRegion:
    """Nodes that are compiled together: for these shapes, or not yet."""

    region: Region
    step: AnyProgram | None = None
    made: Made | None = None  # None where it had been compiled before
    seen: Sequence[Sequence[Shape]] = ()  # the shapes it was compiled for so far, in order

    @cached_property
    def kernels(self) -> list[CompiledKernel]:
        """Its native kernels, in order."""
        return [] if self.step is None else kernels_of(self.step)

    def changes(self) -> list[str]:
        """For each time it was compiled again, which argument had a new shape."""
        pairs = zip(self.seen, self.seen[1:], strict=False)
        return [", ".join(self._changed(old, new)) for old, new in pairs]

    def _changed(self, old: Sequence[Shape], new: Sequence[Shape]) -> Iterator[str]:
        for tensor, before, after in zip(self.region.inputs, old, new, strict=True):
            if before != after:
                yield f"{tensor.name} {before} → {after}"


@dataclass(frozen=True)
class PlannedControl:
    """A conditional or a loop, and how it ran the last time."""

    unit: ControlRegion
    was_native: bool | None = None  # None where it never ran: its shapes are known only then
    reason: str = ""  # why the executor ran it


PlannedUnit = HostOp | PlannedRegion | PlannedControl


def planned_units(
    plan: Plan, shapes: Mapping[Tensor, Shape], resources: Resources, device: Device
) -> list[PlannedUnit]:
    """What a plan runs on feeds of these shapes, in order; a region that is partly compiled is the
    units inside it."""
    return _ShapeWalk(resources, device, dict(shapes)).units(plan.instructions)


@dataclass
class _ShapeWalk:
    """The instructions of a plan, seen in order with the shapes that are known."""

    resources: Resources
    device: Device
    shapes: dict[Tensor, Shape] = field(default_factory=dict[Tensor, Shape])
    cells: dict[Tensor, VariableCell] = field(default_factory=dict[Tensor, VariableCell])
    reasons: dict[Node, str] = field(default_factory=dict[Node, str])

    def units(self, instructions: Sequence[Instruction]) -> list[PlannedUnit]:
        found: list[PlannedUnit] = []
        for instruction in instructions:
            if isinstance(instruction.call, Executable):
                found += self._region(instruction.call)
            elif isinstance(instruction.call, ControlCall):
                found.append(self._control(instruction.call))
            elif isinstance(instruction.call, Dataflow):
                found += [HostOp(n, _IN_TOKENS) for n in instruction.nodes if n.inputs]
            elif is_variable(instruction.node):
                self.cells[instruction.node.outputs[0]] = cell_of(instruction.node, self.resources)
            elif isinstance(instruction.node.op, Const):
                self.shapes.update(_inferred(instruction.node, self.shapes))
            else:
                found.append(self._host_op(instruction))
        return found

    def _control(self, call: ControlCall) -> PlannedControl:
        for tensor in call.unit.outputs:
            sizes = tensor.shape.whole
            if sizes is not None:
                self.shapes[tensor] = sizes
        reason = call.reason if call.was_native is False else ""
        return PlannedControl(call.unit, call.was_native, reason)

    def _host_op(self, instruction: Instruction) -> HostOp:
        node, *joined = instruction.nodes
        self.shapes.update(_inferred(node, self.shapes))
        return HostOp(node, self.reasons.get(node) or host_reason(node), tuple(joined))

    def _region(self, compiled: Executable) -> list[PlannedUnit]:
        region, made = compiled.region, None
        programs = list(compiled.programs.values())
        if self.shapes.keys() >= {*region.inputs} and self.cells.keys() >= {*region.references}:
            key = tuple(self.shapes[tensor] for tensor in region.inputs)
            cells = [self.cells[tensor] for tensor in region.references]
            before, start, is_new = statistics(), time.perf_counter(), key not in compiled.programs
            program = compiled.compile(key, cells)
            if program is None:
                return self._partly_compiled(region, key, cells)
            took = time.perf_counter() - start
            made = Made(took, before, statistics()) if is_new else None
        elif programs:  # its shapes are known only when the step runs: as it ran the last time
            program = programs[-1]
        else:
            return [PlannedRegion(region)]
        self.shapes.update(zip(region.outputs, program.output_shapes, strict=True))
        return [PlannedRegion(region, program, made, list(compiled.programs))]

    def _partly_compiled(
        self, region: Region, key: tuple[Shape, ...], cells: Sequence[VariableCell]
    ) -> list[PlannedUnit]:
        """A region that has a node which cannot be compiled: that node, and what is around it."""
        units: list[PlannedUnit] = []

        def cut(region: Region, node: Node | None, device: Device) -> Callable[..., list[Any]]:
            failure = sys.exception()  # regions are cut while the reason for it is being handled
            if node is not None and isinstance(failure, NotCompiled):
                self.reasons[node] = failure.reason
            units.extend(self.units(region_plan(region, node, device).instructions))
            return lambda *_: []

        Executable(region, self.device, cut).compile(key, cells)
        return units


def is_variable(node: Node) -> bool:
    """Whether a node is where a variable comes from."""
    outputs = node.outputs
    source = not node.inputs and node.op.has("kernel") and not isinstance(node.op, Transfer)
    return source and len(outputs) == 1 and outputs[0].dtype.is_ref_dtype


def cell_of(node: Node, resources: Resources) -> VariableCell:
    """The variable that a node gives."""
    return node.op.kernel(Context(node, resources, Cancellation()))


def _inferred(node: Node, shapes: Mapping[Tensor, Shape]) -> dict[Tensor, Shape]:
    """The shapes of a host op's outputs, as far as they are known ahead."""
    known = {tensor: sizes for tensor in node.outputs if (sizes := tensor.shape.whole) is not None}
    if len(known) == len(node.outputs) or any(t not in shapes for t in node.inputs):
        return known
    alone = Region((node,), tuple(dict.fromkeys(node.inputs)), (), node.outputs, {})
    values = {t: t.op.op.numpy() for t in node.inputs if isinstance(t.op.op, Const)}
    try:
        spec, _ = specialise(alone, {t: shapes[t] for t in node.inputs}, values)
    except NotCompiled:
        return known
    return {tensor: spec.shapes[tensor] for tensor in node.outputs}


def host_reason(node: Node) -> str:
    """Why a node is not compiled, as far as its op and dtypes tell."""
    op = node.op
    if isinstance(op, Transfer):
        return f"between {op.send_device} and {op.recv_device}"
    if op.host_only:
        return "its op works on the host: files, strings, Python, or state of its own"
    if compilable(node):
        return "nothing is compiled in this process (THALWEG_COMPILE=0)"
    if not (op.has("loop") or op.has("element") or op.of_shapes):
        return "its op has no loop form"
    dtypes = {t.dtype.base_dtype.name for t in (*node.inputs, *node.outputs)}
    return f"native code does not take its dtypes: {', '.join(sorted(dtypes))}"
