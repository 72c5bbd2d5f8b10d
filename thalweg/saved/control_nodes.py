"""Conditionals and loops in MetaGraphDefs.

A GraphDef represents them by Switch, Merge and the like: every system runs these, but they can be
neither differentiated nor compiled. A MetaGraphDef therefore records, in a separate collection,
which nodes represent which conditional or loop. `described` writes the records.
`rebuild_control_nodes` makes a GraphDef with one node for each, unless other nodes use nodes inside
it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from thalweg import protos
from thalweg.graph.graph import Graph
from thalweg.graph.graphdef.node_defs import node_name
from thalweg.graph.graphdef.serial import function_library, groups, node_def
from thalweg.graph.node import Node

COLLECTION = "thalweg_control_nodes"


def described(graph: Graph, graph_def: Any) -> list[bytes]:
    """For each conditional and loop of a graph, its definition and the nodes that represent it.

    Those that have or use traces are skipped: in the GraphDef, a trace is one of the nodes that
    represent the traced conditional or loop.
    """
    if not any(node.op.bodies for node in graph.nodes):
        return []
    names = {node.name for node in graph_def.node}
    parts = groups(graph)
    traces = {node for node, part in parts if not part}
    traced = {tensor.op for node in traces for tensor in node.inputs}
    return [
        _description(node, part).SerializeToString()
        for node, part in parts
        if node.op.bodies
        and node not in traced
        and not any(tensor.op in traces for tensor in node.inputs)
        and all(inner.name in names for inner in part)
    ]


def _description(node: Node, part: Iterable[Node]) -> Any:
    """A GraphDef: the node itself, then the names of the nodes that represent it."""
    proto = protos.GraphDef()
    whole = node_def(node)
    whole.attr.pop("_class", None)
    proto.node.append(whole)
    for inner in part:
        if inner.name != node.name:
            proto.node.add(name=inner.name)
    proto.library.function.extend(function_library([node], node_def).values())
    return proto


def rebuild_control_nodes(
    graph_def: Any, descriptions: Iterable[bytes], named: Collection[str]
) -> Any:
    """A GraphDef with conditionals and loops as nodes, except those with nodes in `named`."""
    parts = [part for content in descriptions if (part := _parsed(content)) is not None]
    changed = set(_changed(graph_def, parts, named))
    whole = [part for part in parts if part.node[0].name not in changed]
    if not whole:
        return graph_def
    result = type(graph_def)()
    result.versions.CopyFrom(graph_def.versions)
    result.library.CopyFrom(graph_def.library)
    gone = {inner.name for part in whole for inner in part.node[1:]}
    heads = {part.node[0].name: part.node[0] for part in whole}
    for node in graph_def.node:
        if node.name not in gone:
            result.node.append(_with_device(heads[node.name], node) if node.name in heads else node)
    _add_functions(result.library, whole)
    return result


def _parsed(content: bytes) -> Any:
    """A description, or None: what cannot be read is not needed either."""
    from google.protobuf.message import DecodeError

    try:
        part = protos.GraphDef.FromString(content)
    except DecodeError:
        return None
    return part if part.node else None


def _changed(graph_def: Any, parts: Sequence[Any], named: Collection[str]) -> Iterator[str]:
    """The names of those whose inside is used by others, or is not what it was."""
    owners = {inner.name: part.node[0].name for part in parts for inner in part.node[1:]}
    taken = {part.node[0].name: {*map(node_name, part.node[0].input)} for part in parts}
    present = {node.name for node in graph_def.node}
    yield from (owner for inner, owner in owners.items() if not present.issuperset((inner, owner)))
    yield from (owners[name] for name in named if name in owners)
    for node in graph_def.node:
        home = owners.get(node.name, node.name)
        for source in map(node_name, node.input):
            owner = owners.get(source)
            if owner not in (None, home):
                yield str(owner)
            elif owner is None and node.name in owners and source not in taken[home]:
                yield home


def _with_device(head: Any, node: Any) -> Any:
    head.device = node.device
    return head


def _add_functions(library: Any, parts: Iterable[Any]) -> None:
    known = {function.signature.name for function in library.function}
    for part in parts:
        for function in part.library.function:
            if function.signature.name not in known:
                known.add(function.signature.name)
                library.function.append(function)
