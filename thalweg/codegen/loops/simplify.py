"""Loop kernels in their simplest form.

What comes in is a `Loops` kernel as it was lowered; what goes out is one that means the same:
places are affine in the variables where they can be, equal expressions are one object (reductions
too, whatever their variables were called), loops of one iteration are gone, and nested loops that
read and write every buffer in order are one loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from thalweg.codegen.loops.facts import extent_of
from thalweg.codegen.loops.merge import collapse
from thalweg.ir.expr import (
    COMPARISONS,
    FALSE,
    TRUE,
    Const,
    Expr,
    Reduce,
    Select,
    Variable,
    converted,
    logical,
)
from thalweg.ir.functions.reductions import REDUCTIONS
from thalweg.ir.index import WHOLE, Affine, Term, affine, compared, term_expression, total
from thalweg.ir.kernel import Check, KernelRewriter, Loops, Store
from thalweg.ir.rewrite import free_variables, postorder


def simplest(kernel: Loops) -> Loops:
    """The simplest form of a kernel."""
    stores = tuple(store for store in kernel.stores if not _never(store))
    checks = tuple(check for check in kernel.checks if not _never(check))
    kernel = replace(kernel, stores=stores, checks=checks)
    form = _Simplify(kernel).loops(kernel)
    checks = tuple(check for check in form.checks if check.condition is not TRUE)
    used = {variable for work in (*form.stores, *checks) for variable in work.variables}
    variables = tuple(v for v in form.variables if v in used)
    return collapse(replace(form, variables=variables, checks=checks))


def _never(work: Store | Check) -> bool:
    return any(extent_of(variable) == 0 for variable in work.variables)


class _Simplify(KernelRewriter):
    """Affine places, decided comparisons, no variables of one value, shared reductions."""

    def __init__(self, form: Loops) -> None:
        super().__init__()
        self._renamed = _shared_variables(form)

    def renamed(self, variable: Variable) -> Variable | None:
        return None if extent_of(variable) == 1 else self._renamed.get(variable, variable)

    def rebuilt(self, node: Expr) -> Expr:
        if not isinstance(node, Reduce) or REDUCTIONS[node.combine].gives_position:
            return super().rebuilt(node)
        if not all(extent_of(v) == 1 for v in node.variables):
            return super().rebuilt(node)
        return converted(self.new(node.body), node.dtype)

    def offset(self, offset: Affine) -> Affine:
        parts = [affine(self._term_value(term)).scaled(f) for term, f in offset.terms.items()]
        return total([Affine(offset.constant), *parts]).with_opaque_divisions()

    def _term_value(self, term: Term) -> Expr:
        return self.index(term) if isinstance(term, Variable) else self.new(term_expression(term))

    def store(self, store: Store) -> Store:
        made = super().store(store)
        return replace(made, inside=None) if made.inside is TRUE else made

    def call(self, function: str, arguments: tuple[Expr, ...]) -> Expr:
        if function in COMPARISONS and all(part.dtype in WHOLE for part in arguments):
            decided = compared(function, *map(affine, arguments))
            if decided is not None:
                return TRUE if decided else FALSE
        if function in ("and", "or", "not"):
            return logical(function, arguments)
        return super().call(function, arguments)

    def select(self, condition: Expr, chosen: Expr, otherwise: Expr) -> Expr:
        made = Select(condition, chosen, otherwise)
        if not isinstance(condition, Const):
            return made
        return converted(chosen if condition.value else otherwise, made.dtype)


def _shared_variables(form: Loops) -> dict[Variable, Variable]:
    """One variable for all reduced ones of the same extent that are never bound in one another.

    It is one of the kernel's own where the reductions do not depend on that, so that what they and
    the kernel's loops compute is the same expression. A reduction's height is one more than that of
    those inside it that use its variables.
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
        if len(height) == 1 and extent_of(variable) != 1:
            taken = {renamed.get(v) for expr in exprs for v in expr.variables}
            own = _own_variable(form, variable, exprs, taken) if height == {1} else None
            key = height.pop(), exprs[0].variables.index(variable), variable.extent
            renamed[variable] = own or shared.setdefault(key, variable)
    return renamed


def _own_variable(
    form: Loops, variable: Variable, exprs: Sequence[Reduce], taken: set[Variable | None]
) -> Variable | None:
    """The innermost variable of the kernel that a reduced one may be, if there is one."""
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
