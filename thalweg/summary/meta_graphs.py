"""The MetaGraphDef that goes with a graph in an event file: its nodes and the ops they use."""

from __future__ import annotations

from typing import Any

from thalweg import protos
from thalweg.graph.graphdef import versions
from thalweg.graph.graphdef.serial import op_def
from thalweg.graph.op import REGISTRY
from thalweg.version import __version__


def meta_graph_of(graph_def: Any) -> Any:
    """A MetaGraphDef with a graph and the definitions of its ops."""
    proto = protos.MetaGraphDef()
    proto.graph_def.CopyFrom(protos.as_message(graph_def, protos.GraphDef))
    inner = (node for function in graph_def.library.function for node in function.node_def)
    used = sorted({node.op for node in (*graph_def.node, *inner)})
    known = [op_def(REGISTRY[name]) for name in used if name in REGISTRY]
    proto.meta_info_def.stripped_op_list.op.extend(known)
    proto.meta_info_def.tensorflow_version = __version__
    proto.meta_info_def.tensorflow_git_version = versions.GIT_VERSION
    return proto
