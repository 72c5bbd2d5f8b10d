"""Partitions a placed step by device.

Comes in: a pruned step with a device for each node and the order of its nodes. Goes out: a graph
for each device. A tensor that is used on another device is sent there once; an order edge to
another device that carries no value becomes a token. Constants are copied to the partitions that
read them, and so are values that follow from static shapes, whose readers still run after the node
that computes them. Feeds go to every partition that reads them.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from thalweg.control.liveness import Needs, is_control, prune_loop_vars
from thalweg.graph.analysis.evaluate import known_outputs
from thalweg.graph.analysis.node_effects import is_read
from thalweg.graph.analysis.order import Order
from thalweg.graph.build import add_node
from thalweg.graph.device import task_of
from thalweg.graph.graph import Graph
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.rewriter import Rewriter
from thalweg.graph.subgraph import Argument, is_constant
from thalweg.ops.core.basic import Const
from thalweg.partition import transfers
from thalweg.partition.rendezvous import Key
from thalweg.place.placer import Placement, with_inner
from thalweg.platform.arrays import Array

_MIN_SENT_UNREAD = 1 << 20  # bytes of a variable that is sent without a copying read before


class Slot(NamedTuple):
    """A feed or fetch of a partition, and its index among those of the step."""

    place: int
    tensor: Tensor


@dataclass(frozen=True, eq=False)
class Partition:
    """The part of a step that runs on one device."""

    device: str
    graph: Graph
    nodes: tuple[Node, ...]
    order: Mapping[Node, set[Node]]
    feeds: tuple[Slot, ...]
    fetches: tuple[Slot, ...]
    targets: tuple[Node, ...]
    placement: Placement  # of its nodes and the nodes inside them


def spans(node: Node, placement: Mapping[Node, Any]) -> bool:
    """Whether a conditional or loop contains nodes on other devices than its own."""
    inner = (each for each in with_inner(node) if not is_constant(each))
    return any(placement.get(each, placement[node]) != placement[node] for each in inner)


def partition(
    nodes: Sequence[Node],
    fetches: Sequence[Tensor],
    targets: Sequence[Node],
    feeds: Sequence[Tensor],
    placement: Placement,
    order: Order,
) -> list[Partition]:
    """The partitions of a step, by device."""
    needs = Needs(fetches, targets, dict.fromkeys(feeds))
    partitioner = _Partitioner(feeds, placement, order, needs.wanted)
    for node in nodes:
        if not is_constant(node):
            partitioner.copy(node)
    return partitioner.partitions(fetches, targets)


class _Builder:
    """The builder of one partition."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.graph = Graph()
        self.rewriter = Rewriter(self.graph, replaces=True)
        self.order: dict[Node, set[Node]] = {}
        self.feeds: dict[int, Tensor] = {}
        self.fetches: list[Slot] = []
        self.borrowed: dict[Node, Node] = {}  # variables of other tasks, and their copies here
        #: reads of variables, and the Sends that replace them
        self.sent: defaultdict[Node, set[Node]] = defaultdict(set)
        self.static: set[Tensor] = set()  # tensors whose value follows from static shapes

    def add(
        self, op: Op, like: Node, after: Collection[Node], inputs: Sequence[Tensor] = ()
    ) -> Node:
        """Add a node of the partition's own, attributed to the node that it serves."""
        with self.graph.as_default():
            name = f"{like.name}/{op.type_name}"
            node = add_node(self.graph, op, tuple(inputs), name, like, is_imported=True)
        node.controls, node.device = tuple(after), self.device
        node.original = like
        self.order[node] = {*after, *(tensor.op for tensor in inputs)}
        return node

    def replaced_reads(self, needed: Collection[Node]) -> set[Node]:
        """The reads that Sends replace and nothing else uses. Orders the successors of reads after
        their Sends as well."""
        used = {tensor.op for node in self.graph.nodes for tensor in node.inputs} | {*needed}
        for read, sends in self.sent.items():
            for before in self.order.values():
                if read in before:
                    before |= sends
        return self.sent.keys() - used

    def argument(self, tensor: Tensor) -> Tensor:
        """A placeholder for a tensor from outside of the step."""
        op = Argument(dtype=tensor.dtype, given_shape=tensor.shape)
        return self.add(op, tensor.op, ()).outputs[0]


