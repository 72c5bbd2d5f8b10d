"""Contractions of bfloat16 on AMX, in tiles of 16 by 16 sums.

A contraction of bfloat16 factors and a schedule come in, LLVM text goes out. AMX multiplies 16 rows
of 32 numbers by 16 columns of 32, interleaved in pairs. A phase of its own, or every piece of work,
packs `b` in that layout. The epilogue reads the sums from memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from math import ceil, prod

import ml_dtypes
import numpy as np

from thalweg.codegen.contraction.epilogue import Epilogue, Masks
from thalweg.codegen.contraction.form import Form, form_of, loads_of
from thalweg.codegen.contraction.packing import PackEmitter, Span, dense, tiled, transposed
from thalweg.codegen.contraction.schedule import (
    Problem,
    Schedule,
    block_position,
    even_part,
    spans_of_rows,
    variables_of,
)
from thalweg.codegen.contraction.scratch import pieces
from thalweg.codegen.frame import At, PhaseFrame
from thalweg.codegen.llvm.builder import (
    I8,
    I16,
    I32,
    I64,
    VOID,
    Builder,
    Module,
    Type,
    Value,
    constant,
)
from thalweg.codegen.llvm.emitted import Emitted
from thalweg.codegen.machine import SLOTS, CpuTarget
from thalweg.codegen.point import Point
from thalweg.ir.dynamic import is_static
from thalweg.ir.expr import Cast, Load
from thalweg.ir.kernel import Access, Contraction
from thalweg.ir.loop import Variable

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
SIDE = 16  # rows and columns of a tile
DEPTH = 32  # terms of a sum per instruction
_MIN_PRODUCTS = 1 << 15  # below which packing likely takes longer; not measured
_ITEM = 2  # the bytes of an element
_SUMS = Type("float", SIDE)
_INTERLEAVED = [lane + half * SIDE for lane in range(SIDE) for half in range(2)]


@dataclass(frozen=True)
class Roles:
    """A contraction of bfloat16 factors; steps of the sum go along the variable `inner`."""

    a: Access
    b: Access
    inner: Variable


def has_unit(target: CpuTarget) -> bool:
    """Whether a target has AMX for bfloat16."""
    return target.has("amx-bf16") and target.has("amx-tile") and target.vector_bytes == 64


def on_matrix_unit(kernel: Contraction, target: CpuTarget) -> bool:
    """Whether a contraction runs on AMX on a target."""
    return has_unit(target) and amx_schedule(Problem(form_of(kernel), target)) is not None


def roles_of(form: Form) -> Roles | None:
    """The roles if both factors are bfloat16, summed in float32 over static extents."""
    kernel = form.kernel
    if np.dtype(kernel.dtype) != np.float32 or form.depthwise or not form.reduced:
        return None
    if not all(is_static(v.extent) and v.extent for v in (form.lane, *form.reduced)):
        return None
    a, b = (_as_bfloat16(side) for side in (kernel.a, kernel.b))
    if a is None or b is None:
        return None
    return Roles(a, b, _inner_variable(form))


def _as_bfloat16(access: Access) -> Access | None:
    """A factor as bfloat16, without its cast to float32; None if it is not bfloat16."""
    value = access.value
    if isinstance(value, Cast) and value.dtype == np.float32:
        value = value.value
    return replace(access, value=value) if value.dtype == BFLOAT16 else None


def _inner_variable(form: Form) -> Variable:
    """The variable that fills steps best; among equals, one along which `a` is contiguous."""
    offsets = [load.offset for load in loads_of(form.kernel.a.value)]

    def priority(variable: Variable) -> tuple[float, bool]:
        filled = variable.extent / (ceil(variable.extent / DEPTH) * DEPTH)
        return round(filled, 1), any(offset.factor(variable) == 1 for offset in offsets)

    return max(form.reduced, key=priority)


def amx_schedule(problem: Problem) -> Schedule | None:
    """The schedule on AMX, where the target has it and it pays."""
    form = problem.form
    if not has_unit(problem.target) or (roles := roles_of(form)) is None:
        return None
    if problem.height * problem.columns * problem.depth < _MIN_PRODUCTS:
        return None
    vectors, at = min(2, ceil(problem.columns / SIDE)), max(0, len(form.rows) - 1)
    tile = 2 * SIDE if problem.height > SIDE else SIDE
    # All threads pack `b` first, or each piece of work packs what it needs.
    copy_b = "shared" if variables_of(form.kernel.b).isdisjoint(form.outer) else "block"
    copy_a = "" if _reads_in_place(roles.a, form, tile) else "dense"
    schedule = Schedule(vectors, at, tile, copy_a=copy_a, copy_b=copy_b, matrix=True)
    return _with_pieces(problem, schedule)


def _reads_in_place(access: Access, form: Form, tile: int) -> bool:
    """Whether `a` can be read in place, by whole tiles."""
    if not isinstance(access.value, Load) or access.bounds or len(form.reduced) != 1:
        return False
    if len(form.rows) != 1 or form.reduced[0].extent % DEPTH or not is_static(form.rows[0].extent):
        return False
    offset = access.value.offset
    if not offset.is_plain or not is_static(offset.factor(form.rows[0])):
        return False
    return offset.factor(form.reduced[0]) == 1 and form.rows[0].extent % tile == 0


def _with_pieces(problem: Problem, schedule: Schedule) -> Schedule:
    """Choose pieces of work whose rows fit L2 beside a panel, some for every core."""
    form, extents, cores = problem.form, problem.row_extents, problem.target.cores
    panels = problem.panels(schedule)
    if not extents:
        return replace(schedule, panels=even_part(panels, cores))
    room = max(schedule.tile, problem.target.l2 // 4 // (2 * problem.depth))
    at = block_position(form.rows, room)
    inner = prod(extents[at + 1 :])
    before = problem.outer * prod(extents[:at])
    wanted = ceil(2 * cores / before)  # blocks
    block = max(1, min(room // inner, ceil(extents[at] / wanted)))
    if inner == 1:
        block = ceil(block / schedule.tile) * schedule.tile
    pieces = before * ceil(extents[at] / block)
    across = 1 if schedule.copy_b == "block" else ceil(cores / pieces)
    return replace(schedule, block_at=at, block=block, panels=even_part(panels, across))


def emit_amx(problem: Problem, schedule: Schedule) -> Emitted:
    """Emit a contraction on AMX."""
    module, names = Module(problem.target.native_fp16, problem.target.fma), ["multiply"]
    layout = _Layout(problem, schedule)
    kernel = problem.form.kernel
    if layout.shares_b:
        names.insert(0, "pack")
        _pack(layout, PhaseFrame(module, "pack", kernel, True))
    _AmxEmitter(layout, PhaseFrame(module, "multiply", kernel, True)).emit()
    return Emitted(tuple(names), module.text, layout.size * _ITEM, "tiles")


def configure(b: Builder) -> None:
    """Configure all eight tiles as 16 rows of 64 bytes."""
    words = [1, 0, *[0x0040004000400040] * 2, 0, 0, 0x1010101010101010, 0]
    memory = b.stack(I64, len(words))
    for number, word in enumerate(words):
        b.store(constant(I64, word), b.element(memory, "i64", number))
    instruct(b, "ldtilecfg", memory)


def instruct(b: Builder, name: str, *arguments: Value | int) -> None:
    """Emit an AMX instruction; integer arguments are tile numbers."""
    values = [constant(I8, a) if isinstance(a, int) else a for a in arguments]
    b.call(f"llvm.x86.{name}", VOID, *values)


class _Layout:
    """The layout of packed factors in scratch memory, in elements.

    A step of the sum is 32 values of the inner variable, at one value of each other one. Packed `a`
    has, per step, all rows of a piece; packed `b`, per step, 16 pairs of all columns of a panel.
    """

    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        roles = roles_of(problem.form)
        assert roles
        self.roles, self.schedule, self.form = roles, schedule, problem.form
        self.width = problem.width(schedule)
        self.panels = problem.panels(schedule)
        self.rows = prod(spans_of_rows(problem.form, schedule).values()) if problem.form.rows else 1
        self.others = [v for v in problem.form.reduced if v is not roles.inner]
        self.chunks = ceil(roles.inner.extent / DEPTH)
        self.steps = self.chunks * prod(int(v.extent) for v in self.others)
        self.panel = self.steps * DEPTH * self.width
        #: whether all threads share packed `b`
        self.shares_b = schedule.copy_b == "shared"
        self._shared_size = self.panels * self.panel if self.shares_b else 0
        #: a thread's elements for `a` and `b`; the last tile of rows may exceed the piece
        a = (self.steps * self.rows + schedule.tile) * DEPTH if schedule.copy_a else 0
        self._thread_sizes = a, 0 if self.shares_b else schedule.panels * self.panel
        #: the total size
        self.size = self._shared_size + SLOTS * sum(self._thread_sizes)

    def thread_addresses(self, frame: PhaseFrame) -> tuple[Value, Value]:
        """The addresses of a thread's packed `a` and `b`."""
        rows, columns = frame.thread_parts("i16", self._thread_sizes, self._shared_size)
        return rows, frame.scratch if self.shares_b else columns


