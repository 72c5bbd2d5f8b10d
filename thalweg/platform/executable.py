"""Executable memory: written once, then read-only."""

from __future__ import annotations

import ctypes
import mmap
import os

from thalweg.platform.c_library import c_function

_FAILED = ctypes.c_void_p(-1).value
_POINTER, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


def executable(content: bytes) -> int:
    """The address of a copy of machine code, which is never freed: a thread may still run it when
    Python shuts down."""
    map_memory = c_function("mmap", _POINTER, _POINTER, _SIZE, _INT, _INT, _INT, ctypes.c_long)
    protect = c_function("mprotect", _INT, _POINTER, _SIZE, _INT)
    size, flags = len(content), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    start = map_memory(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if start == _FAILED:
        raise MemoryError(f"There is no memory for {size} bytes of machine code.")
    ctypes.memmove(start, content, size)
    if protect(start, size, mmap.PROT_READ | mmap.PROT_EXEC):
        problem = os.strerror(ctypes.get_errno())
        raise RuntimeError(f"This system does not let new machine code run: {problem}.")
    return start
