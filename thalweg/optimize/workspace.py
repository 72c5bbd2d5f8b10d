"""Where the nodes of an optimised step are built: a graph beside the user's.

Its nodes may take tensors of any graph as they are, so that a step can mix nodes that a pass made
with those of the user's graph that no pass changed. Each of its nodes stands for a node of the
user's graph, to which errors and state belong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from numpy.typing import NDArray

from thalweg.graph.dtypes import DType
from thalweg.graph.graph import Graph
from thalweg.graph.node import Node, Tensor
from thalweg.graph.rewriter import Rewriter, RewrittenGraph
from thalweg.graph.shapes import TensorShape
from thalweg.graph.subgraph import Body, SubGraph
from thalweg.ops.core.basic import Const


class Workspace(RewrittenGraph, SubGraph):
    """A graph that sees all others and captures nothing."""

    def __init__(self) -> None:
        SubGraph.__init__(self, Graph(), "an optimised step")  # pyright: ignore[reportArgumentType] - its names are its own
        self._originals: dict[Node, Node] = {}

    def sees(self, graph: Graph) -> bool:
        """Tensors of any graph can be used."""
        return True

    def capture(self, tensor: Tensor) -> Tensor:
        """A tensor as it is."""
        return tensor

    def replica(
        self, node: Node, inputs: tuple[Tensor, ...] = (), controls: tuple[Node, ...] = ()
    ) -> Node:
        """A node like another one over other inputs, under the same name. There are many: names are
        not looked up, and no scope is open."""
        made = Node(
            self,
            node.op,
            node.name,
            inputs,
            controls,
            node.device,
            node.annotations,
            node.code,
            node.lasti,
            len(self._order),
        )
        outputs = node.outputs
        if len(outputs) == 1:  # most nodes
            (tensor,) = outputs
            made.outputs = (Tensor(made, 0, tensor.dtype, tensor.shape),)
        else:
            kinds = [(tensor.dtype, tensor.shape) for tensor in outputs]
            made.outputs = tuple([Tensor(made, n, *kind) for n, kind in enumerate(kinds)])
        self._order.append(made)
        self._originals[made] = node.graph.original(node)
        return made

    def constant(self, node: Node, value: NDArray[Any], dtype: DType) -> Node:
        """A constant that stands for a node."""
        name = self._names.unique(f"{node.name}/folded", mark_as_used=True)
        op, place = Const(value=value, dtype=dtype), len(self._order)
        made = Node(self, op, name, (), (), node.device, {}, *node.made_at, place)
        made.outputs = (Tensor(made, 0, dtype, TensorShape(value.shape)),)
        self._order.append(made)
        self.attribute(made, node)
        return made

    def build(self, node: Node, make: Callable[[], Any]) -> tuple[Any, Sequence[Node]]:
        """What graph code gives, and the nodes it added: they stand for `node`, are named after it
        and ask for its device."""
        self._names.add(node.name)
        first = len(self._order)
        self._line, self._scope = node.made_at, node.name
        with self:
            result = make()
        made = self._order[first:]
        for each in made:
            each.device = node.device
            self.attribute(each, node)
        return result, made


def body_rewriter(body: Body) -> BodyRewriter:
    """A rewriter into a new graph for a body, which has the body's arguments."""
    graph = Workspace()
    graph.outer = body.graph.outer
    again = BodyRewriter(graph)
    for tensor in body.arguments:
        again.copy(tensor.op)
    return again


class BodyRewriter(Rewriter):
    """Copies of the nodes of a body. A conditional or loop may take what nothing needs of it, and
    what the body's nodes are therefore without: it is copied all the same, and does not run."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self.workspace = workspace

    def copy(self, node: Node, name: str | None = None, controls: Iterable[Node] = ()) -> Node:
        """A node over the new tensors."""
        for tensor in node.inputs:
            if tensor not in self.tensors:
                self.copy(tensor.op)
        return super().copy(node, name, controls)
