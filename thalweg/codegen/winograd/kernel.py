"""Winograd convolutions to LLVM text: fewer products, in blocks that stay in L2.

A convolution and its schedule come in. Per piece of tiles and columns, some channels at a time,
inputs and filters are transformed into scratch memory and multiplied there; the finished sums are
transformed back and stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from thalweg.codegen.contraction.form import NotContraction
from thalweg.codegen.contraction.microkernel import Addresses, Level, MicroKernel
from thalweg.codegen.contraction.schedule import Schedule
from thalweg.codegen.frame import PhaseFrame
from thalweg.codegen.llvm.builder import Module, Value, constant
from thalweg.codegen.llvm.emitted import Emitted
from thalweg.codegen.machine import SLOTS, CpuTarget
from thalweg.codegen.winograd.form import match_convolution
from thalweg.codegen.winograd.plan import Layout
from thalweg.codegen.winograd.results import MagnitudeGuard, OutputTransform
from thalweg.codegen.winograd.transforms import (
    FilterTransform,
    InputTransform,
    MeasuredInputTransform,
    Stage,
    TransposedFilterTransform,
)
from thalweg.ir.kernel import Contraction

_ITEM = 4  # the bytes of an element


def emit_winograd(kernel: Contraction, target: CpuTarget, schedule: Schedule) -> Emitted:
    """Emit a convolution by a schedule.

    Every stage is a function of its own, with its own register allocation.
    """
    conv = match_convolution(kernel)
    if conv is None:
        raise NotContraction("Winograd's algorithm is for small filters of stride 1")
    module, layout = Module(target.native_fp16, target.fma), Layout(conv, target, schedule)
    # Filters that are not contiguous along columns are transposed.
    is_plain = conv.kernel.b.load.offset.factor(conv.lane) == 1
    kinds = {
        "inputs": (InputTransform, 3),
        "measured_inputs": (MeasuredInputTransform, 3),
        "spread": (MagnitudeGuard, 2),
        "filters": (FilterTransform if is_plain else TransposedFilterTransform, 2),
        "products": (_GemmStage, 3),
        "results": (OutputTransform, 4),
    }
    stages = dict[str, PhaseFrame]()
    for name in _stage_names(layout):
        kind, extra = kinds[name]
        stages[name] = PhaseFrame(module, name, conv.kernel, True, extra)
        kind(layout, stages[name]).emit()
    _ConvolveEmitter(layout, PhaseFrame(module, "convolve", conv.kernel, True)).emit(stages)
    return Emitted(("convolve",), module.text, SLOTS * layout.size * _ITEM, "tiles")


def _stage_names(layout: Layout) -> list[str]:
    """The stages of a convolution. If tiles are guarded, inputs are measured the first time that a
    thread transforms them, which may be the only time."""
    guards = ["measured_inputs", "spread"] if layout.is_guarded else []
    inputs = ["inputs"] if not guards or layout.conv.lane.extent > layout.columns else []
    return [*inputs, *guards, "filters", "products", "results"]


class _ConvolveEmitter(Stage):
    """Emits the phase: a thread's pieces of work, stage by stage."""

    def emit(self, stages: Mapping[str, PhaseFrame]) -> None:
        """Emit the loop over a thread's pieces; those of the same columns are consecutive."""
        frame, layout = self.frame, self.layout
        self.stages = stages
        tiles = ceil(layout.count / layout.tiles)
        columns = ceil(self.conv.lane.extent / layout.columns)
        start, stop = frame.thread_range(tiles * columns)
        with self.b.when(self.b.compare("slt", start, stop)):  # idle threads may have no scratch
            self._clear(self.zeros, layout.part_sizes[0])
        with self.b.loop(start, stop) as loop:
            column, block = frame.unravel(loop.index, (columns, tiles))
            is_new = self.b.compare("slt", loop.index, frame.add(start, tiles))
            first = frame.multiply(block, layout.tiles)
            self._piece(first, frame.multiply(column, layout.columns), is_new)

    def _clear(self, base: Value, count: int) -> None:
        with self.loop(count, self.lanes) as index:
            self.b.store(constant(self.kind, 0), self.element(base, index))

    def _piece(self, first: Value, column: Value, is_new: Value) -> None:
        """Emit the stages for tiles and columns from `first` and `column` on. `is_new` says that
        this thread sees the tiles for the first time, and sets their flags."""
        frame, channels, width = self.frame, int(self.conv.channel.extent), self.layout.width
        count = self._rest(first, self.layout.count, self.layout.tiles)
        columns = self._rest(column, int(self.conv.lane.extent), self.layout.columns)
        panels = frame.ceil_div_signed(columns, width)
        if channels > self.layout.depth:
            self._clear(self.sums, self.layout.part_sizes[3])
        with self.loop(channels, self.layout.depth) as channel:
            self._transform(is_new, first, count, channel)
            with self.loop(panels) as panel:
                here = frame.add(column, frame.multiply(panel, width))
                self._run("filters", channel, here)
                self._run("products", count, channel, panel)
        if "spread" in self.stages:
            with self.b.when(is_new):
                self._run("spread", first, count)
        with self.loop(panels) as panel:
            here = frame.add(column, frame.multiply(panel, width))
            self._run("results", first, count, panel, here)

    def _run(self, stage: str, *arguments: Value) -> None:
        self.frame.call(self.stages[stage], *arguments)

    def _transform(self, is_new: Value, *arguments: Value) -> None:
        """Call the transform of inputs, which measures them if they are new."""
        stages = {"measured_inputs": is_new, "inputs": self.b.negation(is_new)}
        stages = {stage: when for stage, when in stages.items() if stage in self.stages}
        for stage, when in stages.items():
            with self.b.when(when if len(stages) > 1 else None):
                self._run(stage, *arguments)

    def _rest(self, start: Value, end: int, most: int) -> Value:
        return self.frame.minimum(self.frame.subtract(end, start), most)


