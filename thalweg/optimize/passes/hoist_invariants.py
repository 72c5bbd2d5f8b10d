"""Loop-invariant hoisting: what every iteration would compute again is computed before the loop.

Hoisted is what depends on nothing that an iteration changes and is worth keeping: products,
convolutions, reductions, functions such as exponentials, and what leads to them. What is cheap to
compute in a fused loop stays there, and so does what a trace reads, and what may fail in a loop
that may not run at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from thalweg.control.liveness import traced_tensors
from thalweg.control.loops import While
from thalweg.control.traces import Trace
from thalweg.graph.analysis.node_effects import inner_nodes
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.rewriter import Rewriter
from thalweg.graph.subgraph import Argument, Body
from thalweg.ir.expr import Call, argument, as_expr
from thalweg.ir.functions.table import FUNCTIONS
from thalweg.ir.rewrite import walk
from thalweg.optimize.pure import is_free
from thalweg.optimize.step_graph import StepGraph
from thalweg.optimize.workspace import body_rewriter
from thalweg.platform.dtype_traits import compute_dtype


def hoist_invariants(graph: StepGraph) -> None:
    """Have loops not repeat what stays the same."""
    if "While" not in graph.types:
        return
    loops = [node for node in graph.nodes if isinstance(node.op, While)]
    traced: dict[Node, set[Tensor]] = defaultdict(set)
    for node in graph.nodes:
        if isinstance(node.op, Trace):
            traced[node.inputs[0].op].update(traced_tensors(node))
    for node in loops:
        if not traced[node]:  # the traces of a new body would have to follow it
            _Hoisting(node, graph).run()


def _is_worth_keeping(node: Node) -> bool:
    """Whether computing an output element takes more than one input element, or longer than to read
    it: a function of 1,024 floats in a loop is 4 times faster as a value that is read, one of a
    million floats twice."""
    op = node.op
    if op.elementwise:
        return _calls_function(node)
    moves = type(op).__module__.startswith("thalweg.ops.arrays") or not op.parsed.inputs
    return not (op.of_shapes or moves or op.type_name in _VIEWS)


_MIN_COST = 5.0  # in vector instructions: that of a square root
_VIEWS = frozenset({"Reshape", "ExpandDims", "Squeeze", "Identity", "Fill", "BroadcastTo"})


def _calls_function(node: Node) -> bool:
    """Whether an element takes a function that costs more than to read its value."""
    if not node.op.has("element"):
        return False
    inputs = [argument(n, _number_dtype(tensor)) for n, tensor in enumerate(node.inputs)]
    parts = walk([as_expr(node.op.element(*inputs))])
    return any(
        isinstance(part, Call) and FUNCTIONS[part.function].cost >= _MIN_COST for part in parts
    )


def _number_dtype(tensor: Tensor) -> Any:
    """The dtype of elements as kernels see them; a complex number's parts stand for it."""
    dtype = tensor.dtype.base_dtype.real_dtype.as_numpy_dtype
    return compute_dtype(np.dtype(dtype))


