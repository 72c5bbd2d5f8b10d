"""The devices of eager code: a CPU and the GPUs that are there, which are preferred.

Comes in: what a program asks for by `tf.device`. Goes out: where steps and variables are, and for
arrays of the host that several steps take, the one copy of each that is on a device.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from thalweg import errors
from thalweg.device.device import Device
from thalweg.device.local import local_devices
from thalweg.graph.device import DeviceSpec
from thalweg.graph.dtypes import DType
from thalweg.graph.shapes import TensorShape
from thalweg.ops.core.buffer import Buffer
from thalweg.ops.core.compilable import is_number
from thalweg.place.devices import accelerated_first
from thalweg.place.kinds import ANY, CPU
from thalweg.runtime.config import SessionOptions
from thalweg.runtime.resources import Resources

Array = NDArray[Any]

#: Bytes of an array up to which a program takes it along whenever it is launched.
_MAX_STAGED = 1 << 16

#: What outlives lazy traces and is no variable: queues, tables, the counts of printed lines.
resources = Resources()


class EagerDevices:
    """The devices that eager code uses."""

    def __init__(self, options: SessionOptions) -> None:
        count = {kind: n for kind, n in options.device_count.items() if kind == "GPU"}
        self.all: Sequence[Device] = local_devices(count, gpus=options.gpus)
        self.names = [device.name for device in self.all]
        self.has_gpus = len(self.all) > 1
        self._preferred = accelerated_first(tuple(self.names))
        self._by_name = dict(zip(self.names, self.all, strict=True))
        self._resources = resources.with_others(self.all) if self.has_gpus else [resources]
        self._copies: dict[int, tuple[weakref.ref[Array], Buffer]] = {}
        self._relieved: set[Device] = set()  # those that drop the copies when memory runs out

    def __getitem__(self, name: str) -> Device:
        return self._by_name[name]

    def check(self, request: str) -> None:
        """Raise where a device is asked for that is not there, of a kind that is."""
        spec = DeviceSpec.from_string(request)
        if self._preferred.feasible(spec, ANY) or self._preferred.lacks_kind(spec):
            return
        raise errors.InvalidArgumentError(
            None, None, f"No device matches '{request}'. Devices here: {', '.join(self.names)}"
        )

    def home(self, request: str, dtype: DType, shape: TensorShape) -> Device:
        """Where a variable or a constant lives: on a GPU if it can, unless something else is asked
        for."""
        kinds = ANY if is_number(dtype.base_dtype) and shape.is_fully_defined() else CPU
        found = self._preferred.feasible(DeviceSpec.from_string(request), kinds)
        return self[(found or self._preferred.feasible(DeviceSpec(), kinds))[0]]

    def copy_of(self, array: Array, dtype: Any, device: Device) -> Any:
        """An array of the host that nobody writes to, in the memory of a device: copied once, and
        kept there as long as the array is held and there is memory. Those that are small or are to
        be converted stay what they are."""
        if array.nbytes <= _MAX_STAGED or array.dtype != dtype:
            return array
        key = id(array)
        found = self._copies.get(key)
        if found is not None and found[0]() is array and found[1].device == device.name:
            return found[1]
        if device not in self._relieved:
            self._relieved.add(device)
            device.relieve_by(self._copies.clear)
        made = device.upload(array)
        made.freeze()
        self._copies[key] = weakref.ref(array, lambda _: self._copies.pop(key, None)), made
        return made


_options: list[SessionOptions] = [SessionOptions()]
_devices: list[EagerDevices] = []

#: Grows when devices were found again: what was planned before is for others.
generation = [0]


def eager_devices() -> EagerDevices:
    """The devices, found when they are first asked for."""
    if not _devices:
        _devices.append(EagerDevices(_options[0]))
    return _devices[0]


def use_devices(options: SessionOptions) -> None:
    """Find devices again, by these options."""
    _options[:] = [options]
    generation[0] += 1
    _devices.clear()


def forget_lost() -> None:
    """Do without devices that an error has closed, from now on."""
    if any(device.is_lost for device in eager_devices().all):
        use_devices(_options[0])
