"""What a traced step tells: when each node ran, on which device, and how large its values were.

Nodes that were compiled ran in kernels, often many in one. The time of a kernel is attributed to
the node that most of its work is for; the others are marked at its beginning, one microsecond
each, so that every node of the step is found by its name. Sizes are those of the values, kept in
memory or not.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple, cast

import numpy as np

from thalweg import protos
from thalweg.device.compiled_kernel import CompiledKernel, kernels_of
from thalweg.device.program import AnyProgram, Times
from thalweg.graph.dtypes import as_dtype
from thalweg.graph.node import Node, Tensor
from thalweg.graph.shapes import TensorShape
from thalweg.inspect.timed import TimedRegion, run_single, timed
from thalweg.partition.transfers import Transfer
from thalweg.place.placer import Placement
from thalweg.platform.spans import Recorder
from thalweg.runtime.compiled import Executable
from thalweg.runtime.kernels import Context, Instruction, outputs_of
from thalweg.runtime.plan import Plan

Description = tuple[Any, tuple[int, ...], int]  # dtype, shape and bytes of a value
_MARK = 1000  # nanoseconds
BESIDE = "Input stages and queues"  # the row of what ran on other threads


class Timed(NamedTuple):
    """One node of a traced step: when it began and ended in nanoseconds, where, and its values."""

    node: Node
    start: int
    end: int
    device: str
    outputs: list[Description]


class Trace(list[Timed]):
    """The record of one step: nodes run one by one, and nodes that compiled regions ran."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._placement: Placement = {}
        self.fused: dict[Node, Sequence[Node]] = {}  # what a node's time is for besides itself
        parts = [replace(part, plan=self._watched_plan(part.plan)) for part in plan.partitions]
        self.plan = replace(self._watched_plan(plan), partitions=tuple(parts))
        self._seen: set[Node] = set()

    def _watched_plan(self, plan: Plan) -> Plan:
        """The plan of one device, telling what ran."""
        self._placement |= plan.placement
        return replace(plan, instructions=tuple(map(self._watched, plan.instructions)))

    def _watched(self, instruction: Instruction) -> Instruction:
        """An instruction that is noted when it runs; a region tells of its nodes itself."""
        if isinstance(instruction.call, Executable):
            return timed(instruction, self._ran, self._single)
        if isinstance(instruction.node.op, Transfer):
            return instruction

        def call(*values: Any) -> Any:
            start = time.perf_counter_ns()
            result = instruction.call(*values)
            self._called(instruction, start, result)
            return result

        return instruction._replace(call=call)

    def _called(self, instruction: Instruction, start: int, result: Any) -> None:
        """Note a node and what ran with it."""
        end, node = time.perf_counter_ns(), instruction.node
        values = outputs_of(result, instruction.output_count, node)
        outputs = [_value_description(value) for value in values]
        self.append(Timed(node, start, end, self._placement[node], outputs))
        others = [other for other in instruction.nodes if other is not node]
        if others:
            self.fused[node] = others
            self._marks(others, start, {})

    def _single(self, instruction: Instruction, slots: list[Any], context: Context) -> None:
        """A part of a region that runs in parts."""
        start = time.perf_counter_ns()
        run_single(instruction, slots, context)
        if not isinstance(instruction.call, TimedRegion):
            self._note(instruction.node, start, time.perf_counter_ns(), {})

    def _ran(self, step: AnyProgram, times: Times) -> None:
        """Note the nodes of a program: those known before first, then kernel by kernel."""
        shapes = step.lowered.spec.shapes
        ran = times[times > 0]
        start = int(ran.min()) if ran.size else time.perf_counter_ns()
        entry = 0
        for kernel in kernels_of(step):
            part = times[entry : entry + kernel.phases]
            entry += kernel.phases
            self._kernel(kernel, part[part > 0], shapes)
        others = [node for node in step.lowered.spec.region.nodes if node not in self._seen]
        self._marks(others, start - _MARK * len(others), shapes)

    def _kernel(self, kernel: CompiledKernel, ran: Any, shapes: Any) -> None:
        start, end = int(ran.min()), int(ran.max())
        others = [n for n in kernel.nodes if n is not kernel.main and n not in self._seen]
        self._marks(others, start, shapes)
        self._note(kernel.main, start, end, shapes)
        self.fused[kernel.main] = [n for n in kernel.nodes if n is not kernel.main]

    def _marks(self, nodes: Iterable[Node], start: int, shapes: Any) -> None:
        for place, node in enumerate(nodes):
            begin = start + _MARK * place
            self._note(node, begin, begin + _MARK, shapes)

    def _note(self, node: Node, start: int, end: int, shapes: Any) -> None:
        self._seen.add(node)
        outputs = [_tensor_description(tensor, shapes) for tensor in node.outputs]
        self.append(Timed(node, start, end, self._placement[node], outputs))


