"""How the process gets memory for arrays: freed pieces are kept, not handed back to the system.

A step makes arrays of the same sizes again and again. By default glibc gives each large one fresh
pages, which the system must clear and map one by one when they are first touched: for many steps
that takes longer than their arithmetic. With these settings a freed array's pages serve the next.
`THALWEG_KEEP_MEMORY=0` leaves the allocator alone.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

from thalweg.platform.c_library import c_function

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's numbers for what is set
_MAX_FREE = 2**31 - 1  # bytes at the end of the heap that are kept
_LARGE = 128 << 10  # bytes of which glibc looks at the end of the heap when they are freed
_MAX_HEAP_ARRAY = 32 << 20  # bytes: the largest array that comes from the heap; glibc takes no more


def keep_freed_memory() -> None:
    """Set the allocator of this process, where it is glibc's."""
    if (option := _option()) is not None:
        option(_MMAP_THRESHOLD, _MAX_HEAP_ARRAY)
        option(_TRIM_THRESHOLD, _MAX_FREE)


def hand_back_own_heap() -> None:
    """Give the system what is free at the end of the heap of this thread, which is about to end.

    Threads besides the first get heaps of their own, and `malloc_trim` leaves their ends alone:
    only when something large is freed does glibc look at them, and then at the setting above.
    """
    option = _option()
    if option is None:
        return
    allocate = c_function("malloc", ctypes.c_void_p, ctypes.c_size_t)
    free = c_function("free", None, ctypes.c_void_p)
    option(_TRIM_THRESHOLD, 0)
    free(allocate(_LARGE))
    option(_TRIM_THRESHOLD, _MAX_FREE)


def _option() -> Any:
    """What sets an option of glibc's allocator, where the library is glibc and the options ours."""
    if os.environ.get("THALWEG_KEEP_MEMORY", "1") == "0":
        return None
    return c_function("mallopt", ctypes.c_int, ctypes.c_int, ctypes.c_int)
