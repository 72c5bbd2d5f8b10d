"""The dataflow executor: runs token graphs, with frames, iterations and dead tokens.

A token belongs to an iteration of a frame. One run has the token graphs of one or more partitions
of a step. Whichever thread continues it fires the ready vertices, one by one; blocking calls, and
long calls in steps of several partitions, are left to the scheduler. Dead tokens propagate through
branches that are not taken. An iteration ends when nothing in it can fire any more.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, cast

import numpy as np

from thalweg import errors
from thalweg.graph.node import Node
from thalweg.partition.transfers import send
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.dataflow.frames import Frame, Iteration, Tokens
from thalweg.runtime.dataflow.scheduler import Graph, Scheduler
from thalweg.runtime.dataflow.tokens import Source, TokenGraph, VertexKind
from thalweg.runtime.dataflow.wiring import EMPTY, Edges, FrameWiring, WiredVertex, Wiring
from thalweg.runtime.kernels import Call, Context, outputs_of, raise_at

_MAX_WAIT = 0.1  # seconds; signals are handled between waits
_MAX_SHORT_BYTES = 1 << 20  # inputs of an inexpensive call that is short
_SEQUENCES = (list, tuple)


class Dataflow(Wiring):
    """A wired token graph that can be run, by any number of threads concurrently."""

    def __call__(self, context: Context, *feeds: Any) -> list[Any]:
        """Run the graph, as a kernel is called, and return the fetched values."""
        return run_all([(self, feeds, context)], context.cancellation, defers=False)[0]


def run_all(
    graphs: Sequence[Graph],
    cancellation: Cancellation,
    defers: bool = True,
) -> list[list[Any]]:
    """Run token graphs together, each with its feeds, and return the fetched values of each.
    `defers`: long calls are deferred, so that they can run in parallel."""
    tasks = SimpleQueue[Callable[[], None] | None]()  # of this thread; None ends the run
    outcomes: list[tuple[list[list[Any]], BaseException | None]] = []

    def ended(results: list[list[Any]], error: BaseException | None) -> None:
        outcomes.append((results, error))
        tasks.put(None)

    run = Run(graphs, cancellation, (tasks.put, tasks.put, operator.call), ended, defers)
    try:
        run.begin()
        while (task := _next(tasks)) is not None:
            task()
    except BaseException as error:  # an interrupt
        run.cancel(error)
        raise
    results, error = outcomes.pop()
    try:
        if error is not None:
            raise error
    finally:
        del error  # its traceback refers to this frame
    return results


def _next(tasks: SimpleQueue[Callable[[], None] | None]) -> Callable[[], None] | None:
    """Wait for the next task. The wait is divided into short ones, since a signal that arrives just
    before a wait does not interrupt it."""
    while True:
        try:
            return tasks.get(timeout=_MAX_WAIT)
        except Empty:
            continue


class Run(Scheduler):
    """One run of the token graphs of a step."""

    def begin(self) -> None:
        """Start the receives that wait for nothing, and fire all that is ready."""
        for (wiring, feeds, context), root in zip(self._graphs, self._roots, strict=True):
            for vertex, value in zip(wiring.feeds, feeds, strict=True) if feeds else ():
                self._send(root, vertex.edges[0], value)
            if not wiring.expected:
                continue
            rendezvous = context.rendezvous
            if len(self._roots) > 1 or rendezvous is None:
                root.ready += [vertex.place for vertex in wiring.expected.values()]
                continue
            self._in_flight += len(wiring.expected)
            with self._turn:
                for key, vertex in wiring.expected.items():
                    rendezvous.receive(key, partial(self._arrive, root, vertex))
        self.resume()

    def fire(self) -> None:  # noqa: C901 - functions of its parts would cost a third more
        arrived, active, cancellation = self._arrived, self._active, self._cancellation
        flat: Any
        while True:
            if arrived:
                iteration, vertex, flat, error = arrived.popleft()
                self._in_flight -= 1
                iteration.out -= 1
                if error is not None:
                    raise error
            elif not active:
                if not self._unstarted:
                    return
                self._start(*self._unstarted.popleft())
                continue
            elif not active[0].ready:
                iteration = active.popleft()
                iteration.queued = False
                if iteration.frame is not None:
                    self._end_iterations(iteration.frame)
                continue
            elif cancellation.error is not None:
                raise cancellation.error
            else:
                iteration = active[0]
                place = iteration.ready.pop()
                vertex = iteration.vertices[place]
                if iteration.dead[place] and vertex.kind != VertexKind.TRIGGER:
                    self._propagate_dead(iteration, vertex)
                    continue
                if vertex.call is None:
                    _FIRES[vertex.kind](self, iteration, vertex)
                    continue
                inputs = iteration.values[vertex.first : vertex.last]
                # Release values after their last use.
                iteration.values[vertex.first : vertex.last] = vertex.empty
                executable = vertex.executable
                holds_gil = executable is not None and executable.holds_gil
                if vertex.is_limited and not holds_gil and self._leave(iteration, vertex, inputs):
                    continue
                flat = self.result(iteration, vertex, inputs)
            outputs = vertex.edges
            if vertex.executable is None and (outputs or flat):  # regions return a flat list
                is_single = len(outputs) == 1 and not isinstance(flat, _SEQUENCES)
                node: Node = vertex.spec.node  # pyright: ignore[reportAssignmentType] - of a call
                flat = (flat,) if is_single else outputs_of(flat, len(outputs), node)
            values, pending, ready = iteration.values, iteration.pending, iteration.ready
            for edges, value in zip(outputs, flat or (), strict=True):
                for place, slot in edges.plain:
                    values[slot] = value
                    count = pending[place] = pending[place] - 1
                    if not count:
                        ready.append(place)
                if edges.merges:
                    self._send_merges(iteration, edges, value)
            for place in vertex.controls:
                count = pending[place] = pending[place] - 1
                if not count:
                    ready.append(place)
            if not iteration.queued and (ready or iteration.frame is not None):
                self._queue(iteration)

    def end(self, error: BaseException | None) -> None:
        results: list[list[Any]] = []
        if error is None:
            try:
                for graph, root in zip(self._graphs, self._roots, strict=True):
                    results.append(_fetched(graph[0], root.values) if graph[0].fetches else [])
            except errors.OpError as failure:
                error = failure
        self._ended(results, error)

    def _arrive(
        self, iteration: Iteration, vertex: WiredVertex, value: Any, error: BaseException | None
    ) -> None:
        """Accept the result of a call that was started. Called on any thread."""
        self._arrived.append((iteration, vertex, value, error))
        if not self._turn.locked():  # else the thread that holds it will see what arrived
            self._submit_short(self.resume)

    def _queue(self, iteration: Iteration) -> None:
        if not iteration.queued:
            iteration.queued = True
            self._active.append(iteration)

    # Sending

    def _send(self, tokens: Tokens, edges: Edges, value: Any) -> None:
        """Send a value to the consumers of an output."""
        values, pending = tokens.values, tokens.pending
        for place, slot in edges.plain:
            values[slot] = value
            count = pending[place] = pending[place] - 1
            if not count:
                tokens.ready.append(place)
        if edges.merges:
            self._send_merges(tokens, edges, value)

    def _send_merges(self, tokens: Tokens, edges: Edges, value: Any) -> None:
        values = tokens.values
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

    # Vertices that fire

    def _leave(self, iteration: Iteration, vertex: WiredVertex, inputs: list[Any]) -> bool:
        """Start a call, or leave it until nothing else is ready; False for one to be made now. What
        takes an element of a queue is left: a step that fails before takes none."""
        call: Call = vertex.call  # pyright: ignore[reportAssignmentType] - it is a call
        if vertex.key is not None or call.is_async:
            self._start(iteration, vertex, inputs)
        elif vertex.starter is not None:
            self._unstarted.append((iteration, vertex, inputs))
        elif vertex.blocks or (self._defers and not is_short(vertex, inputs)):
            self._deferred.append((iteration, vertex, inputs))
            self._in_flight += 1
        else:
            return False
        iteration.out += 1
        return True

    def _start(self, iteration: Iteration, vertex: WiredVertex, inputs: list[Any]) -> None:
        """Start a receive, or a call that may wait for another."""
        call: Call = vertex.call  # pyright: ignore[reportAssignmentType] - it is a call
        arrive = partial(self._arrive, iteration, vertex)
        try:
            start = vertex.starter or call.function
            start(self._context_of(iteration, call), arrive, *inputs)
        except Exception as error:
            raise_at(error, call.node)
        self._in_flight += 1

    def result(self, iteration: Iteration, vertex: WiredVertex, inputs: list[Any]) -> Any:
        call: Any = vertex.call
        executable, context = vertex.executable, iteration.context
        try:
            if executable is not None:
                if vertex.is_empty:
                    return ()
                if call.device:
                    context = self._context_of(iteration, call)
                count = vertex.inputs
                if count == len(inputs):
                    return executable.run(context, inputs, ())
                return executable.run(context, inputs[:count], inputs[count:])
            for position in call.references:
                inputs[position] = inputs[position].read()
            if vertex.sent is not None and context.rendezvous is not None:
                send(context.rendezvous, vertex.sent, inputs[0] if inputs else ())
                return ()
            if call.takes_context:
                inputs.insert(0, self._context_of(iteration, call))
            return call.function(*inputs)
        except Exception as error:
            raise_at(error, call.node)

    def _context_of(self, iteration: Iteration, call: Call) -> Context:
        context = self._contexts.get(call.node)
        if context is None:
            context = self._contexts[call.node] = iteration.context.at(call.node, call.device)
        return context

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
        if len(vertex.edges) > 1:
            index = np.int32(iteration.values[vertex.first + 1])
            self._send(iteration, vertex.edges[1], index)
        self.forward(iteration, vertex)

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
        wiring: FrameWiring = vertex.child  # pyright: ignore[reportAssignmentType] - of an ENTER
        frame = iteration.children.get(wiring)
        if frame is None:
            frame = iteration.children[wiring] = Frame(wiring, iteration)
        return frame

    def _begin(self, frame: Frame) -> Iteration:
        """Start the next iteration of a frame."""
        frame.newest += 1
        iteration = frame.iterations[frame.newest] = Iteration(
            frame.pattern, frame.wiring.vertices, frame.parent.context, frame, frame.newest
        )
        self._queue(iteration)
        return iteration

    def enter(self, iteration: Iteration, vertex: WiredVertex) -> None:
        """Send a value into a frame: to its first iteration, or to all if it is constant."""
        value, frame = _take(iteration, vertex), self._child(iteration, vertex)
        frame.missing -= 1
        if frame.newest < 0:
            self._begin(frame)
        receivers = [frame.iterations[0]]
        if vertex.spec.is_constant:
            self._deliver(frame.pattern, vertex, value)
            receivers = [*frame.iterations.values()]
        for receiver in receivers:
            self._deliver(receiver, vertex, value)
            self._queue(receiver)

    def _deliver(self, tokens: Tokens, vertex: WiredVertex, value: Any) -> None:
        """Send the only output of a vertex."""
        self._send(tokens, vertex.edges[0], value)
        if vertex.controls:
            self.send_done(tokens, vertex)

    def next_iteration(self, iteration: Iteration, vertex: WiredVertex) -> None:
        """Send a value to the next iteration, or hold it while too many iterations run."""
        value, frame, index = _take(iteration, vertex), _frame(iteration), iteration.index + 1
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
        frame = _frame(iteration)
        frame.exited.add(vertex)
        self._deliver(frame.parent, vertex, _take(iteration, vertex))
        self._queue(frame.parent)

    def collect(self, iteration: Iteration, vertex: WiredVertex) -> None:
        """Record the value of an iteration; it leaves when the frame ends."""
        values = _frame(iteration).collected.setdefault(vertex, {})
        values[iteration.index] = _take(iteration, vertex)

    def _end_iterations(self, frame: Frame) -> None:
        """End the iterations in which nothing can fire any more, oldest first."""
        if frame.missing or frame.is_over:
            return
        while frame.oldest <= frame.newest:
            oldest = frame.iterations[frame.oldest]
            if oldest.ready or oldest.out or oldest.children:
                return
            del frame.iterations[frame.oldest]
            frame.oldest += 1
            self._release_next_roots(frame)
        self._end(frame)

    def _release_next_roots(self, frame: Frame) -> None:
        if not frame.next_roots:
            return
        following = self._begin(frame)
        for vertex, value in frame.next_roots:
            self._deliver(following, vertex, value)
        frame.next_roots = []

    def _end(self, frame: Frame) -> None:
        """End a frame: send its collected values, and dead tokens for exits that never fired."""
        frame.is_over, parent = True, frame.parent
        del parent.children[frame.wiring]
        for vertex in frame.wiring.leaving:
            collects, values = vertex.spec.collects, frame.collected.get(vertex, {})
            if collects is not None and frame.exited:
                self._deliver(parent, vertex, collects(values, frame.newest))
            elif vertex not in frame.exited:
                self._kill_all(parent, vertex)
        self._queue(parent)


def is_short(vertex: WiredVertex, inputs: Sequence[Any]) -> bool:
    """Whether a call takes less time than handing it to another thread."""
    executable = vertex.executable
    if executable is None:
        is_inexpensive = vertex.call.node.op.inexpensive  # pyright: ignore[reportOptionalMemberAccess] - a call
    elif executable.holds_gil:
        return True
    else:
        is_inexpensive = executable.is_inexpensive
    return is_inexpensive and sum([getattr(i, "nbytes", 0) for i in inputs]) <= _MAX_SHORT_BYTES


def _take(iteration: Iteration, vertex: WiredVertex) -> Any:
    """The only input of a vertex, which is consumed."""
    value = iteration.values[vertex.first]
    iteration.values[vertex.first] = None
    return value


def _frame(iteration: Iteration) -> Frame:
    """The frame of an iteration that is not the root's."""
    return cast("Frame", iteration.frame)


