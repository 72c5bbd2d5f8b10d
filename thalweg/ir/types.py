"""The dtype of an expression, by NumPy's rules: Python numbers give way to what they meet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np

from thalweg.ir.expr import Expr
from thalweg.ir.functions.dtypes import BOOL, Dtype, Unsupported, common_dtype
from thalweg.ir.functions.table import FUNCTIONS
from thalweg.platform.caches import Bounded, memoized

_FLOAT32: Dtype = np.dtype(np.float32)
_INT64: Dtype = np.dtype(np.int64)


def dtype_of(expr: Any, sum_dtype: Any = _FLOAT32) -> Dtype:
    """The dtype of an expression by NumPy's promotion. `sum_dtype` is that of a `sum` leaf."""
    if not isinstance(expr, Expr):
        return np.asarray(expr).dtype
    known = _known_dtypes(np.dtype(sum_dtype))
    if (found := known.get(expr)) is not None:
        return found
    pending = [expr]
    while pending:
        part = pending[-1]
        missing = [p for p in _typing_parts(part) if isinstance(p, Expr) and p not in known]
        if missing:
            pending += missing
            continue
        known[part] = _inferred(part, known, np.dtype(sum_dtype))
        pending.pop()
    return known[expr]


@memoized(64)
def _known_dtypes(sum_dtype: Dtype) -> WeakKeyDictionary[Expr, Dtype]:
    """The dtypes found so far, where the sum has one."""
    return WeakKeyDictionary()


def _typing_parts(expr: Expr) -> Sequence[Any]:
    """The parts that decide about the dtype of an expression."""
    match expr.function:
        case "load" | "index" | "sum" | "input" | "cast" | "bitcast":
            return ()
        case "reduce" | "scan":
            return (expr.arguments[2],)
        case "select":
            return expr.arguments[1:]
        case _:
            return expr.arguments


def _inferred(expr: Expr, known: WeakKeyDictionary[Expr, Dtype], sum_dtype: Dtype) -> Dtype:
    match expr.function:
        case "load":
            return np.dtype(expr.arguments[0].dtype)
        case "index":
            return _INT64
        case "sum":
            return sum_dtype
        case "input":
            raise Unsupported("an input that was not replaced by a load")
        case "cast" | "bitcast":
            return np.dtype(expr.arguments[1])
        case "reduce" if expr.arguments[0] in ("argmax", "argmin"):
            return _INT64
        case "reduce" if expr.arguments[0] in ("all", "any"):
            return BOOL
        case _:
            parts = [
                known[part] if isinstance(part, Expr) else weak_dtype(part)
                for part in _typing_parts(expr)
            ]
            return loop_dtypes(expr.function, tuple(parts))[-1]


def weak_dtype(number: Any) -> Any:
    """The dtype of a NumPy scalar; the Python type of a Python number, which gives way."""
    if isinstance(number, np.generic | np.ndarray):
        return cast("Dtype", number.dtype)
    return BOOL if isinstance(number, bool) else cast("Any", type(number))


_LOOPS = Bounded[tuple[str, tuple[Any, ...]], tuple[Dtype, ...]]("dtypes of functions", 10_000)


def loop_dtypes(function: str, parts: tuple[Any, ...]) -> tuple[Dtype, ...]:
    """The dtypes NumPy converts the parts to, and that of the result."""
    key = function, parts
    found = _LOOPS.get(key)
    if found is None:
        found = _LOOPS[key] = _resolved(function, parts)
    return found


def _resolved(function: str, parts: tuple[Any, ...]) -> tuple[Dtype, ...]:
    if function in ("reduce", "scan"):
        return (common_dtype(parts),) * (len(parts) + 1)
    row = FUNCTIONS[function]
    return row.dtypes(row.numpy, parts)
