"""Lowered regions as native programs.

A `NativeStep` is a region compiled for one set of shapes. A call takes a frame, a copy of the
program with memory of its own, puts the addresses of this call's arrays into its argument words,
and runs it; any number of calls may be in flight, each in its own frame.
"""

from __future__ import annotations

import ctypes
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from sys import getrefcount
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from thalweg.codegen.cache import Loaded, load_all, name_of
from thalweg.codegen.kernels import request
from thalweg.codegen.llvm.emitted import Emitted, Request
from thalweg.codegen.machine import CpuTarget
from thalweg.control.effects import locks_updates
from thalweg.device.cpu.pool import Entry, Pool, StepTable
from thalweg.device.cpu.program_template import (
    STREAM_BYTES,
    Border,
    Layout,
    PlacedCall,
    ProgramTemplate,
)
from thalweg.device.cpu.tuner import TUNES, tune_new
from thalweg.device.device import DeviceProgram
from thalweg.ir.functions.dtypes import Unsupported
from thalweg.ir.kernel import Kernel
from thalweg.lower.dynamic_shapes import SpecializedKernel
from thalweg.lower.lowering import Lowered
from thalweg.lower.memory.arena import ALIGNMENT, Arena, arrange
from thalweg.lower.memory.barriers import BarrierPlan, amid_updates, threads_for, work_of
from thalweg.lower.memory.buffers import Buffer
from thalweg.lower.nests.bufferize import Launch
from thalweg.lower.specialise import NotCompiled, Region
from thalweg.ops.core.context import VariableCell
from thalweg.ops.state.variable_uses import USES, Use

Array = NDArray[Any]
#: An argument word, the address it begins with, and how far that moves from row to row.
Move = tuple[int, int, int]
#: One array for each output, with a row for each run.
Rows = list[Array]

_BRIEF = 20_000.0  # work below which a step keeps the interpreter's lock: it is done in moments

_DATA = 16  # where an array object keeps the address of its elements
_word_at = ctypes.c_int64.from_address


def _address_by_layout(array: Array) -> int:
    """The address of an array's elements, read where CPython's NumPy keeps it: seven times faster
    than asking."""
    return _word_at(id(array) + _DATA).value


def _address_by_asking(array: Array) -> int:
    return array.ctypes.data


_probe = np.zeros(3)
address_of = (
    _address_by_layout if _address_by_layout(_probe) == _probe.ctypes.data else _address_by_asking
)


@dataclass(frozen=True, eq=False)
class Call:
    """A launch with its code: where its argument words are, when it waits, who runs it."""

    launch: Launch
    adapted: SpecializedKernel
    functions: tuple[int, ...]
    words: int
    scratch: int
    waits: tuple[bool, ...]
    owner: int
    held: bool  # it goes on with an update of a variable: no stop before it
    work: int

    def entries(self, arguments: int) -> list[Entry]:
        """Its calls of functions, on argument words at an address."""
        first = any(self.waits[:1])
        return entries_of(self.functions, arguments, first, self.owner, self.held, self.work)

    @staticmethod
    def count_words(launch: Launch, adapted: SpecializedKernel) -> int:
        """How many words a launch takes: the fault word, buffers, scratch and sizes."""
        return len(launch.buffers) + 2 + len(adapted.words)

    @property
    def word_count(self) -> int:
        """How many words its arguments take."""
        return self.count_words(self.launch, self.adapted)

    def addresses(self) -> Iterator[tuple[int, Buffer, int]]:
        """For each argument its word, its buffer, and how many bytes into it it begins."""
        launch = self.launch
        for number, buffer in enumerate(launch.buffers):
            shift = launch.starts[number] * np.dtype(buffer.dtype).itemsize
            yield self.words + 1 + number, buffer, shift

    def emitted(self, target: CpuTarget) -> Emitted:
        """Its code as LLVM text."""
        return request(self.adapted.kernel, target).make()


@dataclass(frozen=True, eq=False)
class Listing:
    """What a step was made of, for those who read its plan."""

    lowered: Lowered
    calls: Sequence[Call]
    arena: Arena


