"""Memory that a device owns, and leases of it to readers on the host.

A `Buffer` outlives steps: variables keep their values in buffers, and devices hand them to one
another. Native code is given its address. A reader on the host gets a lease: a read-only array over
the same memory that tells the buffer when it, and every view made from it, is gone. Who wants to
write to a buffer that has leases out writes to a copy: a value once read never changes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

#: The device of buffers that nobody placed.
HOST = "/job:localhost/replica:0/task:0/device:CPU:0"


class Buffer:
    """A contiguous, aligned array in the memory of a device.

    ```
    buffer = Buffer(np.zeros(3))
    view = buffer.lease()
    assert buffer.is_leased and not view.flags.writeable
    ```
    """

    __slots__ = ("_interface", "address", "array", "device", "leases", "shape")

    def __init__(self, array: Array, device: str = HOST) -> None:
        self.array = array  # on the host, or as the host sees the device's memory
        self.device = device
        self.shape: tuple[int, ...] = array.shape
        self.address = array.ctypes.data
        self.leases: set[int] = set()  # the identities of those that are out
        self._interface = {
            "shape": array.shape,
            "typestr": _typestr(array.dtype),
            "data": (self.address, True),
            "version": 3,
        }

    @property
    def dtype(self) -> Any:
        """The NumPy dtype of its elements."""
        return self.array.dtype

    @property
    def nbytes(self) -> int:
        """Its size in memory."""
        return self.array.nbytes

    @property
    def is_leased(self) -> bool:
        """Whether a reader on the host may still look at it."""
        return bool(self.leases)

    def lease(self) -> Array:
        """The elements, read-only, for as long as somebody holds the array or a view of it."""
        dtype = self.array.dtype
        if dtype.hasobject:  # memory with references in it is not to be had by its address
            return read_only(self.array.copy())
        leased = np.asarray(_Lease(self, self._interface))
        return leased if leased.dtype == dtype else leased.view(dtype)

    def copy(self) -> Buffer:
        """A buffer with the same elements that nobody else has."""
        return Buffer(self.array.copy(), self.device)


def _typestr(dtype: np.dtype[Any]) -> str:
    """NumPy reads back only the names of its own types; others are bytes, to be viewed."""
    return dtype.str if dtype.isbuiltin == 1 else f"|V{dtype.itemsize}"


class _Lease:
    """The base of a leased array. NumPy shortens chains of views only through arrays, so that every
    view keeps it alive."""

    __slots__ = ("__array_interface__", "_buffer")

    def __init__(self, buffer: Buffer, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface
        self._buffer = buffer
        buffer.leases.add(id(self))  # one operation of the interpreter, as is the next one

    def __del__(self) -> None:
        self._buffer.leases.discard(id(self))


def host_buffer(shape: tuple[int, ...], dtype: Any) -> Buffer:
    """Memory for an array on the host; what it holds is undefined."""
    return Buffer(np.empty(shape, dtype))


def read_only(array: Array) -> Array:
    """An array, not to be written to any more."""
    array.flags.writeable = False
    return array
