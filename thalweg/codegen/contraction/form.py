"""The canonical form of contractions: the fewest variables, and their roles.

A `Contraction` comes in as it was lowered. An equivalent one goes out: unit variables are dropped,
jointly contiguous ones merged (a 1x1 convolution becomes a matrix product), and the factors swapped
where rows, not columns, are contiguous in the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from thalweg.codegen.loops.simplify import jointly_contiguous
from thalweg.ir.dynamic import is_static, times
from thalweg.ir.expr import Expr, Index, Load, Variable, call
from thalweg.ir.functions.reductions import REDUCTIONS
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Contraction, RenameVariables, Store
from thalweg.ir.rewrite import postorder


class NotContraction(Exception):
    """The contraction kernels do not support this contraction: it is emitted as plain loops."""


def loads_of(expression: Expr | None) -> list[Load]:
    """The loads in an expression, those in computed offsets included."""
    return [part for part in postorder([expression]) if isinstance(part, Load)]


def _pinned(kernel: Contraction) -> set[Variable]:
    """The variables whose value is used (`Index`): they cannot be merged."""
    return {part.variable for part in kernel.every(Index)}


def canonicalize(kernel: Contraction) -> Contraction:
    """The kernel over the fewest variables, its result contiguous along columns if possible."""
    kernel = normalized(kernel)
    return swapped(kernel) if _should_swap(kernel) else kernel


def normalized(kernel: Contraction) -> Contraction:
    """The kernel over the fewest variables, with plain stores and without redundant bounds."""
    return _merge_variables(
        _drop_redundant_bounds(_drop_unit_variables(_shrink_reduced(with_plain_stores(kernel))))
    )


def with_plain_stores(kernel: Contraction) -> Contraction:
    """The kernel with stores that load what they combine with, and then set."""

    def plain(store: Store) -> Store:
        value = store.value
        if store.combine != "set":
            old = Load(store.buffer, store.offset)
            value = call(REDUCTIONS[store.combine].function, old, value)
        return replace(store, value=value, combine="set")

    return replace(kernel, stores=tuple(plain(store) for store in kernel.stores))


def _shrink_reduced(kernel: Contraction) -> Contraction:
    """Shorten reduced variables to what bounds on them alone allow; other terms are zero. The
    phases of a strided convolution's gradient have fewer taps than its window."""
    ends: dict[Variable, int] = {}
    for low, offset, high in (*kernel.a.bounds, *kernel.b.bounds):
        ((variable, factor),) = offset.terms.items() if len(offset.terms) == 1 else ((None, 0),)
        if not isinstance(variable, Variable) or variable not in kernel.reduced:
            continue
        if not all(map(is_static, (variable.extent, factor, offset.constant, low, high))):
            continue
        if factor > 0 and low <= offset.constant:
            end = -(-(high - offset.constant) // factor)
            ends[variable] = min(ends.get(variable, variable.extent), max(end, 1))
    shorter = {v: Variable(end, v.name) for v, end in ends.items() if end < v.extent}
    return RenameVariables(dict(shorter)).contraction(kernel) if shorter else kernel


def _drop_unit_variables(kernel: Contraction) -> Contraction:
    pinned = _pinned(kernel)
    units = [v for group in _groups(kernel) for v in group if is_static(v.extent) and v.extent == 1]
    return RenameVariables({v: None for v in units if v not in pinned}).contraction(kernel)


def _drop_redundant_bounds(kernel: Contraction) -> Contraction:
    """The kernel without bounds that always hold."""
    a, b = (
        replace(side, bounds=tuple(bound for bound in side.bounds if not _always_holds(*bound)))
        for side in (kernel.a, kernel.b)
    )
    return replace(kernel, a=a, b=b)


def _always_holds(low: int, offset: Affine, high: int) -> bool:
    least, most = offset.bounds
    return is_static(low) and is_static(high) and low <= least and most < high


def _groups(kernel: Contraction) -> list[tuple[Variable, ...]]:
    return [kernel.batch, kernel.rows, kernel.columns, kernel.reduced]


def _merge_variables(kernel: Contraction) -> Contraction:
    pinned, offsets = _pinned(kernel), kernel.offsets
    for group in _groups(kernel):
        for outer, inner in permutations(group, 2):
            if pinned.isdisjoint((outer, inner)) and jointly_contiguous(offsets, outer, inner):
                both = Variable(times(outer.extent, inner.extent), f"{outer.name}{inner.name}")
                return _merge_variables(
                    RenameVariables({outer: None, inner: both}).contraction(kernel)
                )
    return kernel


def _should_swap(kernel: Contraction) -> bool:
    if not kernel.rows:
        return False
    if not kernel.columns:
        return depthwise_lane(kernel) is None and not kernel.a.bounds
    return has_contiguous_rows(kernel) or _rows_fit_lanes(kernel)


def _rows_fit_lanes(kernel: Contraction) -> bool:
    """Whether to swap a few rows into the lanes, so that the columns' factor, which is contiguous
    along the sum, is read in place. That pays where transposing that factor would cost more than
    scattering the result.
    """
    groups = kernel.rows, kernel.columns, kernel.reduced
    if kernel.batch or kernel.a.bounds or kernel.b.bounds or any(len(g) != 1 for g in groups):
        return False
    (row,), (column,), (summed,) = groups
    if not all(is_static(v.extent) for v in (row, column, summed)):
        return False
    if row.extent not in (16, 32, 48) or column.extent < 4 * row.extent:
        return False
    if not isinstance(kernel.b.value, Load) or kernel.b.value.offset.factor(summed) != 1:
        return False
    values = [part for store in kernel.stores for part in (store.value, store.inside)]
    scattered = len(kernel.stores) + sum(1 for value in values for _ in loads_of(value))
    return scattered * 200 <= summed.extent


def has_contiguous_rows(kernel: Contraction) -> bool:
    """Whether rows, and not columns, are contiguous in the result."""
    return not _contiguous(kernel, kernel.columns) and _contiguous(kernel, kernel.rows)


def _contiguous(kernel: Contraction, variables: Sequence[Variable]) -> bool:
    return any(s.offset.factor(v) == 1 for s in kernel.stores for v in variables)


def swapped(kernel: Contraction) -> Contraction:
    """The same kernel with its factors swapped."""
    return replace(kernel, rows=kernel.columns, columns=kernel.rows, a=kernel.b, b=kernel.a)


def depthwise_lane(kernel: Contraction) -> Variable | None:
    """The batch variable along which both factors and the result are contiguous (depthwise)."""
    offsets = [load.offset for side in (kernel.a, kernel.b) for load in loads_of(side.value)]
    offsets += [store.offset for store in kernel.stores]
    return next((v for v in kernel.batch if all(o.factor(v) == 1 for o in offsets)), None)


@dataclass(frozen=True, eq=False)
class Form:
    """A canonical contraction and the roles of its variables.

    `lane` is vectorized: a column, or a batch variable in both factors (depthwise). `outer` are the
    outermost loops.
    """

    kernel: Contraction
    lane: Variable
    outer: tuple[Variable, ...]
    rows: tuple[Variable, ...]
    reduced: tuple[Variable, ...]
    depthwise: bool = False


def form_of(kernel: Contraction) -> Form:
    """Canonicalize a contraction and assign roles to its variables."""
    kernel = canonicalize(kernel)
    if not kernel.stores:
        raise NotContraction("nothing is stored")
    lane = _column_lane(kernel)
    batch = None if lane else depthwise_lane(kernel)
    lane = lane or batch or Variable(1, "one")
    outer = tuple(v for v in (*kernel.batch, *kernel.columns) if v is not lane)
    return Form(kernel, lane, outer, kernel.rows, kernel.reduced, batch is not None)


def _column_lane(kernel: Contraction) -> Variable | None:
    if not kernel.columns:
        return None
    loads = [load.offset for load in loads_of(kernel.b.value)]

    def priority(variable: Variable) -> tuple[bool, bool]:
        stored = any(store.offset.factor(variable) == 1 for store in kernel.stores)
        return stored, any(offset.factor(variable) == 1 for offset in loads)

    return max(kernel.columns, key=priority)
