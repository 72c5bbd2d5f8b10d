"""Variables that a body both reads and writes are read inside it, where the read stands.

A variable used in an expression is a value that was read outside: right for a body that leaves the
variable alone, and cheaper. Where a body writes it, each use gets a read of its own, so that
control dependencies and the order of the program decide what is seen, in every iteration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from thalweg.graph.analysis.node_effects import body_accesses
from thalweg.graph.graph import Graph
from thalweg.graph.node import Node, Tensor
from thalweg.graph.subgraph import Argument, Body, SubGraph


def stale_reads(bodies: Sequence[Body]) -> dict[Tensor, Tensor]:
    """Of what bodies that stand in one node captured: reads of variables that one of them writes,
    and those variables."""
    written: set[Tensor] = set()
    for body in bodies:
        inside = {a.state for a in body_accesses(body) if a.writes}
        written |= {outer for outer, inner in body.graph.captures.items() if inner in inside}
    captured = dict.fromkeys(tensor for body in bodies for tensor in body.graph.captures)
    pairs = [(tensor, variable) for tensor in captured for variable in written]
    return {tensor: variable for tensor, variable in pairs if _is_read_of(tensor, variable)}


def _is_read_of(tensor: Tensor, variable: Tensor) -> bool:
    """Whether a tensor is the value of a variable, read once for all that use it."""
    origin = _origin(tensor).op
    is_read = origin.type == "Identity" and not origin.control_inputs
    return is_read and origin.inputs[0] is _origin(variable)


def _origin(tensor: Tensor) -> Tensor:
    """What a captured tensor is outside of all bodies that it was captured by."""
    outer = _captured(tensor)
    while outer is not None:
        tensor, outer = outer, _captured(outer)
    return tensor


def _captured(tensor: Tensor) -> Tensor | None:
    """What an argument stands for in the graph around its own."""
    graph: Graph = tensor.op.graph
    if not isinstance(tensor.op.op, Argument) or not isinstance(graph, SubGraph):
        return None
    return next((outer for outer, inner in graph.captures.items() if inner is tensor), None)


def reload_variables(body: Body, stale: Mapping[Tensor, Tensor]) -> Body:
    """A body that reads variables itself."""
    graph, reads = body.graph, dict[Tensor, tuple[Node, Tensor]]()
    for tensor, variable in stale.items():
        if tensor in graph.captures:
            reads[graph.release(tensor)] = _origin(tensor).op, graph.capture(variable)
    for node in graph.get_operations():
        if any(tensor in reads for tensor in node.inputs):
            inputs = [_read(graph, tensor, reads, node) for tensor in node.inputs]
            graph.reconnect(node, tuple(inputs))
    outputs = tuple(_read(graph, tensor, reads, None) for tensor in body.outputs)
    return Body(graph, body.arguments, outputs, body.targets)


def _read(
    graph: SubGraph,
    tensor: Tensor,
    reads: Mapping[Tensor, tuple[Node, Tensor]],
    reader: Node | None,
) -> Tensor:
    """A read of a variable for one node, or at the end of the body."""
    if tensor not in reads:
        return tensor
    origin, variable = reads[tensor]
    controls = () if reader is None else tuple(reader.control_inputs)
    with graph.without_scopes():
        made = graph.copied(origin, (variable,), controls, origin.name.rpartition("/")[2])
    if reader is not None:
        graph.move_before(made, reader)
    return made.outputs[0]
