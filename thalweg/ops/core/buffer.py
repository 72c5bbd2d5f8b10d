"""Device memory, and leases of it to readers on the host.

A `Buffer` outlives steps: variables keep their values in buffers, and devices exchange them. Native
code gets the address. A reader on the host gets a lease: a read-only array over the same memory,
which notifies the buffer when the array and all views of it are gone. Writers copy a leased buffer
first (copy on write), so a value that was read never changes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import numpy as np

from thalweg.platform.arrays import Array

#: The default device of buffers.
HOST = "/job:localhost/replica:0/task:0/device:CPU:0"


_VERSIONS = count()


class Buffer(ABC):
    """A contiguous, aligned array in the memory of a device.

    It is in host memory (`HostBuffer`) or in memory that only the driver of its device can access:
    then the host reads and writes through copies. `version` is unique among all buffers and changes
    with every write, so that values derived from the elements can be cached by it.
    """

    __slots__ = ("address", "device", "dtype", "leases", "shape", "version")

    def __init__(
        self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], device: str
    ) -> None:
        self.address = address
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self.leases: set[int] = set()  # the identities of live leases
        self.version = next(_VERSIONS)

    def touch(self) -> None:
        """Update the version after a write."""
        self.version = next(_VERSIONS)

    @staticmethod
    def touch_all(buffers: Iterable[Buffer]) -> None:
        """Update the versions of several buffers after writes."""
        for buffer, version in zip(buffers, _VERSIONS, strict=False):  # buffers end first
            buffer.version = version

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def is_leased(self) -> bool:
        """Whether a reader on the host may still access the memory."""
        return bool(self.leases)

    @abstractmethod
    def lease(self) -> Array:
        """A read-only array of the elements, which do not change while it or a view of it lives."""

    @abstractmethod
    def snapshot(self) -> Array:
        """A copy of the elements on the host, which the caller owns."""

    @abstractmethod
    def copy(self) -> Buffer:
        """A new, unleased buffer with the same elements."""

    @abstractmethod
    def fill(self, value: Any) -> None:
        """Write the elements of an array of the same shape, converted to the buffer's dtype."""

    @abstractmethod
    def adopt(self, value: Array) -> Array | None:
        """Take the elements of an array without other references. Returns the array if the buffer
        copied it, None if the buffer now owns it."""

    @abstractmethod
    def update(self, change: Callable[[Array], None]) -> None:
        """Call `change` on a writable array of the elements."""

    @abstractmethod
    def freeze(self) -> None:
        """Declare that the elements never change again: readers on the host may share one copy."""

    @property
    def host_copy(self) -> Array | None:
        """The copy that readers on the host share; None if there is none."""
        return None

    @abstractmethod
    def first_rows(self, count: int) -> Buffer:
        """A buffer of the first rows, in the same memory. It must not be written to."""


class HostBuffer(Buffer):
    """A buffer in host memory.

    ```
    buffer = HostBuffer(np.zeros(3))
    view = buffer.lease()
    assert buffer.is_leased and not view.flags.writeable
    ```
    """

    __slots__ = ("_interface", "array")

    def __init__(self, array: Array, device: str = HOST) -> None:
        super().__init__(array.ctypes.data, array.shape, array.dtype, device)
        self.array = array
        self._interface = self._described()

    def _described(self) -> dict[str, Any]:
        """The array interface of the memory, for NumPy."""
        return {
            "shape": self.shape,
            "typestr": _typestr(self.dtype),
            "data": (self.address, True),
            "version": 3,
        }

    def lease(self) -> Array:
        """A read-only array over the memory; the lease lasts as long as the array or a view."""
        dtype = self.dtype
        if dtype.hasobject:  # NumPy makes no array of references from an address
            return read_only(self.array.copy())
        leased = np.asarray(Lease(self, self._interface))
        return leased if leased.dtype == dtype else leased.view(dtype)

    def snapshot(self) -> Array:
        """A copy of the elements."""
        return self.array.copy()

    def copy(self) -> HostBuffer:
        """A new, unleased buffer with the same elements."""
        return HostBuffer(self.array.copy(), self.device)

    def fill(self, value: Any) -> None:
        """Write the elements of an array, converted to the buffer's dtype."""
        np.copyto(self.array, value, casting="unsafe")
        self.touch()

    def adopt(self, value: Array) -> None:
        """Use an array without other references as the memory."""
        self.array, self.address = value, value.ctypes.data
        self._interface = self._described()
        self.touch()

    def update(self, change: Callable[[Array], None]) -> None:
        """Call `change` on the array."""
        try:
            change(self.array)
        finally:
            self.touch()

    def freeze(self) -> None:
        """Does nothing: readers share the memory itself."""

    def first_rows(self, count: int) -> HostBuffer:
        """The first rows, in the same memory."""
        return HostBuffer(self.array[:count], self.device)


def _typestr(dtype: np.dtype[Any]) -> str:
    """NumPy reads back only the names of its own types; others are bytes, to be viewed."""
    return dtype.str if dtype.isbuiltin == 1 else f"|V{dtype.itemsize}"


class Lease:
    """The base object of a leased array. NumPy collapses chains of views only through arrays, so
    every view keeps it alive."""

    __slots__ = ("__array_interface__", "_buffer")

    def __init__(self, buffer: HostBuffer, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface
        self._buffer = buffer
        buffer.leases.add(id(self))  # atomic, as `discard` below is

    def __del__(self) -> None:
        self._buffer.leases.discard(id(self))


def is_lease(array: Array) -> bool:
    """Whether an array, or the array it is a view of, is leased from a buffer."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, Lease)


def host_buffer(shape: tuple[int, ...], dtype: Any) -> HostBuffer:
    """An uninitialized buffer in host memory."""
    return HostBuffer(np.empty(shape, dtype))


def read_only(array: Array) -> Array:
    """The array, marked as read-only."""
    array.flags.writeable = False
    return array
