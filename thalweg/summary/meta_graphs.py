"""The MetaGraphDef that goes with a graph in an event file: its nodes and the ops they use."""

from __future__ import annotations

from typing import Any

from thalweg.graph.op import REGISTRY
from thalweg.graph.protos import message
from thalweg.graph.serial import op_def


def meta_graph_of(graph_def: Any) -> Any:
    """A MetaGraphDef with a graph and the definitions of its ops."""
    proto = message("meta_graph", "MetaGraphDef")()
    proto.graph_def.CopyFrom(graph_def)
    used = sorted({node.op for node in graph_def.node})
    known = [op_def(REGISTRY[name]) for name in used if name in REGISTRY]
    proto.meta_info_def.stripped_op_list.op.extend(known)
    return proto
