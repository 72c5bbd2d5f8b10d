"""CPU devices: names, threads, memory, and programs that run on them."""

from __future__ import annotations

import numpy as np
import pytest

import thalweg as tf
from tests.lower.programs import lowered
from thalweg.device.cpu import device as devices
from thalweg.device.cpu.device import CpuDevice, cpu_device
from thalweg.device.cpu.pool import Pool, default_pool
from thalweg.device.local import local_devices
from thalweg.lower.dynamic_shapes import Varying, adapted
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.kernels import Context
from thalweg.runtime.resources import Resources


def test_the_only_device_has_the_default_pool_whatever_its_threads() -> None:
    (device,) = local_devices({})
    assert isinstance(device, CpuDevice)
    assert device.name == "/job:localhost/replica:0/task:0/device:CPU:0"
    assert device.pool is default_pool() is cpu_device(threads=1).pool
    assert device.threads == device.pool.threads and cpu_device(threads=1).threads == 1
    assert device is local_devices({"CPU": 1})[0]


def test_several_devices_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THALWEG_THREADS", "5")
    pools = [devices._pool.__wrapped__(index, 3) for index in range(3)]
    assert [pool.threads for pool in pools] == [2, 2, 1]
    assert [devices._pool.__wrapped__(index, 9).threads for index in (0, 8)] == [1, 1]


def test_devices_have_names_pools_and_keys_of_their_own() -> None:
    first, second = local_devices({"CPU": 2})
    assert isinstance(first, CpuDevice) and isinstance(second, CpuDevice)
    assert (first.name[-1], second.name[-1]) == ("0", "1")
    assert first.pool is not second.pool
    assert CpuDevice(threads=1).key != CpuDevice(threads=2).key


def test_memory_goes_to_a_device_and_back() -> None:
    device = CpuDevice(3)
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    buffer = device.upload(value.T)
    assert (buffer.device, buffer.shape, buffer.nbytes) == (device.name, (3, 2), 24)
    assert buffer.address == buffer.array.ctypes.data
    back = buffer.snapshot()
    np.testing.assert_array_equal(back, value.T)
    assert not np.shares_memory(back, buffer.array)
    assert device.allocate((4, 1), np.int64).shape == (4, 1)


def test_a_program_runs_on_its_devices_pool() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [3, 4])
        made = lowered(tf.tanh(x) + 1)
    device = CpuDevice(1, pool=Pool(1))
    kernels = adapted(made.launches, Varying().see(made.launches))
    program = device.load(made, kernels)
    context = Context(made.spec.region.nodes[0], Resources(), Cancellation())
    value = np.ones((3, 4), np.float32)
    (result,) = program(context, [value], ()) or []
    np.testing.assert_allclose(result, np.tanh(value) + 1, rtol=1e-6)
    assert program.pool is device.pool and program.threads == 1


def test_a_session_with_several_devices_runs() -> None:
    with tf.Graph().as_default():
        with tf.device("/cpu:1"):
            y = tf.reduce_sum(tf.ones([8, 8]) * 2)
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
            assert session.run(y) == 128
            assert [name[-5:] for name in session.list_devices()] == ["CPU:0", "CPU:1"]
