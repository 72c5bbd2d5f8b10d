"""Transposed copies of operands in scratch memory, made by an earlier launch.

Tensor cores read elements of other sizes than two bytes from shared memory only along the terms. An
operand that is stored across them is transposed by a separate launch: its copy is a matrix of rows
or columns, each with contiguous terms and padded with zeros. If the other operand's rows are read
to registers, the terms of the copy are permuted (see `ORDER`).
"""

from __future__ import annotations

from dataclasses import replace

from thalweg.codegen.cuda.contraction.frame import GridFrame
from thalweg.codegen.cuda.contraction.problem import ACCESS_BYTES, FLOAT32, Operand, Problem
from thalweg.codegen.cuda.contraction.reader import TileReader
from thalweg.codegen.cuda.contraction.schedule import Schedule
from thalweg.codegen.cuda.contraction.space import Space, Words, round_up
from thalweg.codegen.cuda.launch import LaunchShape
from thalweg.codegen.cuda.target import CudaTarget
from thalweg.codegen.llvm.builder import I64, Value, constant
from thalweg.codegen.math.conversion import storage_type
from thalweg.ir.expr import Load
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Access, Argument
from thalweg.ir.loop import Variable

#: The order of eight terms in a copy whose other operand is read to registers. Lanes then read
#: terms two apart, which are in different banks, as the copy engine swizzles lines.
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

_SIDE = 64  # of the tile that a block transposes
_PITCH = _SIDE + 1  # elements from one term to the next in shared memory, in different banks
_THREADS = 256
_BLOCKS = 32  # per multiprocessor, for an even distribution of work
_MULTIPLE = 32  # of the terms of a copy: whole lines
_ALIGNMENT = 256  # bytes, of copies


def with_copies(problem: Problem, schedule: Schedule) -> Problem:
    """The problem with the copies of the operands that a schedule transposes."""
    if "a" in schedule.transposed:
        problem = replace(problem, a=_copy(problem, problem.a, 0))
    if "b" in schedule.transposed:
        start = copied_bytes(problem)
        problem = replace(problem, b=_copy(problem, problem.b, start))
    return problem


