"""The stages of a Winograd convolution that transform inputs and filters.

Each stage is a function. Its arguments are the tiles, channels or columns to transform; it writes
the values of a tile to scratch memory, to one plane per product.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from itertools import chain

from thalweg.codegen.contraction.packing import transposed
from thalweg.codegen.frame import At, Integer, PhaseFrame
from thalweg.codegen.llvm.builder import FLOAT, I8, POINTER, Type, Value, constant
from thalweg.codegen.winograd.algorithm import Tile, transform_1d, transform_2d
from thalweg.codegen.winograd.form import Axis
from thalweg.codegen.winograd.plan import Layout


class Stage:
    """Emits the function of a stage; addresses of a thread's scratch memory."""

    def __init__(self, layout: Layout, frame: PhaseFrame) -> None:
        self.layout, self.conv, self.frame, self.b = (layout, layout.conv, frame, frame.b)
        self.algorithm, self.lanes = layout.algorithm, layout.lanes
        self.kind = FLOAT.of(self.lanes)
        parts = frame.thread_parts(FLOAT.scalar, layout.part_sizes)
        self.zeros, self.a, self.filters, self.sums, self.energies, self.flags = parts

    def element(self, base: Value, place: Integer) -> Value:
        """The address of an element."""
        return self.frame.element(base, FLOAT.scalar, place)

    def vector(self, base: Value, number: Integer) -> Value:
        """The address of a vector on the stack."""
        return self.frame.element(base, str(self.kind), number)

    def flag(self, tile: Value) -> Value:
        """The address of a tile's flag."""
        return self.b.element(self.flags, I8.scalar, tile)

    @contextmanager
    def loop(self, count: int | Value, step: int = 1) -> Generator[Value]:
        """`for index in range(0, count, step)`"""
        with self.b.loop(0, count, step) as loop:
            yield loop.index

    def depth(self, channel: Value) -> Value:
        """How many channels are transformed from `channel` on."""
        left = self.frame.subtract(self.conv.channel.extent, channel)
        return self.frame.minimum(left, self.layout.depth)

    def panel_of_sums(self, panel: Value) -> Value:
        """The address of a panel's sums."""
        size = self.algorithm.products * self.layout.plane_c
        return self.element(self.sums, self.frame.multiply(panel, size))

    def tile_origin(self, tile: Value) -> At:
        """The image and the first outputs of a tile, as values of variables."""
        frame, conv = self.frame, self.conv
        *images, down, across = frame.unravel(tile, conv.tiles(self.layout.outputs))
        at = dict(zip(conv.images, images, strict=True))
        for axis, place in zip(conv.axes, (down, across), strict=True):
            at[axis.output] = frame.multiply(place, self.layout.outputs)
        return at

    def output_exists(self, axis: int, at: At, number: int) -> Value:
        """Whether output `number` of a tile along an axis exists."""
        output = self.conv.axes[axis].output
        return self.b.compare("slt", at[output], int(output.extent) - number)

    def column_mask(self, column: Value) -> Value | None:
        """A mask of the columns that exist, from `column` on; None if all do."""
        extent = self.conv.lane.extent
        if extent % self.layout.width == 0:
            return None
        return self.frame.lanes_below(column, extent, self.lanes)

    def load_channels(self, address: Value, channel: Value) -> Value:
        """Load a vector of channels, masked to those that exist."""
        extent, lanes = self.conv.channel.extent, self.lanes
        mask = self.frame.lanes_below(channel, extent, lanes) if extent % lanes else None
        return self.b.load(self.kind, address, mask)

    def input_offset(self, axis: Axis, at: At, number: Value) -> tuple[Value, Value]:
        """Whether input `number` of a tile along an axis is within bounds, and its offset."""
        frame, (low, high) = self.frame, axis.elements
        place = frame.add(frame.add(at[axis.output], axis.first), number)
        above = self.b.binary("sub", place, low)
        inside = self.b.compare("ult", above, max(0, high - low))
        step = self.conv.kernel.a.load.offset.factor(axis.output)
        return inside, frame.multiply(place, step)

    def input_line(self, at: At, line: Value, channel: Integer = 0) -> tuple[Value, Value]:
        """Whether a line of a tile's inputs is within bounds, and its offset from a channel on."""
        frame, offset = self.frame, self.conv.kernel.a.load.offset
        start = frame.integer(offset.constant)
        for variable in self.conv.images:
            start = frame.add(start, frame.multiply(at[variable], offset.factor(variable)))
        inside, distance = self.input_offset(self.conv.axes[0], at, line)
        return inside, frame.add(frame.add(start, channel), distance)

    def input_in(self, line: tuple[Value, Value], at: At, column: Value) -> tuple[Value, Value]:
        """Whether an input in a line is within bounds, and its address, which is read only then."""
        inside, distance = self.input_offset(self.conv.axes[1], at, column)
        base = self.frame.pointers[self.conv.kernel.a.load.buffer]
        address = self.element(base, self.frame.add(line[1], distance))
        return self.b.binary("and", line[0], inside), address

    def store_planes(self, tile: Tile, base: Value, plane: int) -> None:
        """Store each value of a tile to its plane."""
        for number, value in enumerate(chain.from_iterable(tile)):
            self.b.store(value, self.element(base, number * plane))


