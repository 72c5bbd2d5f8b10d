"""Straight graphs: token graphs without frames or branches, run by one thread at a time.

Most tasks of a cluster receive values, run a few kernels and send values in a step. Such a run is a
list of slots, a list of pending counts and a stack of ready vertices. The thread that delivers a
value continues the run; nobody blocks. At a long call the run moves to another thread, which
continues until nothing is ready. All other graphs, including those with long calls that could run
in parallel, are run by the dataflow executor (`run.py`), with the same semantics.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from thalweg.ops.core.basic import Const, NoOp
from thalweg.ops.state.accumulators import AccumulatorHandle
from thalweg.ops.state.queue_ops import QueueHandle
from thalweg.ops.state.state import VariableV2
from thalweg.partition.rendezvous import Key
from thalweg.partition.transfers import Receiving, Sending, Transfer, send
from thalweg.runtime.compiled import Executable
from thalweg.runtime.dataflow.scheduler import Submit
from thalweg.runtime.dataflow.tokens import Source, VertexKind
from thalweg.runtime.dataflow.wiring import WiredVertex, Wiring
from thalweg.runtime.kernels import Call, Context, outputs_of, raise_at, starter_of
from thalweg.runtime.resources import Objects

#: (fetched values of the graph, as a list of one list; error)
Ended = Callable[[list[list[Any]], BaseException | None], None]
_SEQUENCES = (list, tuple)
_LASTING = (Const, VariableV2, QueueHandle, AccumulatorHandle)
_MAX_SHORT_BYTES = 1 << 20  # inputs of an inexpensive call that is short


class StraightVertex:
    """A call and its out-edges, without those to vertices that are `done`."""

    def __init__(self, call: Call, wired: WiredVertex, done: Collection[int]) -> None:
        op, function = call.node.op, call.function
        executable = function if isinstance(function, Executable) else None
        region = None if executable is None else executable.region
        self.call, self.executable = call, executable  # None unless it is a region
        #: A region of NoOps: it only orders other vertices.
        self.is_empty = region is not None and all(isinstance(n.op, NoOp) for n in region.nodes)
        #: The number of the region's inputs; its variables follow them.
        self.inputs = len(region.inputs) if region else 0
        self.starter = starter_of(call) if wired.spec.blocks else None  # if it may block
        is_brief = isinstance(op, Transfer) or not call.node.inputs
        #: Whether its duration must be checked before each call.
        self.is_limited = not self.is_empty if region else not is_brief
        self.key = op.key if isinstance(op, Receiving) else None  # of a receive
        self.sent = op.key if isinstance(op, Sending) and region is None else None  # of a send
        self.first, self.last, self.empty = wired.first, wired.last, wired.empty  # input slots
        #: The (consumer, slot) edges of each output.
        self.outputs = [[e for e in edges.plain if e[0] not in done] for edges in wired.edges]
        self.controls = [place for place in wired.controls if place not in done]


class _InitialState(NamedTuple):
    """The initial state of a run, with constants and variables already looked up."""

    values: list[Any]
    pending: list[int]
    ready: list[int]
    left: int  # the number of calls
    objects: Objects  # that hold the variables
    version: int  # of `objects` at the lookup


class StraightGraph:
    """A straight graph in execution form. Any number of threads may run it concurrently."""

    def __init__(self, wiring: Wiring, done: Collection[int] = ()) -> None:
        """`done`: indices of the vertices that runs leave out, because they ran before."""
        (frame,) = wiring.frames
        self._wiring, self._done = wiring, done
        self.fed = [vertex.edges[0].plain for vertex in wiring.feeds]
        self._values, self._pending = frame.values, frame.pending
        self.vertices: list[Any] = [  # StraightVertex, or None if it is fed or done
            None if each.call is None or index in done else StraightVertex(each.call, each, done)
            for index, each in enumerate(frame.vertices)
        ]
        #: The receives that wait for no other vertex.
        self.expected: dict[Key, StraightVertex] = {
            vertex.key: vertex
            for index, vertex in enumerate(self.vertices)
            if vertex is not None and vertex.key is not None and not self._pending[index]
        }
        self.fetches = wiring.fetches
        self._start: _InitialState | None = None
        self._executables = self._ordered_regions()

    @staticmethod
    def of(wiring: Wiring) -> StraightGraph | None:
        """The straight form of a token graph; None if it has none."""
        is_flat = len(wiring.frames) == 1 and not wiring.graph.may_be_dead
        vertices = wiring.frames[0].vertices
        is_straight = is_flat and all(map(_is_straight, vertices))
        is_alone = sum(map(_is_long, vertices)) <= 1
        return StraightGraph(wiring) if is_straight and is_alone else None

    def without(self, done: Collection[int]) -> StraightGraph | None:
        """The graph without the vertices at these indices; None if no calls remain."""
        left = StraightGraph(self._wiring, {*self._done, *done})
        return left if left.has_calls else None

    @property
    def has_calls(self) -> bool:
        """Whether there are calls besides lookups of constants and variables."""
        return any(vertex is not None and not is_lasting(vertex) for vertex in self.vertices)

    def producers(self, index: int) -> list[tuple[int, int]]:
        """The vertices that a vertex waits for, which precede it, each with the slot of its value;
        -1 for a control edge."""
        wired = self._wiring.frames[0].vertices[index]
        inputs = enumerate(wired.spec.inputs, wired.first)
        edges = [(source.vertex, slot) for slot, source in inputs if isinstance(source, Source)]
        edges += [(control, -1) for control in wired.spec.controls]
        return [edge for edge in edges if self.vertices[edge[0]] is not None]

    def start(self, context: Context) -> _InitialState:
        """The initial state of a run; variables are looked up again only after a deletion."""
        start, objects = self._start, context.resources.objects
        if start is None or start.objects is not objects or start.version != objects.version:
            start = self._start = self._initial_state(context, objects)
        return start

    def _initial_state(self, context: Context, objects: Objects) -> _InitialState:
        """Look up constants, and the session's objects, which are valid until one is deleted."""
        version, values, pending = objects.version, self._values[:], self._pending[:]
        sources = [index for index, each in enumerate(self.vertices) if each and not pending[index]]
        lasting = [index for index in sources if is_lasting(self.vertices[index])]
        started = {*lasting, *(index for index in sources if self.vertices[index].key is not None)}
        ready = [index for index in reversed(sources) if index not in started]
        for vertex in [self.vertices[index] for index in lasting]:
            call = vertex.call
            arguments = [context.at(call.node)] if call.takes_context else []
            put(vertex.outputs[0], call.function(*arguments), values, pending, ready)
        left = sum(map(bool, self.vertices)) - len(lasting)
        return _InitialState(values, pending, ready, left, objects, version)

    def _ordered_regions(self) -> list[tuple[Executable, int, int]]:
        """The regions in topological order, each with its bit and the mask of its ancestors."""
        regions = list[tuple[Executable, int, int]]()
        masks = [0] * len(self.vertices)  # the regions that the consumers of a vertex depend on
        for index, vertex in enumerate(self.vertices):
            for producer, _ in self.producers(index):
                masks[index] |= masks[producer]
            if vertex is not None and vertex.executable is not None and not vertex.is_empty:
                regions.append((vertex.executable, 1 << len(regions), masks[index]))
                masks[index] |= regions[-1][1]
        return regions

    @property
    def is_sequential(self) -> bool:
        """Whether no two long regions are independent, as far as durations are known now.
        Independent ones run in parallel on the dataflow executor."""
        long = 0
        for executable, bit, ancestors in self._executables:
            if not executable.holds_gil and not executable.is_inexpensive:
                if long & ~ancestors:
                    return False
                long |= bit
        return True


