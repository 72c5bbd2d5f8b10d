"""The state of running frames: the tokens of each iteration that no vertex has consumed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thalweg.runtime.dataflow.wiring import FrameWiring, InitialState, WiredVertex
from thalweg.runtime.kernels import Context


class Tokens:
    """Unconsumed tokens: values by slot, pending counts by vertex, and the ready stack."""

    __slots__ = "pending", "ready", "values"

    def __init__(self, values: Sequence[Any], pending: Sequence[int], ready: Sequence[int]) -> None:
        self.values, self.pending, self.ready = [*values], [*pending], [*ready]


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