def _fetched(wiring: Wiring, values: Sequence[Any]) -> list[Any]:
    """The fetched values of a graph, once nothing can fire any more."""
    fetched = [values[slot] for slot in wiring.fetches]
    for place, value in enumerate(fetched):
        if value is EMPTY:
            fetched[place] = _dead_value(wiring.graph, place)
    return fetched


def _dead_value(graph: TokenGraph, place: int) -> None:
    """The value of a fetch without a live token: None if that may be; an error otherwise."""
    if place in graph.may_be_dead:
        return
    source = cast("Source", graph.fetches[place])  # a Known input always has a value
    node = graph.vertices[source.vertex].node
    name = "a value" if node is None else f"{node.name}:{source.output}"
    raise errors.InvalidArgumentError(
        None,
        node,
        f"The tensor returned for {name} was not valid: it is computed in a branch that was "
        "not taken",
    )


def _fire_count(run: Run, iteration: Iteration, vertex: WiredVertex) -> None:
    """COUNT vertices do nothing in an iteration: `_end` computes their result."""


_FIRES: dict[int, Callable[[Run, Iteration, WiredVertex], None]] = {
    VertexKind.SWITCH: Run.switch,
    VertexKind.MERGE: Run.merge,
    VertexKind.ENTER: Run.enter,
    VertexKind.EXIT: Run.exit,
    VertexKind.NEXT_ITERATION: Run.next_iteration,
    VertexKind.LOOP_COND: Run.forward,
    VertexKind.PASS: Run.forward,
    VertexKind.COLLECT: Run.collect,
    VertexKind.COUNT: _fire_count,
    VertexKind.TRIGGER: Run.send_done,
}
