"""The NumPy meaning of functions that change the dtype of an array and not its numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.platform.dtype_traits import widened


def cast(x: Any, dtype: Any) -> Any:
    """An array as one of another dtype; of complex numbers a real dtype takes the real part.

    What is out of the range of uint64 is 2⁶³, whatever the C compiler of NumPy made of it.
    """
    array, wanted = widened(np.asarray(x)), np.dtype(dtype)
    if array.dtype.kind == "c" and wanted.kind != "c":
        array = np.asarray(np.real(array))
    found = array.astype(wanted)
    if wanted != np.uint64 or array.dtype.kind in "biu":
        return found
    return np.where(array >= array.dtype.type(2.0**64), wanted.type(2**63), found)


def bitcast(x: Any, dtype: Any) -> Any:
    """The bits of an array as another dtype."""
    return np.asarray(x).view(dtype)


def complex_number(real: Any, imaginary: Any) -> Any:
    """Arrays as the parts of one of complex numbers."""
    dtype = np.result_type(real, imaginary, np.complex64)
    number = np.empty(np.broadcast_shapes(np.shape(real), np.shape(imaginary)), dtype)
    number.real, number.imag = real, imaginary
    return number
