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
class Problem:
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
        return is_plain_load(self.form.kernel.a, self.form.kernel.dtype)

    @cached_property
    def costs(self) -> dict[Schedule, float]:
        """What schedules cost, as far as they have been looked at."""
        return {}

    @cached_property
    def _packings(self) -> dict[tuple[str, int, int], Packing | None]:
        return {}

    def packing_of_a(self, schedule: Schedule) -> Packing | None:
        """The layout of the packed rows' factor, if it is packed."""
        if not schedule.copy_a:
            return None
        key = schedule.copy_a, schedule.tile_at, schedule.tile
        if key not in self._packings:
            self._packings[key] = packing_of_a(self.form, schedule)
        return self._packings[key]

    def width(self, schedule: Schedule) -> int:
        """How many columns a tile has."""
        return schedule.vectors if schedule.dots else schedule.vectors * self.lanes

    def panels(self, schedule: Schedule) -> int:
        """How many tiles are side by side."""
        return ceil(self.columns / self.width(schedule))


# What a schedule spans


def spans_of_rows(form: Form, schedule: Schedule) -> dict[Variable, int]:
    """How many values of each row variable a piece of work spans."""
    if not form.rows:
        return {}
    at = schedule.block_at
    return {form.rows[at]: schedule.block, **{v: int(v.extent) for v in form.rows[at + 1 :]}}


def spans_of_sum(form: Form, schedule: Schedule) -> dict[Variable, int]:
    """How many values of each reduced variable are summed at a time."""
    at, reduced = schedule.split_at, form.reduced
    if not schedule.split:
        return {v: int(v.extent) for v in reduced}
    return {reduced[at]: schedule.split, **{v: int(v.extent) for v in reduced[at + 1 :]}}


def spans_of_a(problem: Problem, schedule: Schedule) -> dict[Variable, int]:
    """What a copy of the rows' factor spans."""
    form = problem.form
    lane = {form.lane: schedule.panels * problem.width(schedule)} if form.depthwise else {}
    return {**spans_of_rows(form, schedule), **spans_of_sum(form, schedule), **lane}


def spans_of_b(problem: Problem, schedule: Schedule) -> dict[Variable, int]:
    """What packed panels span: everything where they are shared, else those of a piece of work."""
    whole = {v: int(v.extent) for v in problem.form.reduced}
    reduced = whole if schedule.copy_b == "shared" else spans_of_sum(problem.form, schedule)
    panels = problem.panels(schedule) if schedule.copy_b == "shared" else schedule.panels
    return {**reduced, problem.form.lane: panels * problem.width(schedule)}


def last_dynamic(variables: Sequence[Variable]) -> int:
    """The number of the last variable whose extent is not known, or 0."""
    return max((i for i, v in enumerate(variables) if not is_static(v.extent)), default=0)


def even_part(count: int, parts: int) -> int:
    """The size of about so many equal parts of a count."""
    return ceil(count / min(parts, count))


# How factors are read


def variables_of(access: Access) -> set[Variable]:
    """The variables that a factor depends on."""
    places = [load.offset for load in loads_of(access.value)]
    places += [offset for _, offset, _ in access.bounds]
    return {v for o in places for v in o.strides} | set(pinned_in(access.value))


def packing_of_a(form: Form, schedule: Schedule) -> Packing | None:
    """The layout of the packed rows' factor."""
    access = form.kernel.a
    inner = [*form.rows, *form.reduced, *([form.lane] if form.depthwise else [])]
    used = _all_variables_of(access)
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
    """Panels of the columns' factor, zero beyond the last column."""
    form, access = problem.form, problem.form.kernel.b
    used = _all_variables_of(access)
    whole = dense(access, [*(v for v in form.reduced if v in used), form.lane])
    return tiled(whole, form.lane, problem.width(schedule), has_contiguous_columns(problem))


def _all_variables_of(access: Access) -> set[Variable]:
    """The variables a factor depends on, in computed places too."""
    found = variables_of(access)
    for load in loads_of(access.value):
        for part in load.offset.parts:
            found |= variables_of(Access(part))
    return found


def is_plain_load(access: Access, dtype: Any) -> bool:
    """Whether a factor is an element of its own type at an affine place."""
    if not isinstance(access.value, Load):
        return False
    argument, offset = argument_of(access)
    return offset.is_plain and np.dtype(argument.dtype) == np.dtype(dtype)


def limited_variable(form: Form, offset: Affine, covered: Sequence[Variable]) -> Variable | None:
    """The one reduced variable that a bound limits, for the same range in all rows of a tile."""
    variables = list(offset.strides)
    limited = [v for v in variables if v in form.reduced]
    if len(limited) != 1 or not set(covered).isdisjoint(variables) or form.lane in variables:
        return None
    if not offset.is_plain or not is_static(offset.factor(limited[0])):
        return None
    return limited[0]


