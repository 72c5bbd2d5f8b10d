"""Contractions to LLVM text: matrix products, convolutions and their gradients.

A `Contraction` and a target come in. A first phase packs `b` for all threads, if the schedule says
so. Then every thread computes its pieces of the result, panel by panel of columns and tile by tile
of rows: it packs its factors as scheduled and runs the micro-kernel, with the epilogue on the sums
in registers. Convolutions by Winograd's algorithm and products on AMX are emitted elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil

from thalweg.codegen.contraction.amx import emit_amx
from thalweg.codegen.contraction.epilogue import Epilogue, Row
from thalweg.codegen.contraction.form import form_of
from thalweg.codegen.contraction.microkernel import (
    BLOCKS,
    Addresses,
    BlockedSums,
    DotKernel,
    Level,
    MicroKernel,
)
from thalweg.codegen.contraction.packing import PackEmitter, Packing, Span
from thalweg.codegen.contraction.plan import best, check_supported
from thalweg.codegen.contraction.schedule import Problem, Schedule, limited_variable, spans_of_rows
from thalweg.codegen.contraction.scratch import GROUP, Scratch, pieces
from thalweg.codegen.frame import PhaseFrame
from thalweg.codegen.llvm.builder import Module, Value, constant
from thalweg.codegen.llvm.emitted import Emitted
from thalweg.codegen.machine import CpuTarget
from thalweg.codegen.math.conversion import register_type
from thalweg.codegen.winograd.kernel import emit_winograd
from thalweg.codegen.winograd.plan import winograd_schedule
from thalweg.ir.dynamic import is_static, times
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Access, Bound, Contraction
from thalweg.ir.loop import Variable


@dataclass(frozen=True)
class _Operand:
    """A factor as tiles read it: a base address, and the stride of each variable.

    Variables count from their `origin`, the start of a packed box.
    """

    base: Value
    factors: Mapping[Variable, int]
    origin: Mapping[Variable, Value]
    rows: Mapping[Variable, int]  # the strides inside of a tile


class GemmEmitter:
    """Emits the phase that multiplies."""

    def __init__(self, scratch: Scratch, frame: PhaseFrame) -> None:
        self.scratch, self.frame, self.b = scratch, frame, frame.b
        self.form, self.schedule = scratch.form, scratch.schedule
        self.lanes = scratch.problem.lanes
        self.kind = register_type(scratch.dtype, self.lanes)
        self.copy_a, self.copy_b, self.partial, self.totals = scratch.thread_addresses(frame)
        self.epilogue = Epilogue(frame, scratch.form, self.kind)
        self.at = dict[Variable, Value]()
        self.start = dict[Variable, Value]()  # where the piece and the block of the sum start
        self.is_last: Value | None = None  # whether this is the last block of the sum
        self.has_terms: Value | None = None  # whether the sum has terms, if that is dynamic

    def emit(self) -> None:
        """Emit the loop over a thread's pieces of work."""
        width = self.scratch.width
        with pieces(self.frame, self.form, self.schedule, width) as (self.at, block, column):
            self._piece(block, column)

    def _piece(self, block: Value, column: Value) -> None:
        form, schedule = self.form, self.schedule
        if form.rows:
            self.start[form.rows[schedule.block_at]] = self.frame.multiply(block, schedule.block)
        self.first_panel = self.frame.multiply(column, schedule.panels)
        if schedule.split:
            self._clear_partial()
            self._sum_blocks()
        else:
            self._block_of_sum()

    # Blocks of the sum

    def _clear_partial(self) -> None:
        zero = constant(self.kind, 0)
        with self.b.loop(0, self.scratch.partial, self.lanes) as loop:
            self.b.store(zero, self._vector_at(self.partial, loop.index))
            if self.scratch.many_blocks:
                self.b.store(zero, self._vector_at(self.totals, loop.index))

    def _vector_at(self, base: Value, place: Value) -> Value:
        return self.b.element(base, self.scratch.scalar, place)

    def _flush_group(self, block: Value) -> None:
        """After a group of blocks, add its partial sums to the totals and clear them."""
        b = self.b
        ends = b.compare("eq", b.binary("urem", block, GROUP), 0)
        is_later = b.compare("sgt", block, 0)
        is_end = b.binary("and", ends, is_later)
        with b.when(is_end), b.loop(0, self.scratch.partial, self.lanes) as loop:
            partial, total = (self._vector_at(m, loop.index) for m in (self.partial, self.totals))
            values = b.load(self.kind, total), b.load(self.kind, partial)
            b.store(b.binary("fadd", *values), total)
            b.store(constant(self.kind, 0), partial)

    def _sum_blocks(self) -> None:
        frame, schedule, reduced = self.frame, self.schedule, self.form.reduced
        outer, variable = reduced[: schedule.split_at], reduced[schedule.split_at]
        chunks = frame.maximum(frame.ceil_div(variable.extent, schedule.split), 1)
        extents = [*(frame.maximum(v.extent, 1) for v in outer), chunks]
        count = frame.product(extents)
        self.has_terms = self._is_nonempty(outer)
        with self.b.loop(0, count) as loop:
            *places, chunk = frame.unravel(loop.index, extents)
            self.at |= dict(zip(outer, places, strict=True))
            start = frame.multiply(chunk, schedule.split)
            if self.has_terms:
                start = self.b.select(self.has_terms, start, frame.integer(variable.extent))
            self.start[variable] = start
            self.is_last = self.b.compare("eq", frame.add(loop.index, 1), count)
            if self.scratch.many_blocks:
                self._flush_group(loop.index)
            self._block_of_sum()

    def _is_nonempty(self, variables: Sequence[Variable]) -> Value | None:
        """Whether the extents of all these variables are positive; None if all are static."""
        if all(is_static(v.extent) for v in variables):
            return None
        count = self.frame.integer(times(*(v.extent for v in variables)))
        return self.b.compare("sgt", count, 0)

    def _block_of_sum(self) -> None:
        """Pack what this block needs, then emit its panels."""
        scratch, kernel = self.scratch, self.form.kernel
        self.a = self._operand(kernel.a, scratch.packed_a, scratch.spans_a, self.copy_a)
        if self.schedule.copy_b == "shared" and scratch.packed_b:
            factors = scratch.packed_b.factors(scratch.spans_b)
            factors = {v: f for v, f in factors.items() if v in scratch.spans_b}
            panels = scratch.panels_at(self.frame, self.at)
            self.operand_b = _Operand(panels, factors, {}, factors)
        else:
            self.operand_b = self._operand(kernel.b, scratch.packed_b, scratch.spans_b, self.copy_b)
        self._panel_loops()

    def _operand(
        self,
        access: Access,
        packing: Packing | None,
        spans: Mapping[Variable, int],
        destination: Value,
    ) -> _Operand:
        """A factor, read in place or from a copy of what this block needs."""
        frame, scratch = self.frame, self.scratch
        if packing is None:
            base, offset = frame.pointers[access.load.buffer], access.load.offset
            base = self.b.element(base, scratch.scalar, frame.integer(offset.constant))
            return _Operand(base, offset.strides, {}, offset.strides)
        origin = {v: self.start.get(v, frame.integer(0)) for v in spans}
        if self.form.lane in spans:
            origin[self.form.lane] = frame.multiply(self.first_panel, scratch.width)
        box = {v: Span(origin[v], length) for v, length in spans.items()}
        with self.b.when(self.has_terms):
            PackEmitter(frame, packing, box, self.at, destination, self.lanes, scratch.dtype).emit()
        base = frame.element(destination, scratch.scalar, packing.constant(spans))
        # variables of a single value in the copy do not move it
        factors = {v: f for v, f in packing.factors(spans).items() if v in spans}
        return _Operand(base, factors, origin, packing.tile_factors(spans))

    # Panels of columns

    def _panel_loops(self) -> None:
        frame, schedule, lane = self.frame, self.schedule, self.form.lane
        last = frame.add(self.first_panel, schedule.panels)
        if not is_static(lane.extent):
            stop = frame.minimum(last, frame.ceil_div(lane.extent, self.scratch.width))
            self._panels(stop, schedule.vectors, schedule.vectors)
            return
        unit = 1 if schedule.dots else self.lanes
        whole, rest = divmod(ceil(lane.extent / unit), schedule.vectors)
        ragged = int(lane.extent % unit > 0)
        if whole:
            stop = frame.minimum(last, whole)
            self._panels(stop, schedule.vectors, 0 if rest else ragged)
        if rest:
            with self.b.when(self.b.compare("sgt", last, whole)):
                self._panel(frame.integer(whole), rest, ragged)

    def _panels(self, stop: Value, vectors: int, masked: int) -> None:
        with self.b.loop(self.first_panel, stop) as loop:
            self._panel(loop.index, vectors, masked)

    def _panel(self, panel: Value, vectors: int, masked: int) -> None:
        """Emit a panel whose last `masked` vectors may exceed the last column."""
        frame, lanes, lane = self.frame, self.lanes, self.form.lane
        column = frame.multiply(panel, self.scratch.width)
        self.at[lane] = column
        masks: list[Value | None] = [None] * vectors
        for j in range(vectors - masked, vectors):
            start = frame.add(column, j * lanes)
            masks[j] = frame.lanes_below(start, lane.extent, lanes)
        self.panel, self.masks = panel, masks
        self._rows(self.schedule.block_at)

    # Tiles of rows

    def _rows(self, position: int) -> None:
        """Emit the loops over the rows of the piece, from a row variable on."""
        form, schedule, frame = self.form, self.schedule, self.frame
        if not form.rows:
            self._tile([{}])
            return
        variable = form.rows[position]
        start, stop = frame.integer(0), frame.integer(variable.extent)
        if position == schedule.block_at:
            start = self.start[variable]
            stop = frame.minimum(frame.add(start, schedule.block), stop)
        if position == schedule.tile_at:
            self._tiles(variable, start, stop)
            return
        with self.b.loop(start, stop) as loop:
            self.at[variable] = loop.index
            self._rows(position + 1)

    def _tiles(self, variable: Variable, start: Value, stop: Value) -> None:
        """Emit whole tiles, then smaller ones for the remaining rows."""
        for size in self._heights(variable):
            end = self.frame.whole_end(start, stop, size)
            with self.b.loop(start, end, size) as loop:
                self.at[variable] = loop.index
                self._tile(self._tile_rows(variable, size))
            start = end

    def _heights(self, variable: Variable) -> list[int]:
        tile = self.schedule.tile
        if is_static(variable.extent):
            whole, rest = divmod(variable.extent, tile)
            return [size for size, there in ((tile, whole), (rest, rest)) if there]
        smaller = [size for size in (16, 8, 4, 2, 1) if size < tile]
        return [tile, *smaller]

    def _tile_rows(self, variable: Variable, size: int) -> list[Row]:
        inner = self.form.rows[self.schedule.tile_at + 1 :]
        for covered in inner:
            self.at[covered] = self.frame.integer(0)
        ranges = [range(size), *(range(v.extent) for v in inner)]
        return [dict(zip((variable, *inner), numbers, strict=True)) for numbers in product(*ranges)]

    def _tile(self, rows: Sequence[Row]) -> None:
        distances = [self._distance(self.a.rows, row) for row in rows]
        at = Addresses(self._address(self.a), self._address(self.operand_b))
        levels = self._levels()
        if self.schedule.dots:
            sums = self._dot_products(distances, levels, at)
            self.epilogue.store_dots(self.at, rows, sums)
            return
        self._prefetch_results(rows)
        kernel = MicroKernel(
            self.frame,
            self.kind,
            distances,
            self.masks,
            masked_loads=not self.schedule.copy_b,
            vector_a=self.form.depthwise,
            unroll=self.schedule.unroll,
            prefetch_steps=self.schedule.prefetch_steps,
            prefetch_panels=self.schedule.prefetch_panels,
        )
        sums = BlockedSums(kernel, len(rows) * len(self.masks)).sums(levels, at)
        self._finish(rows, sums)

    def _dot_products(
        self, rows: Sequence[Value], levels: Sequence[Level], at: Addresses
    ) -> list[Value]:
        """The sums of a tile of dot products, row by row."""
        step = self.operand_b.factors.get(self.form.lane, 0)
        count = len(self.masks)
        columns = [self.frame.multiply(j, step) for j in range(count)]
        kernel = DotKernel(self.frame, self.kind, rows, columns)
        blocks = [block * self.lanes for block in BLOCKS]
        spreads = BlockedSums(kernel, len(rows) * count).sums(levels, at, blocks)
        return [self.b.lane_sum(spread) for spread in spreads]

    def _distance(self, factors: Mapping[Variable, int], row: Row) -> Value:
        frame, distance = self.frame, self.frame.integer(0)
        for variable, number in row.items():
            distance = frame.add(distance, frame.multiply(number, factors.get(variable, 0)))
        return distance

    def _address(self, operand: _Operand) -> Value:
        """The address of a factor for this tile, at the first term of the sum."""
        frame, place = self.frame, self.frame.integer(0)
        for variable, factor in operand.factors.items():
            if variable in self.at:
                here = self.at[variable]
            elif variable in operand.origin:
                continue  # a packed block of the sum starts at its origin
            else:
                here = self.start.get(variable, frame.integer(0))
            here = frame.subtract(here, operand.origin.get(variable, frame.integer(0)))
            place = frame.add(place, frame.multiply(here, factor))
        return self.b.element(operand.base, self.scratch.scalar, place)

    # Loops of the sum

    def _levels(self) -> list[Level]:
        at = self.schedule.split_at if self.schedule.split else 0
        levels = [self._level(variable) for variable in self.form.reduced[at:]]
        outside = [bound for v in self.form.reduced[:at] for bound in self._bounds_on(v)]
        if outside:
            first = levels[0]
            stop = self.b.select(self.frame.in_bounds(outside, self.at), first.stop, first.start)
            levels[0] = replace(first, stop=stop, extent=None)
        return levels

    def _bounds_on(self, variable: Variable) -> list[Bound]:
        """The bounds of an unpacked `a` that limit a reduced variable."""
        if self.schedule.copy_a:
            return []
        bounds = self.form.kernel.a.bounds
        return [bound for bound in bounds if limited_variable(self.form, bound[1], ()) is variable]

    def _level(self, variable: Variable) -> Level:
        """The loop over a reduced variable, counted from the start of the block."""
        frame = self.frame
        steps = self.a.factors.get(variable, 0), self.operand_b.factors.get(variable, 0)
        start, stop = frame.integer(0), frame.integer(variable.extent)
        extent = most = variable.extent if is_static(variable.extent) else None
        if variable in self.start:
            most = self.schedule.split
            stop = frame.subtract(stop, self.start[variable])
            stop = frame.minimum(stop, self.schedule.split)
            extent = None
        for bound in self._bounds_on(variable):
            low, high = self._solve_bound(variable, *bound)
            start, stop, extent = frame.maximum(start, low), frame.minimum(stop, high), None
        return Level(start, stop, *steps, extent, most)

    def _solve_bound(
        self, variable: Variable, low: int, offset: Affine, high: int
    ) -> tuple[Value, Value]:
        """The range of low <= rest + factor · variable < high, from the start of the block."""
        frame, factor = self.frame, offset.factor(variable)
        rest = offset.without({variable})
        zero = frame.integer(0)
        place = frame.evaluate(rest, {v: self.at.get(v, zero) for v in rest.strides})
        if variable in self.start:
            place = frame.add(place, frame.multiply(self.start[variable], factor))
        least, most = (frame.subtract(limit, place) for limit in (low, high))
        if factor > 0:
            return frame.ceil_div_signed(least, factor), frame.ceil_div_signed(most, factor)
        least, most = (frame.subtract(1, limit) for limit in (least, most))
        return frame.ceil_div_signed(most, -factor), frame.ceil_div_signed(least, -factor)

    def _add_from_memory(self, sums: Sequence[Value], places: Sequence[Value]) -> list[Value]:
        pairs = zip(places, sums, strict=True)
        return [self.b.binary("fadd", self.b.load(self.kind, place), new) for place, new in pairs]

    def _partials(self, rows: Sequence[Row], memory: Value) -> list[Value]:
        """The addresses of a tile's partial sums."""
        frame, scratch = self.frame, self.scratch
        strides, step = dict[Variable, int](), scratch.width
        for variable, length in reversed(spans_of_rows(self.form, self.schedule).items()):
            strides[variable] = step
            step *= length
        place = frame.multiply(frame.subtract(self.panel, self.first_panel), step)
        zero = frame.integer(0)
        for variable, stride in strides.items():
            here = frame.subtract(self.at[variable], self.start.get(variable, zero))
            place = frame.add(place, frame.multiply(here, stride))
        base = self.b.element(memory, scratch.scalar, place)
        return [
            self.b.element(
                base, scratch.scalar, frame.add(self._distance(strides, row), j * self.lanes)
            )
            for row in rows
            for j in range(len(self.masks))
        ]

    # Finished sums

    def _prefetch_results(self, rows: Sequence[Row]) -> None:
        if self.epilogue.streams:
            with self.b.when(self.is_last):
                self.epilogue.prefetch(self.at, rows, len(self.masks))

    def _finish(self, rows: Sequence[Row], sums: Sequence[Value]) -> None:
        """Store the sums of a tile, after those of the blocks before are added to them."""
        if self.is_last is None:
            self.epilogue.store(self.at, rows, self.masks, sums)
            return
        sums = self._add_from_memory(sums, self._partials(rows, self.partial))
        with self.b.when(self.b.negation(self.is_last)):
            for value, address in zip(sums, self._partials(rows, self.partial), strict=True):
                self.b.store(value, address)
        with self.b.when(self.is_last):
            if self.scratch.many_blocks:
                sums = self._add_from_memory(sums, self._partials(rows, self.totals))
            self.epilogue.store(self.at, rows, self.masks, sums)


