"""Schedules: how a contraction may be computed, what that means for its factors, what it costs.

A `Schedule` is plain numbers: tiles, blocks, copies. With the form of a contraction and a target (a
`Setting`) they say what a piece of work spans, the layout of packed factors, and about how many
cycles it takes: products, loads, copies, and what the caches do not hold. The figures are rough and
only compare schedules of one contraction with each other; `tf.tune` measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import ceil, prod
from typing import Any

import numpy as np

from thalweg.codegen.contraction.form import Form, argument_of, loads_of, pinned_in
from thalweg.codegen.contraction.packing import Packing, dense, tiled, windowed
from thalweg.codegen.machine import CpuTarget
from thalweg.ir.dynamic import is_static
from thalweg.ir.expr import Load
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Access
from thalweg.ir.loop import Variable


@dataclass(frozen=True)
class Schedule:
    """How a contraction is computed.

    A tile in registers is `vectors` wide and spans `tile` values of row variable number `tile_at`,
    all values of the rows after it, and one of those before. A piece of work is one value of the
    rows before `block_at`, `block` values of that one and all of the others, and `panels` tiles in
    width. Of the reduced variable number `split_at`, `split` values are summed at a time.
    """

    vectors: int
    tile_at: int
    tile: int
    block_at: int = 0
    block: int = 1
    panels: int = 1
    split_at: int = 0
    split: int = 0  # 0: all at once
    copy_a: str = ""  # "", "window" (as in memory, padded), "tiles" or "dense"
    copy_b: str = ""  # "", "shared" (once, by all threads) or "block" (for each piece of work)
    unroll: int = 1
    prefetch_steps: int = 0  # how many steps of the sum before they are used columns are fetched
    prefetch_panels: int = 0  # how many panels before they are used columns are fetched
    dots: bool = False  # vectors along the last reduced variable; `vectors` counts columns
    matrix: bool = False  # tiles of 16 by 16 sums on the matrix unit of the processor
    outputs: int = 0  # of a Winograd tile (`Blocks`), along each axis; 0: none is

    @property
    def summary(self) -> str:
        """What matters of it, for readers."""
        unit = "columns" if self.dots else "tiles" if self.matrix else "vectors"
        parts = [f"tile {self.tile}x{self.vectors} {unit}", f"piece {self.block}x{self.panels}"]
        named = {"split": self.split, "a": self.copy_a, "b": self.copy_b}
        named |= {"prefetch_steps": self.prefetch_steps, "prefetch_panels": self.prefetch_panels}
        return ", ".join([*parts, *(f"{name} {value}" for name, value in named.items() if value)])


@dataclass(frozen=True)
class Setting:
    """A form, the target, and facts about the form that decisions need."""

    form: Form
    target: CpuTarget

    @cached_property
    def lanes(self) -> int:
        """How many elements a vector holds."""
        return self.target.vector_bytes // self.itemsize

    @cached_property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return np.dtype(self.form.kernel.dtype).itemsize

    @cached_property
    def row_extents(self) -> list[int]:
        """The extents of the rows (a guess where they are dynamic), at least 1."""
        return [max(1, int(v.extent)) for v in self.form.rows]

    @cached_property
    def reduced_extents(self) -> list[int]:
        """The extents of the reduced variables, at least 1."""
        return [max(1, int(v.extent)) for v in self.form.reduced]

    @cached_property
    def columns(self) -> int:
        """The extent of the lane, at least 1."""
        return max(1, int(self.form.lane.extent))

    @cached_property
    def height(self) -> int:
        """How many rows there are."""
        return prod(self.row_extents)

    @cached_property
    def depth(self) -> int:
        """How many products a sum has."""
        return prod(self.reduced_extents)

    @cached_property
    def outer(self) -> int:
        """How many contractions of rows and columns there are."""
        return prod(max(1, int(v.extent)) for v in self.form.outer)

    @cached_property
    def is_plain_a(self) -> bool:
        """Whether the rows' factor is an element of its own type at an affine place."""
        return is_plain(self.form.kernel.a, self.form.kernel.dtype)

    @cached_property
    def costs(self) -> dict[Schedule, float]:
        """What schedules cost, as far as they have been looked at."""
        return {}

    @cached_property
    def _packings(self) -> dict[tuple[str, int, int], Packing | None]:
        return {}

    def packing_of_a(self, made: Schedule) -> Packing | None:
        """The layout of the packed rows' factor, if it is packed."""
        if not made.copy_a:
            return None
        key = made.copy_a, made.tile_at, made.tile
        if key not in self._packings:
            self._packings[key] = packing_of_a(self.form, made)
        return self._packings[key]

    def width(self, made: Schedule) -> int:
        """How many columns a tile has."""
        return made.vectors if made.dots else made.vectors * self.lanes

    def panels(self, made: Schedule) -> int:
        """How many tiles are side by side."""
        return ceil(self.columns / self.width(made))


