"""The units of a plan, compiled for given feeds without running the step.

The instructions of a plan are walked with the shapes that are known before it runs; regions are
lowered and compiled as the step would do. Goes out: host ops with the reason why they are not
compiled, and regions with their programs. Variables are read and never changed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from thalweg.codegen.cache import Statistics, statistics
from thalweg.device.compiled_kernel import CompiledKernel, kernels_of
from thalweg.device.device import Device
from thalweg.device.program import AnyProgram
from thalweg.graph.node import Node, Tensor
from thalweg.lower.regions import compilable
from thalweg.lower.specialise import NotCompiled, Region, specialise
from thalweg.ops.core.basic import Const
from thalweg.ops.core.context import VariableCell
from thalweg.partition.transfers import Transfer
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.compiled import Executable
from thalweg.runtime.dataflow.control_region import ControlCall
from thalweg.runtime.dataflow.run import Dataflow
from thalweg.runtime.kernels import Context, Instruction
from thalweg.runtime.plan import region_plan
from thalweg.runtime.resources import Resources

Shape = tuple[int, ...]

_PRIMITIVES = "the step has control primitives: the executor runs its nodes one by one"


@dataclass(frozen=True)
class HostOp:
    """A node that runs on its NumPy kernel, and why it is not compiled."""

    node: Node
    reason: str
    joined: tuple[Node, ...] = ()  # the assignments that run with it, if it restores variables


class Compilation(NamedTuple):
    """The time to compile a program, and the kernel cache's statistics before and after."""

    seconds: float
    before: Statistics
    after: Statistics


@dataclass(frozen=True, eq=False)
class PlannedRegion:
    """Nodes that are compiled together, and their program."""

    region: Region
    step: AnyProgram | None = None  # None if its shapes are known only when the step runs
    compilation: Compilation | None = None  # None if it was compiled before
    shapes: Sequence[Sequence[Shape]] = ()  # the input shapes it was compiled for, in order

    @cached_property
    def kernels(self) -> list[CompiledKernel]:
        """Its native kernels, in order."""
        return [] if self.step is None else kernels_of(self.step)

    def recompilations(self) -> list[str]:
        """For each recompilation, the inputs whose shape had changed."""
        return [
            ", ".join(
                f"{tensor.name} {before} → {after}"
                for tensor, before, after in zip(self.region.inputs, old, new, strict=True)
                if before != after
            )
            for old, new in pairwise(self.shapes)
        ]


#: Of a conditional or a loop its call, which knows how it last ran.
PlannedUnit = HostOp | PlannedRegion | ControlCall


@dataclass
class ShapeWalk:
    """A walk over instructions that propagates the known shapes, first those of the feeds, and
    variables."""

    resources: Resources
    shapes: dict[Tensor, Shape]
    cells: dict[Tensor, VariableCell] = field(default_factory=dict[Tensor, VariableCell])
    reasons: dict[Node, str] = field(default_factory=dict[Node, str])

    def units(self, instructions: Sequence[Instruction]) -> list[PlannedUnit]:
        """The units that run, in order. A partly compiled region is replaced by the units inside
        it."""
        units: list[PlannedUnit] = []
        for instruction in instructions:
            node = instruction.node
            if isinstance(instruction.call, Executable):
                units += self._region(instruction.call)
            elif isinstance(instruction.call, ControlCall):
                units.append(instruction.call)
                self.shapes.update(_static_shapes(instruction.call.unit.outputs))
            elif isinstance(instruction.call, Dataflow):
                units += [HostOp(n, _PRIMITIVES) for n in instruction.nodes if n.inputs]
            elif is_variable(node):
                context = Context(node, self.resources, Cancellation())
                self.cells[node.outputs[0]] = node.op.kernel(context)
            else:
                self.shapes.update(_inferred(node, self.shapes))
                if not isinstance(node.op, Const):
                    reason = self.reasons.get(node) or host_reason(node)
                    units.append(HostOp(node, reason, instruction.nodes[1:]))
        return units

    def _region(self, compiled: Executable) -> list[PlannedUnit]:
        region, compilation = compiled.region, None
        programs = list(compiled.programs.values())
        if self.shapes.keys() >= {*region.inputs} and self.cells.keys() >= {*region.references}:
            key = tuple(self.shapes[tensor] for tensor in region.inputs)
            cells = [self.cells[tensor] for tensor in region.references]
            before, start, is_new = statistics(), time.perf_counter(), key not in compiled.programs
            program = compiled.compile(key, cells)
            if program is None:
                return self._partly_compiled(compiled, key, cells)
            seconds = time.perf_counter() - start
            compilation = Compilation(seconds, before, statistics()) if is_new else None
        elif programs:  # its shapes are known only when the step runs: show its last program
            program = programs[-1]
        else:
            return [PlannedRegion(region)]
        self.shapes.update(zip(region.outputs, program.output_shapes, strict=True))
        return [PlannedRegion(region, program, compilation, list(compiled.programs))]

    def _partly_compiled(
        self, compiled: Executable, key: tuple[Shape, ...], cells: Sequence[VariableCell]
    ) -> list[PlannedUnit]:
        """The units of a region with a node that cannot be compiled: the node, and the regions
        around it."""
        units: list[PlannedUnit] = []

        def cut(region: Region, device: Device, node: Node | None) -> Callable[..., list[Any]]:
            failure = sys.exception()  # `cut` is called while the failure is handled
            if node is not None and isinstance(failure, NotCompiled):
                self.reasons[node] = failure.reason
            units.extend(self.units(region_plan(region, node, device).instructions))
            return lambda *_: []

        Executable(compiled.region, compiled.device, cut).compile(key, cells)
        return units


def is_variable(node: Node) -> bool:
    """Whether a node returns the reference of a variable."""
    outputs = node.outputs
    source = not node.inputs and node.op.has("kernel") and not isinstance(node.op, Transfer)
    return source and len(outputs) == 1 and outputs[0].dtype.is_ref_dtype


def _static_shapes(tensors: Iterable[Tensor]) -> dict[Tensor, Shape]:
    return {tensor: shape for tensor in tensors if (shape := tensor.shape.whole) is not None}


def _inferred(node: Node, shapes: Mapping[Tensor, Shape]) -> dict[Tensor, Shape]:
    """The shapes of a host op's outputs that follow from those of its inputs and from constants."""
    known = _static_shapes(node.outputs)
    if len(known) == len(node.outputs) or any(t not in shapes for t in node.inputs):
        return known
    constants = dict.fromkeys(t.op for t in node.inputs if isinstance(t.op.op, Const))
    others = dict.fromkeys(t for t in node.inputs if t.op not in constants)
    alone = Region((*constants, node), tuple(others), (), node.outputs, {})
    try:
        spec, _ = specialise(alone, {t: shapes[t] for t in others})
    except NotCompiled:
        return known
    return {tensor: spec.shapes[tensor] for tensor in node.outputs}


def host_reason(node: Node) -> str:
    """Why a node is not compiled, by its op and dtypes."""
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
