"""Token graphs: what the dataflow executor runs, as an immutable value.

A vertex fires when its inputs have come, and sends what it computes along its edges. Switches and
merges choose; enters and exits are the borders of frames, in which a loop runs; a vertex inside a
frame fires once in each of its iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from thalweg.graph.node import Node
from thalweg.runtime.kernels import Call, Instruction


class VertexKind(IntEnum):
    """What a vertex does with its inputs."""

    CALL = 0  # computes
    SWITCH = 1  # (data, number): the data leaves by the output of that number, the others are dead
    MERGE = 2  # the first input that is alive, and its number
    ENTER = 3  # into iteration 0 of a frame; a constant one into all iterations
    EXIT = 4  # out of a frame, to the iteration around it
    NEXT_ITERATION = 5
    LOOP_COND = 6  # the truth that decides whether the loop goes on
    PASS = 7  # what came
    COLLECT = 8  # out of a frame when it is done: the values of all iterations, as a list
    COUNT = 9  # out of a frame when it is done: how many iterations there were
    TRIGGER = 10  # fires when its control inputs have, alive or dead


class Source(NamedTuple):
    """An output of a vertex."""

    vertex: int
    output: int = 0


class Known(NamedTuple):
    """An input whose value is there from the beginning, in every iteration."""

    value: Any


Input = Source | Known


@dataclass(frozen=True)
class Loop:
    """What the vertices that enter a frame say about it."""

    name: str
    parallel_iterations: int = 10
    sequential: bool = False  # an iteration begins when the one before is done


class Vertex(NamedTuple):
    """One vertex, and where its inputs come from."""

    kind: VertexKind
    inputs: tuple[Input, ...] = ()
    controls: tuple[int, ...] = ()  # vertices that have to fire before
    outputs: int = 1
    node: Node | None = None  # for errors
    call: Call | None = None
    loop: Loop | None = None  # of an enter
    is_constant: bool = False  # of an enter
    #: of a collect or a count: (values by iteration, number of iterations) -> what leaves
    collects: Callable[[Mapping[int, Any], int], Any] | None = None
    blocks: bool = False  # of a call: it may wait for another one


@dataclass(frozen=True, eq=False)
class TokenGraph:
    """Vertices, the values that come in, and those that go out."""

    vertices: tuple[Vertex, ...]
    feeds: int  # the first vertices are not run: each gives a value that is fed
    fetches: tuple[Input, ...]
    may_be_dead: frozenset[int] = frozenset()  # fetches that are None where they have no value

    def __str__(self) -> str:
        return "\n".join(_line(place, vertex) for place, vertex in enumerate(self.vertices))


def of_instructions(
    instructions: Sequence[Instruction],
    feeds: Sequence[int],
    fetches: Sequence[int],
    before: Sequence[Collection[int]],
) -> TokenGraph:
    """Instructions over slots as a graph without frames: each runs after those it takes values from
    and those that come `before` it."""
    count = len(feeds)
    sources = {slot: Source(number) for number, slot in enumerate(feeds)}
    for vertex, step in enumerate(instructions, count):
        for output in range(step.output_count):
            sources.setdefault(step.output + output, Source(vertex, output))
    vertices = [Vertex(VertexKind.PASS) for _ in feeds]
    for step, earlier in zip(instructions, before, strict=True):
        inputs = tuple(sources[slot] for slot in step.inputs)
        controls = {count + at for at in earlier} - {source.vertex for source in inputs}
        call, after = Call(*step[:5], is_async=step.node.op.asynchronous), tuple(sorted(controls))
        made = Vertex(VertexKind.CALL, inputs, after, step.output_count, step.node, call)
        vertices.append(made._replace(blocks=step.node.op.blocking))
    return TokenGraph(tuple(vertices), count, tuple(sources[slot] for slot in fetches))


def _line(place: int, vertex: Vertex) -> str:
    name = "" if vertex.node is None else f"  # {vertex.node.name}"
    what = vertex.kind.name if vertex.call is None else vertex.call.node.type
    after = "".join(f", ^{control}" for control in vertex.controls)
    return f"%{place} = {what}({_listed(vertex.inputs)}{after}){name}"


def _listed(inputs: Sequence[Input]) -> str:
    return ", ".join(
        f"%{i.vertex}:{i.output}" if isinstance(i, Source) else repr(i.value) for i in inputs
    )
