"""What a node does besides giving values: which variables it writes, and what it does outside.

For a conditional or a loop, that is what the nodes inside it do.
"""

from __future__ import annotations

from collections.abc import Iterator

from thalweg.graph.node import Node, Tensor
from thalweg.graph.subgraph import Argument, Body, bodies_of, needed


def inner_nodes(body: Body) -> list[Node]:
    """The nodes of a body that run, in order."""
    nodes = needed(body.outputs, body.targets, {})
    return [node for node in nodes if not isinstance(node.op, Argument)]


def written_places(node: Node) -> frozenset[int]:
    """The inputs of a node that are variables it writes."""
    bodies = bodies_of(node)
    if not bodies:
        return frozenset(node.op.parsed.references)
    first = len(node.inputs) - len(bodies[0].arguments)
    found: set[int] = set()
    for body in bodies:
        written = set(written_references(body))
        found |= {first + p for p, tensor in enumerate(body.arguments) if tensor in written}
    return frozenset(found)


def written_references(body: Body) -> Iterator[Tensor]:
    """The references from outside that nodes of a body write."""
    roots: dict[Tensor, Tensor] = {}
    for node in inner_nodes(body):
        for place in written_places(node):
            yield roots.get(node.inputs[place], node.inputs[place])
        references = node.op.parsed.references
        for tensor in node.outputs:
            if tensor.dtype.is_ref_dtype and references:
                source = node.inputs[references[0]]
                roots[tensor] = roots.get(source, source)


def has_host_effects(node: Node) -> bool:
    """Whether a node, or one inside it, does something that others may see outside of the step."""
    bodies = bodies_of(node)
    if not bodies:
        return node.op.stateful and node.op.host_only
    return any(has_host_effects(inner) for body in bodies for inner in inner_nodes(body))


def locks_updates(node: Node) -> bool:
    """Whether a node, or one inside it, updates a variable with locking."""
    bodies = bodies_of(node)
    if not bodies:
        return bool(getattr(node.op, "use_locking", False))
    return any(locks_updates(inner) for body in bodies for inner in inner_nodes(body))
