"""The effects of nodes: those of their ops; of conditionals and loops, those of the nodes inside.

An `Access` is a read or write of one piece of state: a variable or a handle by the tensor that
names it, a random stream by the node that draws, other state by its kind.
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
        """The same access, of what a tensor stands for."""
        if not isinstance(self.state, Tensor):
            return self
        return self._replace(state=roots.get(self.state, self.state))


def accesses(node: Node) -> Iterator[Access]:
    """What a node reads and writes besides the values it takes and gives."""
    footprint = node.op.footprint
    if footprint.inputs:
        yield from _named(node)
    for resource, writes in footprint.others:
        yield Access(resource, node if resource is Resource.STREAM else resource, writes)
    for body in node.op.bodies:
        yield from _mapped(node, body)
    references = node.op.parsed.references
    for place, tensor in enumerate(node.inputs):
        if tensor.dtype.is_ref_dtype and place not in references:
            yield Access(Resource.VARIABLE, tensor, False)


def _named(node: Node) -> Iterator[Access]:
    """The uses of what inputs name. Lists alias each other through gradients and control nodes: all
    of them are one state."""
    for place, (_, tensors) in enumerate(node.arguments()):
        use = node.op.footprint.inputs.get(place)
        if use is not None:
            for tensor in tensors:
                yield Access(use.resource, LIST if use.resource is LIST else tensor, use.writes)


def _mapped(node: Node, body: Body) -> Iterator[Access]:
    """The accesses of a body, what it captured as the node takes it, each of them once."""
    first = len(node.inputs) - len(body.arguments)
    outer = {t: node.inputs[first + place] for place, t in enumerate(body.arguments)}
    return iter(dict.fromkeys(access.of(outer) for access in body_accesses(body)))


def body_accesses(body: Body) -> Iterator[Access]:
    """What the nodes of a body read and write."""
    nodes = inner_nodes(body)
    roots = reference_roots(nodes)
    return (access.of(roots) for node in nodes for access in accesses(node))


def inner_nodes(body: Body) -> list[Node]:
    """The nodes of a body that run, in order."""
    nodes = needed(body.outputs, body.targets, {})
    return [node for node in nodes if not isinstance(node.op, Argument)]


def reference_roots(nodes: Iterable[Node]) -> dict[Tensor, Tensor]:
    """For each reference, the variable's own: an update passes on the one it changed."""
    roots: dict[Tensor, Tensor] = {}
    for node in nodes:
        for tensor in node.outputs:
            if tensor.dtype.is_ref_dtype:
                places = node.op.parsed.references
                source = node.inputs[places[0]] if places else tensor
                roots[tensor] = roots.get(source, source)
    return roots


def written_variables(node: Node) -> set[Tensor]:
    """The references that a node takes and writes."""
    found = {
        state
        for resource, state, writes in accesses(node)
        if writes and resource is Resource.VARIABLE and isinstance(state, Tensor)
    }
    return found.intersection(node.inputs)


def is_visible(node: Node) -> bool:
    """Whether others can see that a node ran, now or in a later step: by a queue, a file, the
    console. A variable has its versions; lists and random numbers are seen by who takes them."""
    return any(access.resource not in _INTERNAL for access in accesses(node))


def has_state(node: Node) -> bool:
    """Whether a node leaves something besides its values: lists are values, as they flow."""
    return any(a.writes and a.resource is not LIST for a in accesses(node))


def is_sequential(loop: Node) -> bool:
    """Whether the iterations of a loop must follow one another: what one writes, or draws from a
    stream, the next one sees. Those that may block are ordered only by what is named to them."""
    named = (Resource.VARIABLE, Resource.HANDLE)
    written = {access.resource for access in accesses(loop) if access.writes}
    if loop.op.blocking:
        return not written.isdisjoint(named)
    return bool(written - {LIST})


def locks_updates(node: Node) -> bool:
    """Whether a node, or one inside it, updates a variable with locking."""
    if not node.op.bodies:
        return bool(getattr(node.op, "use_locking", False))
    return any(locks_updates(inner) for body in node.op.bodies for inner in inner_nodes(body))
