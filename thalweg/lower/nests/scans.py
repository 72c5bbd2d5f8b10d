"""Matches scans: cumulative reductions that run as one serial loop.

The loop form of a cumulative sum is a reduction under the guard `k <= i`. Where i is a loop of the
nest and the summand does not depend on it, the loop is serial and carries the sum.
"""

from __future__ import annotations

from collections.abc import Sequence

from thalweg.ir.expr import Call, Cast, Expr, Index, Reduce, Scan, Select
from thalweg.ir.functions.reductions import REDUCTIONS
from thalweg.ir.index import variable as index_of
from thalweg.ir.loop import Variable
from thalweg.ir.rewrite import free_variables
from thalweg.lower.nests.loop_nest import Renaming

#: comparison of the summed index with the loop's -> (exclusive, reverse)
_DIRECTIONS = {
    "le": (False, False),
    "lt": (True, False),
    "ge": (False, True),
    "gt": (True, True),
}


def as_scan(value: Expr, variables: Sequence[Variable]) -> tuple[Expr, Variable] | None:
    """A value that is such a reduction as a scan, and the variable of the serial loop."""
    match value:
        case Cast():
            inner = as_scan(value.value, variables)
            return None if inner is None else (Cast(inner[0], value.target), inner[1])
        case Reduce(variables=(summed,), body=Select(condition=Call() as guard, chosen=chosen)):
            along = _along(guard, summed, variables)
        case _:
            return None
    if along is None or REDUCTIONS[value.combine].gives_position or along in free_variables(chosen):
        return None
    summand = Renaming({summed: index_of(along)}).of(chosen)
    return Scan(value.combine, along, summand, *_DIRECTIONS[guard.function]), along


def _along(guard: Call, summed: Variable, variables: Sequence[Variable]) -> Variable | None:
    """The loop variable that a guard compares the summed index with, if it is such a guard."""
    match guard:
        case Call(arguments=(Index(variable=counted), Index(variable=along))) if (
            guard.function in _DIRECTIONS and counted is summed
        ):
            return along if along in variables and along.extent == summed.extent else None
        case _:
            return None
