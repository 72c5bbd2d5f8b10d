"""A program of a GPU but for its addresses: argument words, and the kernels of its CUDA graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from thalweg.codegen.cuda.launch import LaunchShape
from thalweg.device.program_template import ProgramTemplate

#: Bytes of a result up to which it comes to the host with all other small ones.
MAX_SMALL_OUTPUT = 1 << 10


class PlacedLaunch(NamedTuple):
    """A launch of a kernel: which kernel, where its words begin and how many there are, the grid of
    each entry, the launches that it comes after, and about how many seconds it takes."""

    kernel: int
    word: int
    words: int
    shapes: tuple[LaunchShape, ...]
    after: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, eq=False)
class GraphTemplate(ProgramTemplate):
    """The program of a region on some shapes, as CUDA graphs that run one after the other."""

    launches: Sequence[PlacedLaunch]
    graphs: Sequence[int]  # the launch that each graph begins with
    input_shapes: Sequence[tuple[int, ...]]  # of the inputs that are read
    #: Nothing is checked, and kernels write each small result once and never read it: it may lie in
    #: memory of the host.
    writes_to_host: bool = False
