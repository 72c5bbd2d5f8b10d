"""CPU devices: each runs programs on a thread pool.

The default device has one thread per core; all sessions share it unless they configure several.
Several devices in one process divide the cores: each has a pool with its share of the threads.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg.codegen.cache import Loaded, find_all
from thalweg.codegen.machine import CpuTarget
from thalweg.device.cpu.pool import Pool, default_pool, default_threads
from thalweg.device.cpu.program import Program
from thalweg.device.cpu.table_template import ControlTemplate, TableTemplate
from thalweg.device.device import Device
from thalweg.device.program import Listing
from thalweg.lower.specialise import Region
from thalweg.ops.core.buffer import HostBuffer
from thalweg.platform.arrays import Array
from thalweg.platform.caches import memoized

if TYPE_CHECKING:
    from thalweg.device.cpu.control_program import CpuControlStep
    from thalweg.device.cpu.listing import Call
    from thalweg.lower.control.program import ControlProgram
    from thalweg.lower.dynamic_shapes import SpecializedKernel
    from thalweg.lower.lowered import Lowered

LOCAL_TASK = "/job:localhost/replica:0/task:0"  # of sessions without a cluster


class CpuDevice(Device):
    """A CPU device of this process. Its programs use `threads` threads of its pool (0: all)."""

    target: CpuTarget
    memory_limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def __init__(
        self, index: int = 0, threads: int = 0, pool: Pool | None = None, task: str = LOCAL_TASK
    ) -> None:
        self.pool = pool or default_pool()
        super().__init__(f"{task}/device:CPU:{index}", self.pool.target)
        self.threads = threads or self.pool.threads

    @cached_property
    def key(self) -> str:
        """Identifies everything about the device that compiled programs depend on."""
        return f"{self.target} {self.target.key} {self.threads}"

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> HostBuffer:
        """An uninitialised buffer for an array."""
        return HostBuffer(np.empty(shape, dtype), self.name)

    def upload(self, value: Array) -> HostBuffer:
        """A copy of a host array."""
        return HostBuffer(np.array(value, order="C"), self.name)

    def relieve_by(self, release: Callable[[], None]) -> None:
        """Does nothing: host memory is not limited by the device."""

    def load(self, lowered: Lowered, kernels: Sequence[SpecializedKernel]) -> Program:
        """The program of a lowered region on this device's threads."""
        compiler = importlib.import_module("thalweg.device.cpu.loading")  # imported when needed
        return compiler.make_program(lowered, kernels, self)

    def _find_named(self, names: Sequence[str]) -> list[Loaded] | None:
        """Load kernels by their names in the kernel cache; None if any is missing."""
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

    def load_control(
        self, program: ControlProgram, kernels: Sequence[SpecializedKernel]
    ) -> CpuControlStep:
        """The native program of a conditional or a loop on this device's threads."""
        compiler = importlib.import_module("thalweg.device.cpu.control_loading")  # likewise
        return compiler.make_control_step(program, kernels, self)

    def restore_control(
        self, template: ControlTemplate, kernels: Sequence[Loaded]
    ) -> CpuControlStep:
        """A program from its template and its loaded kernels."""
        module = importlib.import_module("thalweg.device.cpu.control_program")  # likewise
        return module.CpuControlStep(template, kernels, self.pool)


@memoized(64)
def cpu_device(
    index: int = 0, count: int = 1, threads: int = 0, task: str = LOCAL_TASK
) -> CpuDevice:
    """The device `index` of `count` CPU devices; its programs use `threads` threads (0: all).

    A single device has the default pool, whatever its number of threads.
    """
    pool = default_pool() if count == 1 else _pool(index, count)
    return CpuDevice(index, threads, pool, task=task)


@memoized(64)
def _pool(index: int, count: int) -> Pool:
    """The pool of one of several devices, with its share of the threads, at least one."""
    threads, rest = divmod(default_threads(), count)
    return Pool(max(threads + (index < rest), 1))