class _ColumnPacker:
    """Emits the loops that pack panels of `b`."""

    def __init__(self, layout: _Layout, frame: PhaseFrame) -> None:
        self.layout, self.frame, self.b = layout, frame, frame.b
        self.access = layout.roles.b
        self.lane, self.inner = layout.form.lane, layout.roles.inner

    def emit(self, at: At, column: Value, chunk: Value, destination: Value) -> None:
        """Emit one chunk of the sum of the panel that starts with a column, for all values of the
        other reduced variables. `destination` is the address of the panel."""
        frame, layout, others = self.frame, self.layout, self.layout.others
        count = prod(int(v.extent) for v in others)
        first = frame.multiply(chunk, count)
        with self.b.loop(0, count) as loop:
            places = frame.unravel(loop.index, [v.extent for v in others])
            here = {**at, **dict(zip(others, places, strict=True)), self.lane: column}
            start = frame.multiply(chunk, DEPTH)
            step = frame.multiply(frame.add(first, loop.index), DEPTH * layout.width)
            base = self.b.element(destination, "i16", step)
            if self._is_transposed():
                self._pack_transposed(here, start, base)
            else:
                self._pack_pairs(here, start, base)

    def _is_transposed(self) -> bool:
        """Whether `b` is contiguous along the sum: pairs are then transposed as 32-bit elements."""
        if not isinstance(self.access.value, Load) or self.access.bounds:
            return False
        offset = self.access.value.offset
        return offset.is_plain and offset.factor(self.inner) == 1

    def _pack_transposed(self, at: At, start: Value, base: Value) -> None:
        """Emit a chunk by transposing 16 by 16 pairs, as 32-bit elements."""
        frame, b = self.frame, self.b
        load = self.access.load
        whole = self.inner.extent % DEPTH == 0
        mask = None if whole else frame.lanes_below(start, self.inner.extent, DEPTH)
        step, last = load.offset.factor(self.lane), self.lane.extent - 1
        for first in range(0, self.layout.width, SIDE):
            rows: list[Value] = []
            for number in range(first, first + SIDE):
                column = frame.add(at[self.lane], number)
                # Past the last column that one is repeated; its sums are not stored.
                column = frame.subtract(frame.minimum(column, last), at[self.lane])
                place = frame.evaluate(load.offset, {**at, self.inner: start})
                place = frame.add(place, frame.multiply(column, step))
                address = b.element(frame.pointers[load.buffer], "i16", place)
                raw = b.load(I16.of(DEPTH), address, mask)
                rows.append(b.emit(I32.of(SIDE), f"bitcast {raw} to {I32.of(SIDE)}"))
            for pair, vector in enumerate(transposed(b, rows)):
                place = 2 * (pair * self.layout.width + first)
                b.store(vector, b.element(base, "i16", place))

    def _pack_pairs(self, at: At, start: Value, base: Value) -> None:
        """Emit a chunk by interleaving vectors of columns, two at a time."""
        frame, b, width = self.frame, self.b, self.layout.width
        with b.loop(0, DEPTH // 2) as loop:
            number = frame.add(start, frame.multiply(loop.index, 2))
            for first in range(0, width, SIDE):
                column = frame.add(at[self.lane], first)
                even, odd = (
                    self._values({**at, self.lane: column, self.inner: frame.add(number, k)})
                    for k in range(2)
                )
                place = frame.multiply(frame.add(frame.multiply(loop.index, width), first), 2)
                b.store(b.shuffle(even, odd, _INTERLEAVED), b.element(base, "i16", place))

    def _values(self, at: At) -> Value:
        """16 columns of one term in storage format; zero where out of bounds."""
        mask = self._mask(at)
        point = Point(self.frame, at, self.lane, SIDE, tail=mask)
        raw = point.raw_bits(self.access.value, BFLOAT16, mask)
        return raw if mask is None else self.b.select(mask, raw, 0)

    def _mask(self, at: At) -> Value | None:
        frame, b, masks = self.frame, self.b, list[Value]()
        if self.lane.extent % self.layout.width:
            masks.append(frame.lanes_below(at[self.lane], self.lane.extent, SIDE))
        if self.inner.extent % DEPTH:
            there = b.compare("slt", at[self.inner], self.inner.extent)
            masks.append(b.splat(there, SIDE))
        if self.access.bounds:
            masks.append(frame.in_bounds(self.access.bounds, at, self.lane, SIDE))
        return reduce(partial(b.binary, "and"), masks) if masks else None


def _pack(layout: _Layout, frame: PhaseFrame) -> None:
    """Emit the phase that packs `b` for all threads, chunk by chunk of every panel."""
    with frame.thread_loop([layout.panels, layout.chunks]) as (panel, chunk):
        base = frame.b.element(frame.scratch, "i16", frame.multiply(panel, layout.panel))
        column = frame.multiply(panel, layout.width)
        _ColumnPacker(layout, frame).emit({}, column, chunk, base)


@dataclass(frozen=True)
class _RowBlock:
    """A block of rows: the values of enclosing variables, its own variables, and its memory."""

    at: At
    variables: Sequence[Variable]
    count: Value
    base: Value
    stride: int  # from row to row, in elements


class _AmxEmitter:
    """Emits the phase that multiplies."""

    def __init__(self, layout: _Layout, frame: PhaseFrame) -> None:
        self.layout, self.frame, self.b = layout, frame, frame.b
        self.form, self.schedule, self.roles = layout.form, layout.schedule, layout.roles
        self.copy_a, self.packed_b = layout.thread_addresses(frame)
        self.sums = self.b.stack(_SUMS, self.schedule.tile * self.schedule.vectors)

    def emit(self) -> None:
        """Emit the loop over a thread's pieces of work."""
        configure(self.b)
        with pieces(self.frame, self.form, self.schedule, self.layout.width) as (
            at,
            block,
            columns,
        ):
            self._piece(at, block, self.frame.multiply(columns, self.schedule.panels))
        instruct(self.b, "tilerelease")

    def _piece(self, at: dict[Variable, Value], block: Value, first: Value) -> None:
        """Emit a block of rows times panels of columns from `first` on."""
        frame, schedule, layout = self.frame, self.schedule, self.layout
        rows = self._rows(at, block)
        last = frame.minimum(frame.add(first, schedule.panels), layout.panels)
        with self.b.loop(first, last) as loop:
            column = frame.multiply(loop.index, layout.width)
            number = loop.index if layout.shares_b else frame.subtract(loop.index, first)
            columns = self.b.element(self.packed_b, "i16", frame.multiply(number, layout.panel))
            if not layout.shares_b:
                with self.b.loop(0, layout.chunks) as chunk:
                    _ColumnPacker(layout, frame).emit(at, column, chunk.index, columns)
            self._panel(rows, columns, column)

    def _rows(self, at: dict[Variable, Value], block: Value) -> _RowBlock:
        """The rows of a block, packed or in place."""
        frame, schedule = self.frame, self.schedule
        rows, count = self.form.rows[schedule.block_at :], frame.integer(1)
        if rows:
            at[rows[0]] = frame.multiply(block, schedule.block)
            count = frame.minimum(frame.subtract(rows[0].extent, at[rows[0]]), schedule.block)
            count = frame.multiply(count, prod(int(v.extent) for v in rows[1:]))
        if schedule.copy_a:
            self._copy(at, rows)
            return _RowBlock(at, rows, count, self.copy_a, DEPTH)
        load = self.roles.a.load
        base = frame.address(load, {**at, self.roles.inner: frame.integer(0)})
        return _RowBlock(at, rows, count, base, load.offset.factor(rows[0]))

    def _copy(self, at: At, rows: Sequence[Variable]) -> None:
        """Pack a block of rows, contiguous within a step."""
        frame, hot = self.frame, self.roles.inner
        packing = tiled(dense(self.roles.a, [*self.layout.others, *rows]), hot, DEPTH)
        zero = frame.integer(0)
        box = {v: Span(zero, int(v.extent)) for v in (*self.form.reduced, *rows[1:])}
        if rows:
            box[rows[0]] = Span(at[rows[0]], self.schedule.block)
        PackEmitter(frame, packing, box, at, self.copy_a, SIDE, BFLOAT16).emit()

    def _panel(self, rows: _RowBlock, columns: Value, column: Value) -> None:
        """Emit all tiles of a block of rows, for the panel that starts with a column."""
        frame, tile = self.frame, self.schedule.tile
        masks = [self._column_mask(column, first) for first in range(0, self.layout.width, SIDE)]
        with self.b.loop(0, rows.count, tile) as loop:
            here = self.b.element(rows.base, "i16", frame.multiply(loop.index, rows.stride))
            self._tile(here, rows.stride, columns)
            left = frame.minimum(frame.subtract(rows.count, loop.index), tile)
            self._store(rows, column, loop.index, left, masks)

    def _column_mask(self, column: Value, first: int) -> Value | None:
        """A mask of the columns that exist, of 16 from column + first on; None if all do."""
        extent = self.form.lane.extent
        if extent % self.layout.width == 0:
            return None
        return self.frame.lanes_below(self.frame.add(column, first), extent, SIDE)

    # Tiles of sums

    def _tile(self, a: Value, stride: int, b: Value) -> None:
        """Emit the sums of a tile, up to two by two AMX tiles, and store them to the stack."""
        frame, layout = self.frame, self.layout
        rows, columns = self.schedule.tile // SIDE, self.schedule.vectors
        for number in range(rows * columns):
            instruct(self.b, "tilezero", number)
        step_a = DEPTH if not self.schedule.copy_a else layout.rows * DEPTH
        with self.b.loop(0, layout.steps) as loop:
            here_a = self.b.element(a, "i16", frame.multiply(loop.index, step_a))
            here_b = self.b.element(b, "i16", frame.multiply(loop.index, DEPTH * layout.width))
            for j in range(columns):
                self._load(6 + j, here_b, j * 2 * SIDE, 2 * layout.width)
            for i in range(rows):
                self._load(4 + i, here_a, i * SIDE * stride, stride)
                for j in range(columns):
                    instruct(self.b, "tdpbf16ps", i * columns + j, 4 + i, 6 + j)
        for number in range(rows * columns):
            i, j = divmod(number, columns)
            bytes_apart = constant(I64, 4 * columns * SIDE)
            place = self._sum_at(frame.integer(i * SIDE), j)
            instruct(self.b, "tilestored64", number, place, bytes_apart)

    def _load(self, tile: int, base: Value, offset: int, stride: int) -> None:
        address = self.b.element(base, "i16", offset)
        instruct(self.b, "tileloadd64", tile, address, constant(I64, stride * _ITEM))

    def _sum_at(self, row: Value, vector: int) -> Value:
        number = self.frame.add(self.frame.multiply(row, self.schedule.vectors), vector)
        return self.b.element(self.sums, str(_SUMS), number)

    def _store(
        self, rows: _RowBlock, column: Value, first: Value, count: Value, masks: Masks
    ) -> None:
        """Emit the epilogue for `count` rows of a tile, from row `first` of the block on."""
        frame = self.frame
        with self.b.loop(0, count) as loop:
            places = self._row_indices(rows, frame.add(first, loop.index))
            sums = [self.b.load(_SUMS, self._sum_at(loop.index, j)) for j in range(len(masks))]
            at = {**rows.at, **places, self.form.lane: column}
            Epilogue(frame, self.form, _SUMS).store_rows(at, [{}], masks, sums)

    def _row_indices(self, rows: _RowBlock, number: Value) -> dict[Variable, Value]:
        """The values of the row variables in row `number` of a block."""
        extents = [self.schedule.block, *(int(v.extent) for v in rows.variables[1:])]
        places = zip(rows.variables, self.frame.unravel(number, extents), strict=False)
        return {v: self.frame.add(rows.at.get(v, 0), place) for v, place in places}
