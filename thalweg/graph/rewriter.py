"""Rewriting: nodes are immutable, so a changed graph is a copy with a map from old to new.

A `Rewriter` copies nodes into a graph, in an order that runs, and maps what stands for every
node and tensor: feeds, fetches and order edges follow that map. A copy keeps its name, device,
annotations, control inputs and the user's line; bodies of control nodes are shared, so that a trace
reads from the same body as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from thalweg.graph.graph import Graph
from thalweg.graph.node import Node, Tensor


class Rewriter:
    """Copies of nodes in `graph`; `nodes` and `tensors` map old to new."""

    def __init__(self, graph: Graph, tensors: Mapping[Tensor, Tensor] | None = None) -> None:
        self.graph = graph
        self.tensors: dict[Tensor, Tensor] = dict(tensors or {})
        self.nodes: dict[Node, Node] = {}

    def copy(self, node: Node, name: str | None = None, controls: Iterable[Node] = ()) -> Node:
        """A node over the new tensors, after its own control inputs and after `controls`, which are
        nodes of the new graph. Without a name it keeps its own."""
        inputs = tuple([self.tensors[tensor] for tensor in node.inputs])
        after = dict.fromkeys([*self.mapped(node.controls), *controls])
        made = self.graph.copied(node, inputs, tuple(after), name or f"{node.name}/")
        self.stand_for(node, made)
        return made

    def stand_for(self, node: Node, made: Node) -> None:
        """Let a node of the new graph stand for an old one."""
        self.nodes[node] = made
        self.tensors.update(zip(node.outputs, made.outputs, strict=True))

    def mapped(self, nodes: Iterable[Node]) -> list[Node]:
        """What stands for nodes; those that the new graph has nothing for are left out."""
        return [self.nodes[node] for node in nodes if node in self.nodes]


class RewrittenGraph(Graph):
    """A graph whose nodes stand for nodes of another: errors and state belong to the originals."""

    def __init__(self) -> None:
        super().__init__()
        self._originals: dict[Node, Node] = {}

    def copied(
        self, node: Node, inputs: tuple[Tensor, ...], controls: tuple[Node, ...], name: str
    ) -> Node:
        """A node like one of another graph, which is its original."""
        made = super().copied(node, inputs, controls, name)
        self.attribute(made, node)
        return made

    def attribute(self, made: Node, node: Node) -> None:
        """Have a node stand for one of another graph."""
        self._originals[made] = node.original

    def original(self, node: Node) -> Node:
        """The node of the user's graph that a node stands for."""
        return self._originals.get(node, node)
