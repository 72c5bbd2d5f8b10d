"""Lowered regions as native programs.

A `NativeStep` is a region compiled for one set of shapes. A call takes a frame, a copy of the
program with memory of its own, puts the addresses of this call's arrays into its argument words,
and runs it; any number of calls may be in flight, each in its own frame.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from sys import getrefcount
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from thalweg import errors
from thalweg.codegen.cache import load_all
from thalweg.codegen.emitted import Emitted, Request
from thalweg.codegen.kernels import request
from thalweg.codegen.machine import Target, host
from thalweg.graph.node import Node, Tensor
from thalweg.loops.expr import Expr
from thalweg.loops.kernel import Argument, Contraction, Kernel
from thalweg.loops.types import Unsupported
from thalweg.lower.buffers import Buffer, Kind
from thalweg.lower.finish import Launch
from thalweg.lower.lowering import Lowered
from thalweg.lower.memory import ALIGNMENT, Arena, arrange
from thalweg.lower.schedule import Waits, threads_for, work_of
from thalweg.lower.specialise import NotCompiled
from thalweg.lower.varying import Adapted
from thalweg.ops.context import VariableCell
from thalweg.runtime.pool import Entry, Program, default_pool
from thalweg.runtime.tuner import TUNES, tune_new

Array = NDArray[Any]
#: Argument words that hold an address: which, and how far from the array's start it points.
Words = tuple[tuple[int, int], ...]
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


class OtherShape(Exception):
    """A variable was given another shape than the graph says."""


@dataclass(frozen=True, eq=False)
class Call:
    """A launch with its code: where its argument words are, when it waits, who runs it."""

    launch: Launch
    adapted: Adapted
    functions: tuple[int, ...]
    words: int
    scratch: int
    waits: tuple[bool, ...]
    owner: int

    @staticmethod
    def count_words(launch: Launch, adapted: Adapted) -> int:
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

    @property
    def emitted(self) -> Emitted:
        """Its code as LLVM text, made anew."""
        return request(self.adapted.kernel, host()).make()


class Reference(NamedTuple):
    """A variable of the region: where its address goes, and what becomes of it."""

    words: Words
    written: bool
    is_set_first: bool  # its first value may come from here
    shape: tuple[int, ...]


class Output(NamedTuple):
    """A result: a fresh array, or a variable's reference."""

    words: Words
    shape: tuple[int, ...]
    dtype: Any
    reference: int = -1


