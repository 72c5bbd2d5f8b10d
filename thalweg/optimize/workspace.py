"""The graph that the nodes of an optimised step are built in, beside the user's graph.

Its nodes may take tensors of any graph, so that a step can mix nodes that passes built with
unchanged nodes of the user's graph. Each of its nodes stands for a node of the user's graph, which
errors and state are attributed to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from thalweg.graph.graph import Graph
from thalweg.graph.node import Node, Tensor
from thalweg.graph.rewriter import Rewriter
from thalweg.graph.subgraph import Body, SubGraph


class Workspace(SubGraph):
    """A graph whose nodes may use tensors of all other graphs, without captures."""

    def __init__(self) -> None:
        super().__init__(Graph(), "an optimised step")  # its names are its own

    def sees(self, graph: Graph) -> bool:
        """Tensors of any graph can be used."""
        return True

    def capture(self, tensor: Tensor) -> Tensor:
        """A tensor as it is."""
        return tensor

    def replica(
        self, node: Node, inputs: tuple[Tensor, ...] = (), controls: tuple[Node, ...] = ()
    ) -> Node:
        """A copy of a node over other inputs, with the same name. Skips name lookup and scopes, as
        there are many."""
        kept = node.device, node.annotations, node.made_at
        copy = Node(self, node.op, node.name, inputs, controls, *kept, len(self.nodes))
        outputs = enumerate(node.outputs)
        copy.outputs = tuple([Tensor(copy, n, t.dtype, t.shape) for n, t in outputs])
        self.nodes.append(copy)
        copy.original = node
        return copy

    def build(self, node: Node, make: Callable[[], Any]) -> tuple[Any, Sequence[Node]]:
        """The result of graph code, and the nodes that it built: they stand for `node`, are named
        after it and request its device."""
        self._names.add(node.name)
        first = len(self.nodes)
        self._line, self._scope = node.made_at, node.name
        with self.as_default():
            result = make()
        nodes = self.nodes[first:]
        for built in nodes:
            built.device = node.device
            built.original = node
        return result, nodes


class BodyRewriter(Rewriter):
    """Rewrites a body into a new graph, which has copies of the body's arguments. A conditional or
    loop may have inputs that nothing needs, which are not among the body's nodes: they are copied
    as well, and do not run."""

    def __init__(self, body: Body) -> None:
        self.workspace, self._body = Workspace(), body
        self.workspace.outer = body.graph.outer
        super().__init__(self.workspace, replaces=True)
        for tensor in body.arguments:
            self.copy(tensor.op)

    def copy(self, node: Node, name: str | None = None, controls: Iterable[Node] = ()) -> Node:
        """A copy of a node over the new tensors."""
        for tensor in node.inputs:
            if tensor not in self.tensors:
                self.copy(tensor.op)
        return super().copy(node, name, controls)

    def rebuilt(
        self, outputs: Iterable[Tensor], targets: Iterable[Node], added: Iterable[Tensor] = ()
    ) -> Body:
        """The new body, with the copies of outputs and targets, and with more arguments."""
        arguments = [self.tensors[tensor] for tensor in self._body.arguments]
        ends = [self.tensors[tensor] for tensor in outputs]
        targets = self.mapped(targets)
        return Body(self.workspace, (*arguments, *added), tuple(ends), tuple(targets))
