"""The dataflow executor: runs token graphs, with frames, iterations and dead tokens.

A token belongs to an iteration of a frame. The caller's thread fires ready vertices, in one graph
or in the graphs of all partitions of a step. Blocking calls, and long calls in steps of several
partitions, are deferred until nothing else is ready: several run on worker threads, a single one on
the caller's thread. Dead tokens propagate through branches that are not taken. An iteration ends
when nothing in it can fire any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np

from thalweg import errors
from thalweg.graph.node import Node
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.dataflow.scheduler import Deferred, Done, Scheduler
from thalweg.runtime.dataflow.straight import is_short
from thalweg.runtime.dataflow.tokens import Source, VertexKind
from thalweg.runtime.dataflow.wiring import EMPTY, Edges, FrameWiring, WiredVertex, Wiring
from thalweg.runtime.kernels import Call, Context, outputs_of, raise_at


class Dataflow(Wiring):
    """A wired token graph that can be run, by any number of threads concurrently."""

    def __call__(self, context: Context, *feeds: Any) -> list[Any]:
        """Run as the kernel of a whole step; returns the fetched values."""
        return self.run(feeds, context)

    def run(self, feeds: Sequence[Any], context: Context) -> list[Any]:
        """Run the graph and return the fetched values."""
        return run_all([(self, feeds, context)], context.cancellation, defers=False)[0]


def run_all(
    graphs: Sequence[tuple[Dataflow, Sequence[Any], Context]],
    cancellation: Cancellation,
    defers: bool = True,
) -> list[list[Any]]:
    """Run token graphs together, each with its feeds, and return the fetched values of each.
    `defers`: long calls are deferred, so that they can run in parallel."""
    scheduler = Scheduler(cancellation, defers)
    runs = [_Run(dataflow, context, scheduler) for dataflow, _, context in graphs]
    for run, (_, feeds, _) in zip(runs, graphs, strict=True):
        run.begin(feeds)
    scheduler.work()
    return [run.results() for run in runs]


@dataclass(slots=True, eq=False)
class Tokens:
    """Unconsumed tokens: values by slot, pending counts by vertex, and the ready stack."""

    values: list[Any]
    pending: list[int]
    ready: list[int]


@dataclass(slots=True, eq=False)
class Iteration(Tokens):
    """One iteration of a frame. The frame drops its reference when the iteration ends, so a step
    leaves no reference cycle."""

    frame: Frame
    index: int
    dead: bytearray = field(init=False)  # 1 for each vertex with a dead input
    out: int = 0  # calls deferred or in flight
    children: dict[int, Frame] = field(default_factory=dict[int, "Frame"])
    queued: bool = False

    def __post_init__(self) -> None:
        self.dead = bytearray(len(self.pending))


class Frame:
    """A running frame: one execution of a loop in an iteration of the enclosing frame."""

    def __init__(self, wiring: FrameWiring, place: int, parent: Iteration | None) -> None:
        self.wiring = wiring
        self.place = place
        self.parent = parent
        #: the initial tokens of iterations, with the constants entered so far
        self.pattern = Tokens(wiring.values[:], wiring.pending[:], wiring.ready[:])
        self.iterations: dict[int, Iteration] = {}
        self.oldest, self.newest = 0, -1
        self.missing = wiring.entering  # ENTER vertices that have not fired yet, live or dead
        self.next_roots: list[tuple[WiredVertex, Any]] = []  # for an iteration beyond the limit
        self.exited: set[WiredVertex] = set()
        self.is_over = False
        self.collected: dict[WiredVertex, dict[int, Any]] = {}

    def begin(self) -> Iteration:
        """Create the next iteration."""
        self.newest += 1
        template = self.pattern
        iteration = Iteration(
            template.values[:], template.pending[:], template.ready[:], self, self.newest
        )
        self.iterations[self.newest] = iteration
        return iteration


class _Run:
    """One run of a token graph."""

    def __init__(self, dataflow: Dataflow, context: Context, scheduler: Scheduler) -> None:
        self._graph, self._wiring = dataflow.graph, dataflow
        self._context = context
        self._cancellation = context.cancellation
        self._contexts: dict[Node, Context] = {}
        self._scheduler = scheduler
        self._root = Frame(self._wiring.frames[0], 0, None)

    def begin(self, feeds: Sequence[Any]) -> None:
        """Send the feeds; the vertices without inputs are ready."""
        first = self._begin(self._root)
        for vertex, value in zip(self._wiring.feeds, feeds, strict=True):
            self._send(first, vertex.edges[0], value)

    def results(self) -> list[Any]:
        """The fetched values, once nothing can fire any more."""
        first = self._root.iterations.pop(0)  # release its values at the end of the step
        return [self._fetched(first, index) for index in range(len(self._graph.fetches))]

    def _drain(self, iteration: Iteration) -> None:
        """Fire all ready vertices of an iteration."""
        iteration.queued = False
        error = self._cancellation.error
        if error is not None:
            raise error
        vertices, dead = iteration.frame.wiring.vertices, iteration.dead
        ready = iteration.ready
        while ready:
            place = ready.pop()
            vertex = vertices[place]
            if dead[place] and vertex.kind != VertexKind.TRIGGER:
                self._propagate_dead(iteration, vertex)
            else:
                _FIRES[vertex.kind](self, iteration, vertex)
        self._end_iterations(iteration.frame)

    # Sending

    def _send(self, tokens: Tokens, edges: Edges, value: Any) -> None:
        """Send a value to the consumers of an output."""
        values, pending = tokens.values, tokens.pending
        for place, slot in edges.plain:
            values[slot] = value
            count = pending[place] = pending[place] - 1
            if not count:
                tokens.ready.append(place)
        for place, slot, position, _ in edges.merges:
            if values[slot] is EMPTY:
                values[slot], values[slot + 1] = value, position
                self._count_down(tokens, place)

    def _count_down(self, tokens: Tokens, place: int) -> None:
        count = tokens.pending[place] = tokens.pending[place] - 1
        if not count:
            tokens.ready.append(place)

    def send_done(self, tokens: Tokens, vertex: WiredVertex) -> None:
        """Send tokens along the control edges of a vertex."""
        for place in vertex.controls:
            self._count_down(tokens, place)

    def _kill(self, iteration: Iteration, edges: Edges) -> None:
        """Send a dead token to the consumers of an output."""
        for place in edges.dead:
            iteration.dead[place] = 1
            self._count_down(iteration, place)
        for place, slot, _, count in edges.merges:
            iteration.values[slot + 2] += 1
            if iteration.values[slot + 2] == count:
                iteration.dead[place] = 1
                self._count_down(iteration, place)

    def _kill_all(self, iteration: Iteration, vertex: WiredVertex) -> None:
        """Send dead tokens along all out-edges of a vertex."""
        for edges in vertex.edges:
            self._kill(iteration, edges)
        for place in vertex.controls:
            iteration.dead[place] = 1
            self._count_down(iteration, place)

    def _queue(self, iteration: Iteration) -> None:
        if not iteration.queued:
            iteration.queued = True
            self._scheduler.active.append(partial(self._drain, iteration))

    # Vertices that fire

    def call(self, iteration: Iteration, vertex: WiredVertex) -> None:
        """Call a kernel, now or when nothing else is ready."""
        values = iteration.values
        inputs = values[vertex.first : vertex.last]
        values[vertex.first : vertex.last] = vertex.empty  # release values after their last use
        call: Call = vertex.call  # pyright: ignore[reportAssignmentType] - calls have one
        scheduler, blocks = self._scheduler, vertex.spec.blocks or call.is_async
        if not blocks and (not scheduler.defers or is_short(call, inputs)):
            self._send_outputs(iteration, vertex, self._result(call, inputs))
            return
        iteration.out += 1
        take = partial(self._complete, iteration, vertex)
        if not call.is_async:
            make = partial(self._result, call, inputs)
            scheduler.deferred.append(Deferred(call, make, take))
            return

        def done(value: Any, error: BaseException | None) -> None:
            scheduler.done.put(Done(take, value, error))

        scheduler.in_flight += 1
        self._result(call, [done, *inputs])

    def _result(self, call: Call, inputs: list[Any]) -> Any:
        """Make a call and return its result; an error is attributed to the call's node."""
        try:
            if self._cancellation.error is not None:
                raise self._cancellation.error
            for position in call.references:
                inputs[position] = inputs[position].read()
            if call.takes_context:
                return call.function(self._context_of(call), *inputs)
            return call.function(*inputs)
        except Exception as error:
            raise_at(error, call.node)

    def _context_of(self, call: Call) -> Context:
        context = self._contexts.get(call.node)
        if context is None:
            context = self._contexts[call.node] = self._context.at(call.node, call.device)
        return context

    def _send_outputs(self, iteration: Iteration, vertex: WiredVertex, result: Any) -> None:
        edges = vertex.edges
        if len(edges) == 1 and not isinstance(result, list | tuple):
            self._send(iteration, edges[0], result)
        else:
            flat = outputs_of(result, len(edges), vertex.call.node)  # pyright: ignore[reportOptionalMemberAccess] - a call
            for output_edges, value in zip(edges, flat, strict=True):
                self._send(iteration, output_edges, value)
        if vertex.controls:
            self.send_done(iteration, vertex)

    def switch(self, iteration: Iteration, vertex: WiredVertex) -> None:
        """Send the data to the selected output and dead tokens to the others."""
        values, first = iteration.values, vertex.first
        chosen = int(values[first + 1])
        for number, edges in enumerate(vertex.edges):
            if number == chosen:
                self._send(iteration, edges, values[first])
            elif edges.dead or edges.merges:
                self._kill(iteration, edges)
        values[first] = None
        if vertex.controls:
            self.send_done(iteration, vertex)

    def merge(self, iteration: Iteration, vertex: WiredVertex) -> None:
        """Send the first live input, and its index."""
        values, first = iteration.values, vertex.first
        self._send(iteration, vertex.edges[0], values[first])
        if len(vertex.edges) > 1:
            self._send(iteration, vertex.edges[1], np.int32(values[first + 1]))
        values[first] = None
        if vertex.controls:
            self.send_done(iteration, vertex)

    def forward(self, iteration: Iteration, vertex: WiredVertex) -> None:
        """Send the input on."""
        self._send(iteration, vertex.edges[0], iteration.values[vertex.first])
        iteration.values[vertex.first] = None
        if vertex.controls:
            self.send_done(iteration, vertex)

    def _propagate_dead(self, iteration: Iteration, vertex: WiredVertex) -> None:
        """Propagate the dead input of a vertex to its consumers, or into the frame it enters."""
        iteration.values[vertex.first : vertex.last] = vertex.empty
        if vertex.spec.loop is None:
            self._kill_all(iteration, vertex)
            return
        frame = self._child(iteration, vertex)
        frame.missing -= 1
        self._end_iterations(frame)

    # Frames

    def _child(self, iteration: Iteration, vertex: WiredVertex) -> Frame:
        frame = iteration.children.get(vertex.child)
        if frame is None:
            frame = Frame(self._wiring.frames[vertex.child], vertex.child, iteration)
            iteration.children[vertex.child] = frame
        return frame

    def _begin(self, frame: Frame) -> Iteration:
        """Start the next iteration of a frame."""
        iteration = frame.begin()
        self._queue(iteration)
        return iteration

    def enter(self, iteration: Iteration, vertex: WiredVertex) -> None:
        """Send a value into a frame: to its first iteration, or to all if it is constant."""
        value = iteration.values[vertex.first]
        iteration.values[vertex.first] = None
        frame = self._child(iteration, vertex)
        frame.missing -= 1
        if frame.newest < 0:
            self._begin(frame)
        receivers = (
            [*frame.iterations.values()] if vertex.spec.is_constant else [frame.iterations[0]]
        )
        if vertex.spec.is_constant:
            self._deliver(frame.pattern, vertex, value)
        for receiver in receivers:
            self._deliver(receiver, vertex, value)
            self._queue(receiver)

    def _deliver(self, tokens: Tokens, vertex: WiredVertex, value: Any) -> None:
        self._send(tokens, vertex.edges[0], value)
        if vertex.controls:
            self.send_done(tokens, vertex)

    def next_iteration(self, iteration: Iteration, vertex: WiredVertex) -> None:
        """Send a value to the next iteration, or hold it while too many iterations run."""
        value = iteration.values[vertex.first]
        iteration.values[vertex.first] = None
        frame, index = iteration.frame, iteration.index + 1
        if index > frame.newest:
            if index >= frame.oldest + frame.wiring.limit:
                frame.next_roots.append((vertex, value))
                return
            self._begin(frame)
        following = frame.iterations[index]
        self._deliver(following, vertex, value)
        self._queue(following)

    def exit(self, iteration: Iteration, vertex: WiredVertex) -> None:
        """Send a value out of its frame."""
        frame = iteration.frame
        frame.exited.add(vertex)
        value = iteration.values[vertex.first]
        iteration.values[vertex.first] = None
        self._send_to_parent(frame, vertex, value)

    def _send_to_parent(self, frame: Frame, vertex: WiredVertex, value: Any) -> None:
        parent: Iteration = frame.parent  # pyright: ignore[reportAssignmentType] - not the root
        self._deliver(parent, vertex, value)
        self._queue(parent)

    def collect(self, iteration: Iteration, vertex: WiredVertex) -> None:
        """Record the value of an iteration; it leaves when the frame ends."""
        values = iteration.frame.collected.setdefault(vertex, {})
        values[iteration.index] = iteration.values[vertex.first]
        iteration.values[vertex.first] = None

    def _end_iterations(self, frame: Frame) -> None:
        """End the iterations in which nothing can fire any more, oldest first."""
        if frame.missing or frame.is_over:
            return
        while frame.oldest <= frame.newest:
            oldest = frame.iterations[frame.oldest]
            if oldest.ready or oldest.out or oldest.children:
                return
            if frame.parent is not None:
                del frame.iterations[frame.oldest]
            frame.oldest += 1
            self._release_next_roots(frame)
        if frame.parent is not None:
            self._end(frame, frame.parent)

    def _release_next_roots(self, frame: Frame) -> None:
        if not frame.next_roots:
            return
        following = self._begin(frame)
        for vertex, value in frame.next_roots:
            self._deliver(following, vertex, value)
        frame.next_roots = []

    def _end(self, frame: Frame, parent: Iteration) -> None:
        """End a frame: send its collected values, and dead tokens for exits that never fired."""
        frame.is_over = True
        del parent.children[frame.place]
        for vertex in frame.wiring.leaving:
            collects, values = vertex.spec.collects, frame.collected.get(vertex, {})
            if collects is not None and frame.exited:
                self._deliver(parent, vertex, collects(values, frame.newest))
            elif vertex not in frame.exited:
                self._kill_all(parent, vertex)
        self._queue(parent)

    def _complete(self, iteration: Iteration, vertex: WiredVertex, result: Any) -> None:
        """Accept the result of a call that was deferred or in flight."""
        iteration.out -= 1
        self._send_outputs(iteration, vertex, result)
        self._queue(iteration)

    def _fetched(self, first: Iteration, place: int) -> Any:
        graph = self._graph
        value = first.values[self._wiring.fetches[place]]
        if value is not EMPTY:
            return value
        if place in graph.may_be_dead:
            return None
        source = cast("Source", graph.fetches[place])  # a Known input always has a value
        node = graph.vertices[source.vertex].node
        name = "a value" if node is None else f"{node.name}:{source.output}"
        raise errors.InvalidArgumentError(
            None,
            node,
            f"The tensor returned for {name} was not valid: it is computed in a branch that was "
            "not taken",
        )


def _fire_count(run: _Run, iteration: Iteration, vertex: WiredVertex) -> None:
    """COUNT vertices do nothing in an iteration: `_end` computes their result."""


_BY_KIND: dict[VertexKind, Callable[[_Run, Iteration, WiredVertex], None]] = {
    VertexKind.CALL: _Run.call,
    VertexKind.SWITCH: _Run.switch,
    VertexKind.MERGE: _Run.merge,
    VertexKind.ENTER: _Run.enter,
    VertexKind.EXIT: _Run.exit,
    VertexKind.NEXT_ITERATION: _Run.next_iteration,
    VertexKind.LOOP_COND: _Run.forward,
    VertexKind.PASS: _Run.forward,
    VertexKind.COLLECT: _Run.collect,
    VertexKind.COUNT: _fire_count,
    VertexKind.TRIGGER: _Run.send_done,
}
_FIRES = [_BY_KIND[kind] for kind in VertexKind]
