"""Buffers: a lease lasts as long as an array over the memory."""

from __future__ import annotations

import gc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from thalweg.ops.core.buffer import HostBuffer

DTYPES = [np.float32, np.int8, np.bool_, np.complex128, ml_dtypes.bfloat16, ml_dtypes.int4]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
def test_a_lease_is_the_memory_read_only(dtype: Any, shape: tuple[int, ...]) -> None:
    buffer = HostBuffer(np.ones(shape, dtype))
    leased = buffer.lease()
    assert (leased.dtype, leased.shape) == (buffer.dtype, shape)
    assert leased.ctypes.data == buffer.address and not leased.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        leased.flags.writeable = True
    assert buffer.is_leased
    del leased
    assert not buffer.is_leased


VIEWS = {
    "slice": lambda array: array[1:],
    "transpose": lambda array: array.T,
    "reshape": lambda array: array.reshape(-1)[::2],
    "cast": lambda array: array.view(np.int32),
    "view of a view": lambda array: array[1:].T[0],
    "memory": memoryview,
    "interface": lambda array: np.asarray(memoryview(array)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_of_a_lease_keeps_it(name: str) -> None:
    buffer = HostBuffer(np.ones((4, 4), np.float32))
    view = VIEWS[name](buffer.lease())
    gc.collect()
    assert buffer.is_leased
    del view
    assert not buffer.is_leased


def test_leases_are_counted_and_keep_the_memory() -> None:
    buffer = HostBuffer(np.arange(1000.0))
    first, second = buffer.lease(), buffer.lease()
    del first
    assert buffer.is_leased
    copy = buffer.copy()
    assert not copy.is_leased and copy.address != buffer.address
    del buffer
    np.testing.assert_array_equal(second, np.arange(1000.0))


def test_objects_are_copied() -> None:
    buffer = HostBuffer(np.array([b"a", b"b"], object))
    leased = buffer.lease()
    buffer.array[0] = b"c"
    assert leased.tolist() == [b"a", b"b"] and not leased.flags.writeable and not buffer.is_leased
