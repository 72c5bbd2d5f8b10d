"""Control nodes as native programs: parts and jumps in one step table, interpreted natively.

A call gives the loop variables fresh memory, which the program updates in place and which then is
the result. A loop that keeps values of every iteration has capacity for so many; where that proves
too little, it is run again with four times as much, as are later calls.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from thalweg import errors
from thalweg.codegen.machine import CpuTarget
from thalweg.control.lists import ListValue
from thalweg.device.cpu.control_inputs import FIRST_CAPACITY, capacity_for, given, levels, value_key
from thalweg.device.cpu.control_parts import placed_parts, threads_for
from thalweg.device.cpu.invocation import address_of
from thalweg.device.cpu.listing import Listing
from thalweg.device.cpu.pool import Entry, Jump, Pool, StepTable
from thalweg.graph.analysis.node_effects import locks_updates
from thalweg.lower.control.builder import Lower, lower_control
from thalweg.lower.control.program import (
    LISTS,
    Branch,
    BufferView,
    Capacity,
    ControlProgram,
    Drawing,
    Given,
    Label,
    ListBuffer,
    Part,
    Storage,
)
from thalweg.lower.dynamic_shapes import Varying
from thalweg.lower.memory.arena import rounded
from thalweg.lower.memory.buffers import Buffer, BufferKind
from thalweg.lower.specialise import ControlRegion, NotCompiled
from thalweg.ops.core.buffer import HostBuffer
from thalweg.ops.core.context import VariableCell
from thalweg.ops.random.philox import Philox
from thalweg.ops.random.random import Random
from thalweg.ops.state.variable_uses import USES, Use
from thalweg.platform.caches import Bounded
from thalweg.platform.collector import gc_paused
from thalweg.platform.depth import deep_calls
from thalweg.platform.forks import freed_after_fork

Array = NDArray[Any]

_MAX_PROGRAMS = 64  # sets of shapes that a loop keeps programs for


class NativeControl:
    """A loop or a conditional of a step: native programs by the shapes that come in."""

    def __init__(
        self, unit: ControlRegion, pool: Pool, target: CpuTarget, threads: int, lower: Lower
    ) -> None:
        self.unit, self._lower = unit, lower
        self.pool, self.target, self.threads = pool, target, threads
        self._programs = Bounded[Any, _ControlStep | None](
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
            if not isinstance(results, _MoreCapacity):
                return results
            with self._lock:
                grown = dict(self._capacity.grown)
                for number, lacking in results.full.items():
                    grown[number] = max(grown.get(number, 0), 4 * lacking)
                self._capacity = replace(self._capacity, grown=tuple(sorted(grown.items())))

    def _step(self, values: Sequence[Any]) -> _ControlStep | None:
        capacity = capacity_for(values, self._capacity)
        key = (capacity, *[value_key(value) for value in values])
        if key not in self._programs:
            with self._lock:
                if key not in self._programs:
                    self._programs[key] = self._lowered(values, capacity)
        return self._programs[key]

    def _lowered(self, values: Sequence[Any], capacity: Capacity) -> _ControlStep | None:
        found = [given(place, value) for place, value in enumerate(values)]
        inputs = [one for one in found if one is not None]
        if len(inputs) < len(found):
            self.reason = "a list holds elements of several shapes, or empty ones, or such lists"
            return None
        try:
            with gc_paused(), deep_calls():
                program = lower_control(self.unit, inputs, capacity, self.target, self._lower)
                return _ControlStep(self, program, capacity.of(LISTS))
        except NotCompiled as failure:
            self.reason = str(failure)
            return None


@dataclass(frozen=True)
class _MoreCapacity:
    """The traces of loops were full before these ended."""

    full: dict[int, int]  # the capacity that was not enough, by the number of the loop


class _ControlStep:
    """A control node, compiled for one set of shapes."""

    def __init__(self, control: NativeControl, program: ControlProgram, list_capacity: int) -> None:
        target, self._list_capacity = control.target, list_capacity
        self.unit, self.program, self.pool = control.unit, program, control.pool
        self.alignment = target.alignment
        self.threads = threads_for(program, control.threads, target)
        self.parts = placed_parts(program, control.varying, target, self.threads)
        calls = [call for placed in self.parts.values() for call in placed.calls]
        self.word_count = sum(call.word_count for call in calls)
        self.temporary = max((p.arena.size for p in self.parts.values()), default=0)
        self.offsets, self.size = self._arranged()
        self.constants = {
            view: np.require(view.source, requirements=["C", "A"])
            for view in self._all_views()
            if view.where is Storage.CONSTANT
        }
        self._idle: deque[_Invocation] = deque()
        self._find_border()

    def _all_views(self) -> list[BufferView]:
        found: dict[BufferView, None] = {}
        for item in self.program.items:
            if isinstance(item, Part):
                found.update(dict.fromkeys(item.views.values()))
            elif isinstance(item, Branch) and item.decides is not None:
                found[item.decides] = None
        return list(found)

    def _arranged(self) -> tuple[dict[BufferView, int], int]:
        """The program's own memory, after what the parts share for their temporaries."""
        at = rounded(self.temporary, self.alignment)
        offsets: dict[BufferView, int] = {}
        for view in self._all_views():
            if view.where is Storage.OWN:
                offsets[view] = at
                at += rounded(view.bytes, self.alignment)
        return offsets, at

    def _find_border(self) -> None:
        """Which words hold the addresses of arrays from outside, and which variables change."""
        self.words: dict[BufferView, list[tuple[int, int]]] = {}
        self.written: set[BufferView] = set()
        for part, placed in self.parts.items():
            for call in placed.calls:
                written = call.launch.written
                for word, buffer, shift in call.addresses():
                    view = part.views.get(buffer)
                    if view is not None:
                        self.words.setdefault(view, []).append((word, shift))
                        if buffer in written:
                            self.written.add(view)
        self.inputs = [view for view in self.words if view.where is Storage.INPUT]
        self.variables = [view for view in self.words if view.where is Storage.VARIABLE]
        self.begun = {view for view in self.words if not view.shape} | self._list_starts()
        self.checks = any(part.lowered.checked for part in self.parts)
        self.changed = [number for number, h in enumerate(self.variables) if h in self.written]
        self.exclusive = self.changed if locks_updates(self.unit.node) else []

    def _list_starts(self) -> set[BufferView]:
        """The memory that says where lists in lists start."""
        found: set[BufferView] = set()
        for one in self.program.outputs:
            while isinstance(one, ListBuffer) and one.entries is not None:
                found |= set() if one.view is None else {one.view}
                one = one.entries
        return found

    # Calls

    def run(self, context: Any, values: Sequence[Any]) -> Any:
        """The unit's outputs; None where the executor must decide; or what capacity it lacks."""
        try:
            invocation = self._idle.pop()
        except IndexError:
            invocation = _Invocation(self)
        held, found = self._bind_inputs(invocation, values), None
        if held is not None:
            run = self._run_with_variables if self.variables else self._run
            found = run(invocation, values, context)
        # A invocation that is left half way, stopped by a signal or a check, is not used again.
        self._idle.append(invocation)
        return found

    def _run_with_variables(
        self, invocation: _Invocation, values: Sequence[Any], context: Any
    ) -> Any:
        invocation.use.cells = [values[view.source] for view in self.variables]
        try:
            USES.begin(invocation.use, context.cancellation)
            return self._run(invocation, values, context) if self._borrow(invocation) else None
        finally:
            USES.end(invocation.use)

    def _run(self, invocation: _Invocation, values: Sequence[Any], context: Any) -> Any:
        results = self._results(invocation, values, context)
        before = self._saved(values)
        invocation.fault[0] = 0
        fault = self.pool.run(invocation.program)
        pause = partial(self._pause, invocation, context)
        fault = self.pool.resume(invocation.program, fault, pause)
        context.cancellation.check()
        if not fault and self._used_once(results):
            self._advance_streams(results, context)
            return self._outputs(values, results)
        for cell, value in before:
            cell.borrow().fill(value)
        full = self._full(results)
        return _MoreCapacity(full) if full else None

    def _pause(self, invocation: _Invocation, context: Any) -> None:
        """Between two iterations: stop if that is wanted, let others at the variables."""
        context.cancellation.check()
        if self.checks or not self.variables or not USES.is_contended:
            return  # what may have to be undone is seen by nobody
        use = invocation.use
        cells = use.cells
        USES.end(use)
        use.cells = cells
        USES.begin(use, context.cancellation)
        if not self._borrow(invocation):
            raise errors.AbortedError(None, None, "A variable of a running loop lost its value.")

    def _full(self, results: Mapping[BufferView, Array]) -> dict[int, int]:
        """The loops whose traces were full when the program stopped, or lists that grow."""
        grown = [rows.writes for rows in self.program.lists.values() if rows.grows]
        last = [results[view][-1] > 0 for view in grown if view is not None and view in results]
        found = {LISTS: self._list_capacity} if any(last) else {}
        for number, count in enumerate(self.program.counts):
            if results[count.view] >= count.capacity:
                found[number] = count.capacity
        return found

    def _saved(self, values: Sequence[Any]) -> list[tuple[VariableCell, Array]]:
        """The variables that a loop that may fail changes, as they were before."""
        if not self.checks:
            return []
        cells = [values[view.source] for view in self.variables if view in self.written]
        return [(cell, cell.borrow().snapshot()) for cell in cells]

    def _bind_inputs(self, invocation: _Invocation, values: Sequence[Any]) -> list[Any] | None:
        """Bind what comes in; the arrays that must live until the step ends."""
        held: list[Any] = []
        for view in self.inputs:
            value: Any = values[view.source]
            if isinstance(value, ListValue):
                value = levels(value)[view.depth]
                if not value.accumulates and not value.written.all():
                    return None
                nested = value.as_nested()
                value = value.as_stacked() if nested is None else nested.starts
                if value is None or value.shape != view.shape:
                    return None
            array = np.require(value, view.dtype, ["C", "A"])
            held.append(array)
            self._bind(invocation, view, array)
        return held

    def _borrow(self, invocation: _Invocation) -> bool:
        """Bind the buffers of the variables; whether they are as expected."""
        use = invocation.use
        with USES.mutex:
            for number in self.changed:
                if use.cells[number].is_initialized:
                    use.cells[number].copy_on_write()
            buffers = use.buffers = [cell.buffer for cell in use.cells]
            for view, buffer in zip(self.variables, buffers, strict=True):
                if not isinstance(buffer, HostBuffer) or buffer.shape != view.shape:
                    return False
                self._bind(invocation, view, buffer.array)
        return True

    def _bind(self, invocation: _Invocation, view: BufferView, array: Array) -> None:
        address = address_of(array)
        for word, shift in self.words.get(view, ()):
            invocation.words[word] = address + shift

    def _results(
        self, invocation: _Invocation, values: Sequence[Any], context: Any
    ) -> dict[BufferView, Array]:
        """Fresh memory for the loop variables, lists and traces."""
        found: dict[BufferView, Array] = {}
        starts = self._starts(values)
        for one in self.program.drawings:
            starts[one.view] = _next_in_stream(one, context).place
        for view in (*self.words, *[o for o in self.program.outputs if isinstance(o, BufferView)]):
            if view.where is not Storage.RESULT or view in found:
                continue
            start = starts.get(view)
            # Iterations are counted from zero, and lists that never were start at the first row.
            make = np.zeros if view in self.begun else np.empty
            found[view] = make(view.shape, view.dtype) if start is None else start()
            self._bind(invocation, view, found[view])
        return found

    def _starts(self, values: Sequence[Any]) -> dict[BufferView, Callable[[], Array]]:
        """What memory of lists begins with."""
        found: dict[BufferView, Callable[[], Array]] = {}
        for rows, value in self._lists(values):
            if rows.where is Storage.RESULT and rows.view is not None:
                found[rows.view] = partial(_begun, value, rows.view)
            if rows.writes is not None:
                found[rows.writes] = partial(_first_counts, value, rows.count)
            if rows.reads is not None:
                found[rows.reads] = partial(np.zeros, rows.count, np.int32)
        return found

    def _lists(self, values: Sequence[Any]) -> Iterator[tuple[ListBuffer, ListValue]]:
        """The lists that come in, and what lists in them hold."""
        for place, rows in self.program.lists.items():
            for value in levels(values[place]):
                yield rows, value
                rows = rows.entries or rows

    def _advance_streams(self, results: Mapping[BufferView, Array], context: Any) -> None:
        """Advance the random streams by what the iterations have drawn."""
        for one in self.program.drawings:
            start = _next_in_stream(one, context)
            drawn = Philox.at(results[one.view]).counter - start.counter
            cast("Random", one.node.op).reserve(context.at(one.node), drawn)

    def _used_once(self, results: Mapping[BufferView, Array]) -> bool:
        """Whether no row of a list was written or read twice that may not be."""
        for rows in self.program.lists.values():
            counts = [
                results[h] for h in (rows.writes, rows.reads) if h is not None and h in results
            ]
            if any((count > 1).any() for count in counts):
                return False
        return True

    def _outputs(self, values: Sequence[Any], results: Mapping[BufferView, Array]) -> list[Any]:
        lists: dict[ListBuffer, ListValue] = {}
        for rows, value in self._lists(values):
            lists[rows] = value
            written, reads = (
                None if view is None else results.get(view) for view in (rows.writes, rows.reads)
            )
            if rows.where is Storage.RESULT and rows.view is not None and rows.view in results:
                size = _size(rows, value, written)
                marks = None if written is None else written[:size] > 0
                value.take_over(results[rows.view][:size], marks)
            if reads is not None:
                value.forget(np.flatnonzero(reads))
        return [self._output(one, results, lists) for one in self.program.outputs]

    def _output(
        self, one: Given, results: Mapping[BufferView, Array], lists: Mapping[ListBuffer, ListValue]
    ) -> Any:
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


