"""Resolves conditionals and loops whose conditions are constant: a conditional is replaced by the
branch that runs, a loop whose condition is false at first by its initial values.

Only where no body has effects, whose order would have to be determined again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from thalweg.control.branches import Branching, If
from thalweg.control.liveness import CONTROL_TYPES, needed
from thalweg.control.loops import While
from thalweg.control.traces import traced_tensor
from thalweg.graph.analysis.evaluate import outputs_of
from thalweg.graph.analysis.node_effects import accesses
from thalweg.graph.node import Node, Tensor
from thalweg.graph.rewriter import Rewriter
from thalweg.graph.subgraph import Argument, Body
from thalweg.ops.core.basic import constant
from thalweg.optimize.facts import open_value
from thalweg.optimize.pure import is_free
from thalweg.optimize.step_graph import StepGraph


def resolve_branches(graph: StepGraph) -> None:
    """Replace conditionals with a constant choice, and loops without iterations."""
    if graph.types.isdisjoint(CONTROL_TYPES):
        return

    def rewrite(node: Node) -> Sequence[Tensor] | None:
        traces = graph.traces(node)
        if isinstance(node.op, While):
            return _without_iterations(node, node.op, traces, graph)
        body = _known_branch(node, graph)
        if body is None or not _can_resolve(traces, body):
            return None
        graph.fire("decided conditional", node)
        outputs, traced = _inlined(node, body, traces, graph)
        for trace, value in zip(traces, traced, strict=True):  # now: unused nodes are removed
            graph.replace(trace.output, value)
        return outputs

    graph.rewrite(rewrite, CONTROL_TYPES)


def _known_branch(node: Node, graph: StepGraph) -> Body | None:
    """The branch of a conditional that always runs."""
    op, choice = node.op, node.inputs[0]
    value = open_value(choice, graph)
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


def _without_iterations(
    node: Node, op: While, traces: Sequence[Node], graph: StepGraph
) -> Sequence[Tensor] | None:
    """The outputs of a loop without iterations; None for other loops."""
    if traces or _is_ordered(node, graph):
        return None
    condition = op.condition
    values = {inner: open_value(t, graph) for inner, t in condition.bound(node).items()}
    for inner in needed(condition.outputs, condition.targets, values):
        known = [value for t in inner.inputs if (value := values.get(t)) is not None]
        is_small = len(known) == len(inner.inputs) and all(v.size <= _MAX_ELEMENTS for v in known)
        if not is_small or not is_free(inner) or not inner.op.has("numpy"):
            return None
        values.update(zip(inner.outputs, outputs_of(inner, known), strict=True))
    result = values[condition.outputs[0]]
    if result is None or bool(result):
        return None
    graph.fire("loop without iterations", node)
    return node.inputs[: len(node.outputs)]


_MAX_ELEMENTS = 64  # of what a condition compares


def _can_resolve(traces: Sequence[Node], body: Body) -> bool:
    """Whether each trace is of the branch that runs, or has a static shape: its value is not
    read."""
    others = [t for t in map(traced_tensor, traces) if t.graph is not body.graph]
    return all(t.shape.is_fully_defined() and t.dtype.is_numpy_compatible for t in others)


def _inlined(
    node: Node, body: Body, traces: Sequence[Node], graph: StepGraph
) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs of a branch, inlined in place of the conditional, and the values of its
    traces."""
    rewriter = Rewriter(graph.workspace, body.bound(node), replaces=True)
    traced = list(map(traced_tensor, traces))
    own_traced = [tensor for tensor in traced if tensor.graph is body.graph]
    for inner in needed([*body.outputs, *own_traced], body.targets, rewriter.tensors):
        if not isinstance(inner.op, Argument):
            unused = {tensor: tensor for tensor in inner.inputs if tensor not in rewriter.tensors}
            rewriter.tensors.update(unused)  # inputs that an inner control node does not need
            graph.insert([rewriter.copy(inner)], node)
    for tensor in traced:
        if tensor.graph is not body.graph:  # of the other branch: only its shape is used
            zeros = np.zeros(tensor.shape.whole or (), tensor.dtype.base_dtype.as_numpy_dtype)
            rewriter.tensors[tensor] = graph.build(node, partial(constant, zeros))
    values = rewriter.tensors
    return [values[tensor] for tensor in body.outputs], [values[tensor] for tensor in traced]
