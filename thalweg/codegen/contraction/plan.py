"""The choice of a schedule: the register tile, blocks and copies of least cost.

A contraction and a target come in; a `Schedule` goes out, or a list of those worth measuring.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import ceil, prod
from typing import Any

from thalweg.codegen.contraction.amx import amx_schedule
from thalweg.codegen.contraction.form import Form, NotContraction, form_of, loads_of
from thalweg.codegen.contraction.packing import Packing
from thalweg.codegen.contraction.schedule import (
    CostModel,
    Problem,
    Schedule,
    block_position,
    even_part,
    has_set_conflicts,
    is_plain_load,
    reads_a_in_place,
    reads_b_in_place,
    tile_cost,
    tile_height,
    variables_of,
)
from thalweg.codegen.machine import CpuTarget
from thalweg.codegen.winograd.plan import winograd_alternatives, winograd_schedule
from thalweg.ir.dynamic import is_static
from thalweg.ir.kernel import Contraction

# Entry points


def schedule(kernel: Contraction, target: CpuTarget) -> Schedule:
    """The schedule of least cost by the model."""
    return winograd_schedule(kernel, target) or best(Problem(form_of(kernel), target))


def schedules(kernel: Contraction, target: CpuTarget) -> list[Schedule]:
    """Schedules worth measuring, the likely ones first."""
    problem = Problem(form_of(kernel), target)
    ranked = sorted(_tiles(problem), key=lambda tile: tile_cost(problem, tile))
    tiles = [*_best_by_width(ranked, 4), *ranked[:4]]
    likely, dots = best(problem), _dot_product_schedule(problem)
    others = [*(_blocked_schedule(problem, tile) for tile in tiles), *([dots] if dots else [])]
    first = winograd_schedule(kernel, target)
    return [*([first] if first else []), likely, *_balanced(problem, likely, others)]


def neighbours(kernel: Contraction, target: CpuTarget, schedule: Schedule) -> list[Schedule]:
    """Schedules that differ from one in one respect."""
    if schedule.outputs:
        return winograd_alternatives(kernel, target, schedule)
    problem = Problem(form_of(kernel), target)
    changes = _size_changes(problem, schedule)
    if not schedule.dots and not schedule.matrix:
        changes += _copy_changes(problem, schedule)
    return _balanced(problem, schedule, [replace(schedule, **change) for change in changes])


def _balanced(problem: Problem, schedule: Schedule, others: Iterable[Schedule]) -> list[Schedule]:
    """The other schedules that balance threads well: timing on a busy machine may not show it."""
    most = max(1.3, CostModel(problem, schedule).imbalance)
    distinct = (other for other in dict.fromkeys(others) if other != schedule)
    return [other for other in distinct if CostModel(problem, other).imbalance <= most]


def best(problem: Problem) -> Schedule:
    """The schedule of least cost among all kinds but Winograd's."""
    if (
        schedule := amx_schedule(problem)
        or _dot_product_schedule(problem)
        or _streaming_schedule(problem)
    ):
        return schedule
    ranked = sorted(_tiles(problem), key=lambda tile: tile_cost(problem, tile))
    likely = _blocked_schedule(problem, ranked[0])
    if schedule := _in_place_schedule(problem, ranked, likely):
        return schedule
    if CostModel(problem, likely).imbalance < 1.25 or tile_cost(problem, likely) < 1e5:
        return likely
    others = [_blocked_schedule(problem, tile) for tile in _best_by_width(ranked, 3)]
    return min([likely, *others], key=partial(_whole_cost, problem))


def _best_by_width(ranked: Sequence[Schedule], most: int) -> list[Schedule]:
    """The best tile of each width, for at most `most` widths."""
    found: dict[int, Schedule] = {}
    for tile in ranked:
        found.setdefault(tile.vectors, tile)
    return list(found.values())[:most]


def _whole_cost(problem: Problem, schedule: Schedule) -> float:
    """A cost that compares schedules of different tiles."""
    return CostModel(problem, schedule).cost() * tile_cost(problem, schedule)


def check_supported(form: Form, schedule: Schedule) -> None:
    """Raise `NotContraction` for copies of more than one dynamic extent."""
    rows, reduced = form.rows[schedule.block_at + 1 :], form.reduced[schedule.split_at + 1 :]
    if (schedule.copy_a or schedule.split) and any(not is_static(v.extent) for v in rows):
        raise NotContraction("rows of several dynamic extents in a copy")
    if (schedule.copy_a or schedule.copy_b) and any(not is_static(v.extent) for v in reduced):
        raise NotContraction("sums over several dynamic extents in a copy")


# Neighbours


