"""Dtype rules of functions: what NumPy converts the inputs to, and the dtype of the result.

A rule takes a function's NumPy definition and its inputs: dtypes of elements, or types of Python
numbers, which are weak.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from thalweg.platform.dtype_traits import is_narrow_float

Dtype = np.dtype[Any]
DtypeRule = Callable[[Callable[..., Any], tuple[Any, ...]], tuple[Dtype, ...]]

BOOL: Dtype = np.dtype(np.bool_)
INT64: Dtype = np.dtype(np.int64)


class Unsupported(Exception):
    """An expression that cannot be compiled: its op runs on the NumPy kernel instead."""


def of_ufunc(numpy: Any, inputs: tuple[Any, ...]) -> tuple[Dtype, ...]:
    """The dtypes of the loop that a NumPy ufunc selects."""
    try:
        return numpy.resolve_dtypes((*inputs, None))
    except TypeError as error:
        raise Unsupported(str(error)) from error


def of_common(numpy: Any, inputs: tuple[Any, ...]) -> tuple[Dtype, ...]:
    """The dtype that all inputs are promoted to."""
    return (common_dtype(inputs),) * (len(inputs) + 1)


def of_truths(numpy: Any, inputs: tuple[Any, ...]) -> tuple[Dtype, ...]:
    """Booleans from anything."""
    return (BOOL,) * (len(inputs) + 1)


def of_complex(numpy: Any, inputs: tuple[Any, ...]) -> tuple[Dtype, ...]:
    """The complex number of two real ones."""
    return *inputs, np.result_type(np.complex64, common_dtype(inputs))


def of_component(numpy: Any, inputs: tuple[Any, ...]) -> tuple[Dtype, ...]:
    """A real number from a complex one."""
    return *inputs, np.zeros((), inputs[0]).real.dtype


def common_dtype(inputs: tuple[Any, ...]) -> Dtype:
    """The dtype that elements and numbers are promoted to."""
    strong = [cast("Dtype", part) for part in inputs if isinstance(part, np.dtype)]
    weak = [part for part in inputs if not isinstance(part, np.dtype)]
    if len(set(strong)) == 1 and is_narrow_float(strong[0]) and complex not in weak:
        return strong[0]
    try:
        return np.result_type(*strong, *(kind(0) for kind in weak))
    except TypeError as error:
        raise Unsupported(str(error)) from error
