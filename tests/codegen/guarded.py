"""Arrays between pages that nobody may touch, at any address: reaching over an edge is death."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

PAGE = mmap.PAGESIZE
LINE = 64
_protect = ctypes.CDLL(None, use_errno=True).mprotect
_protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Guarded:
    """Makes arrays: those that end where a page begins, begin where one ends, or lie `shift`ed.

    Before and after the pages of an array there is one that cannot be read or written.
    """

    def __init__(self, shift: int | None = None, at_end: bool = True) -> None:
        self.shift, self.at_end = shift, at_end
        self.made = 0

    def empty(self, shape: Any, dtype: Any = float) -> np.ndarray:
        self.made += 1
        kind = np.dtype(dtype)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        size = kind.itemsize * int(np.prod(shape))
        inside = -(-(size + LINE) // PAGE) * PAGE
        block = mmap.mmap(-1, inside + 2 * PAGE)
        pages = np.frombuffer(block, np.uint8)
        for edge in (0, inside + PAGE):
            assert _protect(pages.ctypes.data + edge, PAGE, 0) == 0
        start = PAGE + self._start(inside, size, kind.itemsize)
        return np.frombuffer(block, kind, int(np.prod(shape)), start).reshape(shape)

    def _start(self, inside: int, size: int, element: int) -> int:
        if self.shift is not None:
            return self.shift * element % LINE
        return inside - size if self.at_end else 0

    def copy(self, value: Any) -> np.ndarray:
        """The same values in guarded memory."""
        result = self.empty(np.shape(value), np.asarray(value).dtype)
        result[...] = value
        return result


class Numpy:
    """NumPy, but for fresh arrays, which are guarded."""

    def __init__(self, memory: Guarded) -> None:
        self.empty = self.zeros = memory.empty  # fresh pages are zero

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)
