"""Control nodes as native programs: parts and jumps in one step table, interpreted natively.

A call gives the loop variables fresh memory, which the program updates in place and which then is
the result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from thalweg import errors
from thalweg.codegen.machine import CpuTarget
from thalweg.control.lists import ListValue
from thalweg.device.control import ControlStep, MoreCapacity, NativeControl
from thalweg.device.control_inputs import levels
from thalweg.device.cpu.control_parts import placed_parts, threads_for
from thalweg.device.cpu.invocation import address_of
from thalweg.device.cpu.listing import Call
from thalweg.device.cpu.pool import Entry, Jump, Pool, StepTable
from thalweg.device.program import Listing
from thalweg.device.program_template import ARENA, NOTHING, Layout, base_addresses
from thalweg.graph.analysis.node_effects import locks_updates
from thalweg.lower.control.program import (
    Branch,
    BufferView,
    ControlProgram,
    Label,
    Part,
    Storage,
)
from thalweg.lower.memory.arena import rounded
from thalweg.lower.memory.buffers import Buffer
from thalweg.ops.core.buffer import Buffer as OwnedBuffer
from thalweg.ops.core.buffer import HostBuffer
from thalweg.ops.core.context import VariableCell
from thalweg.ops.state.variable_uses import USES, Use

Array = NDArray[Any]


class CpuControlStep(ControlStep["_Invocation"]):
    """A control node, compiled for one set of shapes, that the threads of a CPU run."""

    def __init__(
        self,
        pool: Pool,
        target: CpuTarget,
        threads: int,
        control: NativeControl,
        program: ControlProgram,
        list_capacity: int,
    ) -> None:
        super().__init__(program, list_capacity)
        self.unit, self.pool = control.unit, pool
        self.alignment = target.alignment
        self.threads = threads_for(program, threads, target)
        self.parts = placed_parts(program, control.varying, target, self.threads)
        offsets, self.size = self._arranged()
        self.layout = layout = _ViewLayout(self.parts, offsets)
        self.address_of = {view: layout.address_of(view) for view in self.all_views()}
        self.constants = layout.constants
        self._idle: deque[_Invocation] = deque()
        self._find_border()

    def _arranged(self) -> tuple[dict[BufferView, int], int]:
        """The program's own memory, after what the parts share for their temporaries."""
        temporary = max((p.arena.size for p in self.parts.values()), default=0)
        at = rounded(temporary, self.alignment)
        offsets: dict[BufferView, int] = {}
        for view in self.all_views():
            if view.where is Storage.OWN:
                offsets[view] = at
                at += rounded(view.bytes, self.alignment)
        return offsets, at

    def _find_border(self) -> None:
        """Which words hold the addresses of arrays from outside, and which variables change."""
        self.words = self.layout.words_of
        self.written = self.written_views()
        self.inputs = [view for view in self.words if view.where is Storage.INPUT]
        self.variables = [view for view in self.words if view.where is Storage.VARIABLE]
        self.begun = {view for view in self.words if not view.shape} | self.list_starts()
        self.checks = any(part.lowered.checked for part in self.parts)
        self.changed = [number for number, h in enumerate(self.variables) if h in self.written]
        self.exclusive = self.changed if locks_updates(self.unit.node) else []

    # Calls

    def run(self, context: Any, values: Sequence[Any]) -> Any:
        """The unit's outputs; None where the executor must decide; or what capacity it lacks."""
        try:
            invocation = self._idle.pop()
        except IndexError:
            invocation = _Invocation(self)
        held, found = self._bind_inputs(invocation, values), None
        if held is not None:
            run = self.run_with_variables if self.variables else self.run_bound
            found = run(invocation, values, context)
        # A invocation that is left half way, stopped by a signal or a check, is not used again.
        self._idle.append(invocation)
        return found

    def run_bound(self, invocation: _Invocation, values: Sequence[Any], context: Any) -> Any:
        """The same, of an invocation whose inputs and variables are bound."""
        results = self._results(invocation, values, context)
        before = self._saved(values)
        invocation.fault[0] = 0
        fault = self.pool.run(invocation.program)
        pause = partial(self._pause, invocation, context)
        fault = self.pool.resume(invocation.program, fault, pause)
        context.cancellation.check()
        if not fault and self.used_once(results):
            return self.ended(context, values, results)
        for cell, value in before:
            cell.borrow().fill(value)
        full = self.full(results)
        return MoreCapacity(full) if full else None

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
        if not self.borrow(invocation):
            raise errors.AbortedError(None, None, "A variable of a running loop lost its value.")

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

    def bind_variable(
        self, invocation: _Invocation, view: BufferView, buffer: OwnedBuffer | None
    ) -> bool:
        """Bind the buffer of a variable; whether it is of the host and has the shape."""
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
        starts = self.starts(values, context)
        for view in (*self.words, *[o for o in self.program.outputs if isinstance(o, BufferView)]):
            if view.where is not Storage.RESULT or view in found:
                continue
            start = starts.get(view)
            # Iterations are counted from zero, and lists that never were start at the first row.
            make = np.zeros if view in self.begun else np.empty
            found[view] = make(view.shape, view.dtype) if start is None else start()
            self._bind(invocation, view, found[view])
        return found


