"""The stages of a Winograd convolution that transform inputs and filters.

What comes in are blocks of a convolution and its scratch memory; each stage is a function that is
given which tiles, channels or columns to transform, and leaves the values of a tile in as many
planes as it has products.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from itertools import chain

from thalweg.codegen.contraction.form import argument_of
from thalweg.codegen.contraction.packing import transposed
from thalweg.codegen.frame import Frame, Integer
from thalweg.codegen.llvm.builder import FLOAT, I8, POINTER, Type, Value, constant
from thalweg.codegen.winograd.algorithm import Tile, transform_1d, transform_2d
from thalweg.codegen.winograd.form import Axis
from thalweg.codegen.winograd.plan import Layout
from thalweg.ir.loop import Variable

At = dict[Variable, Value]


class Stage:
    """A function in the making: a thread's scratch memory, and how it is walked."""

    def __init__(self, layout: Layout, frame: Frame) -> None:
        self.layout, self.convolution, self.frame, self.b = (
            layout,
            layout.convolution,
            frame,
            frame.b,
        )
        self.algorithm, self.lanes = layout.algorithm, layout.lanes
        self.kind = FLOAT.of(self.lanes)
        start = self.element(frame.scratch, frame.multiply(frame.thread, layout.size))
        self.zeros, self.a, self.filters, self.sums, self.energies, self.flags = (
            self.element(start, sum(layout.part_sizes[:number])) for number in range(6)
        )

    def element(self, base: Value, place: Integer) -> Value:
        """The address of an element."""
        return self.frame.element(base, FLOAT.scalar, place)

    def flag(self, tile: Value) -> Value:
        """Where it stands whether a tile must be summed plainly."""
        return self.b.element(self.flags, I8.scalar, tile)

    @contextmanager
    def loop(self, count: int | Value, step: int = 1) -> Generator[Value]:
        """A loop from 0 on."""
        with self.b.loop(0, count, step) as loop:
            yield loop.index

    def depth(self, channel: Value) -> Value:
        """How many channels from one on are transformed at a time."""
        left = self.frame.subtract(self.convolution.channel.extent, channel)
        return self.frame.minimum(left, self.layout.depth)

    def panel_of_sums(self, panel: Value) -> Value:
        """Where the sums of a panel start."""
        size = self.algorithm.products * self.layout.plane_c
        return self.element(self.sums, self.frame.multiply(panel, size))

    def tile_origin(self, tile: Value) -> At:
        """The image and the first outputs of a tile."""
        frame, convolution = self.frame, self.convolution
        *images, down, across = frame.unravel(tile, convolution.tiles(self.layout.outputs))
        at = dict(zip(convolution.images, images, strict=True))
        for axis, place in zip(convolution.axes, (down, across), strict=True):
            at[axis.output] = frame.multiply(place, self.layout.outputs)
        return at

    def column_mask(self, column: Value) -> Value | None:
        """A mask of the columns that exist, where some do not."""
        extent = self.convolution.lane.extent
        if extent % self.layout.width == 0:
            return None
        return self.frame.lanes_below(column, extent, self.lanes)

    def load_channels(self, address: Value, channel: Value) -> Value:
        """A vector of channels, as far as they exist."""
        extent, lanes = self.convolution.channel.extent, self.lanes
        mask = self.frame.lanes_below(channel, extent, lanes) if extent % lanes else None
        return self.b.load(self.kind, address, mask)

    def input_offset(self, axis: Axis, at: At, number: Value) -> tuple[Value, Value]:
        """Whether an element of a tile along an axis is there, and how far away."""
        frame, (low, high) = self.frame, axis.elements
        place = frame.add(frame.add(at[axis.output], axis.first), number)
        above = self.b.binary("sub", place, low)
        inside = self.b.compare("ult", above, max(0, high - low))
        step = argument_of(self.convolution.kernel.a)[1].factor(axis.output)
        return inside, frame.multiply(place, step)

    def image_offset(self, at: At) -> Value:
        """The place of an image's first element, as far as axes and channels do not decide it."""
        frame, offset = self.frame, argument_of(self.convolution.kernel.a)[1]
        start = frame.integer(offset.constant)
        for variable in self.convolution.images:
            start = frame.add(start, frame.multiply(at[variable], offset.factor(variable)))
        return start

    def unchecked_address(self, base: Value, place: Value) -> Value:
        """The address of an element that may not be there, for those who do not read it then."""
        return self.b.emit(POINTER, f"getelementptr {FLOAT.scalar}, {base}, {place}")

    def store_planes(self, tile: Tile, base: Value, plane: int) -> None:
        """Put the values of a tile into a plane each."""
        for number, value in enumerate(chain.from_iterable(tile)):
            self.b.store(value, self.element(base, number * plane))


