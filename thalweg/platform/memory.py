"""Settings of glibc's allocator: freed memory stays in the process instead of going back to the OS.

Steps allocate arrays of the same sizes repeatedly. By default glibc maps fresh pages for each large
array, and the page faults on first use take longer than the arithmetic of many steps. With these
settings the pages of a freed array are reused. `THALWEG_KEEP_MEMORY=0` leaves the allocator alone.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

from thalweg.platform.c_library import c_function

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
_MAX_FREE = 2**31 - 1  # free bytes at the end of the heap that are kept
_MIN_TRIMMING_FREE = 128 << 10  # bytes: a free of so much makes glibc trim the end of the heap
_MAX_HEAP_ARRAY = 32 << 20  # bytes: the largest array on the heap, and glibc's largest threshold


def keep_freed_memory() -> None:
    """Configure the allocator of this process, if it is glibc's."""
    if (mallopt := _mallopt()) is not None:
        mallopt(_MMAP_THRESHOLD, _MAX_HEAP_ARRAY)
        mallopt(_TRIM_THRESHOLD, _MAX_FREE)


def trim_thread_heap() -> None:
    """Return the free end of this thread's heap to the system, before the thread ends.

    Every thread but the first has a heap of its own, whose end `malloc_trim` does not trim: glibc
    does so only when a large block is freed, subject to the trim threshold.
    """
    mallopt = _mallopt()
    if mallopt is None:
        return
    malloc = c_function("malloc", ctypes.c_void_p, ctypes.c_size_t)
    free = c_function("free", None, ctypes.c_void_p)
    mallopt(_TRIM_THRESHOLD, 0)
    free(malloc(_MIN_TRIMMING_FREE))
    mallopt(_TRIM_THRESHOLD, _MAX_FREE)


def _mallopt() -> Any:
    """glibc's function to set allocator options; None if it is missing or not to be used."""
    if os.environ.get("THALWEG_KEEP_MEMORY", "1") == "0":
        return None
    return c_function("mallopt", ctypes.c_int, ctypes.c_int, ctypes.c_int)
