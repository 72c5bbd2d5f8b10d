"""Expressions over elements: what one element of an output is.

An op's block builds an `Expr` from `Expr`s of its inputs (`element`) or from loads at computed
indices and reductions over index variables (`loop`, see `thalweg.ir.loop`). Code generators walk
it; `thalweg.ir.interpret` runs it on NumPy arrays, which is how tests hold lowerings to the
reference kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from thalweg.ir.functions.table import FUNCTIONS


@dataclass(frozen=True, eq=False)
class Expr:
    """A call of a function of the table, or one of the leaves and binders:

    `input` (k): the element of input k at the place of the output element.
    `index` (variable): the value of an index variable.
    `load` (operand, indices): an element of an operand. Outside its range only under a `select`
    that does not choose it.
    `reduce` (kind, variables, body): the body combined over all values of the variables.
    """

    function: str
    arguments: tuple[Any, ...]

    def __add__(self, other: Any) -> Expr:
        return call("add", self, other)

    def __radd__(self, other: Any) -> Expr:
        return call("add", other, self)

    def __sub__(self, other: Any) -> Expr:
        return call("sub", self, other)

    def __rsub__(self, other: Any) -> Expr:
        return call("sub", other, self)

    def __mul__(self, other: Any) -> Expr:
        return call("mul", self, other)

    def __rmul__(self, other: Any) -> Expr:
        return call("mul", other, self)

    def __truediv__(self, other: Any) -> Expr:
        return call("div", self, other)

    def __rtruediv__(self, other: Any) -> Expr:
        return call("div", other, self)

    def __floordiv__(self, other: Any) -> Expr:
        return call("floor_div", self, other)

    def __mod__(self, other: Any) -> Expr:
        return call("remainder", self, other)

    def __neg__(self) -> Expr:
        return call("neg", self)

    def __lt__(self, other: Any) -> Expr:
        return call("lt", self, other)

    def __le__(self, other: Any) -> Expr:
        return call("le", self, other)

    def __gt__(self, other: Any) -> Expr:
        return call("gt", self, other)

    def __ge__(self, other: Any) -> Expr:
        return call("ge", self, other)

    def __and__(self, other: Any) -> Expr:
        return call("and", self, other)

    def __or__(self, other: Any) -> Expr:
        return call("or", self, other)

    def __invert__(self) -> Expr:
        return call("not", self)

    def __getattr__(self, function: str) -> Callable[..., Expr]:
        """`x.exp()`, `x.max(y)`: any function of the table, with this as first argument."""
        if function not in FUNCTIONS:
            raise AttributeError(f"elements have no function '{function}'")
        return lambda *others: call(function, self, *others)


def call(function: str, *arguments: Any) -> Expr:
    """A function of the table applied to expressions, numbers and (for casts) a dtype."""
    return Expr(function, arguments)


def select(condition: Any, chosen: Any, otherwise: Any) -> Expr:
    """`chosen` where the condition holds, else `otherwise`; the other one is not computed."""
    return call("select", condition, chosen, otherwise)


def argument(position: int) -> Expr:
    """The element of input number `position`."""
    return Expr("input", (position,))
