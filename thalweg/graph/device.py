"""Device names: `/job:worker/replica:0/task:3/device:CPU:0`, parsed, merged and printed.

A device scope is a function from a node to a device name. The function of a name completes the
node's device, which inner scopes have requested, with the parts that they left unspecified.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from thalweg.public import public

if TYPE_CHECKING:
    from thalweg.graph.node import Node

DeviceFunction = Callable[["Node"], str]


@public("DeviceSpec")
@dataclass
class DeviceSpec:
    """A device name in parts; a part that is None is unspecified.

    Args:
        job: the name of a job.
        replica: a number.
        task: a number.
        device_type: "CPU" and so on.
        device_index: a number.

    Example:
        >>> tf.DeviceSpec(job="worker", device_type="CPU", device_index=0).to_string()
        '/job:worker/device:CPU:0'
    """

    job: str | None = None
    replica: int | None = None
    task: int | None = None
    device_type: str | None = None
    device_index: int | None = None

    def __post_init__(self) -> None:
        if self.device_type is not None:
            self.device_type = self.device_type.upper()

    @classmethod
    def from_string(cls, spec: str) -> DeviceSpec:
        """Parse a device name."""
        return cls().parse_from_string(spec)

    def parse_from_string(self, spec: str) -> DeviceSpec:
        """Set this spec from a device name."""
        self.__init__()
        for part in filter(None, spec.split("/")):
            self._set_part(part.split(":"), spec)
        return self

    def _set_part(self, part: list[str], spec: str) -> None:
        match part:
            case ["job", job]:
                self.job = job
            case ["replica" | "task" as name, index]:
                setattr(self, name, int(index))
            case ["device", kind, *index] if kind:
                self._set_device([kind, *index], spec)
            case [kind, *index] if kind.upper() in _DEVICE_TYPES:
                self._set_device([kind, *index], spec)
            case _:
                raise ValueError(f"Unknown attribute: '{part[0]}' in '{spec}'")

    def _set_device(self, part: list[str], spec: str) -> None:
        if self.device_type is not None:
            raise ValueError(f"Cannot specify multiple device types: {spec}")
        self.device_type = part[0].upper() if part[0] != "*" else None
        if len(part) > 1 and part[1] != "*":
            self.device_index = int(part[1])

    def merge_from(self, other: DeviceSpec) -> None:
        """Replace every part that `other` specifies."""
        if other.device_type is not None:
            self.device_index = None
        for name, value in vars(other).items():
            if value is not None:
                setattr(self, name, value)

    def to_string(self) -> str:
        """The canonical name."""
        parts = [
            f"/{name}:{value}"
            for name, value in (("job", self.job), ("replica", self.replica), ("task", self.task))
            if value is not None
        ]
        if self.device_type is not None:
            index = "*" if self.device_index is None else self.device_index
            parts.append(f"/device:{self.device_type}:{index}")
        return "".join(parts)

    def __str__(self) -> str:
        return self.to_string()


class DeviceName(str):
    """The name of an existing device, with the attributes of TensorFlow's device objects."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The whole name."""
        return str(self)

    @property
    def device_type(self) -> str:
        """The kind of device, such as `CPU`."""
        return DeviceSpec.from_string(self).device_type or ""

    @property
    def memory_limit_bytes(self) -> int:
        """0: no limit but the machine's memory."""
        return 0


#: The type of devices that run all ops. All others are accelerators: they run compiled ops.
CPU = "CPU"
_DEVICE_TYPES = {CPU, "GPU", "TPU", "XLA_CPU", "XLA_GPU", "*"}


def is_cpu(name: str) -> bool:
    """Whether the full name of a device is that of a CPU."""
    return f"/device:{CPU}:" in name


def task_of(name: str) -> str:
    """The task in the full name of a device."""
    return name.rpartition("/device:")[0]


def canonical_name(device: Any) -> str:
    """The canonical form of a device name or spec; "" for None."""
    return "" if device is None else _as_spec(device).to_string()


def _as_spec(device: str | DeviceSpec) -> DeviceSpec:
    return device if isinstance(device, DeviceSpec) else DeviceSpec.from_string(device)


def device_function(device: Any) -> DeviceFunction | None:
    """A device scope as a function of a node; None ignores the outer scopes."""
    if device is None:
        return None
    if callable(device):
        return lambda node: canonical_name(device(node))
    if not isinstance(device, str | DeviceSpec):
        raise TypeError(
            f"A device is a name, a DeviceSpec, a function of a node or None: {device!r}"
        )
    spec = _as_spec(device)
    return lambda node: _merged(spec, node.device)


def _merged(outer: DeviceSpec, inner: str) -> str:
    """The device of inner scopes, completed with the parts of the outer one."""
    if not inner:
        return outer.to_string()
    merged = replace(outer)
    merged.merge_from(DeviceSpec.from_string(inner))
    return merged.to_string()
