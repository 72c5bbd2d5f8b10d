"""Frozen graphs: what some outputs need, variables replaced by the values of a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Any

from thalweg import protos
from thalweg.graph.graph import Graph
from thalweg.graph.graphdef.importer import import_graph_def
from thalweg.graph.graphdef.util import convert_variables_to_constants, remove_training_nodes
from thalweg.inspect.session import Session
from thalweg.platform.files.durable import replace_file
from thalweg.public import public
from thalweg.saved.checkpoint_state import checkpoint_exists
from thalweg.saved.checkpoints import CheckpointReader
from thalweg.saved.meta_graph import read_proto
from thalweg.saved.saved_model import load, maybe_saved_model_directory
from thalweg.saved.saver import Saver, import_meta_graph
from thalweg.saved.signatures import SERVING
from thalweg.variables.collections import is_buffer


@public("graph_util.freeze")
def freeze(
    source: str,
    output_node_names: Sequence[str],
    output_graph: str | None = None,
    tags: Collection[str] = (SERVING,),
    keep_training_nodes: bool = False,
) -> protos.GraphDef:
    """The GraphDef of a saved model's folder or of a checkpoint with its `.meta`, frozen.

    `tf.graph_util.freeze("/tmp/model-100", ["logits"])`
    """
    with Graph().as_default() as graph, Session(graph=graph) as session:
        if maybe_saved_model_directory(source):
            load(session, tags, source)
        else:
            saver = import_meta_graph(f"{source}.meta", clear_devices=True)
            if saver is not None:
                saver.restore(session, source)
        frozen = convert_variables_to_constants(
            session, graph.as_graph_def(), list(output_node_names)
        )
    if not keep_training_nodes:
        frozen = remove_training_nodes(frozen, output_node_names)
    if output_graph is not None:
        replace_file(output_graph, frozen.SerializeToString())
    return frozen


def freeze_graph(
    input_graph: str,
    input_saver: str,
    input_binary: bool,
    input_checkpoint: str,
    output_node_names: str,
    restore_op_name: str | None,
    filename_tensor_name: str | None,
    output_graph: str,
    clear_devices: bool,
    initializer_nodes: str,
    variable_names_whitelist: str = "",
    variable_names_blacklist: str = "",
) -> Any:
    """Freeze a GraphDef in a file with the values of a checkpoint, into another file."""
    for path in filter(None, (input_graph, input_saver)):
        if not os.path.exists(path):
            raise OSError(f"{path} does not exist")
    if not checkpoint_exists(input_checkpoint):
        raise OSError(f"Input checkpoint '{input_checkpoint}' doesn't exist!")
    if not output_node_names:
        raise ValueError("The names of the output nodes are missing")
    graph_def = read_proto(input_graph, protos.GraphDef)
    if clear_devices:
        for node in graph_def.node:
            node.device = ""
    with Graph().as_default() as graph, Session(graph=graph) as session:
        import_graph_def(graph_def, name="")
        _restore(session, graph, input_saver, input_checkpoint)
        if initializer_nodes:
            session.run(initializer_nodes.replace(" ", "").split(","))
        frozen = convert_variables_to_constants(
            session,
            graph_def,
            output_node_names.replace(" ", "").split(","),
            variable_names_whitelist.split(",") if variable_names_whitelist else None,
            variable_names_blacklist.split(",") if variable_names_blacklist else None,
        )
    replace_file(output_graph, frozen.SerializeToString())
    return frozen


def _restore(session: Session, graph: Graph, saver_file: str, checkpoint: str) -> None:
    """By the saver of a file, or else all variables that the checkpoint has by name."""
    if saver_file:
        Saver(saver_def=read_proto(saver_file, protos.SaverDef)).restore(session, checkpoint)
        return
    known = CheckpointReader(checkpoint).get_variable_to_shape_map()
    nodes = [node for node in graph.nodes if is_buffer(node) and node.name in known]
    found = {node.name: node.outputs[0] for node in nodes}
    if found:
        Saver(found, name="restored_to_freeze").restore(session, checkpoint)