class _Hoisting:
    """The hoisting out of one loop."""

    def __init__(self, node: Node, graph: StepGraph) -> None:
        self._node, self._graph = node, graph
        self._op: While = node.op  # pyright: ignore[reportAttributeAccessIssue] - loops alone come here
        self._count = len(node.outputs)

    def run(self) -> None:
        """Have nodes before the loop compute what stays the same."""
        body = self._op.body
        nodes = inner_nodes(body)
        fixed = self._invariant(nodes)
        moved = self._frontier(nodes, fixed)
        if not moved:
            return
        self._graph.fired.update(f"invariant {tensor.op.type}" for tensor in moved)
        outer, before = self._outside(nodes, fixed, moved)
        places = (self._count, len(self._node.inputs) - self._count + len(moved))
        attributes: dict[str, Any] = {
            **self._op.attributes,
            "condition": _with_arguments(self._op.condition, moved, {}),
            "body": _with_arguments(body, moved, dict.fromkeys(moved)),
        }
        self._graph.insert(before, self._node)
        self._graph.edit(
            self._node,
            op=While(**attributes),
            inputs=(*self._node.inputs, *outer),
            annotations={**self._node.annotations, "_counts": places},
        )

    def _invariant(self, nodes: Sequence[Node]) -> set[Tensor]:
        """The tensors of the body that are the same in all iterations."""
        body = self._op.body
        fixed = set(body.arguments[self._count :])
        for given, output in zip(body.arguments, body.outputs, strict=False):
            if given is output:
                fixed.add(given)
        fixed = {tensor for tensor in fixed if not tensor.dtype.is_ref_dtype}
        for node in nodes:
            if is_free(node) and fixed.issuperset(node.inputs) and not _may_fail(node.op):
                fixed.update(node.outputs)
        return fixed

    def _frontier(self, nodes: Sequence[Node], fixed: set[Tensor]) -> list[Tensor]:
        """What the rest of the body takes of what is worth keeping."""
        heavy: set[Tensor] = set()
        for node in nodes:
            if fixed.issuperset(node.outputs) and node.inputs:
                own = not node.op.host_only and _is_worth_keeping(node)
                if own or (not heavy.isdisjoint(node.inputs) and not _enlarges(node)):
                    heavy.update(node.outputs)
        staying = [n for n in nodes if not n.outputs or not fixed.issuperset(n.outputs)]
        pending = [*self._op.body.outputs, *(t for node in staying for t in node.inputs)]
        seen: dict[Tensor, None] = {}
        while pending:
            tensor = pending.pop()
            if tensor not in seen:
                seen[tensor] = None
                stays = tensor in fixed and tensor not in heavy  # cheap, or larger than it was
                pending += tensor.op.inputs if stays else ()
        return [tensor for tensor in seen if tensor in heavy]

    def _outside(
        self, nodes: Sequence[Node], fixed: set[Tensor], moved: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Node]]:
        """What stands for tensors of the body before the loop, and the nodes that give it."""
        first = len(self._node.inputs) - len(self._op.body.arguments)
        pairs = zip(self._op.body.arguments, self._node.inputs[first:], strict=True)
        again = Rewriter(self._graph.workspace, dict(pairs))
        needed: set[Node] = set()
        pending = [tensor.op for tensor in moved]
        while pending:
            node = pending.pop()
            if node not in needed and not isinstance(node.op, Argument):
                needed.add(node)
                pending += [tensor.op for tensor in node.inputs]
        made = [again.copy(node) for node in nodes if node in needed]
        return [again.tensors[tensor] for tensor in moved], made


def _enlarges(node: Node) -> bool:
    """Whether there is more to read of what a node gives than of all that it takes."""
    made, *given = [t.shape.num_elements() for t in (node.outputs[0], *node.inputs)]
    return made is not None and made > sum([size or made for size in given])


def _may_fail(op: Op) -> bool:
    return op.has("requires") or op.host_only or op.type_name == "CheckNumerics"


def _with_arguments(body: Body, moved: Sequence[Tensor], replaced: dict[Tensor, None]) -> Body:
    """A body that takes more arguments; some of them in the place of what it computed."""
    again = body_rewriter(body)
    graph = again.workspace
    added: list[Tensor] = []
    for tensor in moved:
        name = tensor.op.name.rpartition("/")[2]
        argument = graph.argument(tensor.dtype, tensor.shape, name)
        graph.attribute(argument.op, tensor.op)
        added.append(argument)
        if tensor in replaced:
            again.tensors[tensor] = argument
    known = dict(again.tensors)
    for node in inner_nodes(body):
        if not node.outputs or any(tensor not in known for tensor in node.outputs):
            again.copy(node)
            again.tensors.update(known)
    return replace(
        body,
        graph=graph,
        arguments=(*(again.tensors[t] for t in body.arguments), *added),
        outputs=tuple([again.tensors[t] for t in body.outputs]),
        targets=tuple(again.mapped(body.targets)),
    )
