"""Execution form of a token graph: vertices by frame, and the out-edges of each vertex.

A token graph lists the sources of each input. Its wiring lists, for each frame, the slots that hold
inputs until their vertex fires, the number of tokens that each vertex waits for, and its consumers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from thalweg import errors
from thalweg.runtime.dataflow.tokens import Known, Loop, Source, TokenGraph, Vertex, VertexKind
from thalweg.runtime.kernels import Call

EMPTY: Any = object()  # a slot without a token
_LEAVING = frozenset({VertexKind.EXIT, VertexKind.COLLECT, VertexKind.COUNT})
_ENDS_DEAD = _LEAVING | {VertexKind.NEXT_ITERATION}  # do not propagate dead tokens
_MERGE_SLOTS = (EMPTY, 0, 0)  # the value, the index of its input, the number of dead inputs


class Edges(NamedTuple):
    """The out-edges of an output; consumers are indices into the vertices of their frame."""

    plain: list[tuple[int, int]]  # (consumer, slot)
    merges: list[tuple[int, int, int, int]]  # (consumer, slot, input index, input count)
    dead: list[int]  # the consumers in `plain` that receive dead tokens


@dataclass(slots=True, eq=False)
class WiredVertex:
    """A vertex in its frame. Uses `__slots__`: it is read for every token."""

    spec: Vertex
    kind: int
    call: Call | None
    place: int  # its index in its frame
    first: int  # its inputs are in slots [first, last)
    last: int
    empty: list[None]
    edges: list[Edges]  # by output
    child: int = 0  # ENTER only: the frame that is entered
    controls: list[int] = field(default_factory=list[int])  # consumers of control edges


class FrameWiring:
    """One frame: the initial slots and pending counts of its iterations."""

    def __init__(self, parent: int, loop: Loop) -> None:
        self.parent = parent
        self.limit = 1 if loop.sequential else max(1, loop.parallel_iterations)
        self.vertices: list[WiredVertex] = []
        self.values: list[Any] = []
        self.pending: list[int] = []
        self.ready: list[int] = []  # a stack: the first vertex that fires is the last
        self.entering = 0  # the number of ENTER vertices
        self.leaving: list[WiredVertex] = []


class Wiring:
    """All frames of a token graph; the first is the root frame."""

    def __init__(self, graph: TokenGraph) -> None:
        self.graph = graph
        self.frames = [FrameWiring(0, Loop("", 1))]
        self._children: dict[tuple[int, str], int] = {}
        self._frame_of = self._infer_frames(graph.vertices)
        self._wired = self._allocate_slots()
        self.feeds = self._wired[: graph.feeds]
        self.fetches = self._fetch_slots()
        self._connect()

    # Frames

    def _infer_frames(self, vertices: Sequence[Vertex]) -> list[int]:
        """The frame of each vertex, propagated forward from the vertices without inputs."""
        consumers: dict[int, list[int]] = defaultdict(list)
        for place, vertex in enumerate(vertices):
            for producer in _predecessors(vertex):
                consumers[producer].append(place)
        frames = [-1] * len(vertices)
        pending = [p for p, v in enumerate(vertices) if next(_predecessors(v), None) is None]
        for place in pending:
            frames[place] = 0
        while pending:
            place = pending.pop()
            frame = self._target_frame(vertices[place], frames[place])
            for consumer in consumers[place]:
                if frames[consumer] < 0:
                    frames[consumer] = frame
                    pending.append(consumer)
                elif frames[consumer] != frame:
                    raise _mixed_frames_error(vertices[consumer])
        return [max(0, frame) for frame in frames]

    def _target_frame(self, vertex: Vertex, frame: int) -> int:
        """The frame that receives the tokens of a vertex in `frame`."""
        if vertex.kind in _LEAVING:
            return self.frames[frame].parent
        return frame if vertex.loop is None else self._child(frame, vertex.loop)

    def _child(self, parent: int, loop: Loop) -> int:
        key = parent, loop.name
        if key not in self._children:
            self._children[key] = len(self.frames)
            self.frames.append(FrameWiring(parent, loop))
        return self._children[key]

    # Slots

    def _allocate_slots(self) -> list[WiredVertex]:
        wired_vertices: list[WiredVertex] = []
        for number, (vertex, frame_index) in enumerate(
            zip(self.graph.vertices, self._frame_of, strict=True)
        ):
            frame = self.frames[frame_index]
            first, values = len(frame.values), _initial_slots(vertex)
            frame.values += values
            slots = first, first + len(values), [None] * len(values)
            index, edges = len(frame.vertices), [Edges([], [], []) for _ in range(vertex.outputs)]
            wired = WiredVertex(vertex, int(vertex.kind), vertex.call, index, *slots, edges)
            frame.vertices.append(wired)
            frame.pending.append(_pending_count(vertex))
            if vertex.loop is not None:
                wired.child = self._child(self._frame_of[number], vertex.loop)
                self.frames[wired.child].entering += 1
            if vertex.kind in _LEAVING:
                frame.leaving.append(wired)
            wired_vertices.append(wired)
        return wired_vertices

    def _fetch_slots(self) -> range:
        """Append slots for the fetched values to the root frame; they belong to no vertex."""
        values = self.frames[0].values
        first = len(values)
        values += [f.value if isinstance(f, Known) else EMPTY for f in self.graph.fetches]
        return range(first, len(values))

    # Edges

    def _connect(self) -> None:
        for wired in self._wired:
            vertex, index = wired.spec, wired.place
            for position, source in enumerate(vertex.inputs):
                if isinstance(source, Known):
                    continue
                edges = self._edges_of(source)
                if vertex.kind is VertexKind.MERGE:
                    edges.merges.append((index, wired.first, position, len(vertex.inputs)))
                    continue
                edges.plain.append((index, wired.first + position))
                if vertex.kind not in _ENDS_DEAD:
                    edges.dead.append(index)
            for control in dict.fromkeys(vertex.controls):
                self._wired[control].controls.append(index)
        for slot, source in zip(self.fetches, self.graph.fetches, strict=True):
            if isinstance(source, Source):
                self._edges_of(source).plain.append((-1, slot))
        root = self.frames[0]
        sources = [place for place, count in enumerate(root.pending) if not count]
        root.ready = [place for place in reversed(sources) if place >= self.graph.feeds]
        # Fetch slots decrement the count at index -1, which belongs to no vertex and never fires.
        root.pending.append(0)

    def _edges_of(self, source: Source) -> Edges:
        return self._wired[source.vertex].edges[source.output]


def _predecessors(vertex: Vertex) -> Iterator[int]:
    for source in vertex.inputs:
        if isinstance(source, Source):
            yield source.vertex
    yield from vertex.controls


def _initial_slots(vertex: Vertex) -> Sequence[Any]:
    if vertex.kind is VertexKind.MERGE:
        return _MERGE_SLOTS
    return [source.value if isinstance(source, Known) else None for source in vertex.inputs]


def _pending_count(vertex: Vertex) -> int:
    """The number of tokens a vertex waits for; a merge waits for one live input, or all dead."""
    controls = len(set(vertex.controls))
    if vertex.kind is VertexKind.MERGE:
        return controls + 1
    return controls + sum(isinstance(source, Source) for source in vertex.inputs)


def _mixed_frames_error(vertex: Vertex) -> errors.InvalidArgumentError:
    name = "a node" if vertex.node is None else vertex.node.name
    return errors.InvalidArgumentError(
        None,
        vertex.node,
        f"{name} has inputs from different frames: what goes into a loop must go through "
        "tf.control.enter, and what comes out of it through tf.control.exit",
    )
