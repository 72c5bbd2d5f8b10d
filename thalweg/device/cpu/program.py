"""Lowered regions as programs that the threads of a CPU run.

A `Program` is a region compiled for one set of shapes. A call takes an `Invocation`, puts the
addresses of this call's arrays and variables into its argument words, and has the pool run its step
table; any number of calls may be in flight, each in its own invocation.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from thalweg.codegen.cache import Loaded
from thalweg.device.cpu.courier import Deliver, follow
from thalweg.device.cpu.invocation import Invocation, address_of
from thalweg.device.cpu.pool import Pool, StepTable
from thalweg.device.cpu.table_template import TableTemplate
from thalweg.device.program import DeviceProgram, Listing, Times
from thalweg.lower.specialise import Region
from thalweg.ops.core.context import VariableCell
from thalweg.platform.amounts import plural

if TYPE_CHECKING:
    from thalweg.device.compiled_kernel import CompiledKernel
    from thalweg.device.cpu.listing import Call

Array = NDArray[Any]
#: An argument word, the address it begins with, and how far that moves from row to row.
Move = tuple[int, int, int]

_PLAIN = 0x101  # NumPy's flags of an array that is contiguous, in the order of C, and aligned


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
        self.work = float(sum(call.work for call in template.calls))
        self.kept = template.kept
        self._keeps = any(call.keeps for call in template.calls)
        self._idle = deque()

    def __call__(
        self,
        context: Any,
        values: Sequence[Any],
        cells: Sequence[VariableCell],
        deliver: Deliver | None = None,
    ) -> list[Any] | None:
        """The region's outputs, or None where its reference kernels must decide."""
        try:
            invocation = self._idle.pop()
        except IndexError:
            invocation = self._invocation()
        if deliver is not None and invocation.early:
            invocation.deliver = deliver
        if not cells:
            results = self._run(invocation, context, values, cells)
        elif self.shares:
            results = self._run_registered(invocation, context, values, cells)
        else:
            results = self._run_borrowing(invocation, context, values, cells)
        self._idle.append(invocation)  # unless it was left half way, stopped by a signal or a check
        return results

    def release_memory(self) -> None:
        """Free the memory of calls that are over; the next one allocates again."""
        self._idle.clear()

    def compiled_kernels(self) -> list[CompiledKernel]:
        """The kernels of its launches, in order."""
        # Most programs never ask.
        made = importlib.import_module("thalweg.device.cpu.compiled_kernel")
        return [made.CpuKernel(call, self.pool, self.threads) for call in self.calls]

    @property
    def summary(self) -> str:
        """On how many threads it runs, and how often they meet."""
        barriers = sum(kernel.barriers for kernel in self.compiled_kernels())
        keeping = sum(call.keeps for call in self.template.calls)
        kept = f", weights of {plural(keeping, 'kernel')} packed once" if keeping else ""
        return f"on {plural(self.threads, 'thread')}, {plural(barriers, 'barrier')}{kept}"

    def timed(
        self, context: Any, values: Sequence[Any], cells: Sequence[VariableCell]
    ) -> tuple[list[Any] | None, Times]:
        """The same as a call, and when the entries of its kernels began and ended."""
        timed = _TimedProgram(self, context.cancellation.check)
        return timed(context, values, cells), timed.clock.times

    def _invocation(self) -> Invocation:
        functions = [kernel.functions for kernel in self.loaded]
        return Invocation(self.template, functions, self.pool, self._use())

    def _run(
        self,
        invocation: Invocation,
        context: Any,
        values: Sequence[Any],
        cells: Sequence[VariableCell],
    ) -> list[Any] | None:
        words = invocation.words
        held = self._bind_inputs(words, values) if self.inputs else None
        results = self._bind_outputs(words, cells)
        if self.streams:
            self._draw(invocation, context)
        table = invocation.begin() if self._keeps else invocation.table
        if invocation.deliver is None:
            fault = self.pool.run(table)
        else:
            fault = self._run_delivering(invocation, context, results)
        if fault:
            fault = self.pool.resume(table, fault, context.cancellation.check)
            invocation.fault[0] = 0
        if self._keeps and not fault:
            invocation.packed = invocation.versions
        for place, scalar in invocation.scalars:
            results[place] = scalar[()]
        del held  # until here the arrays had to live
        return None if fault else results

    def _run_delivering(self, invocation: Invocation, context: Any, results: Sequence[Any]) -> int:
        """Run to the end while the results that are signalled are delivered; the fault code."""
        arrays = [*results]
        for place, scalar in invocation.scalars:
            arrays[place] = scalar
        deliver, invocation.deliver = cast("Deliver", invocation.deliver), None
        delivery = follow(invocation.early, arrays, deliver)
        fault, table = -1, invocation.table
        try:
            fault = self.pool.resume(table, self.pool.run(table), context.cancellation.check)
        finally:
            delivery.end(is_complete=not fault)
        return fault

    def _draw(self, invocation: Invocation, context: Any) -> None:
        """Take from the random streams what the step needs of them."""
        for row, (node, known) in enumerate(self.streams):
            invocation.streams[row] = node.op.stream(context.at(node), *known)

    def _note(self, invocation: Invocation, versions: Sequence[int]) -> None:
        """Have a call pack again what was made of other versions."""
        invocation.versions = versions

    # Arrays

    def _bind_inputs(self, words: Any, values: Sequence[Any]) -> list[Array]:
        """Bind the inputs; the arrays that must live until the step ends."""
        held: list[Array] = []
        for place, targets in self.inputs:
            value: Any = values[place]
            if type(value) is not np.ndarray or value.flags.num & _PLAIN != _PLAIN:
                value = np.require(value, requirements=["C", "A"])
                held.append(value)
            address = address_of(value)
            for word, shift in targets:
                words[word] = address + shift
        return held

    def _bind_outputs(self, words: Any, cells: Sequence[VariableCell]) -> list[Any]:
        """Bind fresh memory; the results, which the step is to fill."""
        results: list[Any] = []
        for targets, shape, dtype, reference, _ in self.outputs:
            if reference >= 0:
                results.append(cells[reference])
                continue
            if not shape:
                results.append(None)  # the invocation has memory for it
                continue
            array = np.empty(shape, dtype)
            address = address_of(array)
            for word, shift in targets:
                words[word] = address + shift
            results.append(array)
        return results

    # Rows

    def by_rows(
        self, values: Sequence[Any], is_row: Sequence[bool], count: int
    ) -> list[Array] | None:
        """The outputs, row by row, of a step without variables and random streams.

        The same program runs for each row, its addresses moved on. None where the reference kernels
        must decide.
        """
        try:
            invocation = self._idle.pop()
        except IndexError:
            invocation = self._invocation()
        words, table, keeps = invocation.words, invocation.table, self._keeps
        run = self.pool.runner(table)
        held = [np.require(value, requirements=["C", "A"]) for value in values]
        results = [np.empty((count, *shape), dtype) for _, shape, dtype, *_ in self.outputs]
        moves = [*self._row_inputs(held, is_row, count), *self._row_outputs(results, count)]
        fault = 0
        for row in range(count):
            for word, address, stride in moves:
                words[word] = address + row * stride
            if keeps and row < 2:  # the first one packs what all others find
                table = invocation.begin()
                run = self.pool.runner(table)
            fault = run()
            if fault:
                fault = self.pool.resume(table, fault)
                invocation.fault[0] = 0
            if fault:
                break
            invocation.packed = invocation.versions
            for place, scalar in invocation.scalars:
                results[place][row] = scalar
        self._idle.append(invocation)
        return None if fault else results

    def _row_inputs(self, held: Sequence[Array], is_row: Sequence[bool], count: int) -> list[Move]:
        return [
            (word, address_of(held[place]) + shift, held[place].nbytes // count * is_row[place])
            for place, targets in self.inputs
            for word, shift in targets
        ]

    def _row_outputs(self, results: Sequence[Array], count: int) -> list[Move]:
        return [
            (word, address_of(result) + shift, result.nbytes // count)
            for (targets, shape, *_), result in zip(self.outputs, results, strict=True)
            if shape  # of a single number the invocation has memory
            for word, shift in targets
        ]


class _Clock(Pool):
    """The pool as a step sees it while it is timed."""

    def __init__(self, pool: Pool, check: Callable[[], None], entry_count: int) -> None:
        vars(self).update(vars(pool))  # programs are laid out for the pool itself
        self._pool, self._check, self._entry_count = pool, check, entry_count
        self.times: Times = np.zeros((0, 1, 2), np.int64)

    def run(self, program: StepTable) -> int:
        """Run a step to its end, noting its times."""
        times = self.times = self._pool.timed(program, self._check)
        if program.places is not None:
            self.times = np.zeros((self._entry_count, *times.shape[1:]), np.int64)
            self.times[list(program.places)] = times
        return program.fault.value


class _TimedProgram(Program):
    """A program that keeps the times of its last run. It shares all else with the original."""

    def __init__(self, program: Program, check: Callable[[], None]) -> None:
        vars(self).update(vars(program))
        entries = sum(len(program.loaded[call.kernel].functions) for call in program.template.calls)
        self.pool = self.clock = _Clock(program.pool, check, entries)
