"""CUDA devices: the GPUs of this machine, which are opened on first use."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.codegen.cuda.target import CudaTarget
from thalweg.device.cuda.control import CudaControlStep
from thalweg.device.cuda.discovery import find_driver
from thalweg.device.cuda.driver import Context, Driver, Properties
from thalweg.device.cuda.graph_template import GraphTemplate
from thalweg.device.cuda.kernels import Kernels, LoadedKernel
from thalweg.device.cuda.listing import CudaListing
from thalweg.device.cuda.loading import load_kernels, make_template
from thalweg.device.cuda.memory import DeviceBuffer, Memory, Pool
from thalweg.device.cuda.program import CudaProgram, DeviceMemory
from thalweg.device.device import Device
from thalweg.device.gpu_options import GpuOptions
from thalweg.lower.control.program import ControlProgram
from thalweg.lower.dynamic_shapes import SpecializedKernel
from thalweg.lower.lowered import Lowered
from thalweg.lower.specialise import Region
from thalweg.ops.core.buffer import Buffer, host_buffer
from thalweg.platform.arrays import Array
from thalweg.platform.caches import Bounded
from thalweg.platform.forks import freed_after_fork

_RESERVED = 256 << 20  # bytes of a GPU that are left to the driver and other processes


class CudaDevice(Device):
    """A GPU: one pool of memory, and programs that run as CUDA graphs."""

    target: CudaTarget
    is_host = False

    def __init__(
        self,
        driver: Driver,
        index: int,
        name: str,
        options: GpuOptions | None = None,
        is_emulated: bool = False,
    ) -> None:
        """`options` limit the used fraction of the memory (0: all but a reserve); it is allocated
        on demand or, without growth, at once."""
        self.properties, options = driver.properties(index), options or GpuOptions()
        super().__init__(name, target_of(self.properties, options, is_emulated))
        found = self.properties
        self.capability = found.capability
        self.description = (
            f"device: {index}, name: {found.name}, pci bus id: {found.bus_id}, "
            f"compute capability: {found.capability // 10}.{found.capability % 10}"
        )
        self._driver, self._index = driver, index
        self._fraction, self._allow_growth = options.memory_fraction, options.allow_growth
        self.memory_limit = int((self._fraction or 1.0) * found.memory)
        self._lock = freed_after_fork(threading.RLock())
        self._process = os.getpid()
        self.kernels = Kernels(lambda: self.context, self.target)

    @cached_property
    def key(self) -> str:
        """The cache key of the device: all properties that its programs depend on."""
        return f"{self.target} {self.target.key}"

    @property
    def is_lost(self) -> bool:
        """Whether a sticky error has closed the device."""
        return "_shared" in self.__dict__ and self._shared.memory.context.lost is not None

    @property
    def context(self) -> Context:
        """The opened GPU."""
        return self.shared.memory.context

    @property
    def shared(self) -> DeviceMemory:
        """The memory that all programs share; raises the error that closed the device, if any."""
        if os.getpid() != self._process:
            raise errors.FailedPreconditionError(
                None,
                None,
                f"{self.name} belongs to the process that this one was forked from: start processes"
                " that use GPUs with the 'spawn' method, or fork before the first session",
            )
        with self._lock:
            result = self._shared
        if result.memory.context.lost is not None:
            raise result.memory.context.lost
        return result

    @cached_property
    def _shared(self) -> DeviceMemory:
        context = self._driver.open(self._index, self.name)
        limit = self._limit(context)
        pool = Pool(context, limit, 0 if self._allow_growth else limit)
        return DeviceMemory(Memory(context, pool), self.target)

    def _limit(self, context: Context) -> int:
        free, total = context.memory()
        if self._fraction:
            return int(self._fraction * total)
        return max(free - _RESERVED, free // 2)

    # Memory

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> Buffer:
        """Uninitialised memory for an array; arrays of objects are in host memory."""
        if np.dtype(dtype).hasobject:
            return host_buffer(shape, dtype)
        return self.shared.memory.buffer(shape, dtype)

    def upload(self, value: Array) -> DeviceBuffer:
        """Copy an array of the host to a new buffer."""
        return self.shared.memory.uploaded(value)

    def relieve_by(self, release: Callable[[], None]) -> None:
        """Register a function that is called to free memory when it is exhausted."""
        self.shared.releases.append(release)

    # Programs

    def load(self, lowered: Lowered, kernels: Sequence[SpecializedKernel]) -> CudaProgram:
        """Load a lowered region as a program on this GPU."""
        names, loaded = load_kernels(lowered, kernels, self.kernels, self.target)
        template, listing = make_template(lowered, kernels, names, loaded, self.target)
        unique = list(dict(zip(names, loaded, strict=True)).values())
        return CudaProgram(template, unique, lowered.spec.region, lambda: listing, self.shared)

    def _find_named(self, names: Sequence[str]) -> list[LoadedKernel] | None:
        """Load kernels by their names in the kernel cache; None unless all are found."""
        return self.kernels.find(names)

    def restore(
        self,
        template: GraphTemplate,
        kernels: Sequence[LoadedKernel],
        region: Region,
        listing: Callable[[], CudaListing],
    ) -> CudaProgram:
        """Restore a program from its template and its loaded kernels."""
        return CudaProgram(template, kernels, region, listing, self.shared)

    @property
    def runs_control(self) -> bool:
        """Whether the driver supports conditional graphs; if not, the executor runs control nodes
        region by region."""
        return self.context.has_conditionals

    def load_control(
        self, program: ControlProgram, kernels: Sequence[SpecializedKernel]
    ) -> CudaControlStep:
        """A conditional or a loop as one CUDA graph."""
        return CudaControlStep(self.shared, self.kernels, program, kernels)


def target_of(properties: Properties, options: GpuOptions, is_emulated: bool = False) -> CudaTarget:
    """The target of a GPU, for lowering and the code generator. For an emulated one, images of any
    size are packed, since tests have small ones."""
    least = 1 if is_emulated else CudaTarget.min_packed_elements
    return CudaTarget(
        name="cuda emulated" if is_emulated else "cuda",
        is_emulated=is_emulated,
        deterministic=options.deterministic,
        allow_tf32=options.tf32,
        capability=properties.capability,
        multiprocessors=properties.multiprocessors,
        max_threads=properties.threads_per_block,
        shared_bytes=properties.shared_bytes,
        memory_rate=properties.memory_rate,
        l2=properties.l2,
        min_packed_elements=least,
    )


# The GPUs of this process


def cuda_devices(count: int | None, task: str, gpus: GpuOptions) -> list[CudaDevice]:
    """The GPUs of this process: all or the first `count`, of those that `gpus` makes visible.
    Closed ones are omitted."""
    driver, is_emulated = find_driver()
    if driver is None:
        return []
    there = range(driver.count())
    chosen = _visible_indices(gpus.visible, there)
    made: list[CudaDevice] = []
    for number, index in enumerate(chosen[:count]):
        key = index, number, task, replace(gpus, visible="")
        if key not in _devices:
            name = f"{task}/device:GPU:{number}"
            _devices[key] = CudaDevice(driver, index, name, gpus, is_emulated)
        made.append(_devices[key])
    return [device for device in made if not device.is_lost]


def _visible_indices(visible: str, there: range) -> list[int]:
    """The indices of the GPUs in a visible device list; all for an empty one."""
    names = [part.strip() for part in visible.split(",") if part.strip()]
    unknown = [name for name in names if not name.isdigit() or int(name) not in there]
    if unknown:
        raise errors.InvalidArgumentError(
            None,
            None,
            f"gpu_options.visible_device_list {visible!r} names GPU {unknown[0]}, but this process "
            f"sees {len(there)}, numbered from 0",
        )
    return [int(name) for name in names] or list(there)


_devices = Bounded[Any, CudaDevice]("GPUs of this process", 64)


def reset_devices() -> None:
    """Drop the opened GPUs: later sessions open them again."""
    _devices.clear()
