"""Control nodes as native programs: parts and jumps in one step table.

A call allocates the memory of the loop variables, which the program updates in place and which
becomes the result.
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
from thalweg.device.control import CapacityExceeded, ControlStep, NativeControl
from thalweg.device.control_inputs import list_levels
from thalweg.device.cpu.control_parts import placed_parts, threads_for
from thalweg.device.cpu.invocation import address_of
from thalweg.device.cpu.listing import Call
from thalweg.device.cpu.pool import Entry, Jump, Pool, StepTable
from thalweg.device.program import Listing
from thalweg.device.program_template import ABSOLUTE, ARENA, Layout, base_addresses
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
    """A control node, compiled for one set of shapes, that the threads of a pool run."""

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
        offsets, self.size = self._frame_offsets()
        self.layout = layout = _ViewLayout(self.parts, offsets)
        self.address_of = {view: layout.address_of(view) for view in self.all_views()}
        self.constants = layout.constants
        self._idle: deque[_Invocation] = deque()
        self.words = words = layout.view_words
        self.written = self.written_views()
        self.inputs = [view for view in words if view.where is Storage.INPUT]
        self.variables = [view for view in words if view.where is Storage.VARIABLE]
        # Iteration counters start at zero, and so do the starts of lists that are never written.
        self.zeroed = {view for view in words if not view.shape} | self.list_starts()
        self.checks = any(part.lowered.checked for part in self.parts)
        self.changed = [n for n, view in enumerate(self.variables) if view in self.written]
        self.exclusive = self.changed if locks_updates(self.unit.node) else []

    def _frame_offsets(self) -> tuple[dict[BufferView, int], int]:
        """The offsets of the views in the frame, and its size. The temporaries, whose memory the
        parts share, come first."""
        temporary = max((listing.arena.size for listing in self.parts.values()), default=0)
        end = rounded(temporary, self.alignment)
        offsets: dict[BufferView, int] = {}
        for view in self.all_views():
            if view.where is Storage.OWN:
                offsets[view] = end
                end += rounded(view.bytes, self.alignment)
        return offsets, end

    # Calls

    def run(self, context: Any, values: Sequence[Any]) -> Any:
        """The unit's outputs; None if the executor must run it; or `CapacityExceeded`."""
        try:
            invocation = self._idle.pop()
        except IndexError:
            invocation = _Invocation(self)
        arrays, results = self._bind_inputs(invocation, values), None
        if arrays is not None:  # kept alive until the call ends
            run = self.run_with_variables if self.variables else self.run_bound
            results = run(invocation, values, context)
        self._idle.append(invocation)  # not reached if a signal or a cancellation stopped the call
        return results

    def run_bound(self, invocation: _Invocation, values: Sequence[Any], context: Any) -> Any:
        """Do what `run` does with an invocation whose inputs and variables are bound."""
        results = self._bind_results(invocation, values, context)
        snapshots = self._snapshots(values)
        invocation.fault[0] = 0
        fault = self.pool.run(invocation.table)
        pause = partial(self._pause, invocation, context)
        fault = self.pool.resume(invocation.table, fault, pause)
        context.cancellation.check()
        if not fault and self.accessed_once(results):
            return self.finish(context, values, results)
        for cell, value in snapshots:
            cell.borrow().fill(value)
        capacities = self.exceeded_capacities(results)
        return CapacityExceeded(capacities) if capacities else None

    def _pause(self, invocation: _Invocation, context: Any) -> None:
        """Between two iterations: check for cancellation, and let other steps use the variables."""
        context.cancellation.check()
        if self.checks or not self.variables or not USES.is_contended:
            return  # with checks, updates may be undone: nobody may see them
        use = invocation.use
        cells = use.cells
        USES.end(use)
        use.cells = cells
        USES.begin(use, context.cancellation)
        if not self.borrow(invocation):
            raise errors.AbortedError(None, None, "A variable of a running loop lost its value.")

    def _snapshots(self, values: Sequence[Any]) -> list[tuple[VariableCell, Array]]:
        """Copies of the variables that are written, if a check may fail."""
        if not self.checks:
            return []
        cells = [values[view.source] for view in self.variables if view in self.written]
        return [(cell, cell.borrow().snapshot()) for cell in cells]

    def _bind_inputs(self, invocation: _Invocation, values: Sequence[Any]) -> list[Any] | None:
        """Bind the inputs; the arrays, which must live until the call ends. None if one does not
        fit the program."""
        arrays: list[Any] = []
        for view in self.inputs:
            value: Any = values[view.source]
            if isinstance(value, ListValue):
                value = list_levels(value)[view.depth]
                if not value.accumulates and not value.written.all():
                    return None
                nested = value.as_nested()
                value = value.as_stacked() if nested is None else nested.starts
                if value is None or value.shape != view.shape:
                    return None
            array = np.require(value, view.dtype, ["C", "A"])
            arrays.append(array)
            self._bind(invocation, view, array)
        return arrays

    def bind_variable(
        self, invocation: _Invocation, view: BufferView, buffer: OwnedBuffer | None
    ) -> bool:
        """Bind the buffer of a variable; False if it is of another device or shape."""
        if not isinstance(buffer, HostBuffer) or buffer.shape != view.shape:
            return False
        self._bind(invocation, view, buffer.array)
        return True

    def _bind(self, invocation: _Invocation, view: BufferView, array: Array) -> None:
        address = address_of(array)
        for word, shift in self.words.get(view, ()):
            invocation.words[word] = address + shift

    def _bind_results(
        self, invocation: _Invocation, values: Sequence[Any], context: Any
    ) -> dict[BufferView, Array]:
        """Allocate and bind the memory of loop variables, lists and traces."""
        results: dict[BufferView, Array] = {}
        initial = self.initial_values(values, context)
        for view in (*self.words, *[o for o in self.program.outputs if isinstance(o, BufferView)]):
            if view.where is not Storage.RESULT or view in results:
                continue
            make_initial = initial.get(view)
            if make_initial is not None:
                results[view] = make_initial()
            else:
                allocate = np.zeros if view in self.zeroed else np.empty
                results[view] = allocate(view.shape, view.dtype)
            self._bind(invocation, view, results[view])
        return results