# What a schedule spans


def spans_of_rows(form: Form, made: Schedule) -> dict[Variable, int]:
    """How many values of each row variable a piece of work spans."""
    if not form.rows:
        return {}
    at = made.block_at
    return {form.rows[at]: made.block, **{v: int(v.extent) for v in form.rows[at + 1 :]}}


def spans_of_sum(form: Form, made: Schedule) -> dict[Variable, int]:
    """How many values of each reduced variable are summed at a time."""
    at, reduced = made.split_at, form.reduced
    if not made.split:
        return {v: int(v.extent) for v in reduced}
    return {reduced[at]: made.split, **{v: int(v.extent) for v in reduced[at + 1 :]}}


def spans_of_a(setting: Setting, made: Schedule) -> dict[Variable, int]:
    """What a copy of the rows' factor spans."""
    form = setting.form
    lane = {form.lane: made.panels * setting.width(made)} if form.depthwise else {}
    return {**spans_of_rows(form, made), **spans_of_sum(form, made), **lane}


def spans_of_b(setting: Setting, made: Schedule) -> dict[Variable, int]:
    """What packed panels span: everything where they are shared, else those of a piece of work."""
    whole = {v: int(v.extent) for v in setting.form.reduced}
    reduced = whole if made.copy_b == "shared" else spans_of_sum(setting.form, made)
    panels = setting.panels(made) if made.copy_b == "shared" else made.panels
    return {**reduced, setting.form.lane: panels * setting.width(made)}


def last_dynamic(variables: Sequence[Variable]) -> int:
    """The number of the last variable whose extent is not known, or 0."""
    return max((i for i, v in enumerate(variables) if not is_static(v.extent)), default=0)


def even(count: int, parts: int) -> int:
    """The size of about so many equal parts of a count."""
    return ceil(count / min(parts, count))


# How factors are read


def uses(access: Access) -> set[Variable]:
    """The variables that a factor depends on."""
    places = [load.offset for load in loads_of(access.value)]
    places += [offset for _, offset, _ in access.bounds]
    return {v for o in places for v in o.strides} | set(pinned_in(access.value))


def packing_of_a(form: Form, made: Schedule) -> Packing | None:
    """The layout of the packed rows' factor."""
    access = form.kernel.a
    inner = [*form.rows, *form.reduced, *([form.lane] if form.depthwise else [])]
    used = _used_in(access)
    variables = [v for v in inner if v in used]
    if made.copy_a == "dense":
        return dense(access, variables)
    packing = windowed(access, variables)
    if made.copy_a != "tiles" or packing is None:
        return packing
    rows = form.rows[made.tile_at]
    alone = any(axis.coordinate is rows for axis in packing.axes)
    return tiled(packing, rows, made.tile) if alone and is_static(rows.extent) else None


def packing_of_b(setting: Setting, made: Schedule) -> Packing:
    """Panels of the columns' factor, zero beyond the last column."""
    form, access = setting.form, setting.form.kernel.b
    used = _used_in(access)
    whole = dense(access, [*(v for v in form.reduced if v in used), form.lane])
    return tiled(whole, form.lane, setting.width(made), along_columns(setting))


def _used_in(access: Access) -> set[Variable]:
    """The variables a factor depends on, in computed places too."""
    found = uses(access)
    for load in loads_of(access.value):
        for part in load.offset.parts:
            found |= uses(Access(part))
    return found


def is_plain(access: Access, dtype: Any) -> bool:
    """Whether a factor is an element of its own type at an affine place."""
    if not isinstance(access.value, Load):
        return False
    argument, offset = argument_of(access)
    return offset.is_plain and np.dtype(argument.dtype) == np.dtype(dtype)


