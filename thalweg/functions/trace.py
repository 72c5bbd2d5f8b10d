"""The trace tree: a prefix tree of all lazy traces that a thread recorded.

A `TraceNode` is the prefix of a lazy trace up to one op. Its nodes are built once, in a hidden
graph, as graph code builds them. Eager code that takes the same path again finds them there, with
their dtypes and shapes and, where values were read, the planned step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from thalweg.autodiff.custom import CustomGradient
from thalweg.functions.devices import eager_devices, generation
from thalweg.functions.tensors import EagerTensor
from thalweg.graph.analysis.node_effects import is_visible, written_variables
from thalweg.graph.context import ThreadStack
from thalweg.graph.dtypes import DType
from thalweg.graph.graph import Graph
from thalweg.graph.node import Node, Tensor, as_node
from thalweg.graph.op import Source
from thalweg.graph.origin import MadeAt
from thalweg.graph.shapes import TensorShape
from thalweg.graph.signature import parse
from thalweg.graph.subgraph import Argument, SubGraph
from thalweg.ops.core.basic import NoOp
from thalweg.ops.core.buffer import Buffer
from thalweg.ops.random.random import Random
from thalweg.platform.arrays import Array

#: The kinds of trace nodes: an op (and the root), the leaves, a device scope.
OP, VALUE, REFERENCE, LITERAL, SCOPE = range(5)

#: Annotates traces of control nodes that are saved for gradients: they belong to no trace node.
SAVED = "_saved"

_MAX_CONSULTED = 64  # elements of a value that shape inference may read


#: An operator, its operands' positions or values, and its result: the dtype, shape and position of
#: the tensor, and the trace node. All in one object: with cold processor caches, the cost of
#: recording is the number of objects that it reads.
_Prediction = tuple[str | None, int, Any, Any, Any, int, Any, bool]
_NO_PREDICTION: _Prediction = (None, -1, None, None, None, -1, None, False)


@dataclass(slots=True, eq=False, repr=False)
class TraceNode:
    """A prefix of lazy traces: its parent, and the nodes that its last op added."""

    parent: TraceNode | None
    nodes: tuple[Node, ...]
    outputs: tuple[Tensor, ...]
    kind: int
    #: Trace nodes, their guards, and shortcuts to later ones: an operator, a read, a function.
    children: dict[Any, Any] = field(default_factory=dict[Any, Any])
    #: Dtypes and shapes of constants that enter as values.
    generic: set[Any] = field(default_factory=set[Any])
    plans: dict[Any, Any] = field(default_factory=dict[Any, Any])
    prediction: _Prediction = _NO_PREDICTION  # the last operator recorded here
    line: MadeAt | None = None  # of the user's code, for shortcuts to here
    needs_line: bool = False  # shortcuts to here record their own lines: the operator can fail
    pack: Any = None  # packs the outputs; None for a single tensor
    consulted: tuple[int, ...] = ()  # leaves whose values shape inference read
    randoms: tuple[Node, ...] = ()
    traces: list[Node] | None = None  # of control nodes, saved for gradients; None: unknown
    writes: bool = False
    custom_gradients: int = 0  # of the path
    is_special: bool = False  # a call of it has effects, draws numbers or has its own gradient
    path_has_effects: bool = False
    is_plain: bool = False  # its only result is a single tensor: the fast path takes it
    first_op: TraceNode | None = None  # of the path
    count: int = 0  # of positions
    size: int = 0  # of the path, in nodes

    def __post_init__(self) -> None:
        nodes, parent = self.nodes, self.parent
        self.randoms = tuple(node for node in nodes if isinstance(node.op, Random))
        self.writes = any(written_variables(node) for node in nodes)
        self.custom_gradients = sum(isinstance(node.op, CustomGradient) for node in nodes)
        self.path_has_effects = any(map(has_effect, nodes))
        self.is_special = bool(self.randoms or self.custom_gradients) or self.path_has_effects
        self.count, self.size = len(self.outputs), len(nodes)
        if parent is not None:
            self.custom_gradients += parent.custom_gradients
            self.path_has_effects |= parent.path_has_effects
            self.first_op = parent.first_op or (self if self.kind == OP else None)
            self.count += parent.count
            self.size += parent.size

    def path(self, start: TraceNode | None = None) -> list[TraceNode]:
        """The trace nodes after `start` (from the root if None) up to this one, in order."""
        nodes: list[TraceNode] = []
        trace_node: TraceNode | None = self
        while trace_node is not None and trace_node is not start:
            nodes.append(trace_node)
            trace_node = trace_node.parent
        return nodes[::-1]


@dataclass(slots=True, eq=False)
class Guard:
    """The trace nodes for one op, by the values of the leaves that shape inference read."""

    leaves: tuple[int, ...]
    cases: dict[Any, Any] = field(default_factory=dict[Any, Any])

    def key(self, values: Sequence[Any]) -> tuple[bytes, ...]:
        """The elements of the leaves."""
        return tuple(host_array(values[leaf]).tobytes() for leaf in self.leaves)


def host_array(value: Any) -> Any:
    """A value on the host; a device buffer is copied, once."""
    if type(value) is np.ndarray or not isinstance(value, Buffer):
        return value
    return value.lease()


def has_effect(node: Node) -> bool:
    """Whether a node must run even if its outputs are not read."""
    op = node.op
    if node.op.bodies:
        return bool(written_variables(node)) or is_visible(node)
    if not op.stateful or isinstance(op, NoOp | Argument | Reference | Random):
        return False
    return bool(op.parsed.references) or op.host_only or op.blocking


#: The leaves whose values shape inference reads while nodes are built.
consulted: ThreadStack[set[int]] = ThreadStack()


class Leaf(Argument, abstract=True):
    """A value that a lazy trace takes."""

    type_name = "EagerValue"
    number: int
    trace: Any

    def known_value(self) -> Array | None:
        """The value, if it is small and of integers: shape inference may read it."""
        value = self.trace.eager.lazy_trace.leaf_value(self)
        if not isinstance(value, np.ndarray | Buffer):
            return None
        array = cast("Any", value)
        if array.dtype.kind not in "iub" or math.prod(array.shape) > _MAX_CONSULTED:
            return None
        if consulted.top is not None:
            consulted.top.add(self.number)
        return host_array(array)


class ConcreteValue(Argument, abstract=True):
    """The node of an eager tensor that has a value."""

    type_name = "EagerTensor"
    value: Any

    def known_value(self) -> Any:
        """The value."""
        value = host_array(self.value)
        return cast("Any", value) if isinstance(value, np.ndarray) else None


class Reference(Source, abstract=True):
    """A variable that a lazy trace takes by reference: each run has another one."""

    type_name = "EagerReference"
    parsed = parse("-> ref: &dtype")

    def kernel(self, context: Any) -> Any:
        """The variable's cell, from the resources of the step."""
        return context.state(lambda: _missing(context.node))


