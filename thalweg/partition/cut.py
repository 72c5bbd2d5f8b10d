"""Partitions: the nodes of a placed step, cut at device borders.

What comes in is a pruned step with a device for each node and the order of its nodes; what goes out
is a graph for each device. A tensor that is used on another device is sent there once; an edge of
the order that leads to another device and carries no value becomes a token. A constant is copied to
where it is read, and a value that static shapes tell is a constant: who takes it still comes after
the node that gives it. Feeds go to every partition that takes them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray

from thalweg.control.liveness import Needs, is_control, prune_loop_vars
from thalweg.graph.analysis.order import Order
from thalweg.graph.build import add_node
from thalweg.graph.device import DeviceSpec
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.rewriter import Rewriter, RewrittenGraph
from thalweg.graph.subgraph import Argument
from thalweg.ops.core.basic import Const
from thalweg.optimize.evaluate import flat_arrays
from thalweg.partition import transfers
from thalweg.place.devices import without_device
from thalweg.place.placer import Placement, is_read, is_replicated, with_inner

Array = NDArray[Any]

_MIN_UNCOPIED = 1 << 20  # bytes of a variable that is not copied where it is read to be sent


class Slot(NamedTuple):
    """A feed or a fetch of a partition, and its place among those of the step."""

    place: int
    tensor: Tensor


@dataclass(frozen=True, eq=False)
class Partition:
    """What one device does in a step."""

    device: str
    graph: RewrittenGraph
    nodes: tuple[Node, ...]
    order: Mapping[Node, set[Node]]
    feeds: tuple[Slot, ...]
    fetches: tuple[Slot, ...]
    targets: tuple[Node, ...]
    placement: Placement  # of its nodes and of those inside them

    def __str__(self) -> str:
        return "\n".join([f"{self.device}:", *(f"  {self._line(node)}" for node in self.nodes)])

    def _line(self, node: Node) -> str:
        taken = [tensor.name for tensor in node.inputs]
        after = sorted(f"^{each.name}" for each in self.order[node] - {t.op for t in node.inputs})
        given = ", ".join(tensor.name for tensor in node.outputs) or f"^{node.name}"
        return f"{given} = {node.type}({', '.join([*taken, *after])}){_route(node.op)}"


def _route(op: Op) -> str:
    """Where a transfer comes from or goes to, for the text of a partition."""
    if isinstance(op, transfers.Receiving):
        return f" <- {op.tensor_name} from {op.send_device}"
    return f" -> {op.tensor_name} to {op.recv_device}" if isinstance(op, transfers.Sending) else ""


def spans(node: Node, placement: Mapping[Node, Any]) -> bool:
    """Whether a conditional or a loop has nodes on other devices than its own."""
    if not node.op.bodies:
        return False
    inner = (each for each in with_inner(node) if not is_replicated(each))
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
    needs = Needs(dict.fromkeys(feeds))
    needs.run(fetches, targets)
    cut = _Cut(nodes, feeds, placement, order, needs.wanted)
    for node in nodes:
        if not is_replicated(node):
            cut.copy(node)
    return cut.partitions(fetches, targets)


class _Part:
    """A partition in the making."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.graph = RewrittenGraph()
        self.rewriter = Rewriter(self.graph)
        self.order: dict[Node, set[Node]] = {}
        self.feeds: dict[int, Tensor] = {}
        self.borrowed: dict[Node, Node] = {}  # variables of other tasks, and the nodes for them
        self.sent: dict[Node, set[Node]] = {}  # reads of variables, and the Sends that read instead
        self.known: set[Tensor] = set()  # what static shapes tell

    def add(
        self, op: Op, like: Node, after: Collection[Node], inputs: Sequence[Tensor] = ()
    ) -> Node:
        """A node at the border, made at the line of the node it serves."""
        with self.graph.as_default():
            name = f"{like.name}/{op.type_name}"
            made = add_node(self.graph, op, tuple(inputs), name, like, is_imported=True)
        made.controls, made.device = tuple(after), self.device
        self.graph.attribute(made, like)
        self.order[made] = {*after, *(tensor.op for tensor in inputs)}
        return made

    def is_first(self, read: Node) -> bool:
        """Whether a read of a variable comes after nothing but its variable."""
        return self.order.get(read) == {tensor.op for tensor in read.inputs}

    def send_read(self, op: Op, like: Node, read: Node) -> None:
        """Send a variable in the place of a read of it: the read would be a copy."""
        send = self.add(op, like, (), read.inputs)
        self.sent.setdefault(read, set()).add(send)

    def replaced_reads(self, needed: Collection[Node]) -> set[Node]:
        """Have what came after reads come after their Sends; the reads that nobody needs."""
        used = {tensor.op for node in self.graph.nodes for tensor in node.inputs} | {*needed}
        for read, sends in self.sent.items():
            for before in self.order.values():
                if read in before:
                    before |= sends
        return self.sent.keys() - used

    def stand_for(self, node: Node, pruned: Node, made: Node) -> None:
        """Let the copy of a pruned control node stand for the node. A trace may hold on to any of
        its outputs: to the first, where its own is not there."""
        del self.rewriter.nodes[pruned]
        self.rewriter.nodes[node] = made
        self.graph.attribute(made, node)
        for tensor in {*node.outputs}.difference(pruned.outputs):
            self.rewriter.tensors[tensor] = made.outputs[0]

    def argument(self, tensor: Tensor) -> Tensor:
        """A tensor that stands for one that comes from outside of the step."""
        op = Argument(dtype=tensor.dtype, given_shape=tensor.shape)
        return self.add(op, tensor.op, ()).outputs[0]