class NativeStep:
    """A region, compiled for one set of shapes."""

    def __init__(self, lowered: Lowered, adapted: Sequence[Adapted], threads: int) -> None:
        target = host()
        self.lowered = lowered
        self.adapted = adapted
        if TUNES:
            tune_new(adapted, threads)
        pairs = zip(lowered.launches, adapted, strict=True)
        requests = [kernel_request(launch, kernel.kernel, target) for launch, kernel in pairs]
        self._loaded = load_all(requests, target)
        scratch = [kernel.scratch for kernel in self._loaded]
        self.arena: Arena = arrange(lowered.launches, scratch, lowered.pieces)
        self.streams = list(lowered.streams.values())
        self.constants = _constants(lowered.launches)
        work = sum(work_of(launch.kernel) for launch in lowered.launches)
        self._pool = default_pool()
        self.threads = threads_for(lowered.launches, threads or self._pool.threads, target.l2)
        self.brief = work < _BRIEF
        self.calls = self._calls()
        self.word_count = sum(call.word_count for call in self.calls)
        self._frames: deque[Frame] = deque()
        self._find_border()

    def _calls(self) -> list[Call]:
        calls: list[Call] = []
        words = 0
        waits = Waits(self.arena)
        for position, launch in enumerate(self.lowered.launches):
            loaded, adapted = self._loaded[position], self.adapted[position]
            functions, scratch = loaded.functions, self.arena.scratch[position]
            piece = scratch, scratch + loaded.scratch
            first, owner = waits.place(launch, piece, len(functions))
            waiting = (first, *[True] * (len(functions) - 1))
            calls.append(Call(launch, adapted, functions, words, scratch, waiting, owner))
            words += calls[-1].word_count
        return calls

    def _find_border(self) -> None:
        """Where the addresses of arrays from outside go."""
        lowered = self.lowered
        region, places = lowered.spec.region, dict[Buffer, list[tuple[int, int]]]()
        for call in self.calls:
            for word, buffer, shift in call.addresses():
                places.setdefault(buffer, []).append((word, shift))

        def words(tensor: Tensor) -> Words:
            buffer = lowered.buffers.get(tensor)
            return () if buffer is None else tuple(places.get(buffer, ()))

        self.inputs = [
            (place, words(tensor))
            for place, tensor in enumerate(region.inputs)
            if tensor not in lowered.spec.values and words(tensor)
        ]
        self.references = [
            (place, self._reference(tensor, words(tensor)))
            for place, tensor in enumerate(region.references)
        ]
        self.outputs: list[Output] = []
        for tensor in region.outputs:
            shape = lowered.spec.shapes[tensor]
            if tensor in region.roots:
                root = region.references.index(region.roots[tensor])
                self.outputs.append(Output((), shape, None, root))
            else:
                dtype = lowered.buffers[tensor].dtype
                self.outputs.append(Output(words(tensor), shape, dtype))

    def _reference(self, tensor: Tensor, words: Words) -> Reference:
        buffer = self.lowered.buffers[tensor]
        set_first = buffer in self._first_calls and self._is_set_first(buffer)
        shape = self.lowered.spec.shapes[tensor]
        return Reference(words, buffer in self._written, set_first, shape)

    @cached_property
    def _written(self) -> set[Buffer]:
        return {buffer for call in self.calls for buffer in call.launch.written}

    @cached_property
    def _first_calls(self) -> dict[Buffer, Call]:
        """The first call that touches each buffer."""
        return {buffer: call for call in reversed(self.calls) for buffer in call.launch.buffers}

    def _is_set_first(self, buffer: Buffer) -> bool:
        """Whether the first thing that happens to a variable is a whole new value."""
        launch = self._first_calls[buffer].launch
        argument = launch.kernel.arguments[launch.buffers.index(buffer)]
        return argument.written and not _is_read(launch, argument)

    def __call__(
        self, context: Any, values: Sequence[Any], cells: Sequence[VariableCell]
    ) -> list[Any] | None:
        """The region's outputs, or None where native code could not settle something."""
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = Frame(self)
        words = frame.words
        try:
            lent = self._lend(words, cells) if self.references else None
        except (errors.FailedPreconditionError, OtherShape):
            self._frames.append(frame)
            return None
        held = self._enter(words, values) if self.inputs else None
        results = self._results(words, cells)
        for row, buffer in enumerate(self.streams):
            frame.streams[row] = self._stream(context, buffer.source)
        fault = self._pool.run(frame.program)
        if fault:
            frame.fault[0] = 0
            self._take_back(cells)
        for place, scalar in frame.scalars:
            results[place] = scalar[()]
        self._frames.append(frame)
        del held, lent  # until here the arrays had to live
        return None if fault else results

    def by_rows(self, values: Sequence[Any], is_row: Sequence[bool], count: int) -> Rows | None:
        """The outputs, row by row, of a step without variables and random streams.

        The same program runs for each row, its addresses moved on. None where a row could not be
        settled.
        """
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = Frame(self)
        words, run, program = frame.words, self._pool.run, frame.program
        held = [np.require(value, requirements=["C", "A"]) for value in values]
        results = [np.empty((count, *shape), dtype) for _, shape, dtype, _ in self.outputs]
        moves = [*self._row_inputs(held, is_row, count), *self._row_outputs(results, count)]
        fault = 0
        for row in range(count):
            for word, address, stride in moves:
                words[word] = address + row * stride
            fault = run(program)
            if fault:
                frame.fault[0] = 0
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

    def _take_back(self, cells: Sequence[VariableCell]) -> None:
        """After a fault: a variable that was to get its first value here has none."""
        for place, reference in self.references:
            if reference.is_set_first:
                cells[place].withdraw()

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

    def _lend(self, words: Any, cells: Sequence[VariableCell]) -> list[Any]:
        """Put the addresses of the variables in place; their buffers, which must live meanwhile."""
        lent: list[Any] = []
        for place, (targets, written, is_set_first, shape) in self.references:
            cell = cells[place]
            buffer = cell.buffer
            if buffer is None or is_set_first:
                buffer = cell.prepared(shape) if is_set_first else cell.lend()
            if buffer.shape != shape:
                raise OtherShape
            if written and getrefcount(buffer) > 3:  # a reader holds a view: let it
                buffer = None
                buffer = cell.own()
            address = address_of(buffer)
            lent.append(buffer)
            for word, shift in targets:
                words[word] = address + shift
        return lent

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

    def _stream(self, context: Any, node: Node) -> Array:
        """The place in a random stream that this run takes."""
        values = self.lowered.spec.values
        inputs = [values.get(tensor) for tensor in node.inputs]
        return node.op.stream(context.at(node), *inputs)


