"""Memory that holds machine code: it is written once, then read and run, never written again."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

from thalweg.platform.c_library import c_function

_RUNS = mmap.PROT_READ | mmap.PROT_EXEC
_FAILED = ctypes.c_void_p(-1).value
_POINTER, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


def executable(content: bytes) -> int:
    """The address of a copy of machine code, which stays for good: a thread may be in the code when
    Python shuts down, so that no object owns the memory."""
    size, flags = len(content), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    start = _mapped()(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if start == _FAILED:
        raise MemoryError(f"There is no memory for {size} bytes of machine code.")
    ctypes.memmove(start, content, size)
    if _protected()(start, size, _RUNS):
        problem = os.strerror(ctypes.get_errno())
        raise RuntimeError(f"This system does not let new machine code run: {problem}.")
    return start


def _mapped() -> Any:
    return c_function("mmap", _POINTER, _POINTER, _SIZE, _INT, _INT, _INT, ctypes.c_long)


def _protected() -> Any:
    return c_function("mprotect", _INT, _POINTER, _SIZE, _INT)
