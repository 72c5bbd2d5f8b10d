"""Functions that accept arrays and expressions alike.

A formula of these and of Python's operators is a NumPy kernel when called with arrays, and the loop
form of the same op when called with expressions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thalweg.ir.expr import Expr, call
from thalweg.ir.functions.table import FUNCTIONS


def _either(function: str) -> Callable[..., Any]:
    compute = FUNCTIONS[function].numpy

    def apply(*arguments: Any) -> Any:
        if any(isinstance(argument, Expr) for argument in arguments):
            return call(function, *arguments)
        return compute(*arguments)

    apply.__name__ = apply.__qualname__ = function
    apply.__doc__ = f"`{function}` of the table."
    return apply


absolute = _either("abs")
both = _either("and")
cast = _either("cast")
divide = _either("div")
equal = _either("eq")
floor = _either("floor")
greater = _either("gt")
less = _either("lt")
maximum = _either("max")
minimum = _either("min")
power = _either("pow")
rint = _either("rint")
select = _either("select")
sign = _either("sign")
square_root = _either("sqrt")


def clip(x: Any, low: Any, high: Any) -> Any:
    """x clamped to [low, high]."""
    return minimum(maximum(x, low), high)
