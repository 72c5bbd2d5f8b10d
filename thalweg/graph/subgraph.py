"""Graphs inside graphs: the branches of a conditional, the body of a loop, a traced function.

A `SubGraph` is built while it is the default graph. A tensor of an outer graph that is used inside
is captured: it becomes an argument. A `Body` is a finished one, as a node holds it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from thalweg.graph import nest
from thalweg.graph.dtypes import DType
from thalweg.graph.graph import Graph, flatten_control_inputs, get_default_graph, graphs
from thalweg.graph.node import Node, Tensor, as_node, program_order
from thalweg.graph.op import Op
from thalweg.graph.rewriter import Rewriter
from thalweg.graph.shapes import TensorShape

_MAX_SEEDS = 0x3FFF_0000


class Argument(Op):
    """A value that comes into a sub-graph."""

    private = True
    signature = "-> output: dtype"
    stateful = True  # its value is the call's, never the graph's
    host_only = True
    not_differentiable = True
    dtype: DType
    given_shape: TensorShape

    def shape(self) -> TensorShape:
        return self.given_shape

    def kernel(self, context: Any) -> Any:
        raise AssertionError(f"{context.node.name} gets its value from the node around it")


def first_seed(name: str) -> int:
    """Where the seeds of the random ops of a body with this name begin."""
    return zlib.crc32(name.encode()) & _MAX_SEEDS


class SubGraph(Graph):
    """A graph under construction inside another one."""

    _seeds = 0  # what random ops count from

    def __init__(self, outer: Graph, holder: str) -> None:
        super().__init__()
        self.outer = outer
        self.holder = holder  # what it is part of, for errors: "a branch of tf.cond"
        #: whether what has effects runs though nothing depends on it: so it is inside a function
        self.runs_effects = isinstance(outer, SubGraph) and outer.runs_effects
        #: whether it is a part of a conditional or a loop, not a function
        self.is_control_flow = False
        self.captures: dict[Tensor, Tensor] = {}  # tensor of the outer graph → argument
        self.outer_controls: dict[Node, None] = {}  # nodes of the outer graph to come after
        #: where tensors of graphs that are not around this one come from (see `capture`)
        self.sources: dict[Graph, Callable[[Tensor], Tensor]] = {}
        self._known: dict[Tensor, Tensor] = {}
        self._outside: dict[Tensor, Tensor] = {}  # argument → tensor of the outer graph
        self._share(outer)

    def _share(self, outer: Graph) -> None:
        """Have one space of names, collections and seeds with the graph around."""
        self._names, self._collections = outer._names, outer._collections
        self._scope, self._devices = outer._scope, list(outer._devices)
        self._gradient_overrides = dict(outer._gradient_overrides)
        self._annotations = dict(outer._annotations)
        self.container_name, self.seed = outer.container_name, outer.seed
        self.graph_def_versions = outer.graph_def_versions
        around = 0 if outer.is_eager else outer.version  # eager code counts what asks
        self._seeds = around + first_seed(self._scope)

    @property
    def version(self) -> int:
        """A number that grows with every node. Random ops are seeded by it: other bodies of the
        graph around have other numbers."""
        return self._seeds + len(self._order)

    @property
    def around_control_flow(self) -> Graph:
        """The graph that holds the conditionals and loops which this one is a part of."""
        return self.outer.around_control_flow if self.is_control_flow else self

    def argument(self, dtype: DType, shape: TensorShape, name: str) -> Tensor:
        """A new argument."""
        op = Argument(dtype=dtype, given_shape=shape)
        with self.without_scopes():
            return self.add(op, (), [dtype], [shape], name).outputs[0]

    def sees(self, graph: Graph) -> bool:
        """Whether tensors of a graph can be used in this one."""
        return graph is self or graph in self.sources or self.outer.sees(graph)

    def capture(self, tensor: Tensor) -> Tensor:
        """What stands for a tensor of another graph in this one."""
        if tensor.op.graph is self:
            return tensor
        found = self._known.get(tensor)
        if found is None:
            found = self._known[tensor] = self._captured(tensor)
        return found

    def outside(self, inner: Tensor) -> Tensor | None:
        """The tensor of the graph around this one that an argument stands for, if it is a capture.

        Of a function it is not told: the values of its captures are those of a call.
        """
        if type(self) is not SubGraph:
            return None
        if len(self._outside) != len(self.captures):
            self._outside = {argument: tensor for tensor, argument in self.captures.items()}
        outer = self._outside.get(inner)
        return outer if outer is not None and self.captures.get(outer) is inner else None

    def release(self, tensor: Tensor) -> Tensor:
        """Take back a capture: what stood for the tensor has no value any more."""
        inner = self.captures.pop(tensor)
        self._known = {outer: found for outer, found in self._known.items() if found is not inner}
        return inner

    def _captured(self, tensor: Tensor) -> Tensor:
        graph: Graph = tensor.op.graph
        if _is_copied(tensor) or (graph in self.sources and _is_constant(tensor.op)):
            with self.without_scopes():
                node = tensor.op
                return self.copied(node, (), (), node.name.rpartition("/")[2]).outputs[0]
        if graph in self.sources:
            return self.sources[graph](tensor)
        outer = tensor
        if graph is not self.outer:
            if not isinstance(self.outer, SubGraph):
                raise ValueError(
                    f"{tensor!r} (made at {tensor.op.origin}) must be from the same graph as the "
                    "other inputs, or from one around it. Build both under one "
                    "`with graph.as_default()`"
                )
            outer = self.outer.capture(tensor)
        if outer in self.captures:
            return self.captures[outer]
        inner = self.argument(outer.dtype, outer.shape, outer.op.name.rpartition("/")[2])
        self.captures[outer] = inner
        return inner

    def _graph_nodes(self, values: Iterable[Any]) -> list[Node]:
        """Of nodes to come after: those of this graph; the holder comes after the others."""
        inside: dict[Node, None] = {}
        for value in flatten_control_inputs(values):
            element = value if isinstance(value, Tensor | Node) else self.as_graph_element(value)
            node = as_node(element)
            if node.graph is self:
                inside[node] = None
            else:
                self.comes_after(node)
        return list(inside)

    def comes_after(self, node: Node) -> None:
        """Note that the node this graph is part of has to run after one outside."""
        if node.graph is not self.outer and isinstance(self.outer, SubGraph):
            self.outer.comes_after(node)
        elif node.graph is self.outer:
            self.outer_controls[node] = None

    def _by_name(self, name: str, allow_tensor: bool, allow_operation: bool) -> Any:
        """An element of this graph, or of one around it."""
        try:
            return super()._by_name(name, allow_tensor, allow_operation)
        except KeyError:
            return self.outer.as_graph_element(name, allow_tensor, allow_operation)


def around(graph: Graph) -> Iterator[Graph]:
    """A graph, then those it lies in, inside out."""
    yield graph
    while isinstance(graph, SubGraph):
        graph = graph.outer
        yield graph


def is_body(graph: Graph) -> bool:
    """Whether a graph is a branch or part of a loop, not a function or the outermost one."""
    return type(graph) is SubGraph


def depth(graph: Graph) -> int:
    """In how many others a graph lies."""
    return len(list(around(graph))) - 1


def is_inside(inner: Graph, outer: Graph) -> bool:
    """Whether a graph lies inside another one, at any depth."""
    return inner is not outer and outer in around(inner)


def root(graph: Graph) -> Graph:
    """The outermost graph around one: where variables live."""
    while isinstance(graph, SubGraph):
        graph = graph.outer
    return graph


def _is_constant(node: Node) -> bool:
    return node.type == "Const" and not node.control_inputs


def _is_copied(tensor: Tensor) -> bool:
    """Whether a tensor is a constant that may decide shapes, and that has no gradient."""
    return _is_constant(tensor.op) and not (tensor.dtype.is_floating or tensor.dtype.is_complex)


@dataclass(frozen=True, eq=False)
class Body:
    """A sub-graph that is finished: what comes in, what goes out, what runs besides."""

    graph: SubGraph
    arguments: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    targets: tuple[Node, ...] = ()

    @cached_property
    def blocks(self) -> bool:
        """Whether a node inside may wait for another one."""
        return any(node.op.blocking for node in self.graph.nodes)

    def __repr__(self) -> str:
        return f"<{len(self.graph.nodes)} nodes>"


def inline(body: Body, inputs: Sequence[Tensor]) -> tuple[list[Tensor], list[Node]]:
    """Copies of a body's nodes in the current graph: its outputs and its targets there."""
    rewriter = Rewriter(get_default_graph(), dict(zip(body.arguments, inputs, strict=True)))
    for node in needed(body.outputs, body.targets, rewriter.tensors):
        rewriter.copy(node, node.name)
    return [rewriter.tensors[t] for t in body.outputs], rewriter.mapped(body.targets)