def emit_contraction(
    kernel: Contraction, target: CpuTarget, schedule: Schedule | None = None
) -> Emitted:
    """Emit a contraction, by the given schedule or the cost model's choice.

    Raises `NotContraction` where copies would have several dynamic extents.
    """
    schedule = schedule or winograd_schedule(kernel, target)
    if schedule and schedule.outputs:
        return emit_winograd(kernel, target, schedule)
    problem = Problem(form_of(kernel), target)
    schedule = schedule or best(problem)
    if schedule.matrix:
        return emit_amx(problem, schedule)
    check_supported(problem.form, schedule)
    return _emit_gemm(Scratch(problem, schedule))


def _emit_gemm(scratch: Scratch) -> Emitted:
    target, names, kernel = scratch.problem.target, ["multiply"], scratch.form.kernel
    module = Module(target.native_fp16, target.fma)
    if scratch.schedule.copy_b == "shared":
        names.insert(0, "pack")
        _pack(scratch, PhaseFrame(module, "pack", kernel, True))
    GemmEmitter(scratch, PhaseFrame(module, "multiply", kernel, scratch.size > 0)).emit()
    return Emitted(tuple(names), module.text, scratch.size, "tiles")


_MIN_PANELS = 8  # that threads can share evenly


def _pack(scratch: Scratch, frame: PhaseFrame) -> None:
    """Emit the phase that packs `b` for all threads.

    Threads share slices of the first reduced variable if columns are contiguous, so that memory is
    read in order, or if panels are few; else slices of the columns.
    """
    packing, spans, outer = scratch.packed_b, scratch.spans_b, scratch.outer
    assert packing
    variable, length, count = _slices(scratch, packing)
    extents = [frame.integer(extent) for extent in (*(v.extent for v in outer), count)]
    with frame.thread_loop(extents) as (*places, part):
        at = dict(zip(outer, places, strict=True))
        span = Span(frame.multiply(part, length), length)
        box = {v: Span(frame.integer(0), length) for v, length in spans.items()}
        place = frame.multiply(span.start, packing.factors(spans)[variable])
        base = frame.b.element(scratch.panels_at(frame, at), scratch.scalar, place)
        lanes, dtype = scratch.problem.lanes, scratch.dtype
        PackEmitter(frame, packing, {**box, variable: span}, at, base, lanes, dtype, spans).emit()


def _slices(scratch: Scratch, packing: Packing) -> tuple[Variable, int, int]:
    """The variable to slice, the length of a slice, and the number of slices."""
    first, panels = packing.axes[1].coordinate, scratch.problem.panels(scratch.schedule)
    alone = first is packing.axes[-1].coordinate
    if alone or not (
        packing.in_memory_order or (panels < _MIN_PANELS and first.extent > 64 * _MIN_PANELS)
    ):
        return scratch.form.lane, scratch.width, panels
    step = 1 if packing.in_memory_order else 16  # whole cache lines where it is transposed
    length = ceil(first.extent / 16 / step) * step
    return first, length, ceil(first.extent / max(length, 1))
