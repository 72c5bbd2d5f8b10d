"""Control nodes as native programs: parts and jumps in one table, walked without the interpreter.

A call gives the loop variables fresh memory, which the program updates in place and which then is
the result. A loop that keeps values of every turn has room for so many; where that proves too
little, it is run again with four times as much, and remembers.
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
from thalweg.device.cpu.control_inputs import FIRST_ROOM, given, kind, levels, rooms_for
from thalweg.device.cpu.control_parts import PlacedPart, placed_parts, threads_for
from thalweg.device.cpu.invocation import address_of
from thalweg.device.cpu.pool import Entry, Jump, Pool, StepTable
from thalweg.graph.node_effects import locks_updates
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
from thalweg.ops.core.context import VariableCell
from thalweg.ops.random.philox import Philox
from thalweg.ops.random.random import Random
from thalweg.ops.state.variable_uses import USES, Use
from thalweg.platform.caches import Bounded
from thalweg.platform.collector import gc_paused
from thalweg.platform.depth import deep_calls
from thalweg.platform.forks import renewed_after_fork

Array = NDArray[Any]

_MOST_PROGRAMS = 64  # sets of shapes that a loop keeps programs for


class NativeControl:
    """A loop or a conditional of a step: native programs by the shapes that come in."""

    def __init__(
        self, unit: ControlRegion, pool: Pool, target: CpuTarget, threads: int, lower: Lower
    ) -> None:
        self._unit, self._lower = unit, lower
        self._pool, self._target, self._threads = pool, target, threads
        self._programs = Bounded[Any, _ControlStep | None](
            "programs of a loop or conditional", _MOST_PROGRAMS
        )
        self._varying = Varying()
        self._rooms = Capacity(FIRST_ROOM, FIRST_ROOM)
        self.reason = ""  # why it is not native, where it is not
        self.renew_locks()
        renewed_after_fork(self)

    def renew_locks(self) -> None:
        """Have a lock that nobody holds."""
        self._lock = threading.Lock()

    def __call__(self, context: Any, values: Sequence[Any]) -> list[Any] | None:
        """The unit's outputs, or None where native code cannot settle them."""
        while True:
            step = self._step(values)
            if step is None:
                return None
            results = step.run(context, values)
            if not isinstance(results, _MoreRoom):
                return results
            with self._lock:
                grown = dict(self._rooms.grown)
                for number, room in results.held.items():
                    grown[number] = max(grown.get(number, 0), 4 * room)
                self._rooms = replace(self._rooms, grown=tuple(sorted(grown.items())))

    def _step(self, values: Sequence[Any]) -> _ControlStep | None:
        rooms = rooms_for(values, self._rooms)
        key = (rooms, *[kind(value) for value in values])
        if key not in self._programs:
            with self._lock:
                if key not in self._programs:
                    self._programs[key] = self._lowered(values, rooms)
        return self._programs[key]

    def _lowered(self, values: Sequence[Any], rooms: Capacity) -> _ControlStep | None:
        inputs: list[Given] = []
        for place, value in enumerate(values):
            one = given(place, value)
            if one is None:
                self.reason = (
                    "a list holds elements of several shapes, or empty ones, or such lists"
                )
                return None
            inputs.append(one)
        try:
            with gc_paused(), deep_calls():
                program = lower_control(self._unit, inputs, rooms, self._target, self._lower)
                room = rooms.of(LISTS)
                return _ControlStep(
                    self._unit,
                    program,
                    self._varying,
                    self._pool,
                    self._target,
                    self._threads,
                    room,
                )
        except NotCompiled as failure:
            self.reason = str(failure)
            return None


@dataclass(frozen=True)
class _MoreRoom:
    """The traces of loops were full before these ended."""

    held: dict[int, int]  # the room that was not enough, by the number of the loop


