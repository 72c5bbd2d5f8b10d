"""Colocation groups: sets of nodes that must share a device, and their merged device request.

Nodes are joined by name (`tf.colocate_with`, a `_class` of "loc:@x") and by edges: an op that
writes a variable or takes a resource runs on its device, whatever it requests itself. Conflicting
requests in a group joined by name are an error.
"""

from __future__ import annotations

from collections.abc import Container

from thalweg import errors
from thalweg.graph.device import DeviceSpec
from thalweg.graph.dtypes import DType
from thalweg.graph.node import Node, Tensor
from thalweg.place.accelerated import is_accelerated
from thalweg.place.devices import merge_requests, without_device


class Group:
    """Nodes that share a device. With `soft`, conflicting requests are relaxed to their tasks."""

    def __init__(self, soft: bool, node: Node | None = None) -> None:
        """A group of one node, or of none."""
        self._soft, self.first = soft, node
        self.accelerated = node is None or is_accelerated(node)  # accelerators may run it
        #: The members with a device request.
        self.requesting = [node] if node is not None and node.device else []
        self.request = DeviceSpec.from_string(self.requesting[0].device if self.requesting else "")
        self.size = int(node is not None)
        self.device = ""  # the assigned device
        self.error: errors.InvalidArgumentError | None = None

    def join(self, other: Group, overrides: bool = False) -> None:
        """Add the members of another group. With `overrides`, a conflicting request of the other
        is ignored."""
        self.first = self.first or other.first
        self.size += other.size
        self.accelerated = self.accelerated and other.accelerated
        self.error = self.error or other.error
        merged = merge_requests(self.request, other.request)
        if merged is not None or not overrides:
            if merged is None and self._soft:
                merged = merge_requests(without_device(self.request), without_device(other.request))
            elif merged is None:
                self.error = self.error or _conflict(self.requesting, other.requesting)
            self.request = merged or self.request
            self.requesting += other.requesting
        if self.device and other.device and self.device != other.device:
            self.error = self.error or _already_placed(self, other)
        self.device = self.device or other.device


class Groups:
    """A union-find structure over nodes and colocation names."""

    def __init__(self, soft: bool) -> None:
        self._soft = soft
        self._parents: dict[Node | bytes, Node | bytes] = {}
        self._groups: dict[Node | bytes, Group] = {}

    def __contains__(self, node: Node) -> bool:
        return node in self._parents

    def of(self, member: Node | bytes) -> Group:
        """The group of a node or name."""
        return self._groups[self._find(member)]

    def add(self, node: Node) -> None:
        """Add a node to the groups that it names."""
        self._add(node, Group(self._soft, node))
        for name in node.colocation_groups():
            self.union(node, name)

    def union(self, one: Node | bytes, other: Node | bytes, overrides: bool = False) -> None:
        """Join two groups. With `overrides`, conflicting requests of the second are ignored."""
        first, second = self._find(one), self._find(other)
        if first != second:
            self._parents[second] = first
            self._groups[first].join(self._groups.pop(second), overrides)

    def _add(self, member: Node | bytes, group: Group) -> None:
        self._parents[member], self._groups[member] = member, group

    def _find(self, member: Node | bytes) -> Node | bytes:
        if member not in self._parents:
            self._add(member, Group(self._soft))
        while self._parents[member] != member:
            self._parents[member] = self._parents[self._parents[member]]
            member = self._parents[member]
        return member


def colocated_inputs(node: Node, handle_dtypes: Container[DType]) -> list[Tensor]:
    """The inputs whose device a node must share: variables that it writes, and handles of objects,
    which cannot be transferred."""
    written = [node.inputs[number] for number in node.op.parsed.references]
    return written + [tensor for tensor in node.inputs if tensor.dtype in handle_dtypes]


def _conflict(one: list[Node], other: list[Node]) -> errors.InvalidArgumentError:
    requests = "; ".join(
        f"'{node.name}' (made at {node.origin}) asks for '{node.device}'"
        for node in [*one[:2], *other[:2]]
    )
    return errors.InvalidArgumentError(
        None,
        other[0],
        f"Cannot colocate nodes that ask for different devices: {requests}. They are in one group "
        "by tf.colocate_with. Ask for one device, or let nodes fall back with "
        "tf.ConfigProto(allow_soft_placement=True)",
    )


def _already_placed(one: Group, other: Group) -> errors.InvalidArgumentError:
    nodes = [node for node in (one.first, other.first) if node is not None]
    named = " and ".join(f"'{node.name}' (made at {node.origin})" for node in nodes)
    return errors.InvalidArgumentError(
        None,
        nodes[-1],
        f"Cannot colocate {named}: earlier steps of the session placed them on {one.device} and "
        f"{other.device}. Build the graph before the first step, or ask for a device",
    )
