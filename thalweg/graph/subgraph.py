"""Sub-graphs: the branches of a conditional, the body of a loop, a traced function.

A `SubGraph` is built while it is the default graph. It captures tensors of outer graphs that its
nodes use: each becomes an argument. A `Body` is a finished sub-graph, held by a node.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from thalweg.graph import nest
from thalweg.graph.dtypes import DType
from thalweg.graph.graph import Graph, get_default_graph
from thalweg.graph.node import Node, Tensor, as_node, program_order, reached
from thalweg.graph.op import Source
from thalweg.graph.rewriter import Rewriter
from thalweg.graph.shapes import TensorShape

_MAX_SEEDS = 0x3FFF_0000


class Argument(Source):
    """An argument of a sub-graph."""

    private = True

    def kernel(self, context: Any) -> Any:
        raise AssertionError(f"{context.node.name} gets its value from the node around it")


def first_seed(name: str) -> int:
    """The first op seed of a body with this name."""
    return zlib.crc32(name.encode()) & _MAX_SEEDS


class SubGraph(Graph):
    """A graph inside another graph."""

    _seeds = 0  # the first op seed

    def __init__(self, outer: Graph, holder: str) -> None:
        super().__init__()
        self.outer = outer
        self.holder = holder  # for errors, such as "a branch of tf.cond"
        #: whether nodes with effects run even if no output depends on them, as in functions
        self.runs_effects = isinstance(outer, SubGraph) and outer.runs_effects
        #: whether it is part of a conditional or loop, not a function
        self.is_control_flow = False
        self.captures: dict[Tensor, Tensor] = {}  # tensor of the outer graph → argument
        self.outer_controls: dict[Node, None] = {}  # control inputs of the node that holds this
        #: graphs that do not enclose this one → a function that captures their tensors
        self.sources: dict[Graph, Callable[[Tensor], Tensor]] = {}
        self._known: dict[Tensor, Tensor] = {}  # results of `capture`
        self._outside: dict[Tensor, Tensor] = {}  # argument → captured tensor
        self._share(outer)

    def _share(self, outer: Graph) -> None:
        """Share names, collections and seeds with the outer graph; copy its open scopes."""
        self._names, self._collections = outer._names, outer._collections
        self._scope, self._devices = outer._scope, list(outer._devices)
        self._gradient_overrides = dict(outer._gradient_overrides)
        self._annotations = dict(outer._annotations)
        self.container_name, self.seed = outer.container_name, outer.seed
        self.graph_def_versions = outer.graph_def_versions
        outer_seeds = 0 if outer.is_eager else outer.version  # an eager version grows with queries
        self._seeds = outer_seeds + first_seed(self._scope)

    @property
    def version(self) -> int:
        """A number that increases with every node. It seeds random ops, so that bodies of one outer
        graph draw different numbers."""
        return self._seeds + len(self.nodes)

    @property
    def outside_control_flow(self) -> Graph:
        """The innermost graph around this one that is no part of a conditional or loop."""
        return self.outer.outside_control_flow if self.is_control_flow else self

    def argument(self, dtype: DType, shape: TensorShape, name: str) -> Tensor:
        """Add an argument."""
        op = Argument(dtype=dtype, given_shape=shape)
        with self.without_scopes():
            return self.add(op, (), [(dtype, shape)], name).outputs[0]

    def sees(self, graph: Graph) -> bool:
        """Whether nodes of this graph can use tensors of another graph."""
        return graph is self or graph in self.sources or self.outer.sees(graph)

    def capture(self, tensor: Tensor) -> Tensor:
        """The tensor of this graph with the value of a tensor of another graph."""
        if tensor.op.graph is self:
            return tensor
        inner = self._known.get(tensor)
        if inner is None:
            inner = self._known[tensor] = self._capture(tensor)
        return inner

    def outside(self, inner: Tensor) -> Tensor | None:
        """The tensor of the outer graph that `inner` captures, if it is a capture.

        None in a function, whose captures have another value in each call.
        """
        return self._outside.get(inner) if type(self) is SubGraph else None

    def release(self, tensor: Tensor) -> Tensor:
        """Remove a capture; returns its argument, which has no value any more."""
        inner = self.captures.pop(tensor)
        self._outside.pop(inner, None)
        self._known = {outer: kept for outer, kept in self._known.items() if kept is not inner}
        return inner

    def _capture(self, tensor: Tensor) -> Tensor:
        graph: Graph = tensor.op.graph
        if _is_copied(tensor) or (graph in self.sources and is_constant(tensor.op)):
            with self.without_scopes():
                node = tensor.op
                return self.copied(node, (), (), node.name.rpartition("/")[2]).outputs[0]
        if graph in self.sources:
            return self.sources[graph](tensor)
        return self.captured_argument(self.outer.capture(tensor))

    def captured_argument(self, outer: Tensor) -> Tensor:
        """The argument for a tensor of the outer graph, added if there is none."""
        if outer not in self.captures:
            name = outer.op.name.rpartition("/")[2]
            inner = self.captures[outer] = self.argument(outer.dtype, outer.shape, name)
            self._outside[inner] = outer
        return self.captures[outer]

    def _graph_nodes(self, values: Iterable[Any]) -> list[Node]:
        """The control inputs in this graph; the others become control inputs of the holder."""
        inside: dict[Node, None] = {}
        for value in values:
            element = value if isinstance(value, Tensor | Node) else self.as_graph_element(value)
            node = as_node(element)
            if node.graph is self:
                inside[node] = None
            else:
                self.comes_after(node)
        return list(inside)

    def comes_after(self, node: Node) -> None:
        """Make an outer node a control input of the node that holds this graph."""
        if node.graph is not self.outer and isinstance(self.outer, SubGraph):
            self.outer.comes_after(node)
        elif node.graph is self.outer:
            self.outer_controls[node] = None

    def _by_name(self, name: str, allow_tensor: bool, allow_operation: bool) -> Any:
        """An element of this graph or of an outer one."""
        try:
            return super()._by_name(name, allow_tensor, allow_operation)
        except KeyError:
            return self.outer.as_graph_element(name, allow_tensor, allow_operation)


def enclosing_graphs(graph: Graph) -> Iterator[Graph]:
    """A graph, then its outer graphs, from the inside out."""
    yield graph
    while isinstance(graph, SubGraph):
        graph = graph.outer
        yield graph


def is_body(graph: Graph) -> bool:
    """Whether a graph is part of a conditional or loop, not a function or the outermost graph."""
    return type(graph) is SubGraph


def depth(graph: Graph) -> int:
    """The number of graphs around a graph."""
    return len(list(enclosing_graphs(graph))) - 1


def root(graph: Graph) -> Graph:
    """The outermost graph around a graph, which holds its variables."""
    *_, outermost = enclosing_graphs(graph)
    return outermost


def is_constant(node: Node) -> bool:
    """Whether a node is a constant, which waits for nothing."""
    return node.type == "Const" and not node.controls


def _is_copied(tensor: Tensor) -> bool:
    """Whether a tensor is copied instead of captured: a constant that may determine a shape, of a
    dtype without gradients."""
    return is_constant(tensor.op) and not (tensor.dtype.is_floating or tensor.dtype.is_complex)


@dataclass(frozen=True, eq=False)
class Body:
    """A finished sub-graph: its arguments, its outputs, and the nodes that run besides."""

    graph: SubGraph
    arguments: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    targets: tuple[Node, ...] = ()

    @cached_property
    def blocks(self) -> bool:
        """Whether a node inside may block."""
        return any(node.op.blocking for node in self.graph.nodes)

    def bound(self, holder: Node) -> dict[Tensor, Tensor]:
        """Its arguments, with the inputs of the node that holds it: the last ones."""
        first = len(holder.inputs) - len(self.arguments)
        return dict(zip(self.arguments, holder.inputs[first:], strict=True))

    def selected(self, arguments: Iterable[int], outputs: Iterable[Tensor]) -> Body:
        """The same nodes with some of the arguments, by index, and other outputs."""
        chosen = tuple(self.arguments[index] for index in arguments)
        return Body(self.graph, chosen, tuple(outputs), self.targets)

    def __repr__(self) -> str:
        return f"<{len(self.graph.nodes)} nodes>"


def inline(body: Body, inputs: Sequence[Tensor]) -> tuple[list[Tensor], list[Node]]:
    """Copy a body's nodes into the default graph; returns its outputs and targets there."""
    rewriter = Rewriter(get_default_graph(), dict(zip(body.arguments, inputs, strict=True)))
    for node in needed(body.outputs, body.targets, rewriter.tensors):
        rewriter.copy(node, node.name)
    return [rewriter.tensors[t] for t in body.outputs], rewriter.mapped(body.targets)


