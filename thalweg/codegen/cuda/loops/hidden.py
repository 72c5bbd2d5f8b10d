"""Calls whose last bits are rounded away: float32 results that are only used as narrow floats.

A softmax in float32 that is stored as bfloat16 needs no exact exponentials. Such calls are emitted
like those of narrow floats: products and sums are contracted to one instruction; quotients, roots
and exponentials use the GPU's approximate instructions, whose errors are a few ulps of float32.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from thalweg.ir.expr import Call, Cast, Expr, Select
from thalweg.ir.functions.dtypes import Dtype
from thalweg.ir.kernel import Loops
from thalweg.platform.dtype_traits import is_float, is_narrow_float

_FLOAT32 = np.dtype(np.float32)
#: Not tanh, whose instruction has 11 bits: the sum of its result and one may cancel.
_FUNCTIONS = frozenset({"add", "sub", "mul", "div", "exp", "sqrt"})


def hidden_calls(form: Loops, apart: Collection[Expr]) -> dict[Expr, Dtype]:
    """The calls of a kernel whose results are always rounded to a narrow float, with that float;
    `apart` are reductions that are computed separately."""
    found: dict[Expr, set[Dtype | None]] = {}
    pending = list[tuple[Expr, Dtype | None]]()
    for store in form.stores:
        pending.append((store.value, _narrow(np.dtype(store.buffer.dtype))))
        pending += [(part, None) for part in store.roots if part is not store.value]
    pending += [(root, None) for check in form.checks for root in check.roots]
    while pending:
        expr, rounded = pending.pop()
        if rounded in found.setdefault(expr, set()):
            continue
        found[expr].add(rounded)
        pending += () if expr in apart else _parts(expr, rounded)
    return {
        expr: dtype
        for expr, (dtype, *others) in found.items()
        if isinstance(expr, Call) and expr.function in _FUNCTIONS
        if dtype is not None and not others and expr.dtype == _FLOAT32
    }


def _parts(expr: Expr, rounded: Dtype | None) -> Iterable[tuple[Expr, Dtype | None]]:
    """The operands of an expression, and the narrow float that each is rounded to afterwards."""
    match expr:
        case Cast():
            return [(expr.value, _narrow(expr.dtype) or (rounded if _is_wide(expr) else None))]
        case Select():
            condition, *sides = expr.parts
            return [(condition, None), *((side, rounded) for side in sides)]
        case Call() if expr.dtype == _FLOAT32:
            return [(part, rounded) for part in expr.parts]
        case _:  # sums, whose errors accumulate
            return [(part, None) for part in expr.parts]


def _is_wide(expr: Cast) -> bool:
    """Whether a cast is from a float to float32."""
    return expr.dtype == _FLOAT32 and is_float(expr.value.dtype)


def _narrow(dtype: Dtype) -> Dtype | None:
    return dtype if is_narrow_float(dtype) else None
