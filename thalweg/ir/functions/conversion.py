"""NumPy definitions of functions that convert the dtype of an array."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.platform.dtype_traits import widened


def cast(x: Any, dtype: Any) -> Any:
    """An array converted to a dtype; a real dtype takes the real part of complex numbers.

    Floats out of the range of uint64 become 2⁶³, whatever NumPy's C compiler does.
    """
    array, wanted = widened(np.asarray(x)), np.dtype(dtype)
    if array.dtype.kind == "c" and wanted.kind != "c":
        array = np.asarray(np.real(array))
    result = array.astype(wanted)
    if wanted != np.uint64 or array.dtype.kind in "biu":
        return result
    return np.where(array >= array.dtype.type(2.0**64), wanted.type(2**63), result)


def bitcast(x: Any, dtype: Any) -> Any:
    """The bits of an array as another dtype."""
    return np.asarray(x).view(dtype)


def complex_number(real: Any, imaginary: Any) -> Any:
    """A complex array from its real and imaginary parts."""
    dtype = np.result_type(real, imaginary, np.complex64)
    number = np.empty(np.broadcast_shapes(np.shape(real), np.shape(imaginary)), dtype)
    number.real, number.imag = real, imaginary
    return number
