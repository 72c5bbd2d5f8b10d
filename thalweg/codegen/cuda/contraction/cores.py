"""Products on the cores of a multiprocessor: for float32, float64, and computed operands.

Each thread has some rows and columns of the tile in registers, in strided pieces of four, so that a
warp reads shared memory without bank conflicts. While the tile of one block of terms is multiplied,
the next one is loaded to registers. Long sums of float32 numbers are added to a total in intervals:
rounding errors do not grow with their length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thalweg.codegen.cuda.contraction.frame import GridFrame
from thalweg.codegen.cuda.contraction.output import sum_type
from thalweg.codegen.cuda.contraction.problem import Operand
from thalweg.codegen.cuda.contraction.reader import TileReader
from thalweg.codegen.cuda.contraction.work import Sink, Tile, Work
from thalweg.codegen.llvm.builder import FLOAT, I64, Type, Value, constant
from thalweg.codegen.loops.lanes import compensated_add, with_compensation

PIECE = 4  # adjacent rows or columns of a thread
_PAD = 4  # padding elements that keep the columns of a transposed chunk in different banks
_UNROLL = 8
_RESIDENT_THREADS = 512  # of a multiprocessor, with up to 128 registers each
_SUMMED_TERMS = 128  # summed before they are added to a total


def shared_bytes(work: Work) -> int:
    """The shared memory of a block: two stages of both operands."""
    size = sum_type(work.problem).bits // 8
    schedule = work.schedule
    return 2 * schedule.k * (schedule.m + schedule.n + 2 * _PAD) * size


def resident_blocks(work: Work) -> int:
    """The number of blocks to be resident on a multiprocessor, which hide each other's latency;
    registers are limited accordingly."""
    return max(1, _RESIDENT_THREADS // work.schedule.threads)


def emit_cores(work: Work, frame: GridFrame) -> None:
    """The entry that multiplies."""
    with work.tiles_of_block(frame) as tile:
        _Cores(work, frame, tile).emit()


@dataclass(frozen=True)
class _Side:
    """An operand in shared memory: rows of the tile's columns, one for each term."""

    reader: TileReader
    base: Value
    pitch: int  # elements from one term to the next


