"""`tf.graph_util`: extraction of sub-graphs, freezing of variables and removal of training nodes in
GraphDefs; GraphDefs as files."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from thalweg import protos
from thalweg.graph import dtypes
from thalweg.graph.context import Runner
from thalweg.graph.device import DeviceSpec
from thalweg.graph.graph import Graph
from thalweg.graph.graphdef.node_defs import constant_def, node_name, with_inputs
from thalweg.graph.node import Node, reached
from thalweg.graph.shapes import TensorShape
from thalweg.platform import tf_logging
from thalweg.platform.files import gfile
from thalweg.public import public

_VARIABLES = ("Variable", "VariableV2")


@public("graph_util.extract_sub_graph")
def extract_sub_graph(graph_def: protos.GraphDef, dest_nodes: Sequence[str]) -> Any:
    """The part of a GraphDef that some nodes depend on, in its order."""
    if not protos.is_message(graph_def, protos.GraphDef):
        raise TypeError("graph_def must be a graph_pb2.GraphDef proto.")
    graph_def = protos.as_message(graph_def, protos.GraphDef)
    if isinstance(dest_nodes, str):
        raise TypeError("dest_nodes must be a list.")
    nodes = {node.name: node for node in graph_def.node}
    missing = [name for name in dest_nodes if name not in nodes]
    if missing:
        raise AssertionError(f"{missing[0]} is not in graph")
    kept = reached(dest_nodes, lambda name: map(node_name, nodes[name].input))
    inside = [node for node in graph_def.node if node.name in kept]
    return protos.GraphDef(node=inside, library=graph_def.library, versions=graph_def.versions)


@public("graph_util.convert_variables_to_constants")
def convert_variables_to_constants(
    sess: Runner,
    input_graph_def: protos.GraphDef,
    output_node_names: Sequence[str],
    variable_names_whitelist: Collection[str] | None = None,
    variable_names_blacklist: Collection[str] | None = None,
) -> Any:
    """The part of a graph that some nodes depend on, with variables replaced by constants.

    Args:
        sess: the session with the values of the variables.
        input_graph_def: the graph, as a GraphDef.
        output_node_names: the names of the output nodes.
        variable_names_whitelist: the only variables to replace.
        variable_names_blacklist: variables not to replace.

    Returns:
        A `tf.GraphDef`, for `tf.import_graph_def`.

    Example:
        >>> y = tf.multiply(tf.Variable(3.0), 2.0, name="y")
        >>> sess.run(tf.global_variables_initializer())
        >>> frozen = tf.graph_util.convert_variables_to_constants(sess, sess.graph_def, ["y"])
        >>> sorted({node.op for node in frozen.node})
        ['Const', 'Identity', 'Mul']
    """
    part = extract_sub_graph(input_graph_def, output_node_names)
    names = [
        node.name
        for node in part.node
        if node.op in _VARIABLES
        and (variable_names_whitelist is None or node.name in variable_names_whitelist)
        and node.name not in (variable_names_blacklist or ())
    ]
    values: list[Any] = sess.run([f"{name}:0" for name in names]) if names else []
    frozen: dict[str, Any] = dict(zip(names, values, strict=True))
    for node in part.node:
        if node.name in frozen:
            dtype = dtypes.as_dtype(node.attr["dtype"].type)
            node.CopyFrom(constant_def(node.name, frozen[node.name], dtype, node.device))
    tf_logging.info("Froze %d variables.", len(frozen))
    return part


@public("graph_util.remove_training_nodes")
def remove_training_nodes(
    input_graph: protos.GraphDef, protected_nodes: Sequence[str] | None = None
) -> Any:
    """A GraphDef without CheckNumerics, and without Identity nodes that have no control edges."""
    input_graph = protos.as_message(input_graph, protos.GraphDef)
    protected = set(protected_nodes or ())
    checks = {
        node.name
        for node in input_graph.node
        if node.op == "CheckNumerics" and node.name not in protected
    }
    nodes = [
        with_inputs(node, [s for s in node.input if node_name(s) not in checks])
        for node in input_graph.node
        if node.name not in checks
    ]
    spliced = _removable_identities(nodes, protected)
    kept = [
        with_inputs(node, [_follow(source, spliced) for source in node.input])
        for node in nodes
        if node.name not in spliced
    ]
    return protos.GraphDef(node=kept)


def _removable_identities(nodes: Sequence[Any], protected: set[str]) -> dict[str, str]:
    """The Identity nodes without control edges, and the input of each."""
    controls = {node_name(s) for node in nodes for s in node.input if s.startswith("^")}
    return {
        node.name: node.input[0]
        for node in nodes
        if node.op == "Identity"
        and node.name not in protected | controls
        and not any(source.startswith("^") for source in node.input)
    }


def _follow(source: str, spliced: Mapping[str, str]) -> str:
    while not source.startswith("^") and node_name(source) in spliced:
        source = spliced[node_name(source)]
    return source


@public("graph_util.tensor_shape_from_node_def_name")
def tensor_shape_from_node_def_name(graph: Graph, input_name: str) -> TensorShape:
    """The shape of the tensor that an input of a NodeDef names."""
    name = input_name if ":" in input_name else f"{input_name}:0"
    return graph.get_tensor_by_name(name).shape


@public("graph_util.must_run_on_cpu")
def must_run_on_cpu(node: Node | protos.NodeDef, pin_variables_on_cpu: bool = False) -> bool:
    """Whether a node or NodeDef has only a CPU kernel: strings, and integers that are sizes."""
    proto = node.node_def if isinstance(node, Node) else node
    if pin_variables_on_cpu and _is_stateful_reference(proto):
        return True
    size_type = {"Const": "dtype", "DynamicStitch": "T", "Cast": "SrcT"}.get(proto.op)
    if size_type is None:
        return False
    dtype = dtypes.as_dtype(proto.attr[size_type].type or dtypes.float32.as_datatype_enum)
    return dtype is dtypes.int32 or (dtype is dtypes.string and proto.op == "Const")


def _is_stateful_reference(proto: Any) -> bool:
    return proto.op in _VARIABLES or proto.op.startswith(("Assign", "Scatter"))


@public("graph_util.set_cpu0")
def set_cpu0(device_string: str) -> str:
    """The first CPU of the task that a device name is on."""
    spec = DeviceSpec.from_string(device_string)
    spec.device_type, spec.device_index = "CPU", 0
    return spec.to_string()


@public("train.write_graph", "io.write_graph")
def write_graph(
    graph_or_graph_def: Graph | protos.GraphDef, logdir: str, name: str, as_text: bool = True
) -> str:
    """Write a graph to a file, as a GraphDef.

    Args:
        graph_or_graph_def: a graph, or its GraphDef.
        logdir: the folder, created if it does not exist.
        name: the name of the file.
        as_text: whether to write text, else the binary form.

    Returns:
        The path.

    Example:
        >>> x = tf.constant(1.0)
        >>> tf.train.write_graph(x.graph, "model", "graph.pbtxt")
        'model/graph.pbtxt'
    """
    is_graph = isinstance(graph_or_graph_def, Graph)
    proto = graph_or_graph_def.as_graph_def() if is_graph else graph_or_graph_def
    gfile.MakeDirs(logdir)
    path = os.path.join(logdir, name)
    content = str(proto) if as_text else proto.SerializeToString()
    with gfile.GFile(path, "w" if as_text else "wb") as file:
        file.write(content)
    return path
