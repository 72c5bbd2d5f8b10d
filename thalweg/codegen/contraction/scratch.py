"""The layout of a contraction's scratch memory: shared packed panels, then a part per thread.

A schedule comes in; sizes and addresses go out. No size depends on a dynamic extent: factors of
dynamic extent are packed piece by piece.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import cached_property
from math import ceil, prod

from thalweg.codegen.contraction.form import Form
from thalweg.codegen.contraction.schedule import (
    Problem,
    Schedule,
    packing_of_b,
    spans_of_a,
    spans_of_b,
    spans_of_rows,
    variables_of,
)
from thalweg.codegen.frame import PhaseFrame
from thalweg.codegen.llvm.builder import Value
from thalweg.codegen.machine import SLOTS
from thalweg.codegen.math.conversion import register_type
from thalweg.ir.dynamic import is_static
from thalweg.ir.loop import Variable

GROUP = 128  # blocks of a sum whose partial sums are added up first: few, to limit rounding


class Scratch:
    """The packed copies and partial sums of a contraction under a schedule."""

    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        self.problem, self.schedule, self.form = problem, schedule, problem.form
        self.width, self.dtype = problem.width(schedule), problem.form.kernel.dtype
        self.scalar = register_type(self.dtype).scalar
        self.packed_a = problem.packing_of_a(schedule)
        self.packed_b = packing_of_b(problem, schedule) if schedule.copy_b else None
        self.spans_a, self.spans_b = spans_of_a(problem, schedule), spans_of_b(problem, schedule)

    @property
    def size(self) -> int:
        """The total size in bytes."""
        return (self._shared_size + SLOTS * sum(self._thread_sizes)) * self.problem.itemsize

    @cached_property
    def outer(self) -> list[Variable]:
        """The outer variables that `b` depends on: each value has its own panels."""
        used = variables_of(self.form.kernel.b)
        return [v for v in self.form.outer if v in used]

    @cached_property
    def _panels_size(self) -> int:
        return self.packed_b.size(self.spans_b) if self.packed_b else 0

    @cached_property
    def _shared_size(self) -> int:
        if self.schedule.copy_b != "shared":
            return 0
        return _whole_lines(prod(int(v.extent) for v in self.outer) * self._panels_size)

    @cached_property
    def _thread_sizes(self) -> tuple[int, int, int, int]:
        """A thread's elements for packed `a`, packed `b`, the partial sums of a group of blocks,
        and the totals of all groups before."""
        a = self.packed_a.size(self.spans_a) if self.packed_a else 0
        b = self._panels_size if self.schedule.copy_b == "block" else 0
        partial = _whole_lines(self.partial)
        return _whole_lines(a), _whole_lines(b), partial, partial if self.many_blocks else 0

    @cached_property
    def partial(self) -> int:
        """The number of partial sums of a piece of work."""
        if not self.schedule.split:
            return 0
        rows = prod(spans_of_rows(self.form, self.schedule).values())
        return rows * self.schedule.panels * self.width

    @cached_property
    def many_blocks(self) -> bool:
        """Whether a sum has, or may have, so many blocks that they are summed in groups."""
        if not self.schedule.split:
            return False
        *outer, first = self.form.reduced[: self.schedule.split_at + 1]
        if not all(is_static(v.extent) for v in (*outer, first)):
            return True
        blocks = ceil(first.extent / self.schedule.split)
        return blocks * prod(int(v.extent) for v in outer) > 2 * GROUP

    def thread_addresses(self, frame: PhaseFrame) -> list[Value]:
        """The addresses of a thread's packed `a`, packed `b`, partial sums and totals."""
        start = frame.add(self._shared_size, frame.multiply(frame.thread, sum(self._thread_sizes)))
        offsets = [frame.add(start, sum(self._thread_sizes[:number])) for number in range(4)]
        return [frame.b.element(frame.scratch, self.scalar, offset) for offset in offsets]

    def panels_at(self, frame: PhaseFrame, at: Mapping[Variable, Value]) -> Value:
        """The address of the shared panels for these values of the outer variables."""
        number = frame.integer(0)
        for variable in self.outer:
            number = frame.add(frame.multiply(number, variable.extent), at[variable])
        offset = frame.multiply(number, self._panels_size)
        return frame.b.element(frame.scratch, self.scalar, offset)


@contextmanager
def pieces(
    frame: PhaseFrame, form: Form, schedule: Schedule, width: int
) -> Generator[tuple[dict[Variable, Value], Value, Value]]:
    """A loop over this thread's pieces of work, for tiles of a width. Yields the values of the
    enclosing variables, the number of the block of rows, and that of the block of columns."""
    outer = (*form.outer, *form.rows[: schedule.block_at])
    blocks = frame.integer(1)
    if form.rows:
        blocks = frame.ceil_div(form.rows[schedule.block_at].extent, schedule.block)
    columns = frame.ceil_div(form.lane.extent, schedule.panels * width)
    extents = [*(frame.integer(v.extent) for v in outer), blocks, columns]
    with frame.thread_loop(extents) as (*indices, block, column):
        yield dict(zip(outer, indices, strict=True)), block, column


def _whole_lines(count: int) -> int:
    """A number of elements rounded up to whole cache lines."""
    return -(-count // 16) * 16
