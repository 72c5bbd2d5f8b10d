"""Pinned memory of the host, which the copy engines and kernels of a GPU reach directly.

To pin memory takes longer than to fill it, so what nobody holds any more is used again.
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
from thalweg.platform.forks import freed_after_fork

Array = NDArray[Any]

MAX_PINNED = 1 << 30  # bytes of all arrays at a time: the system has so much less to page with
_MIN_PINNED = 1 << 20  # bytes of an array that is worth it
_GRAIN = 1 << 20  # sizes are multiples of it


class Pinned:
    """Pinned memory, as an array; it is freed with the object."""

    def __init__(self, context: Context, size: int) -> None:
        self.address = context.pin(size)
        content: Any = (ctypes.c_uint8 * size).from_address(self.address)
        self.array: NDArray[np.uint8] = np.frombuffer(content, np.uint8)
        # What is left at the end of the process ends with it.
        weakref.finalize(self, context.unpin, self.address).atexit = False


class PinnedArrays:
    """Arrays whose memory is pinned, for results that come from the device. The first array of a
    size is an ordinary one: it may be the only one."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = freed_after_fork(threading.Lock())
        self._seen: set[int] = set()
        self._spare: dict[int, list[int]] = defaultdict(list)  # addresses, by size
        self._reserved = 0

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array of undefined elements, which is the caller's."""
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
        """New memory, in the place of spare memory of other sizes if need be; 0 where there is no
        more."""
        for other, addresses in self._spare.items():
            while addresses and self._reserved + size > MAX_PINNED:
                self._context.unpin(addresses.pop())
                self._reserved -= other
        if self._reserved + size > MAX_PINNED:
            return 0
        try:
            address = self._context.pin(size)
        except errors.OpError:
            return 0  # ordinary memory will do
        self._reserved += size
        return address


class _Owner:
    """The base of an array in pinned memory, which is spare when all views of it are gone."""

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
        self._spare.append(self._address)  # one operation of the interpreter


def is_pinned(array: Array) -> bool:
    """Whether an array, or what it is a view of, is one of `PinnedArrays`."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, _Owner)