def range_of(form: Form, offset: Affine, covered: Sequence[Variable]) -> Variable | None:
    """The one reduced variable that a bound limits, for the same range in all rows of a tile."""
    variables = list(offset.strides)
    limited = [v for v in variables if v in form.reduced]
    if len(limited) != 1 or not set(covered).isdisjoint(variables) or form.lane in variables:
        return None
    if not offset.is_plain or not is_static(offset.factor(limited[0])):
        return None
    return limited[0]


def direct_a(form: Form, made: Schedule) -> bool:
    """Whether the rows' factor can be read where it lies."""
    access = form.kernel.a
    if not is_plain(access, form.kernel.dtype):
        return False
    if argument_of(access)[1].factor(form.lane) != int(form.depthwise):
        return False
    alone = made.tile == 1 and made.tile_at == len(form.rows) - 1
    covered = () if alone else form.rows[made.tile_at :]
    limited = [range_of(form, offset, covered) for _, offset, _ in access.bounds]
    return None not in limited and len(set(limited)) == len(limited)


def direct_b(setting: Setting) -> bool:
    form = setting.form
    access = form.kernel.b
    masked = setting.columns % setting.lanes or not is_static(form.lane.extent)
    if not is_plain(access, form.kernel.dtype) or access.bounds:
        return False
    if argument_of(access)[1].factor(form.lane) != 1:
        return False
    return not masked or setting.target.has_masks


def along_columns(setting: Setting) -> bool:
    """Whether columns lie side by side in their factor."""
    loads = loads_of(setting.form.kernel.b.value)
    return all(load.offset.factor(setting.form.lane) == 1 for load in loads)


def tile_height(setting: Setting, made: Schedule) -> int:
    """How many rows a tile has."""
    return made.tile * prod(setting.row_extents[made.tile_at + 1 :])


