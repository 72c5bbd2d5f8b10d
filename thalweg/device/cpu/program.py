"""Programs that the threads of a pool run.

A `Program` is a region compiled for one set of shapes. A call takes an idle `Invocation`, writes
the addresses of its arrays and variables into the argument words, and runs the step table on the
pool. Any number of calls may be in flight, each in its own invocation.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from thalweg.codegen.cache import Loaded
from thalweg.device.cpu.early_outputs import Deliver, run_delivering
from thalweg.device.cpu.invocation import Invocation, address_of
from thalweg.device.cpu.pool import Pool
from thalweg.device.cpu.table_template import Entry, Jump, TableTemplate
from thalweg.device.program import DeviceProgram, Listing, Times
from thalweg.lower.specialise import Region
from thalweg.ops.core.context import VariableCell
from thalweg.platform.amounts import plural
from thalweg.platform.arrays import Array

if TYPE_CHECKING:
    from thalweg.device.compiled_kernel import CompiledKernel
    from thalweg.device.cpu.listing import Call


_C_ALIGNED = 0x101  # NumPy's flags of arrays that are C-contiguous and aligned


class Program(DeviceProgram[Invocation, "Call"]):
    """A region, compiled for one set of shapes."""

    template: TableTemplate

    def __init__(
        self,
        template: TableTemplate,
        loaded: Sequence[Loaded],
        region: Region,
        listing: Callable[[], Listing[Call]],
        pool: Pool,
    ) -> None:
        super().__init__(template, region, listing)
        self.template, self.loaded, self.pool = template, loaded, pool
        self.threads, self.holds_gil = template.threads, template.holds_gil
        self.work, self.packed_references = template.work, template.packed_references
        self._prepacked = sum(isinstance(item, Jump) for item in template.calls)

    def release_memory(self) -> None:
        """Free the memory of idle invocations; the next call allocates again."""
        self._idle.clear()

    def compiled_kernels(self) -> list[CompiledKernel]:
        """The kernels of its launches, in order."""
        module = importlib.import_module("thalweg.device.cpu.compiled_kernel")  # rarely needed
        return [module.CpuKernel(call, self.pool, self.threads) for call in self.listing.calls]

    @property
    def summary(self) -> str:
        """Its numbers of threads, barriers and prepacked kernels."""
        barriers = sum(kernel.barriers for kernel in self.compiled_kernels())
        prepacked = plural(self._prepacked, "kernel")
        packed = f", weights of {prepacked} packed once" if self._prepacked else ""
        return f"on {plural(self.threads, 'thread')}, {plural(barriers, 'barrier')}{packed}"

    def timed(
        self, context: Any, values: Sequence[Any], cells: Sequence[VariableCell]
    ) -> tuple[list[Any] | None, Times]:
        """A call, and the begin and end of each entry of its kernels."""
        try:
            invocation = self._idle.pop()
        except IndexError:
            invocation = self._invocation()
        timed, table = copy(self), invocation.table
        timed._idle = deque([invocation])
        with table.timed() as times:
            results = timed(context, values, cells)
        self._idle.append(invocation)
        return results, times[[isinstance(item, Entry) for item in self.template.calls]]

    def _invocation(self) -> Invocation:
        return Invocation(self.template, self.loaded, self.pool, self._new_use())

    def _run(self, invocation: Invocation, context: Any, values: Sequence[Any]) -> list[Any] | None:
        words = invocation.words
        converted = self._bind_inputs(words, values) if self.inputs else None
        results = self._bind_outputs(words, invocation.use.cells)
        if self.streams:  # the test is faster than a loop without iterations
            for row, (node, known) in enumerate(self.streams):
                invocation.streams[row] = node.op.stream(context.at(node), *known)
        if self._prepacked:
            invocation.select_packing()
        table = invocation.table
        if invocation.deliver is None:
            fault = table.run()
        else:
            fault = self._run_delivering(invocation, context, results)
        if fault:
            fault = table.resume(fault, context.cancellation.check)
            invocation.fault[0] = 0
        if self._prepacked and not fault:
            invocation.packed_versions = invocation.versions
        for number, scalar in invocation.scalars:
            results[number] = scalar[()]
        del converted  # the kernels read these arrays until here
        return None if fault else results

    def _run_delivering(self, invocation: Invocation, context: Any, results: Sequence[Any]) -> int:
        """Run to the end, delivering the early outputs meanwhile; the fault code."""
        arrays, table = [*results], invocation.table
        for number, scalar in invocation.scalars:
            arrays[number] = scalar
        deliver, invocation.deliver = cast("Deliver", invocation.deliver), None
        early, check = invocation.early, context.cancellation.check
        return run_delivering(lambda: table.resume(table.run(), check), early, arrays, deliver)

    # Arrays

    def _bind_inputs(self, words: Any, values: Sequence[Any]) -> list[Array]:
        """Bind the inputs; the converted arrays, which must live until the call ends."""
        converted: list[Array] = []
        for number, targets in self.inputs:
            value: Any = values[number]
            if type(value) is not np.ndarray or value.flags.num & _C_ALIGNED != _C_ALIGNED:
                value = np.require(value, requirements=["C", "A"])
                converted.append(value)
            address = address_of(value)
            for word, shift in targets:
                words[word] = address + shift
        return converted

    def _bind_outputs(self, words: Any, cells: Sequence[VariableCell]) -> list[Any]:
        """Bind new arrays to the outputs; the results, which the call fills."""
        results: list[Any] = []
        for targets, shape, dtype, reference, _ in self.outputs:
            if reference >= 0:
                results.append(cells[reference])
                continue
            if not shape:
                results.append(None)  # the invocation has memory for scalars
                continue
            array = np.empty(shape, dtype)
            address = address_of(array)
            for word, shift in targets:
                words[word] = address + shift
            results.append(array)
        return results

    # Rows

    def run_rows(
        self, values: Sequence[Any], is_row: Sequence[bool], count: int
    ) -> list[Array] | None:
        """Run a program without variables and random streams once per row; the stacked outputs.

        Values with `is_row` have `count` rows: their addresses advance by a row from run to run.
        None if the reference kernels must run instead.
        """
        try:
            invocation = self._idle.pop()
        except IndexError:
            invocation = self._invocation()
        words, table, scalars = invocation.words, invocation.table, invocation.scalars
        run = table.run
        arrays = [np.require(value, requirements=["C", "A"]) for value in values]
        results = [np.empty((count, *shape), dtype) for _, shape, dtype, *_ in self.outputs]
        bound = [(targets, arrays[number], is_row[number]) for number, targets in self.inputs]
        pairs = zip(self.outputs, results, strict=True)
        bound += [(output.words, result, True) for output, result in pairs if output.shape]
        row_words = [  # with the value of the first row, and the stride from row to row in bytes
            (word, address_of(array) + shift, array.nbytes // count * moves)
            for targets, array, moves in bound
            for word, shift in targets
        ]
        for rows in range(1), range(1, count):  # the first row packs, all others reuse it
            if self._prepacked:
                invocation.select_packing()
            for row in rows:
                for word, address, stride in row_words:
                    words[word] = address + row * stride
                if (fault := run()) and table.resume(fault):
                    invocation.fault[0] = 0
                    self._idle.append(invocation)
                    return None
                for number, scalar in scalars:
                    results[number][row] = scalar
            invocation.packed_versions = invocation.versions
        self._idle.append(invocation)
        return results
