"""Common-subexpression elimination: of pure nodes that compute the same, one stays.

Two nodes are the same where op, attributes, inputs, control inputs and device are; the inputs of a
commutative op in either order. Small constants are the same where their values are, to the bit.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from thalweg.graph.node import Node, Tensor
from thalweg.ops.core.basic import Const
from thalweg.optimize.pure import is_pure
from thalweg.optimize.step_graph import StepGraph

_MAX_BYTES = 1 << 16  # of constants that are compared


def merge_duplicates(graph: StepGraph) -> None:
    """Compute nothing pure twice."""
    found: dict[Hashable, list[Node]] = {}

    def rewrite(node: Node) -> Sequence[Tensor] | None:
        kind, inputs = type(node.op), node.inputs
        key: Any = (kind, inputs)
        if kind is Const:
            key = _constant_key(node)
        elif not inputs:
            return None
        elif kind.commutative:
            key = (kind, *sorted(map(id, inputs)))
        seen = found.get(key)
        if seen is None:
            found[key] = [node]
            return None
        for first in seen:
            if first in graph and _are_same(first, node, graph):
                graph.fire(f"duplicate {kind.type_name}", node)
                return first.outputs
        seen.append(node)
        return None

    graph.rewrite_once(rewrite)


def _constant_key(node: Node) -> Hashable:
    value = node.op.__dict__["value"]
    if value.dtype.hasobject or value.nbytes > _MAX_BYTES:
        return node
    return node.op.__dict__["dtype"], value.shape, value.tobytes()


def _are_same(first: Node, second: Node, graph: StepGraph) -> bool:
    """Whether one of two nodes of the same type and inputs can stand for the other."""
    if first.controls != second.controls or not is_pure(first):
        return False
    if graph.devices is not None and graph.device(first) != graph.device(second):
        return False
    if first.op.type_name != "Const" and first.op != second.op:
        return False
    return not any(tensor in graph.feeds for tensor in (*first.outputs, *second.outputs))
