"""How a Winograd convolution is cut into blocks that fit a cache, and whether it pays.

What comes in is a `Contraction` and the target; what goes out is the schedule of least cost, if it
is likely to cost less than the plain convolution, and how scratch memory is laid out for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import ceil, prod

from thalweg.codegen.contraction.cost import chunks, imbalance_of
from thalweg.codegen.contraction.schedule import Schedule
from thalweg.codegen.machine import CpuTarget
from thalweg.codegen.winograd import ENABLED
from thalweg.codegen.winograd.algorithm import WAYS, Algorithm, algorithm
from thalweg.codegen.winograd.form import Window, window_of
from thalweg.ir.kernel import Contraction


@dataclass(frozen=True)
class Blocks:
    """How a convolution is cut: into pieces of some tiles and columns.

    Of `depth` channels at a time inputs and filters are transformed, and multiplied by tiles of
    `rows` and `vectors` in registers.
    """

    outputs: int  # along each axis of a tile
    tiles: int
    panels: int  # of columns, each as wide as the tiles in registers
    depth: int
    rows: int
    vectors: int

    @property
    def schedule(self) -> Schedule:
        """These numbers as those of a contraction's schedule."""
        return Schedule(
            self.vectors,
            0,
            self.rows,
            block=self.tiles,
            panels=self.panels,
            split=self.depth,
            outputs=self.outputs,
        )


def blocks_in(made: Schedule) -> Blocks:
    """The blocks that a schedule stands for."""
    return Blocks(made.outputs, made.block, made.panels, made.split, made.tile, made.vectors)


@dataclass(frozen=True)
class Layout:
    """The sizes of the parts of a thread's scratch memory, in elements.

    A line between planes keeps those of all products from falling into the same few lines of the
    first cache.
    """

    blocks: Blocks
    lanes: int
    taps: int
    tiles: int  # of the whole convolution

    @property
    def algorithm(self) -> Algorithm:
        """The transforms."""
        return algorithm(self.blocks.outputs, self.taps)

    @property
    def width(self) -> int:
        """How many columns a panel has."""
        return self.blocks.vectors * self.lanes

    @property
    def columns(self) -> int:
        """How many columns a piece has."""
        return self.blocks.panels * self.width

    @property
    def height(self) -> int:
        """How many tiles there is room for: whole tiles of registers."""
        return ceil(self.blocks.tiles / self.blocks.rows) * self.blocks.rows

    @property
    def plane_a(self) -> int:
        """The transformed inputs of one product."""
        return self.height * self.blocks.depth + 16

    @property
    def plane_b(self) -> int:
        """The transformed filters of one product."""
        return self.blocks.depth * self.width + 16

    @property
    def plane_c(self) -> int:
        """A panel of the sums of one product."""
        return self.height * self.width + 16

    @property
    def is_guarded(self) -> bool:
        """Whether inputs of very different magnitude must be found. In tiles of two outputs a side
        no output takes a product of an input that it does not see."""
        return self.blocks.outputs > 2

    @property
    def cells(self) -> int:
        """How many cells a tile has along an axis: see `MeasuredInputs`."""
        return self.algorithm.size // 2

    @property
    def parts(self) -> tuple[int, int, int, int, int, int]:
        """Nothing but zeros, the transformed inputs, the transformed filters, the sums; how large
        the inputs of each tile's cells are, and a byte for every tile: whether it must be summed
        plainly."""
        products, cells = self.algorithm.products, self.cells**2 * self.lanes
        planes = self.plane_a, self.plane_b, self.blocks.panels * self.plane_c
        a, b, c = (products * plane for plane in planes)
        if not self.is_guarded:
            return self.blocks.depth, a, b, c, 0, 0
        return self.blocks.depth, a, b, c, self.blocks.tiles * cells, ceil(self.tiles / 64) * 16

    @property
    def busy(self) -> int:
        """What should stay in a cache: the parts that are used again and again."""
        return sum(self.parts[:4])

    @property
    def size(self) -> int:
        """All of a thread's part."""
        return sum(self.parts)


def layout_of(window: Window, blocks: Blocks, lanes: int) -> Layout:
    """The scratch memory of a convolution in some blocks."""
    return Layout(blocks, lanes, window.taps, prod(window.tiles(blocks.outputs)))


# What blocks cost, in cycles, measured: a vector of a transformed input, filter or sum, whose lines
# go to the second cache or come from there; a vector of sums that is fetched and put back; a tile
# that is found in its image.
_INPUT, _FILTER, _RESULT, _SUM, _TILE = 10.5, 7.0, 12.0, 6.0, 100.0
#: The share of the peak that register tiles reach, and that of the plain convolution.
_REACHED, _PLAIN = 0.93, 0.88
#: How much less than the plain convolution blocks must cost: results are less exact, after all.
_WORTH = 0.85
_OTHERS = 8  # schedules worth measuring
#: Fewer channels or columns leave too little to multiply between the transforms.
_LEAST = 16


