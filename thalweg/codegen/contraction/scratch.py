"""The layout of a contraction's scratch memory: shared packed panels, then a part per thread.

A schedule comes in; sizes and addresses go out. No size depends on a dynamic extent: factors of
dynamic extent are packed piece by piece.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
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
        used, rows = variables_of(self.form.kernel.b), spans_of_rows(self.form, schedule)
        #: the outer variables that `b` depends on: each value has its own panels
        self.outer = [v for v in self.form.outer if v in used]
        #: the number of partial sums of a piece of work
        self.partial = prod(rows.values()) * schedule.panels * self.width if schedule.split else 0
        self.many_blocks = schedule.split > 0 and self._has_many_blocks()
        a = self.packed_a.size(self.spans_a) if self.packed_a else 0
        self._panels_size = b = self.packed_b.size(self.spans_b) if self.packed_b else 0
        count, self._shared_size = prod(int(v.extent) for v in self.outer), 0
        if schedule.copy_b == "shared":
            self._shared_size, b = _whole_lines(count * b), 0
        totals = self.partial if self.many_blocks else 0
        #: a thread's elements for packed `a`, packed `b`, the partial sums of a group of blocks,
        #: and the totals of all groups before
        self._thread_sizes = [_whole_lines(part) for part in (a, b, self.partial, totals)]
        #: the total size in bytes
        self.size = (self._shared_size + SLOTS * sum(self._thread_sizes)) * problem.itemsize

    def _has_many_blocks(self) -> bool:
        """Whether a sum has, or may have, so many blocks that they are summed in groups."""
        *outer, first = self.form.reduced[: self.schedule.split_at + 1]
        if not all(is_static(v.extent) for v in (*outer, first)):
            return True
        blocks = ceil(first.extent / self.schedule.split)
        return blocks * prod(int(v.extent) for v in outer) > 2 * GROUP

    def thread_addresses(self, frame: PhaseFrame) -> list[Value]:
        """The addresses of a thread's packed `a`, packed `b`, partial sums and totals."""
        return frame.thread_parts(self.scalar, self._thread_sizes, self._shared_size)

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
