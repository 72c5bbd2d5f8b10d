"""The choice of a schedule: the tile, the blocks and the copies that cost least.

What comes in is a contraction and the target; what goes out is a `Schedule`, or a list of those
that are worth measuring.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import ceil, prod
from typing import Any

from thalweg.codegen.contraction.amx import matrix_schedule
from thalweg.codegen.contraction.form import Form, NotContraction, argument_of, form_of, loads_of
from thalweg.codegen.contraction.packing import Packing
from thalweg.codegen.contraction.schedule import (
    Schedule,
    Setting,
    Work,
    crowded,
    crowded_columns,
    direct_a,
    direct_b,
    even,
    is_plain,
    last_dynamic,
    packing_of_a,
    tile_cost,
    tile_height,
    uses,
)
from thalweg.codegen.machine import CpuTarget
from thalweg.codegen.winograd.plan import filtered, filtered_otherwise
from thalweg.ir.dynamic import is_static
from thalweg.ir.kernel import Contraction

# Choices


def schedule(kernel: Contraction, target: CpuTarget) -> Schedule:
    """The schedule that the cost model likes best."""
    return filtered(kernel, target) or best(Setting(form_of(kernel), target))


def schedules(kernel: Contraction, target: CpuTarget) -> list[Schedule]:
    """Schedules worth measuring, the likely ones first."""
    setting = Setting(form_of(kernel), target)
    ranked = sorted(_tiles(setting), key=lambda tile: tile_cost(setting, tile))
    tiles = [*_widths(ranked, 4), *ranked[:4]]
    likely, dots = best(setting), _dots(setting)
    others = [*(_blocked(setting, tile) for tile in tiles), *([dots] if dots else [])]
    first = filtered(kernel, target)
    return [*([first] if first else []), likely, *_as_even(setting, likely, others)]


def neighbours(kernel: Contraction, target: CpuTarget, made: Schedule) -> list[Schedule]:
    """Schedules that differ from one in one respect."""
    if made.outputs:
        return filtered_otherwise(kernel, target, made)
    setting = Setting(form_of(kernel), target)
    changes = _resized(setting, made)
    if not made.dots and not made.matrix:
        changes += _copied(setting, made)
    return _as_even(setting, made, [replace(made, **change) for change in changes])


def _as_even(setting: Setting, made: Schedule, others: Iterable[Schedule]) -> list[Schedule]:
    """Other schedules that keep all threads busy: clocks of a busy machine may not tell."""
    most = max(1.3, Work(setting, made).imbalance)
    distinct = (other for other in dict.fromkeys(others) if other != made)
    return [other for other in distinct if Work(setting, other).imbalance <= most]


def best(setting: Setting) -> Schedule:
    """The schedule with the least expected time."""
    if made := matrix_schedule(setting) or _dots(setting) or _streamed(setting):
        return made
    ranked = sorted(_tiles(setting), key=lambda tile: tile_cost(setting, tile))
    likely = _blocked(setting, ranked[0])
    if made := _in_place(setting, ranked, likely):
        return made
    if Work(setting, likely).imbalance < 1.25 or tile_cost(setting, likely) < 1e5:
        return likely
    others = [_blocked(setting, tile) for tile in _widths(ranked, 3)]
    return min([likely, *others], key=partial(_whole_cost, setting))


def _widths(ranked: Sequence[Schedule], most: int) -> list[Schedule]:
    """The best tiles of some widths."""
    found: dict[int, Schedule] = {}
    for tile in ranked:
        found.setdefault(tile.vectors, tile)
    return list(found.values())[:most]


def _whole_cost(setting: Setting, made: Schedule) -> float:
    """What a schedule costs, compared with those of other tiles."""
    return Work(setting, made).cost() * tile_cost(setting, made)


def check(form: Form, made: Schedule) -> None:
    """Refuse what the generator cannot do: copies of several sizes unknown until run time."""
    rows, reduced = form.rows[made.block_at + 1 :], form.reduced[made.split_at + 1 :]
    if (made.copy_a or made.split) and any(not is_static(v.extent) for v in rows):
        raise NotContraction("rows of several dynamic extents in a copy")
    if (made.copy_a or made.copy_b) and any(not is_static(v.extent) for v in reduced):
        raise NotContraction("sums over several dynamic extents in a copy")


# Neighbours


def _resized(setting: Setting, made: Schedule) -> list[dict[str, int]]:
    """Larger and smaller pieces of work, and blocks of the sum."""
    form, changes = setting.form, list[dict[str, int]]()
    for panels in (made.panels // 2, made.panels * 2):
        if 1 <= panels <= setting.panels(made):
            changes.append({"panels": panels})
    if form.rows:
        step = made.tile if made.block_at == made.tile_at else 1
        extent = setting.row_extents[made.block_at] + step - 1
        for block in (made.block // 2 // step * step, made.block * 2):
            if step <= block <= max(extent // step * step, step):
                changes.append({"block": block})
    for split in (made.split // 2, made.split * 2):
        if made.split and 1 <= split < setting.reduced_extents[made.split_at]:
            changes.append({"split": split})
    return changes


def _copied(setting: Setting, made: Schedule) -> list[dict[str, Any]]:
    """Other copies of the factors, and columns prefetched earlier or not at all."""
    changes: list[dict[str, Any]] = [{"copy_a": copy} for copy in _copies_of_a(setting, made)]
    for copy in _copies_of_b(setting, made):
        changes.append(
            {"copy_b": copy} | ({} if not copy else {"prefetch_steps": 0, "prefetch_panels": 0})
        )
    if not made.copy_b:
        changes += [{"prefetch_steps": steps, "prefetch_panels": 0} for steps in (0, 4, 8, 16)]
        changes += [{"prefetch_steps": 0, "prefetch_panels": panels} for panels in (2, 4)]
    return [*changes, {"unroll": made.unroll * 2}, {"unroll": max(1, made.unroll // 2)}]


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


# Dot products


def _dots(setting: Setting) -> Schedule | None:
    """Few rows or columns whose sums run along memory in both factors need no packing."""
    form = setting.form
    if not form.reduced or form.depthwise or not _dot_factors(form):
        return None
    if direct_b(setting) and setting.columns > 1:
        return None
    if setting.height > 32 and setting.columns > setting.lanes // 4:
        return None
    columns = 1 if setting.columns == 1 else min(8 if setting.height == 1 else 4, setting.columns)
    room = (setting.target.registers - 2) // columns - 1
    rows = [] if not form.rows else [form.rows[-1]]
    tile = min(max(1, min(room, 6)), *(max(1, int(v.extent)) for v in rows), 6)
    at = max(0, len(form.rows) - 1)
    made = Schedule(columns, at, tile, dots=True, unroll=max(1, 8 // (tile * columns)))
    if not direct_a(form, made):
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


# Few rows


def _streamed(setting: Setting) -> Schedule | None:
    """A few rows times columns that are read where they lie, once, and prefetched.

    Columns that the second cache does not hold are read in order, some rows of them at a time.
    """
    form, size = setting.form, setting.itemsize
    if not _is_plain_product(setting) or not 4 <= setting.height <= 32:
        return None
    wide = [tile for tile in _tiles(setting) if tile.vectors >= 3]
    if not wide:
        return None
    tile = min(wide, key=lambda tile: tile_cost(setting, tile))
    rows = ceil(setting.height / tile.tile) * tile.tile
    made = replace(tile, block=rows, unroll=_unroll(setting, tile))
    if not direct_a(form, made):
        return None
    if _fits(setting):
        return replace(made, panels=even(setting.panels(made), 32), prefetch_steps=8)
    if setting.depth < 64:
        return None
    sums = rows * setting.width(made) * size
    most = max(1, setting.target.l2 // 8 // sums)  # unfinished sums stay near
    parts = max(setting.target.cores, ceil(setting.panels(made) / most))
    panels = even(setting.panels(made), parts)
    return _split(setting, replace(made, panels=panels, prefetch_panels=2), 64)


def _in_place(setting: Setting, ranked: Sequence[Schedule], likely: Schedule) -> Schedule | None:
    """Some hundred rows times columns that are read where they lie, instead of a copy for all.

    All rows are one piece of work, so that each of its columns comes from far away once; copied,
    columns come and go once more. With more rows that is little, and wide tiles cost more.
    """
    if likely.copy_b != "shared" or likely.copy_a or not _is_plain_product(setting):
        return None
    if _fits(setting) or crowded_columns(setting):
        return None
    if not 128 <= setting.height <= 384 or setting.depth < 128:  # measured: up to 18% faster
        return None
    tiles = [tile for tile in _widths(ranked, 6) if tile.vectors in (3, 4)]
    found = [
        _split(setting, replace(tile, block=rows, panels=panels, unroll=2, prefetch_steps=8), 512)
        for tile in tiles
        for rows in [ceil(setting.height / tile.tile) * tile.tile]
        for panels in (2, 1)
    ]
    made = min(found, key=partial(_products_cost, setting), default=None)
    if made is None or not direct_a(setting.form, made):
        return None
    is_close = _products_cost(setting, made) < 1.06 * _products_cost(setting, likely)
    return made if is_close else None


def _is_plain_product(setting: Setting) -> bool:
    """Whether it is one product of two matrices of known sizes, the second as it lies."""
    form = setting.form
    if len(form.rows) != 1 or len(form.reduced) != 1 or form.outer or form.depthwise:
        return False
    fixed = all(is_static(v.extent) for v in (*form.rows, *form.reduced, form.lane))
    return fixed and direct_b(setting)


def _fits(setting: Setting) -> bool:
    """Whether the second cache holds all columns."""
    return setting.depth * setting.columns * setting.itemsize <= 0.75 * setting.target.l2


def _products_cost(setting: Setting, made: Schedule) -> float:
    """What the products of a schedule take, the copies and the way of the data aside."""
    return tile_cost(setting, made) * Work(setting, made).imbalance


def _unroll(setting: Setting, tile: Schedule) -> int:
    """How many steps an iteration of the inner loop takes: several where one has few products."""
    products = tile.vectors * tile_height(setting, tile)
    return 4 if 8 <= products < 12 else max(1, 8 // products)


# Blocks


def _blocked(setting: Setting, tile: Schedule) -> Schedule:
    """The tile with the blocks, copies and pieces of work of least cost."""
    made = replace(tile, unroll=_unroll(setting, tile))
    copies = [replace(made, copy_a=copy) for copy in _copies_of_a(setting, made)]
    splits = [split for copied in copies for split in _splits(setting, copied)]
    return _cheapest(setting, [_with_pieces(setting, split) for split in splits])


def _cheapest(setting: Setting, choices: Iterable[Schedule]) -> Schedule:
    return min(choices, key=lambda choice: _cost(setting, choice))


def _cost(setting: Setting, made: Schedule) -> float:
    cost = setting.costs.get(made)
    if cost is None:
        cost = setting.costs[made] = Work(setting, made).cost()
    return cost


def _copies_of_a(setting: Setting, made: Schedule) -> list[str]:
    form = setting.form
    direct = [""] if direct_a(form, made) else []
    inner = form.rows[made.tile_at + 1 :]
    tiles = []
    if form.rows and not inner and not form.depthwise and made.tile > 1:
        packing = setting.packing_of_a(replace(made, copy_a="tiles"))
        loads = [load.offset for load in loads_of(form.kernel.a.value)]
        near = any(o.factor(form.rows[made.tile_at]) == 1 for o in loads)
        tiles = ["tiles"] if packing and near and not _has_dynamic_window(packing) else []
    if tiles and crowded(setting, form.reduced[-1:]):
        return tiles
    return [*direct, *tiles] or [_copy_kind(form)]


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


def _splits(setting: Setting, made: Schedule) -> Iterator[Schedule]:
    """Ways to cut long sums; all at once only where the extents are known."""
    dynamic = any(not is_static(v.extent) for v in setting.form.reduced)
    if not dynamic:
        yield made
    few = setting.height < 64  # columns are then read in order, a few rows of them at a time
    far = direct_b(setting) and _is_far(setting)
    for most in (2048, 512, 256, *((128,) if far else ()), *((64,) if few else ())):
        if dynamic or setting.depth > most * 1.3:
            yield _split(setting, made, most)


def _split(setting: Setting, made: Schedule, most: int) -> Schedule:
    """Sum at most about so many products at a time."""
    form, extents = setting.form, setting.reduced_extents
    at = last_dynamic(form.reduced)
    while at < len(extents) - 1 and prod(extents[at + 1 :]) > most:
        at += 1
    size = max(1, most // prod(extents[at + 1 :]))
    if is_static(form.reduced[at].extent):
        size = ceil(extents[at] / ceil(extents[at] / size))
    return replace(made, split_at=at, split=size)


def _with_pieces(setting: Setting, made: Schedule) -> Schedule:
    """Pieces of work of the least cost: rows and columns alternately, from all columns on."""
    copies = _copies_of_b(setting, made)
    likely = replace(made, panels=setting.panels(made), copy_b=copies[-1])
    for _ in range(2):
        likely = _cheapest(setting, _row_blocks(setting, likely))
        likely = _cheapest(setting, _column_blocks(setting, likely, copies))
    if Work(setting, likely).imbalance < 1.05:
        return likely
    across = list(_column_blocks(setting, likely, [likely.copy_b]))
    every = [piece for columns in across for piece in _row_blocks(setting, columns)]
    return _cheapest(setting, [likely, *every])


def _row_blocks(setting: Setting, made: Schedule) -> Iterator[Schedule]:
    """Blocks of about so many rows, in whole tiles."""
    form, extents = setting.form, setting.row_extents
    if not extents:
        yield made
        return
    first = last_dynamic(form.rows)
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


def _column_blocks(setting: Setting, made: Schedule, copies: Sequence[str]) -> Iterator[Schedule]:
    panels = setting.panels(made)
    for size in {ceil(panels / parts) for parts in (1, 2, 4, 8)}:
        for copy in copies:
            steps = 8 if not copy and _is_far(setting) else 0
            yield replace(made, panels=size, copy_b=copy, prefetch_steps=steps)


def _is_far(setting: Setting) -> bool:
    """Whether columns come from beyond the caches, to places that do not push each other out."""
    size = setting.columns * setting.depth * setting.itemsize
    return size > setting.target.l2 / 2 and not crowded_columns(setting)


def _copies_of_b(setting: Setting, made: Schedule) -> list[str]:
    """Whether and when the columns' factor may be packed."""
    form = setting.form
    if made.dots:
        return [""]
    direct = [""] if direct_b(setting) else []
    outer = [v for v in form.outer if v in uses(form.kernel.b)]
    fixed = all(is_static(v.extent) for v in (form.lane, *form.reduced, *outer))
    return [*direct, "shared" if fixed and not outer and not made.split else "block"]
