"""Schedules of contractions: tiling and packing, what they imply, and a cost model.

A `Schedule` is plain numbers: tiles, blocks, copies. For a `Problem`, a contraction's form and a
target, they determine what a piece of work spans, the layout of packed factors, and a rough number
of cycles: products, loads, copies, cache misses. The figures only rank schedules of one contraction
with each other; `tf.tune` measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import ceil, prod
from typing import Any

import numpy as np

from thalweg.codegen.contraction.form import Form, loads_of
from thalweg.codegen.contraction.packing import Packing, dense, tiled, windowed
from thalweg.codegen.machine import CpuTarget
from thalweg.ir.dynamic import is_static
from thalweg.ir.expr import Load
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Access
from thalweg.ir.loop import Variable
from thalweg.ir.rewrite import free_variables


@dataclass(frozen=True)
class Schedule:
    """How a contraction is computed.

    A register tile is `vectors` wide and spans `tile` values of row variable `tile_at`, all values
    of the row variables after it, and one of those before. A piece of work spans one value of the
    row variables before `block_at`, `block` values of that one, all of the others, and `panels`
    tiles in width. `split` values of reduced variable `split_at` are summed at a time.
    """

    vectors: int
    tile_at: int
    tile: int
    block_at: int = 0
    block: int = 1
    panels: int = 1
    split_at: int = 0
    split: int = 0  # 0: all at once
    copy_a: str = ""  # how `a` is packed: "", "window" (as in memory, padded), "tiles", "dense"
    copy_b: str = ""  # how `b` is packed: "", "shared" (once, by all threads), "block" (per piece)
    unroll: int = 1
    prefetch_steps: int = 0  # how many steps of the sum ahead columns are prefetched
    prefetch_panels: int = 0  # how many panels ahead columns are prefetched
    dots: bool = False  # vectorized along the last reduced variable; `vectors` counts columns
    matrix: bool = False  # tiles of 16 by 16 sums, on AMX
    outputs: int = 0  # of a Winograd tile along each axis; 0: not by Winograd's algorithm

    @property
    def summary(self) -> str:
        """A short description for users."""
        unit = "columns" if self.dots else "tiles" if self.matrix else "vectors"
        parts = [f"tile {self.tile}x{self.vectors} {unit}", f"piece {self.block}x{self.panels}"]
        named = {"split": self.split, "a": self.copy_a, "b": self.copy_b}
        named |= {"prefetch_steps": self.prefetch_steps, "prefetch_panels": self.prefetch_panels}
        return ", ".join([*parts, *(f"{name} {value}" for name, value in named.items() if value)])


class Problem:
    """A contraction to schedule for a target, and facts about it.

    Extents are at least 1; those of dynamic variables are hints.
    """

    def __init__(self, form: Form, target: CpuTarget) -> None:
        self.form, self.target = form, target
        #: the bytes of an element, and how many elements a vector holds
        self.itemsize = np.dtype(form.kernel.dtype).itemsize
        self.lanes = target.vector_bytes // self.itemsize
        self.row_extents, self.reduced_extents = _extents(form.rows), _extents(form.reduced)
        #: how many columns and rows there are, terms of a sum, and iterations of the outer loops
        (self.columns,) = _extents([form.lane])
        self.height, self.depth = prod(self.row_extents), prod(self.reduced_extents)
        self.outer = prod(_extents(form.outer))
        self.costs: dict[Schedule, float] = {}  # memoized
        self._packings: dict[tuple[str, int, int], Packing | None] = {}

    def packing_of_a(self, schedule: Schedule) -> Packing | None:
        """The layout of packed `a`; None where it is not packed, or a schedule's kind of copy is
        not possible (memoized)."""
        key = schedule.copy_a, schedule.tile_at, schedule.tile
        if schedule.copy_a and key not in self._packings:
            self._packings[key] = _packing_of_a(self.form, schedule)
        return self._packings.get(key)

    def width(self, schedule: Schedule) -> int:
        """The columns of a tile."""
        return schedule.vectors if schedule.dots else schedule.vectors * self.lanes

    def panels(self, schedule: Schedule) -> int:
        """How many tiles wide the result is."""
        return ceil(self.columns / self.width(schedule))


def _extents(variables: Sequence[Variable]) -> list[int]:
    return [max(1, int(v.extent)) for v in variables]


# What a schedule spans


def spans_of_rows(form: Form, schedule: Schedule) -> dict[Variable, int]:
    """How many values of each row variable a piece of work spans."""
    return _spans(form.rows[schedule.block_at :], schedule.block)


def spans_of_sum(form: Form, schedule: Schedule) -> dict[Variable, int]:
    """How many values of each reduced variable a block of the sum spans."""
    at = schedule.split_at if schedule.split else 0
    return _spans(form.reduced[at:], schedule.split)


def _spans(variables: Sequence[Variable], first: int = 0) -> dict[Variable, int]:
    """The extents of variables; of the first one, `first` values if that is given."""
    spans = {v: int(v.extent) for v in variables}
    return spans | {v: first for v in variables[:1] if first}


def spans_of_a(problem: Problem, schedule: Schedule) -> dict[Variable, int]:
    """How many values of each variable a packed copy of `a` spans."""
    form = problem.form
    lane = {form.lane: schedule.panels * problem.width(schedule)} if form.depthwise else {}
    return {**spans_of_rows(form, schedule), **spans_of_sum(form, schedule), **lane}


def spans_of_b(problem: Problem, schedule: Schedule) -> dict[Variable, int]:
    """How many values of each variable packed panels of `b` span: all if they are shared, else
    those of a piece of work."""
    whole = schedule.copy_b == "shared"
    reduced = _spans(problem.form.reduced) if whole else spans_of_sum(problem.form, schedule)
    panels = problem.panels(schedule) if whole else schedule.panels
    return {**reduced, problem.form.lane: panels * problem.width(schedule)}


def block_position(variables: Sequence[Variable], most: int, last: int | None = None) -> int:
    """The first variable to take in blocks: those after it are static and have at most `most`
    values together, unless it is the `last` one that may be."""
    first = max((n for n, v in enumerate(variables) if not is_static(v.extent)), default=0)
    extents, end = _extents(variables), len(variables) - 1 if last is None else last
    fitting = (n for n in range(first, end) if prod(extents[n + 1 :]) <= most)
    return next(fitting, max(first, end))


def even_part(count: int, parts: int) -> int:
    """The size of each of about `parts` equal parts of a count."""
    return ceil(count / min(parts, count))


# Access to factors


def variables_of(access: Access) -> frozenset[Variable]:
    """The variables that a factor depends on."""
    return free_variables(access.value).union(*(offset.strides for _, offset, _ in access.bounds))


def _packing_of_a(form: Form, schedule: Schedule) -> Packing | None:
    access = form.kernel.a
    inner = [*form.rows, *form.reduced, *([form.lane] if form.depthwise else [])]
    used = variables_of(access)
    variables = [v for v in inner if v in used]
    if schedule.copy_a == "dense":
        return dense(access, variables)
    packing = windowed(access, variables)
    if schedule.copy_a != "tiles" or packing is None:
        return packing
    rows = form.rows[schedule.tile_at]
    alone = any(axis.coordinate is rows for axis in packing.axes)
    return tiled(packing, rows, schedule.tile) if alone and is_static(rows.extent) else None


def packing_of_b(problem: Problem, schedule: Schedule) -> Packing:
    """The layout of packed `b`: panels, zero-padded past the last column."""
    form, access = problem.form, problem.form.kernel.b
    used = variables_of(access)
    whole = dense(access, [*(v for v in form.reduced if v in used), form.lane])
    return tiled(whole, form.lane, problem.width(schedule), has_contiguous_columns(problem))


def is_plain_load(access: Access, dtype: Any) -> bool:
    """Whether a factor is a load of the contraction's dtype at an affine offset."""
    if not isinstance(access.value, Load):
        return False
    return access.value.offset.is_plain and np.dtype(access.value.buffer.dtype) == np.dtype(dtype)


