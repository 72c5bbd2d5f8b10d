"""Liveness inside conditionals and loops: a step does not carry loop variables that nothing reads.

`needed` finds the nodes that outputs depend on. Of a control node, it follows only the inputs that
the wanted outputs and traces depend on. `prune_loop_vars` removes the other inputs and outputs. As
anywhere in a step, a node with effects runs only if a wanted tensor or target depends on it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from typing import Any

from thalweg.control.bodies import ControlOp
from thalweg.control.branches import Branching
from thalweg.control.loops import While
from thalweg.control.traces import Trace, traced_tensors
from thalweg.graph.node import Node, Tensor, program_order
from thalweg.graph.subgraph import Body, is_known

CONTROL_TYPES = frozenset(kind.type_name for kind in (*Branching.__subclasses__(), While))

Wanted = Collection[Tensor]  # of a control node: outputs, and tensors of its bodies that are traced


def is_control(node: Node) -> bool:
    """Whether a node is a conditional or a loop."""
    return isinstance(node.op, ControlOp)


def needed(
    outputs: Iterable[Tensor], targets: Iterable[Node], known: Mapping[Tensor, Any]
) -> list[Node]:
    """The nodes that outputs and targets need, in the order of the program."""
    return Needs(outputs, targets, known).nodes


class Needs:
    """What outputs and targets need: one backward traversal, which does not visit the nodes of
    `known` tensors."""

    def __init__(
        self, outputs: Iterable[Tensor], targets: Iterable[Node], known: Mapping[Tensor, Any]
    ) -> None:
        self._known = known
        self._pending: list[Node] = []
        self._controls: set[Node] = set()  # worklist: more is wanted of these
        self._found: set[Node] = set()
        #: Control node → the outputs and inner tensors that are wanted of it.
        self.wanted: dict[Node, set[Tensor]] = defaultdict(set)
        for tensor in outputs:
            self._want(tensor)
        for node in targets:
            self._need(node, node.outputs)
        while self._pending or self._controls:
            if self._pending:
                self._visit(self._pending.pop())
            else:  # the latest one: all its consumers have been visited
                node = max(self._controls, key=lambda node: node.index)
                self._controls.remove(node)
                for index in _live_indices(node, self.wanted[node])[1]:
                    self._want(node.inputs[index])
        #: The nodes, in the order of the program.
        self.nodes = program_order(self._found)

    def _want(self, tensor: Tensor) -> None:
        if tensor not in self._known:
            self._need(tensor.op, [tensor])

    def _need(self, node: Node, wanted: Sequence[Tensor]) -> None:
        """Mark a node as needed, and record what is wanted of a control node."""
        is_new = node not in self._found
        if is_new:
            self._found.add(node)
            self._pending.append(node)
        if is_control(node) and (is_new or not self.wanted[node].issuperset(wanted)):
            self.wanted[node].update(wanted)
            self._controls.add(node)

    def _visit(self, node: Node) -> None:
        for control in node.controls:
            if not is_known(control, self._known):
                self._need(control, control.outputs)
        if isinstance(node.op, Trace):
            self._need(node.inputs[0].op, traced_tensors(node))
        elif not is_control(node):
            for tensor in node.inputs:
                self._want(tensor)


def _live_indices(node: Node, wanted: Wanted) -> tuple[list[int], list[int]]:
    """The indices of the live outputs and inputs of a control node."""
    if isinstance(node.op, While):
        variables, used = _live_loop_variables(node, node.op, wanted)
        return sorted(variables), sorted(variables | used)
    kept = [index for index, tensor in enumerate(node.outputs) if tensor in wanted]
    kept = kept or [0][: len(node.outputs)]  # traces need an output to take
    used: set[int] = set()
    for body in node.op.bodies:
        used |= _used_arguments(body, [body.outputs[index] for index in kept], wanted)
    return kept, [0, *(1 + index for index in sorted(used))]


def _live_loop_variables(node: Node, op: While, wanted: Wanted) -> tuple[set[int], set[int]]:
    """The indices of the variables that a loop must carry, and of the arguments it uses."""
    used = _used_arguments(op.condition, op.condition.outputs, ())
    used |= _used_arguments(op.body, (), wanted)
    outputs = {index for index, tensor in enumerate(node.outputs) if tensor in wanted}
    live: set[int] = set()
    while True:
        needed_now = outputs | {index for index in used if index < len(node.outputs)}
        fresh = (needed_now or {0}) - live  # a loop has at least one variable
        if not fresh:
            return live, used
        live |= fresh
        used |= _used_arguments(op.body, [op.body.outputs[index] for index in sorted(fresh)], ())


def _used_arguments(body: Body, outputs: Sequence[Tensor], wanted: Wanted) -> set[int]:
    """The indices of the arguments that a body uses for outputs and for traced tensors."""
    traced = [tensor for tensor in wanted if tensor.graph is body.graph]
    nodes = set(needed([*outputs, *traced], body.targets, {}))
    return {index for index, tensor in enumerate(body.arguments) if tensor.op in nodes}


def prune_loop_vars(node: Node, wanted: Wanted) -> Node:
    """A control node without dead inputs and outputs.

    It replaces the node in a plan: its outputs are a subset of the node's own tensors.
    """
    kept, inputs = _live_indices(node, wanted)
    if len(inputs) == len(node.inputs) and len(kept) == len(node.outputs):
        return node
    op: Any = node.op
    changed: dict[str, Any] = {"Tout": tuple(op.Tout[p] for p in kept)}
    if isinstance(op, While):
        first = len(kept)
        changed["condition"] = op.condition.selected(inputs, op.condition.outputs)
        changed["body"] = op.body.selected(inputs, [op.body.outputs[p] for p in kept])
        changed["shapes"] = tuple(op.shapes[p] for p in kept)
    else:
        first = 1
        used = [index - 1 for index in inputs[1:]]
        changed["branches"] = tuple(
            body.selected(used, [body.outputs[p] for p in kept]) for body in op.bodies
        )
    pruned = copy(node)
    pruned.op = type(op)(**{**op.attributes, **changed})
    pruned.annotations = {**node.annotations, "_counts": (first, len(inputs) - first)}
    pruned.inputs = tuple(node.inputs[index] for index in inputs)
    pruned.outputs = tuple(node.outputs[index] for index in kept)
    return pruned
