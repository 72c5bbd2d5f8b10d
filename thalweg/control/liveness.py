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

from thalweg.control.branches import Branching
from thalweg.control.loops import While
from thalweg.control.traces import Trace
from thalweg.graph.node import Node, Tensor, program_order
from thalweg.graph.subgraph import Body, is_known

_CONTROL = (Branching, While)  # a tuple: a union would be rebuilt by each call
CONTROL_TYPES = frozenset(kind.type_name for kind in (*Branching.__subclasses__(), While))

Wanted = Collection[Tensor]  # of a control node: outputs, and tensors of its bodies that are traced


def is_control(node: Node) -> bool:
    """Whether a node is a conditional or a loop."""
    return isinstance(node.op, _CONTROL)


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
            self._run(node)
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
        node = tensor.op
        if tensor in self._known:
            return
        if is_control(node):
            self._add(node)
            self._ask(node, [tensor])
        elif node not in self._found:
            self._found.add(node)
            self._pending.append(node)

    def _run(self, node: Node) -> None:
        self._add(node)
        if is_control(node):
            self._ask(node, node.outputs)

    def _ask(self, node: Node, tensors: Sequence[Tensor]) -> None:
        """Note what is wanted of a control node."""
        if not self.wanted[node].issuperset(tensors):
            self.wanted[node].update(tensors)
            self._controls.add(node)

    def _add(self, node: Node) -> None:
        if node not in self._found:
            self._found.add(node)
            self._pending.append(node)
            if is_control(node):
                self._controls.add(node)

    def _visit(self, node: Node) -> None:
        for control in node.controls:
            if not is_known(control, self._known):
                self._run(control)
        if isinstance(node.op, Trace):
            self._add(node.inputs[0].op)
            self._ask(node.inputs[0].op, traced_tensors(node))
        elif not is_control(node):
            for tensor in node.inputs:
                self._want(tensor)


def live_inputs(node: Node, wanted: Wanted) -> list[Tensor]:
    """The inputs of a control node that what is wanted of it depends on."""
    return [node.inputs[place] for place in _live_places(node, wanted)]


def _live_places(node: Node, wanted: Wanted) -> list[int]:
    if isinstance(node.op, While):
        variables, used = _of_loop(node, node.op, wanted)
        return [p for p in range(len(node.inputs)) if p in (variables | used)]
    used = _of_branches(cast("Branching", node.op), _kept(node, wanted), wanted)
    return [0, *(1 + place for place in sorted(used))]


def _kept(node: Node, wanted: Wanted) -> list[int]:
    """The places of the outputs that are wanted; traces hold on to one in any case."""
    found = [place for place, tensor in enumerate(node.outputs) if tensor in wanted]
    return found or [0][: len(node.outputs)]


def _of_branches(op: Branching, places: Sequence[int], wanted: Wanted) -> set[int]:
    """The places of the arguments that branches use."""
    used: set[int] = set()
    for body in op.branches:
        used |= _used(body, [body.outputs[place] for place in places], wanted)
    return used


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
    op = node.op
    if isinstance(op, While):
        return _prune_loop(node, op, wanted)
    return _prune_branching(node, cast("Branching", op), wanted)


def _prune_loop(node: Node, op: While, wanted: Wanted) -> Node:
    count = len(node.outputs)
    variables, used = _of_loop(node, op, wanted)
    kept = sorted(variables)
    places = [*kept, *(place for place in sorted(used) if place >= count)]
    if len(places) == len(node.inputs):
        return node
    attributes: dict[str, Any] = {
        **op.attributes,
        "condition": _with_arguments(op.condition, op.condition.outputs, places),
        "body": _with_arguments(op.body, [op.body.outputs[p] for p in kept], places),
        "Tout": tuple(op.Tout[p] for p in kept),
        "shapes": tuple(op.shapes[p] for p in kept),
    }
    counts = len(kept), len(places) - len(kept)
    return _stand_in(node, While(**attributes), places, kept, counts)


def _prune_branching(node: Node, op: Branching, wanted: Wanted) -> Node:
    kept = _kept(node, wanted)
    used = sorted(_of_branches(op, kept, wanted))
    if len(used) == len(node.inputs) - 1 and len(kept) == len(node.outputs):
        return node
    branches = tuple(
        _with_arguments(body, [body.outputs[p] for p in kept], used) for body in op.branches
    )
    pruned = type(op)(branches=branches, Tout=tuple(op.Tout[p] for p in kept))
    places = [0, *(1 + place for place in used)]
    return _stand_in(node, pruned, places, kept, (1, len(used)))


def _with_arguments(body: Body, outputs: Sequence[Tensor], places: Sequence[int]) -> Body:
    return replace(
        body,
        arguments=tuple(body.arguments[place] for place in places),
        outputs=tuple(outputs),
    )


def _stand_in(
    node: Node, op: Any, places: Sequence[int], kept: Sequence[int], counts: tuple[int, ...]
) -> Node:
    """A node beside the graph, with some of the inputs and outputs of one in it."""
    made = copy(node)
    made.op, made.annotations = op, {**node.annotations, "_counts": counts}
    made.inputs = tuple(node.inputs[place] for place in places)
    made.outputs = tuple(node.outputs[place] for place in kept)
    return made