def needed(
    outputs: Iterable[Tensor], targets: Iterable[Node], known: Mapping[Tensor, Any]
) -> list[Node]:
    """The nodes that outputs and targets depend on, up to known tensors, in program order."""

    def sources(node: Node) -> list[Node]:
        controls = [control for control in node.controls if not is_known(control, known)]
        return [*(tensor.op for tensor in node.inputs if tensor not in known), *controls]

    starts = [tensor.op for tensor in outputs if tensor not in known]
    return program_order(reached([*starts, *targets], sources))


def is_known(node: Node, known: Mapping[Tensor, Any]) -> bool:
    """Whether all outputs of a node are known, so that it need not run."""
    return bool(node.outputs) and all(tensor in known for tensor in node.outputs)


def lifted(tensor: Tensor) -> Tensor:
    """A tensor of a sub-graph, recomputed in the outermost graph without control dependencies."""
    graph = tensor.graph
    if not isinstance(graph, SubGraph):
        return tensor
    captured = set(graph.captures.values())
    used = reached([tensor], lambda each: () if each in captured else each.op.inputs)
    nodes = program_order({each.op for each in used - captured})
    copies = {inner: lifted(source) for source, inner in graph.captures.items() if inner in used}
    with root(graph).as_default():
        for node in nodes:
            if isinstance(node.op, Argument):
                raise ValueError(
                    f"{tensor!r} (made at {tensor.op.origin}) depends on an argument of "
                    f"{graph.holder}, which has no value outside of it: a variable that is made "
                    "there needs an initial value of its own"
                )
            inputs = node.grouped([copies[t] for t in node.inputs])
            outputs = nest.flatten(node.op(*inputs, name=node.name.rpartition("/")[2]))
            copies.update(zip(node.outputs, outputs, strict=True))
    return copies[tensor]
