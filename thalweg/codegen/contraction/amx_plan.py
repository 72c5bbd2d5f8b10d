"""Which contractions the matrix unit of a processor takes, and how they are cut for it.

What comes in is a contraction in its simplest form; what goes out is a schedule, where both factors
are bfloat16 numbers, the target multiplies them by tiles, and there are enough of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, prod

import ml_dtypes
import numpy as np

from thalweg.codegen.contraction.form import Form, form_of, loads_of
from thalweg.codegen.contraction.schedule import Schedule, Setting, even, last_dynamic, uses
from thalweg.codegen.machine import CpuTarget
from thalweg.ir.dynamic import is_static
from thalweg.ir.expr import Cast, Load
from thalweg.ir.kernel import Access, Contraction
from thalweg.ir.loop import Variable

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)  # what the unit multiplies
SIDE = 16  # rows and columns of a tile
DEPTH = 32  # numbers that a step of the unit sums

_LEAST = 1 << 15  # products below which packing is likely to take longer; not measured


@dataclass(frozen=True)
class Roles:
    """A contraction of bfloat16 numbers: its factors as such, and the variable that steps go by."""

    form: Form
    a: Access
    b: Access
    hot: Variable


def has_unit(target: CpuTarget) -> bool:
    """Whether the processor multiplies tiles of bfloat16 numbers."""
    return target.has("amx-bf16") and target.has("amx-tile") and target.vector_bytes == 64


def on_matrix_unit(kernel: Contraction, target: CpuTarget) -> bool:
    """Whether a contraction runs on the matrix unit of a target."""
    return has_unit(target) and matrix_schedule(Setting(form_of(kernel), target)) is not None


def roles_of(form: Form) -> Roles | None:
    """The roles where both factors are bfloat16 numbers, summed as float32 over known extents."""
    kernel = form.kernel
    if np.dtype(kernel.dtype) != np.float32 or form.depthwise or not form.reduced:
        return None
    if not all(is_static(v.extent) and v.extent for v in (form.lane, *form.reduced)):
        return None
    a, b = (_shortened(side) for side in (kernel.a, kernel.b))
    if a is None or b is None:
        return None
    return Roles(form, a, b, _hot(form))


def _shortened(access: Access) -> Access | None:
    """The factor as a bfloat16 number, if it is one."""
    value = access.value
    if isinstance(value, Cast) and value.target == np.float32:
        value = value.value
    return replace(access, value=value) if value.dtype == BFLOAT16 else None


def _hot(form: Form) -> Variable:
    """The variable that fills steps best; of equals one along which the rows' factor lies."""
    places = [load.offset for load in loads_of(form.kernel.a.value)]

    def worth(variable: Variable) -> tuple[float, bool]:
        filled = variable.extent / (ceil(variable.extent / DEPTH) * DEPTH)
        return round(filled, 1), any(offset.factor(variable) == 1 for offset in places)

    return max(form.reduced, key=worth)


def matrix_schedule(setting: Setting) -> Schedule | None:
    """The schedule for the matrix unit, where the target has one and it pays."""
    form = setting.form
    if not has_unit(setting.target) or (roles := roles_of(form)) is None:
        return None
    if setting.height * setting.columns * setting.depth < _LEAST:
        return None
    tile = 2 * SIDE if setting.height > SIDE else SIDE
    made = Schedule(
        min(2, ceil(setting.columns / SIDE)), max(0, len(form.rows) - 1), tile, matrix=True
    )
    made = replace(made, copy_b=_copy_of_b(form), copy_a="" if _lies(roles, tile) else "dense")
    return _with_pieces(setting, made)


def _copy_of_b(form: Form) -> str:
    """Whether all threads pack the columns' factor first, or each piece of work what it needs."""
    return "block" if any(v in uses(form.kernel.b) for v in form.outer) else "shared"


def _lies(roles: Roles, tile: int) -> bool:
    """Whether the rows' factor can be read where it lies: by whole tiles of it."""
    form, access = roles.form, roles.a
    if not isinstance(access.value, Load) or access.bounds or len(form.reduced) != 1:
        return False
    if len(form.rows) != 1 or form.reduced[0].extent % DEPTH or not is_static(form.rows[0].extent):
        return False
    offset = access.value.offset
    if not offset.is_plain or not is_static(offset.factor(form.rows[0])):
        return False
    return offset.factor(form.reduced[0]) == 1 and form.rows[0].extent % tile == 0


def _with_pieces(setting: Setting, made: Schedule) -> Schedule:
    """Rows that the second cache holds beside a panel, but some pieces for every core."""
    form, extents, cores = setting.form, setting.row_extents, setting.target.cores
    panels = setting.panels(made)
    if not extents:
        return replace(made, panels=even(panels, cores))
    room = max(made.tile, setting.target.l2 // 4 // (2 * setting.depth))
    at = last_dynamic(form.rows)
    while at < len(extents) - 1 and prod(extents[at + 1 :]) > room:
        at += 1
    inner = prod(extents[at + 1 :])
    before = setting.outer * prod(extents[:at])
    wanted = ceil(2 * cores / before)  # blocks
    block = max(1, min(room // inner, ceil(extents[at] / wanted)))
    if inner == 1:
        block = ceil(block / made.tile) * made.tile
    pieces = before * ceil(extents[at] / block)
    across = 1 if made.copy_b == "block" else ceil(cores / pieces)
    return replace(made, block_at=at, block=block, panels=even(panels, across))
