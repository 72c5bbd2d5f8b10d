"""Schedules of Winograd convolutions: blocks that fit L2, and whether the algorithm pays.

A `Contraction` and a target come in; the schedule of least cost goes out, if the model prefers it
to the direct convolution, and the layout of scratch memory for a schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import product
from math import ceil, prod

from thalweg.codegen.contraction.schedule import Schedule, chunk_sizes, imbalance_of
from thalweg.codegen.machine import CpuTarget
from thalweg.codegen.winograd import ENABLED
from thalweg.codegen.winograd.algorithm import OUTPUT_SIZES, algorithm
from thalweg.codegen.winograd.form import Convolution, match_convolution
from thalweg.ir.kernel import Contraction


class Layout:
    """A convolution in blocks, and the layout of a thread's scratch memory, in elements.

    A piece of work is `tiles` tiles of `outputs` by `outputs`, times `panels` panels of columns.
    Inputs and filters are transformed `depth` channels at a time, and multiplied by register tiles
    of `rows` by `vectors`; a panel is as wide as a register tile. A contraction's schedule has
    these numbers under other names.

    A plane holds one product of all tiles. A cache line between planes avoids conflicts in L1.
    """

    def __init__(self, conv: Convolution, target: CpuTarget, schedule: Schedule) -> None:
        self.conv, self.schedule = conv, schedule
        self.lanes, self.cores = target.lanes, target.cores
        self.outputs, self.tiles, self.panels = schedule.outputs, schedule.block, schedule.panels
        self.depth, self.rows, self.vectors = schedule.split, schedule.tile, schedule.vectors
        self.algorithm = algorithm(self.outputs, conv.taps)
        #: tiles of the whole convolution, and those of a piece, rounded up to whole register tiles
        self.count = prod(conv.tiles(self.outputs))
        self.height = ceil(self.tiles / self.rows) * self.rows
        #: columns of a panel, and of a piece
        self.width = self.vectors * self.lanes
        self.columns = self.panels * self.width
        #: sizes of a plane of transformed inputs, of transformed filters, and of sums of a panel
        self.plane_a = self.height * self.depth + 16
        self.plane_b = self.depth * self.width + 16
        self.plane_c = self.height * self.width + 16
        #: Whether tiles with inputs of very different magnitude must be detected. With two outputs
        #: per axis no output is computed from inputs outside its own window.
        self.is_guarded = self.outputs > 2
        #: cells of a tile along an axis (`MeasuredInputTransform`)
        self.cells = self.algorithm.size // 2

    @cached_property
    def part_sizes(self) -> tuple[int, int, int, int, int, int]:
        """The sizes of: zeros, transformed inputs, transformed filters, sums, the energies of each
        tile's cells, and a flag byte per tile (`MagnitudeGuard`)."""
        products, cells = self.algorithm.products, self.cells**2 * self.lanes
        a, b, c = (
            products * plane for plane in (self.plane_a, self.plane_b, self.panels * self.plane_c)
        )
        if not self.is_guarded:
            return self.depth, a, b, c, 0, 0
        return self.depth, a, b, c, self.tiles * cells, ceil(self.count / 64) * 16

    @property
    def size(self) -> int:
        """The scratch of a thread."""
        return sum(self.part_sizes)

    def cost(self) -> float:
        """The cycles of all threads, as if each took as long as the busiest."""
        channels, columns = int(self.conv.channel.extent), int(self.conv.lane.extent)
        down, across = ceil(self.count / self.tiles), ceil(columns / self.columns)
        inputs, vectors = ceil(channels / self.lanes), ceil(columns / self.lanes)
        passes = ceil(channels / self.depth)
        transforms = _INPUT * self.count * inputs * across
        transforms += _FILTER * channels * vectors * down + _RESULT * self.count * vectors
        # A product of vectors is bound by multiplications or by loads.
        step = max(0.5, 0.6 / self.rows + 0.6 / self.vectors)
        steps = channels * step / _GEMM_EFFICIENCY + _SUM * (passes - 0.7)
        cycles = self.algorithm.products * (transforms + self._sums * steps)
        cycles += _TILE * self.count * passes * across
        if down * across > 64:
            return cycles
        return cycles * imbalance_of(chunk_sizes(self.count, self.tiles) * across, self.cores)

    @property
    def _sums(self) -> int:
        """The vectors of sums per product, those of padding included."""
        whole, rest = divmod(self.count, self.tiles)
        rows = whole * ceil(self.tiles / self.rows) + ceil(rest / self.rows)
        return rows * self.rows * ceil(self.conv.lane.extent / self.width) * self.vectors