class _ViewLayout(Layout):
    """The argument words of the calls of all parts: buffers that are views are where the program
    has these, at offsets in its own memory or from outside."""

    def __init__(
        self, parts: Mapping[Part, Listing[Call]], offsets: Mapping[BufferView, int]
    ) -> None:
        super().__init__()
        self._offsets = offsets
        self.words_of: dict[BufferView, list[tuple[int, int]]] = {}
        for part, placed in parts.items():
            self.arena, self._views = placed.arena, part.views
            for call in placed.calls:
                self.add(call.launch, call.scratch, call.specialized.words)

    def address(self, buffer: Buffer, shift: int) -> tuple[int, int]:
        view = self._views.get(buffer)
        if view is None:
            return super().address(buffer, shift)
        self.words_of.setdefault(view, []).append((len(self.words), shift))
        base, start = self.address_of(view)
        return base, start + shift

    def address_of(self, view: BufferView) -> tuple[int, int]:
        """The base of a view, and how far from it the view begins."""
        if view.where is Storage.CONSTANT:
            return self.constant(view), 0
        return (ARENA, self._offsets[view]) if view.where is Storage.OWN else (NOTHING, 0)


class _Invocation:
    """A program with memory of its own: what one call in flight needs."""

    def __init__(self, step: CpuControlStep) -> None:
        memory = np.zeros(step.size + 2 * step.alignment, np.uint8)
        self.fault = np.zeros(8, np.int64)
        base = rounded(memory.ctypes.data, step.alignment)
        known = base_addresses(self.fault.ctypes.data, base, 0, step.constants)
        words = known[step.layout.bases or [0]] + (step.layout.words or [0])
        self.words: Any = memoryview(cast("Any", words))
        self._kept = (memory, step, words)
        places = _places(step)
        entries: list[Entry | Jump] = []
        for item in step.program.items:
            if isinstance(item, Part):
                for call in step.parts[item].calls:
                    entries += call.entries(words.ctypes.data + 8 * call.words)
            elif isinstance(item, Branch):
                base, start = (
                    (NOTHING, 0) if item.decides is None else step.address_of[item.decides]
                )
                entries.append(Jump(places[item.target], int(known[base]) + start, item.if_true))
        self.program = StepTable(step.pool, entries, self.fault.ctypes.data, step.threads)
        self.use: Use[VariableCell] = Use((), step.changed, step.exclusive)


def _places(step: CpuControlStep) -> dict[Label, int]:
    """The entry that each label stands before."""
    found: dict[Label, int] = {}
    at = 0
    for item in step.program.items:
        if isinstance(item, Label):
            found[item] = at
        elif isinstance(item, Part):
            at += sum(len(call.code.functions) for call in step.parts[item].calls)
        else:
            at += 1
    return found
