"""Placement: each node of a graph gets one of the session's devices, once and for all steps.

A group of colocated nodes goes to the first device that satisfies all that its nodes ask for and
has their kernels, a GPU before a CPU. What asks for nothing goes to the first one, but for ops on
shapes, which follow their input, reads of variables, and sources, which follow their consumers
where those are on one device. Nodes inside a
conditional or a loop that ask for nothing follow it. A request that no device satisfies is an error
that names the user's line, unless soft placement lets it fall back; a kind of device that this
machine does not have at all (a GPU) falls back with a warning, so that programs written for one run
without it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence

from thalweg import errors
from thalweg.control.traces import Trace
from thalweg.graph.device import DeviceSpec
from thalweg.graph.dtypes import resource, variant
from thalweg.graph.graph import Graph
from thalweg.graph.node import Node, Tensor
from thalweg.graph.subgraph import Argument
from thalweg.ops.core.basic import Const, Identity
from thalweg.place.devices import accelerated_first, without_device
from thalweg.place.groups import Group, Groups, bound_inputs
from thalweg.place.kinds import ANY, cpu_only, kinds_of
from thalweg.platform import tf_logging
from thalweg.platform.caches import Bounded

Placement = dict[Node, str]


class Placer:
    """Places the nodes of one session. A node once placed stays: its state is there."""

    def __init__(self, devices: Sequence[str], soft: bool = False) -> None:
        self.devices = tuple(devices)  # their names
        self._devices = accelerated_first(self.devices)
        self._kinds = self._devices.kinds
        self._kinds_of = kinds_of if "GPU" in self._kinds.values() else cpu_only
        self._soft = soft
        self._groups = Groups(soft, self._kinds_of)
        # A list is an object of its process, so that all that use it are on one task.
        self._objects = {resource, variant} if self._devices.have_tasks else {resource}
        self._seen = 0  # nodes of the graph
        self._placed: Placement = {}
        self._outer: dict[Tensor, Tensor] = {}  # what an argument of a body stands for
        self._single: dict[str, str] = {"": devices[0]}  # by what is asked for
        self._lock = threading.Lock()

    def place(self, nodes: Sequence[Node]) -> Placement:
        """The devices of a step's nodes and, where there are several devices, of those inside
        them."""
        if len(self.devices) == 1:
            return {node: self._only(node) for node in nodes}
        with self._lock:
            for node in nodes[:1]:
                self._extend(node.graph)
            for node in nodes:
                self._complete(node)
            return {each: self._device(each) for node in nodes for each in with_inner(node)}

    def _only(self, node: Node) -> str:
        """The one device, which has to be what a node asks for."""
        found = self._single.get(node.device)
        if found is None:
            alone = Group()
            alone.add(node, self._kinds_of(node), self._soft)
            found = self._single[node.device] = self._satisfy(alone)
        return found

    def _device(self, node: Node) -> str:
        group = self._groups.of(node)
        if group.error is not None:
            raise group.error
        return self._placed[node]

    # The whole graph

    def _extend(self, graph: Graph) -> None:
        """Place the nodes that were made since the last time."""
        fresh = graph.nodes[self._seen :]
        self._seen += len(fresh)
        for node in fresh:
            self._join(node)
        for node in fresh:
            self._decide(node, self._devices.names[0])
        for node in fresh:
            self._follow_consumers(node)

    def _complete(self, node: Node) -> None:
        """Place what was added inside a node since it was placed: gradients add nodes there."""
        inside = with_inner(node)
        if any(inner not in self._groups for inner in inside):
            self._join(node)
            self._decide(node, self._placed[node])

    def _join(self, node: Node) -> None:
        """Have a node and those inside it in their groups."""
        if node not in self._groups:
            self._join_one(node)
        for body in node.op.bodies:
            first = len(node.inputs) - len(body.arguments)
            self._outer.update(zip(body.arguments, node.inputs[first:], strict=True))
        for inner in _inside(node):
            self._join(inner)

    def _join_one(self, node: Node) -> None:
        self._groups.add(node)
        for tensor in bound_inputs(node, self._objects):
            self._groups.union(self._source(tensor).op, node, overrides=True)
        if isinstance(node.op, Trace):
            self._groups.union(node.inputs[0].op, node, overrides=True)

    def _source(self, tensor: Tensor) -> Tensor:
        """A tensor outside of all bodies that it is an argument of."""
        while tensor in self._outer:
            tensor = self._outer[tensor]
        return tensor

    # One node

    def _decide(self, node: Node, default: str) -> str:
        """Place a node, and those inside it."""
        inner = list(_inside(node))
        group = self._requested(node)
        if not group.device:
            near = self._followed(node) or self._asked_inside(inner) or default
            group.device = self._nearest(group, near)
        self._placed[node] = group.device
        for each in inner:
            self._decide(each, group.device)
        return group.device

    def _nearest(self, group: Group, wanted: str) -> str:
        """The device that is wanted, or the first one that has all kernels of a group."""
        near = (wanted, *self._devices.names)
        return next((name for name in near if self._kinds[name] in group.kinds), wanted)

    def _asked_inside(self, nodes: Iterable[Node]) -> str:
        """The device that the nodes inside a control node ask for, if it is one."""
        every = [each for node in nodes for each in with_inner(node) if not is_replicated(each)]
        found = {self._bound(node) for node in every} - {""}
        return found.pop() if len(found) == 1 else ""

    def _bound(self, node: Node) -> str:
        """The device that a node is bound to by requests and variables, or none."""
        return self._requested(node).device or (self._followed(node) if is_read(node) else "")

    def _followed(self, node: Node) -> str:
        """The device of the input that a node without a request follows, or none."""
        if not (is_read(node) or (node.op.of_shapes and node.inputs)):
            return ""
        return self._placed.get(self._source(node.inputs[0]).op, "")

    def _follow_consumers(self, node: Node) -> None:
        """Have a source that asks for nothing where all its consumers are."""
        group = self._groups.of(node)
        if not _is_generator(node) or group.asking or group.size > 1:
            return
        found = {self._placed[each] for each in node.outputs[0].consumers() if each in self._placed}
        if len(found) == 1:
            group.device = self._nearest(group, *found)
            self._placed[node] = group.device

    # Requests

    def _requested(self, node: Node) -> Group:
        """The group of a node, which has its device if it asks for one; what cannot be is an error
        of its steps."""
        group = self._groups.of(node)
        if not group.device and group.asking:
            try:
                group.device = self._satisfy(group)
            except errors.InvalidArgumentError as error:
                group.error = group.error or error
                group.device = self._devices.names[0]
        return group

    def _satisfy(self, group: Group) -> str:
        found = self._devices.feasible(group.request, group.kinds)
        if not found and (self._soft or self._devices.lacks_kind(group.request)):
            if not self._soft:
                _warn_absent(group.asking[0])
            found = self._devices.feasible(without_device(group.request), group.kinds)
            found = found or [*self._devices.names]
        if not found:
            raise self._unsatisfied(group.asking[0])
        return found[0]

    def _unsatisfied(self, node: Node) -> errors.InvalidArgumentError:
        there = self._devices.feasible(DeviceSpec.from_string(node.device), ANY)
        why = f"{node.type} has no kernel for" if there else "no device matches"
        return errors.InvalidArgumentError(
            None,
            node,
            f"Cannot assign a device to node '{node.name}': {why} '{node.device}'. "
            f"Devices here: {', '.join(self.devices)}. Change the tf.device scope, or let nodes "
            "fall back with tf.ConfigProto(allow_soft_placement=True)",
        )


def _inside(node: Node) -> Iterator[Node]:
    """The nodes that run in the bodies of one: an argument has the value of another node."""
    nodes = (inner for body in node.op.bodies for inner in body.graph.nodes)
    return (inner for inner in nodes if not isinstance(inner.op, Argument))


def with_inner(node: Node) -> Iterator[Node]:
    """A node and all nodes inside it."""
    yield node
    for inner in _inside(node):
        yield from with_inner(inner)


def is_replicated(node: Node) -> bool:
    """Whether a node is a constant, which every device has that reads it."""
    return isinstance(node.op, Const) and not node.controls


def is_read(node: Node) -> bool:
    """Whether a node gives the value of a variable."""
    return isinstance(node.op, Identity) and node.inputs[0].dtype.is_ref_dtype


def _is_generator(node: Node) -> bool:
    """Whether a node makes one value out of nothing."""
    return not node.inputs and len(node.outputs) == 1 and not node.outputs[0].dtype.is_ref_dtype


_warned = Bounded[str, None]("devices that nobody has", 1_000)


def _warn_absent(node: Node) -> None:
    """Say once per device name that its nodes run elsewhere."""
    if node.device not in _warned:
        _warned[node.device] = None
        tf_logging.warning(
            "No device like %s here: its nodes run on the CPU (first: '%s', made at %s)",
            node.device,
            node.name,
            node.origin,
        )
