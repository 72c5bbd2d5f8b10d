"""Control nodes as native programs: calls and jumps in one step table.

A call allocates the memory of the loop variables, which the program updates in place and which
becomes the result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg import errors
from thalweg.codegen.cache import Loaded
from thalweg.control.lists import ListValue
from thalweg.device.control import CapacityExceeded, ControlStep, input_rows
from thalweg.device.cpu.invocation import BoundWords, address_of
from thalweg.device.cpu.pool import Entry, Jump, Pool, StepTable
from thalweg.device.cpu.table_template import ControlTemplate, PlacedJump
from thalweg.lower.control.program import BufferView
from thalweg.ops.core.buffer import Buffer as OwnedBuffer
from thalweg.ops.core.buffer import HostBuffer
from thalweg.ops.core.context import VariableCell
from thalweg.ops.state.variable_uses import USES, Use

Array = NDArray[Any]


class CpuControlStep(ControlStep["_Invocation"]):
    """A control node, compiled for one set of shapes, that the threads of a pool run."""

    template: ControlTemplate

    def __init__(self, template: ControlTemplate, loaded: Sequence[Loaded], pool: Pool) -> None:
        super().__init__(template.interface, template.list_capacity, template.views)
        self.template, self.loaded, self.pool = template, loaded, pool
        self.changed = template.changed
        self._idle: deque[_Invocation] = deque()

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
        if self.template.checks or not self.variables or not USES.is_contended:
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
        if not self.template.checks:
            return []
        cells = [values[self.variables[number].source] for number in self.changed]
        return [(cell, cell.borrow().snapshot()) for cell in cells]

    def _bind_inputs(self, invocation: _Invocation, values: Sequence[Any]) -> list[Any] | None:
        """Bind the inputs; the arrays, which must live until the call ends. None if one does not
        fit the program."""
        arrays: list[Any] = []
        for view in self.inputs:
            value: Any = values[view.source]
            if isinstance(value, ListValue):
                value = input_rows(value, view, is_host=True)
                if value is None:
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
        invocation.bind(self.template.views.get(view, ()), address_of(array))

    def _bind_results(
        self, invocation: _Invocation, values: Sequence[Any], context: Any
    ) -> dict[BufferView, Array]:
        """Allocate and bind the memory of loop variables, lists and traces."""
        results: dict[BufferView, Array] = {}
        initial = self.initial_values(values, context)
        for view in self.results:
            make_initial = initial.get(view)
            if make_initial is not None:
                results[view] = make_initial()
            else:
                allocate = np.zeros if view in self.zeroed else np.empty
                results[view] = allocate(view.shape, view.dtype)
            self._bind(invocation, view, results[view])
        return results


class _Invocation(BoundWords):
    """The memory and the step table of one call in flight."""

    def __init__(self, step: CpuControlStep) -> None:
        template = step.template
        use = Use[VariableCell]((), template.changed, template.exclusive)
        super().__init__(template, step.pool, use)
        self.memory[...] = 0
        table: list[Entry | Jump] = []
        for item in template.table:
            if isinstance(item, PlacedJump):
                address = int(self.bases[item.base]) + item.offset
                table.append(Jump(item.target, address, item.if_true))
            else:
                functions = step.loaded[item.kernel].functions
                table += item.dispatch.entries(functions, self.first_word + 8 * item.word)
        self.table = StepTable(step.pool, table, self.fault.ctypes.data, template.threads)
