"""Token graphs without frames that need one thread at a time: they run on those that bring values.

What most tasks of a cluster do in a step: take values, run a few kernels, send values. There is no
loop and no branch; a run is a list of slots, a list of counts and a stack of what is ready. A call
that takes long is left to another thread, which goes on until nothing is ready. Everything else,
calls that take long and could run at once among it, is for the dataflow executor (`run.py`), which
means the same.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from thalweg.ops.core.basic import NoOp
from thalweg.ops.state.accumulators import AccumulatorHandle
from thalweg.ops.state.queue_ops import QueueHandle
from thalweg.ops.state.state import VariableV2
from thalweg.partition.rendezvous import Key
from thalweg.partition.transfers import Receiving, Sending, Transfer, send
from thalweg.runtime.compiled import Executable
from thalweg.runtime.dataflow.tokens import TokenGraph, VertexKind
from thalweg.runtime.dataflow.wiring import WiredVertex, Wiring
from thalweg.runtime.kernels import Call, Context, outputs_of, raise_at, starter_of
from thalweg.runtime.resources import Objects

#: (the fetched values of the one graph, an error)
Ended = Callable[[list[list[Any]], BaseException | None], None]
Soon = Callable[[Callable[[], None]], None]
_SEVERAL = (list, tuple)
_LASTING = (VariableV2, QueueHandle, AccumulatorHandle)
_MAX_SHORT = 1 << 20  # bytes of the inputs of an inexpensive call


@dataclass(slots=True, eq=False)
class StraightVertex:
    """A call, and where what it gives goes. With slots: it is looked at for every call."""

    call: Call
    executable: Executable | None  # where it is a region
    is_empty: bool  # there is nothing to do: what waits for it waits for what it waits for
    inputs: int  # of the region; variables follow
    starter: Callable[..., None] | None  # of what may block
    is_limited: bool  # it is not always short
    is_long: bool  # it is never known to be short
    key: Key | None  # of what it receives
    sent: Key | None  # of what it sends
    first: int  # the slots of its inputs: from here
    last: int  # to before this one
    empty: list[None]
    outputs: list[list[tuple[int, int]]]  # (follower, slot), by output
    controls: list[int]


class _Start(NamedTuple):
    """What runs begin with: the variables are found already."""

    values: list[Any]
    pending: list[int]
    ready: list[int]
    left: int  # calls
    objects: Objects  # where the variables were found
    version: int


class StraightGraph:
    """A token graph without frames, ready to run; any number of threads may do so at once."""

    def __init__(self, wiring: Wiring, done: Collection[int] = ()) -> None:
        """Without the vertices that are done when a run begins, by their places."""
        (frame,) = wiring.frames
        self._wiring = wiring
        self.fed = [vertex.edges[0].plain for vertex in wiring.feeds]
        self._values, self._pending = frame.values, frame.pending
        self.vertices: list[Any] = [  # None for what is fed or done
            None if place in done else _vertex(each, done)
            for place, each in enumerate(frame.vertices)
        ]
        #: What runs receive, whatever comes first.
        self.expected: dict[Key, StraightVertex] = {
            vertex.key: vertex
            for place, vertex in enumerate(self.vertices)
            if vertex is not None and vertex.key is not None and not self._pending[place]
        }
        self.fetches = wiring.fetches
        self._start: _Start | None = None
        self._executables = self._in_order()

    @staticmethod
    def of(graph: TokenGraph, wiring: Wiring) -> StraightGraph | None:
        """A token graph, if it is one of these."""
        is_flat = len(wiring.frames) == 1 and not graph.may_be_dead
        vertices = wiring.frames[0].vertices
        is_straight = is_flat and all(map(_is_straight, vertices))
        is_alone = sum(not _is_short(vertex) for vertex in vertices) <= 1
        return StraightGraph(wiring) if is_straight and is_alone else None

    def without(self, done: Collection[int]) -> StraightGraph | None:
        """What is left once some vertices, by their places, are done; None for nothing."""
        left = StraightGraph(self._wiring, done)
        return left if left.has_calls else None

    @property
    def has_calls(self) -> bool:
        """Whether anything but variables is looked up."""
        return any(each is not None and not is_lasting(each) for each in self.vertices)

    def start(self, context: Context) -> _Start:
        """What a run begins with."""
        known, objects = self._start, context.resources.objects
        if known is None or known.objects is not objects or known.version != objects.version:
            known = self._start = self._found(context, objects)
        return known

    def _found(self, context: Context, objects: Objects) -> _Start:
        """Look up variables and the like, which are the same until some are forgotten."""
        version, values, pending = objects.version, self._values[:], self._pending[:]
        places = [at for at, each in enumerate(self.vertices) if each and not pending[at]]
        variables = [at for at in places if is_lasting(self.vertices[at])]
        begun = {*variables, *(at for at in places if self.vertices[at].key is not None)}
        ready = [at for at in reversed(places) if at not in begun]
        for vertex in [self.vertices[at] for at in variables]:
            cell = vertex.call.function(context.at(vertex.call.node))
            put(vertex.outputs[0], cell, values, pending, ready)
        left = sum(map(bool, self.vertices)) - len(variables)
        return _Start(values, pending, ready, left, objects, version)

    def _in_order(self) -> list[tuple[Executable, int, int]]:
        """The regions, each after those it waits for: a bit for it, and those of the others."""
        found = list[tuple[Executable, int, int]]()
        pending, before = self._pending[:], [0] * len(self._pending)
        ready = [at for at, each in enumerate(self.vertices) if each and not pending[at]]
        for place, _ in (edge for edges in self.fed for edge in edges):
            _count_down(place, pending, ready)
        while ready:
            place = ready.pop()
            vertex, earlier = self.vertices[place], before[place]
            if vertex.executable is not None and not vertex.is_empty:
                found.append((vertex.executable, 1 << len(found), earlier))
                earlier |= found[-1][1]
            followers = [at for edges in vertex.outputs for at, _ in edges] + [*vertex.controls]
            for follower in followers:
                before[follower] |= earlier
                _count_down(follower, pending, ready)
        return found

    @property
    def is_sequential(self) -> bool:
        """Whether no two compiled calls that take long, as far as is known now, could run at once;
        they would, elsewhere."""
        long = 0
        for executable, bit, earlier in self._executables:
            if not executable.holds_gil and not executable.is_inexpensive:
                if long & ~earlier:
                    return False
                long |= bit
        return True


def _count_down(place: int, pending: list[int], ready: list[int]) -> None:
    pending[place] -= 1
    if not pending[place] and place >= 0:  # what is fetched goes to no vertex
        ready.append(place)


def are_large(inputs: Sequence[Any]) -> bool:
    """Whether an inexpensive call with these inputs takes longer than to wake another thread."""
    return sum([getattr(each, "nbytes", 0) for each in inputs]) > _MAX_SHORT


def _is_straight(vertex: WiredVertex) -> bool:
    call = vertex.call
    if call is None:
        return vertex.kind == VertexKind.PASS
    if vertex.triggers or any(edges.merges for edges in vertex.edges):
        return False
    if isinstance(call.node.op, Receiving):
        return True
    return not call.is_async and (not vertex.spec.blocks or starter_of(call) is not None)


def _is_short(vertex: WiredVertex) -> bool:
    """Whether a call takes little time, or else can tell."""
    call = vertex.call
    if call is None or vertex.spec.blocks or isinstance(call.function, Executable):
        return True
    return isinstance(call.node.op, Transfer) or call.node.op.inexpensive or not call.node.inputs


def is_lasting(vertex: StraightVertex) -> bool:
    """Whether a vertex gives one object of the session, always the same."""
    return isinstance(vertex.call.node.op, _LASTING) and not vertex.controls


def put(
    edges: Sequence[tuple[int, int]],
    value: Any,
    values: list[Any],
    pending: list[int],
    ready: list[int],
) -> None:
    """Put a value into the slots of those who take it."""
    for place, slot in edges:
        values[slot] = value
        left = pending[place] = pending[place] - 1
        if not left:
            ready.append(place)


def _vertex(wired: WiredVertex, done: Collection[int]) -> Any:
    if wired.call is None:
        return None  # what is fed is sent at the beginning
    op, function = wired.call.node.op, wired.call.function
    executable = function if isinstance(function, Executable) else None
    is_long = not _is_short(wired)
    return StraightVertex(
        wired.call,
        executable,
        executable is not None and all(isinstance(n.op, NoOp) for n in executable.region.nodes),
        len(executable.region.inputs) if executable else 0,
        starter_of(wired.call) if wired.spec.blocks else None,
        executable is not None or (op.inexpensive and bool(wired.call.node.inputs)) or is_long,
        is_long,
        op.key if isinstance(op, Receiving) else None,
        op.key if isinstance(op, Sending) and executable is None else None,
        wired.first,
        wired.last,
        wired.empty,
        [[edge for edge in edges.plain if edge[0] not in done] for edges in wired.edges],
        [place for place in wired.controls if place not in done],
    )


class StraightRun:
    """One run of a graph. Whoever brings a value goes on with it, one thread at a time; these
    threads ignore what NumPy has to say of numbers."""

    def __init__(
        self,
        graph: StraightGraph,
        feeds: Sequence[Any],
        context: Context,
        soon: Soon,
        later: Soon,
        ended: Ended,
    ) -> None:
        self._graph, self._context, self._ended = graph, context, ended
        self._soon, self._later = soon, later
        values, pending, ready, left, _, _ = graph.start(context)
        self._values, self._pending, self._ready = values[:], pending[:], ready[:]
        self._left = left  # calls that are not done
        self._arrived: deque[tuple[StraightVertex, Any, BaseException | None]] = deque()
        self._turn = threading.Lock()  # held by who goes on, and for good once the run is over
        if feeds:
            for edges, value in zip(graph.fed, feeds, strict=True):
                put(edges, value, self._values, self._pending, self._ready)

    def begin(self) -> None:
        """Wait for what is received, and call all that is ready."""
        if self._graph.expected:
            rendezvous: Any = self._context.rendezvous  # there is one if something is received
            for vertex, value in rendezvous.expect(self._graph.expected, self._arrive):
                self._arrived.append((vertex, value, None))
        self.go_on()

    def go_on(self, is_there: bool = False) -> None:
        """Call all that is ready, unless another thread does: that sees what came. `is_there`: this
        one has the turn already, and may take long."""
        while is_there or self._turn.acquire(blocking=False):
            try:
                is_done = self._call_ready(is_there)
                if is_done and self._left:
                    self._turn.release()
                    if not self._arrived or (is_there and not self._turn.acquire(blocking=False)):
                        return
                    continue
            except BaseException as error:
                self._ended([], error)
                return
            if is_done:
                fetches = self._graph.fetches
                self._ended([[self._values[slot] for slot in fetches] if fetches else []], None)
            else:
                self._later(self._work_there)
            return

    def _work_there(self) -> None:
        """Go on with the turn that another thread had, on one that may take long."""
        rendezvous: Any = self._context.rendezvous  # of a step with several partitions there is one
        with np.errstate(all="ignore"):
            rendezvous.do_together(partial(self.go_on, is_there=True))

    def _call_ready(self, is_there: bool) -> bool:  # noqa: C901 - functions of its parts would cost a third more
        """Call all that is ready, or else what comes before a call that takes long."""
        ready, arrived, vertices = self._ready, self._arrived, self._graph.vertices
        values, pending, context = self._values, self._pending, self._context
        flat: Any
        later: list[int] = []  # calls that take long, after all others
        rendezvous: Any = context.rendezvous  # of a step with several partitions there is one
        while True:
            if arrived:
                vertex, result, error = arrived.popleft()
                if error is not None:
                    raise error
            elif not ready:
                ready += later
                return not later
            elif context.cancellation.error is not None:
                raise context.cancellation.error
            else:
                place = ready.pop()
                vertex = vertices[place]
                if vertex.starter is not None or vertex.key is not None:
                    self._start(vertex)
                    continue
                executable = vertex.executable
                is_short = vertex.is_empty or (executable is not None and executable.holds_gil)
                if vertex.is_limited and not is_short and self._is_long(vertex):
                    if not is_there:
                        later.append(place)
                        continue
                    rendezvous.flush()
                result = self._result(vertex)
            self._left -= 1
            outputs, flat = vertex.outputs, result
            if vertex.executable is None and (outputs or flat):  # a region's are a flat list
                is_one = len(outputs) == 1 and not isinstance(flat, _SEVERAL)
                flat = (flat,) if is_one else outputs_of(flat, len(outputs), vertex.call.node)
            for edges, value in zip(outputs, flat or (), strict=True):
                for place, slot in edges:
                    values[slot] = value
                    left = pending[place] = pending[place] - 1
                    if not left:
                        ready.append(place)
            for place in vertex.controls:
                left = pending[place] = pending[place] - 1
                if not left:
                    ready.append(place)

    def _arrive(self, vertex: StraightVertex, value: Any, error: BaseException | None) -> None:
        """Take what was received, or told; on any thread."""
        self._arrived.append((vertex, value, error))
        self._soon(self.go_on)

    def _start(self, vertex: StraightVertex) -> None:
        """Have what may block, or is received, arrive when it is there."""
        call, arrive = vertex.call, partial(self._arrive, vertex)
        if vertex.starter is None:
            rendezvous: Any = self._context.rendezvous  # there is one if something is received
            rendezvous.receive(vertex.key, arrive)
            return
        inputs = self._values[vertex.first : vertex.last]
        self._values[vertex.first : vertex.last] = vertex.empty
        try:
            vertex.starter(self._context.at(call.node, call.device), arrive, *inputs)
        except Exception as error:
            raise_at(error, call.node)

    def _is_long(self, vertex: StraightVertex) -> bool:
        """Whether a call that may not be short takes so long that another thread is to make it."""
        executable = vertex.executable
        if vertex.is_long or (executable is not None and not executable.is_inexpensive):
            return True
        return are_large(self._values[vertex.first : vertex.last])

    def _result(self, vertex: StraightVertex) -> Any:
        call, executable, context = vertex.call, vertex.executable, self._context
        values, first, last = self._values, vertex.first, vertex.last
        inputs = values[first:last]
        values[first:last] = vertex.empty  # a value lives as long as it has uses
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
                rendezvous: Any = context.rendezvous  # there is one if something is sent
                send(rendezvous, vertex.sent, inputs[0] if inputs else ())
                return ()
            if call.takes_context:
                inputs.insert(0, context.at(call.node, call.device))
            return call.function(*inputs)
        except Exception as error:
            raise_at(error, call.node)
