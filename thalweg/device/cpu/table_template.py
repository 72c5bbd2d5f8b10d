"""A program of a CPU but for its addresses: argument words, and the calls that threads run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from thalweg.device.program_template import ProgramTemplate


class PlacedCall(NamedTuple):
    """A kernel call: which kernel, where its words begin, whether a barrier is before it, which
    thread runs it (-1: all), whether it continues an update of a variable, its work, and whether
    what its first phase packs is kept from call to call."""

    kernel: int
    word: int
    barrier: bool
    thread: int
    no_pause: bool
    work: int
    keeps: bool


@dataclass(frozen=True, eq=False)
class TableTemplate(ProgramTemplate):
    """The program of a region on some shapes, for the threads of a pool."""

    calls: Sequence[PlacedCall]
    threads: int
    holds_gil: bool  # it is shorter than the interpreter's switch interval
    kept: Sequence[int]  # the references that packed factors are made of
