"""The stage of a Winograd convolution that transforms sums back and stores the results.

What comes in are the finished sums of a tile; what goes out is stored as the kernel says. Since the
transforms spread an infinity or NaN over a whole tile, a tile with one is computed again by direct
summation, whose values are those of the plain convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

from thalweg.codegen.contraction.epilogue import store_sums
from thalweg.codegen.contraction.form import argument_of
from thalweg.codegen.frame import Leaves
from thalweg.codegen.llvm.builder import FLOAT, I1, I8, Value, constant
from thalweg.codegen.winograd.algorithm import Tile, on_both_axes
from thalweg.codegen.winograd.form import Axis
from thalweg.codegen.winograd.transforms import At, Stage
from thalweg.ir.loop import Variable


class Results(Stage):
    """Transforms finished sums and stores what becomes of them. Given are the first tile, how many,
    the panel and its first column."""

    def emit(self) -> None:
        """All tiles, a vector of columns at a time."""
        frame, layout = self.frame, self.layout
        first, count, panel, column = frame.given
        self.kept = self.b.stack(self.kind, self.blocks.outputs**2)
        sums = self.panel_of_sums(panel)
        with self.steps(count) as tile:
            at = self.place_of(frame.add(first, tile))
            row = self.element(sums, frame.multiply(tile, layout.width))
            self.is_spread = self._is_spread(frame.add(first, tile))
            with self.steps(layout.width, self.lanes) as vector:
                self._results(self.element(row, vector), at, frame.add(column, vector))
        self.b.ret()

    def _is_spread(self, tile: Value) -> Value:
        """Whether a tile's inputs differ too much in magnitude for transforms."""
        if not self.layout.is_guarded:
            return constant(I1, False)
        return self.b.compare("ne", self.b.load(I8, self.flag(tile)), constant(I8, 0))

    def _results(self, base: Value, at: At, column: Value) -> None:
        lane = self.window.lane
        tile = on_both_axes(self.b, self.algorithm.of_outputs, self._sums(base))
        for i, line in enumerate(tile):
            for place, value in zip(self._line(self.frame.integer(i)), line, strict=True):
                self.b.store(value, place)
        is_strange = self._is_strange([value for line in tile for value in line])
        with self.b.when(self.b.binary("or", is_strange, self.is_spread)):
            self._sum_plainly(at, column)
        leaves = Leaves(self.frame, {**at, lane: column}, lane, self.lanes, self.columns_at(column))
        self._store_by_lines(leaves)

    def _line(self, line: Value) -> list[Value]:
        """Where the results of a line of the tile are kept."""
        first, outputs = self.frame.multiply(line, self.blocks.outputs), self.blocks.outputs
        numbers = [self.frame.add(first, self.frame.integer(j)) for j in range(outputs)]
        return [self.b.element(self.kept, str(self.kind), number) for number in numbers]

    def _is_strange(self, values: Sequence[Value]) -> Value:
        """Whether a result is infinite or no number: zero times that is not zero."""
        b, zero = self.b, constant(self.kind, 0)
        total = b.binary("fmul", values[0], zero)
        for value in values[1:]:
            total = b.multiply_add(value, zero, total)
        return b.any(b.compare("une", total, zero))

    def _sum_plainly(self, at: At, column: Value) -> None:
        """Recompute a tile's results product by product."""
        with self.steps(self.blocks.outputs) as line:
            places = self._line(line)
            for place in places:
                self.b.store(constant(self.kind, 0), place)
            with self.steps(self.window.taps) as down, self.steps(self.window.taps) as across:
                self._add_products(at, column, (line, down, across), places)

    def _add_products(
        self, at: At, column: Value, where: tuple[Value, Value, Value], places: Sequence[Value]
    ) -> None:
        """Add what a tap gives to a line of results, over all channels."""
        b, frame, lane, channel = self.b, self.frame, self.window.lane, self.window.channel
        argument, offset = argument_of(self.window.kernel.b)
        (line, down, across), (vertical, horizontal) = where, self.window.axes
        taps = {
            vertical.tap: self._tap(vertical, down),
            horizontal.tap: self._tap(horizontal, across),
        }
        sources = self._sources(at, frame.add(line, down), across)
        sums, mask = [b.load(self.kind, place) for place in places], self.columns_at(column)
        first, last, step = (frame.integer(n) for n in (0, int(channel.extent), 1))
        with b.loop(first, last, step, sums) as loop:
            here = {**taps, channel: loop.index, lane: column}
            filters = Leaves(frame, here, lane, self.lanes, mask).load(argument, offset, mask)
            pairs = zip(sources, loop.carried, strict=True)
            loop.next = [
                b.multiply_add(self._one(s, loop.index), filters, total) for s, total in pairs
            ]
        for total, place in zip(loop.results, places, strict=True):
            b.store(total, place)

    def _tap(self, axis: Axis, number: Value) -> Value:
        """The tap that meets an output's element of a number."""
        last = self.frame.integer(axis.taps - 1)
        return number if axis.sign > 0 else self.frame.subtract(last, number)

    def _sources(self, at: At, line: Value, column: Value) -> list[tuple[Value, Value]]:
        """For a line of results, the elements from a place in the tile on: if they are there, and
        where."""
        frame, (vertical, horizontal) = self.frame, self.window.axes
        base = frame.pointers[argument_of(self.window.kernel.a)[0]]
        there, distance = self.along(vertical, at, line)
        row, found = frame.add(self.start_of(at), distance), list[tuple[Value, Value]]()
        for j in range(self.blocks.outputs):
            here, further = self.along(horizontal, at, frame.add(column, frame.integer(j)))
            inside = self.b.binary("and", there, here)
            found.append((inside, self.far(base, frame.add(row, further))))
        return found

    def _one(self, source: tuple[Value, Value], channel: Value) -> Value:
        """A channel of an element in all lanes; zero where there is none."""
        inside, address = source
        place = self.b.select(inside, self.far(address, channel), self.zeros)
        return self.b.splat(self.b.load(FLOAT, place), self.lanes)

    def _sums(self, base: Value) -> Tile:
        size, plane = self.algorithm.size, self.layout.plane_c

        def total(i: int, j: int) -> Value:
            place = self.frame.integer((i * size + j) * plane)
            return self.b.load(self.kind, self.element(base, place))

        return [[total(i, j) for j in range(size)] for i in range(size)]

    def _store_by_lines(self, leaves: Leaves) -> None:
        """Store the results that are kept, line by line."""
        b, frame, outputs = self.b, self.frame, self.blocks.outputs
        down = self.window.axes[0].output
        left = frame.subtract(frame.integer(down.extent), leaves.at[down])
        with self.steps(frame.least(left, frame.integer(outputs))) as line:
            at = {**leaves.at, down: frame.add(leaves.at[down], line)}
            for j, place in enumerate(self._line(line)):
                self._store(replace(leaves, at=at, sum=b.load(self.kind, place)), j)

    def _store(self, leaves: Leaves, number: int) -> None:
        """Store an output of a line, if the image has it."""
        across = self.window.axes[1].output
        there = self._exists(across, leaves, number)
        with nullcontext() if there is None else self.b.when(there):
            store_sums(self.window.kernel, replace(leaves, beyond={across: number}, known={}))

    def _exists(self, variable: Variable, leaves: Leaves, number: int) -> Value | None:
        """Whether an output of a tile exists, where that is not plain to see."""
        if number == 0 or variable.extent % self.blocks.outputs == 0:
            return None
        last = self.frame.integer(int(variable.extent) - number)
        return self.b.compare("slt", leaves.at[variable], last)
