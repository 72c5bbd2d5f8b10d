"""The stages of a Winograd convolution that transform sums back, store the outputs, and flag tiles
whose inputs differ too much in magnitude.

The finished sums of a tile come in; the kernel's stores go out. The transforms spread an infinity
or NaN over a whole tile, so a tile with one is recomputed by direct summation, with the values of
the direct convolution. So is a flagged tile: the rounding error of a transformed tile is relative
to its largest inputs, also for outputs whose own inputs are much smaller. Flags are computed from
the sums of squares in cells of a tile; infinities and NaN set them too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from itertools import product
from math import sqrt

from thalweg.codegen.contraction.epilogue import store_sums
from thalweg.codegen.frame import At
from thalweg.codegen.llvm.builder import FLOAT, I1, I8, Value, constant, suffix
from thalweg.codegen.point import Point
from thalweg.codegen.winograd.algorithm import Tile, transform_2d
from thalweg.codegen.winograd.form import Axis
from thalweg.codegen.winograd.transforms import Stage

#: The error that inputs outside an output's window may cause, relative to the sum of magnitudes
#: in its window times the largest tap.
MAX_ERROR = 1e-4
#: Smaller sums of squares may have lost squares to underflow.
LEAST_ENERGY = 1e-30
_LINE = 8  # sums in memory per line of a tile


def max_magnitude_ratio(channels: int) -> float:
    """The largest allowed ratio of a tile's norm (the root of its sum of squares) to the sum of
    magnitudes in the window of one of its outputs.

    Measured for the worst filters and positions of large inputs: transforms have errors of 1.5e-6
    of the norm; those of sums over channels grow with the root of the number of channels.
    """
    return MAX_ERROR / (1.5e-6 + 6e-7 * sqrt(channels))


class MagnitudeGuard(Stage):
    """Sets the flags of tiles. Arguments: the first tile, the number of tiles."""

    def emit(self) -> None:
        """Emit the loop over tiles: a quick test by cells, and if that fails, an exact one."""
        frame, b = self.frame, self.b
        first, count = frame.extra
        self.lines = b.stack(FLOAT.of(_LINE), self.algorithm.size)
        with self.loop(count) as tile:
            number = frame.add(first, tile)
            at, flag = self.tile_origin(number), self.flag(number)
            b.store(constant(I8, 0), flag)
            energies = self._energies(tile)
            whole = self._total(energies)
            with b.when(self._is_suspect(energies, whole, at)):
                b.store(b.convert("zext", self._fails_exact_test(whole, at), "i8"), flag)

    def _energies(self, tile: Value) -> list[Value]:
        frame, count = self.frame, self.layout.cells**2
        base = self.element(self.energies, frame.multiply(tile, count * self.lanes))
        return [
            self.b.load(self.kind, self.element(base, number * self.lanes))
            for number in range(count)
        ]

    def _is_suspect(self, energies: Sequence[Value], whole: Value, at: At) -> Value:
        """Whether a cell inside the window of some output is small relative to the tile."""
        b, least = self.b, self._scaled(self._least_cell(energies, at))
        is_small = b.compare("olt", whole, LEAST_ENERGY)
        return b.binary("or", is_small, self._exceeds(whole, b.binary("fmul", least, least)))

    def _least_cell(self, energies: Sequence[Value], at: At) -> Value:
        """A lower bound on the least sum of magnitudes among the cells whose outputs exist: the
        windows of outputs 2n and 2n + 1 of a line contain cell n + 1."""
        b, none, numbers = self.b, constant(FLOAT, float("inf")), range(1, self.layout.cells)
        least = none
        for down, across in product(numbers, repeat=2):
            energy = energies[across * self.layout.cells + down]
            total = self._total([b.intrinsic("sqrt", energy)])
            there = b.binary(
                "and",
                self.output_exists(0, at, 2 * down - 2),
                self.output_exists(1, at, 2 * across - 2),
            )
            least = b.intrinsic("minnum", least, b.select(there, total, none))
        return least

    def _scaled(self, least: Value) -> Value:
        most = max_magnitude_ratio(int(self.conv.channel.extent))
        return self.b.binary("fmul", least, most)

    def _exceeds(self, whole: Value, limit: Value) -> Value:
        """Whether a sum exceeds a limit or is not finite."""
        b = self.b
        infinite = b.compare("ueq", whole, float("inf"))
        return b.binary("or", b.compare("ugt", whole, limit), infinite)

    def _sum(self, values: Sequence[Value]) -> Value:
        return reduce(lambda one, other: self.b.binary("fadd", one, other), values)

    def _total(self, values: Sequence[Value]) -> Value:
        """The sum of the lanes of all values."""
        return self.b.lane_sum(self._sum(values))

    def _fails_exact_test(self, whole: Value, at: At) -> Value:
        """Whether the window of some output is small relative to the tile."""
        b, size = self.b, self.algorithm.size
        for line in range(size):
            b.store(constant(FLOAT.of(_LINE), 0), self.element(self.lines, line * _LINE))
        with self.loop(size) as line, self.loop(size) as column:
            self._sum_magnitudes(at, line, column)
        places = [self.element(self.lines, line * _LINE) for line in range(size)]
        lines = [b.load(FLOAT.of(_LINE), place) for place in places]
        return self._exceeds(
            self._root(whole, self._total(lines)), self._scaled(self._least_seen(lines, at))
        )

    def _root(self, whole: Value, instead: Value) -> Value:
        """The root of a sum of squares, or an upper bound where that under- or overflowed."""
        b = self.b
        is_small = b.compare("ult", whole, LEAST_ENERGY)
        is_large = b.compare("ueq", whole, float("inf"))
        is_wrong = b.binary("or", is_small, is_large)
        return b.select(is_wrong, instead, b.intrinsic("sqrt", whole))

    def _sum_magnitudes(self, at: At, line: Value, column: Value) -> None:
        """Store the sum of magnitudes over all channels of an input."""
        b, frame = self.b, self.frame
        inside, first = self.input_in(self.input_line(at, line), at, column)
        channels = int(self.conv.channel.extent)
        with b.when(inside):
            with b.loop(0, channels, self.lanes, [constant(self.kind, 0)]) as loop:
                address = self.element(first, loop.index)
                size = b.intrinsic("fabs", self.load_channels(address, loop.index))
                loop.next = [b.binary("fadd", loop.carried[0], size)]
            number = frame.add(frame.multiply(line, _LINE), column)
            place = self.element(self.lines, number)
            b.store(self._total(loop.results), place)

    def _least_seen(self, lines: Sequence[Value], at: At) -> Value:
        """The least sum of magnitudes in a window, among the outputs that exist."""
        b, outputs, taps = self.b, self.layout.outputs, self.conv.taps
        axis: Axis = self.conv.axes[1]
        kind = FLOAT.of(outputs)
        none = least = constant(kind, float("inf"))
        exist = self.frame.lanes_below(at[axis.output], axis.output.extent, outputs)
        for i in range(outputs):
            line = self._sum(lines[i : i + taps])
            seen = self._sum([b.shuffle(line, None, range(j, j + outputs)) for j in range(taps)])
            own = b.binary("and", exist, b.splat(self.output_exists(0, at, i), outputs))
            least = b.intrinsic("minnum", least, b.select(own, seen, none))
        return b.call(f"llvm.vector.reduce.fmin.{suffix(kind)}", FLOAT, least)


class OutputTransform(Stage):
    """Transforms finished sums to outputs and stores them. Arguments: the first tile, the number of
    tiles, the panel, its first column."""

    def emit(self) -> None:
        """Emit the loops over tiles and vectors of columns."""
        frame, layout = self.frame, self.layout
        first, count, panel, column = frame.extra
        self.outputs_memory = self.b.stack(self.kind, self.layout.outputs**2)
        sums = self.panel_of_sums(panel)
        with self.loop(count) as tile:
            at = self.tile_origin(frame.add(first, tile))
            row = self.element(sums, frame.multiply(tile, layout.width))
            self.is_flagged = self._load_flag(frame.add(first, tile))
            with self.loop(layout.width, self.lanes) as vector:
                self._results(self.element(row, vector), at, frame.add(column, vector))

    def _load_flag(self, tile: Value) -> Value:
        """Whether a tile is flagged."""
        if not self.layout.is_guarded:
            return constant(I1, False)
        return self.b.compare("ne", self.b.load(I8, self.flag(tile)), 0)

    def _results(self, base: Value, at: At, column: Value) -> None:
        lane = self.conv.lane
        tile = transform_2d(self.b, self.algorithm.output_transform, self._sums(base))
        for i, line in enumerate(tile):
            for place, value in zip(self._line(self.frame.integer(i)), line, strict=True):
                self.b.store(value, place)
        is_strange = self._has_nonfinite([value for line in tile for value in line])
        with self.b.when(self.b.binary("or", is_strange, self.is_flagged)):
            self._recompute_directly(at, column)
        point = Point(self.frame, {**at, lane: column}, lane, self.lanes, self.column_mask(column))
        self._store_lines(point)

    def _line(self, line: Value) -> list[Value]:
        """The addresses of a line of outputs on the stack."""
        first, outputs = self.frame.multiply(line, self.layout.outputs), self.layout.outputs
        numbers = [self.frame.add(first, j) for j in range(outputs)]
        return [self.vector(self.outputs_memory, number) for number in numbers]

    def _has_nonfinite(self, values: Sequence[Value]) -> Value:
        """Whether an output is infinite or NaN: times zero, it is not zero."""
        b, zero = self.b, constant(self.kind, 0)
        total = b.binary("fmul", values[0], zero)
        for value in values[1:]:
            total = b.multiply_add(value, zero, total)
        return b.any(b.compare("une", total, zero))

    def _recompute_directly(self, at: At, column: Value) -> None:
        """Emit the direct convolution of a tile."""
        with self.loop(self.layout.outputs) as line:
            places = self._line(line)
            for place in places:
                self.b.store(constant(self.kind, 0), place)
            with self.loop(self.conv.taps) as down, self.loop(self.conv.taps) as across:
                self._add_products(at, column, (line, down, across), places)

    def _add_products(
        self, at: At, column: Value, where: tuple[Value, Value, Value], places: Sequence[Value]
    ) -> None:
        """Add the products of a tap to a line of outputs, over all channels."""
        b, frame, lane, channel = (self.b, self.frame, self.conv.lane, self.conv.channel)
        (line, down, across), (vertical, horizontal) = where, self.conv.axes
        taps = {
            vertical.tap: self._tap(vertical, down),
            horizontal.tap: self._tap(horizontal, across),
        }
        sources = self._input_addresses(at, frame.add(line, down), across)
        sums, mask = [b.load(self.kind, place) for place in places], self.column_mask(column)
        with b.loop(0, int(channel.extent), 1, sums) as loop:
            here = {**taps, channel: loop.index, lane: column}
            point = Point(frame, here, lane, self.lanes, mask)
            filters = point.value(self.conv.kernel.b.value, mask)
            pairs = zip(sources, loop.carried, strict=True)
            loop.next = [
                b.multiply_add(self._load_input(s, loop.index), filters, total)
                for s, total in pairs
            ]
        for total, place in zip(loop.results, places, strict=True):
            b.store(total, place)

    def _tap(self, axis: Axis, number: Value) -> Value:
        """The tap that multiplies input `number` of an output."""
        return number if axis.sign > 0 else self.frame.subtract(axis.taps - 1, number)

    def _input_addresses(self, at: At, line: Value, column: Value) -> list[tuple[Value, Value]]:
        """For each output of a line, an input from (line, column) of the tile on: whether it is
        within bounds, and its address."""
        row, outputs = self.input_line(at, line), range(self.layout.outputs)
        return [self.input_in(row, at, self.frame.add(column, j)) for j in outputs]

    def _load_input(self, source: tuple[Value, Value], channel: Value) -> Value:
        """Load a channel of an input and splat it; zero if it is out of bounds."""
        inside, address = source
        place = self.b.select(inside, self.element(address, channel), self.zeros)
        return self.b.splat(self.b.load(FLOAT, place), self.lanes)

    def _sums(self, base: Value) -> Tile:
        size, plane = self.algorithm.size, self.layout.plane_c

        def total(i: int, j: int) -> Value:
            return self.b.load(self.kind, self.element(base, (i * size + j) * plane))

        return [[total(i, j) for j in range(size)] for i in range(size)]

    def _store_lines(self, point: Point) -> None:
        """Emit the stores of the outputs, line by line."""
        b, frame, outputs = self.b, self.frame, self.layout.outputs
        down = self.conv.axes[0].output
        left = frame.subtract(down.extent, point.values[down])
        with self.loop(frame.minimum(left, outputs)) as line:
            at = {**point.values, down: frame.add(point.values[down], line)}
            for j, place in enumerate(self._line(line)):
                self._store(replace(point, values=at, sum=b.load(self.kind, place)), j)

    def _store(self, point: Point, number: int) -> None:
        """Store an output of a line, if it exists."""
        across = self.conv.axes[1].output
        ragged = number and across.extent % self.layout.outputs
        with self.b.when(self.output_exists(1, point.values, number) if ragged else None):
            store_sums(self.conv.kernel, replace(point, displacement={across: number}))