class Frame:
    """A program with memory of its own: what one call in flight needs."""

    def __init__(self, step: NativeStep) -> None:
        memory = np.empty(step.arena.size + 2 * ALIGNMENT, np.uint8)
        base = -(-memory.ctypes.data // ALIGNMENT) * ALIGNMENT
        self.fault = np.zeros(8, np.int64)
        self.streams = np.zeros((max(len(step.streams), 1), 6), np.uint32)
        words = np.zeros(max(step.word_count, 1), np.int64)
        self.words: Any = memoryview(cast("Any", words))
        self._kept = (memory, step, words)
        entries: list[Entry] = []
        for call in step.calls:
            count = len(call.launch.buffers)
            words[call.words] = self.fault.ctypes.data
            for word, buffer, shift in call.addresses():
                words[word] = self._address(step, buffer, base) + shift
            words[call.words + count + 1] = base + call.scratch
            words[call.words + count + 2 : call.words + call.word_count] = call.adapted.words
            arguments = words.ctypes.data + 8 * call.words
            for function, waits in zip(call.functions, call.waits, strict=True):
                entries.append(Entry(function, arguments, waits, call.owner))
        self.scalars = self._own_scalars(step)
        fault = self.fault.ctypes.data
        self.program = Program(default_pool(), entries, fault, step.threads, step.brief)

    def _own_scalars(self, step: NativeStep) -> list[tuple[int, Array]]:
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

    def _address(self, step: NativeStep, buffer: Buffer, base: int) -> int:
        match buffer.kind:
            case Kind.TEMPORARY:
                return base + step.arena.offsets[buffer]
            case Kind.CONSTANT:
                return step.constants[buffer].ctypes.data
            case Kind.STREAM:
                return self.streams[step.streams.index(buffer)].ctypes.data
            case _:
                return 0  # known when a call runs


def _is_plain(array: Array) -> bool:
    flags = array.flags
    return flags.c_contiguous and flags.aligned


def kernel_request(launch: Launch, kernel: Kernel, target: Target) -> Request:
    return replace(request(kernel, target), explain=partial(_explained, launch))


def _explained(launch: Launch, error: Exception) -> Exception:
    """What has no machine code is run on NumPy kernels."""
    if isinstance(error, Unsupported):
        return NotCompiled(launch.nodes[0], str(error))
    return error


def _constants(launches: Sequence[Launch]) -> dict[Buffer, Array]:
    return {
        buffer: np.ascontiguousarray(buffer.source)
        for launch in launches
        for buffer in launch.buffers
        if buffer.kind is Kind.CONSTANT
    }


def _is_read(launch: Launch, argument: Argument) -> bool:
    """Whether a launch reads an argument that it writes."""
    kernel = launch.kernel
    if any(s.combine != "set" for s in kernel.stores if s.argument is argument):
        return True
    pending: list[Any] = [store.value for store in kernel.stores]
    if isinstance(kernel, Contraction):
        pending += [kernel.a.value, kernel.b.value]
    while pending:
        part = pending.pop()
        if not isinstance(part, Expr):
            continue
        if part.function != "load":
            pending += part.arguments
        elif part.arguments[0] is argument:
            return True
        else:
            pending += [term for _, term in part.arguments[1].terms]
    return False
