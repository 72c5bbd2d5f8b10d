"""A token graph made ready to run: vertices by frame, and for each where its tokens go.

What comes in says where inputs come from; what goes out says, for each frame, the slots that hold
inputs until their vertex fires, how many tokens each vertex waits for, and its followers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from thalweg import errors
from thalweg.runtime.dataflow.tokens import Known, Loop, Source, TokenGraph, Vertex, VertexKind
from thalweg.runtime.kernels import Call

EMPTY: Any = object()  # a slot that no token has come to
_LEAVING = frozenset({VertexKind.EXIT, VertexKind.COLLECT, VertexKind.COUNT})
_ENDS_DEAD = _LEAVING | {VertexKind.NEXT_ITERATION}  # a dead token has nothing to say there
_MERGE_SLOTS = (EMPTY, 0, 0)  # the value, the input it came by, and how many inputs were dead


class Edges(NamedTuple):
    """Where tokens go: places are those of the frame that the followers are in."""

    plain: list[tuple[int, int]]  # (follower, slot)
    merges: list[tuple[int, int, int, int]]  # (follower, slot, input, inputs)
    dead: list[int]  # the plain ones that a dead token kills


@dataclass(slots=True, eq=False)
class WiredVertex:
    """A vertex in its frame. With slots: it is looked at for every token."""

    spec: Vertex
    kind: int
    call: Call | None
    place: int  # in its frame
    first: int  # the slots of its inputs: from here
    last: int  # to before this one
    empty: list[None]
    edges: list[Edges]  # by output
    child: int = 0  # of an enter: the frame
    controls: list[int] = field(default_factory=list[int])
    triggers: list[int] = field(default_factory=list[int])  # to what fires dead or alive
    is_awaited: bool = False  # whether there are any of both


class FrameWiring:
    """One frame: what all its iterations begin with."""

    def __init__(self, parent: int, loop: Loop) -> None:
        self.parent = parent
        self.limit = 1 if loop.sequential else max(1, loop.parallel_iterations)
        self.vertices: list[WiredVertex] = []
        self.values: list[Any] = []
        self.pending: list[int] = []
        self.entering = 0  # how many vertices enter it
        self.leaving: list[WiredVertex] = []


class Wiring:
    """All frames of a token graph; the first is the one around everything."""

    def __init__(self, graph: TokenGraph) -> None:
        self._vertices = graph.vertices
        self.frames = [FrameWiring(0, Loop("", 1))]
        self._children: dict[tuple[int, str], int] = {}
        self._frame_of = self._inferred(graph)
        self._wired = self._placed()
        self.feeds = self._wired[: graph.feeds]
        self.fetches = self._fetch_slots(graph)
        self._connect(graph)

    # Frames

    def _inferred(self, graph: TokenGraph) -> list[int]:
        """The frame that each vertex waits in: that which its inputs come from."""
        followers: dict[int, list[int]] = defaultdict(list)
        for place, vertex in enumerate(graph.vertices):
            for earlier in _before(vertex):
                followers[earlier].append(place)
        found = [-1] * len(graph.vertices)
        pending = [p for p, v in enumerate(graph.vertices) if next(_before(v), None) is None]
        for place in pending:
            found[place] = 0
        while pending:
            place = pending.pop()
            frame = self._left_for(graph.vertices[place], found[place])
            for follower in followers[place]:
                if found[follower] < 0:
                    found[follower] = frame
                    pending.append(follower)
                elif found[follower] != frame:
                    raise _mixed(graph.vertices[follower])
        return [max(0, frame) for frame in found]

    def _left_for(self, vertex: Vertex, frame: int) -> int:
        """The frame that the tokens of a vertex in a frame go to."""
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

    def _placed(self) -> list[WiredVertex]:
        found: list[WiredVertex] = []
        for number, (vertex, place) in enumerate(zip(self._vertices, self._frame_of, strict=True)):
            frame = self.frames[place]
            first, values = len(frame.values), _initial(vertex)
            frame.values += values
            slots = first, first + len(values), [None] * len(values)
            at, edges = len(frame.vertices), [Edges([], [], []) for _ in range(vertex.outputs)]
            wired = WiredVertex(vertex, int(vertex.kind), vertex.call, at, *slots, edges)
            frame.vertices.append(wired)
            frame.pending.append(_pending_count(vertex))
            if vertex.loop is not None:
                wired.child = self._child(self._frame_of[number], vertex.loop)
                self.frames[wired.child].entering += 1
            if vertex.kind in _LEAVING:
                frame.leaving.append(wired)
            found.append(wired)
        return found

    def _fetch_slots(self, graph: TokenGraph) -> range:
        """What is fetched is held by slots of no vertex."""
        values = self.frames[0].values
        first = len(values)
        values += [f.value if isinstance(f, Known) else EMPTY for f in graph.fetches]
        return range(first, len(values))

    # Edges

    def _connect(self, graph: TokenGraph) -> None:
        for wired in self._wired:
            vertex, place = wired.spec, wired.place
            for number, source in enumerate(vertex.inputs):
                if isinstance(source, Known):
                    continue
                edges = self._edges_of(source)
                if vertex.kind is VertexKind.MERGE:
                    edges.merges.append((place, wired.first, number, len(vertex.inputs)))
                    continue
                edges.plain.append((place, wired.first + number))
                if vertex.kind not in _ENDS_DEAD:
                    edges.dead.append(place)
            for earlier in [self._wired[control] for control in dict.fromkeys(vertex.controls)]:
                is_trigger = vertex.kind is VertexKind.TRIGGER
                (earlier.triggers if is_trigger else earlier.controls).append(place)
                earlier.is_awaited = True
        for slot, source in zip(self.fetches, graph.fetches, strict=True):
            if isinstance(source, Source):
                self._edges_of(source).plain.append((-1, slot))
        # Fetched slots count down a vertex that is in no frame and never fires.
        self.frames[0].pending.append(0)

    def _edges_of(self, source: Source) -> Edges:
        return self._wired[source.vertex].edges[source.output]


def _before(vertex: Vertex) -> Iterator[int]:
    for source in vertex.inputs:
        if isinstance(source, Source):
            yield source.vertex
    yield from vertex.controls


def _initial(vertex: Vertex) -> Sequence[Any]:
    if vertex.kind is VertexKind.MERGE:
        return _MERGE_SLOTS
    return [source.value if isinstance(source, Known) else None for source in vertex.inputs]


def _pending_count(vertex: Vertex) -> int:
    """How many tokens a vertex waits for: a merge for one that is alive, or that all are dead."""
    controls = len(set(vertex.controls))
    if vertex.kind is VertexKind.MERGE:
        return controls + 1
    return controls + sum(isinstance(source, Source) for source in vertex.inputs)


def _mixed(vertex: Vertex) -> errors.InvalidArgumentError:
    name = "a node" if vertex.node is None else vertex.node.name
    return errors.InvalidArgumentError(
        None,
        vertex.node,
        f"{name} has inputs from different frames: what goes into a loop must go through "
        "tf.control.enter, and what comes out of it through tf.control.exit",
    )
