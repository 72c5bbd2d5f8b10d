"""How a contraction is cut into register tiles, blocks and pieces of work: the cost model.

What comes in is the form of a contraction and the target; what goes out is a `Schedule`, plain
numbers that the generator obeys. `schedules` lists others that are worth measuring.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, prod
from typing import Any

import numpy as np

from thalweg.codegen.contraction_form import (
    Form,
    NotContraction,
    argument_of,
    form_of,
    is_static,
    loads_of,
    pinned_in,
    plain,
    variables_of,
)
from thalweg.codegen.machine import Target
from thalweg.codegen.packing import Packing, dense, tiled, windowed
from thalweg.loops.kernel import Access, Contraction, Offset
from thalweg.loops.loop import Variable

#: How many threads have scratch memory of their own; more than these do not work on one kernel.
SLOTS = min(64, max(4, os.cpu_count() or 4))


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
    dots: bool = False  # vectors along the last reduced variable; `vectors` counts columns


@dataclass(frozen=True)
class Setting:
    """A form, the target, and facts about the form that decisions need."""

    form: Form
    target: Target

    @property
    def lanes(self) -> int:
        """How many elements a vector holds."""
        return self.target.vector_bytes // self.itemsize

    @property
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

    @property
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
    def _packings(self) -> dict[tuple[str, int, int], Packing | None]:
        return {}

    def packing_of_a(self, made: Schedule) -> Packing | None:
        """How a copy of the rows' factor looks, if there is one."""
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


# How factors are read


def uses(access: Access) -> set[Variable]:
    """The variables that a factor depends on."""
    places = [load.arguments[1] for load in loads_of(access.value)]
    places += [offset for _, offset, _ in access.bounds]
    return {v for o in places for v in variables_of(o)} | set(pinned_in(access.value))


def packing_of_a(form: Form, made: Schedule) -> Packing | None:
    """How a copy of the rows' factor looks."""
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
    alone = any(axis.parts == ((1, rows),) for axis in packing.axes)
    return tiled(packing, rows, made.tile) if alone and is_static(rows.extent) else None


def packing_of_b(setting: Setting, made: Schedule) -> Packing:
    """Panels of the columns' factor, zero beyond the last column."""
    form, access = setting.form, setting.form.kernel.b
    used = _used_in(access)
    whole = dense(access, [*(v for v in form.reduced if v in used), form.lane])
    return tiled(whole, form.lane, setting.width(made), packing_of_b_is_along(setting))


def _used_in(access: Access) -> set[Variable]:
    """The variables a factor depends on, in computed places too."""
    found = uses(access)
    for load in loads_of(access.value):
        for _, term in load.arguments[1].terms:
            if not isinstance(term, Variable):
                found |= uses(Access(term))
    return found


def is_plain(access: Access, dtype: Any) -> bool:
    """Whether a factor is an element of its own type at an affine place."""
    if access.value.function != "load":
        return False
    argument, offset = argument_of(access)
    return plain(offset) and np.dtype(argument.dtype) == np.dtype(dtype)


def range_of(form: Form, offset: Offset, covered: Sequence[Variable]) -> Variable | None:
    """The one reduced variable that a bound limits, for the same range in all rows of a tile."""
    variables = variables_of(offset)
    limited = [v for v in variables if v in form.reduced]
    if len(limited) != 1 or not set(covered).isdisjoint(variables) or form.lane in variables:
        return None
    if not plain(offset) or not is_static(offset.factor(limited[0])):
        return None
    return limited[0]


def _direct_a(form: Form, made: Schedule) -> bool:
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


def _direct_b(setting: Setting) -> bool:
    form = setting.form
    access = form.kernel.b
    masked = setting.columns % setting.lanes or not is_static(form.lane.extent)
    if not is_plain(access, form.kernel.dtype) or access.bounds:
        return False
    if argument_of(access)[1].factor(form.lane) != 1:
        return False
    return not masked or setting.target.has_masks


# Choices


def schedule(kernel: Contraction, target: Target) -> Schedule:
    """The schedule that the cost model likes best."""
    return best(Setting(form_of(kernel), target))


def schedules(kernel: Contraction, target: Target) -> list[Schedule]:
    """Schedules worth measuring, the likely ones first."""
    setting = Setting(form_of(kernel), target)
    ranked = sorted(_tiles(setting), key=lambda tile: tile_cost(setting, tile))
    return [_blocked(setting, tile) for tile in ranked[:6]]