def reads_a_in_place(form: Form, schedule: Schedule) -> bool:
    """Whether the rows' factor can be read where it lies."""
    access = form.kernel.a
    if not is_plain_load(access, form.kernel.dtype):
        return False
    if argument_of(access)[1].factor(form.lane) != int(form.depthwise):
        return False
    alone = schedule.tile == 1 and schedule.tile_at == len(form.rows) - 1
    covered = () if alone else form.rows[schedule.tile_at :]
    limited = [limited_variable(form, offset, covered) for _, offset, _ in access.bounds]
    return None not in limited and len(set(limited)) == len(limited)


def reads_b_in_place(problem: Problem) -> bool:
    form = problem.form
    access = form.kernel.b
    masked = problem.columns % problem.lanes or not is_static(form.lane.extent)
    if not is_plain_load(access, form.kernel.dtype) or access.bounds:
        return False
    if argument_of(access)[1].factor(form.lane) != 1:
        return False
    return not masked or problem.target.has_masks


def has_contiguous_columns(problem: Problem) -> bool:
    """Whether columns lie side by side in their factor."""
    loads = loads_of(problem.form.kernel.b.value)
    return all(load.offset.factor(problem.form.lane) == 1 for load in loads)


def tile_height(problem: Problem, schedule: Schedule) -> int:
    """How many rows a tile has."""
    return schedule.tile * prod(problem.row_extents[schedule.tile_at + 1 :])


def tile_cost(problem: Problem, schedule: Schedule) -> float:
    """The cycles of all tiles: multiplications, loads or latency, whichever is slowest."""
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
    """A step multiplies, loads, waits for sums, or for columns that come from the second cache."""
    products = height * width
    loads = width + (products if problem.form.depthwise else height)
    panel = problem.depth * width * problem.target.vector_bytes
    distant = width * 2.5 if panel > problem.target.l1 / 2 else 0
    step = max(products / 2, loads * 0.6, distant, 4 if products < 8 else 0) + distant / 8
    conflicts = (
        1.25
        if height > (8 if width > 1 else 9) and conflicts_in_a(problem, problem.form.rows[-1:])
        else 1
    )
    return problem.depth * step * conflicts + 10 + 3 * height + 2 * products


def conflicts_in_a(problem: Problem, variables: Sequence[Variable]) -> bool:
    """Whether elements along a variable of `a` fall into the same few lines of the first cache."""
    return _has_set_conflicts(problem, problem.form.kernel.a, variables)


def conflicts_in_b(problem: Problem) -> bool:
    """Whether the rows of `b` fall into the same few lines of the first cache."""
    return _has_set_conflicts(problem, problem.form.kernel.b, problem.form.reduced[-1:])


def _has_set_conflicts(problem: Problem, access: Access, variables: Sequence[Variable]) -> bool:
    if not is_plain_load(access, problem.form.kernel.dtype):
        return False
    factors = [int(argument_of(access)[1].factor(variable)) for variable in variables]
    return any(factor and factor * problem.itemsize % 4096 == 0 for factor in factors)


# What it costs, in cycles: per element copied in order or transposed; bytes per cycle from the
# second cache, from beyond it in order, and from beyond it a few lines at a time. What is packed
# comes in time for the products that need it, or nearly.
_COPY, _TRANSPOSE, _NEAR, _FAR, _SCATTERED = 0.5, 1.5, 32.0, 5.0, 1.5
_PACKED, _SHARED = 40.0, 10.0


