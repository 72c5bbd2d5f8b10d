"""Placement: assigns each node of a graph to a device of the session, once for all steps.

A colocation group goes to the first device that satisfies the requests of its nodes and has their
kernels, accelerators before CPUs. Nodes without a request go to the first device, with three
exceptions: ops on shapes and reads of variables follow their input, sources follow their consumers
if these are on one device, and nodes inside a conditional or a loop follow it. A request that no
device satisfies is an error that names the user's line, unless soft placement is on. A request for
a type of device that this machine lacks (a GPU) falls back with a warning, so that programs written
for one run without it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence

from thalweg import errors
from thalweg.control.traces import Trace
from thalweg.graph.analysis.node_effects import is_read
from thalweg.graph.device import DeviceSpec, is_cpu
from thalweg.graph.dtypes import resource, variant
from thalweg.graph.graph import Graph
from thalweg.graph.node import Node, Tensor
from thalweg.graph.subgraph import Argument, is_constant
from thalweg.place.devices import accelerated_first, without_device
from thalweg.place.groups import Group, Groups, colocated_inputs
from thalweg.platform import tf_logging
from thalweg.platform.caches import Bounded

Placement = dict[Node, str]


class Placer:
    """Places the nodes of one session. Nodes never move: their state is on their device."""

    def __init__(self, devices: Sequence[str], soft: bool = False) -> None:
        self.devices = tuple(devices)  # names
        self._devices = accelerated_first(self.devices)
        self._soft = soft
        self._groups = Groups(soft)
        # A list is an object of its process: all nodes that use it must be on one task.
        self._handle_dtypes = {resource, variant} if self._devices.span_tasks else {resource}
        self._node_count = 0  # nodes of the graph that are placed
        self._outer: dict[Tensor, Tensor] = {}  # the inputs that arguments of bodies stand for
        self._single: dict[str, str] = {"": devices[0]}  # the only device, by feasible request
        self._lock = threading.Lock()

    def place(self, nodes: Sequence[Node]) -> Placement:
        """The devices of a step's nodes and, if there are several devices, of the nodes inside
        them."""
        if len(self.devices) == 1:
            return {node: self._place_on_single(node) for node in nodes}
        with self._lock:
            for node in nodes[:1]:
                self._extend(node.graph)
            for node in nodes:
                self._place_new_inner(node)
            return {each: self._device(each) for node in nodes for each in with_inner(node)}

    def _place_on_single(self, node: Node) -> str:
        """The only device, which must satisfy the node's request."""
        device = self._single.get(node.device)
        if device is None:
            device = self._single[node.device] = self._feasible_device(Group(self._soft, node))
        return device

    def _device(self, node: Node) -> str:
        group = self._groups.of(node)
        if group.error is not None:
            raise group.error
        return group.device

    # The whole graph

    def _extend(self, graph: Graph) -> None:
        """Place the nodes that were added to the graph since the last call."""
        new = graph.nodes[self._node_count :]
        self._node_count += len(new)
        for node in new:
            self._add_to_groups(node)
        for node in new:
            self._assign(node, self._devices.names[0])
        for node in new:
            self._follow_consumers(node)

    def _place_new_inner(self, node: Node) -> None:
        """Place nodes that were added inside a placed node: gradients add nodes to bodies."""
        if any(inner not in self._groups for inner in with_inner(node)):
            self._add_to_groups(node)
            self._assign(node, self._groups.of(node).device)

    def _add_to_groups(self, node: Node) -> None:
        """Add a node and those inside it to their groups."""
        if node not in self._groups:
            self._groups.add(node)
            handles = [self._source(t) for t in colocated_inputs(node, self._handle_dtypes)]
            traced = node.inputs[:1] if isinstance(node.op, Trace) else ()
            for tensor in (*handles, *traced):
                if tensor.op in self._groups:  # the source of a back edge follows, and joins then
                    self._groups.union(tensor.op, node, overrides=True)
        for body in node.op.bodies:
            self._outer.update(body.bound(node))
        for inner in _inner_nodes(node):
            self._add_to_groups(inner)

    def _source(self, tensor: Tensor) -> Tensor:
        """The tensor outside of all bodies that an argument of a body stands for."""
        while tensor in self._outer:
            tensor = self._outer[tensor]
        return tensor

    # One node

    def _assign(self, node: Node, default: str) -> None:
        """Place a node and those inside it; without a request or input to follow, on `default`."""
        inner = list(_inner_nodes(node))
        group = self._requested_group(node)
        if not group.device:
            preferred = self._followed_device(node) or self._common_device(inner) or default
            group.device = self._supporting_device(group, preferred)
        for each in inner:
            self._assign(each, group.device)

    def _supporting_device(self, group: Group, preferred: str) -> str:
        """The preferred device, or the first one that has all kernels of a group."""
        names = (preferred, *self._devices.names)
        supporting = (name for name in names if group.accelerated or is_cpu(name))
        return next(supporting, preferred)

    def _common_device(self, nodes: Iterable[Node]) -> str:
        """The only device that nodes, and those inside them, require; "" if there is none."""
        nodes = [each for node in nodes for each in with_inner(node) if not is_constant(each)]
        devices = {self._required_device(node) for node in nodes} - {""}
        return devices.pop() if len(devices) == 1 else ""

    def _required_device(self, node: Node) -> str:
        """The device that a request or a variable determines for a node, or ""."""
        requested = self._requested_group(node).device
        return requested or (self._followed_device(node) if is_read(node) else "")

    def _followed_device(self, node: Node) -> str:
        """The device of the input that a node without a request follows, or ""."""
        if not (is_read(node) or (node.op.of_shapes and node.inputs)):
            return ""
        followed = self._source(node.inputs[0]).op
        return self._groups.of(followed).device if followed in self._groups else ""

    def _follow_consumers(self, node: Node) -> None:
        """Move a source without a request to the device of its consumers, if it is one."""
        group = self._groups.of(node)
        if not _is_source(node) or group.requesting or group.size > 1:
            return
        consumers = node.outputs[0].consumers()
        devices = {self._groups.of(each).device for each in consumers if each in self._groups}
        if len(devices) == 1:
            group.device = self._supporting_device(group, *devices)

    # Requests

    def _requested_group(self, node: Node) -> Group:
        """The group of a node, its device assigned if it has a request. A request that cannot be
        satisfied becomes the error of steps that run the group."""
        group = self._groups.of(node)
        if not group.device and group.requesting:
            try:
                group.device = self._feasible_device(group)
            except errors.InvalidArgumentError as error:
                group.error = group.error or error
                group.device = self._devices.names[0]
        return group

    def _feasible_device(self, group: Group) -> str:
        """The first device that satisfies a group's request; raises InvalidArgumentError."""
        feasible: Sequence[str] = self._devices.feasible(group.request, group.accelerated)
        if not feasible and (self._soft or self._devices.lacks_type(group.request)):
            if not self._soft:
                _warn_absent(group.requesting[0])
            feasible = self._devices.feasible(without_device(group.request), group.accelerated)
            feasible = feasible or self._devices.names
        if not feasible:
            raise self._infeasible(group.requesting[0])
        return feasible[0]

    def _infeasible(self, node: Node) -> errors.InvalidArgumentError:
        exists = self._devices.feasible(DeviceSpec.from_string(node.device))
        why = f"{node.type} has no kernel for" if exists else "no device matches"
        return errors.InvalidArgumentError(
            None,
            node,
            f"Cannot assign a device to node '{node.name}': {why} '{node.device}'. "
            f"Devices here: {', '.join(self.devices)}. Change the tf.device scope, or let nodes "
            "fall back with tf.ConfigProto(allow_soft_placement=True)",
        )


