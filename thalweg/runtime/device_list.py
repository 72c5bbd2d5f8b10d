"""Listing of the devices of this process, without a session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg import protos
from thalweg.device.local import local_devices
from thalweg.graph.device import DeviceSpec
from thalweg.public import public
from thalweg.runtime.config import session_options


@dataclass(frozen=True)
class LocalDevice:
    """A device: its name, type, memory in bytes and hardware description."""

    name: str
    device_type: str
    memory_limit: int
    physical_device_desc: str
    capability: int  # the compute capability of a GPU, times ten


@public("python.client.device_lib.list_local_devices")
def list_local_devices(session_config: protos.ConfigProto | None = None) -> list[LocalDevice]:
    """The devices that a session of this process would have.

    Args:
        session_config: a `tf.ConfigProto`, as a session takes it.

    Returns:
        For each device its `name`, `device_type`, `memory_limit` in bytes and
        `physical_device_desc`; the names are those in this process, without job and task.

    Example:
        >>> devices = tf.python.client.device_lib.list_local_devices()
        >>> devices[0].name, devices[0].device_type, devices[0].memory_limit > 0
        ('/device:CPU:0', 'CPU', True)
    """
    options = session_options(session_config)
    devices: Any = local_devices(options.device_count, options.threads, gpus=options.gpus)
    return [_described(device, DeviceSpec.from_string(device.name)) for device in devices]


def _described(device: Any, spec: DeviceSpec) -> LocalDevice:
    name = f"/device:{spec.device_type}:{spec.device_index}"
    hardware = device.memory_limit, device.description, device.capability
    return LocalDevice(name, spec.device_type or "", *hardware)