class _ViewLayout(Layout):
    """The argument words of the calls of all parts. A buffer that is bound to a view is at its
    offset in the frame, or is bound by each call."""

    def __init__(
        self, parts: Mapping[Part, Listing[Call]], offsets: Mapping[BufferView, int]
    ) -> None:
        super().__init__()
        self._offsets = offsets
        self.view_words: dict[BufferView, list[tuple[int, int]]] = {}
        for part, listing in parts.items():
            self.arena, self._views = listing.arena, part.views
            for call in listing.calls:
                self.add(call.launch, call.scratch, call.specialized.words)

    def address(self, buffer: Buffer, shift: int) -> tuple[int, int]:
        view = self._views.get(buffer)
        if view is None:
            return super().address(buffer, shift)
        self.view_words.setdefault(view, []).append((len(self.words), shift))
        base, start = self.address_of(view)
        return base, start + shift

    def address_of(self, view: BufferView) -> tuple[int, int]:
        """The base of a view, and its offset from the base."""
        if view.where is Storage.CONSTANT:
            return self.constant(view), 0
        return (ARENA, self._offsets[view]) if view.where is Storage.OWN else (ABSOLUTE, 0)


class _Invocation:
    """The memory and the step table of one call in flight."""

    def __init__(self, step: CpuControlStep) -> None:
        memory = np.zeros(step.size + 2 * step.alignment, np.uint8)
        self.fault = np.zeros(8, np.int64)
        frame = rounded(memory.ctypes.data, step.alignment)
        bases = base_addresses(self.fault.ctypes.data, frame, 0, step.constants)
        words = bases[step.layout.bases or [0]] + (step.layout.words or [0])
        self.words: Any = memoryview(cast("Any", words))
        self._owned = (memory, step, words)  # what the words point to lives as long as they do
        self.use: Use[VariableCell] = Use((), step.changed, step.exclusive)
        entries: list[Entry | Branch] = []
        targets: dict[Label, int] = {}
        for item in step.program.items:
            if isinstance(item, Label):
                targets[item] = len(entries)
            elif isinstance(item, Branch):
                entries.append(item)
            else:
                for call in step.parts[item].calls:
                    arguments = words.ctypes.data + 8 * call.words
                    entries += call.dispatch.entries(call.code.functions, arguments)

        def jump(branch: Branch) -> Jump:
            if branch.decides is None:
                return Jump(targets[branch.target], 0, branch.if_true)
            base, offset = step.address_of[branch.decides]
            return Jump(targets[branch.target], int(bases[base]) + offset, branch.if_true)

        table = [jump(entry) if isinstance(entry, Branch) else entry for entry in entries]
        self.table = StepTable(step.pool, table, self.fault.ctypes.data, step.threads)
