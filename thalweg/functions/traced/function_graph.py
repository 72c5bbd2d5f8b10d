"""The graph of a traced function: its captures, the order of its effects, and its results.

Tensors of all enclosing graphs are captured. A variable is captured by reference and read where the
function reads it, so that a read sees the writes before it. Nodes with effects are recorded in
program order, and each depends on those before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

import numpy as np

from thalweg.control.bodies import components
from thalweg.functions.tensors import EagerTensor
from thalweg.graph import nest
from thalweg.graph.analysis.node_effects import is_read, is_visible, written_variables
from thalweg.graph.collections import GraphKeys
from thalweg.graph.convert import has_conversion
from thalweg.graph.graph import Graph, graphs
from thalweg.graph.names import Names
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.subgraph import SubGraph, first_seed
from thalweg.variables.scope import SCOPES_KEY, STORE_KEY

#: Collections that a function shares with the outer graph.
_SHARED: set[Any] = {
    SCOPES_KEY,
    STORE_KEY,
    GraphKeys.GLOBAL_VARIABLES,
    GraphKeys.LOCAL_VARIABLES,
    GraphKeys.MODEL_VARIABLES,
    GraphKeys.TRAINABLE_VARIABLES,
    GraphKeys.GLOBAL_STEP,
}


class FunctionGraph(SubGraph):
    """The sub-graph in which a Python function is traced."""

    def __init__(self, outer: Graph, name: str) -> None:
        self.name = name
        self.effects: list[Node] = []  # in program order
        self._last_visible: Node | None = None  # the last node whose effect is visible outside
        self._writes: list[Node] = []  # of variables, since that node
        self._reads: dict[Tensor, Tensor] = {}  # by reference, until the next write
        super().__init__(outer, f"the function {name}")
        self.runs_effects = True

    def _share(self, outer: Graph) -> None:
        """Share variables with the outer graph. Names and other collections are this graph's own:
        inlining prefixes names with the scope of the call."""
        super()._share(outer)
        self._names, self._scope = Names(), ""
        if outer.is_eager:  # device scopes apply per call
            self._devices = []
        shared = {key for key in outer.collections if isinstance(key, tuple)} | _SHARED
        self._collections = {key: outer.get_collection(key) for key in outer.collections}
        self._collections |= {key: outer.get_collection_ref(key) for key in shared}
        self._seeds = first_seed(self.name)

    # Captures

    def sees(self, graph: Graph) -> bool:
        """Whether tensors of a graph can be used in this one: those of all open graphs can."""
        return super().sees(graph) or graph in graphs.items

    def capture(self, tensor: Tensor) -> Tensor:
        """The tensor of this graph for a tensor of another one."""
        if isinstance(tensor, EagerTensor):
            inner = self._known.get(tensor)
            return self._argument(tensor, "captured") if inner is None else inner
        if tensor.op.graph is not self and _is_shared_read(tensor.op):
            return self._read(self.capture(tensor.op.inputs[0]), tensor)
        return super().capture(tensor)

    def _capture(self, tensor: Tensor) -> Tensor:
        graph = tensor.op.graph
        is_enclosing = graph is self.outer or graph in graphs.items
        if not is_enclosing or graph in self.sources or tensor.op.type == "Const":
            return super()._capture(tensor)
        return self._argument(tensor, tensor.op.name)

    def _argument(self, tensor: Tensor, name: str) -> Tensor:
        inner = self.argument(tensor.dtype, tensor.shape, name)
        self.captures[tensor] = self._known[tensor] = inner
        return inner

    def _read(self, reference: Tensor, like: Tensor) -> Tensor:
        """The value of a variable at this point of the program."""
        value = self._reads.get(reference)
        if value is None:
            with self.without_scopes():
                node = self.add(like.op.op, (reference,), [(like.dtype, like.shape)], "read")
            value = self._reads[reference] = node.outputs[0]
        return value

    def _add(
        self, op: Op, inputs: tuple[Tensor, ...], controls: tuple[Node, ...], *rest: Any
    ) -> Node:
        node = super()._add(op, inputs, controls, *rest)
        if not (op.footprint or op.bodies or op.blocking):
            return node
        written, is_visible_effect = written_variables(node), is_visible(node) or op.blocking
        if not written and not is_visible_effect:
            return node
        predecessors = list(controls)
        if self._last_visible is not None:
            predecessors.append(self._last_visible)
        if is_visible_effect:
            predecessors += self._writes
        node.controls = tuple(dict.fromkeys(predecessors))
        self.effects.append(node)
        if written:
            self._reads.clear()
            self._writes.append(node)
        if is_visible_effect:
            self._last_visible = node
            self._writes.clear()
        return node


class Results:
    """The result of a traced function: its tensors, and how to pack others in its structure."""

    def __init__(self, result: Any, graph: FunctionGraph) -> None:
        self.structure = result
        self._leaves = nest.flatten(result, expand_composites=True)
        self._are_tensors = list(map(_is_tensor_leaf, self._leaves))
        self.is_single = self._are_tensors == [True] and self._leaves[0] is result
        self.nodes = [leaf for leaf in self._leaves if isinstance(leaf, Node)]
        converted = [components(leaf) for leaf in compress(self._leaves, self._are_tensors)]
        self.tensors = [graph.capture(tensor) for tensors in converted for tensor in tensors]

    def pack(self, tensors: Sequence[Any], done: Node | None) -> Any:
        """The structure of the result with these tensors; `done` takes the place of nodes."""
        rest = iter(tensors)
        leaves = [
            next(rest) if is_tensor else done if isinstance(leaf, Node) else leaf
            for leaf, is_tensor in zip(self._leaves, self._are_tensors, strict=True)
        ]
        return nest.pack_sequence_as(self.structure, leaves, expand_composites=True)


def _is_tensor_leaf(leaf: Any) -> bool:
    """Whether a leaf of a result is converted to tensors; other values are returned as they are."""
    if isinstance(leaf, str | bytes | int | float | complex | type(None)):
        return False
    return not isinstance(leaf, Node) and (isinstance(leaf, np.ndarray) or has_conversion(leaf))


def _is_shared_read(node: Node) -> bool:
    """Whether a node is the shared read of a variable."""
    return is_read(node) and not node.inputs[0].op.inputs and not node.control_inputs
