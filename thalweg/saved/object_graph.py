"""Variables of a TensorFlow 2 saved model that its saver leaves out, found by its objects.

A saved model tells who holds whom; its checkpoint tells the same, and under which key each object's
value lies. Walked side by side, the two say which key belongs to which variable of the graph.
"""

from __future__ import annotations

from typing import Any

from thalweg import protos
from thalweg.graph.graph import Graph
from thalweg.graph.node import Tensor
from thalweg.saved.checkpoints import CheckpointReader
from thalweg.variables.save_slice import with_scope

_OBJECTS_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "VARIABLE_VALUE"


def unrestored_variables(
    meta: Any, prefix: str, graph: Graph, scope: str | None
) -> dict[str, Tensor]:
    """The references of variables that the saver of a MetaGraphDef does not restore, by the keys of
    their values in the checkpoint."""
    nodes = {node.name: node for node in meta.graph_def.node}
    restore = nodes.get(meta.saver_def.restore_op_name.partition(":")[0])
    sources: list[str] = [] if restore is None else list(restore.input)
    restored = {source.partition(":")[0] for source in sources}
    names = {
        place: saved.variable.name
        for place, saved in enumerate(meta.object_graph_def.nodes)
        if saved.WhichOneof("kind") == "variable"
    }
    missing = {
        place: name
        for place, name in names.items()
        if name in nodes and nodes[name].op == "VarHandleOp" and name not in restored
    }
    if not missing:
        return {}
    keys = _checkpoint_keys(meta.object_graph_def, prefix)
    return {
        keys[place]: graph.get_tensor_by_name(f"{with_scope(name, scope)}:0")
        for place, name in missing.items()
        if place in keys
    }


def _checkpoint_keys(objects: Any, prefix: str) -> dict[int, str]:
    """The keys of the objects of a saved model that the checkpoint has values for, by number."""
    reader = CheckpointReader(prefix)
    if not reader.has_tensor(_OBJECTS_KEY):
        return {}
    content: Any = reader.get_tensor(_OBJECTS_KEY)
    stored = protos.TrackableObjectGraph.FromString(bytes(content))
    result: dict[int, str] = {}
    pending, seen = [(0, 0)], {(0, 0)}
    while pending:
        place, other = pending.pop()
        if place >= len(objects.nodes) or other >= len(stored.nodes):
            continue
        for attribute in stored.nodes[other].attributes:
            if attribute.name == _VALUE:
                result[place] = attribute.checkpoint_key
        children = {child.local_name: child.node_id for child in stored.nodes[other].children}
        for child in objects.nodes[place].children:
            pair = child.node_id, children.get(child.local_name, -1)
            if pair[1] >= 0 and pair not in seen:
                seen.add(pair)
                pending.append(pair)
    return result
