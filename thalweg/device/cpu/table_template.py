"""Templates of programs that a pool runs: argument words, and the calls of the step table; for
control nodes also jumps, and views that stand for the memory that outlives a part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from thalweg.device.cpu.pool import Entry
from thalweg.device.program_template import ProgramTemplate, Words

if TYPE_CHECKING:
    from thalweg.lower.control.program import BufferView, ControlInterface

_MAX_WORK_WITH_GIL = 20_000.0  # vector instructions: a few microseconds


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


class PlacedJump(NamedTuple):
    """A jump, if the byte at an offset from a base is true or false; always if its address is 0."""

    target: int  # an entry of the step table
    base: int
    offset: int
    if_true: bool


@dataclass(frozen=True, eq=False)
class TableTemplate(ProgramTemplate):
    """The program of a region or a control node for one set of shapes, for the threads of a
    pool."""

    calls: Sequence[PlacedCall | PlacedJump]
    threads: int
    work: float  # the estimated number of vector instructions of a call; infinite with jumps
    packed_references: Sequence[int]  # the references that packed factors depend on

    @property
    def holds_gil(self) -> bool:
        """Whether a call is shorter than the interpreter's switch interval."""
        return self.work < _MAX_WORK_WITH_GIL


@dataclass(frozen=True, eq=False)
class ControlTemplate(TableTemplate):
    """The program of a control node. Its arena also holds loop variables."""

    interface: ControlInterface
    views: Mapping[BufferView, Words]  # with the words that point to them
    checks: bool  # whether native code may give up
    list_capacity: int
