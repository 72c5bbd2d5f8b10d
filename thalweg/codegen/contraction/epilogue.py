"""The epilogue of a contraction: its stores, applied to the sums of a tile in registers.

The rows of a tile, its position and its sums come in; bias, activation, residual and stores go out
as instructions, with prefetches of the memory that they access.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod

from thalweg.codegen.contraction.form import Form
from thalweg.codegen.contraction.microkernel import prefetch
from thalweg.codegen.frame import At, Frame
from thalweg.codegen.llvm.builder import Type, Value
from thalweg.codegen.point import Point
from thalweg.ir.dynamic import is_static
from thalweg.ir.expr import Load, Variable
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Argument, Contraction
from thalweg.ir.rewrite import postorder

_MIN_PREFETCH_TERMS = 64  # shorter sums end before a prefetch arrives
_MAX_UNROLLED_EXPRESSIONS = 12  # of an epilogue that is unrolled over rows
_MIN_LOOPED_TERMS = 128  # of sums long enough that a spill of them costs nothing

Row = Mapping[Variable, int]  # a row of a tile: its displacement from the first one
Masks = Sequence[Value | None]  # per vector of a row, where it exceeds the last column


@dataclass(frozen=True, eq=False)
class Epilogue:
    """Emits the stores of a contraction for tiles of sums, which are vectors of type `kind`."""

    frame: Frame
    form: Form
    kind: Type

    @cached_property
    def streams(self) -> list[tuple[Argument, Affine]]:
        """The memory that stores read and write, if it is worth prefetching: every row of a tile is
        a stream of its own, too many for hardware prefetchers."""
        stores = self.form.kernel.stores
        if any(
            is_static(v.extent) and v.extent < _MIN_PREFETCH_TERMS for v in self.form.reduced[-1:]
        ):
            return []
        loads = [p for p in postorder([s.value for s in stores]) if isinstance(p, Load)]
        accesses: list[tuple[Argument, Affine]] = [(load.buffer, load.offset) for load in loads]
        accesses += [(store.buffer, store.offset) for store in stores]
        streams = [access for access in dict.fromkeys(accesses) if self._is_stream(access[1])]
        return streams if len(streams) > 1 else []

    def _is_stream(self, offset: Affine) -> bool:
        """Whether the rows of a tile are contiguous vectors at different addresses."""
        return (
            offset.is_plain
            and offset.factor(self.form.lane) == 1
            and not offset.strides.keys().isdisjoint(self.form.rows)
        )

    def prefetch(self, at: At, rows: Sequence[Row], width: int) -> None:
        """Prefetch the streams of a tile before its sums are computed."""
        tile = self._point(at)
        for argument, offset in self.streams:
            for row, j in product(rows, range(width)):
                point = replace(tile, displacement={**row, self.form.lane: j * self.kind.lanes})
                prefetch(self.frame.b, point.locate(argument, offset, None).base, 3)

    def _point(self, at: At) -> Point:
        return Point(self.frame, dict(at), self.form.lane, self.kind.lanes)

    @cached_property
    def _is_looped(self) -> bool:
        """Whether rows are stored in a loop: if the epilogue needs the registers, or if sums are so
        long that unrolling gains little."""
        parts = sum(1 for _ in postorder([s.value for s in self.form.kernel.stores]))
        extents = [v.extent for v in self.form.reduced if is_static(v.extent)]
        is_long_sum = len(extents) == len(self.form.reduced) and prod(extents) >= _MIN_LOOPED_TERMS
        return parts > _MAX_UNROLLED_EXPRESSIONS or is_long_sum

    def store(self, at: At, rows: Sequence[Row], masks: Masks, sums: Sequence[Value]) -> None:
        """Store the sums of a tile, row by row, a vector for each mask."""
        variable = next(iter(rows[0]), None)
        if variable is not None and self._is_looped and rows[-1][variable]:
            self._store_in_loop(variable, at, rows, masks, sums)
        else:
            self.store_rows(at, rows, masks, sums)

    def store_rows(self, at: At, rows: Sequence[Row], masks: Masks, sums: Sequence[Value]) -> None:
        """Store the sums of a tile as straight code."""
        tile = self._point(at)
        for i, row in enumerate(rows):
            for j, mask in enumerate(masks):
                displacement = {**row, self.form.lane: j * self.kind.lanes}
                total = sums[i * len(masks) + j]
                store_sums(
                    self.form.kernel, replace(tile, tail=mask, sum=total, displacement=displacement)
                )

    def _store_in_loop(
        self, variable: Variable, at: At, rows: Sequence[Row], masks: Masks, sums: Sequence[Value]
    ) -> None:
        """Spill the sums, which frees their registers, and store the rows in a loop over a
        variable in which they differ."""
        b, frame, kind = self.frame.b, self.frame, str(self.kind)
        spilled = b.stack(self.kind, len(sums))
        for number, value in enumerate(sums):
            b.store(value, b.element(spilled, kind, number))
        times = rows[-1][variable] + 1
        size = len(sums) // times
        with b.loop(0, times) as loop:
            here = {**at, variable: frame.add(at[variable], loop.index)}
            first = b.element(spilled, kind, frame.multiply(loop.index, size))
            places = [b.element(first, kind, number) for number in range(size)]
            totals = [b.load(self.kind, place) for place in places]
            self.store_rows(here, rows[: len(rows) // times], masks, totals)

    def store_dots(self, at: At, rows: Sequence[Row], sums: Sequence[Value]) -> None:
        """Store scalar sums; those of a row become one vector."""
        count = len(sums) // len(rows)
        tile = Point(self.frame, dict(at), self.form.lane, count)
        for i, row in enumerate(rows):
            total = self.frame.b.vector(sums[i * count : (i + 1) * count])
            store_sums(self.form.kernel, replace(tile, sum=total, displacement=row))


def store_sums(kernel: Contraction, point: Point) -> None:
    """Emit every store of a contraction at one point of the result, given its sum."""
    mask = point.tail
    values = [point.value_as(store.value, store.buffer.dtype, mask) for store in kernel.stores]
    for store, value in zip(kernel.stores, values, strict=True):
        point.store(store, value, point.condition(store.inside, mask))
