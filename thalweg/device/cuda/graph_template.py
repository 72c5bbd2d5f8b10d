"""The template of a GPU program: argument words without addresses, and launches of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from thalweg.codegen.cuda.launch import LaunchShape
from thalweg.device.program_template import ProgramTemplate

#: The maximum bytes of a small result, which is downloaded together with all others.
MAX_SMALL_OUTPUT = 1 << 10


class PlacedLaunch(NamedTuple):
    """A launch of a kernel: the kernel's index, the index and number of its words, the grid of each
    entry, and the launches that it depends on."""

    kernel: int
    word: int
    words: int
    shapes: tuple[LaunchShape, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class GraphTemplate(ProgramTemplate):
    """The program of a region for given shapes, as a sequence of CUDA graphs."""

    launches: Sequence[PlacedLaunch]
    graphs: Sequence[int]  # the first launch of each graph
    input_shapes: Sequence[tuple[int, ...]]  # of the inputs
    #: There are no checks, and kernels write each small result once and never read it: they write
    #: it to host memory.
    writes_to_host: bool = False
