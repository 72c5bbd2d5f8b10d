"""Colocation groups: sets of nodes that must share a device, and what they ask for together.

Nodes are joined by name (`tf.colocate_with`, a `_class` of "loc:@x") and by edges: an op that
writes a variable runs where the variable is, and so does one that takes a resource, whatever else
it asks for. Names that ask for different devices are an error.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from thalweg import errors
from thalweg.graph.device import DeviceSpec
from thalweg.graph.dtypes import DType
from thalweg.graph.node import Node, Tensor
from thalweg.place.devices import merged, without_device
from thalweg.place.kinds import ANY


class Group:
    """Nodes that share a device."""

    def __init__(self) -> None:
        self.request = DeviceSpec()
        self.asking: list[Node] = []  # the members that ask for something
        self.kinds = ANY  # of devices that have all the kernels
        self.first: Node | None = None
        self.size = 0
        self.device = ""  # the one that was chosen
        self.error: errors.InvalidArgumentError | None = None

    def add(self, node: Node, kinds: frozenset[str], soft: bool) -> None:
        """Take a node in, which such kinds of devices may run."""
        self.first = self.first or node
        self.size += 1
        self.kinds &= kinds
        if node.device:
            self._ask(DeviceSpec.from_string(node.device), [node], soft)

    def join(self, other: Group, soft: bool, overrides: bool = False) -> None:
        """Take another group in; this one may override what the other asks for in conflict."""
        self.first = self.first or other.first
        self.size += other.size
        self.kinds &= other.kinds
        self.error = self.error or other.error
        if other.asking and not (overrides and merged(self.request, other.request) is None):
            self._ask(other.request, other.asking, soft)
        if self.device and other.device and self.device != other.device:
            self.error = self.error or _apart(self, other)
        self.device = self.device or other.device

    def _ask(self, request: DeviceSpec, nodes: Iterable[Node], soft: bool) -> None:
        both = merged(self.request, request)
        asking = list(nodes)
        if both is None and soft:
            both = merged(without_device(self.request), without_device(request)) or self.request
        elif both is None:
            self.error = self.error or _conflict(self.asking, asking)
            both = self.request
        self.request = both
        self.asking += asking


class Groups:
    """A partition of nodes and group names into groups, by union and find."""

    def __init__(self, soft: bool, kinds_of: Callable[[Node], frozenset[str]]) -> None:
        self._soft, self._kinds_of = soft, kinds_of
        self._parents: dict[Node | bytes, Node | bytes] = {}
        self._groups: dict[Node | bytes, Group] = {}

    def __contains__(self, node: Node) -> bool:
        return node in self._parents

    def of(self, member: Node | bytes) -> Group:
        """The group of a node."""
        return self._groups[self._find(member)]

    def add(self, node: Node) -> None:
        """A node, in the groups that it names."""
        self._find(node)
        self.of(node).add(node, self._kinds_of(node), self._soft)
        for name in node.colocation_groups():
            self.union(node, name)

    def union(self, one: Node | bytes, other: Node | bytes, overrides: bool = False) -> None:
        """Have two share a device; the first `overrides` what the other asks for in conflict."""
        first, second = self._find(one), self._find(other)
        if first != second:
            self._parents[second] = first
            self._groups[first].join(self._groups.pop(second), self._soft, overrides)

    def _find(self, member: Node | bytes) -> Node | bytes:
        if member not in self._parents:
            self._parents[member], self._groups[member] = member, Group()
        while self._parents[member] != member:
            self._parents[member] = self._parents[self._parents[member]]
            member = self._parents[member]
        return member


def bound_inputs(node: Node, objects: Container[DType]) -> list[Tensor]:
    """The inputs of a node whose device it must share: variables it writes, and those of dtypes
    whose values are objects that stay where they are."""
    written = [node.inputs[place] for place in node.op.parsed.references]
    return written + [tensor for tensor in node.inputs if tensor.dtype in objects]


def _conflict(one: list[Node], other: list[Node]) -> errors.InvalidArgumentError:
    asked = "; ".join(_asked(node) for node in [*one[:2], *other[:2]])
    return errors.InvalidArgumentError(
        None,
        other[0],
        f"Cannot colocate nodes that ask for different devices: {asked}. They are in one group by "
        "tf.colocate_with. Ask for one device, or let nodes fall back with "
        "tf.ConfigProto(allow_soft_placement=True)",
    )


def _apart(one: Group, other: Group) -> errors.InvalidArgumentError:
    nodes = [node for node in (one.first, other.first) if node is not None]
    named = " and ".join(f"'{node.name}' (made at {node.origin})" for node in nodes)
    return errors.InvalidArgumentError(
        None,
        nodes[-1],
        f"Cannot colocate {named}: earlier steps of the session placed them on {one.device} and "
        f"{other.device}. Build the graph before the first step, or ask for a device",
    )


def _asked(node: Node) -> str:
    return f"'{node.name}' (made at {node.origin}) asks for '{node.device}'"
