"""The devices of this process."""

from __future__ import annotations

from collections.abc import Mapping

from thalweg.device.cpu.device import LOCAL_TASK, cpu_device
from thalweg.device.device import Device


def local_devices(
    device_count: Mapping[str, int], threads: int = 0, task: str = LOCAL_TASK
) -> list[Device]:
    """The devices by how many of each kind are wanted: CPUs, one unless the count says more.

    Sessions that ask for the same have the same ones. `threads` limits a program's threads;
    `task` is what this process is in a cluster.
    """
    count = max(1, device_count.get("CPU", 1))
    return [cpu_device(index, count, threads, task) for index in range(count)]
