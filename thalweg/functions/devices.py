"""The devices of eager code: the CPU and the accelerators of the process, which are preferred.

Resolves requests of `tf.device` to devices, and keeps one copy in device memory of each host array
that steps take.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any

from thalweg import errors
from thalweg.device.device import Device
from thalweg.device.local import local_devices
from thalweg.graph.device import CPU, DeviceSpec
from thalweg.graph.dtypes import DType
from thalweg.graph.shapes import TensorShape
from thalweg.ops.core.buffer import Buffer
from thalweg.ops.core.compilable import is_number
from thalweg.place.devices import accelerated_first
from thalweg.platform.arrays import Array
from thalweg.runtime.config import SessionOptions
from thalweg.runtime.resources import Resources, linked

#: Arrays of at most so many bytes are copied with each launch of a program.
_MAX_STAGED = 1 << 16

#: State that outlives steps, other than variables: queues, tables, counters of printed lines.
resources = Resources()


class EagerDevices:
    """The devices that eager code uses."""

    def __init__(self, options: SessionOptions) -> None:
        count = {kind: n for kind, n in options.device_count.items() if kind != CPU}
        self.all: Sequence[Device] = local_devices(count, gpus=options.gpus)
        self.names = [device.name for device in self.all]
        self.has_accelerators = len(self.all) > 1
        self._preferred = accelerated_first(tuple(self.names))
        self._by_name = dict(zip(self.names, self.all, strict=True))
        others = [Resources() for _ in self.all[1:]]
        self._resources = linked([resources, *others], self.all) if others else [resources]
        self._copies: dict[int, tuple[weakref.ref[Array], Buffer]] = {}
        self._releasing: set[Device] = set()  # drop the copies when out of memory

    def __getitem__(self, name: str) -> Device:
        return self._by_name[name]

    def check(self, request: str) -> None:
        """Raise if a request matches no device, unless the process has no device of its type."""
        spec = DeviceSpec.from_string(request)
        if self._preferred.feasible(spec) or self._preferred.lacks_type(spec):
            return
        names = ", ".join(self.names)
        raise errors.invalid(f"No device matches '{request}'. Devices here: {names}")

    def device_for(self, request: str, dtype: DType, shape: TensorShape) -> Device:
        """The device of a variable or constant: as requested, else an accelerator if it can
        be there."""
        accelerated = is_number(dtype.base_dtype) and shape.is_fully_defined()
        names = self._preferred.feasible(DeviceSpec.from_string(request), accelerated)
        return self[(names or self._preferred.feasible(DeviceSpec(), accelerated))[0]]

    def device_copy(self, array: Array, dtype: Any, device: Device) -> Any:
        """A copy of an immutable host array in the memory of a device.

        It is made once and kept while the array lives and memory suffices. An array that is small,
        or needs another dtype, is returned as it is.
        """
        if array.nbytes <= _MAX_STAGED or array.dtype != dtype:
            return array
        key = id(array)
        cached = self._copies.get(key)
        if cached is not None and cached[0]() is array and cached[1].device == device.name:
            return cached[1]
        if device not in self._releasing:
            self._releasing.add(device)
            device.relieve_by(self._copies.clear)
        buffer = device.upload(array)
        buffer.freeze()
        self._copies[key] = weakref.ref(array, lambda _: self._copies.pop(key, None)), buffer
        return buffer


_options: list[SessionOptions] = [SessionOptions()]

#: Increases when the devices change: earlier plans are then invalid.
generation = [0]


@cache
def eager_devices() -> EagerDevices:
    """The devices, detected on first use."""
    return EagerDevices(_options[0])


def use_devices(options: SessionOptions) -> None:
    """Detect devices again, by these options."""
    _options[:] = [options]
    generation[0] += 1
    eager_devices.cache_clear()


def drop_lost_devices() -> None:
    """Detect devices again if an error has closed one."""
    if any(device.is_lost for device in eager_devices().all):
        use_devices(_options[0])