@dataclass(eq=False)
class CostModel:
    """The numbers of a schedule that its cost depends on."""

    problem: Problem
    schedule: Schedule

    def __post_init__(self) -> None:
        problem, schedule = self.problem, self.schedule
        rows, products = spans_of_rows(problem.form, schedule), spans_of_sum(problem.form, schedule)
        #: rows and columns of a piece of work
        self.rows = min(problem.height, prod(rows.values()))
        self.columns = min(problem.columns, schedule.panels * problem.width(schedule))
        #: products that are summed at a time, and how often sums go on
        self.depth = min(problem.depth, prod(products.values()))
        self.blocks = ceil(problem.depth / max(self.depth, 1))
        across = ceil(problem.columns / self.columns)
        self.pieces = problem.outer * ceil(problem.height / self.rows) * across

    @cached_property
    def bytes_a(self) -> int:
        """What a block of the sum reads of the rows' factor."""
        problem, schedule = self.problem, self.schedule
        packing = problem.packing_of_a(
            schedule if schedule.copy_a else replace(schedule, copy_a="window")
        )
        if packing is None:
            return self.rows * self.depth * problem.itemsize
        spans = spans_of_a(problem, schedule)
        if not schedule.copy_a and _strided(
            problem, schedule
        ):  # whole lines, and few sets of a cache
            rows = problem.form.rows[schedule.tile_at]
            spans[rows] = max(int(rows.extent), spans.get(rows, 1))
        return packing.size(spans) * problem.itemsize

    @property
    def strided_b(self) -> bool:
        """Whether the rows of a panel lie apart."""
        return not self.schedule.copy_b and self.problem.columns > self.problem.width(self.schedule)

    @cached_property
    def panel_b(self) -> int:
        """What a panel occupies of the caches: that of neighbours too, if rows lie apart."""
        width = self.problem.columns if self.strided_b else self.problem.width(self.schedule)
        return self.depth * width * self.problem.itemsize

    @cached_property
    def bytes_b(self) -> int:
        """What lies in the second cache while a block of the sum is computed."""
        if self.schedule.copy_b != "block":
            return self.panel_b
        return self.depth * self.columns * self.problem.itemsize

    def cost(self) -> float:
        """The cycles of the whole kernel, as far as blocks decide about them."""
        problem = self.problem
        sums = problem.outer * problem.height * problem.columns
        products = sums * problem.depth / (2 * problem.lanes)
        copies, reads = self._copies(), self._reads_a() + self._reads_b()
        writes = max(0.0, self._writes(sums) - products / 2)
        every = products * (1 + self._stalls()) + copies + reads + self._partials(sums) + writes
        return every * self.imbalance + 300 * self.pieces * self.blocks

    @cached_property
    def imbalance(self) -> float:
        """How much longer the busiest thread works than the average: of two, or of all cores."""
        weights = self._piece_sizes()
        return (2 * imbalance_of(weights, 2) + imbalance_of(weights, self.problem.target.cores)) / 3

    def _piece_sizes(self) -> list[int]:
        """The work in every piece, in order; of many pieces, in as many equal ones."""
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
            each = (
                _COPY if schedule.copy_a != "tiles" or _strided(problem, schedule) else _TRANSPOSE
            )
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
        """What it takes to get the columns' factor from afar, and packed back there."""
        size = self.problem.columns * self.problem.depth * self.problem.itemsize
        return 0.0 if size < self.problem.target.l2 / 2 else 0.8 * size / _FAR

    def _reads_a(self) -> float:
        """Each panel, and each row that shares elements, reads it again: nearby if all fits."""
        problem, schedule = self.problem, self.schedule
        width = problem.width(schedule) * problem.itemsize
        partial = self.rows * width if self.blocks > 1 else 0
        if self.bytes_a + self.bytes_b + partial < 0.7 * problem.target.l2:
            return self.pieces * self.blocks * self.bytes_a / _FAR
        rate = _SCATTERED if not schedule.copy_a and _strided(problem, schedule) else _FAR
        rate = _PACKED if schedule.copy_a == "tiles" else rate
        panels = ceil(self.columns / problem.width(schedule))
        return self.pieces * self.rows * problem.depth * problem.itemsize * panels / rate

    def _reads_b(self) -> float:
        """Each piece of work reads it from afar, each tile of rows again."""
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
        """How much longer products take where the first cache does not hold what they use."""
        problem, schedule, lines = self.problem, self.schedule, 0.0
        height, first = tile_height(problem, schedule), 0.7 * problem.target.l1
        width = problem.width(schedule) * problem.itemsize
        far_b = self.panel_b > first and self.rows > height
        strided = not schedule.copy_a and _strided(problem, schedule)
        lines += width if far_b else 0
        lines += 64 * ceil(height * problem.itemsize / 64 + 0.5) if strided else height * 4
        step = height * schedule.vectors / 2
        waits = max(0.0, lines / 24 - step) / step + 0.05 * far_b + 0.04 * self.strided_b
        return waits + (self._stride_stalls() if strided else 0.0)

    def _stride_stalls(self) -> float:
        """How long products wait where every step of a sum needs other lines, far apart."""
        problem = self.problem
        argument, offset = argument_of(problem.form.kernel.a)
        step = int(offset.factor(problem.form.reduced[-1])) if problem.form.reduced else 0
        near = int(argument.size) * problem.itemsize <= problem.target.l2 / 2
        if near or abs(step) * problem.itemsize < 1024:
            return 0.0
        return 0.45 * max(0.0, self.depth * 128 / problem.target.l1 - 0.45)

    def _writes(self, sums: int) -> float:
        """A large result is written in order only if few rows are in the making at a time."""
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


def _strided(problem: Problem, schedule: Schedule) -> bool:
    """Whether rows lie side by side, so that sums jump from line to line."""
    form = problem.form
    if not form.rows or not problem.is_plain_a:
        return False
    return argument_of(form.kernel.a)[1].factor(form.rows[schedule.tile_at]) == 1


def chunk_sizes(extent: int, size: int) -> list[int]:
    """The lengths of the chunks of a size that cover an extent."""
    return [min(size, extent - start) for start in range(0, extent, size)]


def imbalance_of(weights: Sequence[int], threads: int) -> float:
    """How much longer the busiest of some threads works than the average."""
    ends = [len(weights) * thread // threads for thread in range(threads + 1)]
    shares = [sum(weights[start:end]) for start, end in pairwise(ends)]
    return max(shares) * threads / max(sum(weights), 1)
