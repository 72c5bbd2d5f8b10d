"""Sums of arrays over axes for NumPy kernels: accurate for all lengths, without BLAS."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.platform.arrays import Array


def summed(x: Array, axis: tuple[int, ...] | None = None, keepdims: bool = False) -> Array:
    """The sum over axes; floats below 64 bits are summed in 64 and rounded once.

    NumPy sums pairwise only along the last axis: over others, errors would grow with the length.
    """
    wide = _wide(x.dtype)
    return np.sum(x, axis=axis, dtype=wide, keepdims=keepdims).astype(x.dtype, copy=False)


def _wide(dtype: np.dtype[Any]) -> Any:
    if dtype.kind in "biu" or dtype.itemsize >= (16 if dtype.kind == "c" else 8):
        return dtype
    return np.complex128 if dtype.kind == "c" else np.float64