class _Cores:
    """Emits one tile on the cores."""

    def __init__(self, work: Work, frame: GridFrame, tile: Tile) -> None:
        self.work, self.frame, self.tile = work, frame, tile
        schedule, problem = work.schedule, work.problem
        self.kind: Type = sum_type(problem)
        self.size = self.kind.bits // 8
        self.a = self._side(problem.a, schedule.m, tile.row, 0)
        self.b = self._side(problem.b, schedule.n, tile.column, schedule.k * self.a.pitch)
        self.stage = schedule.k * (self.a.pitch + self.b.pitch) * self.size
        across = _threads_across(schedule.n, schedule.threads)
        self.thread_n = frame.modulo32(frame.number, across)
        self.thread_m = frame.over32(frame.number, across)
        self.rows = schedule.m * across // schedule.threads
        self.columns = schedule.n // across

    def _side(self, operand: Operand, width: int, first: Value, start: int) -> _Side:
        reader = TileReader(
            self.frame, operand, (width, self.work.schedule.k), self.tile.batch, first
        )
        base = self.frame.at_byte(self.frame.memory, start * self.size)
        return _Side(reader, base, width + _PAD)

    def emit(self) -> None:
        """Sum the terms of the tile, and store it."""
        frame, b = self.frame, self.frame.b
        one = constant(I64, 1)
        first, end = (frame.wide(v) for v in (self.tile.first, self.tile.end))
        self._put(self._read(first), constant(I64, 0))
        frame.grid.barrier()
        zeros = [constant(self.kind, 0)] * (self.rows * self.columns)
        totals = _Totals.of(self.work, frame, len(zeros))
        with b.loop(first, end, one, zeros) as loop:
            number = frame.subtract(loop.index, first)
            odd = b.binary("and", number, one)
            following = self._read(frame.add(loop.index, one))
            sums = self._multiplied(loop.carried, odd)
            loop.next = sums if totals is None else totals.kept(sums, number)
            self._put(following, b.binary("xor", odd, one))
            frame.grid.barrier()
        found = loop.results if totals is None else totals.with_rest(loop.results)
        self.work.finish(frame, self.tile, lambda sink: self._store(sink, found))

    def _read(self, block: Value) -> list[list[Value]]:
        frame = self.frame
        start = frame.times32(frame.b.convert("trunc", block, "i32"), self.work.schedule.k)
        return [side.reader.values(start, self.work.problem.dtype) for side in (self.a, self.b)]

    def _put(self, values: Sequence[Sequence[Value]], stage: Value) -> None:
        for side, chunks in zip((self.a, self.b), values, strict=True):
            base = self._of_stage(side, stage)
            for chunk, value in zip(side.reader.chunks, chunks, strict=True):
                with self.frame.b.when(chunk.exists):
                    index = self.frame.plus32(self.frame.times32(chunk.k, side.pitch), chunk.mn)
                    self._put_chunk(side, self.frame.at_byte(base, self._bytes(index)), value)

    def _put_chunk(self, side: _Side, address: Value, value: Value) -> None:
        frame, lanes = self.frame, value.type.lanes
        if side.reader.operand.axis == "mn":
            frame.store_aligned(value, address, min(16, lanes * self.size))
            return
        for lane in range(lanes):
            one = frame.b.extract(value, lane)
            place = frame.at_byte(address, lane * side.pitch * self.size)
            frame.store_aligned(one, place, self.size)

    def _of_stage(self, side: _Side, stage: Value) -> Value:
        return self.frame.b.element(side.base, "i8", self.frame.multiply(stage, self.stage))

    def _bytes(self, index: Value) -> Value:
        return self.frame.wide(self.frame.times32(index, self.size))

    def _multiplied(self, sums: Sequence[Value], stage: Value) -> list[Value]:
        """The sums with the terms of a stage added."""
        frame, b, k = self.frame, self.frame.b, self.work.schedule.k
        starts = [
            frame.at_byte(self._of_stage(side, stage), self._bytes(frame.times32(thread, PIECE)))
            for side, thread in ((self.a, self.thread_m), (self.b, self.thread_n))
        ]
        unroll = min(_UNROLL, k)
        zero, end, step = (constant(I64, n) for n in (0, k, unroll))
        with b.loop(zero, end, step, sums) as loop:
            made = list(loop.carried)
            for term in range(unroll):
                number = frame.add(loop.index, constant(I64, term))
                left = self._line(self.a, starts[0], number, self.rows)
                right = self._line(self.b, starts[1], number, self.columns)
                pairs = [(x, y) for x in left for y in right]
                made = [b.multiply_add(x, y, s) for (x, y), s in zip(pairs, made, strict=True)]
            loop.next = made
        return loop.results

    def _line(self, side: _Side, base: Value, term: Value, count: int) -> list[Value]:
        """This thread's elements of one term, in strided pieces."""
        frame, b = self.frame, self.frame.b
        row = b.element(base, "i8", frame.multiply(term, side.pitch * self.size))
        apart = (side.pitch - _PAD) * PIECE // count
        result: list[Value] = []
        for piece in range(count // PIECE):
            place = frame.at_byte(row, piece * apart * self.size)
            vector = frame.load_aligned(self.kind.of(PIECE), place, 16)
            result += [b.extract(vector, lane) for lane in range(PIECE)]
        return result

    def _store(self, sink: Sink, sums: Sequence[Value]) -> None:
        frame, schedule = self.frame, self.work.schedule
        row0, column0 = (frame.times32(t, PIECE) for t in (self.thread_m, self.thread_n))
        rows_apart, columns_apart = (
            schedule.m * PIECE // self.rows,
            schedule.n * PIECE // self.columns,
        )
        for i in range(self.rows):
            row = frame.plus32(row0, i // PIECE * rows_apart + i % PIECE)
            for piece in range(self.columns // PIECE):
                column = frame.plus32(column0, piece * columns_apart)
                first = i * self.columns + piece * PIECE
                sink.store(row, column, sums[first : first + PIECE])


@dataclass(frozen=True)
class _Totals:
    """The compensated totals of a thread over all blocks so far, in local memory, since they are
    rarely accessed."""

    frame: GridFrame
    memory: Value
    count: int
    every: int  # blocks of terms, a power of two

    @classmethod
    def of(cls, work: Work, frame: GridFrame, count: int) -> _Totals | None:
        """Zeroed totals; None for short sums, or wide dtypes."""
        problem, every = work.problem, max(_SUMMED_TERMS // work.schedule.k, 1)
        is_short = problem.reduced.is_static and problem.shape[3] <= 2 * _SUMMED_TERMS
        if sum_type(problem) != FLOAT or is_short:
            return None
        result = cls(frame, frame.b.stack(FLOAT, 2 * count), count, every)
        for index in range(0, 2 * count, PIECE):
            result._put(index, constant(FLOAT.of(PIECE), 0))
        return result

    def _at(self, place: int) -> Value:
        return self.frame.at_byte(self.memory, 4 * place)

    # Volatile: LLVM would keep them in registers, which halves the number of resident threads.

    def _put(self, place: int, value: Value) -> None:
        self.frame.b.line(f"store volatile {value}, {self._at(place)}, align 16")

    def _get(self, place: int) -> Value:
        kind = FLOAT.of(PIECE)
        return self.frame.b.emit(kind, f"load volatile {kind}, {self._at(place)}, align 16")

    def kept(self, sums: Sequence[Value], number: Value) -> list[Value]:
        """The sums after a block of terms: zero if they were added to the totals."""
        b, last = self.frame.b, constant(I64, self.every - 1)
        is_last = b.compare("eq", b.binary("and", number, last), last)

        def add() -> list[Value]:
            for index in range(0, self.count, PIECE):
                total, lost = self._added(index, sums)
                self._put(index, total)
                self._put(self.count + index, lost)
                self.frame.grid.warp_barrier()  # else all would be loaded first
            return [constant(FLOAT, 0)] * self.count

        return b.choose_all(is_last, add, lambda: sums)

    def _added(self, place: int, sums: Sequence[Value]) -> tuple[Value, Value]:
        """Some totals with sums added, and the rounding errors."""
        before, lost = self._get(place), self._get(self.count + place)
        return compensated_add(
            self.frame.b, before, lost, self.frame.b.vector(sums[place : place + PIECE])
        )

    def with_rest(self, sums: Sequence[Value]) -> list[Value]:
        """The totals with the last sums and the rounding errors."""
        b, result = self.frame.b, list[Value]()
        for index in range(0, self.count, PIECE):
            total = with_compensation(b, *self._added(index, sums))
            result += [b.extract(total, lane) for lane in range(PIECE)]
        return result


def _threads_across(n: int, threads: int) -> int:
    """The number of threads along columns, for which each has about as many rows as columns."""
    across = 1
    while across * across < threads:
        across *= 2
    return min(across, n // PIECE)
