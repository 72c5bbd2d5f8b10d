"""Traces of steps: when each node ran, on which device, and the sizes of its outputs.

Compiled nodes run in kernels, often several in one. The time of a kernel is attributed to its main
node; its other nodes are marked at its begin, one microsecond each, so that every node of the step
is found by its name. Sizes are those of the values, stored in memory or not.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count
from math import prod
from typing import Any, NamedTuple, cast

import numpy as np

from thalweg import protos
from thalweg.device.compiled_kernel import CompiledKernel, kernels_of
from thalweg.device.program import AnyProgram, Times
from thalweg.graph.dtypes import as_dtype
from thalweg.graph.node import Node, Tensor
from thalweg.graph.shapes import TensorShape
from thalweg.inspect.timed import TimedRegion, timed
from thalweg.partition.transfers import Transfer
from thalweg.place.placer import Placement
from thalweg.platform.spans import Recorder
from thalweg.runtime.compiled import Executable
from thalweg.runtime.kernels import Context, Instruction, TracedFunction, outputs_of
from thalweg.runtime.plan import Plan

Description = tuple[Any, tuple[int, ...]]  # dtype and shape of a value; None for references
_MARK = 1000  # nanoseconds
OTHER_THREADS = "Input stages and queues"  # the device name of spans on other threads


class Timed(NamedTuple):
    """The run of one node of a traced step; times are nanoseconds."""

    node: Node
    start: int
    end: int
    device: str
    outputs: list[Description]
    fused: Sequence[Node] = ()  # the others whose time this one's includes


class Trace(list[Timed]):
    """The trace of one step, which runs `plan`, the instrumented plan."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._placement: Placement = {}
        parts = [replace(part, plan=self._traced_plan(part.plan)) for part in plan.partitions]
        self.plan = replace(self._traced_plan(plan), partitions=tuple(parts))
        self._seen: set[Node] = set()

    def _traced_plan(self, plan: Plan) -> Plan:
        """The instrumented plan of one device."""
        self._placement |= plan.placement
        return replace(plan, instructions=tuple(map(self._traced, plan.instructions)))

    def _traced(self, instruction: Instruction) -> Instruction:
        """An instrumented instruction: a region reports its kernels, another op its call."""
        if isinstance(instruction.call, Executable):
            return timed(instruction, self._on_run, self._run_part)
        if isinstance(instruction.node.op, Transfer):
            return instruction

        def call(*values: Any) -> Any:
            start = time.perf_counter_ns()
            result = instruction.call(*values)
            self._add_call(instruction, start, result)
            return result

        return instruction._replace(call=TracedFunction(call))

    def _add_call(self, instruction: Instruction, start: int, result: Any) -> None:
        """Add a host op, and the nodes that ran with it."""
        end, node = time.perf_counter_ns(), instruction.node
        if node not in instruction.nodes:  # a control node that is pruned: show the graph's node
            node = instruction.nodes[0]
        values = outputs_of(result, instruction.output_count, node)
        outputs = [_value_description(value) for value in values]
        others = [other for other in instruction.nodes if other is not node]
        self.append(Timed(node, start, end, self._placement[node], outputs, others))
        self._mark(others, start, {})

    def _run_part(self, instruction: Instruction, slots: list[Any], context: Context) -> None:
        """Run an instruction of a partly compiled region."""
        start = time.perf_counter_ns()
        Context.run(context, [instruction], slots)  # a timed context would come back here
        if not isinstance(instruction.call, TimedRegion):
            self._add(instruction.node, start, time.perf_counter_ns(), {})

    def _on_run(self, program: AnyProgram, times: Times) -> None:
        """Add the kernels of a program, and before them its nodes that no kernel computes."""
        spec = program.listing.lowered.spec
        ran = times[times > 0]
        start = int(ran.min()) if ran.size else time.perf_counter_ns()
        entry = 0
        for kernel in kernels_of(program):
            phases = times[entry : entry + kernel.phases]
            entry += kernel.phases
            self._add_kernel(kernel, phases[phases > 0], spec.shapes)
        others = [node for node in spec.region.nodes if node not in self._seen]
        self._mark(others, start - _MARK * len(others), spec.shapes)

    def _add_kernel(self, kernel: CompiledKernel, times: Any, shapes: Any) -> None:
        start, end = int(times.min()), int(times.max())
        others = [node for node in kernel.nodes if node is not kernel.main]
        self._mark([node for node in others if node not in self._seen], start, shapes)
        self._add(kernel.main, start, end, shapes, others)

    def _mark(self, nodes: Iterable[Node], start: int, shapes: Any) -> None:
        """Add nodes without a time of their own, one microsecond after another."""
        for begin, node in zip(count(start, _MARK), nodes, strict=False):
            self._add(node, begin, begin + _MARK, shapes)

    def _add(
        self, node: Node, start: int, end: int, shapes: Any, fused: Sequence[Node] = ()
    ) -> None:
        self._seen.add(node)
        outputs = [_tensor_description(tensor, shapes) for tensor in node.outputs]
        self.append(Timed(node, start, end, self._placement[node], outputs, fused))


