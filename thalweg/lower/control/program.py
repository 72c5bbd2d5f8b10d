"""Native programs of control nodes: lowered regions in loops and conditionals, and their memory.

The inputs and outputs of a region are bound to views: input arrays, arrays that a call allocates,
variables, constants, parts of the program's frame.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from thalweg.graph.dtypes import DType
from thalweg.graph.node import Node
from thalweg.lower.lowered import Launch, Lowered
from thalweg.lower.memory.buffers import Buffer
from thalweg.lower.specialise import Shape


class Storage(Enum):
    """Where memory of a program comes from."""

    INPUT = "input"  # an input array of the call
    VARIABLE = "variable"  # a variable's own memory
    RESULT = "result"  # an array that the call allocates
    CONSTANT = "constant"  # an array of the program
    OWN = "own"  # a part of the frame


@dataclass(eq=False)
class BufferView:
    """Memory that outlives a region: its storage, dtype and shape."""

    where: Storage
    dtype: Any
    shape: Shape
    source: Any = None  # the number of an input or a variable, the array of a constant
    depth: int = 0  # in a list of lists: 0 for the starts of lists, 1 for their rows, and so on

    @property
    def bytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(eq=False)
class ListBuffer:
    """A list as an array of rows. The shape of an element may be known only at the first write.

    A list of lists is the concatenated rows of all of them (`entries`), and the row that each
    starts at. An entry read from it is a view of the same memory from that row on.
    """

    dtype: DType
    count: int
    element: Shape | None
    where: Storage
    view: BufferView | None = None
    writes: BufferView | None = None  # how often each row was written, if only one write is allowed
    reads: BufferView | None = None  # how often each row was read, if only one read is allowed
    value: Any = None  # the value of all rows, if known
    is_new: bool = False  # created by the program and filled with zeros
    grows: bool = False  # rows beyond its end are spare capacity
    entries: ListBuffer | None = None  # of a list of lists: all rows; its own memory is the starts
    offset: BufferView | None = None  # the row that the list starts at, if not the first
    end: BufferView | None = None  # the row after the last, while a loop appends to the list
    whole: ListBuffer | None = None  # the list that a view is of
    each: int | None = None  # the number of rows of each list in it, if known

    @property
    def shape(self) -> Shape:
        """The shape of the array."""
        assert self.element is not None
        return (self.count, *self.element)

    @property
    def root(self) -> ListBuffer:
        """The list that this one is a view of, or itself."""
        return self.whole or self

    def view_from(self, offset: BufferView, end: BufferView | None = None) -> ListBuffer:
        """A view of the whole list from a row on."""
        count = self.root.each or self.root.count
        return replace(self.root, count=count, offset=offset, end=end, whole=self.root)

    @property
    def is_whole(self) -> bool:
        """Whether the list has `count` entries, not capacity for as many."""
        return self.offset is None or self.each is not None


Binding = BufferView | ListBuffer  # the binding of an input or output of a control node

LISTS = -1  # stands for all lists that grow, in a capacity


class Capacity(NamedTuple):
    """The number of iterations that traces have memory for."""

    outer: int  # of an outermost loop
    inner: int  # of a loop whose traces an outer one keeps, over all outer iterations
    grown: tuple[tuple[int, int], ...] = ()  # of loops that needed more, by number

    def of(self, number: int, is_inner: bool = False) -> int:
        """The capacity of a loop; loops are numbered in the order they are lowered in."""
        return max(self.inner if is_inner else self.outer, dict(self.grown).get(number, 0))


class Count(NamedTuple):
    """The counter of a loop with traces, and its capacity."""

    view: BufferView
    capacity: int


class Drawing(NamedTuple):
    """A random op inside a program, whose stream advances with every iteration."""

    node: Node
    blocks: int  # that an iteration draws
    view: BufferView


@dataclass(frozen=True, eq=False)
class Part:
    """A lowered region, and the views that its inputs and outputs are bound to."""

    lowered: Lowered
    views: Mapping[Buffer, BufferView]


@dataclass(frozen=True, eq=False)
class Loop:
    """Runs while `truth` is true, which is tested before each iteration."""

    truth: BufferView
    body: Sequence[Item]


@dataclass(frozen=True, eq=False)
class Conditional:
    """Runs one of two sequences."""

    truth: BufferView
    if_true: Sequence[Item]
    if_false: Sequence[Item]


Item = Part | Loop | Conditional


class ControlInterface(NamedTuple):
    """What a call of a control program begins and ends with."""

    outputs: tuple[Binding, ...]  # in the order of the unit's outputs
    counts: tuple[Count, ...]  # of loops with traces, whose capacity may be exceeded
    lists: Mapping[int, ListBuffer]  # the inputs that are lists
    drawings: tuple[Drawing, ...]
    list_capacity: int  # of lists that grow


@dataclass(frozen=True, eq=False)
class ControlProgram:
    """A lowered control node: its items in order, and its interface."""

    items: tuple[Item, ...]
    interface: ControlInterface
    locks: bool  # whether its updates exclude other uses of their variables

    def walk(self) -> Iterator[Item]:
        """Its items and those inside them, in the order of their code."""
        pending = [*reversed(self.items)]
        while pending:
            item = pending.pop()
            yield item
            if isinstance(item, Loop):
                pending += reversed(item.body)
            elif isinstance(item, Conditional):
                pending += reversed([*item.if_true, *item.if_false])

    @property
    def parts(self) -> list[Part]:
        """Its lowered regions, in order."""
        return [item for item in self.walk() if isinstance(item, Part)]

    @property
    def launches(self) -> list[Launch]:
        """The launches of all parts, in order."""
        return [launch for part in self.parts for launch in part.lowered.launches]

    def views(self) -> list[BufferView]:
        """The views of its parts, and those that decide on loops and conditionals."""
        views: dict[BufferView, None] = {}
        for item in self.walk():
            views |= dict.fromkeys(item.views.values() if isinstance(item, Part) else [item.truth])
        return list(views)

    def written_views(self) -> set[BufferView]:
        """The views that its parts write."""
        return {
            part.views[buffer]
            for part in self.parts
            for launch in part.lowered.launches
            for buffer in launch.written
            if buffer in part.views
        }
