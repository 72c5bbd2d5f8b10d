"""Loop kernels in their simplest form.

What comes in is a `Loops` kernel as it was lowered; what goes out is a `Form` that means the same:
places are affine in the variables where they can be, equal expressions are one object (reductions
too, whatever their variables were called), loops of one turn are gone, and loops that walk a buffer
in one sweep are one loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from thalweg.codegen.loops.facts import extent_of, limits
from thalweg.codegen.loops.form import Form, rebuild_form
from thalweg.codegen.loops.merge import collapse
from thalweg.ir.expr import (
    FALSE,
    TRUE,
    Call,
    Cast,
    Const,
    Expr,
    Index,
    Reduce,
    Select,
    constant,
    converted,
    logical,
)
from thalweg.ir.kernel import Check, Dynamic, Loops, Offset, Store
from thalweg.ir.loop import Variable
from thalweg.ir.rewrite import Rewriter, free_variables, postorder

_WHOLE = frozenset({np.dtype(np.int32), np.dtype(np.int64)})


def simplest(kernel: Loops) -> Form:
    """The simplest form of a kernel."""
    form = Form(
        kernel.arguments, kernel.variables, list(kernel.stores), list(kernel.checks), kernel.serial
    )
    form.stores = [store for store in form.stores if not _never(store)]
    form.checks = [check for check in form.checks if not _never(check)]
    rebuild_form(form, _Simplify(form))
    used = {variable for work in (*form.stores, *form.checks) for variable in work.variables}
    form.variables = tuple(v for v in form.variables if v in used)
    collapse(form)
    return form


def _never(work: Store | Check) -> bool:
    return any(extent_of(variable) == 0 for variable in work.variables)


# Affine numbers


@dataclass
class Affine:
    """An integer as constant + Σ factor · variable + Σ factor · something else."""

    constant: int = 0
    variables: dict[Variable, int] = field(default_factory=dict[Variable, int])
    others: list[tuple[int, Expr]] = field(default_factory=list[tuple[int, Expr]])

    def add(self, other: Affine, factor: int = 1) -> Affine:
        """The sum with a multiple of another."""
        made = Affine(self.constant + factor * other.constant, dict(self.variables), [*self.others])
        for variable, own in other.variables.items():
            made.variables[variable] = made.variables.get(variable, 0) + factor * own
        made.others += [(factor * own, expr) for own, expr in other.others]
        return made

    def range(self) -> tuple[int, int] | None:
        """The least and the greatest value, if they are known."""
        return None if self.others else limits(self.offset())

    def offset(self) -> Offset:
        """This number as a place."""
        terms = [(f, v) for v, f in self.variables.items() if f != 0]
        return Offset(self.constant, (*terms, *self.others))


def affine(number: Expr) -> Affine:
    """An integer expression as an affine one; what is not affine in it is a term of its own."""
    if isinstance(number, Const):
        return Affine(int(number.value))
    if isinstance(number, Index):
        return Affine(0, {number.variable: 1})
    if number.dtype in _WHOLE and (found := _affine_call(number)) is not None:
        return found
    return Affine(0, {}, [(1, number)])


def _affine_call(number: Expr) -> Affine | None:
    match number:
        case Call(function="add", arguments=(a, b)):
            return affine(a).add(affine(b))
        case Call(function="sub", arguments=(a, b)):
            return affine(a).add(affine(b), -1)
        case Call(function="neg", arguments=(a,)):
            return Affine().add(affine(a), -1)
        case Call(function="mul", arguments=(a, Const(value=b)) | (Const(value=b), a)):
            return Affine().add(affine(a), int(b))
        case Cast(value=a):
            inner = affine(a)
            return inner if inner.range() is not None else None
        case Call(function="floor_div" | "remainder", arguments=(a, Const(value=b))):
            return _divided(number.function, affine(a), int(b))
        case _:
            return None


def _divided(function: str, number: Affine, divisor: int) -> Affine | None:
    """A quotient or remainder, if the number falls into multiples and a rest below the divisor."""
    if divisor <= 0 or number.others:
        return None
    whole = Affine(number.constant // divisor)
    rest = Affine(number.constant % divisor)
    for variable, factor in number.variables.items():
        into, share = (whole, factor // divisor) if factor % divisor == 0 else (rest, factor)
        into.variables[variable] = share
    reach = rest.range()
    if reach is None or reach[0] < 0 or reach[1] >= divisor:
        return None
    return whole if function == "floor_div" else rest


_ORDERS: dict[str, Callable[[int, int], bool | None]] = {
    # what a - b in low … high decides
    "lt": lambda low, high: True if high < 0 else False if low >= 0 else None,
    "le": lambda low, high: True if high <= 0 else False if low > 0 else None,
    "gt": lambda low, high: True if low > 0 else False if high <= 0 else None,
    "ge": lambda low, high: True if low >= 0 else False if high < 0 else None,
}


# Simplification


class _Simplify(Rewriter):
    """Affine places, decided comparisons, no variables of one value, shared reductions."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self._renamed = _shared_variables(form)

    def variables(self, variables: tuple[Variable, ...]) -> tuple[Variable, ...]:
        return tuple(self._renamed.get(v, v) for v in variables if extent_of(v) != 1)

    def index(self, variable: Variable) -> Expr:
        if extent_of(variable) == 1:
            return constant(0)
        return Index(self._renamed.get(variable, variable))

    def rebuilt(self, node: Expr) -> Expr:
        if not isinstance(node, Reduce) or node.combine in ("argmax", "argmin"):
            return super().rebuilt(node)
        if not all(extent_of(v) == 1 for v in node.variables):
            return super().rebuilt(node)
        return converted(self.new(node.body), node.dtype)

    def offset(self, offset: Offset) -> Offset:
        total, fixed = Affine(), list[tuple[int, Any]]()
        for factor, term in offset.terms:
            number = self.index(term) if isinstance(term, Variable) else self.new(term)
            if isinstance(factor, Dynamic) or isinstance(offset.constant, Dynamic):
                fixed += self._unchanged(factor, term, number)
            else:
                total = total.add(affine(number), factor)
        place = total.offset()
        if isinstance(offset.constant, Dynamic):
            return Offset(offset.constant, tuple(fixed))
        return Offset(offset.constant + place.constant, (*place.terms, *fixed))

    def _unchanged(self, factor: int, term: Any, number: Any) -> list[tuple[int, Any]]:
        if not isinstance(term, Variable):
            return [(factor, number)]
        if extent_of(term) == 1:
            return []
        return [(factor, self._renamed.get(term, term))]

    def call(self, function: str, arguments: tuple[Expr, ...]) -> Expr:
        if function in _ORDERS:
            decided = _decided(function, *arguments)
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


def _decided(function: str, a: Expr, b: Expr) -> bool | None:
    """A comparison of indices that is the same everywhere."""
    if a.dtype not in _WHOLE or b.dtype not in _WHOLE:
        return None
    reach = affine(a).add(affine(b), -1).range()
    return None if reach is None else _ORDERS[function](*reach)


def _shared_variables(form: Form) -> dict[Variable, Variable]:
    """One variable for all reduced ones of the same extent that are never bound in one another.

    It is one of the kernel's own where the reductions do not depend on that, so that what they and
    the kernel's loops compute is the same expression. A reduction's height is one more than that of
    those inside it that use its variables.
    """
    heights: dict[Expr, int] = {}
    binders: dict[Variable, list[Reduce]] = {}
    for expr in postorder(form.roots):
        if isinstance(expr, Reduce):
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
    form: Form, variable: Variable, exprs: Sequence[Reduce], taken: set[Variable | None]
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
