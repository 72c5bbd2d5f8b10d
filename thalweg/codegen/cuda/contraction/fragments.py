"""Converts fragments of tensor cores' sums to rows, through shared memory.

Lanes of a warp hold pairs of columns of rows that are eight apart. Slabs of 16 by 32 sums pass
through the warp's shared memory, after which each lane has four adjacent columns, and eight lanes a
piece of a row: the accesses of the stores are contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence

from thalweg.codegen.cuda.contraction.frame import GridFrame
from thalweg.codegen.cuda.contraction.work import Sink
from thalweg.codegen.llvm.builder import FLOAT, I64, Value, constant

SLAB_ROWS, SLAB_COLUMNS = 16, 32
_LANES = 4  # columns of a lane in the output
_PITCH = (SLAB_COLUMNS + 4) * 4  # bytes: rows are in different banks
SLAB_BYTES = SLAB_ROWS * _PITCH


class Slabs:
    """A warp's shared memory for slabs of sums."""

    def __init__(self, frame: GridFrame, base: Value, lane: Value) -> None:
        """`base`: the warp's memory; `lane`: the thread's index in the warp (i32)."""
        self.frame, self._base = frame, base
        row, pair = frame.over32(lane, 4), frame.modulo32(lane, 4)
        place = frame.plus32(frame.times32(row, _PITCH), frame.times32(pair, 8))
        self._put_at = frame.at_byte(base, place)
        per_row = SLAB_COLUMNS // _LANES
        self._row, self._column = frame.over32(lane, per_row), frame.modulo32(lane, per_row)
        self._column = frame.times32(self._column, _LANES)
        self._rows = 32 // per_row  # that the warp reads together

    def store(self, sink: Sink, row: Value, column: Value, sums: Sequence[Sequence[Value]]) -> None:
        """Store 16 rows of sums, four per 8 columns, at a position (i32) in the tile."""
        per_slab = SLAB_COLUMNS // 8
        for first in range(0, len(sums), per_slab):
            at = self.frame.plus32(column, 8 * first)
            self._slab(sink, row, at, sums[first : first + per_slab])

    def _slab(self, sink: Sink, row: Value, column: Value, sums: Sequence[Sequence[Value]]) -> None:
        frame, grid = self.frame, self.frame.grid
        for number, four in enumerate(sums):
            for half in range(2):
                pair = frame.b.vector(four[2 * half : 2 * half + 2])
                place = frame.at_byte(self._put_at, half * 8 * _PITCH + number * 32)
                frame.store_aligned(pair, place, 8)
        grid.warp_barrier()
        zero, end, one = (constant(I64, n) for n in (0, SLAB_ROWS // self._rows, 1))
        width = 8 * len(sums)
        inside = frame.b.compare("slt", self._column, frame.i32(width))
        with frame.b.loop(zero, end, one) as loop:
            step = frame.b.convert("trunc", loop.index, "i32")
            at = frame.plus32(self._row, frame.times32(step, self._rows))
            place = frame.plus32(frame.times32(at, _PITCH), frame.times32(self._column, 4))
            with frame.b.when(inside):
                found = frame.load_aligned(FLOAT.of(_LANES), frame.at_byte(self._base, place), 16)
                values = [frame.b.extract(found, lane) for lane in range(_LANES)]
                sink.store(frame.plus32(row, at), frame.plus32(column, self._column), values)
        grid.warp_barrier()
