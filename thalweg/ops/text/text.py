"""Helpers for arrays of bytes in string kernels.

A string tensor is an object array of `bytes`. NumPy converts a single element to a bare `bytes`
and a list of them to a fixed-width array that loses trailing zeros; these helpers do neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import numpy as np

from thalweg.platform.arrays import Array


def text_array(value: Any) -> Array:
    """A string input as an object array, even if a kernel returned a bare element."""
    if isinstance(value, np.ndarray):
        return cast("Array", value).astype(object, copy=False)
    array = np.empty((), object)
    array[()] = value
    return array


def text_of(values: Iterable[bytes], shape: Sequence[int] | None = None) -> Array:
    """An object array of the given elements; a vector unless a shape is given."""
    items = list(values)
    array = np.empty(len(items), object)
    array[:] = items
    return array if shape is None else array.reshape(tuple(shape))


def elements(value: Any) -> list[bytes]:
    """The elements of a string input, in order."""
    return list(text_array(value).ravel())


def text_item(value: Any) -> bytes:
    """The only element of a string input."""
    return elements(value)[0]


def mapped(function: Callable[[bytes], bytes], value: Any) -> Array:
    """Map `function` over all elements; returns a string array of the same shape."""
    array = text_array(value)
    return text_of(map(function, array.ravel()), array.shape)


def numbers(function: Callable[[bytes], Any], value: Any, dtype: Any) -> Array:
    """Map `function` over all elements; returns a numeric array of the same shape."""
    array = text_array(value)
    return np.array([function(item) for item in array.ravel()], dtype).reshape(array.shape)
