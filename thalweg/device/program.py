"""The base classes of programs, which borrow the buffers of variables for each call.

A call registers its use of variables, borrows their buffers, writes the addresses into the argument
words of its invocation and runs it. A variable that a region initialises gets its buffer only
after the call has succeeded.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from thalweg.device.program_template import ProgramTemplate, Reference
from thalweg.lower.specialise import Region
from thalweg.ops.core.buffer import Buffer
from thalweg.ops.core.context import VariableCell
from thalweg.ops.state.variable_uses import USES, Use

if TYPE_CHECKING:
    from thalweg.device.compiled_kernel import CompiledKernel
    from thalweg.lower.lowered import Lowered
    from thalweg.lower.memory.arena import Arena

#: New buffers of variables that a call initialises; assigned to the cells when it has succeeded.
FirstValues = dict[VariableCell, Buffer]
#: Nanoseconds: [entry, thread, begin and end]; zeros where a thread did not run the entry.
Times = NDArray[np.int64]


class AnyInvocation(Protocol):
    """The state of one call in flight."""

    use: Use[VariableCell]
    addresses: list[int]  # the address of each variable that its argument words hold now
    versions: Any  # those of the `packed_references` that the next call reads
    early: Any  # the early outputs that the program signals
    deliver: Any  # takes the early outputs of the next call

    def bind(self, targets: Any, address: int) -> None:
        """Let what is bound to the targets be at an address."""
        ...

    def close(self) -> None:
        """Free its memory, after a call that did not end."""
        ...


InvocationT = TypeVar("InvocationT", bound=AnyInvocation)
CallT = TypeVar("CallT")


@dataclass(frozen=True, eq=False)
class Listing(Generic[CallT]):
    """What a program was compiled from: the lowered region, the launches with their code, and the
    memory plan of the temporaries. Only needed to print, profile and tune it."""

    lowered: Lowered
    calls: Sequence[CallT]
    arena: Arena


class NativeProgram(ABC, Generic[InvocationT]):
    """A region or a control node, loaded for one set of shapes. Any number of threads may call it
    at once."""

    template: Any  # what the program cache stores of it
    packed_references: Sequence[int] = ()  # variables whose packed values invocations cache

    def __init__(self, references: Sequence[Reference]) -> None:
        self.references = references
        self.written = [n for n, reference in enumerate(references) if reference.written]
        self.exclusive = frozenset(n for n in self.written if references[n].exclusive)
        # Reads of a single element are atomic: a call that makes no others need not register.
        sizes = [math.prod(reference.shape) for reference in references]
        self.registers_use = bool(self.written) or any(size > 1 for size in sizes)
        self._idle = deque[InvocationT]()  # invocations of calls that have ended

    def __call__(
        self,
        context: Any,
        values: Sequence[Any],
        cells: Sequence[VariableCell],
        deliver: Callable[[int, Any], None] | None = None,
    ) -> list[Any] | None:
        """Run it: the outputs, or None if a check failed and the reference kernels must run
        instead.

        `deliver` is called with (number, value) for early outputs while the program runs.
        """
        try:
            invocation = self._idle.pop()
        except IndexError:
            invocation = self._invocation()
        if deliver is not None and invocation.early:
            invocation.deliver = deliver
        try:
            if not cells:
                results = self._run(invocation, context, values)
            else:
                invocation.use.cells = cells
                run = self._run_registered if self.registers_use else self._run_borrowing
                results = run(invocation, context, values)
                invocation.use.cells = ()
        except BaseException:
            # A signal or a cancellation may have stopped the call, even while its use was requeued.
            USES.end(invocation.use)
            invocation.close()
            raise
        self._idle.append(invocation)
        return results

    @abstractmethod
    def _invocation(self) -> InvocationT:
        """A new invocation."""

    @abstractmethod
    def _run(
        self, invocation: InvocationT, context: Any, values: Sequence[Any]
    ) -> list[Any] | None:
        """Run a call whose variables are bound."""

    def _new_use(self) -> Use[VariableCell]:
        """What an invocation registers its use of variables with."""
        return Use[VariableCell]((), self.written, self.exclusive)

    def _run_registered(
        self, invocation: InvocationT, context: Any, values: Sequence[Any]
    ) -> list[Any] | None:
        """Run, registered with `USES`: other steps may use the same variables."""
        use, uses = invocation.use, USES.uses
        try:
            uses.append(use)
            if uses[0] is not use:
                USES.wait(use, context.cancellation)
            return self._run_borrowing(invocation, context, values)
        finally:
            uses.remove(use)
            use.buffers = ()
            if USES.waiting:
                USES.wake()

    def _run_borrowing(
        self, invocation: InvocationT, context: Any, values: Sequence[Any]
    ) -> list[Any] | None:
        cells = invocation.use.cells
        if self.written:
            with USES.mutex:
                borrowed = [cell.buffer for cell in cells]
                first = self._borrow(invocation, borrowed)
                invocation.use.buffers = borrowed
        else:  # the list keeps the buffers alive
            borrowed = [cells[0].buffer] if len(cells) == 1 else [cell.buffer for cell in cells]
            first = self._borrow(invocation, borrowed)
        if first is None:
            return None
        if self.packed_references:
            packed = [cast("Buffer", borrowed[n]) for n in self.packed_references]
            invocation.versions = [buffer.version for buffer in packed]
        try:
            results = self._run(invocation, context, values)
        finally:
            if self.written:
                buffers = cast("list[Buffer]", borrowed)
                Buffer.touch_all([buffers[n] for n in self.written])
        if first and results is not None:
            for cell, buffer in first.items():
                cell.buffer = buffer
        return results

    def _borrow(self, invocation: InvocationT, borrowed: list[Buffer | None]) -> FirstValues | None:
        """Bind the variables' buffers; those allocated, or None if a variable has no value or
        another shape. Replaces in `borrowed` the buffers that are allocated or copied."""
        first: FirstValues = {}
        addresses = invocation.addresses
        for number, (_, shape, written, may_initialize, _) in enumerate(self.references):
            buffer = borrowed[number]
            if buffer is None or buffer.shape != shape:
                if not may_initialize:
                    return None
                cell = invocation.use.cells[number]
                if cell not in first:  # two references may be of one variable
                    first[cell] = cell.allocate(shape)
                buffer = borrowed[number] = first[cell]
            elif written and buffer.leases:
                buffer = self._copy_on_write(invocation, borrowed, number)
            if buffer.address != addresses[number]:
                addresses[number] = buffer.address
                self._bind_variable(invocation, number, buffer.address)
        return first

    def _copy_on_write(
        self, invocation: InvocationT, borrowed: list[Buffer | None], number: int
    ) -> Buffer:
        """Copy a leased buffer, and bind the copy to all references of its variable."""
        cells = invocation.use.cells
        buffer = cells[number].copy_on_write()
        for other, cell in enumerate(cells):
            if cell is cells[number]:
                borrowed[other], invocation.addresses[other] = buffer, buffer.address
                self._bind_variable(invocation, other, buffer.address)
        return buffer

    def _bind_variable(self, invocation: InvocationT, number: int, address: int) -> None:
        """Bind the address of a variable's buffer."""
        invocation.bind(self.references[number].words, address)


