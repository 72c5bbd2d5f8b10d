"""Common-subexpression elimination: of equal pure nodes, one stays.

Two nodes are equal if their ops, attributes, inputs, control inputs and devices are; the inputs of
a commutative op in either order. Small constants are equal if their values are, bit for bit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

from thalweg.graph.node import Node, Tensor
from thalweg.ops.core.basic import Const
from thalweg.optimize.pure import is_pure
from thalweg.optimize.step_graph import StepGraph

_MAX_BYTES = 1 << 16  # of constants that are compared


def merge_duplicates(graph: StepGraph) -> None:
    """Merge equal pure nodes."""
    by_key: dict[Hashable, list[Node]] = defaultdict(list)

    def rewrite(node: Node) -> Sequence[Tensor] | None:
        op_class, inputs = type(node.op), node.inputs
        key: Any = (op_class, inputs)
        if op_class is Const:
            key = _constant_key(node)
        elif not inputs:
            return None
        elif op_class.commutative:
            key = (op_class, *sorted(map(id, inputs)))
        for first in by_key[key]:
            if first in graph and _are_same(first, node, graph):
                graph.fire(f"duplicate {op_class.type_name}", node)
                return first.outputs
        by_key[key].append(node)
        return None

    graph.rewrite_once(rewrite)


def _constant_key(node: Node) -> Hashable:
    value = node.op.__dict__["value"]
    if value.dtype.hasobject or value.nbytes > _MAX_BYTES:
        return node
    return node.op.__dict__["dtype"], value.shape, value.tobytes()


def _are_same(first: Node, second: Node, graph: StepGraph) -> bool:
    """Whether one of two nodes of equal type and inputs can replace the other."""
    if first.controls != second.controls or not is_pure(first):
        return False
    if graph.device(first) != graph.device(second):
        return False
    if first.op.type_name != "Const" and first.op != second.op:
        return False
    return not any(tensor in graph.feeds for tensor in (*first.outputs, *second.outputs))