def _inner_nodes(node: Node) -> Iterator[Node]:
    """The nodes in the bodies of a node, except arguments, which stand for outer tensors."""
    nodes = (inner for body in node.op.bodies for inner in body.graph.nodes)
    return (inner for inner in nodes if not isinstance(inner.op, Argument))


def with_inner(node: Node) -> Iterator[Node]:
    """A node and all nodes inside it."""
    yield node
    for inner in _inner_nodes(node):
        yield from with_inner(inner)


def used_devices(placement: Placement) -> set[str]:
    """The devices of some nodes, without constants, which are copied to every device."""
    return {device for node, device in placement.items() if not is_constant(node)}


def _is_source(node: Node) -> bool:
    """Whether a node has one output, not a variable, and no inputs."""
    return not node.inputs and len(node.outputs) == 1 and not node.outputs[0].dtype.is_ref_dtype


_warned = Bounded[str, None]("devices that nobody has", 1_000)  # requests already reported


def _warn_absent(node: Node) -> None:
    """Warn, once per request, that its nodes run elsewhere."""
    if node.device not in _warned:
        _warned[node.device] = None
        tf_logging.warning(
            "No device like %s here: its nodes run on the CPU (first: '%s', made at %s)",
            node.device,
            node.name,
            node.origin,
        )
