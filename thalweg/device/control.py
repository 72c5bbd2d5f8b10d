"""Native programs of control nodes: their base on all devices.

A `ControlStep` converts between values and the memory that a program runs on. Traces of a loop and
lists that grow have a capacity; a call that exceeds it has no results and must be run again by a
program with more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from thalweg.control.lists import ListValue
from thalweg.device.control_inputs import list_levels
from thalweg.device.program import InvocationT, Listing, NativeProgram
from thalweg.device.program_template import ABSOLUTE, ARENA, Layout, Reference, Words
from thalweg.lower.control.program import (
    LISTS,
    Binding,
    BufferView,
    ControlInterface,
    ControlProgram,
    Drawing,
    ListBuffer,
    Part,
    Storage,
)
from thalweg.lower.memory.buffers import Buffer
from thalweg.ops.core.buffer import Buffer as OwnedBuffer
from thalweg.ops.random.philox import Philox
from thalweg.ops.random.random import Random
from thalweg.platform.arrays import Array

Results = Mapping[BufferView, Any]  # arrays, or buffers of the device


class CapacityExceeded(Exception):
    """Loops needed more iterations than their traces have capacity for."""

    def __init__(self, capacities: Mapping[int, int]) -> None:
        super().__init__(capacities)
        self.capacities = capacities  # those that were too small, by the number of the loop


class ControlStep(NativeProgram[InvocationT]):
    """A control node, compiled for one set of shapes. Converts between values and its memory."""

    template = None  # unless it can be stored

    def __init__(
        self,
        interface: ControlInterface,
        views: Iterable[BufferView],
        references: Sequence[Reference],
    ) -> None:
        """`views`: the memory that its parts share; `references`: the variables among it."""
        super().__init__(references)
        self.registers_use = True  # its iterations may read a variable again and again
        self.interface = interface
        outputs = [view for view in interface.outputs if isinstance(view, BufferView)]
        self.views = list(dict.fromkeys([*views, *outputs]))
        self.inputs = [view for view in self.views if view.where is Storage.INPUT]
        self.variables = [view for view in self.views if view.where is Storage.VARIABLE]
        self.results = [view for view in self.views if view.where is Storage.RESULT]
        # Iteration counters start at zero, and so do the starts of lists that are never written.
        self.zeroed = {view for view in self.results if not view.shape} | self.list_starts()

    def run(self, context: Any, values: Sequence[Any]) -> list[Any] | None:
        """The unit's outputs; None if the executor must run it. Raises `CapacityExceeded`."""
        return self(context, values, [values[view.source] for view in self.variables])

    # Views

    def list_starts(self) -> set[BufferView]:
        """The views that hold the starts of lists in output lists."""
        views: set[BufferView] = set()
        for output in self.interface.outputs:
            while isinstance(output, ListBuffer) and output.entries is not None:
                views |= set() if output.view is None else {output.view}
                output = output.entries
        return views

    def counters(self) -> set[BufferView]:
        """The views that the host reads when a program has ended."""
        views = {*self._access_counts(), *(count.view for count in self.interface.counts)}
        return views | {drawing.view for drawing in self.interface.drawings} | self.list_starts()

    def _access_counts(self) -> list[BufferView]:
        """The views that count the writes and reads of rows of lists."""
        lists = self.interface.lists.values()
        return [view for rows in lists for view in (rows.writes, rows.reads) if view is not None]

    # The start of a call

    def initial_values(
        self, values: Sequence[Any], context: Any
    ) -> dict[BufferView, Callable[[], Any]]:
        """Functions that make the initial contents of lists, counters and random streams."""
        initial: dict[BufferView, Callable[[], Any]] = {}
        for rows, value in self._lists(values):
            if rows.where is Storage.RESULT and rows.view is not None:
                initial[rows.view] = partial(self.initial_rows, value, rows.view)
            if rows.writes is not None:
                initial[rows.writes] = partial(_write_counts, value, rows.count)
            if rows.reads is not None:
                initial[rows.reads] = partial(np.zeros, rows.count, np.int32)
        for drawing in self.interface.drawings:
            initial[drawing.view] = _stream_position(drawing, context).place
        return initial

    def initial_rows(self, value: ListValue, view: BufferView) -> Any:
        """A copy of the rows of a list that the program updates in place, padded with zeros."""
        rows = value.as_stacked() if value.written.any() else None
        if rows is not None and rows.shape == view.shape:
            return np.array(rows, view.dtype, order="C")
        padded = np.zeros(view.shape, view.dtype)
        if rows is not None:
            padded[: len(rows)] = rows
        return padded

    def _lists(self, values: Sequence[Any]) -> Iterator[tuple[ListBuffer, ListValue]]:
        """The input lists, and the levels of lists in them."""
        for number, rows in self.interface.lists.items():
            for value in list_levels(values[number]):
                yield rows, value
                rows = rows.entries or rows

    # The end of a call

    def check_capacities(self, results: Results) -> None:
        """Raise `CapacityExceeded` if a stopped program has used up that of traces or lists."""
        growing = [rows.writes for rows in self.interface.lists.values() if rows.grows]
        is_full = [results[v][-1] > 0 for v in growing if v is not None and v in results]
        exceeded = {LISTS: self.interface.list_capacity} if any(is_full) else {}
        for number, count in enumerate(self.interface.counts):
            if results[count.view] >= count.capacity:
                exceeded[number] = count.capacity
        if exceeded:
            raise CapacityExceeded(exceeded)

    def accessed_once(self, results: Results) -> bool:
        """Whether no row was written or read twice, of lists that allow one access only."""
        return all((results[view] <= 1).all() for view in self._access_counts() if view in results)

    def finish(self, context: Any, values: Sequence[Any], results: Results) -> list[Any]:
        """The outputs of a program that has succeeded; advances random streams by what the
        iterations have drawn, and updates lists."""
        for drawing in self.interface.drawings:
            start = _stream_position(drawing, context)
            drawn = Philox.at(results[drawing.view]).counter - start.counter
            cast("Random", drawing.node.op).reserve(context.at(drawing.node), drawn)
        lists: dict[ListBuffer, ListValue] = {}
        for rows, value in self._lists(values):
            lists[rows] = value
            written, reads = (
                None if view is None else results.get(view) for view in (rows.writes, rows.reads)
            )
            if rows.where is Storage.RESULT and rows.view is not None and rows.view in results:
                size = _list_size(rows, value, written)
                marks = None if written is None else written[:size] > 0
                value.take_over(_first_rows(results[rows.view], size), marks)
            if reads is not None:
                value.forget(np.flatnonzero(reads))
        return [self._output(output, results, lists) for output in self.interface.outputs]

    def _output(
        self, output: Binding, results: Results, lists: Mapping[ListBuffer, ListValue]
    ) -> Any:
        if isinstance(output, BufferView):
            return results[output]
        if output in lists:
            return lists[output]
        if output.entries is not None and output.view is not None:
            flat = self._output(output.entries, results, lists)
            return ListValue.of_nested(results[output.view], flat, output.entries.each)
        if output.view is None:
            value = np.asarray(output.value, output.dtype.as_numpy_dtype)
            rows = np.broadcast_to(value, (output.count, *value.shape))
        else:
            rows = results[output.view]
        return ListValue(output.dtype).take_over(rows)


