"""One traversal of a step's nodes, in their order, that replaces some of them.

A rewrite gets each node over the tensors that stand for its inputs by now, and gives the tensors
that stand for its outputs, or None. A node whose inputs are what they were stays itself. Nodes that
others wait for stay beside what replaces their values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.optimize.step_graph import StepGraph

_MAX_REWRITES = 16  # of one node in one sweep: rules that undo each other end here


@dataclass(frozen=True)
class Edit:
    """A node as it is but for some of its parts."""

    op: Op | None = None
    controls: tuple[Node, ...] | None = None
    inputs: tuple[Tensor, ...] | None = None
    annotations: Mapping[str, Any] | None = None
    before: tuple[Node, ...] = ()  # new nodes that it needs


class Sweep:
    """A traversal under way. Nodes that have an edit are changed before they are rewritten."""

    def __init__(self, graph: StepGraph, edits: Mapping[Node, Edit] | None = None) -> None:
        self.graph = graph
        self.fired: Counter[str] = Counter()
        self._edits = edits or {}
        self._tensors: dict[Tensor, Tensor] = {}
        self._nodes: dict[Node, Node] = {}
        self._made: list[Node] = []
        self._uses: dict[Tensor, int] = {}

    # What a rewrite asks

    def uses(self, tensor: Tensor) -> int:
        """How often a tensor is taken or fetched."""
        known = self._uses.get(tensor)
        return self.graph.uses.get(tensor, 0) if known is None else known

    def build(self, node: Node, make: Callable[[], Any]) -> Any:
        """What graph code gives; its nodes stand for a node and join the step before it."""
        result, made = self.graph.workspace.build(node, make)
        self._made += made
        return result

    def add(self, node: Node) -> None:
        """Have a new node of the workspace join the step here."""
        self._made.append(node)

    def is_open(self, tensor: Tensor) -> bool:
        """Whether the node of a tensor may be looked at: a fed tensor is not what it gives."""
        return tensor not in self.graph.feeds

    # The traversal

    def run(self, rewrite: Rewrite, roots: Container[str] | None = None) -> StepGraph:
        """The step after a rewrite of all nodes whose types are in `roots`."""
        for node in self.graph.nodes:
            current = self._current(node)
            is_root = roots is None or current.op.type_name in roots
            if is_root and node not in self.graph.target_set:
                self._rewrite(node, current, rewrite, roots)
            else:
                self._made.append(current)
        if not self.fired and not self._edits:
            return self.graph
        return self._finished()

    def edited(self) -> StepGraph:
        """The step after the edits alone."""
        return self.run(lambda node, sweep: None, ())

    def _finished(self) -> StepGraph:
        return replace(
            self.graph,
            nodes=tuple(self._made),
            fetches=tuple([self._tensors.get(t, t) for t in self.graph.fetches]),
            targets=tuple([self._nodes.get(n, n) for n in self.graph.targets]),
        ).pruned()

    def _current(self, node: Node) -> Node:
        """A node over what stands for its inputs and control inputs."""
        tensors, nodes, edit = self._tensors, self._nodes, self._edits.get(node)
        if not tensors and not nodes and edit is None:
            return node
        inputs = node.inputs if edit is None or edit.inputs is None else edit.inputs
        for tensor in inputs:
            if tensor in tensors:
                inputs = tuple([tensors.get(t, t) for t in inputs])
                break
        controls = node.controls if edit is None or edit.controls is None else edit.controls
        if controls and nodes:
            controls = tuple(dict.fromkeys([nodes.get(c, c) for c in controls]))
        if edit is None and inputs is node.inputs and controls == node.controls:
            return node
        made = self.graph.workspace.replica(node, inputs, controls)
        if edit is not None:
            self._made += edit.before
            made.op = edit.op or made.op
            made.annotations = made.annotations if edit.annotations is None else edit.annotations
        self._nodes[node] = made
        self._stand_for(node, made.outputs)
        return made

    def _stand_for(self, node: Node, outputs: Sequence[Tensor]) -> None:
        feeds = self.graph.feeds
        for old, new in zip(node.outputs, outputs, strict=True):
            if old not in feeds and old is not new:
                self._tensors[old] = new
                self._uses[new] = self._uses.get(new, 0) + self.uses(old)

    def _rewrite(
        self, node: Node, current: Node, rewrite: Rewrite, roots: Container[str] | None
    ) -> None:
        """Replace a node as long as a rewrite applies to what it became."""
        first: Node | None = current
        place = len(self._made)
        for _ in range(_MAX_REWRITES):
            outputs = rewrite(current, self)
            if outputs is None:
                break
            if first is not None:  # what others wait for stays; its values come from elsewhere
                if node in self.graph.waited:
                    self._made.insert(place, first)
                first = None
            self._stand_for(node, outputs)
            current = outputs[0].op
            is_new = current in self._made[place:]
            if not is_new or len(outputs) > 1 or not (roots is None or current.type in roots):
                break
        if first is not None:
            self._made.append(first)


Rewrite = Callable[[Node, Sweep], "Sequence[Tensor] | None"]
