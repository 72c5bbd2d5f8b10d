"""Control nodes as native programs: calls and jumps in one step table.

A call allocates the memory of the loop variables, which the program updates in place and which
becomes the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from thalweg import errors
from thalweg.codegen.cache import Loaded
from thalweg.control.lists import ListValue
from thalweg.device.control import ControlStep, input_rows
from thalweg.device.cpu.invocation import Invocation, address_of
from thalweg.device.cpu.pool import Pool
from thalweg.device.cpu.table_template import ControlTemplate
from thalweg.device.program import FirstValues
from thalweg.lower.control.program import BufferView
from thalweg.ops.core.buffer import Buffer as OwnedBuffer
from thalweg.ops.core.buffer import HostBuffer
from thalweg.ops.state.variable_uses import USES
from thalweg.platform.arrays import Array


class CpuControlStep(ControlStep[Invocation]):
    """A control node, compiled for one set of shapes, that the threads of a pool run."""

    def __init__(self, template: ControlTemplate, loaded: Sequence[Loaded], pool: Pool) -> None:
        super().__init__(template.interface, template.views, template.references)
        self.template, self.loaded, self.pool = template, loaded, pool

    # Calls

    def _invocation(self) -> Invocation:
        return Invocation(self.template, self.loaded, self.pool, self._new_use())

    def _run(self, invocation: Invocation, context: Any, values: Sequence[Any]) -> list[Any] | None:
        arrays = self._bind_inputs(invocation, values)
        if arrays is None:
            return None
        results = self._bind_results(invocation, values, context)
        written = [invocation.use.cells[number].borrow() for number in self.written]
        snapshots = [(b, b.snapshot()) for b in written] if self.template.checks else []
        invocation.fault[0] = 0
        fault = invocation.table.run()
        pause = partial(self._pause, invocation, context)
        fault = invocation.table.resume(fault, pause)
        del arrays  # the kernels read them until here
        context.cancellation.check()
        if not fault and self.accessed_once(results):
            return self.finish(context, values, results)
        for buffer, value in snapshots:
            buffer.fill(value)
        self.check_capacities(results)
        return None

    def _pause(self, invocation: Invocation, context: Any) -> None:
        """Between two iterations: check for cancellation, and let other steps use the variables."""
        context.cancellation.check()
        if self.template.checks or not self.variables or not USES.is_contended:
            return  # with checks, updates may be undone: nobody may see them
        use = invocation.use
        # The list that `touch_all` is given in the end, if the program writes variables.
        buffers = cast("list[OwnedBuffer | None]", use.buffers or [])
        USES.requeue(use, context.cancellation)
        with USES.mutex:
            borrowed = [cell.buffer for cell in use.cells]
            if self._borrow(invocation, borrowed) is None:
                message = "A variable of a running loop lost its value."
                raise errors.AbortedError(None, None, message)
            buffers[:] = borrowed
            use.buffers = buffers

    def _borrow(
        self, invocation: Invocation, borrowed: list[OwnedBuffer | None]
    ) -> FirstValues | None:
        on_host = all(isinstance(buffer, HostBuffer) for buffer in borrowed)
        return super()._borrow(invocation, borrowed) if on_host else None

    def _bind_inputs(self, invocation: Invocation, values: Sequence[Any]) -> list[Any] | None:
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

    def _bind(self, invocation: Invocation, view: BufferView, array: Array) -> None:
        invocation.bind(self.template.views.get(view, ()), address_of(array))

    def _bind_results(
        self, invocation: Invocation, values: Sequence[Any], context: Any
    ) -> dict[BufferView, Array]:
        """Allocate and bind the memory of loop variables, lists and traces."""
        results: dict[BufferView, Array] = {}
        initial = self.initial_values(values, context)
        for view in self.results:
            start, allocate = initial.get(view), np.zeros if view in self.zeroed else np.empty
            results[view] = allocate(view.shape, view.dtype) if start is None else start()
            self._bind(invocation, view, results[view])
        return results
