"""The objects that outlive steps: variables, accumulators and the like, by container and name.

`Objects` are what a device owns. A session has them to itself, or shares those of a server's
devices with others. The states of single nodes (random streams, iterators) are always a session's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """What one device owns, by container and name."""

    def __init__(self) -> None:
        self._lock = freed_after_fork(threading.RLock())
        self._found: dict[tuple[str, str], Any] = {}
        self.version = 0  # changes when an object is forgotten: what was looked up may be stale

    def get(self, name: str, container: str, make: Callable[[], Resource]) -> Resource:
        """The object kept under (container, name), made on first use."""
        key = (container, name)
        found = self._found.get(key)
        if found is not None:
            return cast("Resource", found)
        with self._lock:
            if key not in self._found:
                self._found[key] = make()
            return cast("Resource", self._found[key])

    def delete(self, name: str, container: str) -> bool:
        """Forget an object; whether there was one."""
        with self._lock:
            self.version += 1
            return self._found.pop((container, name), None) is not None

    def clear(self, containers: Iterable[str] | None = None) -> None:
        """Forget all objects, or those of some containers."""
        doomed = None if containers is None else set(containers)
        with self._lock:
            self.version += 1
            kept = {} if doomed is None else self._found
            self._found = {k: v for k, v in kept.items() if k[0] not in (doomed or ())}


class Resources:
    """What a session has on one device."""

    #: Those of the session's devices, where there are several: the session holds them.
    devices: Mapping[str, Resources] = MappingProxyType({})
    allocate: Allocate = staticmethod(host_buffer)  # how the device allocates memory

    def __init__(self, objects: Objects | None = None) -> None:
        self._lock = freed_after_fork(threading.RLock())
        self.objects = objects or Objects()
        self._states: dict[Any, Any] = {}

    @classmethod
    def of_devices(
        cls, devices: Sequence[Device], objects: Sequence[Objects] | None = None
    ) -> list[Resources]:
        """The resources of some devices, each of which knows the others."""
        return _introduced([cls(each) for each in objects or [Objects() for _ in devices]], devices)

    def with_others(self, devices: Sequence[Device]) -> list[Resources]:
        """These, which are the first device's, and new ones of the others, as `of_devices`."""
        return _introduced([self, *[Resources() for _ in devices[1:]]], devices)

    def on(self, device: str) -> Resources:
        """What another device of the session owns."""
        return self.devices.get(device, self)

    def allocator(self, request: str) -> Allocate:
        """How the first device of the session that satisfies a request allocates memory; this one,
        where none does."""
        wanted = DeviceSpec.from_string(request)
        for name, found in self.devices.items():
            if matches(wanted, DeviceSpec.from_string(name)):
                return found.allocate
        return self.allocate

    def get(self, name: str, container: str, make: Callable[[], Resource]) -> Resource:
        """The object kept under (container, name), made on first use."""
        return self.objects.get(name, container, make)

    def delete(self, name: str, container: str) -> bool:
        """Forget an object; whether there was one."""
        return self.objects.delete(name, container)

    def state(self, node: Any, make: Callable[[], Resource]) -> Resource:
        """A node's own object, made on first use."""
        found: Any = self._states.get(node)
        if found is not None:
            return found
        with self._lock:
            if node not in self._states:
                self._states[node] = make()
            return cast("Resource", self._states[node])

    def clear(self, containers: Iterable[str]) -> None:
        """Forget all objects of some containers, on all devices."""
        doomed = set(containers)
        for each in self.devices.values() or (self,):
            each.objects.clear(doomed)


def _introduced(every: list[Resources], devices: Sequence[Device]) -> list[Resources]:
    """The resources of devices, which know how each allocates, and one another."""
    by_name = {device.name: each for device, each in zip(devices, every, strict=True)}
    for each, device in zip(every, devices, strict=True):
        each.allocate = device.allocate
        if len(every) > 1:
            each.devices = WeakValueDictionary(by_name)
    return every
