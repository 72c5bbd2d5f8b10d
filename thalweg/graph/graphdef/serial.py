"""Export: nodes as NodeDefs, graphs as GraphDefs, op blocks as OpDefs.

The messages are TensorFlow's, so that its tools can read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from thalweg import protos
from thalweg.graph.dtypes import DType
from thalweg.graph.graph import Graph
from thalweg.graph.graphdef import attributes, functions
from thalweg.graph.graphdef.attributes import AttributeKind
from thalweg.graph.node import Node, operators
from thalweg.graph.op import Op
from thalweg.graph.signature import Argument

_MAX_BYTES = 1 << 31  # of a protobuf
_PRIVATE = frozenset({"_counts"})  # annotations that follow from the rest

protos.publish("GraphDef", "NodeDef", "AttrValue", "NameAttrList", "OpDef", "MetaGraphDef")
protos.publish("TensorProto", "TensorShapeProto", "TensorInfo")


def graph_def(graph: Graph, from_version: int | None = None, add_shapes: bool = False) -> Any:
    """The GraphDef of a graph, or of the nodes after its first `from_version` ones."""
    proto = protos.GraphDef(versions=vars(graph.graph_def_versions))
    size = 0
    nodes = _exported_nodes(graph, from_version or 0)
    for node in nodes:
        node_proto = node_def(node, add_shapes)
        size += node_proto.ByteSize()
        if size >= _MAX_BYTES:
            raise ValueError("GraphDef cannot be larger than 2GB.")
        proto.node.append(node_proto)
    library = function_library(nodes, node_def)
    if library:  # else the field stays unset
        proto.library.function.extend(library.values())
    return proto


def function_library(nodes: Iterable[Node], write: Callable[[Node], Any]) -> dict[str, Any]:
    """The functions that nodes hold, directly or in functions, by name; `write` converts a node to
    a NodeDef."""
    library: dict[str, Any] = {}
    pending = list(nodes)
    traced = [tensor for node in pending for tensor in functions.traced_by(node)]
    for node in pending:  # which grows meanwhile
        for name, body, sparse in functions.node_functions(node):
            if name not in library:
                inside = [tensor.op for tensor in traced if tensor.graph is body.graph]
                library[name] = functions.function_def(name, body, sparse, write, inside)
                pending += body.graph.nodes
                traced += [t for node in body.graph.nodes for t in functions.traced_by(node)]
    return library


def _exported_nodes(graph: Graph, start: int) -> list[Node]:
    """The nodes to write: primitive control-flow nodes in place of nodes that hold sub-graphs."""
    if not any(node.op.bodies for node in graph.nodes):
        return graph.nodes[start:]
    return [node for _, group in groups(graph)[start:] for node in group]


def groups(graph: Graph) -> list[tuple[Node, list[Node]]]:
    """Each node of a graph with the nodes that a GraphDef has for it."""
    exported: list[list[Node]] = operators["unfolded"](graph)
    return list(zip(graph.nodes, exported, strict=True))


def node_def(node: Node, add_shapes: bool = False) -> Any:
    """The NodeDef of a node, with the names of the functions that are its sub-graphs."""
    proto = protos.NodeDef(name=node.name, op=node.type, device=node.device)
    # The name of a tensor as an input has no index if it is 0.
    proto.input.extend(t.name if t.value_index else t.op.name for t in node.inputs)
    proto.input.extend(f"^{control.name}" for control in node.control_inputs)
    kinds, names = attributes.kinds(type(node.op)), node.op.graphdef_names
    for name, value in node.attributes().items():
        if value is not None and name not in _PRIVATE:
            encoded = attributes.encode(functions.named(node, name, value), kinds.get(name))
            proto.attr[names.get(name, name)].CopyFrom(encoded)
    if add_shapes and node.outputs:
        shapes = [tensor.shape for tensor in node.outputs]
        proto.attr["_output_shapes"].CopyFrom(attributes.encode(shapes))
    return proto


def op_def(op: type[Op]) -> Any:
    """The OpDef of an op block."""
    proto = protos.OpDef(name=op.type_name, is_stateful=op.stateful, is_commutative=op.commutative)
    proto.input_arg.extend(_argument(op, argument) for argument in op.parsed.inputs)
    proto.output_arg.extend(_argument(op, argument) for argument in op.parsed.outputs)
    for name, kind in attributes.kinds(op).items():
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