class Program(DeviceProgram):
    """A region, compiled for one set of shapes.

    All that a call needs is in the template; `listing` gives what it was made of.
    """

    template: ProgramTemplate

    def __init__(
        self,
        template: ProgramTemplate,
        loaded: Sequence[Loaded],
        region: Region,
        listing: Callable[[], Listing],
        pool: Pool,
    ) -> None:
        self.template, self.loaded = template, loaded
        self.functions = [kernel.functions for kernel in loaded]
        self.threads, self.holds_gil = template.threads, template.holds_gil
        self.inputs, self.references, self.outputs = (
            template.inputs,
            template.references,
            template.outputs,
        )
        self.output_shapes = [output.shape for output in template.outputs]
        self.streams = [(region.nodes[stream.node], stream.values) for stream in template.streams]
        self.written = [place for place, reference in self.references if reference.written]
        self.exclusive = _exclusive_places(region)
        # One element is read in one operation: such a step sees nothing that is half written.
        sizes = [math.prod(reference.shape) for _, reference in self.references]
        self.shares = bool(self.written) or any(size > 1 for size in sizes)
        self._list = listing
        self.pool = pool
        self._frames: deque[Invocation] = deque()

    @cached_property
    def _listing(self) -> Listing:
        return self._list()

    @property
    def lowered(self) -> Lowered:
        """The region as it was lowered."""
        return self._listing.lowered

    @property
    def calls(self) -> Sequence[Call]:
        """The launches with their code."""
        return self._listing.calls

    @property
    def arena(self) -> Arena:
        """Where the temporaries lie."""
        return self._listing.arena

    def __call__(
        self, context: Any, values: Sequence[Any], cells: Sequence[VariableCell]
    ) -> list[Any] | None:
        """The region's outputs, or None where native code could not settle something."""
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = Invocation(self)
        if self.shares:
            results = self._run_shared(frame, context, values, cells)
        else:
            results = self._run(frame, context, values, cells)
        self._frames.append(frame)  # unless it was left half way, stopped by a signal or a check
        return results

    def _run_shared(
        self, frame: Invocation, context: Any, values: Sequence[Any], cells: Sequence[VariableCell]
    ) -> list[Any] | None:
        """Run where other steps may use the variables at the same time."""
        use, uses = frame.use, USES.uses
        use.cells = cells
        try:
            uses.append(use)
            if uses[0] is not use:
                USES.wait(use, context.cancellation)
            return self._run(frame, context, values, cells)
        finally:
            uses.remove(use)
            use.cells = use.buffers = ()
            if USES.waiting:
                USES.wake()

    def _run(
        self, frame: Invocation, context: Any, values: Sequence[Any], cells: Sequence[VariableCell]
    ) -> list[Any] | None:
        words = frame.words
        fresh: dict[VariableCell, Array] = {}
        lent: list[Array] = []
        if self.written:
            with USES.mutex:
                frame.use.buffers = lent
                is_bound = self._lend(words, cells, lent, fresh)
        else:
            is_bound = not self.references or self._lend(words, cells, lent, fresh)
        if not is_bound:
            return None
        held = self._enter(words, values) if self.inputs else None
        results = self._results(words, cells)
        if self.streams:
            self._draw(frame, context)
        fault = self.pool.run(frame.program)
        if fault or fresh:
            fault = self._settled(frame, fault, fresh, context)
        for place, scalar in frame.scalars:
            results[place] = scalar[()]
        del held, lent  # until here the arrays had to live
        return None if fault else results

    def release_memory(self) -> None:
        """Let go of the memory of calls that are over; the next one takes fresh memory."""
        self._frames.clear()

    def _settled(
        self, frame: Invocation, fault: int, fresh: dict[VariableCell, Array], context: Any
    ) -> int:
        """Go on where the program paused; give variables their first values if all went well.

        These are whole then: the step was neither left by a fault nor stopped.
        """
        if fault:
            fault = self.pool.run_on(frame.program, fault, context.cancellation.check)
            frame.fault[0] = 0
        if not fault:
            for cell, buffer in fresh.items():
                cell.buffer = buffer
        return fault

    def _draw(self, frame: Invocation, context: Any) -> None:
        """Take from the random streams what the step needs of them."""
        for row, (node, known) in enumerate(self.streams):
            frame.streams[row] = node.op.stream(context.at(node), *known)

    def by_rows(self, values: Sequence[Any], is_row: Sequence[bool], count: int) -> Rows | None:
        """The outputs, row by row, of a step without variables and random streams.

        The same program runs for each row, its addresses moved on. None where a row could not be
        settled.
        """
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = Invocation(self)
        words, run, program = frame.words, self.pool.run, frame.program
        held = [np.require(value, requirements=["C", "A"]) for value in values]
        results = [np.empty((count, *shape), dtype) for _, shape, dtype, _ in self.outputs]
        moves = [*self._row_inputs(held, is_row, count), *self._row_outputs(results, count)]
        fault = 0
        for row in range(count):
            for word, address, stride in moves:
                words[word] = address + row * stride
            fault = run(program)
            if fault:
                fault = self.pool.run_on(program, fault)
                frame.fault[0] = 0
            if fault:
                break
            for place, scalar in frame.scalars:
                results[place][row] = scalar
        self._frames.append(frame)
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
            for (targets, shape, _, _), result in zip(self.outputs, results, strict=True)
            if shape  # of a single number the frame has a place
            for word, shift in targets
        ]

    def _enter(self, words: Any, values: Sequence[Any]) -> list[Array]:
        """Put the addresses of the inputs in place; the arrays that must live meanwhile."""
        held: list[Array] = []
        for place, targets in self.inputs:
            value: Any = values[place]
            if type(value) is not np.ndarray or not _is_plain(value):
                value = np.require(value, requirements=["C", "A"])
                held.append(value)
            address = address_of(value)
            for word, shift in targets:
                words[word] = address + shift
        return held

    def _lend(
        self,
        words: Any,
        cells: Sequence[VariableCell],
        lent: list[Array],
        fresh: dict[VariableCell, Array],
    ) -> bool:
        """Put the addresses of the variables in place; whether these are as expected.

        Their buffers are gathered: they must live meanwhile. Variables that get their first value
        here are noted in `fresh`, with its memory.
        """
        for place, (targets, written, is_set_first, shape) in self.references:
            cell = cells[place]
            buffer = cell.buffer
            if is_set_first:
                buffer = _first(cell, shape, fresh)
            if buffer is None or buffer.shape != shape:
                return False
            if written and getrefcount(buffer) > 3 and buffer is cell.buffer:  # others hold it
                buffer = None
                buffer = cell.lend_to_write()
            address = address_of(buffer)
            lent.append(buffer)
            for word, shift in targets:
                words[word] = address + shift
        return True

    def _results(self, words: Any, cells: Sequence[VariableCell]) -> list[Any]:
        results: list[Any] = []
        for targets, shape, dtype, reference in self.outputs:
            if reference >= 0:
                results.append(cells[reference])
                continue
            if not shape:
                results.append(None)  # the frame has a place for it
                continue
            array = np.empty(shape, dtype)
            address = address_of(array)
            for word, shift in targets:
                words[word] = address + shift
            results.append(array)
        return results


