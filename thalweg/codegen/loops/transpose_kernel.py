"""Transposes: copies that permute axes, tile by tile.

What comes in is a loop kernel that stores loaded elements in another order; what goes out is LLVM
text. Elements that are contiguous in the source are strided in the result and the other way round,
so a square tile is loaded as rows, transposed in registers and stored as columns: cache lines are
read and written whole, where they are aligned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.codegen.contraction.microkernel import prefetch
from thalweg.codegen.contraction.packing import transposed
from thalweg.codegen.llvm.builder import I64, POINTER, Builder, Module, Type, Value, constant
from thalweg.codegen.llvm.emitted import Emitted
from thalweg.codegen.machine import CpuTarget
from thalweg.codegen.math.elements import storage_type
from thalweg.ir.dynamic import Dynamic, factors_of
from thalweg.ir.expr import Load
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Argument, Loops
from thalweg.ir.loop import Variable

_PAGE = 4096
_SIZES = (2, 4, 8)  # of elements, in bytes
_BLOCK_TILES = 4  # in each direction: neighbouring cache lines are used soon


@dataclass(frozen=True)
class Transpose:
    """A transpose: `across` is contiguous in the source, `along` in the result."""

    form: Loops
    source: tuple[Argument, Affine]
    sink: tuple[Argument, Affine]
    across: Variable
    along: Variable
    others: tuple[Variable, ...]
    side: int

    @property
    def kind(self) -> str:
        """The type of an element in memory."""
        return storage_type(self.sink[0].dtype).scalar


def transpose_of(form: Loops, target: CpuTarget) -> Transpose | None:
    """The transpose that a kernel is, if it does nothing else and has room for a tile."""
    if len(form.stores) != 1 or form.checks or form.serial:
        return None
    (store,) = form.stores
    value = store.value
    if store.combine != "set" or store.inside is not None or not isinstance(value, Load):
        return None
    argument, offset = value.buffer, value.offset
    if argument is store.buffer or argument.dtype != store.buffer.dtype:
        return None
    if not (offset.is_plain and store.offset.is_plain):
        return None
    across, along = _beside(offset, store.offset), _beside(store.offset, offset)
    size = np.dtype(store.buffer.dtype).itemsize
    if across is None or along is None or size not in _SIZES:
        return None
    side = target.vector_bytes // max(size, 4)
    others = tuple(v for v in form.variables if v is not across and v is not along)
    if min(int(across.extent), int(along.extent)) < side:
        return None
    if size > 2 and not _crowds(offset.factor(along), size):
        return None
    sink = store.buffer, store.offset
    return Transpose(form, (argument, offset), sink, across, along, others, side)


def _beside(near: Affine, far: Affine) -> Variable | None:
    """The variable that moves one place by an element, and another one by more."""
    found = [v for v, factor in near.strides.items() if _is_one(factor)]
    return next((v for v in found if not _is_one(far.factor(v))), None)


def _is_one(factor: int) -> bool:
    return not isinstance(factor, Dynamic) and factor == 1


def _crowds(step: int, size: int) -> bool:
    """Whether neighbours that come to lie side by side fall into the same few lines of a cache, or
    may. Where they do not, a loop that gathers them is as fast, or faster by a third."""
    if isinstance(step, Dynamic):
        return True
    apart = abs(step) * size
    return apart % 256 == 0 or min(apart % _PAGE, -apart % _PAGE) <= 128


def emit_transpose(transpose: Transpose, target: CpuTarget) -> Emitted:
    """The code of a copy, in one function that all threads call."""
    module = Module(target.native_fp16)
    _Writing(
        transpose, module.function("kernel", [POINTER, I64, I64], attributes="nounwind")
    ).write()
    return Emitted(("kernel",), module.text, passes="tiles")


class _Writing:
    """The function in the making."""

    def __init__(self, transpose: Transpose, builder: Builder) -> None:
        self.transpose, self.b = transpose, builder
        self.words, self.thread, self.threads = builder.parameters
        self.source, self.sink = (
            self._word(1 + argument.position, POINTER)
            for argument, _ in (transpose.source, transpose.sink)
        )
        self.steps = {
            (side, v): self._integer(offset.factor(v))
            for side, offset in (("source", transpose.source[1]), ("sink", transpose.sink[1]))
            for v in transpose.form.variables
        }

    def _word(self, number: int, kind: Type = I64) -> Value:
        place = self.b.element(self.words, "i64", constant(I64, number))
        return self.b.load(kind, place)

    def _integer(self, number: int) -> Value:
        return self._word(number.word) if isinstance(number, Dynamic) else constant(I64, number)

    def _extent(self, variable: Variable) -> Value:
        first, *more = map(self._integer, factors_of(variable.extent))
        for factor in more:
            first = self.b.binary("mul nsw", first, factor)
        return first

    def write(self) -> None:
        """This thread's blocks."""
        b, transpose = self.b, self.transpose
        variables = *transpose.others, transpose.along, transpose.across
        extents = [self._extent(v) for v in variables]
        self.extents = dict(zip(variables, extents, strict=True))
        counts = [*extents[:-2], *map(self._blocks, extents[-2:])]
        count = counts[0]
        for more in counts[1:]:
            count = b.binary("mul nsw", count, more)
        after = b.binary("add nsw", self.thread, constant(I64, 1))
        start, stop = (
            b.binary("udiv", b.binary("mul", count, place), self.threads)
            for place in (self.thread, after)
        )
        with b.loop(start, stop, constant(I64, 1)) as loop:
            *places, along, across = self._digits(loop.index, counts)
            self._block(dict(zip(transpose.others, places, strict=True)), along, across)
        b.ret()

    def _blocks(self, extent: Value) -> Value:
        above = self.b.binary("add nsw", extent, constant(I64, self._length - 1))
        return self.b.binary("udiv", above, constant(I64, self._length))

    @property
    def _length(self) -> int:
        return _BLOCK_TILES * self.transpose.side

    def _digits(self, number: Value, extents: list[Value]) -> list[Value]:
        digits: list[Value] = []
        for extent in reversed(extents[1:]):
            digits.append(self.b.binary("urem", number, extent))
            number = self.b.binary("udiv", number, extent)
        return [number, *reversed(digits)]

    def _block(self, at: dict[Variable, Value], *blocks: Value) -> None:
        """A block of tiles."""
        b, length, step = self.b, constant(I64, self._length), constant(I64, self.transpose.side)
        along, across = self.transpose.along, self.transpose.across
        starts = [b.binary("mul nsw", number, length) for number in blocks]
        ends = [
            b.intrinsic("smin", b.binary("add nsw", start, length), self.extents[variable])
            for start, variable in zip(starts, (along, across), strict=True)
        ]
        with b.loop(starts[0], ends[0], step) as rows, b.loop(starts[1], ends[1], step) as columns:
            self._tile({**at, along: rows.index, across: columns.index})

    def _tile(self, at: dict[Variable, Value]) -> None:
        """A tile: whole, or cut off at one end or both."""
        b, transpose = self.b, self.transpose
        source, sink = (self._address(name, at) for name in ("source", "sink"))
        left = [
            b.binary("sub nsw", self.extents[v], at[v]) for v in (transpose.across, transpose.along)
        ]
        least = b.intrinsic("smin", *left)
        is_whole = b.compare("sge", least, constant(I64, transpose.side))
        self._call_for(at)
        with b.when(is_whole):
            self._whole(source, sink)
        with b.when(b.binary("xor", is_whole, constant(is_whole.type, True))):
            self._ragged(source, sink, *left)

    def _address(self, name: str, at: dict[Variable, Value]) -> Value:
        base = self.source if name == "source" else self.sink
        return self.b.element(base, self.transpose.kind, self._place(name, at))

    def _place(self, name: str, at: dict[Variable, Value]) -> Value:
        b, offset = self.b, (self.transpose.source if name == "source" else self.transpose.sink)[1]
        place = self._integer(offset.constant)
        for variable, index in at.items():
            step = self.steps[name, variable]
            place = b.binary("add nsw", place, b.binary("mul nsw", index, step))
        return place

    def _apart(self, base: Value, name: str, variable: Variable, number: Value) -> Value:
        distance = self.b.binary("mul nsw", number, self.steps[name, variable])
        return self.b.element(base, self.transpose.kind, distance)

    def _call_for(self, at: dict[Variable, Value]) -> None:
        """Prefetch the lines that the next tile is stored to, which no processor foresees; past the
        end of memory that does nothing."""
        b, transpose = self.b, self.transpose
        for number in range(transpose.side, 2 * transpose.side):
            across = b.binary("add nsw", at[transpose.across], constant(I64, number))
            place = self._place("sink", {**at, transpose.across: across})
            address = b.emit(POINTER, f"getelementptr {transpose.kind}, {self.sink}, {place}")
            prefetch(b, address, 3, to_write=True)

    def _whole(self, source: Value, sink: Value) -> None:
        b, transpose = self.b, self.transpose
        kind = storage_type(transpose.sink[0].dtype, transpose.side)
        numbers = [constant(I64, number) for number in range(transpose.side)]
        rows = [b.load(kind, self._apart(source, "source", transpose.along, n)) for n in numbers]
        for number, column in zip(numbers, transposed(b, rows), strict=True):
            b.store(column, self._apart(sink, "sink", transpose.across, number))

    def _ragged(self, source: Value, sink: Value, across: Value, along: Value) -> None:
        """The rest of a tile that is cut off, element by element."""
        b, transpose = self.b, self.transpose
        side, zero, one = (constant(I64, number) for number in (transpose.side, 0, 1))
        rows, columns = (b.intrinsic("smin", left, side) for left in (across, along))
        with b.loop(zero, rows, one) as row:
            here = b.element(source, transpose.kind, row.index)
            there = self._apart(sink, "sink", transpose.across, row.index)
            with b.loop(zero, columns, one) as column:
                place = self._apart(here, "source", transpose.along, column.index)
                value = b.load(storage_type(transpose.sink[0].dtype), place)
                b.store(value, b.element(there, transpose.kind, column.index))
