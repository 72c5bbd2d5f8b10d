"""The dataflow executor: runs token graphs, with frames, iterations and dead tokens.

A token belongs to an iteration of a frame. The caller's thread fires all that is ready, in one
graph or in those of all partitions of a step. Calls that may block, and in steps of several
partitions calls that may take long, are deferred until nothing else is ready: several run on worker
threads, a single one on the caller's. Dead tokens run through a branch that is not taken; an
iteration is over when nothing in it can fire any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np

from thalweg import errors
from thalweg.graph.node import Node
from thalweg.partition.transfers import Transfer
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.compiled import Executable
from thalweg.runtime.dataflow.scheduler import Deferred, Done, Scheduler
from thalweg.runtime.dataflow.straight import StraightGraph, are_large
from thalweg.runtime.dataflow.tokens import Source, TokenGraph, VertexKind
from thalweg.runtime.dataflow.wiring import EMPTY, Edges, FrameWiring, WiredVertex, Wiring
from thalweg.runtime.kernels import Call, Context, outputs_of, raise_at


class Dataflow:
    """A token graph, ready to run: any number of threads may do so at once."""

    def __init__(self, graph: TokenGraph) -> None:
        self.graph = graph
        self.wiring = Wiring(graph)
        self.straight = StraightGraph.of(graph, self.wiring)

    def __call__(self, context: Context, *feeds: Any) -> list[Any]:
        """The fetched values of one run, as the kernel of a whole step."""
        return self.run(feeds, context)

    def run(self, feeds: Sequence[Any], context: Context) -> list[Any]:
        """The fetched values of one run."""
        return run_all([(self, feeds, context)], context.cancellation, defers=False)[0]


def run_all(
    graphs: Sequence[tuple[Dataflow, Sequence[Any], Context]],
    cancellation: Cancellation,
    defers: bool = True,
) -> list[list[Any]]:
    """The fetched values of token graphs that run at once, each with its feeds; calls that may take
    long then are deferred, unless there is nothing to run beside them."""
    scheduler = Scheduler(cancellation, defers)
    runs = [_Run(dataflow, context, scheduler) for dataflow, _, context in graphs]
    for run, (_, feeds, _) in zip(runs, graphs, strict=True):
        run.begin(feeds)
    scheduler.work()
    return [run.results() for run in runs]


@dataclass(slots=True, eq=False)
class Tokens:
    """Tokens that have not been consumed: values by slot, and what each vertex still waits for."""

    values: list[Any]
    pending: list[int]
    ready: list[int]


@dataclass(slots=True, eq=False)
class Iteration(Tokens):
    """One iteration of a frame. The two refer to each other until the iteration has ended, and no
    longer: a step leaves no reference cycle."""

    frame: Frame
    index: int
    dead: bytearray = field(init=False)  # the vertices with a dead input
    out: int = 0  # calls that may block and have not returned
    children: dict[int, Frame] = field(default_factory=dict[int, "Frame"])
    queued: bool = False

    def __post_init__(self) -> None:
        self.dead = bytearray(len(self.pending))


class Frame:
    """A frame that is running: a loop, for one iteration of what is around it."""

    def __init__(self, wiring: FrameWiring, place: int, parent: Iteration | None) -> None:
        self.wiring = wiring
        self.place = place
        self.parent = parent
        #: what iterations begin with: constants
        self.pattern = Tokens(wiring.values[:], wiring.pending[:], [])
        self.iterations: dict[int, Iteration] = {}
        self.oldest, self.newest = 0, -1
        self.missing = wiring.entering  # vertices that have not entered yet, dead or alive
        self.held: list[tuple[WiredVertex, Any]] = []  # for an iteration that may not begin yet
        self.exited: set[WiredVertex] = set()
        self.is_over = False
        self.collected: dict[WiredVertex, dict[int, Any]] = {}

    def begin(self) -> Iteration:
        """The next iteration."""
        self.newest += 1
        like = self.pattern
        begun = Iteration(like.values[:], like.pending[:], like.ready[:], self, self.newest)
        self.iterations[self.newest] = begun
        return begun


class _Run:
    """One run of a token graph."""

    def __init__(self, dataflow: Dataflow, context: Context, scheduler: Scheduler) -> None:
        self._graph, self._wiring = dataflow.graph, dataflow.wiring
        self._context = context
        self._cancellation = context.cancellation
        self._contexts: dict[Node, Context] = {}
        self._scheduler = scheduler
        self._root = Frame(self._wiring.frames[0], 0, None)

    def begin(self, feeds: Sequence[Any]) -> None:
        """Make the feeds and all that takes nothing ready."""
        first = self._begin(self._root)
        fed = len(self._wiring.feeds)
        sources = [p for p, count in enumerate(first.pending[fed:-1], fed) if not count]
        first.ready += reversed(sources)  # the last of those that are ready fires first
        for vertex, value in zip(self._wiring.feeds, feeds, strict=True):
            self._send(first, vertex.edges[0], value)

    def results(self) -> list[Any]:
        """The fetched values, when nothing can fire any more."""
        first = self._root.iterations.pop(0)  # what it holds lives no longer than the step
        return [self._fetched(first, place) for place in range(len(self._graph.fetches))]

    def _drain(self, iteration: Iteration) -> None:
        """Fire all that is ready in an iteration."""
        iteration.queued = False
        error = self._cancellation.error
        if error is not None:
            raise error
        vertices, dead = iteration.frame.wiring.vertices, iteration.dead
        ready = iteration.ready
        while ready:
            place = ready.pop()
            vertex = vertices[place]
            if dead[place]:
                self._die(iteration, vertex)
            else:
                _FIRES[vertex.kind](self, iteration, vertex)
        self._end_iterations(iteration.frame)

    # Sending

    def _send(self, tokens: Tokens, edges: Edges, value: Any) -> None:
        """Send a value to the followers of an output."""
        values, pending = tokens.values, tokens.pending
        for place, slot in edges.plain:
            values[slot] = value
            left = pending[place] = pending[place] - 1
            if not left:
                tokens.ready.append(place)
        for place, slot, number, _ in edges.merges:
            if values[slot] is EMPTY:
                values[slot], values[slot + 1] = value, number
                self._count_down(tokens, place)

    def _count_down(self, tokens: Tokens, place: int) -> None:
        left = tokens.pending[place] = tokens.pending[place] - 1
        if not left:
            tokens.ready.append(place)

    def send_done(self, tokens: Tokens, vertex: WiredVertex) -> None:
        """Send a token without a value along control edges."""
        for place in vertex.controls:
            self._count_down(tokens, place)
        for place in vertex.triggers:
            self._count_down(tokens, place)

    def _kill(self, iteration: Iteration, edges: Edges) -> None:
        """Send a dead token to the followers of an output."""
        for place in edges.dead:
            iteration.dead[place] = 1
            self._count_down(iteration, place)
        for place, slot, _, count in edges.merges:
            iteration.values[slot + 2] += 1
            if iteration.values[slot + 2] == count:
                iteration.dead[place] = 1
                self._count_down(iteration, place)

    def _kill_all(self, iteration: Iteration, vertex: WiredVertex) -> None:
        """Send dead tokens to all followers of a vertex."""
        for edges in vertex.edges:
            self._kill(iteration, edges)
        for place in vertex.controls:
            iteration.dead[place] = 1
            self._count_down(iteration, place)
        for place in vertex.triggers:
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
        values[vertex.first : vertex.last] = vertex.empty  # a value lives as long as it has uses
        call: Call = vertex.call  # pyright: ignore[reportAssignmentType] - calls have one
        scheduler, blocks = self._scheduler, vertex.spec.blocks or call.is_async
        if not blocks and (not scheduler.defers or _is_short(call, inputs)):
            self._give(iteration, vertex, self._result(call, inputs))
            return
        iteration.out += 1
        take = partial(self._come_back, iteration, vertex)
        if not call.is_async:
            make = partial(self._result, call, inputs)
            scheduler.deferred.append(Deferred(call, make, take))
            return

        def done(value: Any, error: BaseException | None) -> None:
            scheduler.done.put(Done(take, value, error))

        scheduler.under_way += 1
        self._result(call, [done, *inputs])

    def _result(self, call: Call, inputs: list[Any]) -> Any:
        """What a call gives; its error is attributed to its node."""
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
        found = self._contexts.get(call.node)
        if found is None:
            found = self._contexts[call.node] = self._context.at(call.node, call.device)
        return found

    def _give(self, iteration: Iteration, vertex: WiredVertex, result: Any) -> None:
        edges = vertex.edges
        if len(edges) == 1 and not isinstance(result, list | tuple):
            self._send(iteration, edges[0], result)
        else:
            flat = outputs_of(result, len(edges), vertex.call.node)  # pyright: ignore[reportOptionalMemberAccess] - a call
            for each, value in zip(edges, flat, strict=True):
                self._send(iteration, each, value)
        if vertex.is_awaited:
            self.send_done(iteration, vertex)

    def switch(self, iteration: Iteration, vertex: WiredVertex) -> None:
        """Send the data to the output that is chosen, dead tokens to the others."""
        values, first = iteration.values, vertex.first
        chosen = int(values[first + 1])
        for number, edges in enumerate(vertex.edges):
            if number == chosen:
                self._send(iteration, edges, values[first])
            elif edges.dead or edges.merges:
                self._kill(iteration, edges)
        values[first] = None
        if vertex.is_awaited:
            self.send_done(iteration, vertex)

    def merge(self, iteration: Iteration, vertex: WiredVertex) -> None:
        """Send the first input that is alive, and its number."""
        values, first = iteration.values, vertex.first
        self._send(iteration, vertex.edges[0], values[first])
        if len(vertex.edges) > 1:
            self._send(iteration, vertex.edges[1], np.int32(values[first + 1]))
        values[first] = None
        if vertex.is_awaited:
            self.send_done(iteration, vertex)

    def hand_on(self, iteration: Iteration, vertex: WiredVertex) -> None:
        """Send what came."""
        self._send(iteration, vertex.edges[0], iteration.values[vertex.first])
        iteration.values[vertex.first] = None
        if vertex.is_awaited:
            self.send_done(iteration, vertex)

    def _die(self, iteration: Iteration, vertex: WiredVertex) -> None:
        """A vertex with a dead input: all that follows is dead."""
        iteration.values[vertex.first : vertex.last] = vertex.empty
        if vertex.spec.loop is None:
            self._kill_all(iteration, vertex)
            return
        frame = self._child(iteration, vertex)
        frame.missing -= 1
        self._end_iterations(frame)

    # Frames

    def _child(self, iteration: Iteration, vertex: WiredVertex) -> Frame:
        found = iteration.children.get(vertex.child)
        if found is None:
            found = Frame(self._wiring.frames[vertex.child], vertex.child, iteration)
            iteration.children[vertex.child] = found
        return found

    def _begin(self, frame: Frame) -> Iteration:
        """The next iteration of a frame."""
        iteration = frame.begin()
        self._queue(iteration)
        return iteration

    def enter(self, iteration: Iteration, vertex: WiredVertex) -> None:
        """Send a value into a frame: to its first iteration, or to all."""
        value = iteration.values[vertex.first]
        iteration.values[vertex.first] = None
        frame = self._child(iteration, vertex)
        frame.missing -= 1
        if frame.newest < 0:
            self._begin(frame)
        reached = [*frame.iterations.values()] if vertex.spec.is_constant else [frame.iterations[0]]
        if vertex.spec.is_constant:
            self._arrive(frame.pattern, vertex, value)
        for each in reached:
            self._arrive(each, vertex, value)
            self._queue(each)

    def _arrive(self, tokens: Tokens, vertex: WiredVertex, value: Any) -> None:
        self._send(tokens, vertex.edges[0], value)
        if vertex.is_awaited:
            self.send_done(tokens, vertex)

    def next_iteration(self, iteration: Iteration, vertex: WiredVertex) -> None:
        """Send a value to the next iteration."""
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

    def exit(self, iteration: Iteration, vertex: WiredVertex) -> None:
        """Send a value out of its frame."""
        frame = iteration.frame
        frame.exited.add(vertex)
        value = iteration.values[vertex.first]
        iteration.values[vertex.first] = None
        self._leave(frame, vertex, value)

    def _leave(self, frame: Frame, vertex: WiredVertex, value: Any) -> None:
        parent: Iteration = frame.parent  # pyright: ignore[reportAssignmentType] - not the root
        self._arrive(parent, vertex, value)
        self._queue(parent)

    def collect(self, iteration: Iteration, vertex: WiredVertex) -> None:
        """Keep the value of an iteration."""
        found = iteration.frame.collected.setdefault(vertex, {})
        found[iteration.index] = iteration.values[vertex.first]
        iteration.values[vertex.first] = None

    def _end_iterations(self, frame: Frame) -> None:
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

    def _release_held(self, frame: Frame) -> None:
        if not frame.held:
            return
        following = self._begin(frame)
        for vertex, value in frame.held:
            self._arrive(following, vertex, value)
        frame.held = []

    def _end(self, frame: Frame, parent: Iteration) -> None:
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

    def _come_back(self, iteration: Iteration, vertex: WiredVertex, result: Any) -> None:
        """Take what a call gave that was deferred or under way."""
        iteration.out -= 1
        self._give(iteration, vertex, result)
        self._queue(iteration)

    def _fetched(self, first: Iteration, place: int) -> Any:
        graph = self._graph
        value = first.values[self._wiring.fetches[place]]
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


def _nothing(run: _Run, iteration: Iteration, vertex: WiredVertex) -> None:
    """What leaves at the end of a frame is found then."""


_BY_KIND: dict[VertexKind, Callable[[_Run, Iteration, WiredVertex], None]] = {
    VertexKind.CALL: _Run.call,
    VertexKind.SWITCH: _Run.switch,
    VertexKind.MERGE: _Run.merge,
    VertexKind.ENTER: _Run.enter,
    VertexKind.EXIT: _Run.exit,
    VertexKind.NEXT_ITERATION: _Run.next_iteration,
    VertexKind.LOOP_COND: _Run.hand_on,
    VertexKind.PASS: _Run.hand_on,
    VertexKind.COLLECT: _Run.collect,
    VertexKind.COUNT: _nothing,
    VertexKind.TRIGGER: _Run.send_done,
}
_FIRES = [_BY_KIND[kind] for kind in VertexKind]


def _is_short(call: Call, inputs: Sequence[Any]) -> bool:
    """Whether a call takes less time than to hand it to another thread."""
    function, op = call.function, call.node.op
    if isinstance(function, Executable):
        if function.holds_gil:
            return True
        is_inexpensive = function.is_inexpensive
    elif isinstance(op, Transfer) or not call.node.inputs:
        return True
    else:
        is_inexpensive = op.inexpensive
    return is_inexpensive and not are_large(inputs)
