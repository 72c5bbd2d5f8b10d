"""Control nodes as one CUDA graph: regions, and conditional graphs for loops and branches.

The device decides whether there is another iteration, so a loop costs the host one launch. Loop
variables, traces and lists are buffers of the device, allocated for each call; small values and the
counters that the host reads are contiguous, and transferred in one copy in each direction. A fault
or a cancelled step ends all loops.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg.control.lists import ListValue
from thalweg.device.control import ControlStep, Results, input_rows, references_of
from thalweg.device.cuda.control_graph import ControlGraph, ControlLaunches
from thalweg.device.cuda.kernels import Kernels
from thalweg.device.cuda.loading import load_parts
from thalweg.device.cuda.memory import DeviceBuffer, Memory
from thalweg.device.cuda.pinned import Pinned
from thalweg.device.cuda.program import DeviceMemory
from thalweg.device.program import FirstValues
from thalweg.lower.control.program import BufferView, ControlProgram, Storage
from thalweg.lower.dynamic_shapes import SpecializedKernel
from thalweg.lower.memory.arena import rounded
from thalweg.ops.core.buffer import Buffer
from thalweg.ops.core.context import VariableCell
from thalweg.ops.state.variable_uses import Use
from thalweg.platform.arrays import Array

_ALIGNMENT = 256
_MAX_SMALL = 1 << 10  # bytes of an input or a result that is transferred with the counters
_SPIN = 2e-3  # seconds for which a call polls for the end without sleeping
_PAUSE = 5e-5


class CudaControlStep(ControlStep["_Invocation"]):
    """A control node, compiled for one set of shapes on a GPU."""

    def __init__(
        self,
        shared: DeviceMemory,
        cache: Kernels,
        program: ControlProgram,
        kernels: Sequence[SpecializedKernel],
    ) -> None:
        views = program.views()
        references = references_of(program, dict.fromkeys(views, ()))
        super().__init__(program.interface, views, references)
        self._shared = shared
        self.memory: Memory = self._shared.memory
        listings = load_parts(program, kernels, cache)
        self._classify_views()
        self._plan_memory(max((each.arena.size for each in listings.values()), default=0))
        offsets = {view: offset - self.arena for view, offset in self.offsets.items()}
        self.plan = ControlLaunches(program, listings, offsets)
        self.constants = [self._uploaded(array) for array in self.plan.constants]
        self.checks = any(part.lowered.checked for part in listings)

    def _classify_views(self) -> None:
        """Separate small results, transferred with the counters."""
        results, counters = self.results, self.counters()
        self.small = [view for view in results if view.bytes <= _MAX_SMALL or view in counters]
        self.large = [view for view in results if view not in set(self.small)]

    def _plan_memory(self, temporary: int) -> None:
        """Lay out the memory of an invocation: small inputs, the fault word, small results; the
        temporaries of the parts, of this size; the program's own memory."""
        self.offsets: dict[BufferView, int] = {}
        small = [view for view in self.inputs if view.bytes <= _MAX_SMALL]
        end = self._place(small, 0)
        self.fault = end
        self.end_of_small = self._place(self.small, end + _ALIGNMENT)
        self.arena = self.end_of_small
        own = [view for view in self.views if view.where is Storage.OWN]
        self.size = self._place(own, self.arena + rounded(temporary, _ALIGNMENT))

    def _place(self, views: Sequence[BufferView], end: int) -> int:
        for view in views:
            self.offsets[view] = end
            end += rounded(max(view.bytes, 1), _ALIGNMENT)
        return end

    def _uploaded(self, array: Any, dtype: Any = None) -> DeviceBuffer:
        return self.memory.uploaded(np.asarray(array, dtype))

    # Calls

    def _invocation(self) -> _Invocation:
        return _Invocation(self, self._new_use())

    def _run(
        self, invocation: _Invocation, context: Any, values: Sequence[Any]
    ) -> list[Any] | None:
        if not self._bind_inputs(invocation, values):
            invocation.keep_alive.clear()
            return None
        large = self._allocate_results(invocation, values, context)
        before = self._saved(invocation)
        invocation.run(context)
        invocation.keep_alive.clear()
        results: dict[BufferView, Any] = {**large, **invocation.small_results()}
        if not invocation.fault[0] and self.accessed_once(results):
            return self.finish(context, values, results)
        self._restore(before)
        self.check_capacities(results)
        return None

    def _saved(self, invocation: _Invocation) -> list[tuple[Buffer, Buffer]]:
        """The variables that a loop that may fail changes, and copies of them."""
        if not self.checks or not self.written:
            return []
        buffers = [invocation.use.buffers[number] for number in self.written]
        return [(buffer, buffer.copy()) for buffer in buffers if buffer is not None]

    def _restore(self, saved: Sequence[tuple[Buffer, Buffer]]) -> None:
        """Restore the values of variables."""
        context, stream = self.memory.context, self.memory.stream
        for buffer, copy in saved:
            context.copy(buffer.address, copy.address, copy.nbytes, stream)
        context.wait(stream)

    def _bind_inputs(self, invocation: _Invocation, values: Sequence[Any]) -> bool:
        """Bind the inputs; False if a list does not have the expected form."""
        for view in self.inputs:
            value: Any = values[view.source]
            if isinstance(value, ListValue):
                value = input_rows(value, view, is_host=False)
                if value is None:
                    return False
            self._bind_input(invocation, view, value)
        return True

    def _bind_input(self, invocation: _Invocation, view: BufferView, value: Any) -> None:
        if self._shared.holds(value):
            invocation.keep_alive.append(value)
            self._bind(invocation, view, value.address)
            return
        array = value.lease() if isinstance(value, Buffer) else value
        if view in self.offsets:
            invocation.upload_buffer(view)[...] = array
            self._bind(invocation, view, invocation.address + self.offsets[view])
        else:
            buffer = self._uploaded(array, view.dtype)
            invocation.keep_alive.append(buffer)
            self._bind(invocation, view, buffer.address)

    def _bind(self, invocation: _Invocation, view: BufferView, address: int) -> None:
        if invocation.bound.get(view) != address:
            invocation.bound[view] = address
            invocation.bind(self.plan.words_of.get(view, ()), address)

    def _borrow(self, invocation: _Invocation, borrowed: list[Buffer | None]) -> FirstValues | None:
        on_device = all(map(self._shared.holds, borrowed))
        return super()._borrow(invocation, borrowed) if on_device else None

    def _bind_variable(self, invocation: _Invocation, number: int, address: int) -> None:
        self._bind(invocation, self.variables[number], address)

    def _allocate_results(
        self, invocation: _Invocation, values: Sequence[Any], context: Any
    ) -> dict[BufferView, DeviceBuffer]:
        """Allocate memory for large loop variables, lists and traces, and write the initial values
        of small ones to the pinned memory that is uploaded."""
        starts = self.initial_values(values, context)
        for view in self.small:
            start = starts.get(view)
            if start is not None:
                invocation.upload_buffer(view)[...] = start()
            elif view in self.zeroed:
                invocation.upload_buffer(view)[...] = 0
        result: dict[BufferView, DeviceBuffer] = {}
        for view in self.large:
            start = starts.get(view)
            buffer = self._allocate(view) if start is None else start()
            if not isinstance(buffer, DeviceBuffer):
                buffer = self._uploaded(buffer, view.dtype)
            result[view] = buffer
            self._bind(invocation, view, buffer.address)
        return result

    def _allocate(self, view: BufferView) -> DeviceBuffer:
        return self.memory.buffer(view.shape, np.dtype(view.dtype))

    def initial_rows(self, value: ListValue, view: BufferView) -> Any:
        """A copy of the rows of a list that the loop will change."""
        if view in self.offsets:
            return super().initial_rows(value, view)
        result, rows = self._allocate(view), value.on_device
        if rows is None and value.written.any():
            return super().initial_rows(value, view)
        context, stream = self.memory.context, self.memory.stream
        size = 0 if rows is None else min(rows.nbytes, result.nbytes)
        if rows is not None:
            context.copy(result.address, rows.address, size, stream)
        if size < result.nbytes:
            context.clear(result.address + size, result.nbytes - size, stream)
        context.wait(stream)
        return result