class _Partitioner:
    """Copies the nodes of a step, in their order, into the partitions of their devices."""

    def __init__(
        self,
        feeds: Sequence[Tensor],
        placement: Placement,
        order: Order,
        wanted: Mapping[Node, Collection[Tensor]],
    ) -> None:
        self._wanted = wanted  # the needed outputs of control nodes
        self._fed = {tensor: number for number, tensor in enumerate(feeds)}
        self._placement, self._order = placement, order
        self._parts: dict[str, _Builder] = {}
        self._names: dict[Node, str] = {}
        self._numbers = defaultdict[str, Iterator[int]](itertools.count)  # by the nodes' names
        #: by node and other device: the Recv there that completes after the node
        self._received: dict[tuple[Node, str], Node] = {}

    def part(self, device: str) -> _Builder:
        """The partition of a device."""
        if device not in self._parts:
            self._parts[device] = _Builder(device)
        return self._parts[device]

    def copy(self, node: Node) -> None:
        """Copy a node into its partition, with transfers for inputs from other partitions."""
        part = self.part(self._placement[node])
        # Outputs of a control node that nothing needs cause no transfers.
        pruned = prune_loop_vars(node, self._wanted.get(node, ())) if is_control(node) else node
        for tensor in pruned.inputs:
            self._fold_static(tensor, part)
        # Once for each tensor, even of several inputs: the key of a read names the reader only.
        local_of = {t: self._local(t, node, part) for t in dict.fromkeys(pruned.inputs)}
        inputs = [local_of[tensor] for tensor in pruned.inputs]
        producers = {t.op for t, local in local_of.items() if self._is_edge(t, local, part)}
        after = self._after(set(self._order[node]) - producers, part)
        arrivals = [each for each in after if isinstance(each.op, transfers.Receiving)]
        controls = tuple(dict.fromkeys([*part.rewriter.mapped(pruned.controls), *arrivals]))
        copy = part.graph.copied(pruned, tuple(inputs), controls, f"{self._name(node)}/")
        copy.original = node
        part.order[copy] = after | {tensor.op for tensor in inputs}
        part.rewriter.nodes[node] = copy
        # A trace may take any output of a control node: the first stands for those that are pruned.
        outputs = dict(zip(pruned.outputs, copy.outputs, strict=True))
        unfed = (tensor for tensor in node.outputs if tensor not in self._fed)
        part.rewriter.tensors.update((t, outputs.get(t, copy.outputs[0])) for t in unfed)

    def _name(self, node: Node) -> str:
        """A name that is unique in the step: nodes that the optimiser derived from one node have
        its name."""
        if node not in self._names:
            number = next(self._numbers[node.name])
            self._names[node] = f"{node.name}/_{number}" if number else node.name
        return self._names[node]

    # Values

    def _local(self, tensor: Tensor, reader: Node, part: _Builder) -> Tensor:
        """The tensor of a partition for a tensor of the step. A variable on another device is read
        anew by each reader, at its place in the order."""
        local = part.rewriter.tensors.get(tensor)
        if local is None:
            local = self._import(tensor, reader, part)
            is_read = tensor.dtype.is_ref_dtype and not local.dtype.is_ref_dtype
            if not (is_read or local.op in part.borrowed.values()):
                part.rewriter.tensors[tensor] = local
        return local

    def _is_edge(self, tensor: Tensor, local: Tensor, part: _Builder) -> bool:
        """Whether the readers of a tensor in a partition come after its node."""
        is_forwarded = local.op in part.borrowed.values() and tensor.op.inputs
        return not (tensor in self._fed or tensor in part.static or is_forwarded)

    def _fold_static(self, tensor: Tensor, part: _Builder) -> None:
        """Map a tensor whose value follows from static shapes to a constant. Its readers can then
        be compiled although the shape is of another region."""
        value = None if tensor in self._fed or tensor in part.static else _static_value(tensor)
        if value is not None:
            op = Const(value=value, dtype=tensor.dtype)
            part.rewriter.tensors[tensor] = part.add(op, tensor.op, ()).outputs[0]
            part.static.add(tensor)

    def _import(self, tensor: Tensor, reader: Node, part: _Builder) -> Tensor:
        """A feed, constant or received tensor of a partition for a tensor of the step."""
        node = tensor.op
        if tensor in self._fed:
            argument = part.feeds[self._fed[tensor]] = part.argument(tensor)
            return argument
        if node not in self._order:  # an input that a control node does not need
            return part.argument(tensor)
        if is_constant(node):
            copy = part.rewriter.copy(node)
            part.order[copy] = set()
            return copy.outputs[0]
        return self._transfer(tensor, reader, part)

    def _transfer(self, tensor: Tensor, reader: Node, part: _Builder) -> Tensor:
        """Send a tensor to a partition; the received tensor."""
        source = self.part(self._placement[tensor.op])
        name = f"{self._name(tensor.op)}:{tensor.value_index}"
        op, dtype = transfers.Send, tensor.dtype.base_dtype
        before: set[Node] = set()
        if tensor.dtype.is_ref_dtype and reader.op.bodies:
            if task_of(source.device) != task_of(part.device):  # they share no memory
                return self._borrow(tensor, part)
            op, dtype = transfers.SendReference, tensor.dtype
        elif tensor.dtype.is_ref_dtype:  # the Send reads the variable at the reader's order
            name = f"{name}>{self._name(reader)}"
            before = set(self._order[reader]) - {t.op for t in reader.inputs}
        attributes = Key(name, source.device, part.device)._asdict()
        local = source.rewriter.tensors[tensor]
        read = local.op
        # A large variable is sent itself, not a read, which would copy it.
        if _is_large_read(tensor) and source.order[read] == {each.op for each in read.inputs}:
            source.sent[read].add(source.add(op(**attributes), tensor.op, (), read.inputs))
        else:
            source.add(op(**attributes), tensor.op, self._after(before, source), [local])
        recv = transfers.Recv(**attributes, tensor_type=dtype, given_shape=tensor.shape)
        received = part.add(recv, tensor.op, ())
        if not tensor.dtype.is_ref_dtype:
            self._received[tensor.op, part.device] = received
        return received.outputs[0]

    def _borrow(self, tensor: Tensor, part: _Builder) -> Tensor:
        """A copy, in a partition of another task, of the variable that a tensor refers to. Only the
        node is copied; its state stays where it is."""
        root = tensor.op
        while root.inputs:
            root = root.inputs[0].op
        copy = part.borrowed.get(root)
        if copy is None:
            copy = part.borrowed[root] = part.graph.copied(root, (), (), f"{root.name}/")
            copy.original = root
            part.order[copy] = set()
        return copy.outputs[0]

    # Order

    def _after(self, nodes: Collection[Node], part: _Builder) -> set[Node]:
        """The nodes of a partition that complete after the given nodes of the step."""
        return {self._completion(node, part) for node in nodes if not is_constant(node)}

    def _completion(self, node: Node, part: _Builder) -> Node:
        """The copy of a node, or the Recv that completes after it on another device."""
        if self._placement[node] == part.device:
            return part.rewriter.nodes[node]
        received = self._received.get((node, part.device))
        if received is None:
            source = self.part(self._placement[node])
            attributes = Key(f"^{self._name(node)}", source.device, part.device)._asdict()
            source.add(transfers.SendToken(**attributes), node, [source.rewriter.nodes[node]])
            received = part.add(transfers.RecvToken(**attributes), node, ())
            self._received[node, part.device] = received
        return received

    # Results

    def partitions(self, fetches: Sequence[Tensor], targets: Sequence[Node]) -> list[Partition]:
        """The partitions, in the order of their devices' names."""
        for number, tensor in enumerate(fetches):
            part = self.part(self._fetch_device(tensor))
            part.fetches.append(Slot(number, self._local(tensor, tensor.op, part)))
        targets = [node for node in targets if not is_constant(node)]
        return [self._build(self._parts[device], targets) for device in sorted(self._parts)]

    def _fetch_device(self, tensor: Tensor) -> str:
        """The device to fetch a tensor from; for a constant or a feed, one that reads it."""
        if tensor in self._fed or is_constant(tensor.op):
            readers = [p.device for p in self._parts.values() if tensor in p.rewriter.tensors]
            return next(iter(readers or self._parts), "") or self._placement[tensor.op]
        return self._placement[tensor.op]

    def _build(self, part: _Builder, targets: Sequence[Node]) -> Partition:
        mapped = part.rewriter.mapped(targets)
        dropped = part.replaced_reads({*mapped, *(slot.tensor.op for slot in part.fetches)})
        nodes = [
            node
            for node in part.graph.nodes
            if not isinstance(node.op, Argument) and node not in dropped
        ]
        inside = set(nodes)
        placement = dict.fromkeys(nodes, part.device)
        placement.update((copy, self._placement[root]) for root, copy in part.borrowed.items())
        for node in part.rewriter.nodes:
            inner = (each for each in with_inner(node) if each is not node)
            placement.update((each, self._placement[each]) for each in inner)
        return Partition(
            part.device,
            part.graph,
            tuple(nodes),
            {node: part.order[node] & inside for node in nodes},
            tuple(Slot(number, tensor) for number, tensor in part.feeds.items()),
            tuple(part.fetches),
            tuple(mapped),
            placement,
        )


def _static_value(tensor: Tensor) -> Array | None:
    """The value of a tensor that follows from static shapes: of `shape`, `size` or `rank`."""
    node = tensor.op
    values = known_outputs(node) if node.op.of_shapes and node.inputs else None
    return None if values is None else values[tensor.value_index]


def _is_large_read(tensor: Tensor) -> bool:
    """Whether a tensor is a read of a large variable."""
    elements = tensor.shape.num_elements() or 0
    return is_read(tensor.op) and elements * tensor.dtype.size >= _MIN_SENT_UNREAD
