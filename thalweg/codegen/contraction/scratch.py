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
    Schedule,
    Setting,
    packing_of_b,
    spans_of_a,
    spans_of_b,
    spans_of_rows,
    uses,
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

    def __init__(self, setting: Setting, made: Schedule) -> None:
        self.setting, self.made, self.form = setting, made, setting.form
        self.width, self.dtype = setting.width(made), setting.form.kernel.dtype
        self.scalar = register_type(self.dtype).scalar
        self.packed_a = setting.packing_of_a(made)
        self.packed_b = packing_of_b(setting, made) if made.copy_b else None
        self.spans_a, self.spans_b = spans_of_a(setting, made), spans_of_b(setting, made)

    @property
    def size(self) -> int:
        """All of it, in bytes."""
        return (self._shared + SLOTS * sum(self._parts)) * self.setting.itemsize

    @cached_property
    def outer(self) -> list[Variable]:
        """The outer variables that the columns' factor depends on: each value has its panels."""
        used = uses(self.form.kernel.b)
        return [v for v in self.form.outer if v in used]

    @cached_property
    def _panels(self) -> int:
        return self.packed_b.size(self.spans_b) if self.packed_b else 0

    @cached_property
    def _shared(self) -> int:
        if self.made.copy_b != "shared":
            return 0
        return _rounded(prod(int(v.extent) for v in self.outer) * self._panels)

    @cached_property
    def _parts(self) -> tuple[int, int, int, int]:
        """The elements that each thread has for either copy and for unfinished sums, those of some
        blocks and those of all before."""
        a = self.packed_a.size(self.spans_a) if self.packed_a else 0
        b = self._panels if self.made.copy_b == "block" else 0
        partial = _rounded(self.partial)
        return _rounded(a), _rounded(b), partial, partial if self.many_blocks else 0

    @cached_property
    def partial(self) -> int:
        """How many sums of a piece of work may be unfinished."""
        if not self.made.split:
            return 0
        rows = prod(spans_of_rows(self.form, self.made).values())
        return rows * self.made.panels * self.width

    @cached_property
    def many_blocks(self) -> bool:
        """Whether a sum has, or may have, so many blocks that they are added in groups."""
        if not self.made.split:
            return False
        *outer, first = self.form.reduced[: self.made.split_at + 1]
        if not all(is_static(v.extent) for v in (*outer, first)):
            return True
        blocks = ceil(first.extent / self.made.split)
        return blocks * prod(int(v.extent) for v in outer) > 2 * GROUP

    def parts(self, frame: Frame) -> list[Value]:
        """Where a thread keeps its copy of `a`, its copy of `b`, and unfinished sums: those of the
        last blocks, and those of all groups of blocks before."""
        place = frame.add(self._shared, frame.multiply(frame.thread, sum(self._parts)))
        starts = [sum(self._parts[:number]) for number in range(4)]
        places = [frame.add(place, start) for start in starts]
        return [frame.b.element(frame.scratch, self.scalar, each) for each in places]

    def panels_at(self, frame: Frame, at: Mapping[Variable, Value]) -> Value:
        """Where the shared panels start that belong to these values of the outer variables."""
        number = frame.integer(0)
        for variable in self.outer:
            number = frame.add(frame.multiply(number, variable.extent), at[variable])
        place = frame.multiply(number, self._panels)
        return frame.b.element(frame.scratch, self.scalar, place)


@contextmanager
def pieces(
    frame: Frame, form: Form, made: Schedule, width: int
) -> Generator[tuple[dict[Variable, Value], Value, Value]]:
    """A loop over this thread's pieces of work, by tiles of a width: gives the values of the
    variables outside, and the numbers of the block of rows and of the part of the columns."""
    around = (*form.outer, *form.rows[: made.block_at])
    blocks = frame.integer(1)
    if form.rows:
        blocks = frame.chunks(form.rows[made.block_at].extent, made.block)
    columns = frame.chunks(form.lane.extent, made.panels * width)
    extents = [*(frame.integer(v.extent) for v in around), blocks, columns]
    with frame.shared(extents, SLOTS) as (*places, block, part):
        yield dict(zip(around, places, strict=True)), block, part


def _rounded(count: int) -> int:
    """A number of elements that keeps what follows aligned to a cache line."""
    return -(-count // 16) * 16
