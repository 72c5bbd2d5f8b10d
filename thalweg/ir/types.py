"""The dtypes of functions, by NumPy's rules: Python numbers give way to what they meet."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from thalweg.ir.functions.dtypes import BOOL, Dtype
from thalweg.ir.functions.table import FUNCTIONS
from thalweg.platform.caches import Bounded

INT64: Dtype = np.dtype(np.int64)


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
        row = FUNCTIONS[function]
        found = _LOOPS[key] = row.dtypes(row.numpy, parts)
    return found
