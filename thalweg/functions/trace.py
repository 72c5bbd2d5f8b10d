"""What eager code recorded before, as a tree: each continuation of a lazy trace is a child.

A `TraceNode` is a lazy trace up to some op. Its nodes were made once, in a hidden graph, as graph
code makes them; when eager code takes the same path again, it finds them there, with their shapes
and dtypes and, where it read values, the plan of the step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from thalweg.autodiff.custom import CustomGradient
from thalweg.functions.devices import eager_devices, generation
from thalweg.graph.analysis.node_effects import is_visible, written_variables
from thalweg.graph.context import ThreadStack
from thalweg.graph.dtypes import DType
from thalweg.graph.graph import Graph, flatten_control_inputs
from thalweg.graph.node import Node, Tensor, as_node, flatten_nodes
from thalweg.graph.op import Op
from thalweg.graph.origin import MadeAt
from thalweg.graph.shapes import TensorShape
from thalweg.graph.signature import parse
from thalweg.graph.subgraph import SubGraph
from thalweg.ops.core.basic import NoOp
from thalweg.ops.core.buffer import Buffer
from thalweg.ops.random.random import Random

Array = NDArray[Any]

NO_LEAF, VALUE, REFERENCE, LITERAL, SCOPE = 0, 1, 2, 3, 4

_MAX_CONSULTED = 64  # elements of a value that shapes may depend on


#: An operator, its operands' numbers or values, and where it leads: the dtype, shape and number of
#: the tensor, and the trace node. All in one object: after a step that filled the caches with its
#: data, what recording costs is the number of objects that it reads.
_Predicted = tuple[str | None, int, Any, Any, Any, int, Any]
_NOTHING_AHEAD: _Predicted = (None, -1, None, None, None, -1, None)


class TraceNode:
    """A lazy trace: what came before, and what its last op added."""

    __slots__ = (
        "children",
        "consulted",
        "count",
        "customs",
        "effects",
        "first",
        "generic",
        "has_effects",
        "is_plain",
        "is_special",
        "leaf",
        "line",
        "nodes",
        "outputs",
        "parent",
        "plans",
        "predicted",
        "randoms",
        "result",
        "shortcuts",
        "size",
        "writes",
    )

    def __init__(
        self,
        parent: TraceNode | None,
        nodes: tuple[Node, ...],
        outputs: tuple[Tensor, ...],
        leaf: int,
    ) -> None:
        self.parent = parent
        self.nodes = nodes
        self.outputs = outputs
        self.leaf = leaf
        self.children: dict[Any, Any] = {}
        self.generic: set[Any] = set()  # kinds of constants that change from time to time
        self.plans: dict[Any, Any] = {}
        self.shortcuts: dict[Any, Any] = {}  # where operators lead, perhaps past a constant
        self.predicted: _Predicted = _NOTHING_AHEAD  # where the last operator led
        self.line: MadeAt | None = None  # of the user's code that a shortcut to here was found for
        self.result: Any = None  # how outputs are given back, where that is not a single tensor
        self.consulted: tuple[int, ...] = ()  # the leaves whose values decided something here
        self.randoms = tuple(node for node in nodes if isinstance(node.op, Random))
        self.writes = any(written_variables(node) for node in nodes)
        customs = sum(isinstance(node.op, CustomGradient) for node in nodes)
        self.customs: int = customs + (0 if parent is None else parent.customs)
        self.is_special = bool(self.randoms) or self.writes or customs > 0
        self.has_effects = any(has_effect(node) for node in nodes)
        self.effects: bool = self.has_effects or (parent is not None and parent.effects)
        self.is_plain = False  # a single tensor and nothing else comes of it
        before = None if parent is None else parent.first
        is_op = leaf == NO_LEAF and parent is not None
        self.first: TraceNode | None = before or (
            self if is_op else None
        )  # the first op on the way
        self.count: int = len(outputs) + (0 if parent is None else parent.count)  # of positions
        self.size: int = len(nodes) + (0 if parent is None else parent.size)

    def path(self, start: TraceNode | None = None) -> list[TraceNode]:
        """The trace nodes after `start` (all if None) up to here, in order."""
        found: list[TraceNode] = []
        trace_node: TraceNode | None = self
        while trace_node is not None and trace_node is not start:
            found.append(trace_node)
            trace_node = trace_node.parent
        return found[::-1]


class Guard:
    """Places that differ by the values of some leaves, which decided shapes."""

    __slots__ = ("cases", "leaves")

    def __init__(self, leaves: tuple[int, ...]) -> None:
        self.leaves = leaves
        self.cases: dict[Any, Any] = {}

    def key(self, values: Sequence[Any]) -> tuple[bytes, ...]:
        """What the leaves hold."""
        return tuple(host_array(values[leaf]).tobytes() for leaf in self.leaves)


def host_array(value: Any) -> Any:
    """A value on the host: one on a device is copied, once."""
    if type(value) is np.ndarray or not isinstance(value, Buffer):
        return value
    return value.lease()


def has_effect(node: Node) -> bool:
    """Whether a node must run even if nobody reads what it gives."""
    op = node.op
    if node.op.bodies:
        return bool(written_variables(node)) or is_visible(node)
    if not op.stateful or isinstance(op, NoOp | Source | Random):
        return False
    return bool(op.parsed.references) or op.host_only or op.blocking


#: The leaves whose values are asked for while nodes are made.
consulted: ThreadStack[set[int]] = ThreadStack()


class Source(Op, abstract=True):
    """What stands for something from outside a lazy trace. It is in no graph that users see."""

    parsed = parse("-> output: dtype")
    result = tuple
    stateful = True
    host_only = True
    not_differentiable = True
    dtype: DType
    given_shape: TensorShape

    def shape(self) -> TensorShape:
        return self.given_shape

    def kernel(self, context: Any) -> Any:
        raise AssertionError(f"{context.node.name} gets its value from the lazy trace")


class Leaf(Source, abstract=True):
    """A value that was known before the lazy trace began."""

    type_name = "EagerValue"
    number: int
    trace: Any

    def known_value(self) -> Array | None:
        """The value, where it is one that shapes may depend on."""
        value = self.trace.value(self)
        if not isinstance(value, np.ndarray | Buffer):
            return None
        array = cast("Any", value)
        if array.dtype.kind not in "iub" or math.prod(array.shape) > _MAX_CONSULTED:
            return None
        if consulted.top is not None:
            consulted.top.add(self.number)
        return host_array(array)


class Held(Source, abstract=True):
    """A value, to whoever asks for the node of an eager tensor that has one."""

    type_name = "EagerTensor"
    value: Any

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def known_value(self) -> Any:
        """The value."""
        value = host_array(self.value)
        return cast("Any", value) if isinstance(value, np.ndarray) else None

    def kernel(self, context: Any) -> Any:
        return self.value


class Reference(Source, abstract=True):
    """A variable that was there before the lazy trace began."""

    type_name = "EagerReference"
    parsed = parse("-> ref: &dtype")

    def kernel(self, context: Any) -> Any:
        """The variable that the run was given."""
        return context.state(partial(super().kernel, context))


class Trace(SubGraph):
    """The hidden graph of a thread, and the tree over its nodes."""

    def __init__(self, eager: Any) -> None:
        super().__init__(eager, "eager code")
        self.eager = eager
        self.generation = generation[0]
        self.root = TraceNode(None, (), (), NO_LEAF)

    def _share(self, outer: Graph) -> None:
        """Names are this graph's own: nobody sees them but in errors."""

    def value(self, leaf: Leaf) -> Any:
        """What a leaf holds in the span that is recorded now; None if it is no leaf of that."""
        return self.eager.lazy_trace.leaf_value(leaf)

    def sees(self, graph: Graph) -> bool:
        """Whether tensors of a graph can be used in this one."""
        return graph is self or graph is self.eager

    def capture(self, tensor: Tensor) -> Tensor:
        """What stands for an eager tensor."""
        if type(tensor) is Tensor and tensor.op.graph is self:
            return tensor
        return self.eager.captured(tensor)

    def _graph_nodes(self, values: Iterable[Any]) -> list[Node]:
        """Nodes to come after, all of which are of this graph."""
        found = [self.as_graph_element(value) for value in flatten_control_inputs(values)]
        return list(dict.fromkeys(flatten_nodes(found)))

    def colocate_with(self, op: Any, ignore_existing: bool = False) -> AbstractContextManager[None]:
        """Ask for the device of a node, where it has one."""
        if op is None or not eager_devices().has_gpus:
            return nullcontext()
        return self.device(as_node(op).device)

    def device(self, device_name_or_function: Any) -> AbstractContextManager[None]:
        """Ask for a device for new nodes: without GPUs, everything is in one place."""
        if not eager_devices().has_gpus:
            return nullcontext()
        return super().device(device_name_or_function)

    def _place(self, node: Node) -> None:
        """Reads of variables are where these are, whatever scopes ask for."""
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

    def prevent_feeding(self, tensor: Tensor) -> None:
        """Nothing is fed."""

    def leaf(self, dtype: DType, shape: TensorShape, number: int) -> Tensor:
        """A node for a value from outside."""
        op = Leaf(dtype=dtype, given_shape=shape, number=number, trace=self)
        return self.add(op, (), [dtype], [shape], "value").outputs[0]

    def reference(self, dtype: DType, shape: TensorShape, device: str) -> Tensor:
        """A node for a variable from outside, which is on a device."""
        op = Reference(dtype=dtype.base_dtype, given_shape=shape)
        made = self.add(op, (), [dtype.as_ref], [shape], "variable").outputs[0]
        made.op.device = device
        return made


def steps(path: Sequence[TraceNode]) -> Iterator[TraceNode]:
    """The trace nodes of a path that ops were recorded at."""
    return (each for each in path if each.leaf == NO_LEAF and each.parent is not None)
