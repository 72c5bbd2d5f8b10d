"""Hoists loop-invariant nodes: they are computed once, before the loop.

Invariant nodes are hoisted if they are costly (products, convolutions, reductions, functions such
as exponentials), with the nodes that they depend on. Nodes that are cheap in a fused loop stay, and
so do those that a trace reads, and those that may fail in a loop that may not run at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg.control.loops import While
from thalweg.control.traces import traced_tensors
from thalweg.graph.analysis.node_effects import inner_nodes
from thalweg.graph.node import Node, Tensor, reached
from thalweg.graph.op import Op
from thalweg.graph.rewriter import Rewriter
from thalweg.graph.subgraph import Body
from thalweg.ir.expr import Call, as_expr
from thalweg.ir.functions.table import FUNCTIONS
from thalweg.ir.loop import Operand
from thalweg.ir.rewrite import walk
from thalweg.optimize.pure import is_free
from thalweg.optimize.step_graph import StepGraph
from thalweg.optimize.workspace import BodyRewriter
from thalweg.platform.dtype_traits import compute_dtype


def hoist_invariants(graph: StepGraph) -> None:
    """Hoist costly invariant nodes out of loops."""
    if "While" not in graph.types:
        return
    for node in [node for node in graph.nodes if isinstance(node.op, While)]:
        if not any(map(traced_tensors, graph.traces(node))):  # they would have to follow a new body
            _Hoisting(node, graph).run()


def _is_worth_keeping(node: Node) -> bool:
    """Whether an output element depends on several input elements, or costs more than a read. A
    function of 1,024 floats is 4 times faster if it is hoisted, one of a million floats twice."""
    op = node.op
    if op.elementwise:
        return _calls_function(node)
    moves = type(op).__module__.startswith("thalweg.ops.arrays") or not op.parsed.inputs
    return not (op.of_shapes or moves or op.type_name in _VIEWS)


_MIN_COST = 5.0  # in vector instructions: that of a square root
_VIEWS = frozenset({"Reshape", "ExpandDims", "Squeeze", "Identity", "Fill", "BroadcastTo"})


def _calls_function(node: Node) -> bool:
    """Whether an element calls a function that costs more than a read."""
    if not node.op.has("element"):
        return False
    inputs = [Operand(n, (), _number_dtype(t))[()] for n, t in enumerate(node.inputs)]
    parts = walk([as_expr(node.op.element(*inputs))])
    return any(
        isinstance(part, Call) and FUNCTIONS[part.function].cost >= _MIN_COST for part in parts
    )


def _number_dtype(tensor: Tensor) -> Any:
    """The dtype that kernels compute elements in; for complex numbers, that of their parts."""
    dtype = tensor.dtype.base_dtype.real_dtype.as_numpy_dtype
    return compute_dtype(np.dtype(dtype))


class _Hoisting:
    """Hoists nodes out of one loop."""

    def __init__(self, node: Node, graph: StepGraph) -> None:
        self._node, self._graph = node, graph
        self._op: While = node.op  # pyright: ignore[reportAttributeAccessIssue] - loops alone come here
        self._count = len(node.outputs)

    def run(self) -> None:
        """Copy invariant nodes before the loop, and pass their values as arguments."""
        body = self._op.body
        nodes = inner_nodes(body)
        invariant = self._invariant(nodes)
        hoisted = self._frontier(nodes, invariant)
        if not hoisted:
            return
        self._graph.fired.update(f"invariant {tensor.op.type}" for tensor in hoisted)
        outer, new_nodes = self._outside(nodes, hoisted)
        counts = (self._count, len(self._node.inputs) - self._count + len(hoisted))
        attributes: dict[str, Any] = {
            **self._op.attributes,
            "condition": _with_arguments(self._op.condition, hoisted, computes=False),
            "body": _with_arguments(body, hoisted, computes=True),
        }
        self._graph.insert(new_nodes, self._node)
        self._graph.edit(
            self._node,
            op=While(**attributes),
            inputs=(*self._node.inputs, *outer),
            annotations={**self._node.annotations, "_counts": counts},
        )

    def _invariant(self, nodes: Sequence[Node]) -> set[Tensor]:
        """The tensors of the body that are equal in all iterations."""
        body = self._op.body
        invariant = set(body.arguments[self._count :])
        for variable, output in zip(body.arguments, body.outputs, strict=False):
            if variable is output:
                invariant.add(variable)
        invariant = {tensor for tensor in invariant if not tensor.dtype.is_ref_dtype}
        for node in nodes:
            if is_free(node) and invariant.issuperset(node.inputs) and not _may_fail(node.op):
                invariant.update(node.outputs)
        return invariant

    def _frontier(self, nodes: Sequence[Node], invariant: set[Tensor]) -> list[Tensor]:
        """The hoisted tensors that the rest of the body takes."""
        heavy: set[Tensor] = set()
        for node in nodes:
            if invariant.issuperset(node.outputs) and node.inputs:
                is_costly = not node.op.host_only and _is_worth_keeping(node)
                if is_costly or (not heavy.isdisjoint(node.inputs) and not _enlarges(node)):
                    heavy.update(node.outputs)
        staying = [n for n in nodes if not n.outputs or not invariant.issuperset(n.outputs)]
        taken = [*self._op.body.outputs, *(t for node in staying for t in node.inputs)]
        cheap = invariant - heavy  # or larger than their inputs
        needed = reached(taken, lambda tensor: tensor.op.inputs if tensor in cheap else ())
        return [t for node in nodes for t in node.outputs if t in needed and t in heavy]

    def _outside(
        self, nodes: Sequence[Node], hoisted: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Node]]:
        """Copies of tensors of the body before the loop, and the nodes that compute them."""
        rewriter = Rewriter(self._graph.workspace, self._op.body.bound(self._node), replaces=True)
        needed = reached([tensor.op for tensor in hoisted], lambda n: [t.op for t in n.inputs])
        copies = [rewriter.copy(node) for node in nodes if node in needed]
        return [rewriter.tensors[tensor] for tensor in hoisted], copies


def _enlarges(node: Node) -> bool:
    """Whether a node's output is larger than all its inputs together."""
    output_size, *input_sizes = [t.shape.num_elements() for t in (node.outputs[0], *node.inputs)]
    return output_size is not None and output_size > sum(
        [size or output_size for size in input_sizes]
    )


def _may_fail(op: Op) -> bool:
    return op.has("requires") or op.host_only or op.type_name == "CheckNumerics"


def _with_arguments(body: Body, hoisted: Sequence[Tensor], computes: bool) -> Body:
    """A body with more arguments; if it computes the hoisted tensors, these replace them."""
    rewriter = BodyRewriter(body)
    graph = rewriter.workspace
    added: list[Tensor] = []
    for tensor in hoisted:
        name = tensor.op.name.rpartition("/")[2]
        argument = graph.argument(tensor.dtype, tensor.shape, name)
        argument.op.original = tensor.op
        added.append(argument)
        if computes:
            rewriter.tensors[tensor] = argument
    bound = dict(rewriter.tensors)
    for node in inner_nodes(body):
        if not node.outputs or any(tensor not in bound for tensor in node.outputs):
            rewriter.copy(node)
            rewriter.tensors.update(bound)
    return rewriter.rebuilt(body.outputs, body.targets, added)
