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
    """The devices by how many of each kind are wanted: CPUs, one unless the count says more, and
    the GPUs that are there, unless nothing is said about them or the count says fewer.

    Sessions that ask for the same have the same ones. `threads` limits a program's threads;
    `task` is what this process is in a cluster.
    """
    count = max(1, device_count.get("CPU", 1))
    cpus = [cpu_device(index, count, threads, task) for index in range(count)]
    wanted = device_count.get("GPU")
    if gpus is None or wanted == 0 or not driver_kind():
        return [*cpus]
    cuda = importlib.import_module("thalweg.device.cuda.device")  # which most machines do without
    return [*cpus, *cuda.cuda_devices(wanted, task, gpus)]