def limited_variable(form: Form, offset: Affine, covered: Sequence[Variable]) -> Variable | None:
    """The one reduced variable that a bound limits to a range that is the same for all rows of a
    tile; None if there is no such variable."""
    variables = list(offset.strides)
    limited = [v for v in variables if v in form.reduced]
    if len(limited) != 1 or not set(covered).isdisjoint(variables) or form.lane in variables:
        return None
    if not offset.is_plain or not is_static(offset.factor(limited[0])):
        return None
    return limited[0]


def reads_a_in_place(form: Form, schedule: Schedule) -> bool:
    """Whether `a` can be read in place, without packing."""
    access = form.kernel.a
    if not is_plain_load(access, form.kernel.dtype):
        return False
    if access.load.offset.factor(form.lane) != int(form.depthwise):
        return False
    alone = schedule.tile == 1 and schedule.tile_at == len(form.rows) - 1
    covered = () if alone else form.rows[schedule.tile_at :]
    limited = [limited_variable(form, offset, covered) for _, offset, _ in access.bounds]
    return None not in limited and len(set(limited)) == len(limited)


def reads_b_in_place(problem: Problem) -> bool:
    """Whether `b` can be read in place, without packing."""
    form = problem.form
    access = form.kernel.b
    masked = problem.columns % problem.lanes or not is_static(form.lane.extent)
    if not is_plain_load(access, form.kernel.dtype) or access.bounds:
        return False
    if access.load.offset.factor(form.lane) != 1:
        return False
    return not masked or problem.target.has_masks


