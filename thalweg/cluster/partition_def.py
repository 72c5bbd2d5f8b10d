"""Serialization of partitions: each is sent to its task once, before the first step.

Nodes become NodeDefs with their devices, and the order between them becomes control inputs; bodies
of conditionals and loops are functions in the GraphDef's library. Decoding creates a partition of
another graph with the same node names, by which errors and state are attributed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thalweg import protos
from thalweg.graph.graph import Graph
from thalweg.graph.graphdef.importer import import_graph_def
from thalweg.graph.graphdef.serial import function_library, node_def
from thalweg.graph.node import Node
from thalweg.graph.subgraph import Argument
from thalweg.partition.cut import Partition, Slot
from thalweg.place.placer import Placement, with_inner

Fields = Mapping[str, Any]


def encode(part: Partition) -> tuple[Fields, bytes]:
    """A partition as message fields and a serialized GraphDef."""
    fields = {
        "device": part.device,
        "feeds": [[place, tensor.name] for place, tensor in part.feeds],
        "fetches": [[place, tensor.name] for place, tensor in part.fetches],
        "targets": [node.name for node in part.targets],
    }
    return fields, _graph_def(part).SerializeToString()


def _graph_def(part: Partition) -> Any:
    def write(node: Node) -> Any:
        proto = node_def(node)
        proto.device = part.placement.get(node, part.device)
        proto.attr.pop("_class", None)  # placement is done
        return proto

    proto = protos.GraphDef()
    own_nodes = {*part.nodes}
    nodes = [n for n in part.graph.nodes if n in own_nodes or isinstance(n.op, Argument)]
    for node in nodes:
        written = write(node)
        existing_inputs = {*written.input}
        before = sorted(f"^{earlier.name}" for earlier in part.order.get(node, ()))
        producers = {tensor.op for tensor in node.inputs}
        implied = {f"^{producer.name}" for producer in producers} | existing_inputs
        written.input.extend(name for name in before if name not in implied)
        proto.node.append(written)
    proto.library.function.extend(function_library(nodes, write).values())
    return proto


def decode(fields: Fields, graph_def: bytes, original: Callable[[Node], Node]) -> Partition:
    """The inverse of `encode`. `original` maps a node to the one that owns its state."""
    proto = protos.GraphDef.FromString(graph_def)
    graph = Graph()
    with graph.as_default():
        import_graph_def(proto, name="")
    for node in graph.nodes:
        for inner in with_inner(node):
            inner.original = original(inner)
    nodes = tuple(node for node in graph.nodes if not isinstance(node.op, Argument))
    return Partition(
        fields["device"],
        graph,
        nodes,
        {node: _predecessors(node) for node in nodes},
        _slots(graph, fields["feeds"]),
        _slots(graph, fields["fetches"]),
        tuple(graph.get_operation_by_name(name) for name in fields["targets"]),
        _placement(nodes, fields["device"]),
    )


def _predecessors(node: Node) -> set[Node]:
    predecessors = {*node.control_inputs, *(tensor.op for tensor in node.inputs)}
    return {predecessor for predecessor in predecessors if not isinstance(predecessor.op, Argument)}


def _slots(graph: Graph, pairs: Sequence[tuple[int, str]]) -> tuple[Slot, ...]:
    return tuple(Slot(place, graph.get_tensor_by_name(name)) for place, name in pairs)


def _placement(nodes: Sequence[Node], device: str) -> Placement:
    return {nested: nested.device or device for node in nodes for nested in with_inner(node)}