class _ControlStep:
    """A control node, compiled for one set of shapes."""

    def __init__(
        self,
        unit: ControlRegion,
        program: ControlProgram,
        varying: Varying,
        pool: Pool,
        target: CpuTarget,
        threads: int,
        room: int,
    ) -> None:
        self._list_room = room
        self.unit, self.program, self.pool, self.alignment = unit, program, pool, target.alignment
        self.threads = threads_for(program, threads, target)
        self.parts = placed_parts(program, varying, target, self.threads)
        calls = [call for placed in self.parts.values() for call in placed.calls]
        self.word_count = sum(call.word_count for call in calls)
        self.temporary = max((p.arena.size for p in self.parts.values()), default=0)
        self.homes, self.size = self._arranged()
        self.constants = {
            home: np.require(home.source, requirements=["C", "A"])
            for home in self._all_homes()
            if home.where is Storage.CONSTANT
        }
        self._idle: deque[_Invocation] = deque()
        self._find_border()

    def _all_homes(self) -> list[BufferView]:
        found: dict[BufferView, None] = {}
        for item in self.program.items:
            if isinstance(item, Part):
                found.update(dict.fromkeys(item.homes.values()))
            elif isinstance(item, Branch) and item.decides is not None:
                found[item.decides] = None
        return list(found)

    def _arranged(self) -> tuple[dict[BufferView, int], int]:
        """The program's own memory, after what the parts share for their temporaries."""
        at = rounded(self.temporary, self.alignment)
        offsets: dict[BufferView, int] = {}
        for home in self._all_homes():
            if home.where is Storage.OWN:
                offsets[home] = at
                at += rounded(home.bytes, self.alignment)
        return offsets, at

    def _find_border(self) -> None:
        """Storage the addresses of arrays from outside go, and which of the variables change."""
        self.words: dict[BufferView, list[tuple[int, int]]] = {}
        self.written: set[BufferView] = set()
        for placed in self.parts.values():
            for call in placed.calls:
                written = call.launch.written
                for word, buffer, shift in call.addresses():
                    home = placed.part.homes.get(buffer)
                    if home is not None:
                        self.words.setdefault(home, []).append((word, shift))
                        if buffer in written:
                            self.written.add(home)
        self.inputs = [home for home in self.words if home.where is Storage.INPUT]
        self.variables = [home for home in self.words if home.where is Storage.VARIABLE]
        self.begun = {home for home in self.words if not home.shape} | self._list_starts()
        self.checks = any(part.part.lowered.checked for part in self.parts.values())
        self.changed = [number for number, h in enumerate(self.variables) if h in self.written]
        self.exclusive = self.changed if locks_updates(self.unit.node) else []

    def _list_starts(self) -> set[BufferView]:
        """Storage lists in lists start."""
        found: set[BufferView] = set()
        for one in self.program.outputs:
            while isinstance(one, ListBuffer) and one.entries is not None:
                found |= set() if one.home is None else {one.home}
                one = one.entries
        return found

    # Calls

    def run(self, context: Any, values: Sequence[Any]) -> Any:
        """The unit's outputs; None where something cannot be settled; or a wish for more room."""
        try:
            invocation = self._idle.pop()
        except IndexError:
            invocation = _Invocation(self)
        held, found = self._enter(invocation, values), None
        if held is not None:
            run = self._run_with_variables if self.variables else self._run
            found = run(invocation, values, context)
        # A invocation that is left half way, stopped by a signal or a check, is not used again.
        self._idle.append(invocation)
        return found

    def _run_with_variables(
        self, invocation: _Invocation, values: Sequence[Any], context: Any
    ) -> Any:
        invocation.use.cells = [values[home.source] for home in self.variables]
        try:
            USES.begin(invocation.use, context.cancellation)
            return self._run(invocation, values, context) if self._borrow(invocation) else None
        finally:
            USES.end(invocation.use)

    def _run(self, invocation: _Invocation, values: Sequence[Any], context: Any) -> Any:
        results = self._results(invocation, values, context)
        before = self._remembered(values)
        invocation.fault[0] = 0
        fault = self.pool.run(invocation.program)
        pause = partial(self._pause, invocation, context)
        fault = self.pool.resume(invocation.program, fault, pause)
        context.cancellation.check()
        if not fault and self._used_once(results):
            self._settle_streams(results, context)
            return self._outputs(values, results)
        for cell, value in before:
            np.copyto(cell.borrow().array, value)
        full = self._full(results)
        return _MoreRoom(full) if full else None

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
        last = [results[home][-1] > 0 for home in grown if home is not None and home in results]
        found = {LISTS: self._list_room} if any(last) else {}
        for number, count in enumerate(self.program.counts):
            if results[count.home] >= count.room:
                found[number] = count.room
        return found

    def _remembered(self, values: Sequence[Any]) -> list[tuple[VariableCell, Array]]:
        """The variables that a loop that may fail changes, as they were before."""
        if not self.checks:
            return []
        cells = [values[home.source] for home in self.variables if home in self.written]
        return [(cell, cell.borrow().array.copy()) for cell in cells]

    def _enter(self, invocation: _Invocation, values: Sequence[Any]) -> list[Any] | None:
        """Put the addresses of what comes in in place; the arrays that must live meanwhile."""
        held: list[Any] = []
        for home in self.inputs:
            value: Any = values[home.source]
            if isinstance(value, ListValue):
                value = levels(value)[home.depth]
                if not value.accumulates and not value.written.all():
                    return None
                nested = value.as_nested()
                value = value.as_stacked() if nested is None else nested.starts
                if value is None or value.shape != home.shape:
                    return None
            array = np.require(value, home.dtype, ["C", "A"])
            held.append(array)
            self._put(invocation, home, array)
        return held

    def _borrow(self, invocation: _Invocation) -> bool:
        """Put the addresses of the variables in place; whether they are as expected."""
        use = invocation.use
        with USES.mutex:
            for number in self.changed:
                if use.cells[number].is_initialized:
                    use.cells[number].copy_on_write()
            buffers = use.buffers = [cell.buffer for cell in use.cells]
            for home, buffer in zip(self.variables, buffers, strict=True):
                if buffer is None or buffer.shape != home.shape:
                    return False
                self._put(invocation, home, buffer.array)
        return True

    def _put(self, invocation: _Invocation, home: BufferView, array: Array) -> None:
        address = address_of(array)
        for word, shift in self.words.get(home, ()):
            invocation.words[word] = address + shift

    def _results(
        self, invocation: _Invocation, values: Sequence[Any], context: Any
    ) -> dict[BufferView, Array]:
        """Fresh memory for the loop variables, lists and traces."""
        found: dict[BufferView, Array] = {}
        starts = self._starts(values)
        for one in self.program.drawings:
            starts[one.home] = _next_in_stream(one, context).place
        for home in (*self.words, *[o for o in self.program.outputs if isinstance(o, BufferView)]):
            if home.where is not Storage.RESULT or home in found:
                continue
            start = starts.get(home)
            # A number of turns begins at none, and lists that never were start at the first row.
            make = np.zeros if home in self.begun else np.empty
            found[home] = make(home.shape, home.dtype) if start is None else start()
            self._put(invocation, home, found[home])
        return found

    def _starts(self, values: Sequence[Any]) -> dict[BufferView, Callable[[], Array]]:
        """What memory of lists begins with."""
        found: dict[BufferView, Callable[[], Array]] = {}
        for rows, value in self._lists(values):
            if rows.where is Storage.RESULT and rows.home is not None:
                found[rows.home] = partial(_begun, value, rows.home)
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

    def _settle_streams(self, results: Mapping[BufferView, Array], context: Any) -> None:
        """Take out of the random streams what the turns have drawn."""
        for one in self.program.drawings:
            start = _next_in_stream(one, context)
            drawn = Philox.at(results[one.home]).counter - start.counter
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
                None if home is None else results.get(home) for home in (rows.writes, rows.reads)
            )
            if rows.where is Storage.RESULT and rows.home is not None and rows.home in results:
                size = _size(rows, value, written)
                marks = None if written is None else written[:size] > 0
                value.take_over(results[rows.home][:size], marks)
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
        if one.entries is not None and one.home is not None:
            flat = self._output(one.entries, results, lists)
            return ListValue.of_nested(results[one.home], flat, one.entries.each)
        if one.home is None:
            value = np.asarray(one.value, one.dtype.as_numpy_dtype)
            rows = np.broadcast_to(value, (one.count, *value.shape))
        else:
            rows = results[one.home]
        return ListValue.of_stacked(rows, dtype=one.dtype)


