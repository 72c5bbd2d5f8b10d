"""How the process gets memory for arrays: freed pieces are kept, not handed back to the system.

A step makes arrays of the same sizes again and again. By default glibc gives each large one fresh
pages, which the system must clear and map one by one when they are first touched: for many steps
that takes longer than their arithmetic. With these settings a freed array's pages serve the next.
`THALWEG_KEEP_MEMORY=0` leaves the allocator alone.
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's numbers for what is set
_MOST_FREE = 2**31 - 1  # bytes at the end of the heap that are kept
_LARGEST = 32 << 20  # bytes: the largest array that comes from the heap; glibc takes no more


def keep_freed_memory() -> None:
    """Set the allocator of this process, where it is glibc's."""
    if os.environ.get("THALWEG_KEEP_MEMORY", "1") == "0":
        return
    setting = getattr(ctypes.CDLL(None), "mallopt", None)
    if setting is not None:
        setting(_MMAP_THRESHOLD, _LARGEST)
        setting(_TRIM_THRESHOLD, _MOST_FREE)
