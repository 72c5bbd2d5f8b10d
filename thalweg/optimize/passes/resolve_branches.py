"""Conditionals and loops that are decided: the branch that runs takes the place of a conditional,
and a loop whose condition does not hold at first gives its variables as they come in.

Only where no body has effects: what an effect comes after would have to be found again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from thalweg.control.branches import Branching, If
from thalweg.control.liveness import CONTROL_TYPES, needed, traced_tensors
from thalweg.control.loops import While
from thalweg.control.traces import Trace
from thalweg.graph.analysis.node_effects import accesses
from thalweg.graph.node import Node, Tensor
from thalweg.graph.rewriter import Rewriter
from thalweg.graph.subgraph import Argument, Body
from thalweg.ops.core.basic import constant
from thalweg.optimize.evaluate import outputs_of
from thalweg.optimize.facts import value_of
from thalweg.optimize.pure import is_free
from thalweg.optimize.step_graph import StepGraph


def resolve_branches(graph: StepGraph) -> None:
    """Replace conditionals that are decided, and loops that make no iteration."""
    if graph.types.isdisjoint(CONTROL_TYPES):
        return
    traces: dict[Any, list[Node]] = defaultdict(list)  # by the op, which copies of a node share
    for node in graph.nodes:
        if isinstance(node.op, Trace):
            traces[node.inputs[0].op.op].append(node)
    known: dict[Any, Tensor] = {}  # by the op of a trace

    def rewrite(node: Node) -> Sequence[Tensor] | None:
        if isinstance(node.op, Trace):
            return [known[node.op]] if node.op in known else None
        if isinstance(node.op, While):
            return _unrun(node, node.op, traces[node.op], graph)
        body = _decided(node, graph)
        if body is None or not _are_known(traces[node.op], body):
            return None
        graph.fire("decided conditional", node)
        outputs, found = _inlined(node, body, traces[node.op], graph)
        known.update(found)
        for trace in traces[node.op]:  # at once: what nothing takes by then may go
            if trace in graph:
                graph.replace(trace.output, found[trace.op])
        return outputs

    roots = {*CONTROL_TYPES, *(each.type for nodes in traces.values() for each in nodes)}
    graph.rewrite(rewrite, roots)


def _decided(node: Node, graph: StepGraph) -> Body | None:
    """The branch of a conditional that always runs."""
    op, choice = node.op, node.inputs[0]
    value = value_of(choice) if graph.is_open(choice) else None
    if not isinstance(op, Branching) or value is None or _is_ordered(node, graph):
        return None
    if isinstance(op, If):
        return op.branches[bool(value)]
    number = int(value)
    return op.branches[number if 0 <= number < len(op.branches) else -1]


def _is_ordered(node: Node, graph: StepGraph) -> bool:
    """Whether a control node has effects, or comes after some, or others wait for it."""
    if node.controls or graph.is_waited(node) or any(accesses(node)):
        return True
    return any(graph.is_guarded(tensor) for tensor in node.inputs)


def _unrun(
    node: Node, op: While, traces: Sequence[Node], graph: StepGraph
) -> Sequence[Tensor] | None:
    """The variables of a loop that makes no iteration."""
    if traces or _is_ordered(node, graph):
        return None
    outer = dict(zip(op.condition.arguments, node.inputs, strict=True))
    values: dict[Tensor, Any] = {}
    for inner in needed(op.condition.outputs, op.condition.targets, {}):
        known = _value_at_first(inner, outer, values, graph)
        if known is None:
            return None
        values.update(zip(inner.outputs, known, strict=True))
    if bool(values[op.condition.outputs[0]]):
        return None
    graph.fire("loop without iterations", node)
    return node.inputs[: len(node.outputs)]


def _value_at_first(
    node: Node, outer: Mapping[Tensor, Tensor], values: Mapping[Tensor, Any], graph: StepGraph
) -> Sequence[Any] | None:
    """What a node of a condition gives before the first iteration, if constants tell."""
    if isinstance(node.op, Argument):
        tensor = outer.get(node.output)
        value = value_of(tensor) if tensor is not None and graph.is_open(tensor) else None
        return None if value is None else [value]
    small = all(np.size(values[tensor]) <= _MAX_ELEMENTS for tensor in node.inputs)
    if not is_free(node) or not small or not node.op.has("numpy"):
        return None
    return outputs_of(node, [values[tensor] for tensor in node.inputs])


_MAX_ELEMENTS = 64  # of what a condition compares


def _are_known(traces: Sequence[Node], body: Body) -> bool:
    """Whether each trace is of the branch that runs, or has a shape: its value is never read."""
    tensors = [tensor for trace in traces for tensor in traced_tensors(trace)]
    others = [tensor for tensor in tensors if tensor.graph is not body.graph]
    return all(t.shape.is_fully_defined() and t.dtype.is_numpy_compatible for t in others)


def _inlined(
    node: Node, body: Body, traces: Sequence[Node], graph: StepGraph
) -> tuple[list[Tensor], dict[Any, Tensor]]:
    """What a branch gives, computed in the place of the conditional; and its traces."""
    again = Rewriter(graph.workspace, dict(zip(body.arguments, node.inputs[1:], strict=True)))
    read = {trace.op: tensor for trace in traces for tensor in traced_tensors(trace)}
    own = [tensor for tensor in read.values() if tensor.graph is body.graph]
    for inner in needed([*body.outputs, *own], body.targets, again.tensors):
        if not isinstance(inner.op, Argument):
            unused = {tensor: tensor for tensor in inner.inputs if tensor not in again.tensors}
            again.tensors.update(unused)  # a control node inside takes what nothing needs
            graph.insert([again.copy(inner)], node)
    outputs = [again.tensors[tensor] for tensor in body.outputs]
    return outputs, {op: _read(tensor, body, again, node, graph) for op, tensor in read.items()}


def _read(tensor: Tensor, body: Body, again: Rewriter, node: Node, graph: StepGraph) -> Tensor:
    if tensor.graph is body.graph:
        return again.tensors[tensor]
    shape, dtype = tensor.shape.as_list(), tensor.dtype.base_dtype.as_numpy_dtype
    return graph.build(node, lambda: constant(np.zeros([size or 0 for size in shape], dtype)))
