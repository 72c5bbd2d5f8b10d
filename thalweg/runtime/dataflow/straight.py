"""Token graphs without frames whose calls are all short: they run on the threads that bring values.

What most tasks of a cluster do in a step: take values, run a few short kernels, send values. There
is no loop and no branch; a run is a list of slots, a list of counts and a stack of what is ready.
Where an inexpensive call has a large input after all, another thread does the rest. Everything else
is for the dataflow executor (`run.py`), which means the same.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from thalweg.ops.state.accumulators import AccumulatorHandle
from thalweg.ops.state.queue_ops import QueueHandle
from thalweg.ops.state.state import VariableV2
from thalweg.partition.rendezvous import Key
from thalweg.partition.transfers import Receiving, Transfer
from thalweg.runtime.compiled import Executable
from thalweg.runtime.dataflow.tokens import TokenGraph, VertexKind
from thalweg.runtime.dataflow.wiring import WiredVertex, Wiring
from thalweg.runtime.kernels import Call, Context, outputs_of, raise_at
from thalweg.runtime.resources import Objects

#: (the fetched values of the one graph, an error)
Ended = Callable[[list[list[Any]], BaseException | None], None]
Soon = Callable[[Callable[[], None]], None]
_SEVERAL = (list, tuple)
_LASTING = (VariableV2, QueueHandle, AccumulatorHandle)
_MAX_SHORT = 1 << 20  # bytes of the inputs of an inexpensive call


class _Vertex(NamedTuple):
    """A call, and where what it gives goes."""

    call: Call
    executable: Executable | None  # where it is a region
    inputs: int  # of the region; variables follow
    starter: Callable[..., None] | None  # of what may block
    is_limited: bool  # it is short only if its inputs are small
    key: Key | None  # of what it receives
    first: int  # the slots of its inputs: from here
    last: int  # to before this one
    empty: list[None]
    outputs: tuple[tuple[tuple[int, int], ...], ...]  # (follower, slot), by output
    controls: tuple[int, ...]


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

    def __init__(self, graph: TokenGraph, wiring: Wiring) -> None:
        (frame,) = wiring.frames
        self.fed = [vertex.edges[0].plain for vertex in wiring.feeds]
        self._values, self._pending = frame.values, frame.pending
        self.vertices = [_vertex(each) for each in frame.vertices]
        calls = [each.call for each in frame.vertices if each.call is not None]
        #: What runs receive, whatever comes first.
        self.expected: dict[Key, _Vertex] = {
            vertex.key: vertex
            for place, vertex in enumerate(self.vertices)
            if vertex is not None and vertex.key is not None and not self._pending[place]
        }
        self.fetches = wiring.fetches
        self._start: _Start | None = None
        self._executables = [c.function for c in calls if isinstance(c.function, Executable)]

    @staticmethod
    def of(graph: TokenGraph, wiring: Wiring) -> StraightGraph | None:
        """A token graph, if it is one of these."""
        is_flat = len(wiring.frames) == 1 and not graph.may_be_dead
        is_straight = is_flat and all(map(_is_straight, wiring.frames[0].vertices))
        return StraightGraph(graph, wiring) if is_straight else None

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
        variables = [at for at in places if _is_lasting(self.vertices[at])]
        begun = {*variables, *(at for at in places if self.vertices[at].key is not None)}
        ready = [at for at in reversed(places) if at not in begun]
        for vertex in [self.vertices[at] for at in variables]:
            cell = vertex.call.function(context.at(vertex.call.node))
            put(vertex.outputs[0], cell, values, pending, ready)
        left = sum(map(bool, self.vertices)) - len(variables)
        return _Start(values, pending, ready, left, objects, version)

    @property
    def is_short(self) -> bool:
        """Whether all compiled calls are known to be short by now."""
        for each in self._executables:
            if not each.holds_gil and not each.is_inexpensive:
                return False
        return True


def are_large(inputs: Sequence[Any]) -> bool:
    """Whether an inexpensive call with these inputs takes longer than to wake another thread."""
    return sum([getattr(each, "nbytes", 0) for each in inputs]) > _MAX_SHORT


def _is_straight(vertex: WiredVertex) -> bool:
    call = vertex.call
    if call is None:
        return vertex.kind == VertexKind.PASS
    if call.is_async or vertex.triggers or any(edges.merges for edges in vertex.edges):
        return False
    if isinstance(call.node.op, Receiving):
        return True
    if vertex.spec.blocks or vertex.spec.is_async:
        return vertex.starter is not None
    op = call.node.op
    is_transfer = isinstance(op, Transfer)
    is_short = is_transfer or op.inexpensive or not call.node.inputs
    return is_short or isinstance(call.function, Executable)


def _is_lasting(vertex: _Vertex) -> bool:
    """Whether a vertex gives one object of the session, always the same."""
    return isinstance(vertex.call.node.op, _LASTING) and not vertex.controls


def put(
    edges: tuple[tuple[int, int], ...],
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


def _vertex(wired: WiredVertex) -> Any:
    if wired.call is None:
        return None  # what is fed is sent at the beginning
    op, function = wired.call.node.op, wired.call.function
    executable = function if isinstance(function, Executable) else None
    return _Vertex(
        wired.call,
        executable,
        len(executable.region.inputs) if executable else 0,
        wired.starter,
        executable is not None or (op.inexpensive and bool(wired.call.node.inputs)),
        op.key if isinstance(op, Receiving) else None,
        wired.first,
        wired.last,
        wired.empty,
        tuple(edges.plain for edges in wired.edges),
        wired.controls,
    )


class StraightRun:
    """One run of a graph. Whoever brings a value goes on with it, one thread at a time."""

    def __init__(
        self,
        graph: StraightGraph,
        feeds: Sequence[Any],
        context: Context,
        soon: Soon,
        later: Soon,
        ended: Ended,
    ) -> None:
        self._graph, self._context, self._soon, self._ended = graph, context, soon, ended
        self._later: Soon | None = later  # None once its thread runs this
        values, pending, ready, left, _, _ = graph.start(context)
        self._values, self._pending, self._ready = values[:], pending[:], ready[:]
        self._left = left  # calls that are not done
        self._arrived = deque[tuple[_Vertex, Any, BaseException | None]]()
        self._turn = threading.Lock()  # held by who goes on, and for good once the run is over
        for edges, value in zip(graph.fed, feeds, strict=True):
            put(edges, value, self._values, self._pending, self._ready)

    def begin(self) -> None:
        """Wait for what is received, and call all that is ready."""
        if self._graph.expected:
            rendezvous: Any = self._context.rendezvous  # there is one if something is received
            rendezvous.expect(self._graph.expected, self._arrive)
        self.go_on()

    def go_on(self) -> None:
        """Call all that is ready, unless another thread does: that sees what came."""
        while self._turn.acquire(blocking=False):
            if self._advance() or not self._arrived:
                return

    def _advance(self) -> bool:
        """Call all that is ready, and give up the turn; whether it is kept for good."""
        try:
            if self._call_ready():
                if self._left:
                    self._turn.release()
                    return False
                found = [self._values[slot] for slot in self._graph.fetches]
            else:
                later, self._later = cast("Soon", self._later), None
                later(self._go_on_there)
                return True
        except BaseException as error:
            self._ended([], error)
        else:
            self._ended([found], None)
        return True

    def _go_on_there(self) -> None:
        """As `go_on`, on a thread that has the turn and may take long."""
        with np.errstate(all="ignore"):
            if not self._advance() and self._arrived:
                self.go_on()

    def _call_ready(self) -> bool:
        """Call all that is ready, or else what comes before a call that takes long."""
        ready, arrived, vertices = self._ready, self._arrived, self._graph.vertices
        cancellation = self._context.cancellation
        while True:
            while arrived:
                vertex, value, error = arrived.popleft()
                if error is not None:
                    raise error
                self._give(vertex, value)
            if not ready:
                return True
            if cancellation.error is not None:
                raise cancellation.error
            place = ready.pop()
            vertex = vertices[place]
            if vertex.starter is not None:
                self._start(vertex, vertex.starter)
            elif vertex.key is not None:
                rendezvous: Any = self._context.rendezvous  # there is one if something is received
                rendezvous.receive(vertex.key, partial(self._arrive, vertex))
            elif vertex.is_limited and self._later is not None and self._is_long(vertex):
                ready.append(place)
                return False
            else:
                self._give(vertex, self._result(vertex))

    def _arrive(self, vertex: _Vertex, value: Any, error: BaseException | None) -> None:
        """Take what was received, or told; on any thread."""
        self._arrived.append((vertex, value, error))
        self._soon(self.go_on)

    def _start(self, vertex: _Vertex, starter: Callable[..., None]) -> None:
        call = vertex.call
        try:
            context = self._context.at(call.node, call.device)
            starter(context, partial(self._arrive, vertex), *self._inputs(vertex))
        except Exception as error:
            raise_at(error, call.node)

    def _is_long(self, vertex: _Vertex) -> bool:
        """Whether a call takes so long that another thread is to make it."""
        if vertex.executable is not None and vertex.executable.holds_gil:
            return False
        return are_large(self._values[vertex.first : vertex.last])

    def _inputs(self, vertex: _Vertex) -> list[Any]:
        values, first, last = self._values, vertex.first, vertex.last
        inputs = values[first:last]
        values[first:last] = vertex.empty  # a value lives as long as it has uses
        return inputs

    def _result(self, vertex: _Vertex) -> Any:
        call, executable, context = vertex.call, vertex.executable, self._context
        inputs = self._inputs(vertex)
        try:
            if executable is not None:
                return executable.run(context, inputs[: vertex.inputs], inputs[vertex.inputs :])
            for position in call.references:
                inputs[position] = inputs[position].read()
            if call.takes_context:
                inputs.insert(0, context.at(call.node, call.device))
            if not vertex.is_limited:
                return call.function(*inputs)
            with np.errstate(all="ignore"):
                return call.function(*inputs)
        except Exception as error:
            raise_at(error, call.node)

    def _give(self, vertex: _Vertex, result: Any) -> None:
        self._left -= 1
        outputs = vertex.outputs
        if len(outputs) == 1 and not isinstance(result, _SEVERAL):
            put(outputs[0], result, self._values, self._pending, self._ready)
        elif outputs or result:
            flat = cast("Sequence[Any]", result)
            if vertex.executable is None:  # which gives no lists in lists
                flat = outputs_of(result, len(outputs), vertex.call.node)
            for edges, value in zip(outputs, flat, strict=True):
                if edges:
                    put(edges, value, self._values, self._pending, self._ready)
        for place in vertex.controls:
            self._count_down(place)

    def _count_down(self, place: int) -> None:
        left = self._pending[place] = self._pending[place] - 1
        if not left:
            self._ready.append(place)