class DeviceProgram(NativeProgram[InvocationT], Generic[InvocationT, CallT]):
    """A region, loaded for one set of shapes.

    Calls need nothing but the template; `listing` is called for printing, profiling and tuning.
    """

    holds_gil: bool  # a call is shorter than the interpreter's switch interval
    work: float  # the estimated number of vector instructions of a call
    gives_host_values: bool = False  # all results are host arrays, none a buffer of the device

    def __init__(
        self, template: ProgramTemplate, region: Region, listing: Callable[[], Listing[CallT]]
    ) -> None:
        super().__init__(template.references)
        self._make_listing = listing
        self.inputs, self.outputs = template.inputs, template.outputs
        self.output_shapes = [output.shape for output in template.outputs]
        self.streams = [(region.nodes[stream.node], stream.values) for stream in template.streams]

    @cached_property
    def listing(self) -> Listing[CallT]:
        """What it was compiled from."""
        return self._make_listing()

    @property
    def has_run(self) -> bool:
        """Whether a call has ended since memory was last released."""
        return bool(self._idle)

    @abstractmethod
    def run_rows(
        self, values: Sequence[Any], is_row: Sequence[bool], count: int
    ) -> list[NDArray[Any]] | None:
        """Run once per row of the values with `is_row`; the outputs, stacked. None where a call
        would return None."""

    @abstractmethod
    def release_memory(self) -> None:
        """Free the memory of idle invocations; the next call allocates again."""

    @abstractmethod
    def compiled_kernels(self) -> list[CompiledKernel]:
        """The kernels of its launches, in order."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """How it runs, as text."""

    @abstractmethod
    def timed(
        self, context: Any, values: Sequence[Any], cells: Sequence[VariableCell]
    ) -> tuple[list[Any] | None, Times]:
        """A call, and the begin and end of each entry of its kernels."""


AnyProgram = DeviceProgram[Any, Any]
