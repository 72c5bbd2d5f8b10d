"""Templates of programs that a pool runs: argument words and the step table; for control nodes also
views that stand for the memory that outlives a part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from thalweg.device.program_template import ABSOLUTE, ProgramTemplate, Words

if TYPE_CHECKING:
    from thalweg.lower.control.program import BufferView, ControlInterface

_MAX_WORK_WITH_GIL = 20_000.0  # vector instructions: a few microseconds


class Entry(NamedTuple):
    """A kernel call: `function(arguments, thread, threads)` on all threads.

    With a `thread`, only that thread makes the call. With a `barrier`, all threads wait before it
    until the calls before are finished. A step may pause at a barrier unless the entry has
    `no_pause`, because it continues an update. `work` estimates its nanoseconds on a thread.
    """

    function: int
    arguments: int
    barrier: bool = True
    thread: int = -1
    no_pause: bool = False
    work: int = 0


class Jump(NamedTuple):
    """Continue at the entry `target`: always if `decides` is 0, else if the byte at this address is
    zero (with `if_true`: is not zero). Needs a `barrier` if the calls before compute the byte. With
    `no_pause`, a step does not pause before it. In a template, the address is relative to a base.
    """

    target: int
    decides: int = 0
    if_true: bool = False
    barrier: bool = True
    no_pause: bool = False
    base: int = ABSOLUTE


class Signal(NamedTuple):
    """An entry that signals that an early output is computed."""

    output: int


@dataclass(frozen=True, eq=False)
class TableTemplate(ProgramTemplate):
    """The program of a region or a control node for one set of shapes, for the threads of a
    pool."""

    #: Of an entry, the function is a number among those of all kernels, and the arguments are the
    #: first of its words.
    calls: Sequence[Entry | Jump | Signal]
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
