"""What a straight graph does at once, with what is there when it is to run.

A task's part of a step often begins with calls that need no run: regions of variables and of values
that came with the order to run it, and sends of variables. What these give is only sent. An opening
is these calls, one after the other; what is left of the graph runs as ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from thalweg.ops.core.buffer import Buffer
from thalweg.partition.rendezvous import Key
from thalweg.runtime.compiled import Executable
from thalweg.runtime.dataflow.straight import StraightGraph, StraightVertex, is_lasting
from thalweg.runtime.kernels import Context, raise_at
from thalweg.runtime.sending import SendingExecutable


class _Call(NamedTuple):
    """A vertex, and which of the values that came go to which of its inputs."""

    vertex: StraightVertex
    received: Sequence[tuple[int, int]]  # (input, number of the value)
    sent: Sequence[tuple[int, Key]]  # (output, the key it is sent under)


class Opening:
    """The calls that a graph begins with, where values under some keys are there."""

    def __init__(self, graph: StraightGraph, keys: Sequence[Key]) -> None:
        self._graph, self.keys = graph, keys
        self._feeders = _feeders(graph)
        done: set[int] = set()
        self.calls: list[_Call] = []
        can_open = not graph.fed and not graph.fetches
        for place, vertex in enumerate(graph.vertices if can_open else ()):
            if vertex is not None and self._is_ready(vertex, place):
                done |= {place, *(at for at, _ in self._feeders[place] if self._key(at))}
                if not vertex.is_empty:
                    self.calls.append(self._call(vertex, place))
        received = [key for at in done if (key := self._key(at)) is not None]
        #: Whether there is anything to do, and all values that came are of use for it.
        self.is_there = bool(done) and sorted(received) == sorted(keys)
        self.sends = tuple([key for call in self.calls for _, key in call.sent])
        self.rest = graph.without(done) if self.is_there else graph
        executables = [call.vertex.executable for call in self.calls]
        self._executables = [each for each in executables if each is not None]

    def _key(self, place: int) -> Key | None:
        return self._graph.vertices[place].key

    def _is_ready(self, vertex: StraightVertex, place: int) -> bool:
        """Whether a vertex can be called at once, and nothing in the graph waits for it."""
        if vertex.controls or any(vertex.outputs) or vertex.starter or vertex.key:
            return False
        is_call = vertex.executable is not None or (
            vertex.sent is not None and vertex.last > vertex.first
        )
        return is_call and all(self._is_there(at) for at, _ in self._feeders[place])

    def _is_there(self, place: int) -> bool:
        """Whether what a vertex gives is there when the graph is to run: a variable, or a value
        that came, for one vertex alone."""
        vertex = self._graph.vertices[place]
        if self._feeders[place] or vertex.controls:
            return False
        is_received = vertex.key in self.keys and len(vertex.outputs[0]) == 1
        return is_lasting(vertex) or is_received

    def _call(self, vertex: StraightVertex, place: int) -> _Call:
        numbers = {key: number for number, key in enumerate(self.keys)}
        received = [
            (slot - vertex.first, numbers[key])
            for at, slot in self._feeders[place]
            if (key := self._key(at)) is not None
        ]
        if isinstance(vertex.executable, SendingExecutable):
            keys = vertex.executable.keys
            return _Call(vertex, received, [(n, key) for n in keys for key in keys[n]])
        return _Call(vertex, received, [] if vertex.sent is None else [(0, vertex.sent)])

    @property
    def is_short(self) -> bool:
        """Whether a thread that may not wait may make the calls."""
        return not self._executables or all(each.holds_gil for each in self._executables)

    def __call__(self, context: Context, received: Sequence[Any]) -> list[Any]:
        """What is sent, in the order of `sends`, of values in the order of `keys`."""
        sent, values = list[Any](), self._graph.start(context).values
        for vertex, places, outputs in self.calls:
            inputs = values[vertex.first : vertex.last]
            for place, number in places:
                inputs[place] = received[number]
            try:
                if vertex.executable is None:
                    sent.append(_sent(vertex, inputs[0]))
                    continue
                count = vertex.inputs
                # Not as a region that sends: what it gives leaves with other messages.
                results = Executable.run(vertex.executable, context, inputs[:count], inputs[count:])
            except Exception as error:
                raise_at(error, vertex.call.node)
            sent += [results[number] for number, _ in outputs]
        return sent


def _sent(vertex: StraightVertex, value: Any) -> Any:
    """What is sent of a variable."""
    value = value.read() if vertex.call.references else value
    return value.lease() if isinstance(value, Buffer) else value


def _feeders(graph: StraightGraph) -> Mapping[int, list[tuple[int, int]]]:
    """For each vertex the vertices that it waits for, with the slots of what they give; -1 where
    that is nothing."""
    found: dict[int, list[tuple[int, int]]] = {at: [] for at in range(len(graph.vertices))}
    for at, vertex in enumerate(graph.vertices):
        if vertex is not None:
            for edges in vertex.outputs:
                for place, slot in edges:
                    found.setdefault(place, []).append((at, slot))
            for place in vertex.controls:
                found.setdefault(place, []).append((at, -1))
    return found