class _Invocation(ControlGraph):
    """The memory and the graph of one running call."""

    def __init__(self, step: CudaControlStep, use: Use[VariableCell]) -> None:
        self._step, self._pool, context = step, step.memory.pool, step.memory.context
        self._block = self._pool.allocate(step.size)
        self.address = self._block.address
        self.use: Use[VariableCell] = use
        self.addresses: list[int] = [0] * len(step.variables)
        self.bound: dict[BufferView, int] = {}  # the addresses of external views
        self.keep_alive: list[Any] = []  # what the graph may access
        self.stream = context.stream()
        self._upload = Pinned(context, step.end_of_small)
        self._returned = Pinned(context, step.end_of_small)
        self._upload.array[:] = 0
        self.fault = self._returned.part(step.fault, (1,), np.int32)
        self._stop = Pinned(context, 16)
        self._stop.array[:] = 0
        known = [self.address + step.fault, self.address + step.arena, 0]
        known += [buffer.address for buffer in step.constants]
        super().__init__(step.plan, [0, *known], self._stop.address, context)

    def upload_buffer(self, view: BufferView) -> Array:
        """The pinned memory that the graph's upload copies to a view."""
        return self._array(self._upload, view)

    def _array(self, pinned: Pinned, view: BufferView) -> Array:
        return pinned.part(self._step.offsets[view], view.shape, view.dtype)

    def small_results(self) -> Results:
        """Copies of the small results that the graph downloaded."""
        return {view: self._array(self._returned, view).copy() for view in self._step.small}

    def run(self, context: Any) -> None:
        """Run the graph; if the step is cancelled, its loops end."""
        size = self._step.end_of_small
        graph = self.prepare(
            (self.address, self._upload.address, size), (self._returned.address, self.address, size)
        )
        driver = self._context
        try:
            graph.launch(self.stream)
            self._wait(context)
        except BaseException:
            self._stop.array[0] = 1
            if driver.lost is None:
                driver.wait(self.stream)
            self._stop.array[0] = 0
            raise

    def _wait(self, context: Any) -> None:
        """Wait until the graph is done; raises if the step is cancelled."""
        driver, start = self._context, time.perf_counter()
        while not driver.is_done(self.stream):
            if time.perf_counter() - start > _SPIN:
                context.cancellation.check()
                time.sleep(_PAUSE)

    def close(self) -> None:
        """Free the memory. Its graph must not be running."""
        super().close()
        self._pool.free(self._block)
        self.keep_alive.clear()