class _GemmStage(Stage):
    """The stage that multiplies: for every product, a matrix of tiles by channels times one of
    channels by columns. Arguments: the number of tiles, the first channel, the panel."""

    def emit(self) -> None:
        """Emit all products of a panel."""
        frame, layout = self.frame, self.layout
        count, channel, panel = frame.extra
        levels = [Level(frame.integer(0), self.depth(channel), 1, layout.width)]
        sums = self.panel_of_sums(panel)
        with self.loop(self.algorithm.products) as number:
            a = self.element(self.a, frame.multiply(number, layout.plane_a))
            b = self.element(self.filters, frame.multiply(number, layout.plane_b))
            c = self.element(sums, frame.multiply(number, layout.plane_c))
            with self.loop(count, layout.rows) as row:
                rows = self.element(a, frame.multiply(row, layout.depth))
                totals = self._sums_at(self.element(c, frame.multiply(row, layout.width)))
                self._tile(levels, Addresses(rows, b), totals)

    def _tile(self, levels: Sequence[Level], at: Addresses, totals: Sequence[Value]) -> None:
        """Emit a register tile."""
        layout, masks = self.layout, [None] * self.layout.vectors
        rows = [self.frame.integer(number * layout.depth) for number in range(layout.rows)]
        kernel = MicroKernel(self.frame, self.kind, rows, masks, False, vector_a=False)
        sums = kernel.sums(levels, at, self._initial(totals))
        for value, place in zip(sums, totals, strict=True):
            self.b.store(value, place)

    def _sums_at(self, base: Value) -> list[Value]:
        count = self.layout.rows * self.layout.vectors
        return [self.element(base, number * self.lanes) for number in range(count)]

    def _initial(self, totals: Sequence[Value]) -> list[Value]:
        if self.conv.channel.extent <= self.layout.depth:
            return [constant(self.kind, 0)] * len(totals)
        return [self.b.load(self.kind, place) for place in totals]