def _value_description(value: Any) -> Description:
    """The dtype, shape and bytes of a value; a reference has none of its own."""
    if not isinstance(value, np.ndarray | np.generic):
        return None, (), 0
    array = np.asarray(cast("Any", value))
    return array.dtype, array.shape, array.nbytes


def _tensor_description(tensor: Tensor, shapes: Any) -> Description:
    """The dtype, shape and bytes of a value in a region; a reference has none of its own."""
    shape = shapes.get(tensor)
    if shape is None or tensor.dtype.is_ref_dtype:
        return None, (), 0
    dtype = np.dtype(tensor.dtype.as_numpy_dtype)
    return dtype, shape, prod(shape) * dtype.itemsize


def step_stats(trace: Trace, recorder: Recorder, offset: int) -> Any:
    """The timings of a step and of what ran beside it, in TensorFlow's form.

    `offset` is the time of the epoch less that of the clock they were taken by, in nanoseconds.
    """
    stats = protos.StepStats()
    timing = sorted(trace, key=lambda item: item.start)
    for device in sorted({item.device for item in timing}):
        nodes = stats.dev_stats.add(device=device).node_stats
        nodes.extend(
            _node(t, offset, trace.fused.get(t.node, ())) for t in timing if t.device == device
        )
    if recorder.spans:
        _add_beside(stats, recorder, offset)
    return stats


def _add_beside(stats: Any, recorder: Recorder, offset: int) -> None:
    """Input stages, queues and other steps, by their threads."""
    threads = list(dict.fromkeys(span.thread for span in recorder.spans))
    names = {lane: recorder.lane(thread) for lane, thread in enumerate(threads)}
    device = stats.dev_stats.add(device=BESIDE, thread_names=names)
    for what, about, thread, start, end in recorder.spans:
        ran = _ran(about, f"{what}()", start + offset, end + offset)
        device.node_stats.add(thread_id=threads.index(thread), **ran)


def _ran(about: Any, what: str, start: int, end: int) -> dict[str, Any]:
    """When something ran, as fields of a NodeExecStats."""
    took = max(1, (end - start) // 1000)
    return {
        "node_name": about.name,
        "all_start_micros": start // 1000,
        "op_end_rel_micros": took,
        "all_end_rel_micros": took,
        "timeline_label": f"{about.name} = {what} @ {about.origin}",
    }


def _node(timed: Timed, offset: int, fused: Sequence[Node]) -> Any:
    node = timed.node
    inputs = ", ".join(tensor.name for tensor in node.original.inputs)
    more = f" with {', '.join(other.name for other in fused)}" if fused else ""
    what = f"{node.type}({inputs}){more}"
    stats = protos.NodeExecStats(**_ran(node, what, timed.start + offset, timed.end + offset))
    allocator = timed.device.rpartition(":")[0].rpartition(":")[2].lower()
    for slot, (dtype, shape, size) in enumerate(timed.outputs):
        about = stats.output.add(slot=slot).tensor_description
        about.dtype = 0 if dtype is None else as_dtype(dtype).as_datatype_enum
        about.shape.CopyFrom(TensorShape.of(shape).as_proto())
        memory = about.allocation_description
        memory.requested_bytes = memory.allocated_bytes = size
        memory.allocator_name = allocator
    return stats
