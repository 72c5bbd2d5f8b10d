"""Common-subexpression elimination: of pure nodes that compute the same, one stays.

Two nodes are the same where op, attributes, inputs, control inputs and device are; the inputs of a
commutative op in either order. Small constants are the same where their values are, to the bit.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from thalweg.graph.node import Node, Tensor
from thalweg.ops.core.basic import Const
from thalweg.optimize.pure import is_pure
from thalweg.optimize.step_graph import StepGraph
from thalweg.optimize.sweep import Sweep

_MAX_BYTES = 1 << 16  # of constants that are compared


def merge_duplicates(graph: StepGraph) -> tuple[StepGraph, dict[str, int]]:
    """A step in which nothing pure is computed twice."""
    found: dict[Hashable, Node] = {}

    def rewrite(node: Node, sweep: Sweep) -> Sequence[Tensor] | None:
        key = _key(node, graph)
        if key is None:
            return None
        first = found.setdefault(key, node)
        if first is node:
            return None
        sweep.fired[f"duplicate {node.type}"] += 1
        return first.outputs

    sweep = Sweep(graph)
    return sweep.run(rewrite), dict(sweep.fired)


def _key(node: Node, graph: StepGraph) -> Hashable | None:
    op, inputs = node.op, node.inputs
    if isinstance(op, Const):
        return _constant_key(op, node, graph)
    if not inputs or not is_pure(node) or any(tensor in graph.feeds for tensor in node.outputs):
        return None
    flow: Hashable = inputs
    if op.commutative:
        flow = tuple(sorted(map(id, inputs)))
    try:
        return hash(op) and op, flow, node.controls, graph.device(node)
    except TypeError:  # an attribute that is not hashable
        return None


def _constant_key(op: Const, node: Node, graph: StepGraph) -> Hashable | None:
    value = op.value
    if value.dtype.hasobject or value.nbytes > _MAX_BYTES or node.outputs[0] in graph.feeds:
        return None
    return op.dtype, value.shape, value.tobytes(), node.controls
