"""Schedules: how a contraction may be computed, and what that means for its factors.

A `Schedule` is plain numbers: tiles, blocks, copies. With the form of a contraction and a target (a
`Setting`) they say what a piece of work spans and the layout of packed factors.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
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