class InputTransform(Stage):
    """Transforms inputs. Given are the first tile, how many, and the first channel.

    Squares are transformed line by line, through memory: registers do not hold a large one, and
    code that names all of it is slow to compile.
    """

    def emit(self) -> None:
        """All tiles, a vector of channels at a time."""
        frame, size = self.frame, self.algorithm.size
        first, count, channel = frame.extra_arguments
        self.sources, self.partial = (
            self.b.stack(POINTER, size**2),
            self.b.stack(self.kind, size**2),
        )
        with self.loop(count) as tile:
            self._locate_inputs(self.tile_origin(frame.add(first, tile)), channel)
            row = frame.multiply(tile, self.layout.depth)
            self.begin_tile(tile, channel)
            with self.loop(self.depth(channel), self.lanes) as vector:
                self.transform_columns(channel, vector)
                with self.loop(size) as line:
                    self._transform_line(line, self.element(self.a, frame.add(row, vector)))
        self.b.ret()

    def begin_tile(self, tile: Value, channel: Value) -> None:
        """Prepare for the channels of a tile from one on."""

    def transform_columns(self, channel: Value, vector: Value) -> None:
        """Transform all columns."""
        with self.loop(self.algorithm.size) as column:
            self.transform_column(column, channel, vector)

    def transform_column(self, column: Value, channel: Value, vector: Value) -> list[Value]:
        """Transform a column of the elements, and give those."""
        elements, here = list[Value](), self.frame.add(channel, vector)
        for i in range(self.algorithm.size):
            address = self.b.load(POINTER, self._at(self.sources, POINTER, i, column))
            elements.append(self.load_channels(self.element(address, vector), here))
        made = transform_1d(self.b, self.algorithm.input_transform, elements)
        for i, value in enumerate(made):
            self.b.store(value, self._at(self.partial, self.kind, i, column))
        return elements

    def _transform_line(self, line: Value, base: Value) -> None:
        """Transform a line of what that gave."""
        frame, size, plane = self.frame, self.algorithm.size, self.layout.plane_a
        first = self.b.element(self.partial, str(self.kind), frame.multiply(line, size))
        values = [
            self.b.load(self.kind, self.b.element(first, str(self.kind), j)) for j in range(size)
        ]
        made = transform_1d(self.b, self.algorithm.input_transform, values)
        start = self.element(base, frame.multiply(line, size * plane))
        self.store_planes([made], start, plane)

    def _at(self, base: Value, kind: Type, line: int, column: Value) -> Value:
        place = self.frame.add(column, line * self.algorithm.size)
        return self.b.element(base, str(kind), place)

    def _locate_inputs(self, at: At, channel: Value) -> None:
        """Note the addresses of a tile's elements; those that count as zero are read elsewhere."""
        frame, b, (down, across) = self.frame, self.b, self.convolution.axes
        base = frame.pointers[argument_of(self.convolution.kernel.a)[0]]
        start = frame.add(self.image_offset(at), channel)
        with self.loop(self.algorithm.size) as line:
            there, distance = self.input_offset(down, at, line)
            row = frame.add(start, distance)
            with self.loop(self.algorithm.size) as column:
                here, further = self.input_offset(across, at, column)
                address = self.unchecked_address(base, frame.add(row, further))
                source = b.select(b.binary("and", there, here), address, self.zeros)
                number = frame.add(frame.multiply(line, self.algorithm.size), column)
                b.store(source, b.element(self.sources, POINTER.scalar, number))


class MeasuredInputTransform(InputTransform):
    """The same, and the sums of the squares of the elements of each tile's cells.

    Cells are lines and columns {0, last}, {1, 2}, {3, 4}; sums are kept by channel modulo lanes.
    """

    def begin_tile(self, tile: Value, channel: Value) -> None:
        """Forget about the tile that was there before."""
        frame, count = self.frame, self.layout.cells**2
        self.cells = self.element(self.energies, frame.multiply(tile, count * self.lanes))
        with self.b.when(self.b.compare("eq", channel, 0)):
            for number in range(count):
                self.b.store(constant(self.kind, 0), self._cell(frame.integer(number)))

    def transform_columns(self, channel: Value, vector: Value) -> None:
        """Transform all columns, and measure them."""
        rim = self._cell(self.frame.integer(0))
        with self.b.loop(0, self.algorithm.size, 1, [self.b.load(self.kind, rim)]) as loop:
            elements = self.transform_column(loop.index, channel, vector)
            self._measure(loop.index, elements[1:-1])
            loop.next = [self._add_squares(loop.carried[0], (elements[0], elements[-1]))]
        self.b.store(loop.results[0], rim)

    def _measure(self, column: Value, elements: Sequence[Value]) -> None:
        """Add the squares of a column, but for its ends."""
        frame, cells = self.frame, self.layout.cells
        half = self.b.binary("lshr", frame.add(column, 1), 1)
        across = frame.multiply(self.b.binary("urem", half, cells), cells)
        for down in range(1, cells):
            place = self._cell(frame.add(across, down))
            pair = elements[2 * down - 2 : 2 * down]
            self.b.store(self._add_squares(self.b.load(self.kind, place), pair), place)

    def _add_squares(self, total: Value, values: Sequence[Value]) -> Value:
        for value in values:
            total = self.b.multiply_add(value, value, total)
        return total

    def _cell(self, number: Value) -> Value:
        return self.element(self.cells, self.frame.multiply(number, self.lanes))


