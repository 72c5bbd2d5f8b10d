"""Conditionals and loops that span tasks: their units on other tasks are called remotely.

The task of the control node runs its token graph. A unit on another task becomes a partition of its
own, registered there on the first call; each call sends its inputs and receives its outputs.
Variables do not move: a unit accesses those of its own task in place, and is sent the values of
others.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

from thalweg import errors
from thalweg.cluster import failures
from thalweg.cluster.partition_def import encode
from thalweg.cluster.transport.endpoint import Peer
from thalweg.cluster.values import packed, values_of
from thalweg.cluster.wire import Kind, Message
from thalweg.control.traces import Trace
from thalweg.graph.analysis.node_effects import reference_roots
from thalweg.graph.analysis.order import step_order
from thalweg.graph.device import task_of
from thalweg.graph.dtypes import variant
from thalweg.graph.graph import Graph
from thalweg.graph.node import Node, Tensor
from thalweg.graph.rewriter import Rewriter
from thalweg.graph.subgraph import Argument
from thalweg.lower.specialise import ControlRegion, Region
from thalweg.ops.core.context import VariableCell
from thalweg.partition.cut import Partition, Slot
from thalweg.place.placer import Placement, with_inner
from thalweg.runtime.compiled import RemoteDevice
from thalweg.runtime.dataflow.wiring import OBJECTS
from thalweg.runtime.kernels import Call, ForeignCell, temporary_cell

Unit = Node | Region | ControlRegion


class RemoteCalls:
    """The remote calls of one session of a task."""

    def __init__(self, session: str, peer: Callable[[str], Peer]) -> None:
        self.session = session
        self._peer = peer  # the connection to a task, by name
        # The upper half of a step number identifies the session. The master counts its steps from 1
        # in the lower half; bit 31 keeps these numbers apart from them.
        self._numbers = itertools.count(int(session, 16) | 1 << 31 | secrets.randbits(30))

    def remote_device(self, device: str, placement: Placement) -> RemoteDevice:
        """A device of another task, as the planner sees it: calls to it are remote."""
        return RemoteDevice(device, lambda unit: self._call(unit, device, placement))

    def _call(self, unit: Unit, device: str, placement: Placement) -> Call:
        if isinstance(unit, Node) and isinstance(unit.op, OBJECTS):
            cell = RemoteCell(self, unit, device)
            return Call(lambda: cell, False, (), unit, (unit,))
        nodes = (unit,) if isinstance(unit, Node) else unit.nodes
        function = RemoteUnit(self, unit, device, placement)
        return Call(function, True, (), nodes[-1], nodes, is_async=True)

    def number(self) -> int:
        """A fresh step number or handle, unique within the session."""
        return next(self._numbers)

    def peer(self, device: str) -> Peer:
        """The connection to the task that owns a device."""
        return self._peer(task_of(device))

    def register(self, part: Partition) -> int:
        """Register a partition on the task of its device; returns the handle."""
        handle = self.number()
        fields, graph = encode(part)
        body = {"session": self.session, "handle": handle, "partitions": [fields]}
        self.request(part.device, Message(Kind.REGISTER, 0, body, [graph]))
        return handle

    def run(self, handle: int, values: Sequence[Any]) -> Message:
        """The RUN message for a registered partition with some feeds."""
        places = list(range(len(values)))
        identity = {"session": self.session, "handle": handle}
        fields = {**identity, "feeds": places, "keys": (), "task": ""}
        return packed(Message(Kind.RUN, self.number(), fields, values))

    def request(self, device: str, message: Message) -> Message:
        """Send a request and block until the reply."""
        replies = SimpleQueue[tuple[Message | None, Exception | None]]()
        self.peer(device).request(message, lambda reply, error: replies.put((reply, error)))
        return failures.answered(*replies.get())


class RemoteCell(ForeignCell):
    """A variable, or another object of the session, on another task."""

    def __init__(self, calls: RemoteCalls, node: Node, device: str) -> None:
        self._calls, self.node, self.device = calls, node, device
        self._handle: int | None = None

    def read(self) -> Any:
        """Fetch the current value; blocks."""
        if self._handle is None:
            self._handle = self._calls.register(self._partition())
        return self._calls.request(self.device, self._calls.run(self._handle, ())).values[0]

    def local(self) -> VariableCell:
        """A copy of the variable in this process, with the current value."""
        return temporary_cell(self.node.outputs[0], self.read())

    def _partition(self) -> Partition:
        graph = Graph()
        node = Rewriter(graph, replaces=True).copy(self.node)
        fetched = (Slot(0, node.outputs[0]),)
        placement = {node: self.device}
        return Partition(
            self.device, graph, (node,), {node: set()}, (), fetched, (node,), placement
        )


class RemoteUnit:
    """The kernel of a node, a region or a control node on another task."""

    def __init__(self, calls: RemoteCalls, unit: Unit, device: str, placement: Placement) -> None:
        self._calls, self._device, self._placement = calls, device, placement
        self._nodes = (unit,) if isinstance(unit, Node) else unit.nodes
        is_region = isinstance(unit, Region)
        references = unit.references if is_region else ()
        self._inputs: tuple[Tensor, ...] = (*unit.inputs, *references)
        self._outputs = tuple(unit.outputs)
        self._is_control = isinstance(unit, ControlRegion)
        #: Fetched if a control node has no other outputs in use: it runs only for its effects.
        self._any_output = [*unit.node.outputs[:1]] if isinstance(unit, ControlRegion) else []
        self._roots = unit.roots if is_region else reference_roots(self._nodes)
        self._handles: dict[tuple[Node | None, ...], int] = {}
        self._lock = threading.Lock()

    def __call__(self, context: Any, done: Callable[..., None], *inputs: Any) -> None:
        """Start the remote call; `done` is called with the outputs or an error."""
        cells = dict(zip(self._inputs, map(self._colocated_cell, inputs), strict=True))
        values = [_feed_value(item) for item in inputs if self._colocated_cell(item) is None]
        message = self._calls.run(self._handle(cells), values)
        stopped = errors.CancelledError(None, None, "The step that called this was stopped")
        abort = Message(Kind.ABORT, message.step, failures.encode(stopped, ""))
        peer = self._calls.peer(self._device)
        unsubscribe = context.cancellation.on_cancel(lambda: peer.send(abort))

        def on_reply(reply: Message | None, error: Exception | None) -> None:
            unsubscribe()
            try:
                done(self._assemble_outputs(failures.answered(reply, error), cells), None)
            except errors.OpError as failure:
                done(None, failure if failure.op else failure.at(context.node))

        peer.request(message, on_reply)

    def _colocated_cell(self, value: Any) -> RemoteCell | None:
        """The input, if it is a variable on the unit's own task; None otherwise."""
        is_colocated = isinstance(value, RemoteCell) and task_of(value.device) == task_of(
            self._device
        )
        return value if is_colocated else None

    def _assemble_outputs(
        self, reply: Message, cells: Mapping[Tensor, RemoteCell | None]
    ) -> list[Any]:
        """The outputs: received values, and references to variables on the unit's task."""
        received = iter(values_of(reply))
        return [
            cells[self._roots.get(tensor, tensor)] if tensor.dtype.is_ref_dtype else next(received)
            for tensor in self._outputs
        ]

    def _handle(self, cells: Mapping[Tensor, RemoteCell | None]) -> int:
        key = tuple(cell and cell.node for cell in cells.values())
        with self._lock:
            if key not in self._handles:
                self._handles[key] = self._calls.register(self._partition(cells))
            return self._handles[key]

    def _partition(self, cells: Mapping[Tensor, RemoteCell | None]) -> Partition:
        graph = Graph()
        rewriter = Rewriter(graph, replaces=True)
        feeds: list[Tensor] = []
        for tensor, cell in cells.items():
            if cell is None:
                copied = _argument(graph, tensor)
                feeds.append(copied)
            else:
                variable = rewriter.nodes.get(cell.node) or rewriter.copy(cell.node)
                copied = variable.outputs[0]
            rewriter.tensors[tensor] = copied
        order = step_order(self._nodes, self._inputs)
        placement = dict.fromkeys(graph.nodes, self._device)
        predecessors = {
            node: set[Node]() for node in graph.nodes if not isinstance(node.op, Argument)
        }
        for node in self._nodes:
            for tensor in node.inputs:
                if tensor in rewriter.tensors:
                    continue
                root = self._roots.get(tensor)  # of a reference that another unit returned
                rewriter.tensors[tensor] = (
                    rewriter.tensors[root]
                    if root in rewriter.tensors
                    else _argument(graph, tensor)  # a control node may have unused inputs
                )
            copied = rewriter.copy(node)
            placement[copied] = self._device
            predecessors[copied] = {
                tensor.op for tensor in copied.inputs if tensor.op in predecessors
            }
            predecessors[copied] |= set(rewriter.mapped(order.get(node, ())))
            inner = (nested for nested in with_inner(node) if nested is not node)
            placement.update((nested, self._placement[nested]) for nested in inner)
        fetches = [t for t in self._outputs if not t.dtype.is_ref_dtype] or self._any_output
        targets: Sequence[Node] = () if self._is_control else self._nodes
        return Partition(
            self._device,
            graph,
            tuple(predecessors),
            predecessors,
            tuple(Slot(index, tensor) for index, tensor in enumerate(feeds)),
            tuple(Slot(index, rewriter.tensors[t]) for index, t in enumerate(fetches)),
            tuple(rewriter.mapped(targets)),
            placement,
        )


def runs_on_control_device(node: Node) -> bool:
    """Whether a node in a control node's body must run on the control node's device, regardless of
    its placement: lists (variants) cannot leave their process, nor those that traces make of it."""
    tensors = [*node.inputs, *node.outputs]
    if node.op.bodies:
        readers = [reader for tensor in node.outputs for reader in tensor.consumers()]
        tensors += [t for each in readers if isinstance(each.op, Trace) for t in each.outputs]
    return any(tensor.dtype is variant for tensor in tensors)


def _argument(graph: Graph, tensor: Tensor) -> Tensor:
    dtype = tensor.dtype.base_dtype
    op = Argument(dtype=dtype, given_shape=tensor.shape)
    name = f"{tensor.op.name}/argument_{tensor.value_index}"
    return graph.add(op, (), [(dtype, tensor.shape)], name, None, tensor.op.made_at).outputs[0]


def _feed_value(item: Any) -> Any:
    """The value to send for an input: variables are read."""
    return item.read() if isinstance(item, ForeignCell | VariableCell) else item
