"""What a step needs of its conditionals and loops: a variable that nothing reads is not carried.

`needed` goes back from what is wanted, as for any graph, but of a control node only to the inputs
that what is wanted of it depends on. `prune_loop_vars` gives a control node without the others. As
anywhere in a step, a node runs for its effects where something wanted depends on it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, cast

from thalweg.control.bodies import ControlOp
from thalweg.control.branches import Branching
from thalweg.control.loops import While
from thalweg.control.traces import Trace
from thalweg.graph.node import Node, Tensor, program_order
from thalweg.graph.subgraph import Body, is_known

CONTROL_TYPES = frozenset(kind.type_name for kind in (*Branching.__subclasses__(), While))

Wanted = Collection[Tensor]  # of a control node: outputs, and tensors of its bodies that are traced


def is_control(node: Node) -> bool:
    """Whether a node is a conditional or a loop."""
    return isinstance(node.op, ControlOp)


def traced_tensors(trace: Node) -> list[Tensor]:
    """The tensors inside a control node that a trace of it gives."""
    tensor: Tensor | None = getattr(trace.op, "tensor", None)
    return [] if tensor is None else [tensor]


def needed(
    outputs: Iterable[Tensor], targets: Iterable[Node], known: Mapping[Tensor, Any]
) -> list[Node]:
    """The nodes that outputs and targets need, in the order of the program."""
    return Needs(known).run(outputs, targets)


class Needs:
    """One backward traversal from what is wanted."""

    def __init__(self, known: Mapping[Tensor, Any]) -> None:
        self._known = known
        self._found: set[Node] = set()
        self._pending: list[Node] = []
        self._controls: set[Node] = set()  # of which more is wanted than was looked at
        #: what is wanted of each control node
        self.wanted: dict[Node, set[Tensor]] = defaultdict(set)

    def run(self, outputs: Iterable[Tensor], targets: Iterable[Node]) -> list[Node]:
        """The nodes that outputs and targets need, in the order of the program."""
        return program_order(self.reached(outputs, targets))

    def reached(self, outputs: Iterable[Tensor], targets: Iterable[Node]) -> set[Node]:
        """The nodes that outputs and targets need."""
        for tensor in outputs:
            self._want(tensor)
        for node in targets:
            self._need(node, node.outputs)
        while self._pending or self._controls:
            if self._pending:
                self._visit(self._pending.pop())
            else:  # the latest: all that may want something of it has been seen
                node = max(self._controls, key=lambda node: node.index)
                self._controls.remove(node)
                for tensor in live_inputs(node, self.wanted[node]):
                    self._want(tensor)
        return self._found

    def _want(self, tensor: Tensor) -> None:
        if tensor not in self._known:
            self._need(tensor.op, [tensor])

    def _need(self, node: Node, wanted: Sequence[Tensor]) -> None:
        """Note that a node is needed, and of a control node what is wanted of it."""
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


def live_inputs(node: Node, wanted: Wanted) -> list[Tensor]:
    """The inputs of a control node that what is wanted of it depends on."""
    return [node.inputs[place] for place in _live_places(node, wanted)[1]]


def _live_places(node: Node, wanted: Wanted) -> tuple[list[int], list[int]]:
    """The places of the outputs that a control node has to give, and of the inputs it uses."""
    if isinstance(node.op, While):
        variables, used = _of_loop(node, node.op, wanted)
        return sorted(variables), sorted(variables | used)
    kept = [place for place, tensor in enumerate(node.outputs) if tensor in wanted]
    kept = kept or [0][: len(node.outputs)]  # traces hold on to one in any case
    bodies = cast("Branching", node.op).branches
    found = [_used(body, [body.outputs[place] for place in kept], wanted) for body in bodies]
    return kept, [0, *(1 + place for place in sorted(set[int]().union(*found)))]


def _of_loop(node: Node, op: While, wanted: Wanted) -> tuple[set[int], set[int]]:
    """The variables that a loop carries, and the places of the arguments it uses."""
    used = _used(op.condition, op.condition.outputs, ()) | _used(op.body, (), wanted)
    asked = {place for place, tensor in enumerate(node.outputs) if tensor in wanted}
    live: set[int] = set()
    while True:
        found = asked | {place for place in used if place < len(node.outputs)} or {0}
        fresh = found - live  # a loop has a variable in any case
        if not fresh:
            return live, used
        live |= fresh
        used |= _used(op.body, [op.body.outputs[place] for place in sorted(fresh)], ())


def _used(body: Body, outputs: Sequence[Tensor], wanted: Wanted) -> set[int]:
    """The places of the arguments that a body uses for some outputs."""
    traced = [tensor for tensor in wanted if tensor.graph is body.graph]
    found = set(needed([*outputs, *traced], body.targets, {}))
    return {place for place, tensor in enumerate(body.arguments) if tensor.op in found}


def prune_loop_vars(node: Node, wanted: Wanted) -> Node:
    """A control node that carries and takes only what is wanted of it.

    It stands for the node in a plan: its outputs are some of those of the node itself.
    """
    kept, places = _live_places(node, wanted)
    if len(places) == len(node.inputs) and len(kept) == len(node.outputs):
        return node
    op: Any = node.op
    changed: dict[str, Any] = {"Tout": tuple(op.Tout[p] for p in kept)}
    if isinstance(op, While):
        first = len(kept)
        changed["condition"] = _with_arguments(op.condition, op.condition.outputs, places)
        changed["body"] = _with_arguments(op.body, [op.body.outputs[p] for p in kept], places)
        changed["shapes"] = tuple(op.shapes[p] for p in kept)
    else:
        first = 1
        used = [place - 1 for place in places[1:]]
        changed["branches"] = tuple(
            _with_arguments(body, [body.outputs[p] for p in kept], used) for body in op.bodies
        )
    made = copy(node)
    made.op = type(op)(**{**op.attributes, **changed})
    made.annotations = {**node.annotations, "_counts": (first, len(places) - first)}
    made.inputs = tuple(node.inputs[place] for place in places)
    made.outputs = tuple(node.outputs[place] for place in kept)
    return made


def _with_arguments(body: Body, outputs: Sequence[Tensor], places: Sequence[int]) -> Body:
    return replace(
        body,
        arguments=tuple(body.arguments[place] for place in places),
        outputs=tuple(outputs),
    )
