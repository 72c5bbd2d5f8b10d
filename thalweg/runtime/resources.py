"""The objects that outlive steps: variables, accumulators and the like, by container and name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

from thalweg.device.device import Device
from thalweg.ops.core.context import Allocate, host_buffer
from thalweg.platform.forks import freed_after_fork

Resource = TypeVar("Resource")


class Resources:
    """What one device of a session owns."""

    #: Those of the session's devices, where there are several: the session holds them.
    _devices: Mapping[str, Resources] = MappingProxyType({})
    allocate: Allocate = staticmethod(host_buffer)  # how the device allocates memory

    def __init__(self) -> None:
        self._lock = freed_after_fork(threading.RLock())
        self._objects: dict[tuple[str, str], Any] = {}
        self._states: dict[Any, Any] = {}
        self.version = 0  # changes when an object is forgotten: what was looked up may be stale

    @classmethod
    def of_devices(cls, devices: Sequence[Device]) -> list[Resources]:
        """The resources of some devices, each of which knows the others."""
        made: list[Resources] = [cls() for _ in devices]
        by_name = {device.name: each for device, each in zip(devices, made, strict=True)}
        for each, device in zip(made, devices, strict=True):
            each.allocate = device.allocate
            if len(made) > 1:
                each._devices = WeakValueDictionary(by_name)
        return made

    def on(self, device: str) -> Resources:
        """What another device of the session owns."""
        return self._devices.get(device, self)

    def get(self, name: str, container: str, make: Callable[[], Resource]) -> Resource:
        """The object kept under (container, name), made on first use."""
        key = (container, name)
        found = self._objects.get(key)
        if found is not None:
            return cast("Resource", found)
        with self._lock:
            if key not in self._objects:
                self._objects[key] = make()
            return cast("Resource", self._objects[key])

    def delete(self, name: str, container: str) -> bool:
        """Forget an object; whether there was one."""
        with self._lock:
            self.version += 1
            return self._objects.pop((container, name), None) is not None

    def state(self, node: Any, make: Callable[[], Resource]) -> Resource:
        """A node's own object, made on first use."""
        with self._lock:
            if node not in self._states:
                self._states[node] = make()
            return cast("Resource", self._states[node])

    def clear(self, containers: Iterable[str]) -> None:
        """Forget all objects of some containers, on all devices."""
        doomed = set(containers)
        for each in self._devices.values() or (self,):
            each._clear(doomed)

    def _clear(self, doomed: set[str]) -> None:
        with self._lock:
            self.version += 1
            self._objects = {k: v for k, v in self._objects.items() if k[0] not in doomed}
