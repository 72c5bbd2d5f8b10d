"""The output of tiles: by the stores of the contraction, or to scratch memory.

Given sums in registers, some adjacent along a row, and their position in the tile, it emits bias,
activation, residual, update and stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

from thalweg.codegen.cuda.contraction.frame import GridFrame, GridPoint
from thalweg.codegen.cuda.contraction.problem import Problem, vector_of
from thalweg.codegen.cuda.contraction.space import At
from thalweg.codegen.llvm.builder import Type, Value
from thalweg.codegen.math.conversion import register_type
from thalweg.ir.dynamic import is_static
from thalweg.ir.expr import Variable
from thalweg.ir.kernel import Store


def store_width(problem: Problem, most: int) -> int:
    """The number of columns that the stores can process together, at most `most`."""
    kernel, lane = problem.kernel, problem.columns.last
    assert lane is not None
    if not problem.is_aligned:
        return 1
    values = [part for store in kernel.stores for part in (store.value, store.inside)]
    width = vector_of(values, (), lane, gcd(most, ACCESS_LANES))
    return width if all(_is_side_by_side(store, lane) for store in kernel.stores) else 1


ACCESS_LANES = 8  # columns of one vector store: more would use too many registers


def _is_side_by_side(store: Store, lane: Variable) -> bool:
    factor = store.offset.factor(lane)
    return store.inside is None and store.offset.is_plain and is_static(factor) and factor == 1


@dataclass(frozen=True, eq=False)
class Output:
    """The stores of a contraction for one tile, at a given batch, first row and first column."""

    frame: GridFrame
    problem: Problem
    batch: At
    row: Value
    column: Value

    def store(self, row: Value, column: Value, sums: Sequence[Value]) -> None:
        """Store sums that are adjacent in a row, at offsets (i32) in the tile."""
        frame = self.frame
        rows, in_rows = self.problem.rows.at(frame, frame.plus32(self.row, row))
        with frame.b.when(in_rows):
            self.store_row(rows, column, sums)

    def store_row(self, rows: At, column: Value, sums: Sequence[Value]) -> None:
        """Store sums that are adjacent in an existing row."""
        width = store_width(self.problem, len(sums))
        for first in range(0, len(sums), width):
            at = self.frame.plus32(self.frame.plus32(self.column, column), first)
            self._store_some(rows, at, sums[first : first + width])

    def _store_some(self, rows: At, column: Value, sums: Sequence[Value]) -> None:
        frame, problem = self.frame, self.problem
        columns, in_columns = problem.columns.at(frame, column)
        with frame.b.when(in_columns):
            at = {**self.batch, **rows, **columns}
            lane = problem.columns.last if len(sums) > 1 else None
            point = GridPoint(frame, at, lane, len(sums), sum=frame.b.vector(sums))
            store_all(problem, point)


def store_all(problem: Problem, point: GridPoint) -> None:
    """Emit all stores of a contraction at a point with a known sum."""
    stores = problem.kernel.stores
    values = [point.value_as(store.value, store.buffer.dtype) for store in stores]
    conditions = [None if s.inside is None else point.value_as(s.inside, bool) for s in stores]
    for store, value, inside in zip(stores, values, conditions, strict=True):
        if inside is None:
            point.store(store, value)
        else:
            with point.builder.when(inside):
                replace(point).store(store, value)  # values computed here are not visible outside


def sum_type(problem: Problem) -> Type:
    """The type of a sum in a register."""
    return register_type(problem.dtype)


@dataclass(frozen=True, eq=False)
class Partial:
    """Scratch memory for partial sums of a tile that blocks share: rows of `width` columns."""

    frame: GridFrame
    base: Value
    width: int
    kind: Type
    is_aligned: bool  # the scratch memory begins at a multiple of 16 bytes

    def store(self, row: Value, column: Value, sums: Sequence[Value]) -> None:
        """Store adjacent partial sums, which are added later."""
        frame, size = self.frame, self.kind.bits // 8
        index = frame.plus32(frame.times32(row, self.width), column)
        address = frame.at_byte(self.base, frame.times32(index, size))
        step = 16 // size
        for first in range(0, len(sums), step):
            some = frame.b.vector(sums[first : first + step])
            align = min(16, some.type.lanes * size) if self.is_aligned else size
            frame.store_aligned(some, frame.at_byte(address, first * size), align)
