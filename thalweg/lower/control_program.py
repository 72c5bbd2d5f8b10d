"""What a native program of a control node is: parts and jumps, and memory that outlives a part.

A part is a lowered region. Its buffers from outside lie in homes: arrays that come with a call or
are made for it, variables, constants, pieces of the program's own memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from thalweg.graph.dtypes import DType
from thalweg.graph.node import Node
from thalweg.lower.buffers import Buffer
from thalweg.lower.lowering import Lowered
from thalweg.lower.specialise import Shape


class Where(Enum):
    """What memory of a program is."""

    INPUT = "input"  # an array that comes with the call
    VARIABLE = "variable"  # a variable's own memory
    RESULT = "result"  # a fresh array of the call
    CONSTANT = "constant"  # an array of the program
    OWN = "own"  # a piece of the frame


@dataclass(eq=False)
class Home:
    """Memory that lives longer than a region: whose it is, and what lies there."""

    where: Where
    dtype: Any
    shape: Shape
    source: Any = None  # of an input or a variable its number, of a constant the array

    @property
    def bytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(eq=False)
class Rows:
    """A list as memory: its rows. The shape of an element may be known only at the first write."""

    dtype: DType
    count: int
    element: Shape | None
    where: Where
    home: Home | None = None
    writes: Home | None = None  # how often each row was written, where that may be once
    reads: Home | None = None  # how often each row was read, where that may be once
    value: Any = None  # what all rows are, where that is known
    is_new: bool = False  # made inside the program, which fills it with zeros
    grows: bool = False  # the list may get longer: rows beyond its end are room for that

    @property
    def shape(self) -> Shape:
        """Of the memory."""
        assert self.element is not None
        return (self.count, *self.element)


Given = Home | Rows  # what an input of a control node is


@dataclass(frozen=True, eq=False)
class Drawing:
    """A random op inside a program: the place in its stream moves on with every turn."""

    node: Node
    blocks: int  # that a turn takes
    home: Home


@dataclass(frozen=True, eq=False)
class Part:
    """A region, and where its buffers from outside lie."""

    lowered: Lowered
    homes: Mapping[Buffer, Home]


class Label:
    """A place in a program."""


@dataclass(frozen=True, eq=False)
class Leap:
    """A jump to a label: always, or where a truth holds (or does not)."""

    target: Label
    decides: Home | None = None
    if_true: bool = False


Item = Part | Label | Leap


@dataclass(frozen=True, eq=False)
class ControlProgram:
    """A control node, lowered: its items in order, and what its outputs are."""

    items: tuple[Item, ...]
    outputs: tuple[Given, ...]  # in the order of the unit's
    counts: tuple[Home, ...]  # the turns of loops with traces, whose room may prove too small
    lists: Mapping[int, Rows]  # the inputs that are lists
    drawings: tuple[Drawing, ...]
