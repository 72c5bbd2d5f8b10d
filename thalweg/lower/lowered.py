"""What lowering a region gives: kernel launches over buffers.

A process that finds it on disk reads this module and none of the passes that made it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from thalweg.graph.node import Node, Tensor
from thalweg.ir.kernel import Kernel
from thalweg.lower.memory.buffers import Buffer, Pieces
from thalweg.lower.specialise import Specialised


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel and the buffers it is called on, one for each of its arguments.

    An argument begins at an element of its buffer: kernels that differ only in where they begin
    (the steps of an unrolled loop) are one kernel.
    """

    kernel: Kernel
    buffers: tuple[Buffer, ...]
    nodes: tuple[Node, ...]
    starts: tuple[int, ...]

    @property
    def written(self) -> list[Buffer]:
        """The buffers it writes."""
        pairs = zip(self.buffers, self.kernel.arguments, strict=True)
        return [buffer for buffer, argument in pairs if argument.written]


@dataclass(frozen=True)
class Lowered:
    """Kernel launches in order, and the buffers of the region's inputs and outputs."""

    spec: Specialised
    launches: tuple[Launch, ...]
    checked: tuple[Node, ...]  # the node of each fault code, from 1
    buffers: Mapping[Tensor, Buffer]
    streams: Mapping[Node, Buffer]
    pieces: Pieces  # sub-buffers
    unfused: int  # nests before fusion