def is_short(call: Call, inputs: Sequence[Any]) -> bool:
    """Whether a call takes less time than handing it to another thread."""
    function, op = call.function, call.node.op
    if isinstance(function, Executable):
        if function.holds_gil:
            return True
        is_inexpensive = function.is_inexpensive
    elif isinstance(op, Transfer) or not call.node.inputs:
        return True
    else:
        is_inexpensive = op.inexpensive
    return is_inexpensive and sum([getattr(i, "nbytes", 0) for i in inputs]) <= _MAX_SHORT_BYTES


def _is_straight(vertex: WiredVertex) -> bool:
    call = vertex.call
    if call is None:
        return vertex.kind == VertexKind.PASS
    if any(edges.merges for edges in vertex.edges):
        return False
    if isinstance(call.node.op, Receiving):
        return True
    return not call.is_async and (not vertex.spec.blocks or starter_of(call) is not None)


def _is_long(vertex: WiredVertex) -> bool:
    """Whether a call always counts as long, whatever its inputs."""
    call = vertex.call
    if call is None or vertex.spec.blocks or isinstance(call.function, Executable):
        return False
    return not is_short(call, ())


def is_lasting(vertex: StraightVertex) -> bool:
    """Whether a vertex has the same result in each run: a constant, or an object of the session."""
    is_lookup = vertex.executable is None and isinstance(vertex.call.node.op, _LASTING)
    return is_lookup and not vertex.controls