# Costs in cycles, measured: of a vector of transformed inputs, filters or outputs, with its L2
# traffic; of a vector of sums that is loaded and stored again; of locating a tile in its image.
_INPUT, _FILTER, _RESULT, _SUM, _TILE = 10.5, 7.0, 12.0, 6.0, 100.0
#: The fraction of peak that the products reach, and that of the direct convolution.
_GEMM_EFFICIENCY, _DIRECT_EFFICIENCY = 0.93, 0.88
#: The largest cost relative to the direct convolution: results are less accurate, after all.
_MAX_COST_RATIO = 0.85
_MAX_ALTERNATIVES = 8  # schedules to measure
#: The least channels and columns: fewer leave too little work between the transforms.
_MIN_CHANNELS = 16


def winograd_schedule(kernel: Contraction, target: CpuTarget) -> Schedule | None:
    """The schedule of a Winograd convolution, if it is one and the cost model prefers it."""
    conv = match_convolution(kernel) if ENABLED else None
    if conv is None or not _is_eligible(conv, target):
        return None
    best = next(iter(_ranked(conv, target)), None)
    if best is None or best.cost() > _MAX_COST_RATIO * _direct_cost(conv, target):
        return None
    return best.schedule


def winograd_alternatives(
    kernel: Contraction, target: CpuTarget, schedule: Schedule
) -> list[Schedule]:
    """Other schedules of a Winograd convolution worth measuring."""
    conv = match_convolution(kernel)
    ranked = _ranked(conv, target) if conv else []
    return [layout.schedule for layout in ranked[:_MAX_ALTERNATIVES] if layout.schedule != schedule]


def _is_eligible(conv: Convolution, target: CpuTarget) -> bool:
    channels, columns = int(conv.channel.extent), int(conv.lane.extent)
    whole = channels % target.lanes == 0 and columns % target.lanes == 0
    return min(channels, columns) >= _MIN_CHANNELS and (whole or target.has_masks)


def _ranked(conv: Convolution, target: CpuTarget) -> list[Layout]:
    return sorted(_choices(conv, target), key=Layout.cost)


def _direct_cost(conv: Convolution, target: CpuTarget) -> float:
    """The cycles of the direct convolution."""
    kernel = conv.kernel
    extents = [int(v.extent) for v in (*kernel.rows, *kernel.columns, *kernel.reduced)]
    return prod(extents) / (2 * target.lanes) / _DIRECT_EFFICIENCY


def _choices(conv: Convolution, target: CpuTarget) -> Iterator[Layout]:
    """Schedules whose blocks fit L2."""
    lanes, room = target.lanes, 0.95 * target.l2 / 4
    channels = ceil(conv.channel.extent / lanes) * lanes
    depths = sorted({min(depth, channels) for depth in (64, 128)})
    for outputs, depth, vectors in product(OUTPUT_SIZES[conv.taps], depths, (2, 3, 4)):
        widths = _panel_counts(ceil(conv.lane.extent / (vectors * lanes)))
        for tiles, panels in product(_tile_counts(prod(conv.tiles(outputs))), widths):
            rows = _register_rows(tiles, (target.registers - 1 - vectors) // vectors)
            schedule = Schedule(
                vectors, 0, rows, block=tiles, panels=panels, split=depth, outputs=outputs
            )
            layout = Layout(conv, target, schedule)
            if sum(layout.part_sizes[:4]) <= room:  # what is reused
                yield layout


def _register_rows(tiles: int, most: int) -> int:
    """The rows of a register tile: nearly all registers, and little padding."""
    heights = range(ceil(most * 0.7), most + 1)
    return min(heights, key=lambda rows: (ceil(tiles / rows) * rows, -rows))


def _tile_counts(count: int) -> set[int]:
    """Possible numbers of tiles per piece, most of them with equal pieces."""
    sizes = {min(count, wanted) for wanted in (16, 28, 42, 56, 84, 112, 196)}
    return sizes | {ceil(count / ceil(count / size)) for size in sizes}


def _panel_counts(panels: int) -> set[int]:
    """Possible numbers of panels per piece."""
    return {ceil(panels / parts) for parts in (1, 2, 3, 4, 8)}
