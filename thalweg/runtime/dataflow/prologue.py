"""Prologues: the calls of a token graph that can be made before its run starts.

A task's partition often begins with regions that read only variables and values that arrived with
the request to run it, and with sends of variables. If their results are only sent, these calls need
no run. A prologue makes them one after the other; the rest of the graph runs as usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast

from thalweg.graph.node import Node
from thalweg.ops.core.buffer import Buffer
from thalweg.partition.rendezvous import Key
from thalweg.runtime.compiled import Executable
from thalweg.runtime.dataflow.run import Dataflow
from thalweg.runtime.dataflow.wiring import WiredVertex
from thalweg.runtime.kernels import Context, raise_at
from thalweg.runtime.sending import SendingExecutable


class _Call(NamedTuple):
    """A vertex, the received values among its inputs, and the outputs that are sent."""

    vertex: WiredVertex
    received: Sequence[tuple[int, int]]  # (input, index of the value)
    sent: Sequence[tuple[int, Key]]  # (output, rendezvous key)


class Prologue:
    """The calls that a graph can make first, given the values of some rendezvous keys."""

    def __init__(self, graph: Dataflow, keys: Sequence[Key], context: Context) -> None:
        self._graph, self.keys, self._context = graph, keys, context
        done: set[int] = set()
        self.calls: list[_Call] = []
        # Calls alone: one frame, where each vertex has its own index, and no feeds or merges.
        is_eligible = all(v.call for v in graph.graph.vertices) and not graph.fetches
        for vertex in graph.calls() if is_eligible else ():
            if self._is_ready(vertex):
                received = [p.place for p, _ in self._producers(vertex) if p.key is not None]
                done |= {vertex.place, *received}
                if not vertex.is_empty:
                    self.calls.append(self._call(vertex))
        received = [key for vertex in graph.calls() if vertex.place in done and (key := vertex.key)]
        #: Whether the prologue does anything and consumes every received value.
        self.is_usable = bool(done) and sorted(received) == sorted(keys)
        self.sends = tuple([key for call in self.calls for _, key in call.sent])
        rest = graph.without(done)
        has_rest = any(not vertex.is_lasting for vertex in rest.calls())
        #: The graph without the calls of the prologue; None if no calls remain.
        self.rest = rest if has_rest else None
        executables = [call.vertex.executable for call in self.calls]
        self._executables = [executable for executable in executables if executable is not None]

    @cached_property
    def epilogue(self) -> Prologue | None:
        """The calls of the rest, if all can be made once its values have arrived."""
        if not self.is_usable or self.rest is None or not self.rest.expected:
            return None
        epilogue = Prologue(self.rest, tuple(self.rest.expected), self._context)
        return epilogue if epilogue.is_usable and epilogue.rest is None else None

    def _producers(self, vertex: WiredVertex) -> list[tuple[WiredVertex, int]]:
        """The vertices that a vertex waits for, each with the index of its input."""
        vertices = self._graph.frames[0].vertices
        return [(vertices[place], index) for place, index in vertex.spec.producers]

    def _is_ready(self, vertex: WiredVertex) -> bool:
        """Whether all inputs of a vertex are available and no vertex depends on it."""
        if vertex.controls or any(edges.plain for edges in vertex.edges):
            return False
        is_call = vertex.executable is not None or (
            vertex.sent is not None and vertex.last > vertex.first
        )
        return is_call and all(self._is_available(each) for each, _ in self._producers(vertex))

    def _is_available(self, vertex: WiredVertex) -> bool:
        """Whether the result of a vertex is available before the run: a variable, or a received
        value with one consumer."""
        if vertex.controls or any(vertex.spec.producers):
            return False
        return vertex.is_lasting or (vertex.key in self.keys and len(vertex.edges[0].plain) == 1)

    def _call(self, vertex: WiredVertex) -> _Call:
        received = [
            (index, self.keys.index(producer.key))
            for producer, index in self._producers(vertex)
            if producer.key is not None
        ]
        if isinstance(vertex.executable, SendingExecutable):
            keys = vertex.executable.keys
            return _Call(vertex, received, [(n, key) for n in keys for key in keys[n]])
        return _Call(vertex, received, [] if vertex.sent is None else [(0, vertex.sent)])

    @property
    def is_short(self) -> bool:
        """Whether every call is short enough for a thread that must not block."""
        for executable in self._executables:  # noqa: SIM110 - a generator would cost more
            if not executable.holds_gil:
                return False
        return True

    def __call__(self, received: Sequence[Any]) -> Sequence[Any]:
        """Make the calls on the values of `keys`; returns the values of `sends`, in their order."""
        if not self.calls:
            return ()
        context = self._context
        sent, values = list[Any](), self._graph.start(context).values
        for vertex, arguments, outputs in self.calls:
            inputs = values[vertex.first : vertex.last]
            for position, index in arguments:
                inputs[position] = received[index]
            try:
                if vertex.executable is None:
                    sent.append(_sent_value(vertex, inputs[0]))
                    continue
                count = vertex.inputs
                # Not SendingExecutable.run: the caller sends the results.
                results = Executable.run(vertex.executable, context, inputs[:count], inputs[count:])
            except Exception as error:
                raise_at(error, cast("Node", vertex.spec.node))
            sent += [results[index] for index, _ in outputs]
        return sent


def _sent_value(vertex: WiredVertex, value: Any) -> Any:
    """The value that a Send of a variable or buffer transmits."""
    value = value.read() if vertex.call and vertex.call.references else value
    return value.lease() if isinstance(value, Buffer) else value
