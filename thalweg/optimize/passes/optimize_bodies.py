"""Optimises the bodies of conditionals and loops, each like a step of its own.

Its arguments are feeds; its outputs and the tensors that traces read are fetches. A constant that
is an argument which never changes becomes a constant inside. A body that changes is rebuilt in a
new graph, and the traces of the control node read from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from thalweg.control.branches import Branching
from thalweg.control.liveness import CONTROL_TYPES, is_control, needed
from thalweg.control.loops import While
from thalweg.control.traces import traced_tensors
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.subgraph import Argument, Body
from thalweg.ops.core.basic import Const, Identity
from thalweg.optimize.facts import open_value
from thalweg.optimize.step_graph import StepGraph
from thalweg.optimize.workspace import BodyRewriter, Workspace

_MAX_BYTES = 4_096  # of a constant that is copied into a body


def optimize_bodies(graph: StepGraph) -> None:
    """Run all passes in the bodies of control nodes."""
    if graph.types.isdisjoint(CONTROL_TYPES):
        return
    for node in [node for node in graph.nodes if is_control(node)]:
        _Bodies(node, graph.traces(node), graph).run()


class _Bodies:
    """The bodies of one control node."""

    def __init__(self, node: Node, traces: Sequence[Node], graph: StepGraph) -> None:
        self._node, self._traces, self._graph = node, traces, graph
        self._traced: dict[Tensor, Tensor] = {}  # the replacements of traced tensors

    def run(self) -> None:
        """Give the control node and its traces the new bodies, if any changed."""
        op = self._node.op
        bodies = [self._optimized(body) for body in op.bodies]
        if all(new is old for new, old in zip(bodies, op.bodies, strict=True)):
            return
        self._graph.edit(self._node, op=_with_bodies(op, bodies))
        for trace in self._traces:
            for tensor in traced_tensors(trace):
                moved = self._traced.get(tensor)
                if moved is not None:
                    self._graph.edit(trace, op=_with_tensor(trace.op, moved))

    def _optimized(self, body: Body) -> Body:
        traced = [t for trace in self._traces for t in traced_tensors(trace)]
        traced = [tensor for tensor in dict.fromkeys(traced) if tensor.graph is body.graph]
        step = self._step(body, traced)
        self._insert_constants(step, body)
        self._graph.fired.update(self._graph.run_inside(step))
        return self._rebuilt(body, step, traced) if step.is_changed else body

    def _step(self, body: Body, traced: Sequence[Tensor]) -> StepGraph:
        ends = (*body.outputs, *traced)
        nodes = [n for n in needed(ends, body.targets, {}) if not isinstance(n.op, Argument)]
        placement = self._graph.devices, self._graph.processors
        return StepGraph(nodes, ends, body.targets, frozenset(body.arguments), *placement)

    def _insert_constants(self, step: StepGraph, body: Body) -> None:
        """Replace arguments that are always a constant by it."""
        for argument, tensor in self._constant_arguments(body).items():
            consumers = step.consumers(argument)
            if consumers:
                constant = step.workspace.replica(tensor.op)
                step.insert([constant], step.nodes[0])
                for node in consumers:
                    inputs = [constant.output if t is argument else t for t in node.inputs]
                    step.edit(node, inputs=inputs)
                self._graph.fire("constant argument", self._node)

    def _constant_arguments(self, body: Body) -> dict[Tensor, Tensor]:
        """The arguments that no iteration changes and that are constants, with these."""
        node, op = self._node, self._node.op
        varying = body.arguments[: len(node.outputs)] if isinstance(op, While) else ()
        constants: dict[Tensor, Tensor] = {}
        for inner, tensor in body.bound(node).items():
            value = None if inner in varying else open_value(tensor, self._graph)
            if value is not None and value.nbytes <= _MAX_BYTES:
                constants[inner] = tensor
        return constants

    def _rebuilt(self, body: Body, step: StepGraph, traced: Sequence[Tensor]) -> Body:
        rewriter = BodyRewriter(body)
        for node in step.nodes:
            rewriter.copy(node)
        count = len(body.outputs)
        for tensor, end in zip(traced, step.fetches[count:], strict=True):
            self._traced[tensor] = self._traceable(rewriter.tensors[end], rewriter.workspace)
        return rewriter.rebuilt(step.fetches[:count], step.targets)

    @staticmethod
    def _traceable(tensor: Tensor, graph: Workspace) -> Tensor:
        """A tensor that a trace can read: arguments and constants are copied."""
        if not isinstance(tensor.op.op, Argument | Const):
            return tensor
        return graph.build(tensor.op, lambda: Identity()(tensor))[0]


def _with_bodies(op: Op, bodies: Sequence[Body]) -> Op:
    """A conditional or a loop with other bodies."""
    changed: Mapping[str, Any]
    if isinstance(op, While):
        changed = {"condition": bodies[0], "body": bodies[1]}
    else:
        changed = {"branches": tuple(bodies)}
    return type(op)(**{**cast("Branching", op).attributes, **changed})


def _with_tensor(op: Op, tensor: Tensor) -> Op:
    """A trace of another tensor."""
    return type(op)(**{**op.attributes, "tensor": tensor})
