"""The scratch memory of a contraction: packed panels that all threads share, then a part for each.

What comes in is a schedule; what goes out are sizes, and the addresses of the parts. Nothing here
grows with an extent that is not known until run time: such factors are copied piece by piece.
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
from thalweg.codegen.frame import Frame
from thalweg.codegen.llvm.builder import Value
from thalweg.codegen.machine import SLOTS
from thalweg.codegen.math.conversion import register_type
from thalweg.ir.dynamic import is_static
from thalweg.ir.loop import Variable

GROUP = 128  # blocks of a sum that are added before the rest is: few, for the sake of rounding


class Scratch:
    """The copies and partial sums of a contraction under a schedule."""

    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        self.problem, self.schedule, self.form = problem, schedule, problem.form
        self.width, self.dtype = problem.width(schedule), problem.form.kernel.dtype
        self.scalar = register_type(self.dtype).scalar
        self.packed_a = problem.packing_of_a(schedule)
        self.packed_b = packing_of_b(problem, schedule) if schedule.copy_b else None
        self.spans_a, self.spans_b = spans_of_a(problem, schedule), spans_of_b(problem, schedule)

    @property
    def size(self) -> int:
        """All of it, in bytes."""
        return (self._shared_size + SLOTS * sum(self._thread_sizes)) * self.problem.itemsize

    @cached_property
    def outer(self) -> list[Variable]:
        """The outer variables that the columns' factor depends on: each value has its panels."""
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
        """The elements that each thread has for either copy and for unfinished sums, those of some
        blocks and those of all before."""
        a = self.packed_a.size(self.spans_a) if self.packed_a else 0
        b = self._panels_size if self.schedule.copy_b == "block" else 0
        partial = _whole_lines(self.partial)
        return _whole_lines(a), _whole_lines(b), partial, partial if self.many_blocks else 0

    @cached_property
    def partial(self) -> int:
        """How many sums of a piece of work may be unfinished."""
        if not self.schedule.split:
            return 0
        rows = prod(spans_of_rows(self.form, self.schedule).values())
        return rows * self.schedule.panels * self.width

    @cached_property
    def many_blocks(self) -> bool:
        """Whether a sum has, or may have, so many blocks that they are added in groups."""
        if not self.schedule.split:
            return False
        *outer, first = self.form.reduced[: self.schedule.split_at + 1]
        if not all(is_static(v.extent) for v in (*outer, first)):
            return True
        blocks = ceil(first.extent / self.schedule.split)
        return blocks * prod(int(v.extent) for v in outer) > 2 * GROUP

    def thread_addresses(self, frame: Frame) -> list[Value]:
        """Where a thread keeps its copy of `a`, its copy of `b`, and unfinished sums: those of the
        last blocks, and those of all groups of blocks before."""
        place = frame.add(self._shared_size, frame.multiply(frame.thread, sum(self._thread_sizes)))
        starts = [sum(self._thread_sizes[:number]) for number in range(4)]
        places = [frame.add(place, start) for start in starts]
        return [frame.b.element(frame.scratch, self.scalar, each) for each in places]

    def panels_at(self, frame: Frame, at: Mapping[Variable, Value]) -> Value:
        """Where the shared panels start that belong to these values of the outer variables."""
        number = frame.integer(0)
        for variable in self.outer:
            number = frame.add(frame.multiply(number, variable.extent), at[variable])
        place = frame.multiply(number, self._panels_size)
        return frame.b.element(frame.scratch, self.scalar, place)


@contextmanager
def pieces(
    frame: Frame, form: Form, schedule: Schedule, width: int
) -> Generator[tuple[dict[Variable, Value], Value, Value]]:
    """A loop over this thread's pieces of work, by tiles of a width: gives the values of the
    variables outside, and the numbers of the block of rows and of the part of the columns."""
    around = (*form.outer, *form.rows[: schedule.block_at])
    blocks = frame.integer(1)
    if form.rows:
        blocks = frame.ceil_div(form.rows[schedule.block_at].extent, schedule.block)
    columns = frame.ceil_div(form.lane.extent, schedule.panels * width)
    extents = [*(frame.integer(v.extent) for v in around), blocks, columns]
    with frame.thread_loop(extents, SLOTS) as (*places, block, part):
        yield dict(zip(around, places, strict=True)), block, part


def _whole_lines(count: int) -> int:
    """A number of elements that keeps what follows aligned to a cache line."""
    return -(-count // 16) * 16