def _size_changes(problem: Problem, schedule: Schedule) -> list[dict[str, int]]:
    """Changes to larger and smaller pieces of work and blocks of the sum."""
    form, changes = problem.form, list[dict[str, int]]()
    for panels in (schedule.panels // 2, schedule.panels * 2):
        if 1 <= panels <= problem.panels(schedule):
            changes.append({"panels": panels})
    if form.rows:
        step = schedule.tile if schedule.block_at == schedule.tile_at else 1
        extent = problem.row_extents[schedule.block_at] + step - 1
        for block in (schedule.block // 2 // step * step, schedule.block * 2):
            if step <= block <= max(extent // step * step, step):
                changes.append({"block": block})
    for split in (schedule.split // 2, schedule.split * 2):
        if schedule.split and 1 <= split < problem.reduced_extents[schedule.split_at]:
            changes.append({"split": split})
    return changes


def _copy_changes(problem: Problem, schedule: Schedule) -> list[dict[str, Any]]:
    """Changes to other copies, prefetch distances and unrolling."""
    changes: list[dict[str, Any]] = [{"copy_a": copy} for copy in _copies_of_a(problem, schedule)]
    for copy in _copies_of_b(problem, schedule):
        changes.append(
            {"copy_b": copy} | ({} if not copy else {"prefetch_steps": 0, "prefetch_panels": 0})
        )
    if not schedule.copy_b:
        changes += [{"prefetch_steps": steps, "prefetch_panels": 0} for steps in (0, 4, 8, 16)]
        changes += [{"prefetch_steps": 0, "prefetch_panels": panels} for panels in (2, 4)]
    return [*changes, {"unroll": schedule.unroll * 2}, {"unroll": max(1, schedule.unroll // 2)}]


# Register tiles


def _tiles(problem: Problem) -> Iterator[Schedule]:
    """Every tile whose sums fit the registers."""
    for vectors in range(1, 9):
        if vectors > 1 and vectors * problem.lanes >= problem.columns + problem.lanes:
            return
        room = max(1, (problem.target.registers - 1 - vectors) // vectors)
        yield from _tiles_of(problem, vectors, room)


def _tiles_of(problem: Problem, vectors: int, room: int) -> Iterator[Schedule]:
    extents, inner = problem.row_extents, 1
    if not extents:
        yield Schedule(vectors, 0, 1)
    for at in reversed(range(len(extents))):
        dynamic = not is_static(problem.form.rows[at].extent)
        most = room // inner if dynamic else min(room // inner, extents[at])
        yield from (Schedule(vectors, at, rows) for rows in range(1, most + 1))
        inner *= extents[at]
        if dynamic or inner > room:
            return


# Dot products


def _dot_product_schedule(problem: Problem) -> Schedule | None:
    """A schedule by dot products, without packing, for few rows or columns whose factors are both
    contiguous along the sum."""
    form = problem.form
    if not form.reduced or form.depthwise or not _has_dot_factors(form):
        return None
    if reads_b_in_place(problem) and problem.columns > 1:
        return None
    if problem.height > 32 and problem.columns > problem.lanes // 4:
        return None
    columns = 1 if problem.columns == 1 else min(8 if problem.height == 1 else 4, problem.columns)
    room = (problem.target.registers - 2) // columns - 1
    tile = min(max(1, room), 6, *problem.row_extents[-1:])
    at = max(0, len(form.rows) - 1)
    schedule = Schedule(columns, at, tile, dots=True, unroll=max(1, 8 // (tile * columns)))
    if not reads_a_in_place(form, schedule):
        schedule = replace(schedule, copy_a="window")
        packing = problem.packing_of_a(schedule)
        if packing is None or packing.axes[-1].parts != ((1, form.reduced[-1]),):
            return None
        if _has_dynamic_window(packing):
            return None
    return _with_pieces(problem, schedule)


def _has_dot_factors(form: Form) -> bool:
    inner, kernel = form.reduced[-1], form.kernel
    if (
        not all(is_plain_load(side, kernel.dtype) for side in (kernel.a, kernel.b))
        or kernel.b.bounds
    ):
        return False
    if not is_static(inner.extent) or not is_static(form.lane.extent):
        return False
    return all(side.load.offset.factor(inner) == 1 for side in (kernel.a, kernel.b))


# Few rows


def _streaming_schedule(problem: Problem) -> Schedule | None:
    """A schedule for few rows, in which `b` is read in place, once, and prefetched.

    A `b` that L2 does not hold is read in order, some rows at a time.
    """
    form, size = problem.form, problem.itemsize
    if not _is_plain_product(problem) or not 4 <= problem.height <= 32:
        return None
    wide = [tile for tile in _tiles(problem) if tile.vectors >= 3]
    if not wide:
        return None
    tile = min(wide, key=lambda tile: tile_cost(problem, tile))
    rows = ceil(problem.height / tile.tile) * tile.tile
    schedule = replace(tile, block=rows, unroll=_unroll(problem, tile))
    if not reads_a_in_place(form, schedule):
        return None
    if _columns_fit_l2(problem):
        return replace(schedule, panels=even_part(problem.panels(schedule), 32), prefetch_steps=8)
    if problem.depth < 64:
        return None
    sums = rows * problem.width(schedule) * size
    most = max(1, problem.target.l2 // 8 // sums)  # partial sums stay in L2
    parts = max(problem.target.cores, ceil(problem.panels(schedule) / most))
    panels = even_part(problem.panels(schedule), parts)
    return _split(problem, replace(schedule, panels=panels, prefetch_panels=2), 64)


def _in_place_schedule(
    problem: Problem, ranked: Sequence[Schedule], likely: Schedule
) -> Schedule | None:
    """A schedule for some hundred rows, in which `b` is read in place instead of packed.

    All rows are one piece of work, so that `b` comes from memory once; packing would write and read
    it once more. With more rows that is negligible, and wide tiles cost more.
    """
    if likely.copy_b != "shared" or likely.copy_a or not _is_plain_product(problem):
        return None
    if _columns_fit_l2(problem) or _rows_of_b_conflict(problem):
        return None
    if not 128 <= problem.height <= 384 or problem.depth < 128:  # measured: up to 18% faster
        return None
    tiles = [tile for tile in _best_by_width(ranked, 6) if tile.vectors in (3, 4)]
    found = [
        _split(problem, replace(tile, block=rows, panels=panels, unroll=2, prefetch_steps=8), 512)
        for tile in tiles
        for rows in [ceil(problem.height / tile.tile) * tile.tile]
        for panels in (2, 1)
    ]
    schedule = min(found, key=partial(_products_cost, problem), default=None)
    if schedule is None or not reads_a_in_place(problem.form, schedule):
        return None
    is_close = _products_cost(problem, schedule) < 1.06 * _products_cost(problem, likely)
    return schedule if is_close else None


def _is_plain_product(problem: Problem) -> bool:
    """Whether it is one matrix product of static sizes whose `b` is read in place."""
    form = problem.form
    if len(form.rows) != 1 or len(form.reduced) != 1 or form.outer or form.depthwise:
        return False
    fixed = all(is_static(v.extent) for v in (*form.rows, *form.reduced, form.lane))
    return fixed and reads_b_in_place(problem)


def _columns_fit_l2(problem: Problem) -> bool:
    """Whether `b` fits L2."""
    return problem.depth * problem.columns * problem.itemsize <= 0.75 * problem.target.l2


def _products_cost(problem: Problem, schedule: Schedule) -> float:
    """The cost of a schedule's products alone, without copies and data movement."""
    return tile_cost(problem, schedule) * CostModel(problem, schedule).imbalance


def _unroll(problem: Problem, tile: Schedule) -> int:
    """The unroll factor of the inner loop: more than one where a step has few products."""
    products = tile.vectors * tile_height(problem, tile)
    return 4 if 8 <= products < 12 else max(1, 8 // products)


# Blocks


def _blocked_schedule(problem: Problem, tile: Schedule) -> Schedule:
    """A tile with the blocks, copies and pieces of work of least cost."""
    schedule = replace(tile, unroll=_unroll(problem, tile))
    copies = [replace(schedule, copy_a=copy) for copy in _copies_of_a(problem, schedule)]
    splits = [split for copied in copies for split in _splits(problem, copied)]
    return _cheapest(problem, [_with_pieces(problem, split) for split in splits])


def _cheapest(problem: Problem, choices: Iterable[Schedule]) -> Schedule:
    return min(choices, key=lambda choice: _cost(problem, choice))


def _cost(problem: Problem, schedule: Schedule) -> float:
    cost = problem.costs.get(schedule)
    if cost is None:
        cost = problem.costs[schedule] = CostModel(problem, schedule).cost()
    return cost


def _copies_of_a(problem: Problem, schedule: Schedule) -> list[str]:
    form = problem.form
    direct = [""] if reads_a_in_place(form, schedule) else []
    inner = form.rows[schedule.tile_at + 1 :]
    tiles = []
    if form.rows and not inner and not form.depthwise and schedule.tile > 1:
        packing = problem.packing_of_a(replace(schedule, copy_a="tiles"))
        loads = [load.offset for load in loads_of(form.kernel.a.value)]
        near = any(o.factor(form.rows[schedule.tile_at]) == 1 for o in loads)
        tiles = ["tiles"] if packing and near and not _has_dynamic_window(packing) else []
    if tiles and has_set_conflicts(problem, form.kernel.a, form.reduced[-1:]):
        return tiles
    return [*direct, *tiles] or [_copy_kind(problem)]


def _copy_kind(problem: Problem) -> str:
    form, packing = problem.form, problem.packing_of_a(Schedule(1, 0, 1, copy_a="window"))
    if packing is None or _has_dynamic_window(packing):
        return "dense"
    lane_last = packing.axes and packing.axes[-1].coordinate is form.lane
    return "window" if not form.depthwise or lane_last else "dense"


def _has_dynamic_window(packing: Packing) -> bool:
    return any(
        not is_static(v.extent) for axis in packing.axes if axis.is_padded for _, v in axis.parts
    )


def _splits(problem: Problem, schedule: Schedule) -> Iterator[Schedule]:
    """Ways to split long sums; not at all only where the extents are static."""
    dynamic = any(not is_static(v.extent) for v in problem.form.reduced)
    if not dynamic:
        yield schedule
    few = problem.height < 64  # `b` is then read in order, a few rows at a time
    far = reads_b_in_place(problem) and _columns_stream(problem)
    for most in (2048, 512, 256, *((128,) if far else ()), *((64,) if few else ())):
        if dynamic or problem.depth > most * 1.3:
            yield _split(problem, schedule, most)


def _split(problem: Problem, schedule: Schedule, most: int) -> Schedule:
    """Split sums into blocks of about `most` terms."""
    form, extents = problem.form, problem.reduced_extents
    at = block_position(form.reduced, most)
    size = max(1, most // prod(extents[at + 1 :]))
    if is_static(form.reduced[at].extent):
        size = ceil(extents[at] / ceil(extents[at] / size))
    return replace(schedule, split_at=at, split=size)


def _with_pieces(problem: Problem, schedule: Schedule) -> Schedule:
    """Choose pieces of work by alternating minimization over rows and columns."""
    copies = _copies_of_b(problem, schedule)
    likely = replace(schedule, panels=problem.panels(schedule), copy_b=copies[-1])
    for _ in range(2):
        likely = _cheapest(problem, _row_blocks(problem, likely))
        likely = _cheapest(problem, _column_blocks(problem, likely, copies))
    if CostModel(problem, likely).imbalance < 1.05:
        return likely
    across = list(_column_blocks(problem, likely, [likely.copy_b]))
    every = [piece for columns in across for piece in _row_blocks(problem, columns)]
    return _cheapest(problem, [likely, *every])


def _row_blocks(problem: Problem, schedule: Schedule) -> Iterator[Schedule]:
    """Blocks of rows of several sizes, in whole tiles."""
    form, extents = problem.form, problem.row_extents
    if not extents:
        yield schedule
        return
    seen: set[tuple[int, int]] = set()
    for wanted in (1 << 30, 4096, 1024, 512, 256, 128, 64, 1):
        at = block_position(form.rows, wanted, schedule.tile_at)
        inner = prod(extents[at + 1 :])
        step = schedule.tile if at == schedule.tile_at else 1
        size = max(step, min(wanted // inner, extents[at] + step - 1) // step * step)
        if is_static(form.rows[at].extent):
            count = ceil(extents[at] / size)
            size = ceil(ceil(extents[at] / count) / step) * step
        if (at, size) not in seen:
            seen.add((at, size))
            yield replace(schedule, block_at=at, block=size)


def _column_blocks(
    problem: Problem, schedule: Schedule, copies: Sequence[str]
) -> Iterator[Schedule]:
    panels = problem.panels(schedule)
    for size in {ceil(panels / parts) for parts in (1, 2, 4, 8)}:
        for copy in copies:
            steps = 8 if not copy and _columns_stream(problem) else 0
            yield replace(schedule, panels=size, copy_b=copy, prefetch_steps=steps)


def _columns_stream(problem: Problem) -> bool:
    """Whether `b` comes from beyond L2, without conflicts in L1."""
    size = problem.columns * problem.depth * problem.itemsize
    return size > problem.target.l2 / 2 and not _rows_of_b_conflict(problem)


def _rows_of_b_conflict(problem: Problem) -> bool:
    return has_set_conflicts(problem, problem.form.kernel.b, problem.form.reduced[-1:])


def _copies_of_b(problem: Problem, schedule: Schedule) -> list[str]:
    """The possible kinds of copies of `b`."""
    form = problem.form
    if schedule.dots:
        return [""]
    direct = [""] if reads_b_in_place(problem) else []
    outer = [v for v in form.outer if v in variables_of(form.kernel.b)]
    fixed = all(is_static(v.extent) for v in (form.lane, *form.reduced, *outer))
    return [*direct, "shared" if fixed and not outer and not schedule.split else "block"]
