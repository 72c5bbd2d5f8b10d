"""What a traced step tells: when each node ran, on which device, and how large its values were."""

from __future__ import annotations

from thalweg.graph.dtypes import as_dtype
from thalweg.graph.shapes import TensorShape
from thalweg.runtime.executor import Timed, Timing
from thalweg.runtime.stats import AllocationDescription, NodeExecStats, StepStats
from thalweg.runtime.stats import TensorDescription as Description


def step_stats(timing: Timing, started_ns: int) -> StepStats:
    """The timings of a step, in TensorFlow's form."""
    stats = StepStats()
    first = timing[0].start if timing else 0
    for device in sorted({timed.device for timed in timing}):
        nodes = stats.dev_stats.add(device=device).node_stats
        nodes += [_node(t, started_ns - first) for t in timing if t.device == device]
    return stats


def _node(timed: Timed, offset: int) -> NodeExecStats:
    node = timed.node
    took = max(1, (timed.end - timed.start) // 1000)
    inputs = ", ".join(tensor.name for tensor in node.inputs)
    stats = NodeExecStats(
        node_name=node.name,
        all_start_micros=(offset + timed.start) // 1000,
        op_end_rel_micros=took,
        all_end_rel_micros=took,
        timeline_label=f"{node.name} = {node.type}({inputs})",
        op_type=node.type,
        origin=node.origin,
    )
    allocator = timed.device.rpartition(":")[0].rpartition(":")[2].lower()
    for slot, (dtype, shape, size) in enumerate(timed.outputs):
        memory = AllocationDescription(size, size, allocator)
        number = 0 if dtype is None else as_dtype(dtype).as_datatype_enum
        description = Description(number, TensorShape.of(shape), memory)
        stats.output.add(slot=slot, tensor_description=description)
    return stats