class InputTransform(Stage):
    """Transforms inputs. Arguments: the first tile, the number of tiles, the first channel.

    Tiles are transformed line by line, through memory: registers do not hold a large one, and fully
    unrolled code is slow to compile.
    """

    def emit(self) -> None:
        """Emit the loops over tiles and vectors of channels."""
        frame, size = self.frame, self.algorithm.size
        first, count, channel = frame.extra
        self.sources = self.b.stack(POINTER, size**2)
        self.partial = self.b.stack(self.kind, size**2)
        with self.loop(count) as tile:
            self._locate_inputs(self.tile_origin(frame.add(first, tile)), channel)
            row = frame.multiply(tile, self.layout.depth)
            self.begin_tile(tile, channel)
            with self.loop(self.depth(channel), self.lanes) as vector:
                self.transform_columns(channel, vector)
                with self.loop(size) as line:
                    self._transform_line(line, self.element(self.a, frame.add(row, vector)))

    def begin_tile(self, tile: Value, channel: Value) -> None:
        """Prepare for the channels of a tile from `channel` on."""

    def transform_columns(self, channel: Value, vector: Value) -> None:
        """Emit the transform of all columns of a tile."""
        with self.loop(self.algorithm.size) as column:
            self.transform_column(column, channel, vector)

    def transform_column(self, column: Value, channel: Value, vector: Value) -> list[Value]:
        """Emit the transform of a column; returns the inputs."""
        elements, here = list[Value](), self.frame.add(channel, vector)
        for i in range(self.algorithm.size):
            address = self.b.load(POINTER, self._at(self.sources, POINTER, i, column))
            elements.append(self.load_channels(self.element(address, vector), here))
        transformed = transform_1d(self.b, self.algorithm.input_transform, elements)
        for i, value in enumerate(transformed):
            self.b.store(value, self._at(self.partial, self.kind, i, column))
        return elements

    def _transform_line(self, line: Value, base: Value) -> None:
        """Emit the transform of a line of the transformed columns."""
        frame, size, plane = self.frame, self.algorithm.size, self.layout.plane_a
        first = self.vector(self.partial, frame.multiply(line, size))
        values = [self.b.load(self.kind, self.vector(first, j)) for j in range(size)]
        transformed = transform_1d(self.b, self.algorithm.input_transform, values)
        start = self.element(base, frame.multiply(line, size * plane))
        self.store_planes([transformed], start, plane)

    def _at(self, base: Value, kind: Type, line: int, column: Value) -> Value:
        place = self.frame.add(column, line * self.algorithm.size)
        return self.b.element(base, str(kind), place)

    def _locate_inputs(self, at: At, channel: Value) -> None:
        """Store the addresses of a tile's inputs to the stack; those of padding point to zeros."""
        frame, b = self.frame, self.b
        with self.loop(self.algorithm.size) as line:
            row = self.input_line(at, line, channel)
            with self.loop(self.algorithm.size) as column:
                source = b.select(*self.input_in(row, at, column), self.zeros)
                number = frame.add(frame.multiply(line, self.algorithm.size), column)
                b.store(source, b.element(self.sources, POINTER.scalar, number))


