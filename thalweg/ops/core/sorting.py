"""Fast stable sorting of indices: it dominates kernels that group equal indices."""

from __future__ import annotations

import numpy as np

from thalweg.platform.arrays import Array

_MAX_BITS = 63


def stable_sort(indices: Array, limit: int) -> tuple[Array, Array]:
    """Sort a vector of int64 in [0, limit).

    NumPy's vectorized sort of integers is not stable, and its stable argsort is not vectorized. So
    each index and its position are packed into one integer and sorted together, if both fit.

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
    """Whether each element of a vector begins a run of equal ones: the first does, and each that
    differs from its predecessor."""
    is_start = np.empty(len(values), np.bool_)
    is_start[:1] = True
    np.not_equal(values[1:], values[:-1], out=is_start[1:])
    return is_start
