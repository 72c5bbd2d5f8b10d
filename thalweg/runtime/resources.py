"""Objects that outlive steps, such as variables and accumulators, by container and name.

`Objects` belong to a device. A session owns them, or shares the objects of a server's devices with
other sessions. The state of a single node (random stream, iterator) always belongs to one session.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

from thalweg.device.device import Device
from thalweg.graph.device import DeviceSpec
from thalweg.ops.core.context import Allocate, host_buffer
from thalweg.place.devices import matches
from thalweg.platform.forks import freed_after_fork

Resource = TypeVar("Resource")


class Objects:
    """The objects of one device, by container and name."""

    def __init__(self) -> None:
        self._lock = freed_after_fork(threading.RLock())
        self._objects: dict[tuple[str, str], Any] = {}
        self.version = 0  # changes at every deletion: earlier lookups may be stale

    def get(self, name: str, container: str, make: Callable[[], Resource]) -> Resource:
        """The object with this container and name, created by `make` on first use."""
        key = (container, name)
        existing = self._objects.get(key)
        if existing is not None:
            return cast("Resource", existing)
        with self._lock:
            if key not in self._objects:
                self._objects[key] = make()
            return cast("Resource", self._objects[key])

    def delete(self, name: str, container: str) -> bool:
        """Delete an object; returns whether there was one."""
        with self._lock:
            self.version += 1
            return self._objects.pop((container, name), None) is not None

    def clear(self, containers: Collection[str] | None) -> None:
        """Delete the objects of some containers, or of all if None."""
        with self._lock:
            self.version += 1
            if containers is None:
                self._objects = {}
                return
            objects = self._objects.items()
            self._objects = {key: made for key, made in objects if key[0] not in containers}


class Resources:
    """The state of a session on one device."""

    #: The resources of all devices of the session, if there are several; weakly referenced.
    devices: Mapping[str, Resources] = MappingProxyType({})
    allocate: Allocate = staticmethod(host_buffer)  # how the device allocates memory

    def __init__(self, objects: Objects | None = None) -> None:
        self._lock = freed_after_fork(threading.RLock())
        self.objects = objects or Objects()
        self._states: dict[Any, Any] = {}

    def on(self, device: str) -> Resources:
        """The resources of another device of the session."""
        return self.devices.get(device, self)

    def allocator(self, request: str) -> Allocate:
        """The allocator of the session's first device that matches a device string; of this device
        if none does."""
        wanted = DeviceSpec.from_string(request)
        for name, found in self.devices.items():
            if matches(wanted, DeviceSpec.from_string(name)):
                return found.allocate
        return self.allocate

    def get(self, name: str, container: str, make: Callable[[], Resource]) -> Resource:
        """The object with this container and name, created by `make` on first use."""
        return self.objects.get(name, container, make)

    def delete(self, name: str, container: str) -> bool:
        """Delete an object; returns whether there was one."""
        return self.objects.delete(name, container)

    def state(self, node: Any, make: Callable[[], Resource]) -> Resource:
        """The object of a single node, created by `make` on first use."""
        existing: Any = self._states.get(node)
        if existing is not None:
            return existing
        with self._lock:
            if node not in self._states:
                self._states[node] = make()
            return cast("Resource", self._states[node])

    def clear(self, containers: Iterable[str]) -> None:
        """Delete all objects of some containers, on all devices."""
        doomed = set(containers)
        for each in self.devices.values() or (self,):
            each.objects.clear(doomed)


def linked(every: list[Resources], devices: Sequence[Device]) -> list[Resources]:
    """The resources of devices, each with its device's allocator and a link to the others."""
    by_name = {device.name: each for device, each in zip(devices, every, strict=True)}
    for each, device in zip(every, devices, strict=True):
        each.allocate = device.allocate
        if len(every) > 1:
            each.devices = WeakValueDictionary(by_name)
    return every
