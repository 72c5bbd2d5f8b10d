"""Engines plan and run the steps of a session.

A session without a target has a local engine, with the devices of this process and state that lives
as long as the session; `list_local_devices` describes these. The other engine is a cluster's master
(`thalweg.cluster.master`).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from thalweg import errors, protos
from thalweg.device.device import Device
from thalweg.device.local import local_devices
from thalweg.graph.device import DeviceSpec
from thalweg.place.placer import Placer
from thalweg.public import public
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.config import SessionOptions, session_options
from thalweg.runtime.executor import execute
from thalweg.runtime.plan import Plan, Step, plan, prune
from thalweg.runtime.resources import Resources, linked
from thalweg.runtime.step_cache import StepEntry, step_entry

#: THALWEG_COMPILE=0 runs everything on the reference kernels.
COMPILES = os.environ.get("THALWEG_COMPILE", "1") != "0"


def _ignore(error: errors.OpError) -> None:
    """The default of `Engine.on_failure`: does nothing."""


class Engine(ABC):
    """Plans and runs the steps of a session."""

    devices: Sequence[Device]  # those of this process
    resources: Resources  # of the first device
    placer: Placer
    #: Called with an error that ends the session, whatever its cause.
    on_failure: Callable[[errors.OpError], None] = staticmethod(_ignore)

    @abstractmethod
    def plan(self, step: Step) -> Plan:
        """Plan a step."""

    def entry(self, step: Step) -> StepEntry | None:
        """The disk entry of a step's program; None for a step that has none."""
        return None

    def explained(self, planned: Plan) -> Plan:
        """The plan with details for inspection, such as the partitions of remote tasks."""
        return planned

    @abstractmethod
    def execute(self, planned: Plan, feeds: Sequence[Any], cancellation: Cancellation) -> list[Any]:
        """Run a planned step; returns fetched values that the caller owns."""

    @abstractmethod
    def close(self) -> None:
        """Release the state of the session."""


class LocalEngine(Engine):
    """Runs steps on the devices of this process, with state of its own."""

    def __init__(self, options: SessionOptions) -> None:
        self.devices = _devices(options)
        self.placer = Placer([device.name for device in self.devices], options.allow_soft_placement)
        self._switches = options.optimizer
        self._reset_resources()

    def _reset_resources(self) -> None:
        """Replace the state with an empty one."""
        self.resources, *self._others = linked([Resources() for _ in self.devices], self.devices)

    def plan(self, step: Step) -> Plan:
        return plan(step, self.devices, self.placer, COMPILES, self._switches)

    def entry(self, step: Step) -> StepEntry | None:
        if not COMPILES or len(self.devices) > 1:
            return None
        nodes = prune(step.fetches, step.targets, step.feeds)
        self.placer.place(nodes)  # raises if a node cannot be placed on its device
        return step_entry(step, nodes, self.devices[0], self._switches)

    def execute(self, planned: Plan, feeds: Sequence[Any], cancellation: Cancellation) -> list[Any]:
        return execute(planned, feeds, self.resources, cancellation)

    def close(self) -> None:
        self._reset_resources()


def _devices(options: SessionOptions) -> Sequence[Device]:
    return local_devices(options.device_count, options.threads, gpus=options.gpus)


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
    devices: Any = _devices(session_options(session_config))
    return [_described(device, DeviceSpec.from_string(device.name)) for device in devices]


def _described(device: Any, spec: DeviceSpec) -> LocalDevice:
    name = f"/device:{spec.device_type}:{spec.device_index}"
    hardware = device.memory_limit, device.description, device.capability
    return LocalDevice(name, spec.device_type or "", *hardware)
