"""Control nodes as text: what a plan shows of a conditional or a loop, its bodies indented."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thalweg.control.branches import Branching
from thalweg.control.liveness import needed
from thalweg.control.traces import LoopCount, LoopTrace, traced_tensor
from thalweg.graph.node import Node, Tensor
from thalweg.graph.subgraph import Argument, Body
from thalweg.inspect.kernel_info import short_name
from thalweg.inspect.plan_walk import PlannedControl
from thalweg.lower.regions import with_traces
from thalweg.lower.specialise import ControlRegion
from thalweg.ops.core.basic import Const

_INDENT = "         "


def control_lines(control: PlannedControl) -> list[str]:
    """A control node: how it ran, what it saves for gradients, what its bodies are made of."""
    first, *rest = _described(control.unit)
    return [f"control  {first}{_ran(control)}", *(f"{_INDENT}{line}" for line in rest)]


def _ran(control: PlannedControl) -> str:
    if control.was_native is None:
        return ""
    return ": native" if control.was_native else f": on the executor ({control.reason})"


def _described(unit: ControlRegion) -> Iterator[str]:
    node = unit.node
    yield f"{node.name} ({node.type})"
    yield node.origin
    traces = [trace for trace in unit.nodes[1:] if not isinstance(trace.op, LoopCount)]
    for trace in traces:
        often = " (per iteration)" if isinstance(trace.op, LoopTrace) else ""
        yield f"saves {_tensor(traced_tensor(trace))}{often}"
    if not traces:
        yield "saves nothing"
    for name, body in zip(_names(node), node.op.bodies, strict=True):
        yield f"{name}:"
        inner = [tensor for tensor in map(traced_tensor, traces) if tensor.graph is body.graph]
        yield from (f"  {line}" for line in _body_lines(body, inner))


def _body_lines(body: Body, traced: Sequence[Tensor]) -> Iterator[str]:
    wanted = [*body.outputs, *traced]
    nodes = [
        node
        for node in needed(wanted, body.targets, {})
        if not isinstance(node.op, Argument | Const)
    ]
    units = with_traces(nodes, wanted)
    types = [unit.type for unit in units if isinstance(unit, Node)]
    yield short_name(types) if types else "nothing to compute"
    for unit in units:
        if isinstance(unit, ControlRegion):
            yield from _described(unit)


def _names(node: Node) -> list[str]:
    if not isinstance(node.op, Branching):
        return ["condition", "body"]
    if node.type == "If":
        return ["otherwise", "then"]
    return [f"branch {number}" for number in range(len(node.op.branches))]


def _tensor(tensor: Tensor) -> str:
    shape = "" if tensor.shape.rank is None else str(tensor.shape.as_list()).replace("None", "?")
    return f"{tensor.name} {tensor.dtype.base_dtype.name}{shape}"
