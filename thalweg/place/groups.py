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

    def __init__(self, soft: bool, node: Node) -> None:
        """A group of one node."""
        self._soft, self.first = soft, node
        self.accelerated = is_accelerated(node)  # accelerators may run it
        self.requesting = [node] if node.device else []  # the members with a device request
        self.request = DeviceSpec.from_string(node.device)
        self.size = 1
        self.device = ""  # the assigned device
        self.error: errors.InvalidArgumentError | None = None
        self.joined = self  # the group that has its members now

    def join(self, other: Group, overrides: bool = False) -> None:
        """Add the members of another group. With `overrides`, a conflicting request of the other
        is ignored."""
        other.joined = self
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
    """The groups of nodes, joined in union-find manner, by node and by colocation name."""

    def __init__(self, soft: bool) -> None:
        self._soft = soft
        self._groups: dict[Node | bytes, Group] = {}  # as they were before they joined others

    def __contains__(self, node: Node) -> bool:
        return node in self._groups

    def of(self, member: Node | bytes) -> Group:
        """The group of a node or name."""
        group = self._groups[member]
        while group.joined is not group:
            group.joined = group.joined.joined
            group = group.joined
        return group

    def add(self, node: Node) -> None:
        """Add a node to the groups that it names."""
        group = self._groups[node] = Group(self._soft, node)
        for name in node.colocation_groups():
            self._groups.setdefault(name, group)
            self.union(node, name)

    def union(self, one: Node | bytes, other: Node | bytes, overrides: bool = False) -> None:
        """Join two groups. With `overrides`, conflicting requests of the second are ignored."""
        first, second = self.of(one), self.of(other)
        if first is not second:
            first.join(second, overrides)


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
    nodes = one.first, other.first
    named = " and ".join(f"'{node.name}' (made at {node.origin})" for node in nodes)
    return errors.InvalidArgumentError(
        None,
        nodes[-1],
        f"Cannot colocate {named}: earlier steps of the session placed them on {one.device} and "
        f"{other.device}. Build the graph before the first step, or ask for a device",
    )
