"""Convolutions by Winograd's minimal filtering: fewer products, in blocks that stay in a cache.

What comes in are the roles of a convolution's variables and its blocks; what goes out is LLVM text.
For a block of tiles and columns, and some channels at a time, inputs and filters are transformed
into scratch memory and multiplied there; the finished sums are transformed back and stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

from thalweg.codegen.builder import I1, Module, Value, constant
from thalweg.codegen.contraction_form import NotContraction
from thalweg.codegen.contraction_schedule import SLOTS, Schedule
from thalweg.codegen.emitted import Emitted
from thalweg.codegen.frame import Frame
from thalweg.codegen.machine import Target
from thalweg.codegen.microkernel import Factors, Level, MicroKernel
from thalweg.codegen.winograd_form import window_of
from thalweg.codegen.winograd_plan import blocks_in, layout_of
from thalweg.codegen.winograd_results import Results
from thalweg.codegen.winograd_spread import Spread
from thalweg.codegen.winograd_transforms import Inputs, MeasuredInputs, Stage, filters_of
from thalweg.loops.kernel import Contraction

_ITEM = 4  # the bytes of an element


def emit_winograd(kernel: Contraction, target: Target, schedule: Schedule) -> Emitted:
    """The code of a convolution in the blocks of a schedule.

    Stages are functions of their own: what one keeps in registers is no burden to another.
    """
    window = window_of(kernel)
    if window is None:
        raise NotContraction("minimal filtering is for small filters of stride 1")
    module = Module(target.halves)
    layout = layout_of(window, blocks_in(schedule), target.lanes)

    def frame(name: str, given: int = 0) -> Frame:
        return Frame(module, name, window.kernel, True, given)

    stages = [
        MeasuredInputs(window, layout, frame("measured_inputs", 3), target.fma),
        Spread(window, layout, frame("spread", 2), target.fma),
        Inputs(window, layout, frame("inputs", 3), target.fma),
        filters_of(window)(window, layout, frame("filters", 2), target.fma),
        _Products(window, layout, frame("products", 3), target.fma),
        Results(window, layout, frame("results", 4), target.fma),
    ]
    for stage in stages:
        stage.emit()
    _Pieces(window, layout, frame("convolve"), target.fma).emit(*(stage.frame for stage in stages))
    return Emitted(("convolve",), module.text, SLOTS * layout.size * _ITEM, "tiles")


class _Pieces(Stage):
    """The phase: all pieces of a thread, stage by stage."""

    def emit(self, *stages: Frame) -> None:
        """All pieces of a thread; those of the same columns follow each other."""
        frame, blocks = self.frame, self.blocks
        self.stages = stages
        self._clear(self.zeros, self.layout.parts[0])
        tiles = ceil(prod(self.extents) / blocks.tiles)
        columns = ceil(self.window.lane.extent / self.layout.columns)
        start, stop = frame.share(frame.integer(tiles * columns), SLOTS)
        with self.b.loop(start, stop, frame.integer(1)) as loop:
            column, block = frame.parts(loop.index, map(frame.integer, (columns, tiles)))
            is_new = self.b.compare("slt", loop.index, frame.add(start, frame.integer(tiles)))
            self._piece(
                frame.multiply(block, blocks.tiles),
                frame.multiply(column, self.layout.columns),
                is_new,
            )
        self.b.ret()

    def _clear(self, base: Value, count: int) -> None:
        with self.steps(count, self.lanes) as index:
            self.b.store(constant(self.kind, 0), self.element(base, index))

    def _piece(self, first: Value, column: Value, is_new: Value) -> None:
        """Tiles from the first, columns from one on. What differs too much in magnitude is found
        when this thread comes to the tiles for the first time."""
        frame, channels, width = self.frame, int(self.window.channel.extent), self.layout.width
        measured, spread, inputs, filters, products, results = self.stages
        count = self._rest(first, prod(self.extents), self.blocks.tiles)
        columns = self._rest(column, int(self.window.lane.extent), self.layout.columns)
        panels = frame.ceiling(columns, width)
        if channels > self.blocks.depth:
            self._clear(self.sums, self.layout.parts[3])
        with self.steps(channels, self.blocks.depth) as channel:
            with self.b.when(is_new):
                frame.run(measured, first, count, channel)
            with self.b.when(self.b.compare("eq", is_new, constant(I1, False))):
                frame.run(inputs, first, count, channel)
            with self.steps(panels) as panel:
                frame.run(filters, channel, frame.add(column, frame.multiply(panel, width)))
                frame.run(products, count, channel, panel)
        with self.b.when(is_new):
            frame.run(spread, first, count)
        with self.steps(panels) as panel:
            here = frame.add(column, frame.multiply(panel, width))
            frame.run(results, first, count, panel, here)

    def _rest(self, start: Value, end: int, most: int) -> Value:
        left = self.frame.subtract(self.frame.integer(end), start)
        return self.frame.least(left, self.frame.integer(most))


class _Products(Stage):
    """The stage that multiplies: for every product of a tile, matrices of tiles and channels by
    channels and columns. Given are the number of tiles, the first channel and the panel."""

    def emit(self) -> None:
        """All products of a panel."""
        frame, layout = self.frame, self.layout
        count, channel, panel = frame.given
        levels = [Level(frame.integer(0), self.depth(channel), 1, layout.width)]
        sums = self.panel_of_sums(panel)
        with self.steps(self.filtering.products) as number:
            places = (
                (self.a, layout.plane_a),
                (self.filters, layout.plane_b),
                (sums, layout.plane_c),
            )
            a, b, c = (self.element(base, frame.multiply(number, p)) for base, p in places)
            with self.steps(count, self.blocks.rows) as row:
                rows = self.element(a, frame.multiply(row, self.blocks.depth))
                totals = self._sums_at(self.element(c, frame.multiply(row, layout.width)))
                self._tile(levels, Factors(rows, b), totals)
        self.b.ret()

    def _tile(self, levels: Sequence[Level], at: Factors, totals: Sequence[Value]) -> None:
        """A tile of sums in registers."""
        blocks, vectors = self.blocks, self.blocks.vectors
        rows = [self.frame.integer(number * blocks.depth) for number in range(blocks.rows)]
        masks = [None] * vectors
        kernel = MicroKernel(
            self.frame, self.kind, rows, vectors, masks, False, vector_a=False, fma=self.fma
        )
        made = kernel.sums(levels, at, self._initial(totals))
        for value, place in zip(made, totals, strict=True):
            self.b.store(value, place)

    def _sums_at(self, base: Value) -> list[Value]:
        count = self.blocks.rows * self.blocks.vectors
        return [self.element(base, self.frame.integer(n * self.lanes)) for n in range(count)]

    def _initial(self, totals: Sequence[Value]) -> list[Value]:
        if self.window.channel.extent <= self.blocks.depth:
            return [constant(self.kind, 0)] * len(totals)
        return [self.b.load(self.kind, place) for place in totals]
