"""Graphs as protobufs: nodes as NodeDefs, graphs as GraphDefs, op blocks as OpDefs.

The messages are TensorFlow's own, so that its tools can read what is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from thalweg import protos
from thalweg.graph.dtypes import DType
from thalweg.graph.graph import Graph
from thalweg.graph.graphdef import attributes, functions
from thalweg.graph.graphdef.attributes import AttributeKind
from thalweg.graph.node import Node, Tensor, operators
from thalweg.graph.op import Op
from thalweg.graph.signature import Argument
from thalweg.graph.subgraph import Body

_LARGEST = 1 << 31  # what a protobuf can hold
_PRIVATE = frozenset({"_counts"})  # annotations that follow from the rest
_BODIES = frozenset({"branches", "condition", "body"})  # only functions hold them as they are

protos.publish("GraphDef", "NodeDef", "AttrValue", "NameAttrList", "OpDef", "MetaGraphDef")
protos.publish("TensorProto", "TensorShapeProto", "TensorInfo")


def graph_def(graph: Graph, from_version: int | None = None, add_shapes: bool = False) -> Any:
    """The GraphDef of a graph, or of the nodes made since it had `from_version` of them."""
    versions = graph.graph_def_versions
    proto = protos.GraphDef()
    proto.versions.producer = versions.producer
    proto.versions.min_consumer = versions.min_consumer
    proto.versions.bad_consumers.extend(versions.bad_consumers)
    size = 0
    nodes = _written(graph, from_version or 0)
    for node in nodes:
        written = node_def(node, add_shapes)
        size += written.ByteSize()
        if size >= _LARGEST:
            raise ValueError("GraphDef cannot be larger than 2GB.")
        proto.node.append(written)
    library = function_library(nodes, inner_def)
    if library:  # an empty library is one more field
        proto.library.function.extend(library.values())
    return proto


def function_library(nodes: Iterable[Node], write: Callable[[Node], Any]) -> dict[str, Any]:
    """The functions that nodes hold, and those that these hold, by name; `write` gives the NodeDef
    of a node."""
    found: dict[str, Any] = {}
    pending = list(nodes)
    traced = [tensor for node in pending for _, tensor in functions.traced_by(node)]
    for node in pending:  # grows on the way
        for name, body, sparse in functions.held_by(node):
            if name not in found:
                inside = [tensor.op for tensor in traced if tensor.graph is body.graph]
                found[name] = functions.function_def(name, body, sparse, write, inside)
                pending += body.graph.nodes
                traced += [t for node in body.graph.nodes for _, t in functions.traced_by(node)]
    return found


def _written(graph: Graph, start: int) -> list[Node]:
    """The nodes to write; where some hold sub-graphs, what stands for them outside."""
    if not any(node.op.bodies for node in graph.nodes):
        return graph.nodes[start:]
    return [node for _, group in groups(graph)[start:] for node in group]


def groups(graph: Graph) -> list[tuple[Node, list[Node]]]:
    """Each node of a graph, and those that stand for it outside."""
    found: list[list[Node]] = operators["unfolded"](graph)
    return list(zip(graph.nodes, found, strict=True))


def node_def(node: Node, add_shapes: bool = False) -> Any:
    """The NodeDef of a node."""
    proto = protos.NodeDef(name=node.name, op=node.type, device=node.device)
    proto.input.extend(input_name(tensor) for tensor in node.inputs)
    proto.input.extend(f"^{control.name}" for control in node.control_inputs)
    known, names = attributes.kinds(type(node.op)), node.op.graphdef_names
    held = _BODIES if node.op.bodies else functions.traced_fields(type(node.op))
    for name, value in node.attributes().items():
        if value is not None and name not in _PRIVATE and name not in held:
            written = attributes.encode(value, known.get(name))
            proto.attr[names.get(name, name)].CopyFrom(written)
    if add_shapes and node.outputs:
        shapes = [tensor.shape for tensor in node.outputs]
        proto.attr["_output_shapes"].CopyFrom(attributes.encode(shapes))
    return proto


def inner_def(node: Node) -> Any:
    """The NodeDef of a node inside a function: sub-graphs are functions too."""
    proto = node_def(node)
    for field, value in node.op.attributes.items():
        if isinstance(value, Body):
            proto.attr[field].CopyFrom(attributes.encode(functions.body_name(node, field)))
        elif isinstance(value, tuple) and field in _BODIES:
            names = [
                functions.body_name(node, field, place) for place in range(len(cast("Any", value)))
            ]
            proto.attr[field].CopyFrom(attributes.encode(names))
    for field, tensor in functions.traced_by(node):
        proto.attr[field].CopyFrom(attributes.encode(functions.traced_name(node, tensor)))
    return proto


def input_name(tensor: Tensor) -> str:
    """A tensor as the input of another node: the index of the first output is left out."""
    return tensor.name if tensor.value_index else tensor.op.name


def op_def(op: type[Op]) -> Any:
    """The OpDef of an op block."""
    proto = protos.OpDef(name=op.type_name, is_stateful=op.stateful, is_commutative=op.commutative)
    proto.input_arg.extend(_argument(op, argument) for argument in op.parsed.inputs)
    proto.output_arg.extend(_argument(op, argument) for argument in op.parsed.outputs)
    for name, kind in _attribute_kinds(op):
        proto.attr.append(_attribute(op, name, kind))
    return proto


def _argument(op: type[Op], argument: Argument) -> Any:
    proto = protos.OpDef.ArgDef(name=argument.name, is_ref=argument.is_ref)
    type_name = op.graphdef_names.get(argument.type, argument.type)
    if argument.fixed is not None:
        proto.type = argument.fixed.as_datatype_enum
    elif argument.is_mixed:
        proto.type_list_attr = type_name
    else:
        proto.type_attr = type_name
    proto.number_attr = argument.count
    return proto


def _attribute_kinds(op: type[Op]) -> Iterator[tuple[str, AttributeKind]]:
    """Types, lengths and fields, each once."""
    found: dict[str, AttributeKind] = {}
    for argument in op.parsed.inputs + op.parsed.outputs:
        if argument.count:
            found[argument.count] = AttributeKind("i")
        if argument.fixed is None:
            found.setdefault(argument.type, AttributeKind("type", argument.is_mixed))
    yield from (found | attributes.kinds(op)).items()


def _attribute(op: type[Op], name: str, kind: AttributeKind) -> Any:
    proto = protos.OpDef.AttrDef(name=op.graphdef_names.get(name, name), type=kind.op_def_type)
    if hasattr(op, name) and getattr(op, name) is not None:
        proto.default_value.CopyFrom(attributes.encode(getattr(op, name), kind))
    allowed: list[DType] = sorted(op.parsed.allowed.get(name, ()), key=lambda d: d.as_datatype_enum)
    if allowed:
        proto.allowed_values.CopyFrom(attributes.encode(allowed))
    return proto


operators["graph_def"] = graph_def
operators["node_def"] = node_def
operators["op_def"] = op_def
