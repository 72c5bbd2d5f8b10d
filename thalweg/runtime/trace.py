"""What a traced step tells: per-op timings, and a Chrome trace that names the user's lines."""

from __future__ import annotations

import json
from typing import Any

from thalweg.runtime.config import DeviceStepStats, NodeExecStats, StepStats
from thalweg.runtime.executor import Timing

_DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"


def step_stats(timing: Timing, started_ns: int) -> StepStats:
    """The timings of a step, in TensorFlow's form."""
    first = timing[0][1] if timing else 0
    stats: list[NodeExecStats] = []
    for node, start, end in timing:
        begin = (started_ns + start - first) // 1000
        took = max(1, (end - start) // 1000)
        inputs = ", ".join(tensor.name for tensor in node.inputs)
        stats.append(
            NodeExecStats(
                node_name=node.name,
                all_start_micros=begin,
                op_end_rel_micros=took,
                all_end_rel_micros=took,
                timeline_label=f"{node.name} = {node.type}({inputs})",
                op_type=node.type,
                origin=node.origin,
            )
        )
    return StepStats([DeviceStepStats(_DEVICE, stats)])


def chrome_trace(stats: StepStats) -> str:
    """The JSON that chrome://tracing and Perfetto show."""
    events: list[dict[str, Any]] = []
    for process, device in enumerate(stats.dev_stats):
        events.append(
            {"name": "process_name", "ph": "M", "pid": process, "args": {"name": device.device}}
        )
        events += [_event(process, node) for node in device.node_stats]
    return json.dumps({"traceEvents": events}, indent=1)


def _event(process: int, node: NodeExecStats) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "Op",
        "name": node.op_type,
        "pid": process,
        "tid": node.thread_id,
        "ts": node.all_start_micros,
        "dur": node.all_end_rel_micros,
        "args": {"name": node.node_name, "op": node.op_type, "line": node.origin},
    }
