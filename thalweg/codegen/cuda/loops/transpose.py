"""Transposes: a block reads a square tile of elements by rows and writes it by columns.

Some loads of a kernel are contiguous along another variable than its stores. A block copies the
elements of a tile of both variables to shared memory in the order of the source, then computes
and stores in the order of the result. All other computations of the kernel are fused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

import numpy as np

from thalweg.codegen.cuda.loops.emit import GridEmitter
from thalweg.codegen.cuda.loops.mapping import TILE, TILE_ROWS, Mapping, divisor
from thalweg.codegen.llvm.builder import I64, Value, constant
from thalweg.codegen.loops.scope import Scope
from thalweg.codegen.math.conversion import from_memory, storage_type
from thalweg.ir.expr import Load, Variable


def side_of(mapping: Mapping) -> int:
    """The side of a tile in elements: the lanes of a warp read and write its rows."""
    return TILE * mapping.width


def transpose_bytes(mapping: Mapping) -> int:
    """The shared memory that a block needs for its tiles."""
    return sum(_tile_bytes(load, mapping.width) for load in mapping.transposed)


def _tile_bytes(load: Load, width: int) -> int:
    """The bytes of a tile with a padding column, which avoids bank conflicts of columns."""
    side = TILE * width
    return -(-side * (side + 1) * np.dtype(load.buffer.dtype).itemsize // 16) * 16


class TransposeEmitter(GridEmitter):
    """The emitter of kernels in which blocks have tiles of two variables."""

    def write(self) -> None:
        b, m, grid = self.b, self.mapping, self._grid
        *others, across, along = m.items
        thread = grid.thread()
        column = self._wide(b.binary("urem", thread, TILE))
        column = self._times(column, constant(I64, m.width))
        row = self._wide(b.binary("udiv", thread, TILE))
        tiles = [self._tiles(across), self._tiles(along)]
        count = self._times(self.count(others), self._times(*tiles))
        first, step = self._wide(grid.block()), self._wide(grid.blocks())
        with b.loop(first, count, step) as loop:
            rest, starts = loop.index, list[Value]()
            for number in reversed(tiles):
                starts.append(
                    self._times(b.binary("urem", rest, number), constant(I64, side_of(m)))
                )
                rest = b.binary("udiv", rest, number)
            corner = {across: starts[1], along: starts[0]}
            scope = self._root.bind(self.digits(rest, others))
            grid.barrier()  # the previous tile is done
            # Adjacent threads read adjacent elements of the source, and write those of the result.
            for line, inner in self._lines(scope, corner, across, row, column):
                for number, load in enumerate(m.transposed):
                    self._stage(inner, number, load, line, column)
            grid.barrier()
            for line, inner in self._lines(scope, corner, along, row, column):
                for number, load in enumerate(m.transposed):
                    self._define_neighbours(inner, number, load, column, line)
                self._hoist_statements(inner, self._statements)
                self._execute(inner, self._statements)

    def _tiles(self, variable: Variable) -> Value:
        """The number of tiles along a variable."""
        side = side_of(self.mapping)
        above = self._plus(self.extent(variable), constant(I64, side - 1))
        return self.b.binary("udiv", above, side)

    def _inside(self, places: dict[Variable, Value]) -> AbstractContextManager[None]:
        """Guard code for places that may be out of bounds in partial tiles."""
        found: Value | None = None
        for variable, place in places.items():
            if divisor(variable.extent) % side_of(self.mapping):
                one = self.b.compare("slt", place, self.extent(variable))
                found = one if found is None else self.b.binary("and", found, one)
        return self.b.when(found)

    def _in_lanes(self, scope: Scope, variable: Variable, places: dict[Variable, Value]) -> Scope:
        """The scope at some places, with neighbours along a variable in lanes."""
        if self.mapping.width == 1:
            return scope.bind(places)
        others = {v: place for v, place in places.items() if v is not variable}
        return scope.bind(others).vectorize(variable, self.mapping.width, [places[variable]])

    def _lines(
        self,
        scope: Scope,
        corner: dict[Variable, Value],
        near: Variable,
        row: Value,
        column: Value,
    ) -> Iterator[tuple[Value, Scope]]:
        """The lines of a tile that a thread has neighbours of, along the variable `near`, and the
        scope in each."""
        for start in range(0, side_of(self.mapping), TILE_ROWS):
            line = self._plus(row, constant(I64, start))
            places = {v: self._plus(n, column if v is near else line) for v, n in corner.items()}
            with self._inside(places):
                yield line, self._in_lanes(scope, near, places)

    def _stage(self, scope: Scope, number: int, load: Load, row: Value, column: Value) -> None:
        """Copy neighbours of a row to shared memory."""
        b, (copy,) = self.b, scope.vectors
        at = copy.locate(load.buffer, load.offset, None)
        kind = storage_type(load.buffer.dtype, copy.lanes)
        raw = b.load(kind, copy.pointer(load.buffer, at), None, at.aligned)
        for lane in range(copy.lanes):
            one = b.extract(raw, lane)
            b.store(one, self._cell(number, row, self._plus(column, constant(I64, lane))))

    def _define_neighbours(
        self, scope: Scope, number: int, load: Load, row: Value, column: Value
    ) -> None:
        """Define neighbours of a column as the value of a load."""
        b, (copy,) = self.b, scope.vectors
        kind = storage_type(load.buffer.dtype, copy.lanes)

        def loaded(lane: int) -> Value:
            place = self._cell(number, self._plus(row, constant(I64, lane)), column)
            return b.load(kind.of(1), place)

        raw = b.from_lanes(kind, loaded)
        copy.define(load, from_memory(b, raw, np.dtype(load.buffer.dtype)))

    def _cell(self, number: int, row: Value, column: Value) -> Value:
        width, loads = self.mapping.width, self.mapping.transposed
        before = sum(_tile_bytes(load, width) for load in loads[:number])
        start = self.b.element(self._grid.shared(), "i8", before)
        pitch = constant(I64, side_of(self.mapping) + 1)
        place = self._plus(self._times(row, pitch), column)
        return self.b.element(start, storage_type(loads[number].buffer.dtype).scalar, place)