class ViewLayout(Layout):
    """The argument words of the calls of all parts. A buffer that is bound to a view is at its
    offset in the frame, or is bound by each call."""

    def __init__(
        self, parts: Mapping[Part, Listing[Any]], offsets: Mapping[BufferView, int]
    ) -> None:
        """`offsets`: those of views in the frame, from the start of the temporaries on."""
        super().__init__()
        self._offsets = offsets
        self.views: dict[BufferView, Words] = {}  # with the words that point to them
        for part, listing in parts.items():
            self.arena, self._views = listing.arena, part.views
            for call in listing.calls:
                self.add(call.launch, call.scratch, call.specialized.words)

    def address(self, buffer: Buffer, shift: int) -> tuple[int, int]:
        view = self._views.get(buffer)
        if view is None:
            return super().address(buffer, shift)
        self.views[view] = (*self.views.get(view, ()), (len(self.words), shift))
        base, start = self.address_of(view)
        return base, start + shift

    def address_of(self, view: BufferView) -> tuple[int, int]:
        """The base of a view, and its offset from the base."""
        if view.where is Storage.CONSTANT:
            return self.constant(view), 0
        return (ARENA, self._offsets[view]) if view in self._offsets else (ABSOLUTE, 0)


def references_of(program: ControlProgram, words: Mapping[BufferView, Words]) -> list[Reference]:
    """The variables among the views that words point to."""
    written = program.written_views()
    variables = [view for view in words if view.where is Storage.VARIABLE]
    return [Reference(words[v], v.shape, v in written, False, program.locks) for v in variables]


def input_rows(value: ListValue, view: BufferView, is_host: bool) -> Any:
    """The rows of a list, or the starts of its lists, that a view is bound to; None if they do not
    fit. Without `is_host`, rows in the memory of a device stay there."""
    value = list_levels(value)[view.depth]
    if not value.accumulates and not value.written.all():
        return None
    nested = value.as_nested()
    rows: Any = None if is_host else value.on_device
    if nested is not None:
        rows = nested.starts
    elif rows is None:
        rows = value.as_stacked()
    return rows if rows is not None and rows.shape == view.shape else None


def _first_rows(rows: Any, count: int) -> Any:
    return rows.first_rows(count) if isinstance(rows, OwnedBuffer) else rows[:count]


def _stream_position(drawing: Drawing, context: Any) -> Philox:
    """The position in the stream of a random op, which is not advanced."""
    return cast("Random", drawing.node.op).reserve(context.at(drawing.node), 0)


def _write_counts(value: ListValue, count: int) -> Array:
    """The number of writes so far of each of `count` rows of a list."""
    counts = np.zeros(count, np.int32)
    counts[: value.size()] = value.written
    return counts


def _list_size(rows: ListBuffer, before: ListValue, written: Array | None) -> int:
    """The size of a list after a program that may have grown it."""
    if not rows.grows or written is None:
        return rows.count
    return max(before.size(), 1 + int(np.max(np.flatnonzero(written), initial=-1)))


AnyControlStep = ControlStep[Any]
