"""Reads operands from memory: the chunks of a tile that each thread reads, with zero padding.

Given an operand and the size of its tile, it emits for each block of terms the values of this
thread's chunks, and their positions in the tile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any

from thalweg.codegen.cuda.contraction.frame import GridFrame, GridPoint, access_alignment
from thalweg.codegen.cuda.contraction.problem import Operand
from thalweg.codegen.cuda.contraction.space import At
from thalweg.codegen.llvm.builder import Type, Value, constant
from thalweg.codegen.math.conversion import converted, from_memory, register_type, storage_type
from thalweg.ir.dynamic import is_static
from thalweg.ir.expr import Variable
from thalweg.ir.index import Affine


@dataclass(frozen=True)
class Chunk:
    """Elements that one thread reads together, contiguous along the operand's axis.

    `mn` and `k` (i32) are the position of the first one in the tile; `exists` is false for threads
    without a chunk.
    """

    mn: Value
    k: Value
    exists: Value
    at: At
    valid: Value


class TileReader:
    """Reads an operand's tiles along the terms by the threads of a block."""

    def __init__(
        self,
        frame: GridFrame,
        operand: Operand,
        tile: tuple[int, int],
        batch: At,
        first: Value,
        threads: tuple[int, int] | None = None,
    ) -> None:
        """`tile`: its size across and along the terms; `first`: its first row or column; `threads`:
        the first reading thread and their number."""
        self.frame, self.operand, self.batch = frame, operand, batch
        self.mn, self.k = tile
        line = self.k if operand.axis == "k" else self.mn
        self.vector = gcd(operand.vector, line)
        self._first, self._threads = threads or (0, frame.max_threads)
        self._line = line // self.vector
        lines = self.mn if operand.axis == "k" else self.k
        self.chunks = [
            self._chunk(i, lines, first) for i in range(-(-self._line * lines // self._threads))
        ]

    def _chunk(self, number: int, lines: int, first: Value) -> Chunk:
        frame, operand = self.frame, self.operand
        index = frame.plus32(frame.number, number * self._threads - self._first)
        across, along = frame.over32(index, self._line), frame.modulo32(index, self._line)
        along = frame.times32(along, self.vector)
        mn, k = (across, along) if operand.axis == "k" else (along, across)
        at, valid = operand.across.at(frame, frame.plus32(first, mn))
        exists = constant(Type("i1"), True)
        if (number + 1) * self._threads > self._line * lines:
            exists = frame.b.compare("slt", index, frame.i32(self._line * lines))
        return Chunk(mn, k, exists, {**self.batch, **at}, frame.both(valid, exists))

    def _terms(self, start: Value, chunk: Chunk) -> tuple[At, Value]:
        """The reduced variables at the begin of a chunk of the block from `start` on."""
        frame, space = self.frame, self.operand.along
        last = space.last
        extent = last.extent if last is not None else 1
        padded = -(-extent // space.multiple) * space.multiple if is_static(extent) else 1
        if len(space.variables) < 2 or padded % self.k:
            return space.at(frame, frame.plus32(start, chunk.k))
        assert last is not None  # a block has one value of all other variables
        at, _ = space.at(frame, start)
        inner = frame.add(at[last], frame.wide(chunk.k))
        begun = frame.b.compare("slt", start, space.size(frame))
        inside = frame.b.compare("slt", inner, frame.integer(extent))
        return {**at, last: inner}, frame.both(begun, inside)

    def addresses(self, start: Value) -> list[tuple[Value, Value]]:
        """The address of each chunk of a plain operand, and whether it is inside."""
        found = [self._place(chunk, start) for chunk in self.chunks]
        return [(address, inside) for address, inside, _ in found]

    def raw(self, start: Value) -> list[Value]:
        """The chunks of the block of terms from `start` (i32) on, in the dtype of memory."""
        kind = storage_type(self.operand.dtype, self.vector)
        return [self._raw(chunk, start, kind) for chunk in self.chunks]

    def values(self, start: Value, dtype: Any) -> list[Value]:
        """The chunks of the block of terms from `start` (i32) on, converted to a dtype."""
        b, kind = self.frame.b, register_type(dtype, self.vector)
        if self.operand.is_plain:
            return [
                converted(b, from_memory(b, raw, self.operand.dtype), self.operand.dtype, dtype)
                for raw in self.raw(start)
            ]
        value = self.operand.access.value

        def compute(point: GridPoint) -> Value:
            return point.value_as(value, dtype)

        return [self._computed(chunk, start, kind, compute) for chunk in self.chunks]

    def _raw(self, chunk: Chunk, start: Value, kind: Type) -> Value:
        if not self.operand.is_plain:
            value, dtype = self.operand.access.value, self.operand.dtype
            return self._computed(
                chunk, start, kind, lambda point: point.raw_bits(value, dtype, None)
            )
        address, inside, align = self._place(chunk, start)
        b = self.frame.b
        result = self.frame.load_aligned(kind, address, align)
        if inside.text == "true":
            return result
        return b.emit(kind, f"select {inside}, {result}, {kind} zeroinitializer")

    def _place(self, chunk: Chunk, start: Value) -> tuple[Value, Value, int]:
        """The address of a chunk (the buffer's if it is outside), whether it is inside, and the
        alignment."""
        frame, operand = self.frame, self.operand
        load = operand.access.load
        terms, inside = self._guard(chunk, start)
        index = frame.add(self._part(load.offset, chunk.at), self._part(load.offset, terms))
        index = frame.add(index, load.offset.constant)
        index = frame.b.select(inside, index, 0)
        kind = storage_type(load.buffer.dtype, self.vector)
        address = frame.b.element(frame.pointers[load.buffer], kind.scalar, index)
        lane = operand.along.last if operand.axis == "k" else operand.across.last
        return address, inside, access_alignment(load.offset, lane, kind)

    def _guard(self, chunk: Chunk, start: Value) -> tuple[At, Value]:
        """The reduced variables of a chunk, and whether it is inside of the operand's bounds."""
        frame, b = self.frame, self.frame.b
        terms, valid = self._terms(start, chunk)
        conditions = [chunk.valid, valid]
        for low, offset, high in self.operand.bounds:
            place = frame.add(self._part(offset, chunk.at), self._part(offset, terms))
            place = frame.add(place, offset.constant)
            if is_static(low) and low == 0:  # one comparison: negative numbers are large
                conditions.append(b.compare("ult", place, frame.integer(high)))
                continue
            conditions.append(b.compare("sge", place, frame.integer(low)))
            conditions.append(b.compare("slt", place, frame.integer(high)))
        return terms, frame.both(*conditions)

    def _part(self, offset: Affine, at: Mapping[Variable, Value]) -> Value:
        """The terms of an offset with some variables."""
        frame, result = self.frame, self.frame.integer(0)
        for variable, factor in offset.strides.items():
            if variable in at:
                result = frame.add(result, frame.multiply(at[variable], factor))
        return result

    def _computed(
        self, chunk: Chunk, start: Value, kind: Type, compute: Callable[[GridPoint], Value]
    ) -> Value:
        """An expression if a chunk is inside of its bounds, else zeros."""
        frame, operand = self.frame, self.operand
        lane = operand.along.last if operand.axis == "k" else operand.across.last
        terms, inside = self._guard(chunk, start)

        def inside_value() -> Value:
            lanes = lane if self.vector > 1 else None
            return compute(GridPoint(frame, {**chunk.at, **terms}, lanes, self.vector))

        return frame.b.choose(inside, inside_value, lambda: Value(kind, _zero(kind)))


def _zero(kind: Type) -> str:
    return "zeroinitializer" if kind.lanes > 1 or kind.is_float else "0"
