"""Partitions as messages: what a task is sent once, before the first of many steps.

The nodes are NodeDefs, with the order between them as control inputs and the device of each; bodies
of conditionals and loops are functions of the GraphDef's library. What comes back is a partition of
another graph, whose nodes have the names of the sender's: errors and state go by those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thalweg import protos
from thalweg.graph.graphdef.importer import import_graph_def
from thalweg.graph.graphdef.serial import function_library, inner_def
from thalweg.graph.node import Node, Tensor
from thalweg.graph.rewriter import RewrittenGraph
from thalweg.graph.subgraph import Argument
from thalweg.partition.cut import Partition, Slot
from thalweg.place.placer import Placement, with_inner

Fields = Mapping[str, Any]


def encode(part: Partition) -> tuple[Fields, bytes]:
    """A partition as the fields of a message and a GraphDef."""
    fields = {
        "device": part.device,
        "feeds": [[place, tensor.name] for place, tensor in part.feeds],
        "fetches": [[place, tensor.name] for place, tensor in part.fetches],
        "targets": [node.name for node in part.targets],
    }
    return fields, _graph_def(part).SerializeToString()


def _graph_def(part: Partition) -> Any:
    def write(node: Node) -> Any:
        proto = inner_def(node)
        proto.device = part.placement.get(node, part.device)
        proto.attr.pop("_class", None)  # placement is done
        return proto

    proto = protos.GraphDef()
    kept = {*part.nodes}
    nodes = [n for n in part.graph.nodes if n in kept or isinstance(n.op, Argument)]
    for node in nodes:
        written = write(node)
        known = {*written.input}
        before = sorted(f"^{earlier.name}" for earlier in part.order.get(node, ()))
        fed = {tensor.op for tensor in node.inputs}
        after = {f"^{each.name}" for each in fed} | known
        written.input.extend(name for name in before if name not in after)
        proto.node.append(written)
    proto.library.function.extend(function_library(nodes, write).values())
    return proto


def decode(fields: Fields, graph_def: bytes, original: Callable[[Node], Node]) -> Partition:
    """A partition from what `encode` gave. `original` gives the node that state belongs to."""
    proto = protos.GraphDef.FromString(graph_def)
    graph = RewrittenGraph()
    with graph.as_default():
        import_graph_def(proto, name="")
    for node in graph.nodes:
        for inner in with_inner(node):
            graph.attribute(inner, original(inner))
    nodes = tuple(node for node in graph.nodes if not isinstance(node.op, Argument))
    return Partition(
        fields["device"],
        graph,
        nodes,
        {node: _before(node) for node in nodes},
        _slots(graph, fields["feeds"]),
        _slots(graph, fields["fetches"]),
        tuple(graph.get_operation_by_name(name) for name in fields["targets"]),
        _placement(nodes, fields["device"]),
    )


def _before(node: Node) -> set[Node]:
    found = {*node.control_inputs, *(tensor.op for tensor in node.inputs)}
    return {each for each in found if not isinstance(each.op, Argument)}


def _slots(graph: RewrittenGraph, pairs: Sequence[tuple[int, str]]) -> tuple[Slot, ...]:
    return tuple(Slot(place, _tensor(graph, name)) for place, name in pairs)


def _tensor(graph: RewrittenGraph, name: str) -> Tensor:
    return graph.get_tensor_by_name(name)


def _placement(nodes: Sequence[Node], device: str) -> Placement:
    return {each: each.device or device for node in nodes for each in with_inner(node)}
