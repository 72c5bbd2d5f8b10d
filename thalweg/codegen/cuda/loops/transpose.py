"""Transposes: a block reads a square of elements as rows and writes it as columns.

Some loads of a kernel go by one along another variable than its stores. A block puts the elements
of a square of both variables into shared memory as they lie in the source, then computes and stores
in the order of the result. Whatever else the kernel computes of them is computed on the way.
"""

from __future__ import annotations

import numpy as np

from thalweg.codegen.cuda.loops.emit import GridEmitter
from thalweg.codegen.cuda.loops.mapping import SQUARE, SQUARE_ROWS, Mapping
from thalweg.codegen.llvm.builder import I32, I64, Value, constant
from thalweg.codegen.loops.scope import Scope
from thalweg.codegen.math.conversion import from_memory, storage_type
from thalweg.ir.expr import Load, Variable

_PITCH = SQUARE + 1  # cells of a row: those of a column are in different banks
_CELL = 8


def transpose_bytes(mapping: Mapping) -> int:
    """The shared memory that a block needs for its squares."""
    return len(mapping.transposed) * SQUARE * _PITCH * _CELL


class TransposeEmitter(GridEmitter):
    """A kernel in which blocks have squares of two variables."""

    def write(self) -> None:
        b, m, grid = self._b, self.mapping, self._grid
        *others, across, along = m.items
        thread = grid.thread()
        column = self._wide(b.binary("urem", thread, constant(I32, SQUARE)))
        row = self._wide(b.binary("udiv", thread, constant(I32, SQUARE)))
        squares = [self._squares(across), self._squares(along)]
        count = self._times(self.count(others), self._times(*squares))
        first, step = self._wide(grid.block()), self._wide(grid.blocks())
        with b.loop(first, count, step) as loop:
            rest, starts = loop.index, list[Value]()
            for number in reversed(squares):
                starts.append(self._times(b.binary("urem", rest, number), constant(I64, SQUARE)))
                rest = b.binary("udiv", rest, number)
            corner = {along: starts[0], across: starts[1]}
            scope = self._root.bind(self.digits(rest, others))
            grid.barrier()  # the square before is done
            self._read(scope, corner, (across, along), row, column)
            grid.barrier()
            self._write_square(scope, corner, (across, along), row, column)

    def _squares(self, variable: Variable) -> Value:
        """How many squares there are along a variable."""
        above = self._plus(self._computation.extent(variable), constant(I64, SQUARE - 1))
        return self._b.binary("udiv", above, constant(I64, SQUARE))

    def _inside(self, places: dict[Variable, Value]) -> Value:
        one, other = (
            self._b.compare("slt", place, self._computation.extent(variable))
            for variable, place in places.items()
        )
        return self._b.binary("and", one, other)

    def _read(
        self,
        scope: Scope,
        corner: dict[Variable, Value],
        pair: tuple[Variable, Variable],
        row: Value,
        column: Value,
    ) -> None:
        """Threads side by side read what is side by side in the source."""
        across, along = pair
        for turn in range(0, SQUARE, SQUARE_ROWS):
            there = self._plus(row, constant(I64, turn))
            places = {
                across: self._plus(corner[across], column),
                along: self._plus(corner[along], there),
            }
            with self._b.when(self._inside(places)):
                (copy,) = scope.bind(places).copies
                for number, load in enumerate(self.mapping.transposed):
                    at = copy.place(load.buffer, load.offset, None)
                    kind = storage_type(load.buffer.dtype)
                    raw = self._b.load(kind, copy.address(load.buffer, at))
                    self._b.store(raw, self._cell(number, there, column))

    def _write_square(
        self,
        scope: Scope,
        corner: dict[Variable, Value],
        pair: tuple[Variable, Variable],
        row: Value,
        column: Value,
    ) -> None:
        """Threads side by side write what is side by side in the result."""
        across, along = pair
        for turn in range(0, SQUARE, SQUARE_ROWS):
            there = self._plus(row, constant(I64, turn))
            places = {
                across: self._plus(corner[across], there),
                along: self._plus(corner[along], column),
            }
            with self._b.when(self._inside(places)):
                inner = scope.bind(places)
                for number, load in enumerate(self.mapping.transposed):
                    self._remember(inner, number, load, column, there)
                self._prepare(inner, self._works)
                self._perform(inner, self._works)

    def _remember(self, scope: Scope, number: int, load: Load, row: Value, column: Value) -> None:
        (copy,) = scope.copies
        kind = storage_type(load.buffer.dtype)
        raw = self._b.load(kind, self._cell(number, row, column))
        copy.remember(load, from_memory(self._b, raw, np.dtype(load.buffer.dtype)))

    def _cell(self, number: int, row: Value, column: Value) -> Value:
        place = self._plus(self._times(row, constant(I64, _PITCH)), column)
        place = self._plus(place, constant(I64, number * SQUARE * _PITCH))
        return self._b.element(self._grid.shared(), "i64", place)
