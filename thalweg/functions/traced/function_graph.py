"""The graph of a traced function: what it takes from outside, and the order of what it does.

Tensors of graphs around it are captured wherever they come from. A variable is captured as its
reference and read where the function reads it, so that a read sees the writes before it. What has
effects is noted in the order of the program, and comes after what came before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from thalweg.functions.tensors import EagerTensor
from thalweg.graph.analysis.node_effects import is_visible, written_variables
from thalweg.graph.collections import GraphKeys
from thalweg.graph.graph import Graph, graphs
from thalweg.graph.names import Names
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.subgraph import SubGraph, first_seed
from thalweg.ops.core.basic import Identity
from thalweg.variables.scope import SCOPES_KEY, STORE_KEY
from thalweg.variables.variable import Variable, variable_of

#: Collections that a function shares with the graph around it.
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
    """The sub-graph that a Python function is traced in."""

    def __init__(self, outer: Graph, name: str) -> None:
        self.name = name
        self.effects: list[Node] = []  # in the order of the program
        self._last: Node | None = None  # the last node that was seen outside of the step
        self._writes: list[Node] = []  # of variables, since then
        self._reads: dict[Tensor, Tensor] = {}  # of variables that were not written since
        super().__init__(outer, f"the function {name}")
        self.runs_effects = True

    def _share(self, outer: Graph) -> None:
        """Variables are those of the graph around. Names and all else that is collected are this
        graph's own: where it is inlined, names stand in a scope of the call."""
        super()._share(outer)
        self._names, self._scope = Names(), ""
        if outer.is_eager:  # scopes around a call hold for the call
            self._devices = []
        shared = {key for key in outer.collections if isinstance(key, tuple)} | _SHARED
        self._collections = {key: outer.get_collection(key) for key in outer.collections}
        self._collections |= {key: outer.get_collection_ref(key) for key in shared}
        self._seeds = first_seed(self.name)

    # What comes in

    def sees(self, graph: Graph) -> bool:
        """Whether tensors of a graph can be used in this one: all that are open can."""
        return super().sees(graph) or graph in graphs.items

    def capture(self, tensor: Tensor) -> Tensor:
        """What stands for a tensor of another graph in this one."""
        if isinstance(tensor, EagerTensor):
            found = self._known.get(tensor)
            return self._argument(tensor, "captured") if found is None else found
        if tensor.op.graph is not self and _is_read(tensor):
            return self._read(self.capture(tensor.op.inputs[0]), tensor)
        return super().capture(tensor)

    def _captured(self, tensor: Tensor) -> Tensor:
        graph = tensor.op.graph
        is_around = graph is self.outer or graph in graphs.items
        if not is_around or graph in self.sources or tensor.op.type == "Const":
            return super()._captured(tensor)
        return self._argument(tensor, tensor.op.name)

    def _argument(self, tensor: Tensor, name: str) -> Tensor:
        inner = self.argument(tensor.dtype, tensor.shape, name)
        self.captures[tensor] = self._known[tensor] = inner
        return inner

    def _read(self, reference: Tensor, like: Tensor) -> Tensor:
        """The value of a variable at this point of the program."""
        found = self._reads.get(reference)
        if found is None:
            with self.without_scopes():
                shapes = [like.shape]
                node = self.add(like.op.op, (reference,), [like.dtype], shapes, "read")
            found = self._reads[reference] = node.outputs[0]
        return found

    def variables(self) -> list[Variable]:
        """The variables that the function uses, as far as it is traced."""
        found = [variable_of(tensor) for tensor in self.captures if tensor.dtype.is_ref_dtype]
        return [variable for variable in found if variable is not None]

    def read_variables(self, nodes: Iterable[Node]) -> list[Variable]:
        """Those of them that some nodes of the graph take."""
        taken = {tensor for node in nodes for tensor in node.inputs}
        return [v for v in self.variables() if self.captures[v.gradient_source()] in taken]

    # What happens

    def _add(
        self, op: Op, inputs: tuple[Tensor, ...], controls: tuple[Node, ...], *rest: Any
    ) -> Node:
        if not (op.footprint or op.bodies or op.blocking):
            return super()._add(op, inputs, controls, *rest)
        *_, annotations, (code, lasti) = rest
        apart = Node(self, op, "", inputs, controls, "", annotations, code, lasti, -1)
        written, is_seen = written_variables(apart), is_visible(apart) or op.blocking
        if not written and not is_seen:
            return super()._add(op, inputs, controls, *rest)
        before = dict.fromkeys(controls)
        before |= dict.fromkeys([] if self._last is None else [self._last])
        before |= dict.fromkeys(self._writes if is_seen else [])
        node = super()._add(op, inputs, tuple(before), *rest)
        self._note(node, bool(written), is_seen)
        return node

    def _note(self, node: Node, writes: bool, is_seen: bool) -> None:
        self.effects.append(node)
        if writes:
            self._reads.clear()
            self._writes.append(node)
        if is_seen:
            self._last = node
            self._writes.clear()


def _is_read(tensor: Tensor) -> bool:
    """Whether a tensor is the value of a variable, as its other readers see it."""
    node = tensor.op
    if not isinstance(node.op, Identity) or not node.inputs[0].dtype.is_ref_dtype:
        return False
    source = node.inputs[0].op
    return not source.inputs and not node.control_inputs
