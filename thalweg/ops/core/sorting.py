"""Stable sorting of indices: in a kernel that finds equal ones, most of the time goes there."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_MAX_BITS = 63


def stable_sort(indices: Array, limit: int) -> tuple[Array, Array]:
    """Sort a vector of int64 in [0, limit).

    NumPy sorts integers by vector instructions, but not stably, and positions by comparing two at a
    time. So each index and its position are sorted as one integer, where that holds both.

    Returns:
        The sorted indices, and their positions in `indices`; equal indices stay in order.
    """
    bits = len(indices).bit_length()
    if limit.bit_length() + bits > _MAX_BITS:
        order = np.argsort(indices, kind="stable")
        return indices[order], order
    packed = indices << bits
    packed |= np.arange(len(indices))
    packed.sort()
    return packed >> bits, packed & ((1 << bits) - 1)


def starts_run(values: Array) -> Array:
    """Whether each element of a vector differs from the one before; the first one does."""
    is_start = np.empty(len(values), np.bool_)
    is_start[:1] = True
    np.not_equal(values[1:], values[:-1], out=is_start[1:])
    return is_start
