"""The canonical form of loop kernels, and static facts about their expressions.

A `Loops` kernel comes in as it was lowered. An equivalent one goes out: offsets are affine where
possible, equal expressions are one object (reductions too, up to renaming of their variables),
loops of one iteration are dropped, and nested loops that traverse every buffer contiguously are
collapsed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from thalweg.ir.dynamic import Dynamic, is_static, times
from thalweg.ir.expr import (
    TRUE,
    Expr,
    Index,
    Reduce,
    Scan,
    Variable,
    constant,
    converted,
    select,
)
from thalweg.ir.functions.reductions import REDUCTIONS
from thalweg.ir.index import Affine, affine, simplified_call
from thalweg.ir.kernel import Check, Loops, RenameVariables, Store
from thalweg.ir.rewrite import free_variables, postorder


def static_extent(variable: Variable) -> int | None:
    """The extent of a variable, or None if it is known only at run time."""
    return None if isinstance(variable.extent, Dynamic) else variable.extent


def stride(offset: Affine, variable: Variable) -> int | None:
    """The stride of a variable in an offset, or None if it is known only at run time."""
    factor = offset.factor(variable)
    return None if isinstance(factor, Dynamic) else factor


def canonicalize(kernel: Loops) -> Loops:
    """The canonical form of a kernel."""
    stores = tuple(store for store in kernel.stores if not _is_empty(store))
    checks = tuple(check for check in kernel.checks if not _is_empty(check))
    kernel = replace(kernel, stores=stores, checks=checks)
    form = _Canonicalize(kernel).loops(kernel)
    checks = tuple(check for check in form.checks if check.condition is not TRUE)
    used = {variable for each in (*form.stores, *checks) for variable in each.variables}
    variables = tuple(v for v in form.variables if v in used)
    return collapse(replace(form, variables=variables, checks=checks))


def _is_empty(statement: Store | Check) -> bool:
    return any(static_extent(variable) == 0 for variable in statement.variables)


class _Canonicalize(RenameVariables):
    """Makes offsets affine, folds decided comparisons, drops unit loops, shares reductions."""

    def __init__(self, form: Loops) -> None:
        super().__init__(_shared_variables(form))

    def renamed(self, variable: Variable) -> Variable | None:
        return None if static_extent(variable) == 1 else super().renamed(variable)

    def rebuilt(self, node: Expr) -> Expr:
        if not isinstance(node, Reduce) or REDUCTIONS[node.combine].gives_position:
            return super().rebuilt(node)
        if not all(static_extent(v) == 1 for v in node.variables):
            return super().rebuilt(node)
        return converted(self.new(node.body), node.dtype)

    def term(self, term: Variable | Expr) -> Affine:
        return affine(self.index(term) if isinstance(term, Variable) else self.new(term))

    def call(self, function: str, arguments: tuple[Expr, ...]) -> Expr:
        return simplified_call(function, arguments)


def _shared_variables(form: Loops) -> dict[Variable, Variable]:
    """One variable for all reduced variables of the same extent that are never nested.

    It is a loop variable of the kernel if the reductions do not depend on that one, so that the
    reductions and the loops share expressions. A reduction's height is one more than that of the
    reductions inside it that use its variables.
    """
    heights: dict[Expr, int] = {}
    binders: dict[Variable, list[Reduce]] = {}
    for expr in form.every(Reduce):
        heights[expr] = _height(expr, heights)
        for variable in reversed(expr.variables):
            binders.setdefault(variable, []).append(expr)
    shared: dict[Any, Variable] = {}
    renamed: dict[Variable, Variable] = {}
    for variable, exprs in binders.items():
        height = {heights[expr] for expr in exprs}
        if len(height) == 1 and static_extent(variable) != 1:
            taken = {renamed.get(v) for expr in exprs for v in expr.variables}
            own = _own_variable(form, variable, exprs, taken) if height == {1} else None
            key = height.pop(), exprs[0].variables.index(variable), variable.extent
            renamed[variable] = own or shared.setdefault(key, variable)
    return renamed


def _own_variable(
    form: Loops, variable: Variable, exprs: Sequence[Reduce], taken: set[Variable | None]
) -> Variable | None:
    """The innermost loop variable of the kernel that may replace a reduced one, if any."""
    for own in reversed(form.variables):
        used = own in taken or own in form.serial or own.extent != variable.extent
        if not used and not any(own in free_variables(expr) for expr in exprs):
            return own
    return None


def _height(expr: Reduce, heights: dict[Expr, int]) -> int:
    own = frozenset(expr.variables)
    inner = [
        heights[part]
        for part in postorder([expr.body])
        if isinstance(part, Reduce) and free_variables(part) & own
    ]
    return 1 + max(inner, default=0)


def collapse(form: Loops) -> Loops:
    """The kernel with adjacent loops collapsed that traverse every buffer as one loop would."""
    nests = [form.variables, *(expr.variables for expr in form.every(Reduce))]
    pairs = dict.fromkeys(pair for nest in nests for pair in pairwise(nest))
    used = _used_variables(form)
    for outer, inner in pairs:
        if used.isdisjoint((outer, inner)) and _are_one_loop(form, nests, outer, inner):
            both = Variable(times(outer.extent, inner.extent), f"{outer.name}.{inner.name}")
            return collapse(RenameVariables({outer: None, inner: both}).loops(form))
    return form


def _used_variables(form: Loops) -> set[Variable]:
    """The variables whose values matter, not only the elements that they reach."""
    used = {part.variable for part in form.parts if isinstance(part, Index | Scan)}
    positions = [r for r in form.every(Reduce) if REDUCTIONS[r.combine].gives_position]
    return used.union(*(expr.variables for expr in positions))


def _are_one_loop(
    form: Loops, nests: Sequence[Sequence[Variable]], outer: Variable, inner: Variable
) -> bool:
    """Whether two variables are adjacent in every nest, with no statement between them, step
    through all buffers as one, and collide in stores or not alike."""
    if not all((outer, inner) in pairwise(n) for n in nests if outer in n or inner in n):
        return False
    groups = [form.serial, *(work.variables for work in (*form.stores, *form.checks))]
    groups += [store.distinct for store in form.stores]
    if any((outer in group) != (inner in group) for group in groups):
        return False
    return jointly_contiguous(form.offsets, outer, inner)


def jointly_contiguous(offsets: Iterable[Affine], outer: Variable, inner: Variable) -> bool:
    """Whether two variables step through all offsets as one over both would."""
    if not is_static(inner.extent):
        return False
    pairs = [(offset.factor(outer), offset.factor(inner)) for offset in offsets]
    return all(
        is_static(far) and is_static(near) and far == near * inner.extent for far, near in pairs
    )


# Scans that are not done in one pass


def without_scans(form: Loops, slow: set[Scan]) -> Loops:
    """The kernel with some scans as reductions, guarded to the elements up to each index."""
    return _ScansToReductions(slow).loops(form)


class _ScansToReductions(RenameVariables):
    """Replaces scans by reductions over a guarded body."""

    def __init__(self, slow: set[Scan]) -> None:
        super().__init__({})
        self._slow = slow

    def rebuilt(self, node: Expr) -> Expr:
        if not isinstance(node, Scan) or node not in self._slow:
            return super().rebuilt(node)
        here = node.variable
        there = Variable(here.extent, f"{here.name}.scan")
        earlier, later = (Index(there), Index(here))[:: -1 if node.reverse else 1]
        counts = earlier < later if node.exclusive else earlier <= later
        moved = RenameVariables({here: there}).of(self.new(node.body))
        start = constant(REDUCTIONS[node.combine].identity(node.dtype))
        return Reduce(node.combine, (there,), select(counts, moved, start))
