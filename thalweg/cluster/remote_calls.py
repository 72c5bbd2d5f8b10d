"""Conditionals and loops that span tasks: what is on another task is called there.

The task of the control node runs its token graph. A unit on another task becomes a partition of its
own, which is registered there when it is first called; each call sends the values it takes and gets
those it makes. Variables stay where they are: a unit finds those of its own task there, and is sent
the values of others.
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
from thalweg.cluster.tasks import task_of
from thalweg.cluster.transport.endpoint import Peer
from thalweg.cluster.values import packed, values_of
from thalweg.cluster.wire import Kind, Message
from thalweg.graph.analysis.node_effects import reference_roots
from thalweg.graph.analysis.order import step_order
from thalweg.graph.dtypes import variant
from thalweg.graph.node import Node, Tensor
from thalweg.graph.rewriter import Rewriter, RewrittenGraph
from thalweg.graph.subgraph import Argument
from thalweg.lower.specialise import ControlRegion, Region
from thalweg.ops.core.context import VariableCell
from thalweg.ops.state.state import VariableV2
from thalweg.partition.cut import Partition, Slot
from thalweg.place.placer import Placement, with_inner
from thalweg.runtime.compiled import Elsewhere
from thalweg.runtime.kernels import Call, ForeignCell

Unit = Node | Region | ControlRegion


class RemoteCalls:
    """The calls that one session of a task makes on others."""

    def __init__(self, session: str, peer: Callable[[str], Peer]) -> None:
        self.session = session
        self._peer = peer  # of a task
        # The upper half of a number tells the session; the steps of the master count from 0.
        self._numbers = itertools.count(int(session, 16) | 1 << 31 | secrets.randbits(30))

    def elsewhere(self, device: str, placement: Placement) -> Elsewhere:
        """A device of another task."""
        return Elsewhere(device, lambda unit: self._call(unit, device, placement))

    def _call(self, unit: Unit, device: str, placement: Placement) -> Call:
        if isinstance(unit, Node) and isinstance(unit.op, VariableV2):
            cell = RemoteCell(self, unit, device)
            return Call(lambda: cell, False, (), unit, (unit,))
        nodes = (unit,) if isinstance(unit, Node) else unit.nodes
        function = RemoteUnit(self, unit, device, placement)
        return Call(function, True, (), nodes[-1], nodes, is_async=True)

    def number(self) -> int:
        """A number that no other call has."""
        return next(self._numbers)

    def peer(self, device: str) -> Peer:
        """Who has a device."""
        return self._peer(task_of(device))

    def register(self, part: Partition) -> int:
        """Have another task plan a partition; its handle."""
        handle = self.number()
        fields, graph = encode(part)
        body = {"session": self.session, "handle": handle, "partitions": [fields]}
        self.ask(part.device, Message(Kind.REGISTER, 0, body, [graph]))
        return handle

    def run(self, handle: int, values: Sequence[Any]) -> Message:
        """The message that runs what was registered."""
        places = list(range(len(values)))
        about = {"session": self.session, "handle": handle}
        fields = {**about, "feeds": places, "keys": (), "task": ""}
        return packed(Message(Kind.RUN, self.number(), fields, values))

    def ask(self, device: str, message: Message) -> Message:
        """The answer of a task, which this thread waits for."""
        answers = SimpleQueue[tuple[Message | None, Exception | None]]()
        self.peer(device).request(message, lambda found, error: answers.put((found, error)))
        return _checked(*answers.get())


class RemoteCell(ForeignCell):
    """A variable of another task."""

    def __init__(self, calls: RemoteCalls, node: Node, device: str) -> None:
        self._calls, self.node, self.device = calls, node, device
        self._handle: int | None = None

    def read(self) -> Any:
        """The current value."""
        if self._handle is None:
            self._handle = self._calls.register(self._partition())
        return self._calls.ask(self.device, self._calls.run(self._handle, ())).values[0]

    def local(self) -> VariableCell:
        """A variable of this process with the current value."""
        tensor = self.node.outputs[0]
        made = VariableCell(self.node.name, tensor.dtype.base_dtype, tensor.shape)
        made.assign(self.read())
        return made

    def _partition(self) -> Partition:
        graph = RewrittenGraph()
        node = Rewriter(graph).copy(self.node)
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
        references = unit.references if isinstance(unit, Region) else ()
        self._inputs: tuple[Tensor, ...] = (*unit.inputs, *references)
        self._outputs = tuple(unit.outputs)
        self._is_control = isinstance(unit, ControlRegion)
        #: What a control node is run for if nothing of it is wanted but its effects.
        self._any_output = [*unit.node.outputs[:1]] if isinstance(unit, ControlRegion) else []
        self._roots = reference_roots(self._nodes)
        self._handles: dict[tuple[Node | None, ...], int] = {}
        self._lock = threading.Lock()

    def __call__(self, context: Any, done: Callable[..., None], *inputs: Any) -> None:
        """Call `done` with the outputs, or an error, when they are there."""
        cells = dict(zip(self._inputs, map(self._own, inputs), strict=True))
        values = [_value(each) for each in inputs if self._own(each) is None]
        message = self._calls.run(self._handle(cells), values)
        abort = Message(Kind.ABORT, message.step, failures.encode(_stopped(), ""))
        peer = self._calls.peer(self._device)
        undo = context.cancellation.on_cancel(lambda: peer.send(abort))

        def answered(answer: Message | None, error: Exception | None) -> None:
            undo()
            try:
                done(self._given(_checked(answer, error), cells), None)
            except errors.OpError as failure:
                done(None, failure if failure.op else failure.at(context.node))

        peer.request(message, answered)

    def _own(self, value: Any) -> RemoteCell | None:
        """A variable that the unit finds on its own task."""
        is_own = isinstance(value, RemoteCell) and task_of(value.device) == task_of(self._device)
        return value if is_own else None

    def _given(self, answer: Message, cells: Mapping[Tensor, RemoteCell | None]) -> list[Any]:
        """The outputs: what was sent, and references to the variables of the unit's task."""
        sent = iter(values_of(answer))
        return [
            cells[self._roots.get(tensor, tensor)] if tensor.dtype.is_ref_dtype else next(sent)
            for tensor in self._outputs
        ]

    def _handle(self, cells: Mapping[Tensor, RemoteCell | None]) -> int:
        key = tuple(cell and cell.node for cell in cells.values())
        with self._lock:
            if key not in self._handles:
                self._handles[key] = self._calls.register(self._partition(cells))
            return self._handles[key]

    def _partition(self, cells: Mapping[Tensor, RemoteCell | None]) -> Partition:
        graph = RewrittenGraph()
        rewriter = Rewriter(graph)
        feeds: list[Tensor] = []
        for tensor, cell in cells.items():
            if cell is None:
                made = _argument(graph, tensor)
                feeds.append(made)
            else:
                known = rewriter.nodes.get(cell.node) or rewriter.copy(cell.node)
                made = known.outputs[0]
            rewriter.tensors[tensor] = made
        order = step_order(self._nodes, self._inputs)
        placement = dict.fromkeys(graph.nodes, self._device)
        found = {node: set[Node]() for node in graph.nodes if not isinstance(node.op, Argument)}
        for node in self._nodes:
            for tensor in node.inputs:  # of a control node, some may not be used
                if tensor not in rewriter.tensors:
                    rewriter.tensors[tensor] = _argument(graph, tensor)
            made = rewriter.copy(node)
            placement[made] = self._device
            found[made] = {tensor.op for tensor in made.inputs if tensor.op in found}
            found[made] |= set(rewriter.mapped(order.get(node, ())))
            inner = (each for each in with_inner(node) if each is not node)
            placement.update((each, self._placement[each]) for each in inner)
        fetched = [t for t in self._outputs if not t.dtype.is_ref_dtype] or self._any_output
        targets: Sequence[Node] = () if self._is_control else self._nodes
        return Partition(
            self._device,
            graph,
            tuple(found),
            found,
            tuple(Slot(place, tensor) for place, tensor in enumerate(feeds)),
            tuple(Slot(place, rewriter.tensors[t]) for place, t in enumerate(fetched)),
            tuple(rewriter.mapped(targets)),
            placement,
        )


def stays_here(node: Node) -> bool:
    """Whether a node inside a control node runs where that does, whatever it asks for: lists are
    objects of one process."""
    return any(tensor.dtype is variant for tensor in (*node.inputs, *node.outputs))


def _argument(graph: RewrittenGraph, tensor: Tensor) -> Tensor:
    dtype = tensor.dtype.base_dtype
    op = Argument(dtype=dtype, given_shape=tensor.shape)
    name = f"{tensor.op.name}/argument_{tensor.value_index}"
    return graph.add(op, (), [dtype], [tensor.shape], name, None, tensor.op.made_at).outputs[0]


def _value(item: Any) -> Any:
    """What is sent of an input."""
    return item.read() if isinstance(item, ForeignCell | VariableCell) else item


def _checked(answer: Message | None, error: Exception | None) -> Message:
    if answer is None:
        raise error or errors.UnavailableError(None, None, "A task did not answer")
    if answer.kind is Kind.FAILED:
        raise failures.decode(answer.fields)
    return answer


def _stopped() -> errors.CancelledError:
    return errors.CancelledError(None, None, "The step that called this was stopped")