def needed(
    outputs: Iterable[Tensor], targets: Iterable[Node], known: Mapping[Tensor, Any]
) -> list[Node]:
    """The nodes that outputs and targets need, in the order of the program."""
    pending = [tensor.op for tensor in outputs if tensor not in known] + list(targets)
    found: set[Node] = set()
    while pending:
        node = pending.pop()
        if node in found:
            continue
        found.add(node)
        pending += [tensor.op for tensor in node.inputs if tensor not in known]
        pending += [control for control in node.control_inputs if not is_known(control, known)]
    return program_order(found)


def is_known(node: Node, known: Mapping[Tensor, Any]) -> bool:
    """Whether all that a node gives is known, so that waiting for it is no work."""
    return bool(node.outputs) and all(tensor in known for tensor in node.outputs)


def check_open(graph: SubGraph, tensor: Tensor) -> None:
    """Raise where a tensor from inside a finished sub-graph is used outside of it."""
    if graph not in graphs.items:
        raise ValueError(
            f"{tensor!r} (made at {tensor.op.origin}) is inside {graph.holder} and has no value "
            "outside of it: return it from there to use it here"
        )


def lifted(tensor: Tensor) -> Tensor:
    """A tensor of a sub-graph, computed again in the outermost graph around it."""
    graph = tensor.graph
    if not isinstance(graph, SubGraph):
        return tensor
    nodes = needed([tensor], (), dict.fromkeys(graph.captures.values()))
    reached = {tensor, *(source for node in nodes for source in node.inputs)}
    again = {inner: lifted(source) for source, inner in graph.captures.items() if inner in reached}
    with root(graph).as_default():
        for node in nodes:
            if isinstance(node.op, Argument):
                raise ValueError(
                    f"{tensor!r} (made at {tensor.op.origin}) depends on an argument of "
                    f"{graph.holder}, which has no value outside of it: a variable that is made "
                    "there needs an initial value of its own"
                )
            inputs = node.op.parsed.group([again[t] for t in node.inputs], node.input_counts())
            made = nest.flatten(node.op(*inputs, name=node.name.rpartition("/")[2]))
            again.update(zip(node.outputs, made, strict=True))
    return again[tensor]