def tile_cost(setting: Setting, made: Schedule) -> float:
    """The cycles of all tiles: multiplications, loads or latency, whichever is slowest."""
    extents = setting.row_extents
    before = prod(extents[: made.tile_at])
    along = extents[made.tile_at] if extents else 1
    inner = prod(extents[made.tile_at + 1 :])
    whole, rest = divmod(along, made.tile)
    heights = [(whole, made.tile * inner), (1 if rest else 0, rest * inner)]
    vectors = ceil(setting.columns / setting.lanes)
    widths = [(vectors // made.vectors, made.vectors), (1, vectors % made.vectors)]
    total = sum(
        rows * columns * _tile_cycles(setting, height, width)
        for rows, height in heights
        for columns, width in widths
        if height and width
    )
    return before * total


def _tile_cycles(setting: Setting, height: int, width: int) -> float:
    """A step multiplies, loads, waits for sums, or for columns that come from the second cache."""
    products = height * width
    loads = width + (products if setting.form.depthwise else height)
    panel = setting.depth * width * setting.target.vector_bytes
    distant = width * 2.5 if panel > setting.target.l1 / 2 else 0
    step = max(products / 2, loads * 0.6, distant, 4 if products < 8 else 0) + distant / 8
    conflicts = (
        1.25 if height > (8 if width > 1 else 9) and crowded(setting, setting.form.rows[-1:]) else 1
    )
    return setting.depth * step * conflicts + 10 + 3 * height + 2 * products


def crowded(setting: Setting, variables: Sequence[Variable]) -> bool:
    """Whether elements along a variable of `a` fall into the same few lines of the first cache."""
    return _crowds(setting, setting.form.kernel.a, variables)


def crowded_columns(setting: Setting) -> bool:
    """Whether the rows of `b` fall into the same few lines of the first cache."""
    return _crowds(setting, setting.form.kernel.b, setting.form.reduced[-1:])


def _crowds(setting: Setting, access: Access, variables: Sequence[Variable]) -> bool:
    if not is_plain(access, setting.form.kernel.dtype):
        return False
    factors = [int(argument_of(access)[1].factor(variable)) for variable in variables]
    return any(factor and factor * setting.itemsize % 4096 == 0 for factor in factors)


# What it costs, in cycles: per element copied in order or transposed; bytes per cycle from the
# second cache, from beyond it in order, and from beyond it a few lines at a time. What is packed
# comes in time for the products that need it, or nearly.
_COPY, _TRANSPOSE, _NEAR, _FAR, _SCATTERED = 0.5, 1.5, 32.0, 5.0, 1.5
_PACKED, _SHARED = 40.0, 10.0


@dataclass(eq=False)
class Work:
    """The numbers of a schedule that its cost depends on."""

    setting: Setting
    made: Schedule

    def __post_init__(self) -> None:
        setting, made = self.setting, self.made
        rows, products = spans_of_rows(setting.form, made), spans_of_sum(setting.form, made)
        #: rows and columns of a piece of work
        self.rows = min(setting.height, prod(rows.values()))
        self.columns = min(setting.columns, made.panels * setting.width(made))
        #: products that are summed at a time, and how often sums go on
        self.depth = min(setting.depth, prod(products.values()))
        self.blocks = ceil(setting.depth / max(self.depth, 1))
        across = ceil(setting.columns / self.columns)
        self.pieces = setting.outer * ceil(setting.height / self.rows) * across

    @cached_property
    def bytes_a(self) -> int:
        """What a block of the sum reads of the rows' factor."""
        setting, made = self.setting, self.made
        packing = setting.packing_of_a(made if made.copy_a else replace(made, copy_a="window"))
        if packing is None:
            return self.rows * self.depth * setting.itemsize
        spans = spans_of_a(setting, made)
        if not made.copy_a and _strided(setting, made):  # whole lines, and few sets of a cache
            rows = setting.form.rows[made.tile_at]
            spans[rows] = max(int(rows.extent), spans.get(rows, 1))
        return packing.size(spans) * setting.itemsize

    @property
    def strided_b(self) -> bool:
        """Whether the rows of a panel lie apart."""
        return not self.made.copy_b and self.setting.columns > self.setting.width(self.made)

    @cached_property
    def panel_b(self) -> int:
        """What a panel occupies of the caches: that of neighbours too, if rows lie apart."""
        width = self.setting.columns if self.strided_b else self.setting.width(self.made)
        return self.depth * width * self.setting.itemsize

    @cached_property
    def bytes_b(self) -> int:
        """What lies in the second cache while a block of the sum is computed."""
        if self.made.copy_b != "block":
            return self.panel_b
        return self.depth * self.columns * self.setting.itemsize

    def cost(self) -> float:
        """The cycles of the whole kernel, as far as blocks decide about them."""
        setting = self.setting
        sums = setting.outer * setting.height * setting.columns
        products = sums * setting.depth / (2 * setting.lanes)
        copies, reads = self._copies(), self._reads_a() + self._reads_b()
        writes = max(0.0, self._writes(sums) - products / 2)
        every = products * (1 + self._waits()) + copies + reads + self._partials(sums) + writes
        return every * self.imbalance + 300 * self.pieces * self.blocks

    @cached_property
    def imbalance(self) -> float:
        """How much longer the busiest thread works than the average: of two, or of all cores."""
        weights = self._weights()
        return (2 * imbalance_of(weights, 2) + imbalance_of(weights, self.setting.target.cores)) / 3

    def _weights(self) -> list[int]:
        """The work in every piece, in order; of many pieces, in as many equal ones."""
        setting, made = self.setting, self.made
        if self.pieces > 32 * setting.target.cores:
            return [1] * self.pieces
        rows = [1]
        if setting.row_extents:
            rows = chunks(setting.row_extents[made.block_at], made.block)
        across = chunks(setting.columns, made.panels * setting.width(made))
        again = setting.outer * prod(setting.row_extents[: made.block_at])
        return [height * width for height in rows for width in across] * again

    def _copies(self) -> float:
        setting, made, cycles = self.setting, self.made, 0.0
        if made.copy_a:
            each = _COPY if made.copy_a != "tiles" or _strided(setting, made) else _TRANSPOSE
            size = self.pieces * self.blocks * self.bytes_a
            far = 1.5 if self.bytes_a > 0.7 * setting.target.l2 else 1.0
            cycles += size * (each / setting.itemsize + far * (made.copy_a == "tiles") / _FAR)
        if made.copy_b:
            each = _COPY if along_columns(setting) else _TRANSPOSE
            again = self.pieces if made.copy_b == "block" else 1
            columns = self.columns if made.copy_b == "block" else setting.columns
            cycles += each * again * columns * setting.depth
            cycles += self._far_b() if made.copy_b == "shared" else 0.0
        return cycles

    def _far_b(self) -> float:
        """What it takes to get the columns' factor from afar, and packed back there."""
        size = self.setting.columns * self.setting.depth * self.setting.itemsize
        return 0.0 if size < self.setting.target.l2 / 2 else 0.8 * size / _FAR

    def _reads_a(self) -> float:
        """Each panel, and each row that shares elements, reads it again: nearby if all fits."""
        setting, made = self.setting, self.made
        width = setting.width(made) * setting.itemsize
        partial = self.rows * width if self.blocks > 1 else 0
        if self.bytes_a + self.bytes_b + partial < 0.7 * setting.target.l2:
            return self.pieces * self.blocks * self.bytes_a / _FAR
        rate = _SCATTERED if not made.copy_a and _strided(setting, made) else _FAR
        rate = _PACKED if made.copy_a == "tiles" else rate
        panels = ceil(self.columns / setting.width(made))
        return self.pieces * self.rows * setting.depth * setting.itemsize * panels / rate

    def _reads_b(self) -> float:
        """Each piece of work reads it from afar, each tile of rows again."""
        setting, size = self.setting, self.setting.itemsize
        small = setting.columns * setting.depth * size < setting.target.l2 / 2
        prefetched = self.made.prefetch_steps > 0
        rate = _SCATTERED if self.strided_b and self.depth > 96 and not prefetched else _FAR
        rate = _SHARED if self.made.copy_b == "shared" else rate
        bytes_of_pieces = self.pieces * self.columns * setting.depth * size
        tiles = ceil(self.rows / max(1, tile_height(setting, self.made)))
        fits = self.panel_b < (0.8 if self.strided_b else 0.4) * setting.target.l2
        again = 0.0 if fits else bytes_of_pieces * (tiles - 1) / _FAR
        return bytes_of_pieces / (_NEAR if small else rate) + again

    def _waits(self) -> float:
        """How much longer products take where the first cache does not hold what they use."""
        setting, made, lines = self.setting, self.made, 0.0
        height, first = tile_height(setting, made), 0.7 * setting.target.l1
        width = setting.width(made) * setting.itemsize
        far_b = self.panel_b > first and self.rows > height
        strided = not made.copy_a and _strided(setting, made)
        lines += width if far_b else 0
        lines += 64 * ceil(height * setting.itemsize / 64 + 0.5) if strided else height * 4
        step = height * made.vectors / 2
        waits = max(0.0, lines / 24 - step) / step + 0.05 * far_b + 0.04 * self.strided_b
        return waits + (self._jumps() if strided else 0.0)

    def _jumps(self) -> float:
        """How long products wait where every step of a sum needs other lines, far apart."""
        setting = self.setting
        argument, offset = argument_of(setting.form.kernel.a)
        step = int(offset.factor(setting.form.reduced[-1])) if setting.form.reduced else 0
        near = int(argument.size) * setting.itemsize <= setting.target.l2 / 2
        if near or abs(step) * setting.itemsize < 1024:
            return 0.0
        return 0.45 * max(0.0, self.depth * 128 / setting.target.l1 - 0.45)

    def _writes(self, sums: int) -> float:
        """A large result is written in order only if few rows are in the making at a time."""
        setting, size = self.setting, self.setting.itemsize
        if sums * size < setting.target.l2:
            return 0.0
        few = self.rows <= 2 * tile_height(setting, self.made) or setting.columns * size <= 4096
        return sums * size / (_FAR if few else _SCATTERED)

    def _partials(self, sums: int) -> float:
        if self.blocks == 1:
            return 0.0
        size = self.setting.itemsize
        fits = self.rows * self.columns * size < self.setting.target.l2 / 2
        return 2 * sums * self.blocks * size / (_NEAR if fits else _FAR)


def _strided(setting: Setting, made: Schedule) -> bool:
    """Whether rows lie side by side, so that sums jump from line to line."""
    form = setting.form
    if not form.rows or not setting.is_plain_a:
        return False
    return argument_of(form.kernel.a)[1].factor(form.rows[made.tile_at]) == 1


def chunks(extent: int, size: int) -> list[int]:
    """The lengths of the chunks of a size that cover an extent."""
    return [min(size, extent - start) for start in range(0, extent, size)]


def imbalance_of(weights: Sequence[int], threads: int) -> float:
    """How much longer the busiest of some threads works than the average."""
    ends = [len(weights) * thread // threads for thread in range(threads + 1)]
    shares = [sum(weights[start:end]) for start, end in pairwise(ends)]
    return max(shares) * threads / max(sum(weights), 1)
