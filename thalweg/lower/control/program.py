"""What a native program of a control node is: parts and jumps, and memory that outlives a part.

A part is a lowered region. Its buffers from outside lie in homes: arrays that come with a call or
are made for it, variables, constants, pieces of the program's own memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from thalweg.graph.dtypes import DType
from thalweg.graph.node import Node
from thalweg.lower.lowering import Lowered
from thalweg.lower.memory.buffers import Buffer
from thalweg.lower.specialise import Shape


class Storage(Enum):
    """What memory of a program is."""

    INPUT = "input"  # an array that comes with the call
    VARIABLE = "variable"  # a variable's own memory
    RESULT = "result"  # a fresh array of the call
    CONSTANT = "constant"  # an array of the program
    OWN = "own"  # a piece of the frame


@dataclass(eq=False)
class BufferView:
    """Memory that lives longer than a region: whose it is, and what lies there."""

    where: Storage
    dtype: Any
    shape: Shape
    source: Any = None  # of an input or a variable its number, of a constant the array
    depth: int = 0  # of a list of lists: 0 where these start, 1 what they hold, and so on

    @property
    def bytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(eq=False)
class ListBuffer:
    """A list as memory: its rows. The shape of an element may be known only at the first write.

    A list of lists is the rows of all of them, one list after the other, and the row each starts
    at. A list read from it is the same memory, seen from there on.
    """

    dtype: DType
    count: int
    element: Shape | None
    where: Storage
    home: BufferView | None = None
    writes: BufferView | None = None  # how often each row was written, where that may be once
    reads: BufferView | None = None  # how often each row was read, where that may be once
    value: Any = None  # what all rows are, where that is known
    is_new: bool = False  # made inside the program, which fills it with zeros
    grows: bool = False  # the list may get longer: rows beyond its end are room for that
    entries: ListBuffer | None = (
        None  # of a list of lists: what all of them hold; its memory is starts
    )
    offset: BufferView | None = None  # the row that the list starts at, where that is not the first
    end: BufferView | None = None  # of a list that a loop is adding to: the row after the last
    whole: ListBuffer | None = None  # of a list seen from a row on: all of it
    each: int | None = None  # how many rows each list in it has, where that is known

    @property
    def shape(self) -> Shape:
        """Of the memory."""
        assert self.element is not None
        return (self.count, *self.element)

    @property
    def root(self) -> ListBuffer:
        """All of the memory that this list is a part of."""
        return self.whole or self

    def seen_from(self, offset: BufferView, end: BufferView | None = None) -> ListBuffer:
        """The list from a row on."""
        count = self.root.each or self.root.count
        return replace(self.root, count=count, offset=offset, end=end, whole=self.root)

    @property
    def is_whole(self) -> bool:
        """Whether the list has as many entries as are counted, not room for so many."""
        return self.offset is None or self.each is not None


Given = BufferView | ListBuffer  # what an input of a control node is


LISTS = -1  # the number under which lists that grow have their room


@dataclass(frozen=True)
class Capacity:
    """How many iterations traces have room for: at first, and of loops that needed more."""

    outer: int  # of a loop that is in no other one
    inner: int  # of all iterations of one whose traces a loop around it keeps
    grown: tuple[tuple[int, int], ...] = ()  # by the number of the loop

    def of(self, number: int, is_inner: bool = False) -> int:
        """The room of a loop, counted in the order they are lowered in."""
        return max(self.inner if is_inner else self.outer, dict(self.grown).get(number, 0))


@dataclass(frozen=True, eq=False)
class Count:
    """The iterations of a loop with traces, of which there is room for so many."""

    home: BufferView
    room: int


@dataclass(frozen=True, eq=False)
class Drawing:
    """A random op inside a program: the place in its stream moves on with every iteration."""

    node: Node
    blocks: int  # that an iteration takes
    home: BufferView


@dataclass(frozen=True, eq=False)
class Part:
    """A region, and where its buffers from outside lie."""

    lowered: Lowered
    homes: Mapping[Buffer, BufferView]


class Label:
    """A place in a program."""


@dataclass(frozen=True, eq=False)
class Branch:
    """A jump to a label: always, or where a truth holds (or does not)."""

    target: Label
    decides: BufferView | None = None
    if_true: bool = False


Item = Part | Label | Branch


@dataclass(frozen=True, eq=False)
class ControlProgram:
    """A control node, lowered: its items in order, and what its outputs are."""

    items: tuple[Item, ...]
    outputs: tuple[Given, ...]  # in the order of the unit's
    counts: tuple[Count, ...]  # of loops with traces, whose room may prove too small
    lists: Mapping[int, ListBuffer]  # the inputs that are lists
    drawings: tuple[Drawing, ...]