def best(setting: Setting) -> Schedule:
    """The schedule with the least expected time."""
    if dots := _dots(setting):
        return dots
    return _blocked(setting, min(_tiles(setting), key=lambda tile: tile_cost(setting, tile)))


def check(form: Form, made: Schedule) -> None:
    """Refuse what the generator cannot do: copies of several sizes unknown until run time."""
    rows, reduced = form.rows[made.block_at + 1 :], form.reduced[made.split_at + 1 :]
    if (made.copy_a or made.split) and any(not is_static(v.extent) for v in rows):
        raise NotContraction("rows of several dynamic extents in a copy")
    if (made.copy_a or made.copy_b) and any(not is_static(v.extent) for v in reduced):
        raise NotContraction("sums over several dynamic extents in a copy")


# Register tiles


def _tiles(setting: Setting) -> Iterator[Schedule]:
    """Every tile whose sums fit in the registers."""
    for vectors in range(1, 9):
        if vectors > 1 and vectors * setting.lanes >= setting.columns + setting.lanes:
            return
        room = max(1, (setting.target.registers - 1 - vectors) // vectors)
        yield from _tiles_of(setting, vectors, room)


def _tiles_of(setting: Setting, vectors: int, room: int) -> Iterator[Schedule]:
    extents, inner = setting.row_extents, 1
    if not extents:
        yield Schedule(vectors, 0, 1)
    for at in reversed(range(len(extents))):
        dynamic = not is_static(setting.form.rows[at].extent)
        most = room // inner if dynamic else min(room // inner, extents[at])
        yield from (Schedule(vectors, at, rows) for rows in range(1, most + 1))
        inner *= extents[at]
        if dynamic or inner > room:
            return


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
    crowded = 1.25 if height > 8 and _crowded(setting, setting.form.rows[-1:]) else 1
    return setting.depth * step * crowded + 10 + 3 * height + 2 * products


def _crowded(setting: Setting, variables: Sequence[Variable]) -> bool:
    """Whether elements along a variable of `a` fall into the same few lines of the first cache."""
    kernel = setting.form.kernel
    if not is_plain(kernel.a, kernel.dtype):
        return False
    factors = [int(argument_of(kernel.a)[1].factor(variable)) for variable in variables]
    return any(factor and factor * setting.itemsize % 4096 == 0 for factor in factors)


# Dot products


def _dots(setting: Setting) -> Schedule | None:
    """Few rows whose sums run along memory in both factors need no packing."""
    form = setting.form
    if not form.reduced or form.depthwise or not _dot_factors(form):
        return None
    if _direct_b(setting) and setting.columns > 1:
        return None
    if setting.height > 32 and setting.columns > 1:
        return None
    columns = 1 if setting.columns == 1 else min(8 if setting.height == 1 else 4, setting.columns)
    room = (setting.target.registers - 2) // columns - 1
    rows = [] if not form.rows else [form.rows[-1]]
    tile = min(max(1, min(room, 6)), *(max(1, int(v.extent)) for v in rows), 6)
    at = max(0, len(form.rows) - 1)
    made = Schedule(columns, at, tile, dots=True, unroll=max(1, 8 // (tile * columns)))
    if not _direct_a(form, made):
        made = replace(made, copy_a="window")
        packing = packing_of_a(form, made)
        if packing is None or packing.axes[-1].parts != ((1, form.reduced[-1]),):
            return None
        if _has_dynamic_window(packing):
            return None
    return _with_pieces(setting, made)


def _dot_factors(form: Form) -> bool:
    hot, kernel = form.reduced[-1], form.kernel
    if not all(is_plain(side, kernel.dtype) for side in (kernel.a, kernel.b)) or kernel.b.bounds:
        return False
    if not is_static(hot.extent) or not is_static(form.lane.extent):
        return False
    return all(argument_of(side)[1].factor(hot) == 1 for side in (kernel.a, kernel.b))


# Blocks


def _blocked(setting: Setting, tile: Schedule) -> Schedule:
    """The tile with the blocks, copies and pieces of work of least cost."""
    small = tile.vectors * tile_height(setting, tile)
    made = replace(tile, unroll=max(1, 8 // small))
    first, *others = _copies_of_a(setting, made)
    splits = [
        _with_pieces(setting, split) for split in _splits(setting, replace(made, copy_a=first))
    ]
    likely = _cheapest(setting, splits)
    copies = (_with_pieces(setting, replace(likely, copy_a=copy)) for copy in others)
    return _cheapest(setting, [likely, *copies])


def _cheapest(setting: Setting, choices: Iterable[Schedule]) -> Schedule:
    return min(choices, key=lambda choice: _Work(setting, choice).cost())


def _copies_of_a(setting: Setting, made: Schedule) -> list[str]:
    form = setting.form
    direct = [""] if _direct_a(form, made) else []
    inner = form.rows[made.tile_at + 1 :]
    tiles = []
    if form.rows and not inner and not form.depthwise and made.tile > 1:
        packing = setting.packing_of_a(replace(made, copy_a="tiles"))
        loads = [load.arguments[1] for load in loads_of(form.kernel.a.value)]
        near = any(o.factor(form.rows[made.tile_at]) == 1 for o in loads)
        tiles = ["tiles"] if packing and near and not _has_dynamic_window(packing) else []
    if tiles and _crowded(setting, form.reduced[-1:]):
        return tiles
    return direct or tiles or [_copy_kind(form)]


def _copy_kind(form: Form) -> str:
    packing = packing_of_a(form, Schedule(1, 0, 1, copy_a="window"))
    if packing is None or _has_dynamic_window(packing):
        return "dense"
    lane_last = packing.axes and packing.axes[-1].coordinate is form.lane
    return "window" if not form.depthwise or lane_last else "dense"


def _has_dynamic_window(packing: Packing) -> bool:
    return any(
        not is_static(v.extent) for axis in packing.axes if axis.beyond for _, v in axis.parts
    )


def _last_dynamic(variables: Sequence[Variable]) -> int:
    """The number of the last variable whose extent is not known, or 0."""
    return max((i for i, v in enumerate(variables) if not is_static(v.extent)), default=0)


def _splits(setting: Setting, made: Schedule) -> Iterator[Schedule]:
    """Ways to cut long sums; all at once only where the extents are known."""
    dynamic = any(not is_static(v.extent) for v in setting.form.reduced)
    if not dynamic:
        yield made
    few = setting.height < 64  # columns are then read in order, a few rows of them at a time
    for most in (2048, 512, 256, *((64,) if few else ())):
        if dynamic or setting.depth > most * 1.3:
            yield _split(setting, made, most)


def _split(setting: Setting, made: Schedule, most: int) -> Schedule:
    """Sum at most about so many products at a time."""
    form, extents = setting.form, setting.reduced_extents
    at = _last_dynamic(form.reduced)
    while at < len(extents) - 1 and prod(extents[at + 1 :]) > most:
        at += 1
    size = max(1, most // prod(extents[at + 1 :]))
    if is_static(form.reduced[at].extent):
        size = ceil(extents[at] / ceil(extents[at] / size))
    return replace(made, split_at=at, split=size)


def _with_pieces(setting: Setting, made: Schedule) -> Schedule:
    """Pieces of work of the least cost: rows first, then how many columns go with them."""
    *_, copied = copies = _copies_of_b(setting, made)
    whole = replace(made, panels=setting.panels(made), copy_b=copied)
    likely = _cheapest(setting, _row_blocks(setting, whole))
    pieces = (
        replace(likely, panels=panels, copy_b=copy)
        for panels in _column_blocks(setting, made)
        for copy in copies
    )
    return _cheapest(setting, _row_blocks_of(setting, _cheapest(setting, pieces)))


def _row_blocks_of(setting: Setting, made: Schedule) -> Iterator[Schedule]:
    yield made
    yield from _row_blocks(setting, made)


def _row_blocks(setting: Setting, made: Schedule) -> Iterator[Schedule]:
    """Blocks of about so many rows, in whole tiles."""
    form, extents = setting.form, setting.row_extents
    if not extents:
        yield made
        return
    first = _last_dynamic(form.rows)
    seen: set[tuple[int, int]] = set()
    for wanted in (1 << 30, 4096, 1024, 512, 256, 128, 64, 1):
        at = first
        while at < made.tile_at and prod(extents[at + 1 :]) > wanted:
            at += 1
        inner = prod(extents[at + 1 :])
        step = made.tile if at == made.tile_at else 1
        size = max(step, min(wanted // inner, extents[at] + step - 1) // step * step)
        if is_static(form.rows[at].extent):
            count = ceil(extents[at] / size)
            size = ceil(ceil(extents[at] / count) / step) * step
        if (at, size) not in seen:
            seen.add((at, size))
            yield replace(made, block_at=at, block=size)


def _column_blocks(setting: Setting, made: Schedule) -> Iterator[int]:
    panels = setting.panels(made)
    yield from sorted({ceil(panels / parts) for parts in (1, 2, 4, 8)}, reverse=True)


def _copies_of_b(setting: Setting, made: Schedule) -> list[str]:
    """Whether and when the columns' factor may be packed."""
    form = setting.form
    if made.dots:
        return [""]
    direct = [""] if _direct_b(setting) else []
    outer = [v for v in form.outer if v in uses(form.kernel.b)]
    fixed = all(is_static(v.extent) for v in (form.lane, *form.reduced, *outer))
    return [*direct, "shared" if fixed and not outer and not made.split else "block"]


# What it costs, in cycles: per element copied in order or turned; bytes per cycle from the second
# cache, from beyond it in order, and from beyond it a few lines at a time.
_COPY, _TURN, _NEAR, _FAR, _SCATTERED = 0.5, 1.5, 32.0, 5.0, 1.5


@dataclass(frozen=True)
class _Work:
    """The numbers of a schedule that its cost depends on."""

    setting: Setting
    made: Schedule

    @cached_property
    def rows(self) -> int:
        """Rows of a piece of work."""
        return min(self.setting.height, prod(spans_of_rows(self.setting.form, self.made).values()))

    @cached_property
    def columns(self) -> int:
        """Columns of a piece of work."""
        return min(self.setting.columns, self.made.panels * self.setting.width(self.made))

    @cached_property
    def depth(self) -> int:
        """Products that are summed at a time."""
        return min(self.setting.depth, prod(spans_of_sum(self.setting.form, self.made).values()))

    @cached_property
    def blocks(self) -> int:
        """How often sums go on."""
        return ceil(self.setting.depth / max(self.depth, 1))

    @cached_property
    def pieces(self) -> int:
        """Pieces of work."""
        across = ceil(self.setting.columns / self.columns)
        return self.setting.outer * ceil(self.setting.height / self.rows) * across

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
        return every * _imbalance(self.pieces) + 300 * self.pieces * self.blocks

    def _copies(self) -> float:
        setting, made, cycles = self.setting, self.made, 0.0
        if made.copy_a:
            each = _TURN if made.copy_a == "tiles" else _COPY
            cycles += each * self.pieces * self.blocks * self.bytes_a / setting.itemsize
        if made.copy_b:
            each = _COPY if packing_of_b_is_along(setting) else _TURN
            again = self.pieces if made.copy_b == "block" else 1
            columns = self.columns if made.copy_b == "block" else setting.columns
            cycles += each * again * columns * setting.depth
        return cycles

    def _reads_a(self) -> float:
        """Each panel, and each row that shares elements, reads it again: nearby if all fits."""
        setting, made = self.setting, self.made
        width = setting.width(made) * setting.itemsize
        partial = self.rows * width if self.blocks > 1 else 0
        if self.bytes_a + self.bytes_b + partial < 0.7 * setting.target.l2:
            return self.pieces * self.blocks * self.bytes_a / _FAR
        rate = _SCATTERED if not made.copy_a and _strided(setting, made) else _FAR
        panels = ceil(self.columns / setting.width(made))
        return self.pieces * self.rows * setting.depth * setting.itemsize * panels / rate

    def _reads_b(self) -> float:
        """Each piece of work reads it from afar, each tile of rows again."""
        setting, size = self.setting, self.setting.itemsize
        small = setting.columns * setting.depth * size < setting.target.l2 / 2
        rate = _SCATTERED if self.strided_b and self.depth > 96 else _FAR
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
        return max(0.0, lines / 24 - step) / step + 0.05 * far_b + 0.04 * self.strided_b

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


def packing_of_b_is_along(setting: Setting) -> bool:
    """Whether columns lie side by side in the factor that is packed."""
    loads = loads_of(setting.form.kernel.b.value)
    return all(load.arguments[1].factor(setting.form.lane) == 1 for load in loads)


def _strided(setting: Setting, made: Schedule) -> bool:
    """Whether rows lie side by side, so that sums jump from line to line."""
    form = setting.form
    if not form.rows or not is_plain(form.kernel.a, form.kernel.dtype):
        return False
    return argument_of(form.kernel.a)[1].factor(form.rows[made.tile_at]) == 1


def _imbalance(pieces: int) -> float:
    """How much longer the busiest of two or four threads works than the average."""
    shares = [ceil(pieces / threads) * threads / max(pieces, 1) for threads in (2, 2, 2, 4)]
    return sum(shares) / len(shares)
