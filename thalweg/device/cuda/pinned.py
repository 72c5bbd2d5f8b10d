"""Pinned memory of the host, which the copy engines and kernels of a GPU access directly.

Pinning memory takes longer than filling it, so unused pinned memory is cached.
"""

from __future__ import annotations

import ctypes
import math
import threading
import weakref
from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg import errors
from thalweg.device.cuda.driver import Context
from thalweg.platform.arrays import Array
from thalweg.platform.forks import freed_after_fork

MAX_PINNED = 1 << 30  # bytes of all arrays together: the system cannot page them
_MIN_PINNED = 1 << 20  # bytes: larger arrays are pinned
_GRAIN = 1 << 20  # sizes are multiples of it


class Pinned:
    """Pinned memory as an array, which is freed with the object."""

    def __init__(self, context: Context, size: int) -> None:
        self.address = context.pin(size)
        content: Any = (ctypes.c_uint8 * size).from_address(self.address)
        self.array: NDArray[np.uint8] = np.frombuffer(content, np.uint8)
        # The system frees the rest when the process ends.
        weakref.finalize(self, context.unpin, self.address).atexit = False

    def part(self, start: int, shape: tuple[int, ...], dtype: Any) -> Array:
        """The array at a byte offset."""
        kind = np.dtype(dtype)
        size = kind.itemsize * math.prod(shape)
        return self.array[start : start + size].view(kind).reshape(shape)


class PinnedArrays:
    """Arrays in pinned memory, for results from the device. The first array of a size is an
    ordinary one, as it may be the only one."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = freed_after_fork(threading.Lock())
        self._seen: set[int] = set()
        self._spare: dict[int, list[int]] = defaultdict(list)  # addresses, by size
        self._reserved = 0

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """An uninitialised array, which the caller owns."""
        kind = np.dtype(dtype)
        size = kind.itemsize * math.prod(shape)
        owner = self._owner(-(-size // _GRAIN) * _GRAIN) if size > _MIN_PINNED else None
        if owner is None:
            return np.empty(shape, kind)
        return np.asarray(owner)[:size].view(kind).reshape(shape)

    def _owner(self, size: int) -> _Owner | None:
        with self._lock:
            if size not in self._seen:
                self._seen.add(size)
                return None
            spare = self._spare[size]
            address = spare.pop() if spare else self._pinned(size)
        return None if not address else _Owner(address, size, spare)

    def _pinned(self, size: int) -> int:
        """Pin new memory, evicting spare memory of other sizes if necessary; 0 if the limit is
        reached."""
        for other, addresses in self._spare.items():
            while addresses and self._reserved + size > MAX_PINNED:
                self._context.unpin(addresses.pop())
                self._reserved -= other
        if self._reserved + size > MAX_PINNED:
            return 0
        try:
            address = self._context.pin(size)
        except errors.OpError:
            return 0  # ordinary memory is used instead
        self._reserved += size
        return address


class _Owner:
    """The base of an array in pinned memory, which becomes spare with the last view."""

    __slots__ = ("__array_interface__", "_address", "_spare")

    def __init__(self, address: int, size: int, spare: list[int]) -> None:
        self._address, self._spare = address, spare
        self.__array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }

    def __del__(self) -> None:
        self._spare.append(self._address)  # atomic


def is_pinned(array: Array) -> bool:
    """Whether an array is, or is a view of, one of `PinnedArrays`."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, _Owner)
