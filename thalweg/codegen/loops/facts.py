"""Facts about the expressions of loop kernels: parts, free variables, reach, strides.

What comes in are expressions and places as `thalweg.ir.kernel` has them; what goes out is what
can be said about them without running anything.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import Any

import numpy as np

from thalweg.ir.expr import Expr
from thalweg.ir.functions.table import FUNCTIONS
from thalweg.ir.kernel import Argument, Check, Dynamic, Offset, Store
from thalweg.ir.loop import Variable
from thalweg.ir.types import dtype_of
from thalweg.platform.dtype_traits import bounds


def parts(expr: Expr) -> list[Expr]:
    """The expressions that an expression is made of, those in places included."""
    match expr.function:
        case "load":
            return [term for _, term in expr.arguments[1].terms if isinstance(term, Expr)]
        case "reduce" | "scan":
            body = expr.arguments[2]
            return [body] if isinstance(body, Expr) else []
        case _:
            return [part for part in expr.arguments if isinstance(part, Expr)]


def postorder(roots: Iterable[Any], known: Container[Expr] = ()) -> Iterator[Expr]:
    """All expressions under some roots, each once, parts before what they are part of.

    Those that are known already are left out, and what is under them.
    """
    pending = [(root, False) for root in roots if isinstance(root, Expr)]
    pending.reverse()
    seen = set[Expr]()
    while pending:
        expr, ready = pending.pop()
        if ready:
            yield expr
        elif expr not in seen and expr not in known:
            seen.add(expr)
            pending.append((expr, True))
            pending += [(part, False) for part in reversed(parts(expr))]


def outside_reductions(roots: Iterable[Any]) -> set[Expr]:
    """All expressions under some roots that are not part of the body of a reduction."""
    found = set[Expr]()
    pending = [root for root in roots if isinstance(root, Expr)]
    while pending:
        expr = pending.pop()
        if expr not in found:
            found.add(expr)
            pending += [] if expr.function == "reduce" else parts(expr)
    return found


def roots_of(work: Store | Check) -> list[Any]:
    """The expressions that a store or a check computes."""
    if isinstance(work, Check):
        return [work.condition]
    places = [term for _, term in work.offset.terms if isinstance(term, Expr)]
    return [work.value, work.inside, *places]


def extent_of(variable: Variable) -> int | None:
    """How many values a variable has, where that is known now."""
    return None if isinstance(variable.extent, Dynamic) else variable.extent


def stride(offset: Offset, variable: Variable) -> int | None:
    """By how much a place moves with a variable by its plain terms; None if that is not known."""
    total = 0
    for factor, term in offset.terms:
        if term is variable:
            if isinstance(factor, Dynamic):
                return None
            total += factor
    return total


class Facts:
    """What is known about expressions: their free variables, and which are safe anywhere."""

    def __init__(self) -> None:
        self._free: dict[Expr, frozenset[Variable]] = {}
        self._safe: dict[Expr, bool] = {}

    def free(self, expr: Any) -> frozenset[Variable]:
        """The variables that an expression depends on and does not bind itself."""
        if not isinstance(expr, Expr):
            return frozenset()
        if expr not in self._free:
            for part in postorder([expr], self._free):
                self._free[part] = self._free_of(part)
        return self._free[expr]

    def _free_of(self, expr: Expr) -> frozenset[Variable]:
        inner = frozenset[Variable]().union(*(self._free[part] for part in parts(expr)))
        match expr.function:
            case "index":
                return frozenset(a for a in expr.arguments if isinstance(a, Variable))
            case "load":
                return inner | plain_variables(expr.arguments[1])
            case "reduce":
                return inner - frozenset(expr.arguments[1])
            case "scan":
                return inner | {expr.arguments[1]}
            case _:
                return inner

    def safe(self, expr: Any) -> bool:
        """Whether computing an expression where it is not wanted does no harm."""
        if not isinstance(expr, Expr):
            return True
        if expr not in self._safe:
            for part in postorder([expr], self._safe):
                self._safe[part] = harmless(part) and all(self._safe[p] for p in parts(part))
        return self._safe[expr]


def harmless(expr: Expr) -> bool:
    """Whether an expression by itself neither reads outside a buffer nor faults."""
    if expr.function == "load":
        return always_inside(*expr.arguments)
    row = FUNCTIONS.get(expr.function)
    if row is not None and row.divides:
        return not isinstance(expr.arguments[1], Expr) or dtype_of(expr).kind not in "iub"
    return True


def always_inside(argument: Argument, offset: Offset) -> bool:
    """Whether a place lies in its buffer for all values of its variables."""
    bounds = limits(offset)
    if bounds is None or isinstance(argument.size, Dynamic):
        return False
    return bounds[0] >= 0 and bounds[1] < argument.size


def limits(offset: Offset) -> tuple[int, int] | None:
    """The least and the greatest value of a place, if they are known."""
    if isinstance(offset.constant, Dynamic):
        return None
    low = high = offset.constant
    for factor, term in offset.terms:
        count = extent_of(term) if isinstance(term, Variable) else None
        if count is None or isinstance(factor, Dynamic):
            return None
        reach = factor * max(count - 1, 0)
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high


def plain_variables(offset: Offset) -> frozenset[Variable]:
    """The variables that are terms of a place themselves."""
    return frozenset(term for _, term in offset.terms if isinstance(term, Variable))


def identity(kind: str, dtype: Any) -> Any:
    """What a reduction of nothing gives, as a number of its dtype."""
    known: Any = np.dtype(dtype)
    plain = {"sum": 0, "prod": 1, "all": True, "any": False}
    if kind in plain:
        return np.asarray(plain[kind]).astype(known)[()]
    return bounds(known)[kind in ("min", "argmin")]
