"""How the process gets memory for arrays: freed pieces are kept, not handed back to the system.

A step makes arrays of the same sizes again and again. By default glibc gives each large one fresh
pages, which the system must clear and map one by one when they are first touched: for many steps
that takes longer than their arithmetic. With these settings a freed array's pages serve the next.
`THALWEG_KEEP_MEMORY=0` leaves the allocator alone.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's numbers for what is set
_MAX_FREE = 2**31 - 1  # bytes at the end of the heap that are kept
_LARGE = 128 << 10  # bytes of which glibc looks at the end of the heap when they are freed
_MAX_HEAP_ARRAY = 32 << 20  # bytes: the largest array that comes from the heap; glibc takes no more


def keep_freed_memory() -> None:
    """Set the allocator of this process, where it is glibc's."""
    library = _library()
    if library is not None:
        library.mallopt(_MMAP_THRESHOLD, _MAX_HEAP_ARRAY)
        library.mallopt(_TRIM_THRESHOLD, _MAX_FREE)


def hand_back_own_heap() -> None:
    """Give the system what is free at the end of the heap of this thread, which is about to end.

    Threads besides the first get heaps of their own, and `malloc_trim` leaves their ends alone:
    only when something large is freed does glibc look at them, and then at the setting above.
    """
    library = _library()
    if library is None:
        return
    library.mallopt(_TRIM_THRESHOLD, 0)
    library.free(library.malloc(_LARGE))
    library.mallopt(_TRIM_THRESHOLD, _MAX_FREE)


@cache
def _library() -> Any:
    """The C library, where it is glibc and its settings are ours to make."""
    library = ctypes.CDLL(None)
    if os.environ.get("THALWEG_KEEP_MEMORY", "1") == "0" or not hasattr(library, "mallopt"):
        return None
    library.malloc.argtypes, library.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    library.free.argtypes, library.free.restype = [ctypes.c_void_p], None
    return library
