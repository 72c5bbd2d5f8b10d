"""Templates of control programs that a pool runs: calls and jumps in one step table, plain data.

Like the templates of regions, they hold no expressions and no lowered parts: the program cache
stores them. Views stand for the memory that outlives a part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg.device.cpu.table_template import PlacedCall
from thalweg.device.program_template import KernelLayout, Words
from thalweg.lower.control.program import BufferView, ControlInterface


class PlacedJump(NamedTuple):
    """A jump, if the byte at an offset from a base is true or false; always if its address is 0."""

    target: int  # an entry of the step table
    base: int
    offset: int
    if_true: bool


class ControlTemplate(NamedTuple):
    """The program of a control node for one set of shapes."""

    kernels: tuple[KernelLayout, ...]  # of distinct names
    words: NDArray[np.int64]
    bases: NDArray[np.int64]  # the base of each word
    constants: Sequence[NDArray[Any]]
    table: Sequence[PlacedCall | PlacedJump]
    interface: ControlInterface
    views: Mapping[BufferView, Words]  # with the words that point to them
    changed: Sequence[int]  # the variables that it writes, numbered in the order of their views
    exclusive: Sequence[int]  # those of them that updates with locking write
    checks: bool  # whether native code may give up
    frame: int  # its size in bytes
    alignment: int
    threads: int
    list_capacity: int
