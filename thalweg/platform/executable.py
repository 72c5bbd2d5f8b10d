"""Memory that holds machine code: it is written once, then read and run, never written again."""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache
from typing import Any

_RUNS = mmap.PROT_READ | mmap.PROT_EXEC
_FAILED = ctypes.c_void_p(-1).value


def executable(content: bytes) -> int:
    """The address of a copy of machine code, which stays for good: a thread may be in the code when
    Python shuts down, so that no object owns the memory."""
    library, size = _library(), len(content)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    start = library.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if start == _FAILED:
        raise MemoryError(f"There is no memory for {size} bytes of machine code.")
    ctypes.memmove(start, content, size)
    if library.mprotect(start, size, _RUNS):
        problem = os.strerror(ctypes.get_errno())
        raise RuntimeError(f"This system does not let new machine code run: {problem}.")
    return start


@cache
def _library() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    size, word = ctypes.c_size_t, ctypes.c_int
    library.mmap.argtypes = [ctypes.c_void_p, size, word, word, word, ctypes.c_long]
    library.mmap.restype = ctypes.c_void_p
    library.mprotect.argtypes = [ctypes.c_void_p, size, word]
    return library
