"""Execution form of a token graph: vertices by frame, and the out-edges of each vertex.

A token graph lists the sources of each input. Its wiring lists, for each frame, the slots that hold
inputs until their vertex fires, the number of tokens that each vertex waits for, and its consumers.
Constants, and the variables that a session keeps, are in their slots before a run starts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple, Self

from thalweg import errors
from thalweg.ops.core.basic import Const, NoOp
from thalweg.ops.state.accumulators import AccumulatorHandle
from thalweg.ops.state.queue_ops import QueueHandle
from thalweg.ops.state.state import VariableV2
from thalweg.partition.rendezvous import Key
from thalweg.partition.transfers import Receiving, Sending
from thalweg.runtime.compiled import Executable
from thalweg.runtime.dataflow.tokens import Known, Loop, Source, TokenGraph, Vertex, VertexKind
from thalweg.runtime.kernels import Call, Context, raise_at, starter_of
from thalweg.runtime.resources import Objects

EMPTY: Any = object()  # a slot without a token
OBJECTS = (VariableV2, QueueHandle, AccumulatorHandle)  # refer to objects of the session
_LEAVING = frozenset({VertexKind.EXIT, VertexKind.COLLECT, VertexKind.COUNT})
_ENDS_DEAD = _LEAVING | {VertexKind.NEXT_ITERATION}  # do not propagate dead tokens
_MERGE_SLOTS = (EMPTY, 0, 0)  # the value, the index of its input, the number of dead inputs


class Edges(NamedTuple):
    """The out-edges of an output; consumers are indices into the vertices of their frame."""

    plain: list[tuple[int, int]]  # (consumer, slot)
    merges: list[tuple[int, int, int, int]]  # (consumer, slot, input index, input count)
    dead: list[int]  # the consumers in `plain` that receive dead tokens


class WiredVertex:
    """A vertex in its frame."""

    def __init__(self, spec: Vertex, place: int, first: int, last: int) -> None:
        self.spec, self.kind, self.call = spec, int(spec.kind), spec.call
        self.place = place  # its index in its frame
        self.first, self.last = first, last  # its inputs are in slots [first, last)
        self.empty = [None] * (last - first)
        self.edges = [Edges([], [], []) for _ in range(spec.outputs)]  # by output
        self.controls: list[int] = []  # consumers of control edges
        self.child: FrameWiring | None = None  # ENTER only: the frame that is entered
        self.executable: Executable | None = None  # None unless it calls a region
        self.inputs = 0  # of a region; its variables follow them
        self.is_empty = False  # whether it calls a region of NoOps: it only orders other vertices
        self.is_limited = False  # whether it may wait or take long
        self.key: Key | None = None  # of a receive
        self.sent: Key | None = None  # of a send
        self.starter: Any = None  # starts a call that may wait for another
        self.blocks = False  # it may wait for another call, and cannot be started
        if spec.call is not None:
            self._describe_call(spec.call)

    def _describe_call(self, call: Call) -> None:
        op = call.node.op
        if isinstance(call.function, Executable):
            self.executable, region = call.function, call.function.region
            self.inputs = len(region.inputs)
            self.is_empty = all(isinstance(node.op, NoOp) for node in region.nodes)
        elif call.is_async:
            self.starter = call.function
        elif len(call.nodes) > 1:
            self.blocks = any(node.op.blocking for node in call.nodes)
        elif isinstance(op, Receiving):
            self.key = op.key
        elif isinstance(op, Sending):
            self.sent = op.key
        elif op.blocking:
            self.starter = starter_of(call)
            self.blocks = self.starter is None
        is_brief = len(call.nodes) == 1 and (isinstance(op, Sending) or not call.node.inputs)
        waits = self.blocks or self.starter is not None or self.key is not None
        self.is_limited = waits or not (self.is_empty if self.executable else is_brief)

    @property
    def is_lasting(self) -> bool:
        """Whether it has the same result in each run: a constant, or an object of the session."""
        call = self.call
        if call is None or self.executable is not None or call.device or self.controls:
            return False
        # A step of control primitives is a call that is attributed to its last node.
        is_lookup = len(call.nodes) == 1 and isinstance(call.node.op, (Const, *OBJECTS))
        return is_lookup and not any(edges.merges for edges in self.edges)


class FrameWiring:
    """One frame: the initial slots and pending counts of its iterations."""

    def __init__(self, parent: int, loop: Loop) -> None:
        self.parent = parent
        self.limit = max(1, loop.parallel_iterations)
        self.vertices: list[WiredVertex] = []
        self.values: list[Any] = []
        self.pending: list[int] = []
        self.entering = 0  # the number of ENTER vertices
        self.leaving: list[WiredVertex] = []


class InitialState(NamedTuple):
    """The initial state of a run, with constants and variables already looked up."""

    values: list[Any]
    pending: list[int]
    ready: list[int]  # a stack: the first vertex that fires is the last
    objects: Objects  # that hold the variables
    version: int  # of `objects` at the lookup


class Wiring:
    """All frames of a token graph; the first is the root frame."""

    _start: InitialState | None = None
    done: Collection[int] = ()  # the vertices of the root frame that runs leave out

    def __init__(self, graph: TokenGraph) -> None:
        self.graph = graph
        self.frames = [FrameWiring(0, Loop("", 1))]
        self._children: dict[tuple[int, str], int] = {}
        self._wired = self._allocate_slots(self._infer_frames(graph.vertices))
        self.feeds = self._wired[: graph.feeds]
        self.fetches = self._fetch_slots()
        self._connect()

    # Runs

    def start(self, context: Context) -> InitialState:
        """The initial state of a run; variables are looked up again only after a deletion."""
        start, objects = self._start, context.resources.objects
        if start is None or start.objects is not objects or start.version != objects.version:
            start = self._start = self._initial_state(context, objects)
        return start

    def _initial_state(self, context: Context, objects: Objects) -> InitialState:
        """Look up constants, and the session's objects, which are valid until one is deleted."""
        version, root = objects.version, self.frames[0]
        values, pending = root.values[:], root.pending[:]
        for place in self.done:
            pending[place] += 1  # it never fires
        sources = [v for v in root.vertices[len(self.feeds) :] if not pending[v.place]]
        lasting = [vertex for vertex in sources if vertex.is_lasting]
        started = {*lasting, *self.expected.values()}
        ready = [vertex.place for vertex in reversed(sources) if vertex not in started]
        for vertex in lasting:
            value = _looked_up(vertex, context)
            for place, slot in vertex.edges[0].plain:
                values[slot] = value
                pending[place] -= 1
                if not pending[place]:
                    ready.append(place)
        return InitialState(values, pending, ready, objects, version)

    @cached_property
    def expected(self) -> dict[Key, WiredVertex]:
        """The receives that wait for no other vertex."""
        pending = self.frames[0].pending
        return {v.key: v for v in self.calls() if v.key is not None and not pending[v.place]}

    def calls(self) -> list[WiredVertex]:
        """The calls of the root frame that runs do not leave out."""
        vertices = self.frames[0].vertices
        return [v for v in vertices if v.call is not None and v.place not in self.done]

    def without(self, done: Collection[int]) -> Self:
        """The graph without the root frame's vertices at these indices."""
        rest = copy(self)
        rest.done, rest._start = {*self.done, *done}, None
        vars(rest).pop("expected", None)
        return rest

    # Frames

    def _infer_frames(self, vertices: Sequence[Vertex]) -> list[int]:
        """The frame of each vertex: the one that receives the tokens of its predecessors. Only back
        edges of merges come from later vertices."""
        targets: list[int] = []  # the frame that receives the tokens of each vertex
        frames: list[int] = []
        for vertex in vertices:
            first = next((p for p, _ in vertex.producers if p < len(targets)), None)
            frames.append(0 if first is None else targets[first])
            targets.append(self._target_frame(vertex, frames[-1]))
        for vertex, frame in zip(vertices, frames, strict=True):
            if any(targets[place] != frame for place, _ in vertex.producers):
                raise _mixed_frames_error(vertex)
        return frames

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

    def _allocate_slots(self, frame_of: Sequence[int]) -> list[WiredVertex]:
        wired_vertices: list[WiredVertex] = []
        for vertex, frame_index in zip(self.graph.vertices, frame_of, strict=True):
            frame = self.frames[frame_index]
            first, values = len(frame.values), _initial_slots(vertex)
            frame.values += values
            wired = WiredVertex(vertex, len(frame.vertices), first, first + len(values))
            frame.vertices.append(wired)
            frame.pending.append(_pending_count(vertex))
            if vertex.loop is not None:
                wired.child = self.frames[self._child(frame_index, vertex.loop)]
                wired.child.entering += 1
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
        # Fetch slots decrement the count at index -1, which belongs to no vertex and never fires.
        self.frames[0].pending.append(0)

    def _edges_of(self, source: Source) -> Edges:
        return self._wired[source.vertex].edges[source.output]


def _looked_up(vertex: WiredVertex, context: Context) -> Any:
    """The result of a lasting vertex."""
    call: Call = vertex.call  # pyright: ignore[reportAssignmentType] - it is a call
    try:
        return call.function(context.at(call.node)) if call.takes_context else call.function()
    except Exception as error:
        raise_at(error, call.node)


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
