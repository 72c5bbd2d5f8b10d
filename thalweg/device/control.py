"""What the native programs of control nodes have in common on all devices.

A `NativeControl` has a program for each set of shapes that comes in. A loop that keeps values of
every iteration has capacity for so many; where that proves too little, it is run again with four
times as much, as are later calls. A `ControlStep` is one of the programs, loaded.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from thalweg.control.lists import ListValue
from thalweg.device.control_inputs import FIRST_CAPACITY, capacity_for, given, levels, value_key
from thalweg.ir.target import Target
from thalweg.lower.control.builder import Lower, lower_control
from thalweg.lower.control.program import (
    LISTS,
    Branch,
    BufferView,
    Capacity,
    ControlProgram,
    Drawing,
    Given,
    ListBuffer,
    Part,
    Storage,
)
from thalweg.lower.dynamic_shapes import Varying
from thalweg.lower.specialise import ControlRegion, NotCompiled
from thalweg.ops.core.buffer import Buffer
from thalweg.ops.core.context import VariableCell
from thalweg.ops.random.philox import Philox
from thalweg.ops.random.random import Random
from thalweg.ops.state.variable_uses import USES, Use
from thalweg.platform.caches import Bounded
from thalweg.platform.collector import gc_paused
from thalweg.platform.depth import deep_calls
from thalweg.platform.forks import freed_after_fork

Array = NDArray[Any]
Results = Mapping[BufferView, Any]  # arrays, or buffers of the device

_MAX_PROGRAMS = 64  # sets of shapes that a loop keeps programs for


@dataclass(frozen=True)
class MoreCapacity:
    """The traces of loops were full before these ended."""

    full: dict[int, int]  # the capacity that was not enough, by the number of the loop


class NativeControl:
    """A loop or a conditional of a step: native programs by the shapes that come in. `load` gives
    a program its code: (this, the program, the capacity of lists that grow)."""

    def __init__(
        self,
        unit: ControlRegion,
        target: Target,
        lower: Lower,
        load: Callable[[NativeControl, ControlProgram, int], ControlStep[Any]],
    ) -> None:
        self.unit, self._target, self._lower, self._load = unit, target, lower, load
        self._programs = Bounded[Any, ControlStep[Any] | None](
            "programs of a loop or conditional", _MAX_PROGRAMS
        )
        self.varying = Varying()
        self._capacity = Capacity(FIRST_CAPACITY, FIRST_CAPACITY)
        self.reason = ""  # why it is not native, where it is not
        self._lock = freed_after_fork(threading.Lock())

    def __call__(self, context: Any, values: Sequence[Any]) -> list[Any] | None:
        """The unit's outputs, or None where the executor must compute them."""
        while True:
            step = self._step(values)
            if step is None:
                return None
            results = step.run(context, values)
            if not isinstance(results, MoreCapacity):
                return results
            with self._lock:
                grown = dict(self._capacity.grown)
                for number, lacking in results.full.items():
                    grown[number] = max(grown.get(number, 0), 4 * lacking)
                self._capacity = replace(self._capacity, grown=tuple(sorted(grown.items())))

    def _step(self, values: Sequence[Any]) -> ControlStep[Any] | None:
        capacity = capacity_for(values, self._capacity)
        key = (capacity, *[value_key(value) for value in values])
        if key not in self._programs:
            with self._lock:
                if key not in self._programs:
                    self._programs[key] = self._lowered(values, capacity)
        return self._programs[key]

    def _lowered(self, values: Sequence[Any], capacity: Capacity) -> ControlStep[Any] | None:
        found = [given(place, value) for place, value in enumerate(values)]
        inputs = [one for one in found if one is not None]
        if len(inputs) < len(found):
            self.reason = "a list holds elements of several shapes, or empty ones, or such lists"
            return None
        try:
            with gc_paused(), deep_calls():
                program = lower_control(self.unit, inputs, capacity, self._target, self._lower)
                return self._load(self, program, capacity.of(LISTS))
        except NotCompiled as failure:
            self.reason = str(failure)
            return None


class Invocation(Protocol):
    """What one call in flight needs."""

    use: Use[VariableCell]


