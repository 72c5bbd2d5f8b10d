"""Rewriting: nodes are immutable, so a changed graph is a copy with a map from old to new.

A `Rewriter` copies nodes into a graph in topological order and maps every node and tensor to its
replacement: feeds, fetches and order edges follow that map. A copy keeps its name, device,
annotations, control inputs and origin. Bodies of control nodes are shared, so that traces still
refer to their tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from thalweg.graph.graph import Graph
from thalweg.graph.node import Node, Tensor


class Rewriter:
    """Copies nodes into `graph`; `nodes` and `tensors` map old to new. With `replaces`, a node is
    the original of its copy."""

    def __init__(
        self, graph: Graph, tensors: Mapping[Tensor, Tensor] | None = None, replaces: bool = False
    ) -> None:
        self.graph, self._replaces = graph, replaces
        self.tensors: dict[Tensor, Tensor] = dict(tensors or {})
        self.nodes: dict[Node, Node] = {}

    def copy(self, node: Node, name: str | None = None, controls: Iterable[Node] = ()) -> Node:
        """Copy a node over the new tensors. Its control inputs are the new ones of its own and
        `controls`, nodes of the new graph. It keeps its name if none is given."""
        inputs = tuple([self.tensors[tensor] for tensor in node.inputs])
        merged = dict.fromkeys([*self.mapped(node.controls), *controls])
        copy = self.graph.copied(node, inputs, tuple(merged), name or f"{node.name}/")
        if self._replaces:
            copy.original = node
        self.replace(node, copy)
        return copy

    def replace(self, node: Node, new: Node) -> None:
        """Map an old node and its outputs to a new node."""
        self.nodes[node] = new
        self.tensors.update(zip(node.outputs, new.outputs, strict=True))

    def mapped(self, nodes: Iterable[Node]) -> list[Node]:
        """The new nodes of old ones; nodes without a new one are left out."""
        return [self.nodes[node] for node in nodes if node in self.nodes]
