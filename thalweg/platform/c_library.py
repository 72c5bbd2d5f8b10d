"""Functions of the C library of this process, as far as it has them."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from thalweg.platform.caches import memoized


@memoized(32)
def c_function(name: str, result: Any, *arguments: Any) -> Any:
    """A function by its name, with the types of what it gives and takes; None where the system has
    none. It runs without Python's lock, and leaves its error in `ctypes.get_errno()`."""
    try:
        function = _library()[name]
    except AttributeError:
        return None
    function.restype, function.argtypes = result, arguments
    return function


def c_address(name: str) -> int:
    """Where a function that every system has lies, for native code that calls it."""
    return ctypes.cast(_library()[name], ctypes.c_void_p).value or 0


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
