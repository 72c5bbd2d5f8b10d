"""The effects of nodes: those of their ops; for conditionals and loops, those of inner nodes.

An `Access` is a read or write of one piece of state: a variable or resource, identified by the
tensor that refers to it; a random stream, by the node that draws; other state, by its kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from thalweg.graph.analysis.effects import Resource
from thalweg.graph.node import Node, Tensor
from thalweg.graph.subgraph import Argument, Body, needed

State = Tensor | Node | Resource
LIST = Resource.LIST

_INTERNAL = frozenset({Resource.VARIABLE, LIST, Resource.STREAM})


class Access(NamedTuple):
    """A read or write of a piece of state."""

    resource: Resource
    state: State
    writes: bool

    def of(self, roots: Mapping[Tensor, Tensor]) -> Access:
        """The same access, with the state tensor replaced by its root."""
        if not isinstance(self.state, Tensor):
            return self
        return self._replace(state=roots.get(self.state, self.state))


def accesses(node: Node) -> Iterator[Access]:
    """The state that a node reads and writes; a body's distinct accesses in terms of the inputs."""
    if node.op.footprint:
        yield from _own_accesses(node)
    for body in node.op.bodies:
        outer = body.bound(node)
        yield from dict.fromkeys(access.of(outer) for access in body_accesses(body))
    references = node.op.parsed.references
    for index, tensor in enumerate(node.inputs):
        if tensor.dtype.is_ref_dtype and index not in references:
            yield Access(Resource.VARIABLE, tensor, False)


def _own_accesses(node: Node) -> Iterator[Access]:
    """The accesses of a node's op. Lists may alias each other through gradients and control nodes,
    so all lists are one piece of state."""
    arguments = [tensors for _, tensors in node.arguments()]
    for resource, writes, position in node.op.footprint:
        if position is None or resource is LIST:
            yield Access(resource, node if resource is Resource.STREAM else resource, writes)
        else:
            yield from (Access(resource, tensor, writes) for tensor in arguments[position])


def body_accesses(body: Body) -> Iterator[Access]:
    """The state that the nodes of a body read and write."""
    nodes = inner_nodes(body)
    roots = reference_roots(nodes)
    return (access.of(roots) for node in nodes for access in accesses(node))


def inner_nodes(body: Body) -> list[Node]:
    """The nodes of a body that run, in program order."""
    nodes = needed(body.outputs, body.targets, {})
    return [node for node in nodes if not isinstance(node.op, Argument)]


def reference_roots(nodes: Iterable[Node]) -> dict[Tensor, Tensor]:
    """For each reference, the output of its variable: an update returns the reference it takes."""
    roots: dict[Tensor, Tensor] = {}
    for node in nodes:
        for tensor in node.outputs:
            if tensor.dtype.is_ref_dtype:
                references = node.op.parsed.references
                source = node.inputs[references[0]] if references else tensor
                roots[tensor] = roots.get(source, source)
    return roots


def is_read(node: Node) -> bool:
    """Whether a node reads a variable."""
    return node.type == "Identity" and node.inputs[0].dtype.is_ref_dtype


def written_variables(node: Node) -> set[Tensor]:
    """The references among a node's inputs that it writes."""
    written = {
        state
        for resource, state, writes in accesses(node)
        if writes and resource is Resource.VARIABLE and isinstance(state, Tensor)
    }
    return written.intersection(node.inputs)


def is_visible(node: Node) -> bool:
    """Whether running a node is observable outside of its step: through a queue, a file, the
    console. Variables, lists and random streams are not counted: their users depend on the node."""
    return any(access.resource not in _INTERNAL for access in accesses(node))


def has_state(node: Node) -> bool:
    """Whether a node writes state; lists are values."""
    return any(a.writes and a.resource is not LIST for a in accesses(node))


def is_sequential(loop: Node) -> bool:
    """Whether the iterations of a loop must run one after another, since one sees the writes or the
    stream position of the one before. If it may block, only variables and handles order it."""
    written = {access.resource for access in accesses(loop) if access.writes}
    if loop.op.blocking:
        return not written.isdisjoint((Resource.VARIABLE, Resource.HANDLE))
    return bool(written - {LIST})


def locks_updates(node: Node) -> bool:
    """Whether a node or an inner node updates a variable with locking."""
    if not node.op.bodies:
        return bool(getattr(node.op, "use_locking", False))
    return any(locks_updates(inner) for body in node.op.bodies for inner in inner_nodes(body))
