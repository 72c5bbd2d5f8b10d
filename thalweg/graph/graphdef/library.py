"""Which functions of a GraphDef's library its nodes call, and how large it is once all are made.

A few functions that call each other twice name more nodes than memory holds: that is found before
anything is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from thalweg.graph.graphdef.functional import callees, functional_kind

MAX_DEPTH = 48  # of functions that call each other
_MAX_NODES = 300_000  # that calls may add, and as many times those that are there
_MAX_GROWTH = 4
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})


def called_function(node: Any, functions: Mapping[str, Any]) -> str | None:
    """The function that a node calls: by attribute, or by its op's name as in TensorFlow 1."""
    if node.op in _CALLS:
        return node.attr["f"].func.name
    return node.op if node.op in functions else None


def check_expansion(nodes: Iterable[Any], functions: Mapping[str, Any]) -> None:
    """Raise a ValueError where nodes and all that they call are too many."""
    written = sum(len(function.node_def) for function in functions.values())
    limit = _MAX_NODES + _MAX_GROWTH * written
    sizes = _sizes(functions, limit)
    total = sum(sizes.get(callee, 0) for node in nodes for callee in _used(node, functions))
    if total > limit:
        raise ValueError(
            f"graph_def calls functions that would add more than {limit} nodes to the graph."
        )


def _sizes(functions: Mapping[str, Any], limit: int) -> dict[str, int]:
    """How many nodes each function is with all that it calls, up to a limit; what calls itself is
    counted once here, and refused later."""
    sizes: dict[str, int] = {}
    entered: set[str] = set()
    pending = list(functions)
    while pending:
        name = pending[-1]
        inside = [callee for node in functions[name].node_def for callee in _used(node, functions)]
        missing = [c for c in inside if c in functions and c not in entered]
        if name not in entered and missing:
            entered.add(name)
            pending += dict.fromkeys(missing)
            continue
        entered.add(name)
        known = sum(sizes.get(callee, 0) for callee in inside)
        sizes[name] = min(limit + 1, len(functions[name].node_def) + known)
        pending.pop()
    return sizes


def _used(node: Any, functions: Mapping[str, Any]) -> list[str]:
    callee = called_function(node, functions)
    if callee is not None:
        return [callee]
    return callees(node) if functional_kind(node) is not None else []
