"""Specialises a region to concrete shapes: infers the shape of each tensor, and folds constants.

The region's nodes are rebuilt in order in a graph where the shapes of all inputs are known, and
the values of those that determine shapes. What depends on shapes and constants alone is folded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from thalweg.errors import OpError
from thalweg.graph.analysis.evaluate import known_outputs, tried_outputs_of
from thalweg.graph.build import add_node
from thalweg.graph.dtypes import FLOATING, as_dtype
from thalweg.graph.graph import Graph
from thalweg.graph.node import Node, Tensor
from thalweg.graph.shapes import TensorShape
from thalweg.lower.fingerprint import NodeClasses
from thalweg.ops.core.basic import Const, Placeholder
from thalweg.ops.state.state import VariableV2
from thalweg.platform.arrays import Array

Shape = tuple[int, ...]


_MAX_FOLDED = 1 << 16  # elements of a folded constant


class NotCompiled(Exception):
    """A node cannot be compiled, for a reason; it runs on its NumPy kernel."""

    def __init__(self, node: Node, reason: str) -> None:
        super().__init__(f"{node.name} ({node.type}): {reason}")
        self.node = node
        self.reason = reason


@dataclass(frozen=True)
class Region:
    """Nodes that are compiled together, in execution order, and their inputs and outputs."""

    nodes: tuple[Node, ...]
    inputs: tuple[Tensor, ...]  # values from outside: feeds, results of host ops
    references: tuple[Tensor, ...]  # variables that it reads or writes
    outputs: tuple[Tensor, ...]  # read outside: fetches, inputs of host ops
    roots: Mapping[Tensor, Tensor]  # the variable of each reference in the region
    carried: frozenset[Tensor] = frozenset()  # references that are loop variables
    sends: tuple[Node, ...] = ()  # Sends of its outputs

    @cached_property
    def early(self) -> tuple[Tensor, ...]:
        """The outputs that are delivered before the region ends."""
        return tuple(dict.fromkeys(send.inputs[0] for send in self.sends))


@dataclass(frozen=True)
class ControlRegion:
    """A conditional or a loop of a step, with those of its traces that the step reads."""

    node: Node  # pruned to the variables, inputs and outputs that the step uses
    nodes: tuple[Node, ...]  # the node of the graph, and its traces
    inputs: tuple[Tensor, ...]  # values and references, as the node takes them
    outputs: tuple[Tensor, ...]  # read outside: outputs of the node, traces


@dataclass(frozen=True)
class Specialised:
    """A region with the shapes of all its tensors, and the values of those that are known."""

    region: Region
    shapes: Mapping[Tensor, Shape]
    values: Mapping[Tensor, Array]  # folded constants

    def is_known(self, node: Node) -> bool:
        """Whether all outputs of a node are folded constants."""
        return bool(node.outputs) and self.values.keys() >= set(node.outputs)


def specialise(region: Region, shapes: Mapping[Tensor, Shape]) -> tuple[Specialised, NodeClasses]:
    """Infer all shapes of a region from those of its inputs. Returns the classes of its nodes as
    well."""
    return _Inference(region, shapes).run()


class _Inference:
    """The region's nodes, rebuilt in a graph where every shape is known."""

    def __init__(self, region: Region, shapes: Mapping[Tensor, Shape]) -> None:
        self._region = region
        self._shapes = dict(shapes)
        self._values: dict[Tensor, Array] = {}
        self._graph = Graph()
        self._rebuilt: dict[Tensor, Tensor] = {}
        self._classes = NodeClasses(self._shapes, self._values)
        self._class_shapes: dict[int, list[Shape]] = {}  # the output shapes of the nodes of a class

    def run(self) -> tuple[Specialised, NodeClasses]:
        with self._graph.as_default():
            for tensor in self._region.references:
                self._add_source(VariableV2, tensor)
            for tensor, root in self._region.roots.items():
                self._rebuilt[tensor] = self._rebuilt[root]
                self._shapes[tensor] = self._shapes[root]
            for node in self._region.nodes:
                self._infer(node)
        return Specialised(self._region, self._shapes, self._values), self._classes

    def _add_source(self, kind: type[Placeholder | VariableV2], tensor: Tensor) -> None:
        """Rebuild a tensor as a source of its shape."""
        shape = TensorShape.of(self._shapes[tensor])
        op = kind(dtype=tensor.dtype.base_dtype, given_shape=shape)
        self._rebuilt[tensor] = add_node(self._graph, op, (), "x", tensor.op).outputs[0]

    def _add_constant(self, tensor: Tensor, value: Array) -> None:
        """Rebuild a tensor of known value as a constant."""
        op = Const(value=value, dtype=as_dtype(tensor.dtype.base_dtype))
        self._rebuilt[tensor] = add_node(self._graph, op, (), "c", tensor.op).outputs[0]
        self._shapes[tensor], self._values[tensor] = value.shape, value

    def _infer(self, node: Node) -> None:
        number = self._class_of(node)
        shapes = None if number is None else self._class_shapes.get(number)
        if shapes is not None:
            self._shapes.update(zip(node.outputs, shapes, strict=True))
            return
        folded = self._folded(node)
        if folded is not None:
            for tensor, value in zip(node.outputs, folded, strict=True):
                self._add_constant(tensor, value)
            return
        self._rebuild(node)
        if number is not None:
            self._class_shapes[number] = [self._shapes[tensor] for tensor in node.outputs]

    def _class_of(self, node: Node) -> int | None:
        """The class of a node, if its outputs cannot be folded and its class determines their
        shapes; else None. Integers may be known in the rebuilt graph without being in `values`, and
        a node with control inputs is never folded."""
        if isinstance(node.op, Const) or node.controls:
            return None
        for tensor in node.inputs:
            if tensor.dtype.base_dtype not in FLOATING and tensor not in self._values:
                return None
        return self._classes.of(node)

    def _tensor(self, tensor: Tensor) -> Tensor:
        """The tensor in the rebuilt graph."""
        if tensor not in self._rebuilt:
            self._add_source(Placeholder, tensor)
        return self._rebuilt[tensor]

    def _rebuild(self, node: Node) -> None:
        """Infer the output shapes of a node by rebuilding it."""
        inputs = [self._tensor(tensor) for tensor in node.inputs]
        try:
            rebuilt = add_node(self._graph, node.op, tuple(node.grouped(inputs)), "n", node)
        except (ValueError, TypeError, OpError) as error:
            raise NotCompiled(node, str(error)) from error
        for tensor, new in zip(node.outputs, rebuilt.outputs, strict=True):
            shape = new.shape.whole
            if shape is None:
                raise NotCompiled(node, f"the shape of {tensor.name} is known only when it ran")
            self._rebuilt[tensor], self._shapes[tensor] = new, shape

    def _folded(self, node: Node) -> list[Array] | None:
        """The outputs of a node, if they depend on shapes and constants alone and are small."""
        op = node.op
        if isinstance(op, Const):
            return [op.numpy()]
        if op.stateful or not op.has("numpy") or node.controls:
            return None
        outputs = known_outputs(node, [self._tensor(tensor) for tensor in node.inputs])
        if outputs is None and node.inputs and self._values.keys() >= set(node.inputs):
            outputs = tried_outputs_of(node, [self._values[tensor] for tensor in node.inputs])
        is_small = outputs is not None and sum(output.size for output in outputs) <= _MAX_FOLDED
        return outputs if is_small else None