class _Cut:
    """One pass over the nodes of a step, in their order."""

    def __init__(
        self,
        nodes: Sequence[Node],
        feeds: Sequence[Tensor],
        placement: Placement,
        order: Order,
        wanted: Mapping[Node, Collection[Tensor]],
    ) -> None:
        self._nodes = set(nodes)
        self._wanted = wanted  # of control nodes
        self._fed = {tensor: place for place, tensor in enumerate(feeds)}
        self._placement, self._order = placement, order
        self._parts: dict[str, _Part] = {}
        self._names: dict[Node, str] = {}
        self._counts: dict[str, int] = {}
        #: by a node and another device: what is done there when the node is
        self._received: dict[tuple[Node, str], Node] = {}

    def part(self, device: str) -> _Part:
        """The partition of a device."""
        return self._parts.setdefault(device, _Part(device))

    def copy(self, node: Node) -> None:
        """Have a node in its partition, and what it takes from others there."""
        part = self.part(self._placement[node])
        pruned = self._pruned(node)
        known = [tensor for tensor in pruned.inputs if self._know(tensor, part)]
        for tensor in pruned.inputs:
            self._taken(tensor, node, part)
        borrowed = self._borrowed(pruned, part)
        taken = {tensor.op for tensor in pruned.inputs if tensor not in self._fed}
        taken -= {tensor.op for tensor in borrowed if tensor.op.inputs}
        taken -= {tensor.op for tensor in known}
        after = self._after(set(self._order[node]) - taken, part)
        arrivals = [each for each in after if isinstance(each.op, transfers.Receiving)]
        made = part.rewriter.copy(pruned, f"{self._name(node)}/", arrivals)
        if pruned is not node:
            part.stand_for(node, pruned, made)
        part.order[made] = after | {tensor.op for tensor in made.inputs}
        self._forget(pruned, part, borrowed | (self._fed.keys() & set(node.outputs)))

    def _pruned(self, node: Node) -> Node:
        """A control node with only what is wanted of it: nothing else is sent for it, and what
        merely comes after it cannot ask for more."""
        return prune_loop_vars(node, self._wanted.get(node, ())) if is_control(node) else node

    def _name(self, node: Node) -> str:
        """A name that no other node of the step has: of what the optimiser makes of a node, each
        stands for one of its outputs, under its name."""
        known = self._names.get(node)
        if known is None:
            number = self._counts.get(node.name, 0)
            self._counts[node.name] = number + 1
            known = self._names[node] = f"{node.name}/_{number}" if number else node.name
        return known

    def _borrowed(self, node: Node, part: _Part) -> set[Tensor]:
        """The inputs of a node that are references to variables of other tasks."""
        tensors, nodes = part.rewriter.tensors, {*part.borrowed.values()}
        return {tensor for tensor in node.inputs if tensors[tensor].op in nodes}

    def _forget(self, node: Node, part: _Part, own: Collection[Tensor]) -> None:
        """Drop what stands for a tensor for this node alone: a variable on another device, which
        each node reads when it may, and the node's `own`."""
        tensors = part.rewriter.tensors
        references = {tensor for tensor in node.inputs if tensor.dtype.is_ref_dtype}
        read = {tensor for tensor in references if not tensors[tensor].dtype.is_ref_dtype}
        for tensor in read | set(own):
            del tensors[tensor]

    # Values

    def _taken(self, tensor: Tensor, reader: Node, part: _Part) -> Tensor:
        """What stands for an input in a partition, from now on if not yet."""
        tensors = part.rewriter.tensors
        if tensor not in tensors:
            tensors[tensor] = self._brought(tensor, reader, part)
        return tensors[tensor]

    def _know(self, tensor: Tensor, part: _Part) -> bool:
        """Have a constant in a partition for what static shapes tell, as a shape: what takes it
        can be compiled though the shape is of another region. Whether there is one."""
        if tensor in part.known:
            return True
        value = None if tensor in self._fed else _static_value(tensor)
        if value is None:
            return False
        op = Const(value=value, dtype=tensor.dtype)
        part.rewriter.tensors[tensor] = part.add(op, tensor.op, ()).outputs[0]
        part.known.add(tensor)
        return True

    def _brought(self, tensor: Tensor, reader: Node, part: _Part) -> Tensor:
        node = tensor.op
        if tensor in self._fed:
            found = part.feeds[self._fed[tensor]] = part.argument(tensor)
            return found
        if node not in self._nodes:  # an input of a control node that nothing needs
            return part.argument(tensor)
        if is_replicated(node):
            made = part.rewriter.copy(node)
            part.order[made] = set()
            return made.outputs[0]
        return self._transfer(tensor, reader, part)

    def _transfer(self, tensor: Tensor, reader: Node, part: _Part) -> Tensor:
        """Send a tensor to a partition; what stands for it there."""
        source = self.part(self._placement[tensor.op])
        name = f"{self._name(tensor.op)}:{tensor.value_index}"
        op, dtype = transfers.Send, tensor.dtype.base_dtype
        before: set[Node] = set()
        if tensor.dtype.is_ref_dtype and reader.op.bodies and _are_apart(source, part):
            return self._borrow(tensor, part)
        if tensor.dtype.is_ref_dtype and reader.op.bodies:
            op, dtype = transfers.SendReference, tensor.dtype
        elif tensor.dtype.is_ref_dtype:  # read for this node: after all that it comes after
            name = f"{name}>{self._name(reader)}"
            before = set(self._order[reader]) - {t.op for t in reader.inputs}
        ends = _ends(name, source, part)
        local = source.rewriter.tensors[tensor]
        if _is_large_read(tensor) and source.is_first(local.op):
            source.send_read(op(**ends), tensor.op, local.op)
        else:
            source.add(op(**ends), tensor.op, self._after(before, source), [local])
        end = transfers.Recv(**ends, tensor_type=dtype, given_shape=tensor.shape)
        made = part.add(end, tensor.op, ())
        if not tensor.dtype.is_ref_dtype:
            self._received[tensor.op, part.device] = made
        return made.outputs[0]

    def _borrow(self, tensor: Tensor, part: _Part) -> Tensor:
        """The variable that a tensor refers to, for a conditional or a loop on another task: the
        node is there, its state is not."""
        root = tensor.op
        while root.inputs:
            root = root.inputs[0].op
        made = part.borrowed.get(root)
        if made is None:
            made = part.borrowed[root] = part.graph.copied(root, (), (), f"{root.name}/")
            part.order[made] = set()
        return made.outputs[0]

    # Order

    def _after(self, nodes: Collection[Node], part: _Part) -> set[Node]:
        """What stands in a partition for the end of nodes."""
        return {self._end(node, part) for node in nodes if not is_replicated(node)}

    def _end(self, node: Node, part: _Part) -> Node:
        if self._placement[node] == part.device:
            return part.rewriter.nodes[node]
        found = self._received.get((node, part.device))
        if found is None:
            source = self.part(self._placement[node])
            ends = _ends(f"^{self._name(node)}", source, part)
            source.add(transfers.SendToken(**ends), node, [source.rewriter.nodes[node]])
            found = part.add(transfers.RecvToken(**ends), node, ())
            self._received[node, part.device] = found
        return found

    # What goes out

    def partitions(self, fetches: Sequence[Tensor], targets: Sequence[Node]) -> list[Partition]:
        """The partitions, in the order of their devices' names."""
        fetched: dict[str, list[Slot]] = {}
        for place, tensor in enumerate(fetches):
            part = self.part(self._fetch_device(tensor))
            slot = Slot(place, self._taken(tensor, tensor.op, part))
            fetched.setdefault(part.device, []).append(slot)
        wanted = [node for node in targets if not is_replicated(node)]
        return [
            self._finished(part, fetched.get(part.device, ()), wanted)
            for part in sorted(self._parts.values(), key=lambda part: part.device)
        ]

    def _fetch_device(self, tensor: Tensor) -> str:
        """The partition that a tensor is fetched from: a constant or a feed is where it is read."""
        if tensor in self._fed or is_replicated(tensor.op):
            having = [p.device for p in self._parts.values() if tensor in p.rewriter.tensors]
            return next(iter(having or self._parts), "") or self._placement[tensor.op]
        return self._placement[tensor.op]

    def _finished(self, part: _Part, fetches: Sequence[Slot], targets: Sequence[Node]) -> Partition:
        mapped = part.rewriter.mapped(targets)
        dropped = part.replaced_reads({*mapped, *(slot.tensor.op for slot in fetches)})
        nodes = [
            node
            for node in part.graph.nodes
            if not isinstance(node.op, Argument) and node not in dropped
        ]
        inside = set(nodes)
        placement = dict.fromkeys(nodes, part.device)
        placement.update((made, self._placement[root]) for root, made in part.borrowed.items())
        for node in part.rewriter.nodes:
            inner = (each for each in with_inner(node) if each is not node)
            placement.update((each, self._placement[each]) for each in inner)
        return Partition(
            part.device,
            part.graph,
            tuple(nodes),
            {node: part.order[node] & inside for node in nodes},
            tuple(Slot(place, tensor) for place, tensor in part.feeds.items()),
            tuple(fetches),
            tuple(mapped),
            placement,
        )


def _static_value(tensor: Tensor) -> Array | None:
    """The value of a tensor that static shapes tell: that of `shape`, `size` or `rank`."""
    node = tensor.op
    known: Any = getattr(node.op, "known_value", None)
    if known is None or not node.op.of_shapes or not node.inputs:
        return None
    values = known(*node.op.parsed.group(node.inputs, node.input_counts()))
    return None if values is None else flat_arrays(values)[tensor.value_index]


def _is_large_read(tensor: Tensor) -> bool:
    """Whether a tensor is the value of a variable, and large."""
    elements = tensor.shape.num_elements() or 0
    return is_read(tensor.op) and elements * tensor.dtype.size >= _MIN_UNCOPIED


def _ends(name: str, source: _Part, destination: _Part) -> dict[str, str]:
    """What both ends of a transfer have as attributes."""
    return {
        "tensor_name": name,
        "send_device": source.device,
        "recv_device": destination.device,
    }


def _are_apart(one: _Part, other: _Part) -> bool:
    """Whether two partitions are of different tasks, which share no memory."""
    first, second = (DeviceSpec.from_string(part.device) for part in (one, other))
    return without_device(first) != without_device(second)
