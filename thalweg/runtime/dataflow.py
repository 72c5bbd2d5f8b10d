"""The dataflow executor: runs token graphs, with frames, iterations and dead tokens.

A token belongs to an iteration of a frame. The caller's thread fires whatever is ready; calls that
may block go out on threads of their own when nothing else is left to do, and what is received from
another partition is there when it arrives. A branch that is not taken
is run through by dead tokens; an iteration is over when nothing in it can fire any more.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple, cast

import numpy as np

from thalweg import errors
from thalweg.graph.node import Node
from thalweg.runtime.kernels import Call, Context, located, outputs_of
from thalweg.runtime.tokens import Source, TokenGraph, VertexKind
from thalweg.runtime.wiring import EMPTY, Edges, FrameWiring, WiredVertex, Wiring


class Dataflow:
    """A token graph, ready to run: any number of threads may do so at once."""

    def __init__(self, graph: TokenGraph) -> None:
        self.graph = graph
        self.wiring = Wiring(graph)

    def run(self, feeds: Sequence[Any], context: Context) -> list[Any]:
        """The fetched values of one run."""
        return _Run(self.wiring, context).run(feeds, self.graph)


class _Iteration:
    """The tokens of one iteration of a frame that have not been used yet."""

    __slots__ = (
        "children",
        "dead",
        "frame",
        "index",
        "out",
        "pending",
        "queued",
        "ready",
        "values",
    )

    def __init__(
        self, frame: _Frame, index: int, values: list[Any], pending: list[int], ready: list[int]
    ) -> None:
        self.frame = frame
        self.index = index
        self.values, self.pending, self.ready = values[:], pending[:], ready[:]
        self.dead = bytearray(len(pending))
        self.out = 0  # calls that may block and have not come back
        self.children: dict[int, _Frame] = {}
        self.queued = False


class _Frame:
    """A frame that is running: a loop, for one iteration of what is around it."""

    __slots__ = (
        "collected",
        "exited",
        "held",
        "is_over",
        "iterations",
        "missing",
        "newest",
        "oldest",
        "parent",
        "pattern",
        "place",
        "wiring",
    )

    def __init__(self, wiring: FrameWiring, place: int, parent: _Iteration | None) -> None:
        self.wiring = wiring
        self.place = place
        self.parent = parent
        #: what iterations begin with: constants
        self.pattern = _Iteration(self, -1, wiring.values, wiring.pending, [])
        self.iterations: dict[int, _Iteration] = {}
        self.oldest, self.newest = 0, -1
        self.missing = wiring.entering  # vertices that have not entered yet, dead or alive
        self.held: list[tuple[WiredVertex, Any]] = []  # for an iteration that may not begin yet
        self.exited: set[WiredVertex] = set()
        self.is_over = False
        self.collected: dict[WiredVertex, dict[int, Any]] = {}


class _Done(NamedTuple):
    """A call that came back."""

    token: object  # the thread it was on, or what stands for it
    iteration: _Iteration
    vertex: WiredVertex
    result: Any
    error: BaseException | None


def _nothing(iteration: _Iteration, vertex: WiredVertex) -> None:
    """What leaves at the end of a frame is found then."""


class _Run:
    """One run of a token graph."""

    def __init__(self, wiring: Wiring, context: Context) -> None:
        self._wiring = wiring
        self._context = context
        self._cancellation = context.cancellation
        self._contexts: dict[Node, Context] = {}
        self._active: deque[_Iteration] = deque()
        self._blocked: list[tuple[_Iteration, WiredVertex, list[Any]]] = []
        self._out: set[object] = set()  # calls: their threads, or tokens of those without one
        self._done: SimpleQueue[_Done] = SimpleQueue()
        fires: dict[VertexKind, Callable[[_Iteration, WiredVertex], None]] = {
            VertexKind.CALL: self._call,
            VertexKind.SWITCH: self._switch,
            VertexKind.MERGE: self._merge,
            VertexKind.ENTER: self._enter,
            VertexKind.EXIT: self._exit,
            VertexKind.NEXT_ITERATION: self._next,
            VertexKind.LOOP_COND: self._pass,
            VertexKind.PASS: self._pass,
            VertexKind.COLLECT: self._collect,
            VertexKind.COUNT: _nothing,
            VertexKind.TRIGGER: self._trigger,
        }
        self._fires = [fires[kind] for kind in VertexKind]

    def run(self, feeds: Sequence[Any], graph: TokenGraph) -> list[Any]:
        root = _Frame(self._wiring.frames[0], 0, None)
        first = self._begin(root)
        fed = len(self._wiring.feeds)
        sources = [p for p, count in enumerate(first.pending[fed:-1], fed) if not count]
        first.ready += reversed(sources)  # the last of those that are ready fires first
        for vertex, value in zip(self._wiring.feeds, feeds, strict=True):
            self._send(first, vertex.edges[0], value)
        try:
            self._work()
        except BaseException as error:
            self._stop(error)
            raise
        return [self._fetched(first, place, graph) for place in range(len(graph.fetches))]

    def _work(self) -> None:
        active = self._active
        while True:
            while active:
                self._drain(active.popleft())
            if self._blocked:
                self._release()
            elif self._out:
                self._finish(self._done.get())
            else:
                return

    def _drain(self, iteration: _Iteration) -> None:
        """Fire all that is ready in an iteration."""
        iteration.queued = False
        error = self._cancellation.error
        if error is not None:
            raise error
        vertices, dead, fires = iteration.frame.wiring.vertices, iteration.dead, self._fires
        ready = iteration.ready
        while ready:
            place = ready.pop()
            vertex = vertices[place]
            if dead[place]:
                self._die(iteration, vertex)
            else:
                fires[vertex.kind](iteration, vertex)
        self._settle(iteration.frame)

    # Sending

    def _send(self, iteration: _Iteration, edges: Edges, value: Any) -> None:
        """Send a value to the followers of an output."""
        values, pending = iteration.values, iteration.pending
        for place, slot in edges.plain:
            values[slot] = value
            left = pending[place] = pending[place] - 1
            if not left:
                iteration.ready.append(place)
        for place, slot, number, _ in edges.merges:
            if values[slot] is EMPTY:
                values[slot], values[slot + 1] = value, number
                self._count_down(iteration, place)

    def _count_down(self, iteration: _Iteration, place: int) -> None:
        left = iteration.pending[place] = iteration.pending[place] - 1
        if not left:
            iteration.ready.append(place)

    def _send_done(self, iteration: _Iteration, vertex: WiredVertex) -> None:
        """Send a token without a value along control edges."""
        for place in vertex.controls:
            self._count_down(iteration, place)
        for place in vertex.triggers:
            self._count_down(iteration, place)

    def _kill(self, iteration: _Iteration, edges: Edges) -> None:
        """Send a dead token to the followers of an output."""
        for place in edges.dead:
            iteration.dead[place] = 1
            self._count_down(iteration, place)
        for place, slot, _, count in edges.merges:
            iteration.values[slot + 2] += 1
            if iteration.values[slot + 2] == count:
                iteration.dead[place] = 1
                self._count_down(iteration, place)

    def _kill_all(self, iteration: _Iteration, vertex: WiredVertex) -> None:
        """Send dead tokens to all followers of a vertex."""
        for edges in vertex.edges:
            self._kill(iteration, edges)
        for place in vertex.controls:
            iteration.dead[place] = 1
            self._count_down(iteration, place)
        for place in vertex.triggers:
            self._count_down(iteration, place)

    def _queue(self, iteration: _Iteration) -> None:
        if not iteration.queued:
            iteration.queued = True
            self._active.append(iteration)

    # Vertices that fire

    def _call(self, iteration: _Iteration, vertex: WiredVertex) -> None:
        values = iteration.values
        inputs = values[vertex.first : vertex.last]
        values[vertex.first : vertex.last] = vertex.empty  # a value lives as long as it has uses
        if vertex.spec.is_async:
            self._start(iteration, vertex, inputs)
            return
        if vertex.spec.blocks:
            iteration.out += 1
            self._blocked.append((iteration, vertex, inputs))
            return
        self._give(iteration, vertex, self._result(vertex, inputs))

    def _result(self, vertex: WiredVertex, inputs: list[Any]) -> Any:
        """What a call gives; its error is attributed to its node."""
        call: Call = vertex.call  # pyright: ignore[reportAssignmentType] - calls have one
        try:
            if self._cancellation.error is not None:
                raise self._cancellation.error
            for position in call.references:
                inputs[position] = inputs[position].read()
            if call.takes_context:
                return call.function(self._context_of(call), *inputs)
            return call.function(*inputs)
        except Exception as error:
            raise located(error, call.node) from error

    def _context_of(self, call: Call) -> Context:
        found = self._contexts.get(call.node)
        if found is None:
            found = self._contexts[call.node] = self._context.at(call.node, call.device)
        return found

    def _give(self, iteration: _Iteration, vertex: WiredVertex, result: Any) -> None:
        edges = vertex.edges
        if len(edges) == 1 and not isinstance(result, list | tuple):
            self._send(iteration, edges[0], result)
        else:
            flat = outputs_of(result, len(edges), vertex.call.node)  # pyright: ignore[reportOptionalMemberAccess] - a call
            for each, value in zip(edges, flat, strict=True):
                self._send(iteration, each, value)
        if vertex.is_awaited:
            self._send_done(iteration, vertex)

    def _switch(self, iteration: _Iteration, vertex: WiredVertex) -> None:
        values, first = iteration.values, vertex.first
        chosen = int(values[first + 1])
        for number, edges in enumerate(vertex.edges):
            if number == chosen:
                self._send(iteration, edges, values[first])
            elif edges.dead or edges.merges:
                self._kill(iteration, edges)
        values[first] = None
        if vertex.is_awaited:
            self._send_done(iteration, vertex)

    def _merge(self, iteration: _Iteration, vertex: WiredVertex) -> None:
        values, first = iteration.values, vertex.first
        self._send(iteration, vertex.edges[0], values[first])
        if len(vertex.edges) > 1:
            self._send(iteration, vertex.edges[1], np.int32(values[first + 1]))
        values[first] = None
        if vertex.is_awaited:
            self._send_done(iteration, vertex)

    def _pass(self, iteration: _Iteration, vertex: WiredVertex) -> None:
        self._send(iteration, vertex.edges[0], iteration.values[vertex.first])
        iteration.values[vertex.first] = None
        if vertex.is_awaited:
            self._send_done(iteration, vertex)

    def _trigger(self, iteration: _Iteration, vertex: WiredVertex) -> None:
        self._send_done(iteration, vertex)

    def _die(self, iteration: _Iteration, vertex: WiredVertex) -> None:
        """A vertex with a dead input: all that follows is dead."""
        iteration.values[vertex.first : vertex.last] = vertex.empty
        if vertex.loop is None:
            self._kill_all(iteration, vertex)
            return
        frame = self._child(iteration, vertex)
        frame.missing -= 1
        self._settle(frame)

    # Frames

    def _child(self, iteration: _Iteration, vertex: WiredVertex) -> _Frame:
        found = iteration.children.get(vertex.child)
        if found is None:
            found = _Frame(self._wiring.frames[vertex.child], vertex.child, iteration)
            iteration.children[vertex.child] = found
        return found

    def _begin(self, frame: _Frame) -> _Iteration:
        """The next iteration of a frame."""
        frame.newest += 1
        like = frame.pattern
        iteration = _Iteration(frame, frame.newest, like.values, like.pending, like.ready)
        frame.iterations[frame.newest] = iteration
        self._queue(iteration)
        return iteration

    def _enter(self, iteration: _Iteration, vertex: WiredVertex) -> None:
        value = iteration.values[vertex.first]
        iteration.values[vertex.first] = None
        frame = self._child(iteration, vertex)
        frame.missing -= 1
        if frame.newest < 0:
            self._begin(frame)
        reached = [*frame.iterations.values()] if vertex.is_constant else [frame.iterations[0]]
        if vertex.is_constant:
            self._arrive(frame.pattern, vertex, value)
        for each in reached:
            self._arrive(each, vertex, value)
            self._queue(each)

    def _arrive(self, iteration: _Iteration, vertex: WiredVertex, value: Any) -> None:
        self._send(iteration, vertex.edges[0], value)
        if vertex.is_awaited:
            self._send_done(iteration, vertex)

    def _next(self, iteration: _Iteration, vertex: WiredVertex) -> None:
        value = iteration.values[vertex.first]
        iteration.values[vertex.first] = None
        frame, index = iteration.frame, iteration.index + 1
        if index > frame.newest:
            if index >= frame.oldest + frame.wiring.limit:
                frame.held.append((vertex, value))
                return
            self._begin(frame)
        following = frame.iterations[index]
        self._arrive(following, vertex, value)
        self._queue(following)

    def _exit(self, iteration: _Iteration, vertex: WiredVertex) -> None:
        frame = iteration.frame
        frame.exited.add(vertex)
        value = iteration.values[vertex.first]
        iteration.values[vertex.first] = None
        self._leave(frame, vertex, value)

    def _leave(self, frame: _Frame, vertex: WiredVertex, value: Any) -> None:
        parent: _Iteration = frame.parent  # pyright: ignore[reportAssignmentType] - not the root
        self._arrive(parent, vertex, value)
        self._queue(parent)

    def _collect(self, iteration: _Iteration, vertex: WiredVertex) -> None:
        found = iteration.frame.collected.setdefault(vertex, {})
        found[iteration.index] = iteration.values[vertex.first]
        iteration.values[vertex.first] = None

    def _settle(self, frame: _Frame) -> None:
        """End the iterations in which nothing can fire any more, the oldest first."""
        if frame.missing or frame.is_over:
            return
        while frame.oldest <= frame.newest:
            oldest = frame.iterations[frame.oldest]
            if oldest.ready or oldest.out or oldest.children:
                return
            if frame.parent is not None:
                del frame.iterations[frame.oldest]
            frame.oldest += 1
            self._release_held(frame)
        if frame.parent is not None:
            self._end(frame, frame.parent)

    def _release_held(self, frame: _Frame) -> None:
        if not frame.held:
            return
        following = self._begin(frame)
        for vertex, value in frame.held:
            self._arrive(following, vertex, value)
        frame.held = []

    def _end(self, frame: _Frame, parent: _Iteration) -> None:
        """Send what leaves a frame at its end, and dead tokens for what never left."""
        frame.is_over = True
        del parent.children[frame.place]
        for vertex in frame.wiring.leaving:
            collects = vertex.spec.collects
            if collects is None:
                if vertex not in frame.exited:
                    self._kill_all(parent, vertex)
            elif frame.exited:
                self._arrive(
                    parent, vertex, collects(frame.collected.get(vertex, {}), frame.newest)
                )
            else:
                self._kill_all(parent, vertex)
        self._queue(parent)

    # Calls that may block

    def _start(self, iteration: _Iteration, vertex: WiredVertex, inputs: list[Any]) -> None:
        """Begin a call that hands on its value or error later, from any thread."""
        iteration.out += 1
        token = object()
        self._out.add(token)

        def done(value: Any, error: BaseException | None) -> None:
            self._done.put(_Done(token, iteration, vertex, value, error))

        self._result(vertex, [done, *inputs])

    def _release(self) -> None:
        """Everything left may block: all go out on threads, the only one stays here."""
        blocked, self._blocked = self._blocked, []
        if len(blocked) == 1 and not self._out:
            ((iteration, vertex, inputs),) = blocked
            self._come_back(iteration, vertex, self._result(vertex, inputs))
            return
        for entry in blocked:
            name = f"thalweg-step {entry[1].call.node.name}"  # pyright: ignore[reportOptionalMemberAccess] - a call
            thread = threading.Thread(target=self._call_outside, args=entry, name=name, daemon=True)
            self._out.add(thread)
            thread.start()

    def _call_outside(self, iteration: _Iteration, vertex: WiredVertex, inputs: list[Any]) -> None:
        thread = threading.current_thread()
        with np.errstate(all="ignore"):  # a thread has its own
            try:
                done = _Done(thread, iteration, vertex, self._result(vertex, inputs), None)
            except BaseException as error:  # carried to the caller's thread
                done = _Done(thread, iteration, vertex, None, error)
            self._done.put(done)

    def _finish(self, done: _Done) -> None:
        self._out.discard(done.token)
        if done.error is not None:
            raise done.error
        self._come_back(done.iteration, done.vertex, done.result)

    def _come_back(self, iteration: _Iteration, vertex: WiredVertex, result: Any) -> None:
        iteration.out -= 1
        self._give(iteration, vertex, result)
        self._queue(iteration)

    def _stop(self, error: BaseException) -> None:
        """Cancel what is out, and wait for it."""
        if not self._out:
            return
        reason = error if isinstance(error, errors.OpError) else None
        self._cancellation.cancel(
            reason or errors.CancelledError(None, None, "another node of the step failed")
        )
        for call in self._out:
            if isinstance(call, threading.Thread) and call.is_alive():
                call.join()  # one that is still to start finds the step cancelled

    def _fetched(self, iteration: _Iteration, place: int, graph: TokenGraph) -> Any:
        value = iteration.values[self._wiring.fetches[place]]
        if value is not EMPTY:
            return value
        if place in graph.may_be_dead:
            return None
        source = cast("Source", graph.fetches[place])  # what is known is never dead
        node = graph.vertices[source.vertex].node
        name = "a value" if node is None else f"{node.name}:{source.output}"
        raise errors.InvalidArgumentError(
            None,
            node,
            f"The tensor returned for {name} was not valid: it is computed in a branch that was "
            "not taken",
        )
