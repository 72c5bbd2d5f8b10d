"""CPU devices: each has threads of its own, and programs that run on them.

The default device has one thread for each core and serves every session that asks for nothing
else. Several devices in one process share the cores: each gets a pool with its part of the threads.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from thalweg.codegen.cache import Loaded, find_all
from thalweg.codegen.machine import CpuTarget
from thalweg.device.cpu.pool import Pool, default_pool, default_threads
from thalweg.device.cpu.program import Program
from thalweg.device.cpu.table_template import TableTemplate
from thalweg.device.device import Device
from thalweg.device.program import Listing
from thalweg.lower.specialise import ControlRegion, Region
from thalweg.ops.core.buffer import HostBuffer
from thalweg.platform.caches import memoized

if TYPE_CHECKING:
    from thalweg.device.control import NativeControl
    from thalweg.device.cpu.listing import Call
    from thalweg.lower.control.builder import Lower
    from thalweg.lower.dynamic_shapes import SpecializedKernel
    from thalweg.lower.lowered import Lowered

Array = NDArray[Any]
LOCAL_TASK = "/job:localhost/replica:0/task:0"  # that of sessions without a cluster


class CpuDevice(Device):
    """A processor of this process: a pool, of whose threads a program uses so many (0: all)."""

    target: CpuTarget

    def __init__(
        self,
        index: int = 0,
        threads: int = 0,
        pool: Pool | None = None,
        target: CpuTarget | None = None,
        task: str = LOCAL_TASK,
    ) -> None:
        self.pool = pool or default_pool()
        name = f"{task}/device:CPU:{index}"
        super().__init__(name, target or self.pool.target)
        self.threads = threads or self.pool.threads

    @cached_property
    def key(self) -> str:
        """Names everything about the device that its programs depend on."""
        return f"{self.target} {self.target.key} {self.threads}"

    @property
    def memory_limit(self) -> int:
        """How many bytes the host has."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> HostBuffer:
        """Memory for an array; what it holds is undefined."""
        return HostBuffer(np.empty(shape, dtype), self.name)

    def upload(self, value: Array) -> HostBuffer:
        """A copy of an array of the host."""
        return HostBuffer(np.array(value, order="C"), self.name)

    def relieve_by(self, release: Callable[[], None]) -> None:
        """Nothing: the memory is the machine's."""

    def load(self, lowered: Lowered, kernels: Sequence[SpecializedKernel]) -> Program:
        """A lowered region as a program on this device's threads."""
        compiler = importlib.import_module("thalweg.device.cpu.loading")  # not before it is needed
        return compiler.make_program(lowered, kernels, self.pool, self.target, self.threads)

    def find_kernels(self, names: Sequence[str]) -> list[Loaded] | None:
        """Kernels by their names in the kernel cache, loaded; None unless all are there."""
        return find_all(names, self.target)

    def restore(
        self,
        template: TableTemplate,
        kernels: Sequence[Loaded],
        region: Region,
        listing: Callable[[], Listing[Call]],
    ) -> Program:
        """A program from its template and its loaded kernels."""
        return Program(template, kernels, region, listing, self.pool)

    def list_launches(
        self,
        lowered: Lowered,
        kernels: Sequence[SpecializedKernel],
        template: TableTemplate,
        loaded: Sequence[Loaded],
    ) -> Listing[Call]:
        """What a program was made of."""
        compiler = importlib.import_module("thalweg.device.cpu.listing")  # not before it is needed
        found = [loaded[call.kernel] for call in template.calls]
        return compiler.listed(lowered, kernels, found, self.target, keeps=True)

    def load_control(self, unit: ControlRegion, lower: Lower) -> NativeControl:
        """A conditional or a loop as native programs."""
        compiler = importlib.import_module("thalweg.device.cpu.control_program")  # as above
        load = partial(compiler.CpuControlStep, self.pool, self.target, self.threads)
        return compiler.NativeControl(unit, self.target, lower, load)


@memoized(64)
def cpu_device(
    index: int = 0, count: int = 1, threads: int = 0, task: str = LOCAL_TASK
) -> CpuDevice:
    """One of so many CPU devices of this process; programs use `threads` threads (0: all it has).

    The only one has the default pool, as have all that differ only in the number of threads.
    """
    pool = default_pool() if count == 1 else _pool(index, count)
    return CpuDevice(index, threads, pool, task=task)


@memoized(64)
def _pool(index: int, count: int) -> Pool:
    """The pool of one of several devices: its part of the threads, at least one."""
    threads, rest = divmod(default_threads(), count)
    return Pool(max(threads + (index < rest), 1))
