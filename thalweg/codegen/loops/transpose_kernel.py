"""Transposes: copies that permute axes, tile by tile.

A loop kernel that stores loaded elements in another order comes in, LLVM text goes out. A square
tile is loaded along the contiguous axis of the source, transposed in registers, and stored along
the contiguous axis of the result, so that aligned cache lines are read and written whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.codegen.contraction.microkernel import prefetch
from thalweg.codegen.contraction.packing import transposed
from thalweg.codegen.frame import At, PhaseFrame
from thalweg.codegen.llvm.builder import Module, Value
from thalweg.codegen.llvm.emitted import Emitted
from thalweg.codegen.loops.simplify import stride
from thalweg.codegen.machine import CpuTarget
from thalweg.codegen.math.conversion import storage_type
from thalweg.ir.dynamic import Dynamic
from thalweg.ir.expr import Load
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Loops, Store
from thalweg.ir.loop import Variable

_PAGE = 4096
_SIZES = (2, 4, 8)  # of elements, in bytes
_BLOCK_TILES = 4  # tiles of a block along each axis: neighbouring lines are reused soon


@dataclass(frozen=True)
class Transpose:
    """A transpose by tiles of `side` by `side` elements: `across` is contiguous in what is loaded,
    `along` in what is stored."""

    form: Loops
    load: Load
    store: Store
    across: Variable
    along: Variable
    side: int


def transpose_of(form: Loops, target: CpuTarget) -> Transpose | None:
    """Match a kernel that is a transpose and nothing else, large enough for a tile."""
    if len(form.stores) != 1 or form.checks or form.serial:
        return None
    (store,) = form.stores
    load = store.value
    if not store.is_plain or not isinstance(load, Load):
        return None
    if load.buffer is store.buffer or load.buffer.dtype != store.buffer.dtype:
        return None
    if not (load.offset.is_plain and store.offset.is_plain):
        return None
    across = _contiguous_variable(load.offset, store.offset)
    along = _contiguous_variable(store.offset, load.offset)
    size = np.dtype(store.buffer.dtype).itemsize
    if across is None or along is None or size not in _SIZES:
        return None
    side = target.vector_bytes // max(size, 4)
    if min(int(across.extent), int(along.extent)) < side:
        return None
    if size > 2 and not _conflicts_in_cache(load.offset.factor(along), size):
        return None
    return Transpose(form, load, store, across, along, side)


def _contiguous_variable(near: Affine, far: Affine) -> Variable | None:
    """The variable of stride 1 in one offset and of another stride in the other."""
    return next((v for v in near.strides if stride(near, v) == 1 and stride(far, v) != 1), None)


def _conflicts_in_cache(step: int, size: int) -> bool:
    """Whether elements at a stride fall, or may fall, into few sets of the cache. If they do not, a
    gathering loop is as fast as a transpose by tiles, or a third faster."""
    if isinstance(step, Dynamic):
        return True
    apart = abs(step) * size
    return apart % 256 == 0 or min(apart % _PAGE, -apart % _PAGE) <= 128


def emit_transpose(transpose: Transpose, target: CpuTarget) -> Emitted:
    """Emit a transpose: one entry point that all threads call."""
    module = Module(target.native_fp16)
    _TransposeEmitter(transpose, PhaseFrame(module, "kernel", transpose.form, False)).write()
    return Emitted(("kernel",), module.text, passes="tiles")


class _TransposeEmitter:
    """Emits the function of a transpose."""

    def __init__(self, transpose: Transpose, frame: PhaseFrame) -> None:
        self.transpose, self.frame, self.b = transpose, frame, frame.b
        self.length = _BLOCK_TILES * transpose.side
        self.kind = storage_type(transpose.store.buffer.dtype)
        #: the strides of neighbours in the result that are loaded, and of neighbours in the source
        #: that are stored
        self.step_along = transpose.load.offset.factor(transpose.along)
        self.step_across = transpose.store.offset.factor(transpose.across)

    def write(self) -> None:
        """Emit the loop over this thread's blocks."""
        frame, transpose = self.frame, self.transpose
        tiled = transpose.along, transpose.across
        others = [v for v in transpose.form.variables if v not in tiled]
        extents = [frame.integer(v.extent) for v in others]
        extents += [frame.ceil_div(v.extent, self.length) for v in tiled]
        with frame.thread_loop(extents) as (*places, along, across):
            self._block(dict(zip(others, places, strict=True)), along, across)

    def _block(self, at: At, *blocks: Value) -> None:
        """Emit a block of tiles."""
        b, frame, step = self.b, self.frame, self.transpose.side
        along, across = self.transpose.along, self.transpose.across
        starts = [frame.multiply(number, self.length) for number in blocks]
        ends = [
            frame.minimum(frame.add(start, self.length), variable.extent)
            for start, variable in zip(starts, (along, across), strict=True)
        ]
        with b.loop(starts[0], ends[0], step) as rows, b.loop(starts[1], ends[1], step) as columns:
            self._tile({**at, along: rows.index, across: columns.index})

    def _tile(self, at: At) -> None:
        """Emit a tile, whole or partial."""
        b, frame, transpose = self.b, self.frame, self.transpose
        source, sink = (frame.address(access, at) for access in (transpose.load, transpose.store))
        ends = transpose.across, transpose.along
        left = [frame.subtract(v.extent, at[v]) for v in ends]
        is_whole = b.compare("sge", frame.minimum(*left), transpose.side)
        self._prefetch(at)
        with b.when(is_whole):
            self._whole_tile(source, sink)
        with b.when(b.negation(is_whole)):
            self._partial_tile(source, sink, *left)

    def _prefetch(self, at: At) -> None:
        """Prefetch the lines that the next tile stores to, which hardware prefetchers miss. A
        prefetch past the end of memory does nothing."""
        transpose = self.transpose
        for number in range(transpose.side, 2 * transpose.side):
            across = self.frame.add(at[transpose.across], number)
            address = self.frame.address(transpose.store, {**at, transpose.across: across})
            prefetch(self.b, address, 3, to_write=True)

    def _whole_tile(self, source: Value, sink: Value) -> None:
        b, kind, side = self.b, self.kind, self.transpose.side
        from_source, to_sink = (
            [self.frame.multiply(number, step) for number in range(side)]
            for step in (self.step_along, self.step_across)
        )
        rows = [b.load(kind.of(side), b.element(source, kind.scalar, n)) for n in from_source]
        for place, column in zip(to_sink, transposed(b, rows), strict=True):
            b.store(column, b.element(sink, kind.scalar, place))

    def _partial_tile(self, source: Value, sink: Value, across: Value, along: Value) -> None:
        """Emit a partial tile, element by element."""
        b, frame, kind = self.b, self.frame, self.kind
        rows, columns = (frame.minimum(left, self.transpose.side) for left in (across, along))
        with b.loop(0, rows) as row:
            here = b.element(source, kind.scalar, row.index)
            distance = frame.multiply(row.index, self.step_across)
            there = b.element(sink, kind.scalar, distance)
            with b.loop(0, columns) as column:
                distance = frame.multiply(column.index, self.step_along)
                value = b.load(kind, b.element(here, kind.scalar, distance))
                b.store(value, b.element(there, kind.scalar, column.index))
