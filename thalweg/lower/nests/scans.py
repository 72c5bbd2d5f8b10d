"""Scans: reductions up to here, run as one pass.

An op's loop form of a cumulative sum is a reduction under the guard `k <= i`. Where i is a loop of
the nest and the rest does not depend on it, the loop runs in order and carries the sum along.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thalweg.ir.expr import Expr
from thalweg.ir.index import variable as index_of
from thalweg.ir.loop import Variable
from thalweg.lower.nests.loop_nest import Renaming, free_variables

#: comparison of the summed index with the place -> (exclusive, reverse)
_DIRECTIONS = {
    "le": (False, False),
    "lt": (True, False),
    "ge": (False, True),
    "gt": (True, True),
}


def as_scan(value: Any, variables: Sequence[Variable]) -> tuple[Any, Variable] | None:
    """The value with its one reduction as a scan, and the variable that it runs along."""
    if not isinstance(value, Expr):
        return None
    if value.function == "cast":
        inner = as_scan(value.arguments[0], variables)
        return None if inner is None else (Expr("cast", (inner[0], value.arguments[1])), inner[1])
    if value.function != "reduce" or len(value.arguments[1]) != 1:
        return None
    kind, (summed,), body = value.arguments
    if not isinstance(body, Expr) or body.function != "select" or kind.startswith("arg"):
        return None
    condition, chosen, _ = body.arguments
    along = _along(condition, summed, variables)
    if along is None or along in free_variables(chosen, {}):
        return None
    exclusive, reverse = _DIRECTIONS[condition.function]
    inner = Renaming({summed: index_of(along)}).of(chosen)
    return Expr("scan", (kind, along, inner, exclusive, reverse)), along


def _along(condition: Any, summed: Variable, variables: Sequence[Variable]) -> Variable | None:
    """The loop variable that a summed index is compared with, if that is the guard."""
    if not isinstance(condition, Expr) or condition.function not in _DIRECTIONS:
        return None
    left, right = condition.arguments
    if not all(isinstance(side, Expr) and side.function == "index" for side in (left, right)):
        return None
    along = right.arguments[0]
    fits = left.arguments[0] is summed and along in variables and along.extent == summed.extent
    return along if fits else None