class MeasuredInputTransform(InputTransform):
    """Transforms inputs, and sums the squares of the inputs in each tile's cells.

    Cells are lines and columns {0, last}, {1, 2}, {3, 4}. A lane sums its own channels.
    """

    def begin_tile(self, tile: Value, channel: Value) -> None:
        """Clear the energies of a tile at its first channel."""
        frame, count = self.frame, self.layout.cells**2
        self.cells = self.element(self.energies, frame.multiply(tile, count * self.lanes))
        with self.b.when(self.b.compare("eq", channel, 0)):
            for number in range(count):
                self.b.store(constant(self.kind, 0), self._cell(frame.integer(number)))

    def transform_columns(self, channel: Value, vector: Value) -> None:
        """Emit the transform and the energies of all columns."""
        border = self._cell(self.frame.integer(0))
        with self.b.loop(0, self.algorithm.size, 1, [self.b.load(self.kind, border)]) as loop:
            elements = self.transform_column(loop.index, channel, vector)
            self._measure(loop.index, elements[1:-1])
            loop.next = [self._add_squares(loop.carried[0], (elements[0], elements[-1]))]
        self.b.store(loop.results[0], border)

    def _measure(self, column: Value, elements: Sequence[Value]) -> None:
        """Add the squares of a column, without its ends."""
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
    """Transforms a panel of filters. Arguments: the first channel, the first column."""

    def emit(self) -> None:
        """Emit the loops over channels and vectors of columns."""
        frame = self.frame
        channel, column = frame.extra
        depth, width = self.depth(channel), self.layout.width
        with self.loop(depth) as number, self.loop(width, self.lanes) as vector:
            taps = self._taps(frame.add(channel, number), frame.add(column, vector))
            self.transform(taps, number, vector)

    def transform(self, taps: Tile, number: Value, vector: Value) -> None:
        """Emit the transform of the taps of a channel and a vector of columns."""
        frame, layout = self.frame, self.layout
        transformed = transform_2d(self.b, self.algorithm.filter_transform, taps)
        place = frame.add(frame.multiply(number, layout.width), vector)
        self.store_planes(transformed, self.element(self.filters, place), layout.plane_b)

    def ordered_taps(self, tap: Callable[[int, int], Value]) -> Tile:
        """The taps in the order of the inputs that they multiply."""
        (down, across), numbers = self.conv.axes, range(self.conv.taps)
        return [[tap(down.tap_at(i), across.tap_at(j)) for j in numbers] for i in numbers]

    def _taps(self, channel: Value, column: Value) -> Tile:
        frame, conv = self.frame, self.conv
        filters = conv.kernel.b.load
        offset = filters.offset
        row = frame.multiply(channel, offset.factor(conv.channel))
        base = self.element(frame.pointers[filters.buffer], frame.add(row, column))
        steps = [offset.factor(axis.tap) for axis in conv.axes]
        mask = self.column_mask(column)

        def tap(down: int, across: int) -> Value:
            place = offset.constant + down * steps[0] + across * steps[1]
            return self.b.load(self.kind, self.element(base, place), mask)

        return self.ordered_taps(tap)


class TransposedFilterTransform(FilterTransform):
    """The same for filters that are contiguous along channels: they are transposed first."""

    def emit(self) -> None:
        """Emit the loops over vectors of columns and as many channels."""
        frame, lanes = self.frame, self.lanes
        channel, column = frame.extra
        self.transposed_taps = self.b.stack(self.kind, self.conv.taps**2 * lanes)
        depth, width = self.depth(channel), self.layout.width
        with self.loop(width, lanes) as vector, self.loop(depth, lanes) as group:
            self._transpose(frame.add(channel, group), frame.add(column, vector))
            left = frame.minimum(frame.subtract(depth, group), lanes)
            with self.loop(left) as number:
                self.transform(self._taps_of(number), frame.add(group, number), vector)

    def _transpose(self, channel: Value, column: Value) -> None:
        """Transpose a tile of channels and columns for each tap, to the stack."""
        frame, axes, taps = self.frame, self.conv.axes, self.conv.taps
        with self.loop(taps) as down, self.loop(taps) as across:
            at = {axes[0].tap: down, axes[1].tap: across, self.conv.channel: channel}
            tile = transposed(self.b, self._block(at, column))
            first = frame.multiply(frame.add(frame.multiply(down, taps), across), self.lanes)
            for number, vector in enumerate(tile):
                place = self.vector(self.transposed_taps, frame.add(first, number))
                self.b.store(vector, place)

    def _block(self, at: At, column: Value) -> list[Value]:
        """The channels of a vector of columns; past the last column, those of the last one."""
        frame, lane = self.frame, self.conv.lane
        rows: list[Value] = []
        for number in range(self.lanes):
            here = frame.minimum(frame.add(column, number), int(lane.extent) - 1)
            address = frame.address(self.conv.kernel.b.load, {**at, lane: here})
            rows.append(self.load_channels(address, at[self.conv.channel]))
        return rows

    def _taps_of(self, number: Value) -> Tile:
        def tap(down: int, across: int) -> Value:
            first = (down * self.conv.taps + across) * self.lanes
            place = self.vector(self.transposed_taps, self.frame.add(number, first))
            return self.b.load(self.kind, place)

        return self.ordered_taps(tap)
