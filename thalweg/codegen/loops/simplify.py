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

from thalweg.codegen.loops.facts import Facts, extent_of, limits, parts, postorder
from thalweg.codegen.loops.form import Form, Rebuild, key_of, rebuild_form
from thalweg.codegen.loops.merge import collapse
from thalweg.ir.expr import Expr
from thalweg.ir.kernel import Check, Dynamic, Loops, Offset, Store
from thalweg.ir.loop import Variable
from thalweg.ir.types import dtype_of

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


def affine(number: Any) -> Affine:
    """An integer expression as an affine one; what is not affine in it is a term of its own."""
    if not isinstance(number, Expr):
        return Affine(int(number))
    if number.function == "index" and isinstance(number.arguments[0], Variable):
        return Affine(0, {number.arguments[0]: 1})
    if dtype_of(number) in _WHOLE and (found := _affine_call(number)) is not None:
        return found
    return Affine(0, {}, [(1, number)])


def _affine_call(number: Expr) -> Affine | None:
    match number.function, number.arguments:
        case "add", (a, b):
            return affine(a).add(affine(b))
        case "sub", (a, b):
            return affine(a).add(affine(b), -1)
        case "neg", (a,):
            return Affine().add(affine(a), -1)
        case ("mul", (a, int(b))) | ("mul", (int(b), a)):
            return Affine().add(affine(a), int(b))
        case "cast", (Expr() as a, _):
            inner = affine(a)
            return inner if inner.range() is not None else None
        case "floor_div" | "remainder", (a, int(b)):
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


class _Simplify(Rebuild):
    """Affine places, decided comparisons, no variables of one value, shared reductions."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self._renamed = _shared_variables(form)

    def variables(self, old: tuple[Variable, ...]) -> tuple[Variable, ...]:
        return tuple(self._renamed.get(v, v) for v in old if extent_of(v) != 1)

    def index(self, variable: Variable) -> Any:
        if extent_of(variable) == 1:
            return np.int64(0)
        return self.make("index", self._renamed.get(variable, variable))

    def rebuilt(self, expr: Expr) -> Any:
        if expr.function == "reduce" and expr.arguments[0] not in ("argmax", "argmin"):
            kind, variables, body = expr.arguments
            typed = isinstance(body, Expr | np.generic | bool)
            if typed and all(extent_of(v) == 1 for v in variables):
                return self._alone(kind, self.new(body))
        return super().rebuilt(expr)

    def _alone(self, kind: str, body: Any) -> Any:
        return self.call("cast", body, np.dtype(np.bool_)) if kind in ("all", "any") else body

    def offset(self, old: Offset) -> Offset:
        total, fixed = Affine(), list[tuple[int, Any]]()
        for factor, term in old.terms:
            number = self.index(term) if isinstance(term, Variable) else self.new(term)
            if isinstance(factor, Dynamic) or isinstance(old.constant, Dynamic):
                fixed += self._unchanged(factor, term, number)
            else:
                total = total.add(affine(number), factor)
        place = total.offset()
        if isinstance(old.constant, Dynamic):
            return Offset(old.constant, tuple(fixed))
        return Offset(old.constant + place.constant, (*place.terms, *fixed))

    def _unchanged(self, factor: int, term: Any, number: Any) -> list[tuple[int, Any]]:
        if not isinstance(term, Variable):
            return [(factor, number)]
        if extent_of(term) == 1:
            return []
        return [(factor, self._renamed.get(term, term))]

    def call(self, function: str, *arguments: Any) -> Any:
        match function, arguments:
            case (("lt" | "le" | "gt" | "ge"), (a, b)):
                decided = _decided(function, a, b)
                return self.make(function, a, b) if decided is None else decided
            case ("and", (True, other)) | ("and", (other, True)) if _is_bool(other):
                return other
            case ("or", (False, other)) | ("or", (other, False)) if _is_bool(other):
                return other
            case ("and", (False, _)) | ("and", (_, False)):
                return False
            case ("or", (True, _)) | ("or", (_, True)):
                return True
            case "not", (bool() as known,):
                return not known
            case "select", (bool() as known, chosen, otherwise):
                return self._selected(chosen if known else otherwise, chosen, otherwise)
            case _:
                return self.make(function, *arguments)

    def _selected(self, kept: Any, chosen: Any, otherwise: Any) -> Any:
        """A branch of a select, of the dtype that both had together."""
        dtype = dtype_of(self.make("select", False, chosen, otherwise))
        if isinstance(kept, Expr) and dtype_of(kept) == dtype:
            return kept
        return self.make("cast", kept, dtype)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool) or (
        isinstance(value, Expr) and dtype_of(value) == np.dtype(np.bool_)
    )


def _decided(function: str, a: Any, b: Any) -> bool | None:
    """A comparison of indices that is the same everywhere."""
    if not all(_is_index(side) for side in (a, b)):
        return None
    reach = affine(a).add(affine(b), -1).range()
    return None if reach is None else _ORDERS[function](*reach)


def _is_index(side: Any) -> bool:
    if isinstance(side, Expr):
        return dtype_of(side) in _WHOLE
    return isinstance(side, int | np.integer) and not isinstance(side, bool)


def _shared_variables(form: Form) -> dict[Variable, Variable]:
    """One variable for all reduced ones of the same extent that are never bound in one another.

    It is one of the kernel's own where the reductions do not depend on that, so that what they and
    the kernel's loops compute is the same expression. A reduction's height is one more than that of
    those inside it that use its variables.
    """
    heights: dict[Expr, int] = {}
    binders: dict[Variable, list[Expr]] = {}
    for expr in postorder(form.roots):
        if expr.function == "reduce":
            heights[expr] = _height(expr, heights, form.facts)
            for variable in reversed(expr.arguments[1]):
                binders.setdefault(variable, []).append(expr)
    shared: dict[Any, Variable] = {}
    renamed: dict[Variable, Variable] = {}
    for variable, exprs in binders.items():
        height = {heights[expr] for expr in exprs}
        if len(height) == 1 and extent_of(variable) != 1:
            taken = {renamed.get(v) for expr in exprs for v in expr.arguments[1]}
            own = _own_variable(form, variable, exprs, taken) if height == {1} else None
            key = height.pop(), exprs[0].arguments[1].index(variable), key_of(variable.extent)
            renamed[variable] = own or shared.setdefault(key, variable)
    return renamed


def _own_variable(
    form: Form, variable: Variable, exprs: Sequence[Expr], taken: set[Variable | None]
) -> Variable | None:
    """The innermost variable of the kernel that a reduced one may be, if there is one."""
    extent = key_of(variable.extent)
    for own in reversed(form.variables):
        used = own in taken or own in form.serial or key_of(own.extent) != extent
        if not used and not any(own in form.facts.free(expr) for expr in exprs):
            return own
    return None


def _height(expr: Expr, heights: dict[Expr, int], facts: Facts) -> int:
    own = frozenset(expr.arguments[1])
    inner = [
        heights[part]
        for part in postorder(parts(expr))
        if part.function == "reduce" and facts.free(part) & own
    ]
    return 1 + max(inner, default=0)