def filtered(kernel: Contraction, target: CpuTarget) -> Schedule | None:
    """The schedule of a Winograd convolution, where that is likely to cost less than other ways."""
    window = window_of(kernel) if ENABLED else None
    if window is None or not _is_fit(window, target):
        return None
    best = min(_works(window, target), key=lambda work: work.cost, default=None)
    if best is None or best.cost > _WORTH * _plain_cost(window, target):
        return None
    return best.blocks.schedule


def filtered_otherwise(kernel: Contraction, target: CpuTarget, made: Schedule) -> list[Schedule]:
    """Other schedules of a Winograd convolution that may cost as little."""
    window = window_of(kernel)
    works = sorted(_works(window, target), key=lambda work: work.cost) if window else []
    return [work.blocks.schedule for work in works[:_OTHERS] if work.blocks.schedule != made]


def _is_fit(window: Window, target: CpuTarget) -> bool:
    channels, columns = int(window.channel.extent), int(window.lane.extent)
    whole = channels % target.lanes == 0 and columns % target.lanes == 0
    return min(channels, columns) >= _LEAST and (whole or target.has_masks)


def _works(window: Window, target: CpuTarget) -> list[_Work]:
    return [_Work(window, target, blocks) for blocks in _choices(window, target)]


def _plain_cost(window: Window, target: CpuTarget) -> float:
    """The cycles of the convolution without transforms."""
    kernel = window.kernel
    extents = [int(v.extent) for v in (*kernel.rows, *kernel.columns, *kernel.reduced)]
    return prod(extents) / (2 * target.lanes) / _PLAIN


def _choices(window: Window, target: CpuTarget) -> Iterator[Blocks]:
    """Blocks that fit the second cache."""
    lanes, room = target.lanes, 0.95 * target.l2 / 4
    channels = ceil(window.channel.extent / lanes) * lanes
    depths = sorted({min(depth, channels) for depth in (64, 128)})
    for outputs, depth, vectors in product(WAYS[window.taps], depths, (2, 3, 4)):
        widths = _widths(ceil(window.lane.extent / (vectors * lanes)))
        for tiles, panels in product(_parts(prod(window.tiles(outputs))), widths):
            rows = _height(tiles, (target.registers - 1 - vectors) // vectors)
            blocks = Blocks(outputs, tiles, panels, depth, rows, vectors)
            if layout_of(window, blocks, lanes).busy <= room:
                yield blocks


def _height(tiles: int, most: int) -> int:
    """The rows of a tile that fill the registers, or nearly, and leave few over."""
    heights = range(ceil(most * 0.7), most + 1)
    return min(heights, key=lambda rows: (ceil(tiles / rows) * rows, -rows))


def _parts(count: int) -> set[int]:
    """About so many tiles, all of the same size but the last, or nearly."""
    sizes = {min(count, wanted) for wanted in (16, 28, 42, 56, 84, 112, 196)}
    return sizes | {ceil(count / ceil(count / size)) for size in sizes}


def _widths(panels: int) -> set[int]:
    """Even parts of the columns."""
    return {ceil(panels / parts) for parts in (1, 2, 3, 4, 8)}


@dataclass(frozen=True)
class _Work:
    """What a convolution costs in some blocks."""

    window: Window
    target: CpuTarget
    blocks: Blocks

    @cached_property
    def layout(self) -> Layout:
        """The scratch memory."""
        return layout_of(self.window, self.blocks, self.target.lanes)

    @cached_property
    def cost(self) -> float:
        """All cycles, as if all of the usual number of threads took as long as the busiest."""
        window, blocks, lanes = self.window, self.blocks, self.target.lanes
        channels, columns = int(window.channel.extent), int(window.lane.extent)
        count = self._count
        down, across = ceil(count / blocks.tiles), ceil(columns / self.layout.columns)
        inputs, vectors = ceil(channels / lanes), ceil(columns / lanes)
        passes = ceil(channels / blocks.depth)
        transforms = _INPUT * count * inputs * across
        transforms += _FILTER * channels * vectors * down + _RESULT * count * vectors
        steps = channels * self._step / _REACHED + _SUM * (passes - 0.7)
        cycles = self.layout.algorithm.products * (transforms + self._sums * steps)
        cycles += _TILE * count * passes * across
        return cycles * self._imbalance(down, across)

    @cached_property
    def _count(self) -> int:
        """How many tiles there are."""
        return prod(self.window.tiles(self.blocks.outputs))

    @property
    def _step(self) -> float:
        """The cycles of a product of vectors: multiplications or loads, whichever is slower."""
        return max(0.5, 0.6 / self.blocks.rows + 0.6 / self.blocks.vectors)

    @property
    def _sums(self) -> int:
        """How many vectors of sums there are for each product, those that are thrown away too."""
        blocks, width = self.blocks, self.layout.width
        whole, rest = divmod(self._count, blocks.tiles)
        rows = whole * ceil(blocks.tiles / blocks.rows) + ceil(rest / blocks.rows)
        return rows * blocks.rows * ceil(self.window.lane.extent / width) * blocks.vectors

    def _imbalance(self, down: int, across: int) -> float:
        if down * across > 64:
            return 1.0
        return imbalance_of(chunks(self._count, self.blocks.tiles) * across, self.target.cores)