def _value_description(value: Any) -> Description:
    """The description of a host op's output; a reference has none of its own."""
    if not isinstance(value, np.ndarray | np.generic):
        return None, ()
    array = np.asarray(cast("Any", value))
    return array.dtype, array.shape


def _tensor_description(tensor: Tensor, shapes: Any) -> Description:
    """The description of a tensor of a region; a reference has none of its own."""
    shape = shapes.get(tensor)
    if shape is None or tensor.dtype.is_ref_dtype:
        return None, ()
    return np.dtype(tensor.dtype.as_numpy_dtype), shape


def step_stats(trace: Trace, recorder: Recorder, offset: int) -> Any:
    """The runs of a step's nodes, and the spans recorded on other threads, as StepStats.

    `offset` is the time since the epoch minus the clock of the trace, in nanoseconds.
    """
    stats = protos.StepStats()
    runs = sorted(trace, key=lambda run: run.start)
    for device in sorted({run.device for run in runs}):
        nodes = stats.dev_stats.add(device=device).node_stats
        nodes.extend(_node_stats(run, offset) for run in runs if run.device == device)
    if recorder.spans:
        _add_threads(stats, recorder, offset)
    return stats


def _add_threads(stats: Any, recorder: Recorder, offset: int) -> None:
    """Add the spans of input stages, queues and other steps, by their threads."""
    threads = list(dict.fromkeys(span.thread for span in recorder.spans))
    names = {lane: recorder.lane(thread) for lane, thread in enumerate(threads)}
    device = stats.dev_stats.add(device=OTHER_THREADS, thread_names=names)
    for activity, subject, thread, start, end in recorder.spans:
        fields = _run_fields(subject, f"{activity}()", start + offset, end + offset)
        device.node_stats.add(thread_id=threads.index(thread), **fields)


def _run_fields(subject: Any, call: str, start: int, end: int) -> dict[str, Any]:
    """The fields of a NodeExecStats for the run of a node or another named object."""
    micros = max(1, (end - start) // 1000)
    return {
        "node_name": subject.name,
        "all_start_micros": start // 1000,
        "op_end_rel_micros": micros,
        "all_end_rel_micros": micros,
        "timeline_label": f"{subject.name} = {call} @ {subject.origin}",
    }


def _node_stats(run: Timed, offset: int) -> Any:
    node = run.node
    inputs = ", ".join(tensor.name for tensor in node.original.inputs)
    others = f" with {', '.join(other.name for other in run.fused)}" if run.fused else ""
    fields = _run_fields(
        node, f"{node.type}({inputs}){others}", run.start + offset, run.end + offset
    )
    stats = protos.NodeExecStats(**fields)
    allocator = run.device.rpartition(":")[0].rpartition(":")[2].lower()
    for slot, (dtype, shape) in enumerate(run.outputs):
        tensor = stats.output.add(slot=slot).tensor_description
        tensor.dtype = 0 if dtype is None else as_dtype(dtype).as_datatype_enum
        tensor.shape.CopyFrom(TensorShape.of(shape).as_proto())
        memory = tensor.allocation_description
        size = 0 if dtype is None else prod(shape) * dtype.itemsize
        memory.requested_bytes = memory.allocated_bytes = size
        memory.allocator_name = allocator
    return stats