InvocationT = TypeVar("InvocationT", bound=Invocation)


class ControlStep(ABC, Generic[InvocationT]):
    """A control node, compiled for one set of shapes: the border between its memory and values."""

    variables: Sequence[BufferView]
    changed: Sequence[int]  # the places of variables that it writes

    def __init__(self, program: ControlProgram, list_capacity: int) -> None:
        self.program, self._list_capacity = program, list_capacity

    # Calls

    def run_with_variables(
        self, invocation: InvocationT, values: Sequence[Any], context: Any
    ) -> Any:
        """Run an invocation as a use of the variables among its inputs."""
        invocation.use.cells = [values[view.source] for view in self.variables]
        try:
            USES.begin(invocation.use, context.cancellation)
            return self.run_bound(invocation, values, context) if self.borrow(invocation) else None
        finally:
            buffers = invocation.use.buffers
            for written in [buffers[number] for number in self.changed if buffers]:
                if written is not None:
                    written.touch()
            USES.end(invocation.use)

    def borrow(self, invocation: InvocationT) -> bool:
        """Bind the buffers of the variables; whether they are as expected."""
        use = invocation.use
        with USES.mutex:
            for number in self.changed:
                if use.cells[number].is_initialized:
                    use.cells[number].copy_on_write()
            buffers = use.buffers = [cell.buffer for cell in use.cells]
            pairs = zip(self.variables, buffers, strict=True)
            return all(self.bind_variable(invocation, view, buffer) for view, buffer in pairs)

    @abstractmethod
    def bind_variable(
        self, invocation: InvocationT, view: BufferView, buffer: Buffer | None
    ) -> bool:
        """Bind the buffer of a variable; whether it is of this device and has the shape."""

    @abstractmethod
    def run_bound(self, invocation: InvocationT, values: Sequence[Any], context: Any) -> Any:
        """The same as `run`, of an invocation whose inputs and variables are bound."""

    @abstractmethod
    def run(self, context: Any, values: Sequence[Any]) -> Any:
        """The unit's outputs; None where the executor must decide; or what capacity it lacks."""

    def all_views(self) -> list[BufferView]:
        """The memory that outlives regions."""
        found: dict[BufferView, None] = {}
        for item in self.program.items:
            if isinstance(item, Part):
                found.update(dict.fromkeys(item.views.values()))
            elif isinstance(item, Branch) and item.decides is not None:
                found[item.decides] = None
        return list(found)

    def written_views(self) -> set[BufferView]:
        """The memory among it that regions write."""
        return {
            part.views[buffer]
            for part in self.program.items
            if isinstance(part, Part)
            for launch in part.lowered.launches
            for buffer in launch.written
            if buffer in part.views
        }

    def list_starts(self) -> set[BufferView]:
        """The memory that says where lists in lists start."""
        found: set[BufferView] = set()
        for one in self.program.outputs:
            while isinstance(one, ListBuffer) and one.entries is not None:
                found |= set() if one.view is None else {one.view}
                one = one.entries
        return found

    def ended(self, context: Any, values: Sequence[Any], results: Results) -> list[Any]:
        """What a program that has ended well gives."""
        self._advance_streams(results, context)
        return self._outputs(values, results)

    def full(self, results: Results) -> dict[int, int]:
        """The loops whose traces were full when the program stopped, or lists that grow."""
        grown = [rows.writes for rows in self.program.lists.values() if rows.grows]
        last = [results[view][-1] > 0 for view in grown if view is not None and view in results]
        found = {LISTS: self._list_capacity} if any(last) else {}
        for number, count in enumerate(self.program.counts):
            if results[count.view] >= count.capacity:
                found[number] = count.capacity
        return found

    def used_once(self, results: Results) -> bool:
        """Whether no row of a list was written or read twice that may not be."""
        for rows in self.program.lists.values():
            counts = [
                results[h] for h in (rows.writes, rows.reads) if h is not None and h in results
            ]
            if any((count > 1).any() for count in counts):
                return False
        return True

    def counters(self) -> set[BufferView]:
        """The memory that the host looks at when a program has ended."""
        lists = self.program.lists.values()
        found = {view for rows in lists for view in (rows.writes, rows.reads) if view is not None}
        found |= {count.view for count in self.program.counts}
        return found | {one.view for one in self.program.drawings} | self.list_starts()

    def starts(self, values: Sequence[Any], context: Any) -> dict[BufferView, Callable[[], Any]]:
        """What memory of lists and random streams begins with."""
        found: dict[BufferView, Callable[[], Any]] = {}
        for rows, value in self._lists(values):
            if rows.where is Storage.RESULT and rows.view is not None:
                found[rows.view] = partial(self.begun_list, value, rows.view)
            if rows.writes is not None:
                found[rows.writes] = partial(_first_counts, value, rows.count)
            if rows.reads is not None:
                found[rows.reads] = partial(np.zeros, rows.count, np.int32)
        for one in self.program.drawings:
            found[one.view] = _next_in_stream(one, context).place
        return found

    def begun_list(self, value: ListValue, view: BufferView) -> Any:
        """The rows of a list that is about to be changed, in memory of their own."""
        rows = value.as_stacked() if value.written.any() else None
        if rows is not None and rows.shape == view.shape:
            return np.array(rows, view.dtype)
        begun = np.zeros(view.shape, view.dtype)
        if rows is not None:
            begun[: len(rows)] = rows
        return begun

    def _lists(self, values: Sequence[Any]) -> Iterator[tuple[ListBuffer, ListValue]]:
        """The lists that come in, and what lists in them hold."""
        for place, rows in self.program.lists.items():
            for value in levels(values[place]):
                yield rows, value
                rows = rows.entries or rows

    def _advance_streams(self, results: Results, context: Any) -> None:
        """Advance the random streams by what the iterations have drawn."""
        for one in self.program.drawings:
            start = _next_in_stream(one, context)
            drawn = Philox.at(results[one.view]).counter - start.counter
            cast("Random", one.node.op).reserve(context.at(one.node), drawn)

    def _outputs(self, values: Sequence[Any], results: Results) -> list[Any]:
        lists: dict[ListBuffer, ListValue] = {}
        for rows, value in self._lists(values):
            lists[rows] = value
            written, reads = (
                None if view is None else results.get(view) for view in (rows.writes, rows.reads)
            )
            if rows.where is Storage.RESULT and rows.view is not None and rows.view in results:
                size = _size(rows, value, written)
                marks = None if written is None else written[:size] > 0
                value.take_over(_first_rows(results[rows.view], size), marks)
            if reads is not None:
                value.forget(np.flatnonzero(reads))
        return [self._output(one, results, lists) for one in self.program.outputs]

    def _output(self, one: Given, results: Results, lists: Mapping[ListBuffer, ListValue]) -> Any:
        if isinstance(one, BufferView):
            return results[one]
        if one in lists:
            return lists[one]
        if one.entries is not None and one.view is not None:
            flat = self._output(one.entries, results, lists)
            return ListValue.of_nested(results[one.view], flat, one.entries.each)
        if one.view is None:
            value = np.asarray(one.value, one.dtype.as_numpy_dtype)
            rows = np.broadcast_to(value, (one.count, *value.shape))
        else:
            rows = results[one.view]
        return ListValue.of_stacked(rows, dtype=one.dtype)


def _first_rows(rows: Any, count: int) -> Any:
    return rows.first_rows(count) if isinstance(rows, Buffer) else rows[:count]


def _next_in_stream(drawing: Drawing, context: Any) -> Philox:
    """The place in the stream of a random op, none of which is taken."""
    return cast("Random", drawing.node.op).reserve(context.at(drawing.node), 0)


def _first_counts(value: ListValue, count: int) -> Array:
    """How often the rows of a list were written so far."""
    counts = np.zeros(count, np.int32)
    counts[: value.size()] = value.written
    return counts


def _size(rows: ListBuffer, before: ListValue, written: Array | None) -> int:
    """How long a list is after a program that may have made it longer."""
    if not rows.grows or written is None:
        return rows.count
    return max(before.size(), 1 + int(np.max(np.flatnonzero(written), initial=-1)))
