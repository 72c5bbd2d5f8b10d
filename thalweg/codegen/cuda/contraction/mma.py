"""Products by warps on tensor cores (mma.sync): bf16, fp16, tf32 and fp8, from sm_80 on.

All threads of a block prefetch the tiles of some blocks of terms to shared memory, and each warp
multiplies its part of the tile: matrices by ldmatrix, products by mma.sync.
"""

from __future__ import annotations

from collections.abc import Sequence

from thalweg.codegen.cuda.contraction.fragments import SLAB_BYTES, Slabs
from thalweg.codegen.cuda.contraction.frame import GridFrame
from thalweg.codegen.cuda.contraction.layout import ATOM, SharedTile, swizzled
from thalweg.codegen.cuda.contraction.problem import FLOAT32, Problem
from thalweg.codegen.cuda.contraction.schedule import Schedule
from thalweg.codegen.cuda.contraction.space import round_up
from thalweg.codegen.cuda.contraction.staging import Staging, shared_tile
from thalweg.codegen.cuda.contraction.tf32 import rounded
from thalweg.codegen.cuda.contraction.warp_instructions import (
    STEP_BYTES,
    WarpInstructions,
    exchange_bytes,
)
from thalweg.codegen.cuda.contraction.work import Sink, Tile, Work
from thalweg.codegen.llvm.builder import FLOAT, I32, I64, Value, constant

_ROWS, _COLUMNS = 16, 8  # of a product
_ACROSS = (2, 4)  # bytes of elements that may be stored across the terms
_PIECES = STEP_BYTES // 16  # of a line, per product


class Memory:
    """The layout of a block's shared memory, in bytes from its start."""

    def __init__(self, problem: Problem, schedule: Schedule, is_emulated: bool) -> None:
        sides = (problem.a, schedule.m), (problem.b, schedule.n)
        self.a, self.b = (shared_tile(operand, mn, schedule.k, _ACROSS) for operand, mn in sides)
        #: the size of a stage
        self.stage = round_up(self.a.bytes, ATOM) + round_up(self.b.bytes, ATOM)
        #: where the slabs of sums begin, and the exchange memory of emulated lanes
        self.slabs = schedule.stages * self.stage
        self.exchange = self.slabs + schedule.warps * SLAB_BYTES
        #: the total size
        self.size = self.exchange + exchange_bytes(is_emulated, schedule.threads)


def shared_bytes(work: Work, is_emulated: bool) -> int:
    """The shared memory of a block."""
    return Memory(work.problem, work.schedule, is_emulated).size


def emit_mma(work: Work, frame: GridFrame) -> None:
    """The entry that multiplies."""
    with work.tiles_of_block(frame) as tile:
        _Mma(work, frame, tile).emit()


