"""Templates of programs that a pool runs: argument words, and the calls of the step table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from thalweg.device.cpu.pool import Entry
from thalweg.device.program_template import ProgramTemplate


class Dispatch(NamedTuple):
    """How the threads of a pool run a call."""

    barrier: bool  # before its first function; there always is one before the others
    thread: int  # the one that runs it, or -1 for all
    no_pause: bool  # it continues an update of a variable
    work: int

    def entries(self, functions: Sequence[int], arguments: int) -> list[Entry]:
        """The table entries of a kernel's functions; no pause comes between them."""
        barrier, thread, no_pause, work = self
        return [
            Entry(function, arguments, barrier or phase > 0, thread, no_pause or phase > 0, work)
            for phase, function in enumerate(functions)
        ]


class PlacedCall(NamedTuple):
    """A call of a kernel."""

    kernel: int
    word: int  # the first of its argument words
    dispatch: Dispatch
    is_prepacked: bool  # calls reuse the factor that its first phase packs


@dataclass(frozen=True, eq=False)
class TableTemplate(ProgramTemplate):
    """The program of a region for one set of shapes, for the threads of a pool."""

    calls: Sequence[PlacedCall]
    threads: int
    holds_gil: bool  # a call is shorter than the interpreter's switch interval
    packed_references: Sequence[int]  # the references that packed factors depend on
