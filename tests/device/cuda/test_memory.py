"""The memory pool of a GPU, its buffers, and pinned memory."""

from __future__ import annotations

import gc
import subprocess
import sys
from itertools import pairwise
from random import Random
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from thalweg import errors
from thalweg.device.cuda import pinned
from thalweg.device.cuda.emulated import EmulatedContext
from thalweg.device.cuda.memory import Block, Memory, Pool
from thalweg.device.cuda.pinned import PinnedArrays, is_pinned
from thalweg.device.cuda.staging import Staging

LIMIT = 64 << 20


@pytest.fixture
def memory() -> Memory:
    context = EmulatedContext("GPU:0", LIMIT)
    return Memory(context, Pool(context, LIMIT))


@pytest.mark.parametrize("seed", range(5))
def test_blocks_do_not_overlap_and_are_merged_again(memory: Memory, seed: int) -> None:
    random, pool = Random(seed), memory.pool
    held: list[Block] = []
    for _ in range(400):
        if held and random.random() < 0.45:
            pool.free(held.pop(random.randrange(len(held))))
        else:
            held.append(pool.allocate(random.choice([0, 1, 300, 5_000, 200_000])))
        ranges = sorted((b.address, b.address + b.size) for b in held)
        assert all(end <= start for (_, end), (start, _) in pairwise(ranges))
        assert all(start % 256 == 0 for start, _ in ranges)
    assert pool.used == sum(block.size for block in held)
    for block in held:
        pool.free(block)
    pool.trim()
    assert pool.used == pool.reserved == 0
    assert memory.context.memory()[0] == LIMIT


def test_a_full_pool_frees_cached_memory(memory: Memory) -> None:
    pool = memory.pool
    kept = [pool.allocate(40 << 20)]
    with pytest.raises(errors.ResourceExhaustedError, match=r"no 31\.5 MB left: 41\.9 MB of"):
        pool.allocate(30 << 20)
    pool.release_idle = lambda: pool.free(kept.pop())
    assert pool.allocate(30 << 20).size == 30 << 20


def test_a_limit_below_the_total_memory() -> None:
    context = EmulatedContext("GPU:0", LIMIT)
    pool = Pool(context, 1 << 20, reserve=1 << 20)
    assert context.memory()[0] == LIMIT - (1 << 20)
    pool.allocate(1 << 19)
    with pytest.raises(errors.ResourceExhaustedError, match=r"of the 1\.05 MB"):
        pool.allocate(1 << 20)


@pytest.mark.parametrize("dtype", [np.float32, np.bool_, np.int8, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
def test_a_buffer_returns_the_elements_written_to_it(
    memory: Memory, dtype: Any, shape: Any
) -> None:
    value = np.ones(shape, dtype)
    buffer = memory.buffer(shape, dtype)
    buffer.fill(value)
    leased, copied = buffer.lease(), buffer.copy()
    assert not leased.flags.writeable and not buffer.is_leased
    assert buffer.nbytes == value.nbytes and buffer.dtype == value.dtype
    buffer.update(lambda array: array.fill(0))
    for found in (leased, copied.snapshot()):
        np.testing.assert_array_equal(found, value)
    np.testing.assert_array_equal(buffer.snapshot(), np.zeros(shape, dtype))
    assert buffer.adopt(value) is value


def test_an_unreferenced_buffer_is_freed(memory: Memory) -> None:
    buffer = memory.buffer((1000,), np.float32)
    address = buffer.address
    del buffer
    gc.collect()
    assert memory.buffer((1000,), np.float32).address == address


@pytest.mark.parametrize("size", [1, 4 << 20, (9 << 20) + 3])
def test_a_large_array_is_staged(memory: Memory, size: int) -> None:
    value = np.arange(size, dtype=np.uint8)
    buffer = memory.buffer(value.shape, np.uint8)
    staging, actual = Staging(memory.context), np.zeros_like(value)
    staging.upload(buffer.address, value)
    np.testing.assert_array_equal(buffer.snapshot(), value)
    staging.download(actual, buffer.address)
    np.testing.assert_array_equal(actual, value)


def test_results_of_a_repeated_size_are_in_pinned_memory(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinned, "MAX_PINNED", 9 << 20)
    arrays = PinnedArrays(memory.context)
    shape = (1250, 1024)  # 2.5 MB of bfloat16 use 3 MB
    assert not is_pinned(arrays.empty((10,), np.float32))
    kept = [arrays.empty(shape, ml_dtypes.bfloat16) for _ in range(5)]
    assert [is_pinned(array) for array in kept] == [False, True, True, True, False]
    assert all(a.shape == shape and a.dtype == ml_dtypes.bfloat16 for a in kept)
    for number, array in enumerate(kept):
        array[:] = number  # they do not share memory
    assert [float(array[-1, -1]) for array in kept] == [0, 1, 2, 3, 4]
    view, address = kept[1][5:], kept[1].ctypes.data
    del kept[1], array
    assert not is_pinned(arrays.empty(shape, ml_dtypes.bfloat16))  # a view of it still exists
    del view
    assert arrays.empty(shape, ml_dtypes.bfloat16).ctypes.data == address
    del kept
    other = [arrays.empty((4 << 20,), np.uint8) for _ in range(3)]
    assert [is_pinned(array) for array in other] == [False, True, True]


def test_the_caller_owns_large_results(memory: Memory) -> None:
    buffer = memory.buffer((2 << 20,), np.uint8)
    found = []
    for number in range(4):
        buffer.fill(np.full(2 << 20, number, np.uint8))
        found.append(buffer.snapshot())
    assert [int(array[-1]) for array in found] == [0, 1, 2, 3]
    buffer.fill(found[3])  # directly from pinned memory
    assert buffer.snapshot()[0] == 3


_ENDS = """
from thalweg.device.cuda.emulated import EmulatedContext
from thalweg.device.cuda.pinned import Pinned

class Context(EmulatedContext):
    def unpin(self, address):
        print("unpinned", address == first)

context = Context("GPU:0", 1 << 20)
gone, kept = Pinned(context, 16), Pinned(context, 16)
first = gone.address
del gone
"""


def test_pinned_memory_at_the_end_of_the_process() -> None:
    """It is not freed then: the driver and its caller may have shut down."""
    ran = subprocess.run([sys.executable, "-c", _ENDS], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("unpinned True\n", "")