class _Mma:
    """Emits one tile of a block."""

    def __init__(self, work: Work, frame: GridFrame, tile: Tile) -> None:
        self.work, self.frame, self.tile = work, frame, tile
        problem, schedule = work.problem, work.schedule
        self.memory = Memory(problem, schedule, frame.target.is_emulated)
        self.warp = WarpInstructions(frame, frame.at_byte(frame.memory, self.memory.exchange))
        self.sides = [
            Staging(frame, self.warp, operand, shared, tile.batch, first)
            for operand, shared, first in (
                (problem.a, self.memory.a, tile.row),
                (problem.b, self.memory.b, tile.column),
            )
        ]
        self.lane = frame.modulo32(frame.number, 32)
        number = frame.over32(frame.number, 32)
        self.rows = schedule.m * schedule.warps_n // schedule.warps
        self.columns = schedule.n // schedule.warps_n
        self.warp_number = number
        self.row = frame.times32(frame.over32(number, schedule.warps_n), self.rows)
        self.column = frame.times32(frame.modulo32(number, schedule.warps_n), self.columns)

    # The loop over blocks of terms

    def emit(self) -> None:
        """Sum the terms of the tile, and store it."""
        frame, b, stages = self.frame, self.frame.b, self.work.schedule.stages
        first, end = (frame.wide(v) for v in (self.tile.first, self.tile.end))
        ahead = stages - 1
        for number in range(ahead):
            block = frame.add(first, constant(I64, number))
            self._put(self._begin(block, constant(I64, number)), constant(I64, number))
        count = self.rows // _ROWS * (self.columns // _COLUMNS) * 4
        zeros = [constant(FLOAT, 0)] * count
        with b.loop(first, end, 1, zeros) as loop:
            self.warp.wait(max(0, ahead - 1))
            frame.grid.barrier()
            stage = self._stage(frame.subtract(loop.index, first))
            free = self._stage(frame.add(frame.subtract(loop.index, first), constant(I64, ahead)))
            values = self._begin(frame.add(loop.index, constant(I64, ahead)), free)
            loop.next = self._multiplied(loop.carried, stage)
            self._put(values, free)
        self.warp.wait(0)
        frame.grid.barrier()
        self.work.finish(frame, self.tile, lambda sink: self._store(sink, loop.results))

    def _stage(self, number: Value) -> Value:
        return self.frame.b.binary("urem", number, self.work.schedule.stages)

    def _bases(self, stage: Value) -> list[Value]:
        """The addresses of the tiles of a stage."""
        frame = self.frame
        start = frame.b.element(frame.memory, "i8", frame.multiply(stage, self.memory.stage))
        return [start, frame.at_byte(start, round_up(self.memory.a.bytes, ATOM))]

    def _begin(self, block: Value, stage: Value) -> list[list[Value]]:
        """Begin to load a block of terms to a stage; returns the part in registers."""
        frame = self.frame
        start = frame.times32(frame.b.convert("trunc", block, "i32"), self.work.schedule.k)
        values: list[list[Value]] = []
        for side, base in zip(self.sides, self._bases(stage), strict=True):
            if side.is_copied:
                side.copy(start, base)
            values.append([] if side.is_copied else side.read(start))
        self.warp.commit()
        return values

    def _put(self, values: Sequence[Sequence[Value]], stage: Value) -> None:
        for side, chunks, base in zip(self.sides, values, self._bases(stage), strict=True):
            if not side.is_copied:
                side.put(chunks, base)

    # Products

    def _multiplied(self, sums: Sequence[Value], stage: Value) -> list[Value]:
        frame, schedule = self.frame, self.work.schedule
        dtype = self.work.problem.a.dtype
        left, right = self._bases(stage)
        across, down = self.columns // _COLUMNS, self.rows // _ROWS
        made_sums = list(sums)
        for step in range(schedule.k * self.memory.a.itemsize // STEP_BYTES):
            rows = [
                self._rows_of(left, frame.plus32(self.row, _ROWS * i), step) for i in range(down)
            ]
            columns: list[list[Value]] = []
            for j in range(0, across, 2):
                place = frame.plus32(self.column, _COLUMNS * j)
                columns += self._columns_of(right, place, step)
            for i in range(down):
                for j in range(across):
                    at = 4 * (i * across + j)
                    before = made_sums[at : at + 4]
                    made_sums[at : at + 4] = self.warp.multiply(dtype, rows[i], columns[j], before)
        return made_sums

    def _rows_of(self, base: Value, row: Value, step: int) -> list[Value]:
        """The registers of 16 rows."""
        return self._factors(self.memory.a, base, row, step, 1, 2)

    def _columns_of(self, base: Value, column: Value, step: int) -> list[list[Value]]:
        """The registers of twice 8 columns."""
        found = self._factors(self.memory.b, base, column, step, 2, 1)
        return [found[:2], found[2:]]

    def _factors(
        self, tile: SharedTile, base: Value, mn: Value, step: int, by_line: int, by_term: int
    ) -> list[Value]:
        """Four matrices, rounded if necessary."""
        result = self._matrices(tile, base, mn, step, by_line, by_term)
        if self.work.problem.a.dtype != FLOAT32:
            return result
        return [rounded(self.frame.b, register) for register in result]

    def _matrices(
        self, tile: SharedTile, base: Value, mn: Value, step: int, by_line: int, by_term: int
    ) -> list[Value]:
        """Four matrices of 8 rows or columns by 16 bytes of terms.

        Bit `by_line` of a matrix's number says whether it is the second of rows or columns, bit
        `by_term` whether it is the second of terms.
        """
        frame, b = self.frame, self.frame.b
        if tile.axis == "mn" and tile.itemsize == 4:
            return [
                self._element(tile, base, mn, step, bool(n & by_line), bool(n & by_term))
                for n in range(4)
            ]
        matrix, line = frame.over32(self.lane, 8), frame.modulo32(self.lane, 8)
        second_line = frame.over32(b.binary("and", matrix, frame.i32(by_line)), by_line)
        second_term = frame.over32(b.binary("and", matrix, frame.i32(by_term)), by_term)
        if tile.axis == "k":
            number = frame.plus32(mn, frame.plus32(frame.times32(second_line, 8), line))
            piece = frame.plus32(second_term, step * _PIECES)
            offset = swizzled(frame, number, frame.times32(piece, 16))
        else:
            term = frame.plus32(frame.times32(second_term, 8), line)
            term = frame.plus32(term, step * STEP_BYTES // tile.itemsize)
            offset = tile.offset(frame, frame.plus32(mn, frame.times32(second_line, 8)), term)
        return self.warp.load_matrices(frame.at_byte(base, offset), tile.axis == "mn")

    def _element(
        self,
        tile: SharedTile,
        base: Value,
        mn: Value,
        step: int,
        second_line: bool,
        second_term: bool,
    ) -> Value:
        """A lane's single element of a matrix of 4-byte elements, which it loads itself."""
        frame = self.frame
        line, term = frame.over32(self.lane, 4), frame.modulo32(self.lane, 4)
        line = frame.plus32(line, 8 * second_line)
        term = frame.plus32(term, (step * STEP_BYTES + 16 * second_term) // tile.itemsize)
        offset = tile.offset(frame, frame.plus32(mn, line), term)
        return frame.load_aligned(I32, frame.at_byte(base, offset), 4)

    # Output

    def _store(self, sink: Sink, sums: Sequence[Value]) -> None:
        frame = self.frame
        start = frame.times32(self.warp_number, SLAB_BYTES)
        base = frame.at_byte(frame.at_byte(frame.memory, self.memory.slabs), start)
        slabs = Slabs(frame, base, self.lane)
        across = self.columns // _COLUMNS
        for i in range(self.rows // _ROWS):
            line = sums[4 * i * across : 4 * (i + 1) * across]
            fours = [line[at : at + 4] for at in range(0, len(line), 4)]
            slabs.store(sink, frame.plus32(self.row, _ROWS * i), self.column, fours)