class FilterTransform(Stage):
    """Transforms a panel of filters. Given are the first channel and the first column."""

    def emit(self) -> None:
        """All channels, a vector of columns at a time."""
        frame = self.frame
        channel, column = frame.extra_arguments
        depth, width = self.depth(channel), self.layout.width
        with self.loop(depth) as number, self.loop(width, self.lanes) as vector:
            taps = self._taps(frame.add(channel, number), frame.add(column, vector))
            self.transform(taps, number, vector)
        self.b.ret()

    def transform(self, taps: Tile, number: Value, vector: Value) -> None:
        """Put the transformed taps of a channel and a vector of columns in their place."""
        frame, layout = self.frame, self.layout
        made = transform_2d(self.b, self.algorithm.filter_transform, taps)
        place = frame.add(frame.multiply(number, layout.width), vector)
        self.store_planes(made, self.element(self.filters, place), layout.plane_b)

    def ordered_taps(self, tap: Callable[[int, int], Value]) -> Tile:
        """Taps in the order of the elements that they meet."""
        (down, across), numbers = self.convolution.axes, range(self.convolution.taps)
        return [[tap(down.tap_at(i), across.tap_at(j)) for j in numbers] for i in numbers]

    def _taps(self, channel: Value, column: Value) -> Tile:
        frame, convolution = self.frame, self.convolution
        argument, offset = argument_of(convolution.kernel.b)
        row = frame.multiply(channel, offset.factor(convolution.channel))
        base = self.element(frame.pointers[argument], frame.add(row, column))
        steps = [offset.factor(axis.tap) for axis in convolution.axes]
        mask = self.column_mask(column)

        def tap(down: int, across: int) -> Value:
            place = offset.constant + down * steps[0] + across * steps[1]
            return self.b.load(self.kind, self.element(base, place), mask)

        return self.ordered_taps(tap)


class TransposedFilterTransform(FilterTransform):
    """The same for filters whose channels lie side by side: these are transposed first."""

    def emit(self) -> None:
        """All columns, as many channels at a time."""
        frame, lanes = self.frame, self.lanes
        channel, column = frame.extra_arguments
        self.transposed_taps = self.b.stack(self.kind, self.convolution.taps**2 * lanes)
        depth, width = self.depth(channel), self.layout.width
        with self.loop(width, lanes) as vector, self.loop(depth, lanes) as group:
            self._transpose(frame.add(channel, group), frame.add(column, vector))
            left = frame.minimum(frame.subtract(depth, group), lanes)
            with self.loop(left) as number:
                self.transform(self._taps_of(number), frame.add(group, number), vector)
        self.b.ret()

    def _transpose(self, channel: Value, column: Value) -> None:
        """Transpose a tile of channels and columns for each tap."""
        frame, axes, taps = self.frame, self.convolution.axes, self.convolution.taps
        with self.loop(taps) as down, self.loop(taps) as across:
            at = {axes[0].tap: down, axes[1].tap: across, self.convolution.channel: channel}
            tile = transposed(self.b, self._block(at, column))
            first = frame.multiply(frame.add(frame.multiply(down, taps), across), self.lanes)
            for number, vector in enumerate(tile):
                self.b.store(vector, self._tap_address(frame.add(first, number)))

    def _tap_address(self, number: Value) -> Value:
        return self.b.element(self.transposed_taps, str(self.kind), number)

    def _block(self, at: At, column: Value) -> list[Value]:
        """The channels of some columns; for columns that do not exist, those of the last one."""
        frame, lane = self.frame, self.convolution.lane
        argument, offset = argument_of(self.convolution.kernel.b)
        rows: list[Value] = []
        for number in range(self.lanes):
            here = frame.minimum(frame.add(column, number), int(lane.extent) - 1)
            place = frame.evaluate(offset, {**at, lane: here})
            address = self.element(frame.pointers[argument], place)
            rows.append(self.load_channels(address, at[self.convolution.channel]))
        return rows

    def _taps_of(self, number: Value) -> Tile:
        def tap(down: int, across: int) -> Value:
            first = (down * self.convolution.taps + across) * self.lanes
            return self.b.load(self.kind, self._tap_address(self.frame.add(number, first)))

        return self.ordered_taps(tap)