def _next_in_stream(drawing: Drawing, context: Any) -> Philox:
    """The place in the stream of a random op, none of which is taken."""
    return cast("Random", drawing.node.op).reserve(context.at(drawing.node), 0)


def _begun(value: ListValue, view: BufferView) -> Array:
    """The rows of a list that is about to be changed, in memory of their own."""
    rows = value.as_stacked() if value.written.any() else None
    if rows is not None and rows.shape == view.shape:
        return np.array(rows, view.dtype)
    begun = np.zeros(view.shape, view.dtype)
    if rows is not None:
        begun[: len(rows)] = rows
    return begun


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


class _Invocation:
    """A program with memory of its own: what one call in flight needs."""

    def __init__(self, step: _ControlStep) -> None:
        memory = np.zeros(step.size + 2 * step.alignment, np.uint8)
        self._base = rounded(memory.ctypes.data, step.alignment)
        self.fault = np.zeros(8, np.int64)
        words = np.zeros(max(step.word_count, 1), np.int64)
        self.words: Any = memoryview(cast("Any", words))
        self._kept = (memory, step, words)
        self._step = step
        places = _places(step)
        entries: list[Entry | Jump] = []
        for item in step.program.items:
            if isinstance(item, Part):
                entries += self._calls(item, step.parts[item], words)
            elif isinstance(item, Branch):
                decides = 0 if item.decides is None else self._address_of(item.decides)
                entries.append(Jump(places[item.target], decides, item.if_true))
        self.program = StepTable(step.pool, entries, self.fault.ctypes.data, step.threads)
        self.use = Use[VariableCell]((), step.changed, step.exclusive)

    def _address_of(self, view: BufferView) -> int:
        if view.where is Storage.CONSTANT:
            return self._step.constants[view].ctypes.data
        return self._base + self._step.offsets[view] if view.where is Storage.OWN else 0

    def _calls(self, part: Part, placed: Listing, words: Array) -> list[Entry]:
        entries: list[Entry] = []
        for call in placed.calls:
            count = len(call.launch.buffers)
            words[call.words] = self.fault.ctypes.data
            for word, buffer, shift in call.addresses():
                words[word] = self._address(part, placed, buffer) + shift
            words[call.words + count + 1] = self._base + call.scratch
            words[call.words + count + 2 : call.words + call.word_count] = call.specialized.words
            arguments = words.ctypes.data + 8 * call.words
            entries += call.entries(arguments)
        return entries

    def _address(self, part: Part, placed: Listing, buffer: Buffer) -> int:
        view = part.views.get(buffer)
        if view is not None:
            return self._address_of(view)
        if buffer.kind is BufferKind.TEMPORARY:
            return self._base + placed.arena.offsets[buffer]
        constant = np.require(buffer.source, requirements=["C", "A"])
        self._kept = (*self._kept, constant)
        return constant.ctypes.data


def _places(step: _ControlStep) -> dict[Label, int]:
    """The entry that each label stands before."""
    found: dict[Label, int] = {}
    at = 0
    for item in step.program.items:
        if isinstance(item, Label):
            found[item] = at
        elif isinstance(item, Part):
            at += sum(len(call.functions) for call in step.parts[item].calls)
        else:
            at += 1
    return found
