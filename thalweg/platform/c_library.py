"""Functions of the C library of this process."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from thalweg.platform.caches import memoized


@memoized(32)
def c_function(name: str, result: Any, *arguments: Any) -> Any:
    """A function by name, with its result and argument types; None if the system lacks it.

    A call releases the GIL and stores its error in `ctypes.get_errno()`.
    """
    try:
        function = _library()[name]
    except AttributeError:
        return None
    function.restype, function.argtypes = result, arguments
    return function


def c_address(name: str) -> int:
    """The address of a function that every system has, for native code."""
    return ctypes.cast(_library()[name], ctypes.c_void_p).value or 0


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
