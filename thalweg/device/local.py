"""The devices of this process."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from thalweg.device.cpu.device import LOCAL_TASK, cpu_device
from thalweg.device.cuda.presence import driver_kind
from thalweg.device.device import Device
from thalweg.device.gpu_options import GpuOptions


def local_devices(
    device_count: Mapping[str, int],
    threads: int = 0,
    task: str = LOCAL_TASK,
    gpus: GpuOptions | None = None,
) -> list[Device]:
    """The devices of this process: `device_count["CPU"]` CPUs (default 1), and the GPUs found, at
    most `device_count["GPU"]`; none if `gpus` is None.

    Equal arguments give the same devices. `threads` limits the threads of a program; `task` is the
    task of this process in a cluster.
    """
    count = max(1, device_count.get("CPU", 1))
    devices: list[Device] = [cpu_device(index, count, threads, task) for index in range(count)]
    gpu_count = device_count.get("GPU")
    if gpus is not None and gpu_count != 0 and driver_kind():
        cuda = importlib.import_module("thalweg.device.cuda.device")  # most machines have no GPU
        devices += cuda.cuda_devices(gpu_count, task, gpus)
    return devices