class Invocation:
    """A program with memory of its own: what one call in flight needs."""

    def __init__(self, step: Program) -> None:
        template = step.template
        memory = np.empty(template.arena + 2 * ALIGNMENT, np.uint8)
        base = -(-memory.ctypes.data // ALIGNMENT) * ALIGNMENT
        self.fault = np.zeros(8, np.int64)
        self.streams = np.zeros((max(len(step.streams), 1), STREAM_BYTES // 4), np.uint32)
        known = [self.fault.ctypes.data, base, self.streams.ctypes.data]  # in the order of bases
        known += [constant.ctypes.data for constant in template.constants]
        words = np.array([0, *known], np.int64)[template.bases] + template.words
        self.words: Any = memoryview(cast("Any", words))
        self._kept = (memory, step, words)
        entries: list[Entry] = []
        for kernel, word, waits, owner, held, work in template.calls:
            arguments = words.ctypes.data + 8 * word
            entries += entries_of(step.functions[kernel], arguments, waits, owner, held, work)
        self.scalars = self._own_scalars(step)
        self.use = Use[VariableCell]((), step.written, step.exclusive)
        fault = self.fault.ctypes.data
        self.program = StepTable(step.pool, entries, fault, step.threads, step.holds_gil)

    def _own_scalars(self, step: Program) -> list[tuple[int, Array]]:
        """Places for results of a single number, which are read when the program has run."""
        found: list[tuple[int, Array]] = []
        for number, (targets, shape, dtype, reference) in enumerate(step.outputs):
            if shape or reference >= 0:
                continue
            scalar = np.zeros((), dtype)
            found.append((number, scalar))
            for word, shift in targets:
                self.words[word] = scalar.ctypes.data + shift
        return found


def _exclusive_places(region: Region) -> frozenset[int]:
    """The variables that updates with locking write."""
    updates = [node for node in region.nodes if locks_updates(node)]
    written = [node.inputs[place] for node in updates for place in node.op.parsed.references]
    return frozenset(region.references.index(region.roots[t]) for t in written if t in region.roots)


def entries_of(
    functions: Sequence[int], arguments: int, waits: bool, owner: int, held: bool, work: int
) -> list[Entry]:
    """The calls of a kernel's functions, each of which goes on with what those before began."""
    return [
        Entry(function, arguments, waits or phase > 0, owner, held or phase > 0, work)
        for phase, function in enumerate(functions)
    ]


def _first(cell: VariableCell, shape: tuple[int, ...], fresh: dict[VariableCell, Array]) -> Array:
    """Where a variable's whole new value goes: memory that is noted in `fresh` if not its own."""
    if cell in fresh:  # under another name
        return fresh[cell]
    buffer = cell.prepared(shape)
    if buffer is not cell.buffer:
        fresh[cell] = buffer
    return buffer


def _is_plain(array: Array) -> bool:
    flags = array.flags
    return flags.c_contiguous and flags.aligned


def kernel_request(launch: Launch, kernel: Kernel, target: CpuTarget) -> Request:
    return replace(request(kernel, target), explain=partial(_explained, launch))


def _explained(launch: Launch, error: Exception) -> Exception:
    """What has no machine code is run on NumPy kernels."""
    if isinstance(error, Unsupported):
        return NotCompiled(launch.nodes[0], str(error))
    return error


def make_program(
    lowered: Lowered, adapted: Sequence[SpecializedKernel], pool: Pool, threads: int
) -> Program:
    """A lowered region as a program of a pool, on at most so many of its threads."""
    if TUNES:
        tune_new(adapted, pool, threads)
    target, launches = pool.target, lowered.launches
    pairs = zip(launches, adapted, strict=True)
    users = {kernel.kernel: launch for launch, kernel in pairs}  # many launches are of one kernel
    requests = [kernel_request(launch, kernel, target) for kernel, launch in users.items()]
    of_kernel = dict(zip(users, [name_of(request, target) for request in requests], strict=True))
    names = [of_kernel[kernel.kernel] for kernel in adapted]
    loaded = dict(zip(of_kernel.values(), load_all(requests, target), strict=True))
    every = [loaded[name] for name in names]
    listing = listed(lowered, adapted, every)
    layout = Layout(listing.arena, list(lowered.streams.values()))
    for call in listing.calls:
        layout.add(call.launch, call.scratch, call.adapted.words)
    border = Border(lowered, layout.places)
    template = ProgramTemplate(
        tuple(loaded),
        _placed(listing.calls, names, list(loaded)),
        np.array(layout.words or [0], np.int64),
        np.array(layout.bases or [0], np.int64),
        layout.constants,
        border.streams(),
        border.inputs(),
        border.references(),
        border.outputs(),
        listing.arena.size,
        threads_for(launches, threads, target.l2),
        sum(work_of(launch.kernel) for launch in launches) < _BRIEF,
    )
    return Program(template, list(loaded.values()), lowered.spec.region, lambda: listing, pool)


def listed(
    lowered: Lowered, adapted: Sequence[SpecializedKernel], loaded: Sequence[Loaded]
) -> Listing:
    """The launches of a region with their code: where each is placed, when it waits."""
    arena = arrange(lowered.launches, [kernel.scratch for kernel in loaded], lowered.pieces)
    calls: list[Call] = []
    words = 0
    waits, held = BarrierPlan(arena), amid_updates(lowered.launches)
    for position, launch in enumerate(lowered.launches):
        functions, scratch = loaded[position].functions, arena.scratch[position]
        piece = scratch, scratch + loaded[position].scratch
        first, owner = waits.place(launch, piece, len(functions))
        waiting = (first, *[True] * (len(functions) - 1))
        amount = held[position], int(work_of(launch.kernel))
        calls.append(
            Call(launch, adapted[position], functions, words, scratch, waiting, owner, *amount)
        )
        words += calls[-1].word_count
    return Listing(lowered, calls, arena)


def _placed(
    calls: Sequence[Call], names: Sequence[str], kernels: Sequence[str]
) -> list[PlacedCall]:
    numbers = {name: number for number, name in enumerate(kernels)}
    return [
        PlacedCall(numbers[name], call.words, call.waits[0], call.owner, call.held, call.work)
        for call, name in zip(calls, names, strict=True)
    ]
