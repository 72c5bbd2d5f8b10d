"""Specialises a region to concrete shapes: infers the shape of each tensor, and folds constants.

The region's nodes are inferred again, in order, from the shapes (and, for inputs that decide
shapes, the values) of its inputs. What depends on shapes and constants alone is computed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from thalweg.errors import OpError
from thalweg.graph.build import add_node
from thalweg.graph.dtypes import FLOATING, as_dtype
from thalweg.graph.graph import Graph
from thalweg.graph.node import Node, Tensor
from thalweg.graph.shapes import TensorShape
from thalweg.lower.fingerprint import NodeClasses
from thalweg.ops.core.basic import Const, Placeholder
from thalweg.ops.state.state import VariableV2

Array = NDArray[Any]
Shape = tuple[int, ...]


_MAX_FOLDED = 1 << 16  # elements of a folded constant


class NotCompiled(Exception):
    """A node that cannot be compiled, and why: it runs on its NumPy kernel."""

    def __init__(self, node: Node, reason: str) -> None:
        super().__init__(f"{node.name} ({node.type}): {reason}")
        self.node = node
        self.reason = reason


@dataclass(frozen=True)
class Region:
    """Nodes that are compiled together, in execution order, and their inputs and outputs."""

    nodes: tuple[Node, ...]
    inputs: tuple[Tensor, ...]  # values from outside: feeds, results of host ops
    references: tuple[Tensor, ...]  # variables
    outputs: tuple[Tensor, ...]  # read outside: fetches, inputs of host ops
    roots: Mapping[Tensor, Tensor]  # the variable of each reference in the region
    carried: frozenset[Tensor] = frozenset()  # references that are loop variables
    early: tuple[Tensor, ...] = ()  # outputs that others wait for while the rest is computed


@dataclass(frozen=True)
class ControlRegion:
    """A conditional or a loop of a step, with the traces that the step reads of it."""

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


def specialise(
    region: Region, shapes: Mapping[Tensor, Shape], values: Mapping[Tensor, Array]
) -> tuple[Specialised, NodeClasses]:
    """Infer all shapes of a region from those of its inputs; `values` are inputs held fixed.
    Returns the classes of its nodes as well."""
    return _Inference(region, shapes, values).run()


class _Inference:
    """The region's nodes, rebuilt in a graph where every shape is known."""

    def __init__(
        self, region: Region, shapes: Mapping[Tensor, Shape], values: Mapping[Tensor, Array]
    ) -> None:
        self._region = region
        self._shapes = dict(shapes)
        self._values = dict(values)
        self._graph = Graph()
        self._again: dict[Tensor, Tensor] = {}
        self._classes = NodeClasses(self._shapes, self._values)
        self._found: dict[int, list[Shape]] = {}  # the output shapes of the nodes of a class

    def run(self) -> tuple[Specialised, NodeClasses]:
        with self._graph.as_default():
            for tensor in self._region.inputs:
                self._enter(tensor)
            for tensor in self._region.references:
                dtype = tensor.dtype.base_dtype
                shape = TensorShape.of(self._shapes[tensor])
                made = VariableV2(dtype=dtype, given_shape=shape)
                self._again[tensor] = add_node(self._graph, made, (), "v", tensor.op).outputs[0]
            for tensor, root in self._region.roots.items():
                self._again[tensor] = self._again[root]
                self._shapes[tensor] = self._shapes[root]
            for node in self._region.nodes:
                self._infer(node)
        return Specialised(self._region, self._shapes, self._values), self._classes

    def _enter(self, tensor: Tensor) -> None:
        value = self._values.get(tensor)
        if value is not None:
            self._fix(tensor, value)
            return
        shape = TensorShape.of(self._shapes[tensor])
        made = Placeholder(dtype=tensor.dtype.base_dtype, given_shape=shape)
        self._again[tensor] = add_node(self._graph, made, (), "x", tensor.op).outputs[0]

    def _fix(self, tensor: Tensor, value: Array) -> None:
        """Add a tensor whose value is known."""
        made = Const(value=value, dtype=as_dtype(tensor.dtype.base_dtype))
        self._again[tensor] = add_node(self._graph, made, (), "c", tensor.op).outputs[0]
        self._shapes[tensor] = value.shape
        self._values[tensor] = value

    def _infer(self, node: Node) -> None:
        number = self._class_of(node)
        found = None if number is None else self._found.get(number)
        if found is not None:
            self._shapes.update(zip(node.outputs, found, strict=True))
            return
        known = self._known(node)
        if known is not None:
            for tensor, value in zip(node.outputs, known, strict=True):
                self._fix(tensor, value)
            return
        self._make(node)
        if number is not None:
            self._found[number] = [self._shapes[tensor] for tensor in node.outputs]

    def _class_of(self, node: Node) -> int | None:
        """The class of a node, where that determines its shapes and that its outputs are not known:
        some integers may be known, and a node with control inputs never is."""
        if isinstance(node.op, Const) or node.controls:
            return None
        for tensor in node.inputs:
            if tensor.dtype.base_dtype not in FLOATING and tensor not in self._values:
                return None
        return self._classes.of(node)

    def _tensor(self, tensor: Tensor) -> Tensor:
        """The rebuilt tensor."""
        if tensor not in self._again:
            self._enter(tensor)
        return self._again[tensor]

    def _make(self, node: Node) -> None:
        """Infer the output shapes of a node by rebuilding it."""
        flat = [self._tensor(tensor) for tensor in node.inputs]
        grouped = node.op.parsed.group(flat, node.input_counts())
        try:
            made = add_node(self._graph, node.op, tuple(grouped), "n", node)
        except (ValueError, TypeError, OpError) as error:
            raise NotCompiled(node, str(error)) from error
        for tensor, again in zip(node.outputs, made.outputs, strict=True):
            if not again.shape.is_fully_defined():
                raise NotCompiled(node, f"the shape of {tensor.name} is known only when it ran")
            self._again[tensor] = again
            self._shapes[tensor] = cast("Shape", tuple(again.shape.as_list()))

    def _known(self, node: Node) -> list[Array] | None:
        """The outputs of a node, if they depend on shapes and constants alone."""
        op = node.op
        if isinstance(op, Const):
            return [op.numpy()]
        if op.stateful or not op.has("numpy") or node.controls:
            return None
        flat = [self._tensor(tensor) for tensor in node.inputs]
        grouped = op.parsed.group(flat, node.input_counts())
        known: Any = getattr(op, "known_value", None)
        result: Any = None if known is None else known(*grouped)
        if result is None and node.inputs and self._values.keys() >= set(node.inputs):
            result = _evaluated(node, [self._values[tensor] for tensor in node.inputs])
        if result is None:
            return None
        parts = _flat(cast("Any", result)) if isinstance(result, list | tuple) else [result]
        outputs: list[Array] = [np.asarray(part) for part in parts]
        return outputs if sum(output.size for output in outputs) <= _MAX_FOLDED else None


def _evaluated(node: Node, values: list[Array]) -> Any:
    try:
        with np.errstate(all="ignore"):
            return node.op.numpy(*node.op.parsed.group(values, node.input_counts()))
    except Exception:  # the step raises it when it runs the node
        return None


def _flat(parts: Sequence[Any]) -> list[Any]:
    flat: list[Any] = []
    for part in parts:
        flat += part if isinstance(part, list) else [part]
    return flat
