"""Memory that a device owns, and leases of it to readers on the host.

A `Buffer` outlives steps: variables keep their values in buffers, and devices hand them to one
another. Native code is given its address. A reader on the host gets a lease: a read-only array over
the same memory that tells the buffer when it, and every view made from it, is gone. Who wants to
write to a buffer that has leases out writes to a copy: a value once read never changes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

#: The device of buffers that nobody placed.
HOST = "/job:localhost/replica:0/task:0/device:CPU:0"


_VERSIONS = count()


class Buffer(ABC):
    """A contiguous, aligned array in the memory of a device.

    It is on the host (`HostBuffer`), or in memory that only the driver of its device can reach:
    then the host reads copies, and what it writes is copied to the device. Its version is a number
    that no other buffer has, and another one after every write: whoever keeps something that was
    made of the elements knows by it whether that still holds.
    """

    __slots__ = ("address", "device", "dtype", "leases", "shape", "version")

    def __init__(
        self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], device: str
    ) -> None:
        self.address = address
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self.leases: set[int] = set()  # the identities of those that are out
        self.version = next(_VERSIONS)

    def touch(self) -> None:
        """Note that the elements were written."""
        self.version = next(_VERSIONS)

    @staticmethod
    def touch_all(buffers: Iterable[Buffer]) -> None:
        """Note that the elements of several were written."""
        for buffer, version in zip(buffers, _VERSIONS, strict=False):  # buffers end first
            buffer.version = version

    @property
    def nbytes(self) -> int:
        """Its size in memory."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def is_leased(self) -> bool:
        """Whether a reader on the host may still look at it."""
        return bool(self.leases)

    @abstractmethod
    def lease(self) -> Array:
        """The elements, read-only; they never change while somebody holds the array or a view of
        it."""

    @abstractmethod
    def snapshot(self) -> Array:
        """A copy of the elements on the host, which the caller owns."""

    @abstractmethod
    def copy(self) -> Buffer:
        """A buffer with the same elements that nobody else has."""

    @abstractmethod
    def fill(self, value: Any) -> None:
        """Write the elements of an array of the same shape, converted where they are others."""

    @abstractmethod
    def adopt(self, value: Array) -> Array | None:
        """Have the elements of an array that nobody else holds; the array, where the buffer does
        not keep it."""

    @abstractmethod
    def update(self, change: Callable[[Array], None]) -> None:
        """Let `change` write into the elements."""

    @abstractmethod
    def freeze(self) -> None:
        """Promise that the elements never change again: readers on the host may then share one
        copy."""

    @property
    def host_copy(self) -> Array | None:
        """The copy that readers on the host share, once there is one."""
        return None

    @abstractmethod
    def first_rows(self, count: int) -> Buffer:
        """The first rows as a buffer of their own, in the same memory. Nobody may write to it."""


class HostBuffer(Buffer):
    """An array of the host.

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
        """How NumPy is told of the memory."""
        return {
            "shape": self.shape,
            "typestr": _typestr(self.dtype),
            "data": (self.address, True),
            "version": 3,
        }

    def lease(self) -> Array:
        """The elements, read-only, for as long as somebody holds the array or a view of it."""
        dtype = self.dtype
        if dtype.hasobject:  # memory with references in it is not to be had by its address
            return read_only(self.array.copy())
        leased = np.asarray(Lease(self, self._interface))
        return leased if leased.dtype == dtype else leased.view(dtype)

    def snapshot(self) -> Array:
        """A copy of the elements."""
        return self.array.copy()

    def copy(self) -> HostBuffer:
        """A buffer with the same elements that nobody else has."""
        return HostBuffer(self.array.copy(), self.device)

    def fill(self, value: Any) -> None:
        """Write the elements of an array, converted where they are others."""
        np.copyto(self.array, value, casting="unsafe")
        self.touch()

    def adopt(self, value: Array) -> None:
        """Have an array that nobody else holds as the memory."""
        self.array, self.address = value, value.ctypes.data
        self._interface = self._described()
        self.touch()

    def update(self, change: Callable[[Array], None]) -> None:
        """Let `change` write into the elements."""
        try:
            change(self.array)
        finally:
            self.touch()

    def freeze(self) -> None:
        """Nothing to do: readers share the memory itself."""

    def first_rows(self, count: int) -> HostBuffer:
        """The first rows, in the same memory."""
        return HostBuffer(self.array[:count], self.device)


def _typestr(dtype: np.dtype[Any]) -> str:
    """NumPy reads back only the names of its own types; others are bytes, to be viewed."""
    return dtype.str if dtype.isbuiltin == 1 else f"|V{dtype.itemsize}"


class Lease:
    """The base of a leased array. NumPy shortens chains of views only through arrays, so that every
    view keeps it alive."""

    __slots__ = ("__array_interface__", "_buffer")

    def __init__(self, buffer: HostBuffer, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface
        self._buffer = buffer
        buffer.leases.add(id(self))  # one operation of the interpreter, as is the next one

    def __del__(self) -> None:
        self._buffer.leases.discard(id(self))


def is_lease(array: Array) -> bool:
    """Whether an array, or what it is a view of, is leased from a buffer."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, Lease)


def host_buffer(shape: tuple[int, ...], dtype: Any) -> HostBuffer:
    """Memory for an array on the host; what it holds is undefined."""
    return HostBuffer(np.empty(shape, dtype))


def read_only(array: Array) -> Array:
    """An array, not to be written to any more."""
    array.flags.writeable = False
    return array