def _copy(problem: Problem, operand: Operand, start: int) -> Operand:
    """An operand's copy as a matrix in scratch memory, at a byte offset."""
    across = Variable(operand.across.count(Words(0)), "across")
    along = Variable(round_up(operand.along.count(Words(0)), _MULTIPLE), "along")
    size = operand.dtype.itemsize
    memory = Argument(len(problem.kernel.arguments), operand.dtype, across.extent * along.extent)
    place = Affine(start // size, {across: along.extent, along: 1})
    return Operand(
        Access(Load(memory, place)),
        Space((across,)),
        Space((along,)),
        "k",
        ACCESS_BYTES // size,
        source=operand,
    )


def is_transposable(problem: Problem, operand: Operand) -> bool:
    """Whether a launch can transpose an operand: it is float32, across the terms, and static."""
    is_static = operand.across.is_static and operand.along.is_static
    is_across = operand.axis == "mn" and operand.dtype == FLOAT32
    return is_across and is_static and problem.is_aligned and not problem.batch.variables


def copied_bytes(problem: Problem) -> int:
    """The scratch memory of all copies."""
    return sum(
        round_up(_bytes(operand), _ALIGNMENT)
        for operand in (problem.a, problem.b)
        if operand.source
    )


def _bytes(operand: Operand) -> int:
    return operand.access.load.buffer.size * operand.dtype.itemsize


def moved_bytes(problem: Problem) -> list[int]:
    """The bytes that each transposing launch reads and writes."""
    return [2 * _bytes(operand) for operand in (problem.a, problem.b) if operand.source]


# The launch


def transposition_shape(operand: Operand, target: CudaTarget) -> LaunchShape:
    """The launch of a copy."""
    words = Words(0)
    tiles = -(-operand.across.count(words) // _SIDE) * -(-operand.along.count(words) // _SIDE)
    blocks = min(tiles, _BLOCKS * target.multiprocessors)
    shared = _SIDE * _PITCH * operand.dtype.itemsize
    return LaunchShape((blocks, 1, 1), (_THREADS, 1, 1), shared)


class Transposition:
    """Emits the entry that makes the copy of an operand; blocks loop over tiles."""

    threads = _THREADS

    def __init__(self, frame: GridFrame, operand: Operand, is_ordered: bool) -> None:
        """`is_ordered`: each eight terms are permuted by `ORDER`."""
        assert operand.source is not None
        self.frame, self.copy, self.source = frame, operand, operand.source
        self._is_ordered = is_ordered
        self._size = operand.dtype.itemsize

    def emit(self) -> None:
        """Transpose all tiles."""
        frame, b, words = self.frame, self.frame.b, Words(0)
        across = -(-self.copy.across.count(words) // _SIDE)
        along = -(-self.copy.along.count(words) // _SIDE)
        block, blocks = (frame.wide(v) for v in (frame.grid.block(), frame.grid.blocks()))
        with b.loop(block, across * along, blocks) as loop:
            number = b.convert("trunc", loop.index, "i32")
            mn = frame.times32(frame.modulo32(number, across), _SIDE)
            k = frame.times32(frame.over32(number, across), _SIDE)
            self._read(mn, k)
            frame.grid.barrier()
            self._write(mn, k)
            frame.grid.barrier()

    def _read(self, mn: Value, k: Value) -> None:
        """Copy a tile to shared memory, term by term."""
        frame = self.frame
        reader = TileReader(frame, self.source, (_SIDE, _SIDE), {}, mn, threads=(0, _THREADS))
        for chunk, value in zip(reader.chunks, reader.raw(k), strict=True):
            for lane in range(value.type.lanes):
                part = frame.b.extract(value, lane)
                row = frame.plus32(chunk.mn, lane if self.source.axis == "mn" else 0)
                term = frame.plus32(chunk.k, lane if self.source.axis == "k" else 0)
                frame.store_aligned(part, self._cell(row, term), self._size)

    def _write(self, mn: Value, k: Value) -> None:
        """Store the tile row by row."""
        frame, b, words = self.frame, self.frame.b, Words(0)
        width = self.copy.vector
        per_row = _SIDE // width
        pitch = self.copy.along.count(words)
        for first in range(0, _SIDE * per_row, _THREADS):
            index = frame.plus32(frame.number, first)
            row, term = frame.over32(index, per_row), frame.modulo32(index, per_row)
            term = frame.times32(term, width)
            place = frame.plus32(mn, row), frame.plus32(k, term)
            inside = frame.both(
                b.compare("slt", place[0], frame.i32(self.copy.across.count(words))),
                b.compare("slt", place[1], frame.i32(pitch)),
            )
            with b.when(inside):
                found = [self._load(row, self._term(term, n)) for n in range(width)]
                at = frame.multiply(frame.wide(place[0]), pitch)
                at = frame.add(at, frame.wide(place[1]))
                at = frame.add(at, constant(I64, self.copy.access.load.offset.constant))
                address = b.element(frame.scratch, found[0].type.scalar, at)
                frame.store_aligned(frame.b.vector(found), address, ACCESS_BYTES)

    def _term(self, first: Value, number: int) -> Value:
        """The term at a position of the copy, `number` after a multiple of an access."""
        frame = self.frame
        if not self._is_ordered:
            return frame.plus32(first, number)
        half = len(ORDER) // 2
        eights = frame.times32(frame.over32(first, len(ORDER)), len(ORDER))
        second = frame.over32(frame.modulo32(first, len(ORDER)), half)
        return frame.plus32(frame.plus32(eights, second), ORDER[number])

    def _load(self, row: Value, term: Value) -> Value:
        kind = storage_type(self.copy.dtype)
        return self.frame.load_aligned(kind, self._cell(row, term), self._size)

    def _cell(self, row: Value, term: Value) -> Value:
        frame = self.frame
        index = frame.plus32(frame.times32(term, _PITCH), row)
        return frame.at_byte(frame.memory, frame.times32(index, self._size))
