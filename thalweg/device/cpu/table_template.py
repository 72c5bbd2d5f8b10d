"""Templates of programs that a pool runs: argument words, and the calls of the step table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from thalweg.device.program_template import ProgramTemplate


class PlacedCall(NamedTuple):
    """A call of a kernel."""

    kernel: int
    word: int  # the first of its argument words
    barrier: bool  # before it
    thread: int  # the one that runs it, or -1 for all
    no_pause: bool  # it continues an update of a variable
    work: int
    is_prepacked: bool  # calls reuse the factor that its first phase packs


@dataclass(frozen=True, eq=False)
class TableTemplate(ProgramTemplate):
    """The program of a region for one set of shapes, for the threads of a pool."""

    calls: Sequence[PlacedCall]
    threads: int
    holds_gil: bool  # a call is shorter than the interpreter's switch interval
    packed_references: Sequence[int]  # the references that packed factors depend on