def _next_in_stream(drawing: Drawing, context: Any) -> Philox:
    """The place in the stream of a random op, none of which is taken."""
    return cast("Random", drawing.node.op).reserve(context.at(drawing.node), 0)


def _begun(value: ListValue, home: BufferView) -> Array:
    """The rows of a list that is about to be changed, in memory of their own."""
    rows = value.as_stacked() if value.written.any() else None
    if rows is not None and rows.shape == home.shape:
        return np.array(rows, home.dtype)
    begun = np.zeros(home.shape, home.dtype)
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
                entries += self._calls(step.parts[item], words)
            elif isinstance(item, Branch):
                decides = 0 if item.decides is None else self._home(item.decides)
                entries.append(Jump(places[item.target], decides, item.if_true))
        self.program = StepTable(step.pool, entries, self.fault.ctypes.data, step.threads)
        self.use = Use[VariableCell]((), step.changed, step.exclusive)

    def _home(self, home: BufferView) -> int:
        if home.where is Storage.CONSTANT:
            return self._step.constants[home].ctypes.data
        return self._base + self._step.homes[home] if home.where is Storage.OWN else 0

    def _calls(self, placed: PlacedPart, words: Array) -> list[Entry]:
        entries: list[Entry] = []
        for call in placed.calls:
            count = len(call.launch.buffers)
            words[call.words] = self.fault.ctypes.data
            for word, buffer, shift in call.addresses():
                words[word] = self._address(placed, buffer) + shift
            words[call.words + count + 1] = self._base + call.scratch
            words[call.words + count + 2 : call.words + call.word_count] = call.specialized.words
            arguments = words.ctypes.data + 8 * call.words
            entries += call.entries(arguments)
        return entries

    def _address(self, placed: PlacedPart, buffer: Buffer) -> int:
        home = placed.part.homes.get(buffer)
        if home is not None:
            return self._home(home)
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
