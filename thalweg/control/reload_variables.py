"""Moves reads of variables into bodies that write them.

A use of a variable in a body captures a value that was read outside. This is correct, and cheaper,
unless a body of the node writes the variable. Then each use gets its own read inside the body, so
that control dependencies and program order decide what it sees in every iteration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from thalweg.graph.analysis.node_effects import body_accesses
from thalweg.graph.node import Node, Tensor
from thalweg.graph.subgraph import Body, SubGraph


def stale_reads(bodies: Sequence[Body]) -> dict[Tensor, Tensor]:
    """The captured reads of variables that a body of the same node writes: read → variable."""
    written: set[Tensor] = set()
    for body in bodies:
        inside = {a.state for a in body_accesses(body) if a.writes}
        written |= {outer for outer, inner in body.graph.captures.items() if inner in inside}
    captured = dict.fromkeys(tensor for body in bodies for tensor in body.graph.captures)
    pairs = [(tensor, variable) for tensor in captured for variable in written]
    return {tensor: variable for tensor, variable in pairs if _is_read_of(tensor, variable)}


def _is_read_of(tensor: Tensor, variable: Tensor) -> bool:
    """Whether a tensor is the shared read of a variable."""
    origin = _origin(tensor).op
    is_read = origin.type == "Identity" and not origin.control_inputs
    return is_read and origin.inputs[0] is _origin(variable)


def _origin(tensor: Tensor) -> Tensor:
    """The tensor outside of all bodies that a captured tensor stands for."""
    outer = tensor.graph.outside(tensor)
    return tensor if outer is None else _origin(outer)


def reload_variables(body: Body, stale: Mapping[Tensor, Tensor]) -> Body:
    """The body with its own reads of variables in place of stale ones."""
    graph, reads = body.graph, dict[Tensor, tuple[Node, Tensor]]()
    for tensor, variable in stale.items():
        if tensor in graph.captures:
            reads[graph.release(tensor)] = _origin(tensor).op, graph.capture(variable)
    for node in graph.get_operations():
        if any(tensor in reads for tensor in node.inputs):
            inputs = [_reload(graph, tensor, reads, node) for tensor in node.inputs]
            graph.reconnect(node, tuple(inputs))
    outputs = tuple(_reload(graph, tensor, reads, None) for tensor in body.outputs)
    return Body(graph, body.arguments, outputs, body.targets)


def _reload(
    graph: SubGraph,
    tensor: Tensor,
    reads: Mapping[Tensor, tuple[Node, Tensor]],
    reader: Node | None,
) -> Tensor:
    """A stale read as a new read before its reader, or at the end of the body; else the tensor."""
    if tensor not in reads:
        return tensor
    origin, variable = reads[tensor]
    controls = () if reader is None else tuple(reader.control_inputs)
    with graph.without_scopes():
        read = graph.copied(origin, (variable,), controls, origin.name.rpartition("/")[2])
    if reader is not None:
        graph.move_before(read, reader)
    return read.outputs[0]
