"""The dtypes of functions, by NumPy's rules: Python numbers give way to what they meet."""

from __future__ import annotations

from typing import Any, cast

import ml_dtypes
import numpy as np

from thalweg.ir.table import FUNCTIONS
from thalweg.platform.caches import Bounded

Dtype = np.dtype[Any]

BOOL: Dtype = np.dtype(np.bool_)
BFLOAT16: Dtype = np.dtype(ml_dtypes.bfloat16)
INT64: Dtype = np.dtype(np.int64)
_LOGICAL = frozenset({"and", "or", "xor", "not"})


class Unsupported(Exception):
    """An expression that is not made into code: it runs on the NumPy kernel instead."""


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
    if function in _LOGICAL:
        return (BOOL,) * (len(parts) + 1)
    if function in ("real", "imag"):
        (only,) = parts
        return only, np.zeros((), only).real.dtype
    if function == "complex":
        return *parts, np.result_type(np.complex64, common_dtype(parts))
    ufunc: Any = FUNCTIONS[function]
    try:
        return ufunc.resolve_dtypes((*parts, None))
    except TypeError as error:
        raise Unsupported(str(error)) from error


def common_dtype(parts: tuple[Any, ...]) -> Dtype:
    """The dtype that elements and numbers are promoted to where they stand for one another."""
    strong = [cast("Dtype", part) for part in parts if isinstance(part, np.dtype)]
    weak = [part for part in parts if not isinstance(part, np.dtype)]
    if strong and all(part == strong[0] for part in strong) and not weak:
        return strong[0]
    if strong and all(part == BFLOAT16 for part in strong) and complex not in weak:
        return BFLOAT16
    try:
        return np.result_type(*strong, *(kind(0) for kind in weak))
    except TypeError as error:
        raise Unsupported(str(error)) from error