def put(
    edges: Sequence[tuple[int, int]],
    value: Any,
    values: list[Any],
    pending: list[int],
    ready: list[int],
) -> None:
    """Store a value in the slots of its consumers; those that become ready join `ready`."""
    for place, slot in edges:
        values[slot] = value
        left = pending[place] = pending[place] - 1
        if not left:
            ready.append(place)


class StraightRun:
    """One run of a straight graph.

    Any thread may deliver a value; it then continues the run, unless another thread is doing so.
    These threads run with NumPy's floating-point warnings ignored.
    """

    def __init__(
        self,
        graph: StraightGraph,
        feeds: Sequence[Any],
        context: Context,
        submit_short: Submit,
        submit_long: Submit,
        ended: Ended,
    ) -> None:
        self._graph, self._context, self._ended = graph, context, ended
        self._submit_short, self._submit_long = submit_short, submit_long
        values, pending, ready, left, _, _ = graph.start(context)
        self._values, self._pending, self._ready = values[:], pending[:], ready[:]
        self._left = left  # calls that have not completed
        self._arrived: deque[tuple[StraightVertex, Any, BaseException | None]] = deque()
        self._turn = threading.Lock()  # held by the thread that runs, and forever after the end
        if feeds:
            for edges, value in zip(graph.fed, feeds, strict=True):
                put(edges, value, self._values, self._pending, self._ready)

    def begin(self) -> None:
        """Register the receives at the rendezvous and make all ready calls."""
        rendezvous: Any = self._context.rendezvous  # not None in a step with receives
        with self._turn:
            for key, vertex in self._graph.expected.items():
                rendezvous.receive(key, partial(self._arrive, vertex))
        self.resume()

    def resume(self, holds_turn: bool = False) -> None:
        """Make all ready calls, unless another thread is doing so: it then sees what arrived.
        `holds_turn`: this thread holds `_turn` already and may make long calls."""
        while holds_turn or self._turn.acquire(blocking=False):
            try:
                is_done = self._call_ready(holds_turn)
                if is_done and self._left:
                    self._turn.release()
                    if not self._arrived or (holds_turn and not self._turn.acquire(blocking=False)):
                        return
                    continue
            except BaseException as error:
                self._ended([], error)
                return
            if is_done:
                fetches = self._graph.fetches
                self._ended([[self._values[slot] for slot in fetches] if fetches else []], None)
            else:
                self._submit_long(self._continue_on_worker)
            return

    def _continue_on_worker(self) -> None:
        """Continue on a thread that may make long calls; `_turn` is taken over from the caller."""
        rendezvous: Any = self._context.rendezvous  # not None: the step has several partitions
        with np.errstate(all="ignore"):
            rendezvous.run_batched(partial(self.resume, holds_turn=True))

    def _call_ready(self, holds_turn: bool) -> bool:  # noqa: C901 - functions of its parts would cost a third more
        """Make the ready calls, long ones last. Returns False if only long calls are ready and this
        thread may not make them."""
        ready, arrived, vertices = self._ready, self._arrived, self._graph.vertices
        values, pending, context = self._values, self._pending, self._context
        flat: Any
        postponed: list[int] = []  # long calls, postponed until nothing else is ready
        rendezvous: Any = context.rendezvous  # not None: the step has several partitions
        while True:
            if arrived:
                vertex, result, error = arrived.popleft()
                if error is not None:
                    raise error
            elif not ready:
                ready += postponed
                return not postponed
            elif context.cancellation.error is not None:
                raise context.cancellation.error
            else:
                index = ready.pop()
                vertex = vertices[index]
                if vertex.starter is not None or vertex.key is not None:
                    self._start(vertex)
                    continue
                executable = vertex.executable
                holds_gil = executable is not None and executable.holds_gil
                if vertex.is_limited and not holds_gil and self._is_long(vertex):
                    if not holds_turn:
                        postponed.append(index)
                        continue
                    rendezvous.flush()
                result = self._result(vertex)
            self._left -= 1
            outputs, flat = vertex.outputs, result
            if vertex.executable is None and (outputs or flat):  # regions return a flat list
                is_single = len(outputs) == 1 and not isinstance(flat, _SEQUENCES)
                flat = (flat,) if is_single else outputs_of(flat, len(outputs), vertex.call.node)
            for edges, value in zip(outputs, flat or (), strict=True):
                for index, slot in edges:
                    values[slot] = value
                    count = pending[index] = pending[index] - 1
                    if not count:
                        ready.append(index)
            for index in vertex.controls:
                count = pending[index] = pending[index] - 1
                if not count:
                    ready.append(index)

    def _arrive(self, vertex: StraightVertex, value: Any, error: BaseException | None) -> None:
        """Accept a received value, or the result of a started op. Called on any thread."""
        self._arrived.append((vertex, value, error))
        if not self._turn.locked():  # else the thread that holds it will see what arrived
            self._submit_short(self.resume)

    def _start(self, vertex: StraightVertex) -> None:
        """Start a blocking op or a receive; its completion calls `_arrive`."""
        call, arrive = vertex.call, partial(self._arrive, vertex)
        if vertex.starter is None:
            rendezvous: Any = self._context.rendezvous  # not None in a step with receives
            rendezvous.receive(vertex.key, arrive)
            return
        inputs = self._values[vertex.first : vertex.last]
        self._values[vertex.first : vertex.last] = vertex.empty
        try:
            vertex.starter(self._context.at(call.node, call.device), arrive, *inputs)
        except Exception as error:
            raise_at(error, call.node)

    def _is_long(self, vertex: StraightVertex) -> bool:
        """Whether a call is so long that another thread should make it."""
        return not is_short(vertex.call, self._values[vertex.first : vertex.last])

    def _result(self, vertex: StraightVertex) -> Any:
        call, executable, context = vertex.call, vertex.executable, self._context
        values, first, last = self._values, vertex.first, vertex.last
        inputs = values[first:last]
        values[first:last] = vertex.empty  # release values after their last use
        try:
            if vertex.is_empty:
                return ()
            if executable is not None:
                count = vertex.inputs
                if count == len(inputs):
                    return executable.run(context, inputs, ())
                return executable.run(context, inputs[:count], inputs[count:])
            for position in call.references:
                inputs[position] = inputs[position].read()
            if vertex.sent is not None:
                rendezvous: Any = context.rendezvous  # not None in a step with sends
                send(rendezvous, vertex.sent, inputs[0] if inputs else ())
                return ()
            if call.takes_context:
                inputs.insert(0, context.at(call.node, call.device))
            return call.function(*inputs)
        except Exception as error:
            raise_at(error, call.node)
