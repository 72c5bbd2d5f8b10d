"""The scalar functions that elements may use, with their meaning on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def cast(x: Any, dtype: Any) -> Any:
    """An array as one of another dtype; of complex numbers a real dtype takes the real part.

    What is out of the range of uint64 is 2⁶³, whatever the C compiler of NumPy made of it.
    """
    array, kind = np.asarray(x), np.dtype(dtype)
    if array.dtype.kind == "c" and kind.kind != "c":
        array = np.asarray(np.real(array))
    found = array.astype(kind)
    if kind != np.uint64 or array.dtype.kind in "biu":
        return found
    return np.where(array >= array.dtype.type(2.0**64), kind.type(2**63), found)


def _bitcast(x: Any, dtype: Any) -> Any:
    return np.asarray(x).view(dtype)


def _complex(real: Any, imaginary: Any) -> Any:
    kind = np.result_type(real, imaginary, np.complex64)
    number = np.empty(np.broadcast_shapes(np.shape(real), np.shape(imaginary)), kind)
    number.real, number.imag = real, imaginary
    return number


#: The functions an element may use, with their meaning. Code generators know exactly these.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floor_div": np.floor_divide,
    "remainder": np.remainder,
    "truncated_remainder": np.fmod,
    "pow": np.power,
    "max": np.maximum,
    "min": np.minimum,
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "rint": np.rint,
    "trunc": np.trunc,
    "sqrt": np.sqrt,
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "not": np.logical_not,
    "bit_and": np.bitwise_and,
    "bit_or": np.bitwise_or,
    "bit_xor": np.bitwise_xor,
    "bit_not": np.invert,
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
    "complex": _complex,
    "conj": np.conj,
    "real": np.real,
    "imag": np.imag,
    "is_nan": np.isnan,
    "is_inf": np.isinf,
    "is_finite": np.isfinite,
    "select": np.where,
    "cast": cast,
    "bitcast": _bitcast,
}
