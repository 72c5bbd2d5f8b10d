"""Tokens and frames: how values move through a running token graph.

A token belongs to an iteration of a frame. A value that is sent goes to the slots of its consumers,
each of which is ready once it waits for nothing more. Dead tokens propagate through branches that
are not taken. An iteration ends when nothing in it can fire any more. `FIRES` has what vertices
that are not calls do; iterations in which something may be ready join the queue of active ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from thalweg.runtime.dataflow.tokens import VertexKind
from thalweg.runtime.dataflow.wiring import EMPTY, Edges, FrameWiring, InitialState, WiredVertex
from thalweg.runtime.kernels import Context


class Tokens:
    """Unconsumed tokens: values by slot, pending counts by vertex, and the ready stack."""

    __slots__ = "pending", "ready", "values"

    def __init__(self, values: Sequence[Any], pending: Sequence[int], ready: Sequence[int]) -> None:
        self.values, self.pending, self.ready = [*values], [*pending], [*ready]

    def send(self, edges: Edges, value: Any) -> None:
        """Send a value to the consumers of an output."""
        values, pending = self.values, self.pending
        for place, slot in edges.plain:
            values[slot] = value
            count = pending[place] = pending[place] - 1
            if not count:
                self.ready.append(place)
        if edges.merges:
            self.send_merges(edges, value)

    def send_merges(self, edges: Edges, value: Any) -> None:
        """Send a value to the merges among the consumers of an output."""
        values = self.values
        for place, slot, position, _ in edges.merges:
            if values[slot] is EMPTY:
                values[slot], values[slot + 1] = value, position
                self._count_down(place)

    def send_done(self, vertex: WiredVertex) -> None:
        """Send tokens along the control edges of a vertex."""
        for place in vertex.controls:
            self._count_down(place)

    def deliver(self, vertex: WiredVertex, value: Any) -> None:
        """Send the only output of a vertex."""
        self.send(vertex.edges[0], value)
        if vertex.controls:
            self.send_done(vertex)

    def _count_down(self, place: int) -> None:
        count = self.pending[place] = self.pending[place] - 1
        if not count:
            self.ready.append(place)


class Iteration(Tokens):
    """One iteration of a frame. The frame drops its reference when the iteration ends, so a step
    leaves no reference cycle."""

    __slots__ = "children", "context", "dead", "frame", "index", "out", "queued", "vertices"

    def __init__(
        self,
        initial: Tokens | InitialState,
        vertices: Sequence[WiredVertex],
        context: Context,
        frame: Frame | None = None,
        index: int = 0,
    ) -> None:
        """Without a frame, it is the only iteration of the root frame."""
        self.values, self.pending = initial.values[:], initial.pending[:]
        self.ready = initial.ready[:]
        self.vertices, self.context = vertices, context
        self.frame, self.index = frame, index
        self.dead = bytearray(len(self.pending))  # 1 for each vertex with a dead input
        self.out = 0  # calls deferred or in flight
        self.children: dict[FrameWiring, Frame] = {}
        self.queued = False

    def queue(self, active: Active) -> None:
        """Make this one of the active iterations."""
        if not self.queued:
            self.queued = True
            active.append(self)

    def take(self, vertex: WiredVertex) -> Any:
        """The only input of a vertex, which is consumed."""
        value = self.values[vertex.first]
        self.values[vertex.first] = None
        return value

    def kill(self, edges: Edges) -> None:
        """Send a dead token to the consumers of an output."""
        for place in edges.dead:
            self.dead[place] = 1
            self._count_down(place)
        for place, slot, _, count in edges.merges:
            self.values[slot + 2] += 1
            if self.values[slot + 2] == count:
                self.dead[place] = 1
                self._count_down(place)

    def kill_all(self, vertex: WiredVertex) -> None:
        """Send dead tokens along all out-edges of a vertex."""
        for edges in vertex.edges:
            self.kill(edges)
        for place in vertex.controls:
            self.dead[place] = 1
            self._count_down(place)

    def propagate_dead(self, vertex: WiredVertex, active: Active) -> None:
        """Propagate the dead input of a vertex to its consumers, or into the frame it enters."""
        self.values[vertex.first : vertex.last] = vertex.empty
        if vertex.spec.loop is None:
            self.kill_all(vertex)
            return
        frame = self.child(vertex)
        frame.missing -= 1
        frame.end_iterations(active)

    def child(self, vertex: WiredVertex) -> Frame:
        """The frame that an ENTER vertex enters from here."""
        wiring: FrameWiring = vertex.child  # pyright: ignore[reportAssignmentType] - of an ENTER
        frame = self.children.get(wiring)
        if frame is None:
            frame = self.children[wiring] = Frame(wiring, self)
        return frame


#: The iterations that may have ready vertices.
Active = deque[Iteration]


class Frame:
    """A running frame: one execution of a loop in an iteration of the enclosing frame."""

    def __init__(self, wiring: FrameWiring, parent: Iteration) -> None:
        self.wiring = wiring
        self.parent = parent
        #: the initial tokens of iterations, with the constants entered so far
        self.pattern = Tokens(wiring.values, wiring.pending, ())
        self.iterations: dict[int, Iteration] = {}
        self.oldest, self.newest = 0, -1
        self.missing = wiring.entering  # ENTER vertices that have not fired yet, live or dead
        self.next_roots: list[tuple[WiredVertex, Any]] = []  # for an iteration beyond the limit
        self.exited: set[WiredVertex] = set()
        self.is_over = False
        self.collected: dict[WiredVertex, dict[int, Any]] = {}

    def begin(self, active: Active) -> Iteration:
        """Start the next iteration."""
        self.newest += 1
        iteration = self.iterations[self.newest] = Iteration(
            self.pattern, self.wiring.vertices, self.parent.context, self, self.newest
        )
        iteration.queue(active)
        return iteration

    def end_iterations(self, active: Active) -> None:
        """End the iterations in which nothing can fire any more, oldest first."""
        if self.missing or self.is_over:
            return
        while self.oldest <= self.newest:
            oldest = self.iterations[self.oldest]
            if oldest.ready or oldest.out or oldest.children:
                return
            del self.iterations[self.oldest]
            self.oldest += 1
            if self.next_roots:
                following = self.begin(active)
                for vertex, value in self.next_roots:
                    following.deliver(vertex, value)
                self.next_roots = []
        self._end(active)

    def _end(self, active: Active) -> None:
        """End the frame: send its collected values, and dead tokens for exits that never fired."""
        self.is_over, parent = True, self.parent
        del parent.children[self.wiring]
        for vertex in self.wiring.leaving:
            collects, values = vertex.spec.collects, self.collected.get(vertex, {})
            if collects is not None and self.exited:
                parent.deliver(vertex, collects(values, self.newest))
            elif vertex not in self.exited:
                parent.kill_all(vertex)
        parent.queue(active)


# Vertices that fire


def _switch(iteration: Iteration, vertex: WiredVertex, _: Active) -> None:
    """Send the data to the selected output and dead tokens to the others."""
    values, first = iteration.values, vertex.first
    chosen = int(values[first + 1])
    for number, edges in enumerate(vertex.edges):
        if number == chosen:
            iteration.send(edges, values[first])
        elif edges.dead or edges.merges:
            iteration.kill(edges)
    values[first] = None
    if vertex.controls:
        iteration.send_done(vertex)


def _merge(iteration: Iteration, vertex: WiredVertex, active: Active) -> None:
    """Send the first live input, and its index."""
    if len(vertex.edges) > 1:
        iteration.send(vertex.edges[1], np.int32(iteration.values[vertex.first + 1]))
    _forward(iteration, vertex, active)


def _forward(iteration: Iteration, vertex: WiredVertex, _: Active) -> None:
    """Send the input on."""
    iteration.send(vertex.edges[0], iteration.values[vertex.first])
    iteration.values[vertex.first] = None
    if vertex.controls:
        iteration.send_done(vertex)


def _enter(iteration: Iteration, vertex: WiredVertex, active: Active) -> None:
    """Send a value into a frame: to its first iteration, or to all if it is constant."""
    value, frame = iteration.take(vertex), iteration.child(vertex)
    frame.missing -= 1
    if frame.newest < 0:
        frame.begin(active)
    receivers = [frame.iterations[0]]
    if vertex.spec.is_constant:
        frame.pattern.deliver(vertex, value)
        receivers = [*frame.iterations.values()]
    for receiver in receivers:
        receiver.deliver(vertex, value)
        receiver.queue(active)


def _next_iteration(iteration: Iteration, vertex: WiredVertex, active: Active) -> None:
    """Send a value to the next iteration, or hold it while too many iterations run."""
    value, frame, index = iteration.take(vertex), _frame(iteration), iteration.index + 1
    if index > frame.newest:
        if index >= frame.oldest + frame.wiring.limit:
            frame.next_roots.append((vertex, value))
            return
        frame.begin(active)
    following = frame.iterations[index]
    following.deliver(vertex, value)
    following.queue(active)


def _exit(iteration: Iteration, vertex: WiredVertex, active: Active) -> None:
    """Send a value out of its frame."""
    frame = _frame(iteration)
    frame.exited.add(vertex)
    frame.parent.deliver(vertex, iteration.take(vertex))
    frame.parent.queue(active)


def _collect(iteration: Iteration, vertex: WiredVertex, _: Active) -> None:
    """Record the value of an iteration; it leaves when the frame ends."""
    values = _frame(iteration).collected.setdefault(vertex, {})
    values[iteration.index] = iteration.take(vertex)


def _count(iteration: Iteration, vertex: WiredVertex, _: Active) -> None:
    """Do nothing: the frame computes the result when it ends."""


def _trigger(iteration: Iteration, vertex: WiredVertex, _: Active) -> None:
    """Send tokens once all control inputs have arrived, live or dead."""
    iteration.send_done(vertex)


def _frame(iteration: Iteration) -> Frame:
    """The frame of an iteration that is not the root's."""
    return cast("Frame", iteration.frame)


FIRES: dict[int, Callable[[Iteration, WiredVertex, Active], None]] = {
    VertexKind.SWITCH: _switch,
    VertexKind.MERGE: _merge,
    VertexKind.ENTER: _enter,
    VertexKind.EXIT: _exit,
    VertexKind.NEXT_ITERATION: _next_iteration,
    VertexKind.LOOP_COND: _forward,
    VertexKind.PASS: _forward,
    VertexKind.COLLECT: _collect,
    VertexKind.COUNT: _count,
    VertexKind.TRIGGER: _trigger,
}
