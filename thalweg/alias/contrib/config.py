"""`tf.config`: the devices of this process, and how exact they are."""

from __future__ import annotations

from typing import Any, NamedTuple

from thalweg.alias import names
from thalweg.device.gpu_options import ARITHMETIC

tf = names.root()


class PhysicalDevice(NamedTuple):
    """A device.

    Args:
        name: its name, such as `/physical_device:CPU:0`.
        device_type: what it is, `CPU` or `GPU`.
    """

    name: str
    device_type: str


def list_physical_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """The devices of this process, or those of a type."""
    result: list[PhysicalDevice] = []
    for device in tf.python.client.device_lib.list_local_devices():
        if device_type in (None, device.device_type):
            place = device.name.rpartition("device:")[2]
            result.append(PhysicalDevice(f"/physical_device:{place}", device.device_type))
    return result


def _check(device: Any) -> None:
    if device not in list_physical_devices():
        raise ValueError(f"Unrecognized device: {device!r}")


def set_memory_growth(device: PhysicalDevice, enable: bool) -> None:
    """Memory is taken as it is needed, in any case."""
    _check(device)


def get_memory_growth(device: PhysicalDevice) -> bool:
    """True: memory is taken as it is needed."""
    _check(device)
    return True


def set_visible_devices(devices: Any, device_type: str | None = None) -> None:
    """Which devices sessions have: all. Others are an error: `tf.ConfigProto` says which."""
    listed = [devices] if isinstance(devices, PhysicalDevice) else list(devices or ())
    for device in listed:
        _check(device)
    if missing := set(list_physical_devices(device_type)) - set(listed):
        raise RuntimeError(
            f"{sorted(missing)} cannot be hidden: use tf.ConfigProto(device_count={{...}})."
        )


def get_visible_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """The devices that sessions have."""
    return list_physical_devices(device_type)


list_logical_devices = list_physical_devices


def enable_op_determinism() -> None:
    """Sum in one order on GPUs, so that steps give the same numbers every time; CPUs always do.

    It holds for sessions that are made afterwards, as `TF_DETERMINISTIC_OPS=1` does for all. What
    costs time are sums of floats at places that are computed: rows that meet are added one by one.
    """
    ARITHMETIC.deterministic = True


def enable_tensor_float_32_execution(enabled: bool) -> None:
    """Whether tensor cores multiply float32 numbers, of which they see 10 bits after the first.

    It holds for sessions that are made afterwards. It is off unless asked for.

    Args:
        enabled: whether they may.
    """
    ARITHMETIC.tf32 = bool(enabled)


def tensor_float_32_execution_enabled() -> bool:
    """Whether tensor cores may multiply float32 numbers."""
    return ARITHMETIC.tf32
