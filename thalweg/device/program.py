"""What the programs of all devices have in common: variables, and how calls borrow them.

A call registers the use of its variables, borrows their buffers, puts the addresses into the
argument words of its invocation and runs it. A variable whose first value comes from the region
has it once the call has ended well.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from thalweg.device.program_template import ProgramTemplate
from thalweg.lower.specialise import Region
from thalweg.ops.core.buffer import Buffer
from thalweg.ops.core.context import VariableCell
from thalweg.ops.state.variable_uses import USES, Use

if TYPE_CHECKING:
    from thalweg.device.compiled_kernel import CompiledKernel
    from thalweg.lower.lowered import Lowered
    from thalweg.lower.memory.arena import Arena

#: First values of variables, which are theirs once the step has ended well.
FirstValues = dict[VariableCell, Buffer]
#: Nanoseconds: [entry, thread, begin and end]; zeros where a thread made no call.
Times = NDArray[np.int64]


class Borrower(Protocol):
    """One call of a program in flight, as far as variables matter."""

    use: Use[VariableCell]
    addresses: list[int]  # of the variables, as the argument words have them

    def bind(self, targets: Collection[tuple[int, int]], address: int) -> None:
        """Point argument words to memory: each to so many bytes after its start."""
        ...


InvocationT = TypeVar("InvocationT", bound=Borrower)
CallT = TypeVar("CallT")


@dataclass(frozen=True, eq=False)
class Listing(Generic[CallT]):
    """What a program was made of, for those who print its plan: the region as it was lowered, the
    launches with their code, and where the temporaries lie."""

    lowered: Lowered
    calls: Sequence[CallT]
    arena: Arena


class DeviceProgram(ABC, Generic[InvocationT, CallT]):
    """A region, loaded for one set of shapes. Any number of threads may call it at once.

    All that a call needs is in the template, which the program cache keeps; `listing` gives what it
    was made of, for those who print, profile and tune it.
    """

    template: Any
    holds_gil: bool  # a call is shorter than the interpreter's switch interval
    work: float  # the estimated number of vector instructions of a call
    gives_host_values: bool = False  # whatever it computes, and not buffers of the device
    _idle: deque[InvocationT]  # of calls that are over
    kept: Sequence[int] = ()  # the references of whose values an invocation keeps what it made

    def __init__(
        self, template: ProgramTemplate, region: Region, listing: Callable[[], Listing[CallT]]
    ) -> None:
        self._list = listing
        self.inputs, self.outputs = template.inputs, template.outputs
        self.references = template.references
        self.output_shapes = [output.shape for output in template.outputs]
        self.streams = [(region.nodes[stream.node], stream.values) for stream in template.streams]
        self.written = [place for place, one in enumerate(self.references) if one.written]
        self.exclusive = frozenset(template.exclusive)
        # One element is read in one operation: such a step sees nothing that is half written.
        sizes = [math.prod(reference.shape) for reference in self.references]
        self.shares = bool(self.written) or any(size > 1 for size in sizes)

    @cached_property
    def _listing(self) -> Listing[CallT]:
        return self._list()

    @property
    def has_run(self) -> bool:
        """Whether a call has ended since memory was last released."""
        return bool(self._idle)

    @property
    def lowered(self) -> Lowered:
        """The region as it was lowered."""
        return self._listing.lowered

    @property
    def calls(self) -> Sequence[CallT]:
        """The launches with their code."""
        return self._listing.calls

    @property
    def arena(self) -> Arena:
        """Where the temporaries lie."""
        return self._listing.arena

    @abstractmethod
    def __call__(
        self,
        context: Any,
        values: Sequence[Any],
        cells: Sequence[VariableCell],
        deliver: Callable[[int, Any], None] | None = None,
    ) -> list[Any] | None:
        """Issue it: the region's outputs, or None where its reference kernels must decide.

        `deliver` may be given early outputs, by number, while the program runs.
        """

    @abstractmethod
    def by_rows(
        self, values: Sequence[Any], is_row: Sequence[bool], count: int
    ) -> list[NDArray[Any]] | None:
        """The outputs for each of the rows that some values have, as arrays of rows."""

    @abstractmethod
    def release_memory(self) -> None:
        """Free the memory of calls that are over; the next one allocates again."""

    @abstractmethod
    def compiled_kernels(self) -> list[CompiledKernel]:
        """The kernels of its launches, in order."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """How it runs, for readers."""

    @abstractmethod
    def timed(
        self, context: Any, values: Sequence[Any], cells: Sequence[VariableCell]
    ) -> tuple[list[Any] | None, Times]:
        """The same as a call, and when the entries of its kernels began and ended."""

    @abstractmethod
    def _run(
        self,
        invocation: InvocationT,
        context: Any,
        values: Sequence[Any],
        cells: Sequence[VariableCell],
    ) -> list[Any] | None:
        """Run a call whose variables are bound."""

    def _note(self, invocation: InvocationT, versions: Sequence[int]) -> None:
        """Take note of the versions of what is kept, in the call that follows."""

    def _use(self) -> Use[VariableCell]:
        """How an invocation says which variables it uses."""
        return Use[VariableCell]((), self.written, self.exclusive)

    def _run_registered(
        self,
        invocation: InvocationT,
        context: Any,
        values: Sequence[Any],
        cells: Sequence[VariableCell],
    ) -> list[Any] | None:
        """Run where other steps may use the variables at the same time."""
        use, uses = invocation.use, USES.uses
        use.cells = cells
        try:
            uses.append(use)
            if uses[0] is not use:
                USES.wait(use, context.cancellation)
            return self._run_borrowing(invocation, context, values, cells)
        finally:
            uses.remove(use)
            use.cells = use.buffers = ()
            if USES.waiting:
                USES.wake()

    def _run_borrowing(
        self,
        invocation: InvocationT,
        context: Any,
        values: Sequence[Any],
        cells: Sequence[VariableCell],
    ) -> list[Any] | None:
        first: FirstValues = {}
        if self.written:
            with USES.mutex:
                borrowed = [cell.buffer for cell in cells]
                is_bound = self._borrow(invocation, cells, borrowed, first)
                invocation.use.buffers = borrowed
        else:  # which keeps them alive
            borrowed = [cells[0].buffer] if len(cells) == 1 else [cell.buffer for cell in cells]
            is_bound = self._borrow(invocation, cells, borrowed, first)
        if not is_bound:
            return None
        if self.kept:
            versions = [cast("Buffer", borrowed[place]).version for place in self.kept]
            self._note(invocation, versions)
        try:
            results = self._run(invocation, context, values, cells)
        finally:
            if self.written:
                buffers = cast("list[Buffer]", borrowed)
                Buffer.touch_all([buffers[place] for place in self.written])
        if first and results is not None:
            for cell, buffer in first.items():
                cell.buffer = buffer
        return results

    def _borrow(
        self,
        invocation: InvocationT,
        cells: Sequence[VariableCell],
        borrowed: list[Buffer | None],
        first: FirstValues,
    ) -> bool:
        """Bind the variables; whether they are as expected. `borrowed` says which memory it is."""
        addresses = invocation.addresses
        for place, (targets, written, is_set_first, shape) in enumerate(self.references):
            buffer = borrowed[place]
            if buffer is None or buffer.shape != shape:
                if not is_set_first:
                    return False
                buffer = borrowed[place] = _first_value(cells[place], shape, first)
            elif written and buffer.leases:
                buffer = self._copy_on_write(invocation, cells, borrowed, place)
            if buffer.address != addresses[place]:
                addresses[place] = buffer.address
                invocation.bind(targets, buffer.address)
        return True

    def _copy_on_write(
        self,
        invocation: InvocationT,
        cells: Sequence[VariableCell],
        borrowed: list[Buffer | None],
        place: int,
    ) -> Buffer:
        """A copy of a leased buffer, bound under every name that its variable has here."""
        buffer = cells[place].copy_on_write()
        for other, cell in enumerate(cells):
            if cell is cells[place]:
                borrowed[other], invocation.addresses[other] = buffer, buffer.address
                invocation.bind(self.references[other].words, buffer.address)
        return buffer


AnyProgram = DeviceProgram[Any, Any]


def _first_value(cell: VariableCell, shape: tuple[int, ...], first: FirstValues) -> Buffer:
    """Memory for a variable's whole new value, which is noted in `first`."""
    if cell not in first:  # else it is there under another name
        first[cell] = cell.allocate(shape)
    return first[cell]
