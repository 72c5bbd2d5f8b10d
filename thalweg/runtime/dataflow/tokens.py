"""Token graphs: the immutable input of the dataflow executor.

A vertex fires when all its inputs have arrived and sends its results along its edges. Switches and
merges select branches. Enters and exits are the borders of frames; a loop runs in a frame, and a
vertex inside a frame fires once in each iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from thalweg.graph.node import Node
from thalweg.runtime.kernels import Call


class VertexKind(IntEnum):
    """What a vertex does with its inputs."""

    CALL = 0  # calls a kernel
    SWITCH = 1  # (data, index): data goes to output `index`, dead tokens to the other outputs
    MERGE = 2  # forwards the first live input, and its index
    ENTER = 3  # into iteration 0 of a frame; into every iteration if it is constant
    EXIT = 4  # out of a frame, to the enclosing iteration
    NEXT_ITERATION = 5
    LOOP_COND = 6  # forwards the loop's condition
    PASS = 7  # identity
    COLLECT = 8  # when a frame ends: the values of all iterations, as a list
    COUNT = 9  # when a frame ends: the number of iterations
    TRIGGER = 10  # fires after all its control inputs, live or dead


class Source(NamedTuple):
    """An output of a vertex."""

    vertex: int
    output: int = 0


class Known(NamedTuple):
    """An input with a value that is known before the run, the same in every iteration."""

    value: Any


Input = Source | Known


class Loop(NamedTuple):
    """The attributes of a frame, as its ENTER vertices declare them."""

    name: str
    parallel_iterations: int  # if 1, an iteration starts when the previous one has ended


class Vertex(NamedTuple):
    """One vertex and the sources of its inputs."""

    kind: VertexKind
    inputs: tuple[Input, ...] = ()
    controls: tuple[int, ...] = ()  # vertices that must fire first
    outputs: int = 1
    node: Node | None = None  # that errors are attributed to
    call: Call | None = None
    loop: Loop | None = None  # ENTER only
    is_constant: bool = False  # ENTER only
    #: COLLECT and COUNT only: (values by iteration, number of iterations) -> result
    collects: Callable[[Mapping[int, Any], int], Any] | None = None

    @property
    def producers(self) -> Iterator[tuple[int, int]]:
        """The vertices that it waits for, each with the index of the input that takes its value; -1
        for a control input."""
        for index, source in enumerate(self.inputs):
            if isinstance(source, Source):
                yield source.vertex, index
        yield from ((control, -1) for control in self.controls)


@dataclass(frozen=True, eq=False)
class TokenGraph:
    """Vertices, with the values that are fed and fetched."""

    vertices: tuple[Vertex, ...]
    feeds: int  # this many leading vertices stand for fed values and do not fire
    fetches: tuple[Input, ...]
    may_be_dead: frozenset[int] = frozenset()  # fetches that are None if their token is dead