def _missing(node: Node) -> Any:
    raise AssertionError(f"{node.name} gets its variable from the caller of the step")


class Trace(SubGraph):
    """The hidden graph of a thread, and its trace tree."""

    def __init__(self, eager: Any) -> None:
        super().__init__(eager, "eager code")
        self.eager = eager
        self.generation = generation[0]
        self.root = TraceNode(None, (), (), OP)

    def _share(self, outer: Graph) -> None:
        """Names are this graph's own: only errors show them."""

    def capture(self, tensor: Tensor) -> Tensor:
        """The tensor of this graph for an eager tensor."""
        if type(tensor) is EagerTensor:
            return self.eager.template(tensor)
        if tensor.op.graph is self:
            return tensor
        raise ValueError(f"{tensor!r} is of another graph: eager code cannot know its value.")

    _graph_nodes = Graph._graph_nodes  # no control input is outside

    def colocate_with(self, op: Any, ignore_existing: bool = False) -> AbstractContextManager[None]:
        """Request the device of a node, if it has one."""
        return nullcontext() if op is None else self.device(as_node(op).device)

    def device(self, device_name_or_function: Any) -> AbstractContextManager[None]:
        """Request a device for new nodes; without GPUs there is only the CPU."""
        if not eager_devices().has_accelerators:
            return nullcontext()
        return super().device(device_name_or_function)

    def _place(self, node: Node) -> None:
        """Place a node by the open scopes; a read of a variable stays with the variable."""
        if not (node.inputs and node.inputs[0].dtype.is_ref_dtype):
            super()._place(node)

    def gradient_override(self, type_name: str) -> str | None:
        """The registered gradient that new nodes of this type use instead of the op's own."""
        return super().gradient_override(type_name) or self.eager.gradient_override(type_name)

    def get_collection_ref(self, name: Any) -> list[Any]:
        """Collections are the eager graph's."""
        return self.eager.get_collection_ref(name)

    def add_to_collection(self, name: Any, value: Any) -> None:
        """Collections are the eager graph's."""
        self.eager.add_to_collection(name, value)

    def leaf(self, dtype: DType, shape: TensorShape, number: int) -> Tensor:
        """A new leaf for a value."""
        op = Leaf(dtype=dtype, given_shape=shape, number=number, trace=self)
        return self.add(op, (), [(dtype, shape)], "value").outputs[0]


def add_reference(graph: Graph, dtype: DType, shape: TensorShape, device: str) -> Tensor:
    """A new leaf of a graph for a variable on a device."""
    op = Reference(dtype=dtype.base_dtype, given_shape=shape)
    node = graph.add(op, (), [(dtype.as_ref, shape)], "variable")
    node.device = device
    return node.outputs[0]