def has_contiguous_columns(problem: Problem) -> bool:
    """Whether `b` is contiguous along columns."""
    loads = loads_of(problem.form.kernel.b.value)
    return all(load.offset.factor(problem.form.lane) == 1 for load in loads)


def tile_height(problem: Problem, schedule: Schedule) -> int:
    """How many rows a tile has."""
    return schedule.tile * prod(problem.row_extents[schedule.tile_at + 1 :])


def tile_cost(problem: Problem, schedule: Schedule) -> float:
    """The cycles of all tiles, bound by multiplications, loads or latency."""
    extents = problem.row_extents
    before = prod(extents[: schedule.tile_at])
    along = extents[schedule.tile_at] if extents else 1
    inner = prod(extents[schedule.tile_at + 1 :])
    whole, rest = divmod(along, schedule.tile)
    heights = [(whole, schedule.tile * inner), (1 if rest else 0, rest * inner)]
    vectors = ceil(problem.columns / problem.lanes)
    widths = [(vectors // schedule.vectors, schedule.vectors), (1, vectors % schedule.vectors)]
    total = sum(
        rows * columns * _tile_cycles(problem, height, width)
        for rows, height in heights
        for columns, width in widths
        if height and width
    )
    return before * total


def _tile_cycles(problem: Problem, height: int, width: int) -> float:
    """The cycles of a tile; a step is bound by products, loads, latency or L2 bandwidth."""
    products = height * width
    loads = width + (products if problem.form.depthwise else height)
    panel = problem.depth * width * problem.target.vector_bytes
    distant = width * 2.5 if panel > problem.target.l1 / 2 else 0
    step = max(products / 2, loads * 0.6, distant, 4 if products < 8 else 0) + distant / 8
    is_high, form = height > (8 if width > 1 else 9), problem.form
    conflicts = is_high and has_set_conflicts(problem, form.kernel.a, form.rows[-1:])
    return problem.depth * step * (1.25 if conflicts else 1) + 10 + 3 * height + 2 * products


def has_set_conflicts(problem: Problem, access: Access, variables: Sequence[Variable]) -> bool:
    """Whether elements of a factor along a variable fall into few sets of L1."""
    if not is_plain_load(access, problem.form.kernel.dtype):
        return False
    factors = [int(access.load.offset.factor(variable)) for variable in variables]
    return any(factor and factor * problem.itemsize % 4096 == 0 for factor in factors)


# Cycles per element, copied in order or transposed; bytes per cycle from L2, from beyond in order,
# and from beyond it a few lines at a time; the same for packed factors, which are prefetched well.
_COPY, _TRANSPOSE, _NEAR, _FAR, _SCATTERED = 0.5, 1.5, 32.0, 5.0, 1.5
_PACKED, _SHARED = 40.0, 10.0


class CostModel:
    """The cost of a schedule in cycles, and the quantities that determine it."""

    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        self.problem, self.schedule = problem, schedule
        rows, products = spans_of_rows(problem.form, schedule), spans_of_sum(problem.form, schedule)
        width = problem.width(schedule)
        #: rows and columns of a piece
        self.rows = min(problem.height, prod(rows.values()))
        self.columns = min(problem.columns, schedule.panels * width)
        #: terms in a block of the sum, and the number of blocks
        self.depth = min(problem.depth, prod(products.values()))
        self.blocks = ceil(problem.depth / max(self.depth, 1))
        across = ceil(problem.columns / self.columns)
        self.pieces = problem.outer * ceil(problem.height / self.rows) * across
        #: whether the rows of a panel of `b` are strided
        self.strided_b = not schedule.copy_b and problem.columns > width
        #: the cache footprint of a panel of `b`: if its rows are strided, that of all columns
        self.panel_b = self.depth * (problem.columns if self.strided_b else width)
        self.panel_b *= problem.itemsize
        #: the bytes of `b` in L2 while a block of the sum is computed
        packed_b = self.depth * self.columns * problem.itemsize
        self.bytes_b = packed_b if schedule.copy_b == "block" else self.panel_b

    @cached_property
    def bytes_a(self) -> int:
        """The bytes of `a` that a block of the sum reads."""
        problem, schedule = self.problem, self.schedule
        packing = problem.packing_of_a(
            schedule if schedule.copy_a else replace(schedule, copy_a="window")
        )
        if packing is None:
            return self.rows * self.depth * problem.itemsize
        spans = spans_of_a(problem, schedule)
        if not schedule.copy_a and self.strided_a:  # whole lines, and few sets of a cache
            rows = problem.form.rows[schedule.tile_at]
            spans[rows] = max(int(rows.extent), spans.get(rows, 1))
        return packing.size(spans) * problem.itemsize

    @cached_property
    def strided_a(self) -> bool:
        """Whether `a` is contiguous along rows, so that the sum strides from line to line."""
        form = self.problem.form
        if not form.rows or not is_plain_load(form.kernel.a, form.kernel.dtype):
            return False
        return form.kernel.a.load.offset.factor(form.rows[self.schedule.tile_at]) == 1

    def cost(self) -> float:
        """The cycles of the whole kernel, without what only the register tile determines."""
        problem = self.problem
        sums = problem.outer * problem.height * problem.columns
        products = sums * problem.depth / (2 * problem.lanes)
        copies, reads = self._copies(), self._reads_a() + self._reads_b()
        writes = max(0.0, self._writes(sums) - products / 2)
        every = products * (1 + self._stalls()) + copies + reads + self._partials(sums) + writes
        return every * self.imbalance + 300 * self.pieces * self.blocks

    @cached_property
    def imbalance(self) -> float:
        """The load of the busiest thread over the average, for two threads and for all cores."""
        weights = self._piece_sizes()
        return (2 * imbalance_of(weights, 2) + imbalance_of(weights, self.problem.target.cores)) / 3

    def _piece_sizes(self) -> list[int]:
        """The size of every piece in order; many pieces count as equal."""
        problem, schedule = self.problem, self.schedule
        if self.pieces > 32 * problem.target.cores:
            return [1] * self.pieces
        rows = [1]
        if problem.row_extents:
            rows = chunk_sizes(problem.row_extents[schedule.block_at], schedule.block)
        across = chunk_sizes(problem.columns, schedule.panels * problem.width(schedule))
        again = problem.outer * prod(problem.row_extents[: schedule.block_at])
        return [height * width for height in rows for width in across] * again

    def _copies(self) -> float:
        problem, schedule, cycles = self.problem, self.schedule, 0.0
        if schedule.copy_a:
            each = _COPY if schedule.copy_a != "tiles" or self.strided_a else _TRANSPOSE
            size = self.pieces * self.blocks * self.bytes_a
            far = 1.5 if self.bytes_a > 0.7 * problem.target.l2 else 1.0
            cycles += size * (each / problem.itemsize + far * (schedule.copy_a == "tiles") / _FAR)
        if schedule.copy_b:
            each = _COPY if has_contiguous_columns(problem) else _TRANSPOSE
            again = self.pieces if schedule.copy_b == "block" else 1
            columns = self.columns if schedule.copy_b == "block" else problem.columns
            cycles += each * again * columns * problem.depth
            cycles += self._memory_traffic_b() if schedule.copy_b == "shared" else 0.0
        return cycles

    def _memory_traffic_b(self) -> float:
        """The cycles to read `b` from memory and write it back packed."""
        size = self.problem.columns * self.problem.depth * self.problem.itemsize
        return 0.0 if size < self.problem.target.l2 / 2 else 0.8 * size / _FAR

    def _reads_a(self) -> float:
        """The cycles to read `a`: once if all fits L2, else again for each panel."""
        problem, schedule = self.problem, self.schedule
        width = problem.width(schedule) * problem.itemsize
        partial = self.rows * width if self.blocks > 1 else 0
        if self.bytes_a + self.bytes_b + partial < 0.7 * problem.target.l2:
            return self.pieces * self.blocks * self.bytes_a / _FAR
        rate = _SCATTERED if not schedule.copy_a and self.strided_a else _FAR
        rate = _PACKED if schedule.copy_a == "tiles" else rate
        panels = ceil(self.columns / problem.width(schedule))
        return self.pieces * self.rows * problem.depth * problem.itemsize * panels / rate

    def _reads_b(self) -> float:
        """The cycles to read `b`: once per piece, and per tile of rows if panels do not fit."""
        problem, size = self.problem, self.problem.itemsize
        small = problem.columns * problem.depth * size < problem.target.l2 / 2
        prefetched = self.schedule.prefetch_steps > 0
        rate = _SCATTERED if self.strided_b and self.depth > 96 and not prefetched else _FAR
        rate = _SHARED if self.schedule.copy_b == "shared" else rate
        bytes_of_pieces = self.pieces * self.columns * problem.depth * size
        tiles = ceil(self.rows / max(1, tile_height(problem, self.schedule)))
        fits = self.panel_b < (0.8 if self.strided_b else 0.4) * problem.target.l2
        again = 0.0 if fits else bytes_of_pieces * (tiles - 1) / _FAR
        return bytes_of_pieces / (_NEAR if small else rate) + again

    def _stalls(self) -> float:
        """The fraction by which L1 misses slow down products."""
        problem, schedule, lines = self.problem, self.schedule, 0.0
        height, first = tile_height(problem, schedule), 0.7 * problem.target.l1
        width = problem.width(schedule) * problem.itemsize
        far_b = self.panel_b > first and self.rows > height
        strided = not schedule.copy_a and self.strided_a
        lines += width if far_b else 0
        lines += 64 * ceil(height * problem.itemsize / 64 + 0.5) if strided else height * 4
        step = height * schedule.vectors / 2
        waits = max(0.0, lines / 24 - step) / step + 0.05 * far_b + 0.04 * self.strided_b
        return waits + (self._stride_stalls() if strided else 0.0)

    def _stride_stalls(self) -> float:
        """The same where every step of a sum touches other, distant lines of `a`."""
        problem = self.problem
        load, reduced = problem.form.kernel.a.load, problem.form.reduced
        step = int(load.offset.factor(reduced[-1])) if reduced else 0
        near = int(load.buffer.size) * problem.itemsize <= problem.target.l2 / 2
        if near or abs(step) * problem.itemsize < 1024:
            return 0.0
        return 0.45 * max(0.0, self.depth * 128 / problem.target.l1 - 0.45)

    def _writes(self, sums: int) -> float:
        """The cycles to write a large result, in order only if few rows are computed at a time."""
        problem, size = self.problem, self.problem.itemsize
        if sums * size < problem.target.l2:
            return 0.0
        few = self.rows <= 2 * tile_height(problem, self.schedule) or problem.columns * size <= 4096
        return sums * size / (_FAR if few else _SCATTERED)

    def _partials(self, sums: int) -> float:
        if self.blocks == 1:
            return 0.0
        size = self.problem.itemsize
        fits = self.rows * self.columns * size < self.problem.target.l2 / 2
        return 2 * sums * self.blocks * size / (_NEAR if fits else _FAR)


def chunk_sizes(extent: int, size: int) -> list[int]:
    """The lengths of the chunks of a size that cover an extent."""
    return [min(size, extent - start) for start in range(0, extent, size)]


def imbalance_of(weights: Sequence[int], threads: int) -> float:
    """The load of the busiest of some threads over the average."""
    ends = [len(weights) * thread // threads for thread in range(threads + 1)]
    shares = [sum(weights[start:end]) for start, end in pairwise(ends)]
    return max(shares) * threads / max(sum(weights), 1)
