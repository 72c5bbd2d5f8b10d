"""An emulated CUDA driver: device memory is host memory, kernels are host code.

`THALWEG_CUDA=emulated` gives every process one emulated GPU. All layers above the driver are the
same as on a real one. Operations are executed synchronously. A graph runs its nodes in an order
that its edges allow but that differs from the order of insertion, which exposes missing edges.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.codegen.cuda.compile import HostKernel
from thalweg.codegen.cuda.tensor_map import BYTES, TensorMap
from thalweg.codegen.llvm.compile import place
from thalweg.codegen.machine import named
from thalweg.device.cuda.driver import (
    OUT_OF_MEMORY,
    Condition,
    Context,
    Driver,
    Graph,
    KernelNode,
    Properties,
)

#: Memory of an emulated GPU, in bytes.
MEMORY = 4 << 30
_ALIGNMENT = 256
_GARBAGE = 0xA5  # the content of new memory
_NAMES = {2: "CUDA_ERROR_OUT_OF_MEMORY", 700: "CUDA_ERROR_ILLEGAL_ADDRESS"}


class EmulatedDriver(Driver):
    """One GPU, with a size and speed for tests."""

    def __init__(self, memory: int = MEMORY) -> None:
        self._memory = memory

    def count(self) -> int:
        return 1

    def properties(self, index: int) -> Properties:
        return Properties(
            "emulated",
            capability=90,
            memory=self._memory,
            multiprocessors=4,
            threads_per_block=1024,
            shared_bytes=227 << 10,
            l2=1 << 20,
            memory_rate=1e10,
            bus_id=f"emulated:{index}",
        )

    def open(self, index: int, name: str) -> EmulatedContext:
        return EmulatedContext(name, self._memory)


@dataclass
class _Memory:
    """Allocated host memory by address."""

    limit: int
    used: int = 0
    arrays: dict[int, NDArray[np.uint8]] = field(default_factory=dict[int, Any])
    lock: Any = field(default_factory=threading.Lock)

    def take(self, size: int) -> int:
        """Allocate memory; returns its aligned address, or 0 if it exceeds the limit."""
        with self.lock:
            if self.used + size > self.limit:
                return 0
            array = np.full(size + _ALIGNMENT, _GARBAGE, np.uint8)
            address = -(-array.ctypes.data // _ALIGNMENT) * _ALIGNMENT
            self.arrays[address] = array
            self.used += size
            return address

    def give(self, address: int) -> None:
        with self.lock:
            self.used -= len(self.arrays.pop(address)) - _ALIGNMENT


class EmulatedContext(Context):
    """An opened emulated GPU."""

    def __init__(self, name: str, memory: int = MEMORY) -> None:
        super().__init__(name)
        self._device, self._pinned = _Memory(memory), _Memory(1 << 62)
        self._events: dict[int, float] = {}
        self._functions: dict[int, HostKernel] = {}
        self._handles = itertools.count(1)
        self._sticky = 0

    def fail_with(self, code: int) -> None:
        """Make all later calls fail with this sticky error, as after a kernel's illegal access."""
        self._sticky = code

    def check(self, call: str) -> None:
        """Raise the sticky error, if there is one."""
        if self._sticky:
            raise self.failed(self._sticky, call)

    def failed(self, code: int, call: str) -> Exception:
        """The error for a result code."""
        return self.failure(code, call, _NAMES.get(code, "an error of the emulation"))

    # Memory

    def memory(self) -> tuple[int, int]:
        self.check("cuMemGetInfo")
        return self._device.limit - self._device.used, self._device.limit

    def allocate(self, size: int) -> int:
        self.check("cuMemAlloc")
        result = self._device.take(size)
        if not result:
            raise self.failed(OUT_OF_MEMORY, "cuMemAlloc")
        return result

    def free(self, address: int) -> None:
        if self.lost is None:
            self._device.give(address)

    def pin(self, size: int) -> int:
        self.check("cuMemHostAlloc")
        return self._pinned.take(size)

    def unpin(self, address: int) -> None:
        self._pinned.give(address)

    # Work

    def upload(self, target: int, source: int, size: int, stream: int) -> None:
        self.check("cuMemcpyHtoDAsync")
        ctypes.memmove(target, source, size)

    def download(self, target: int, source: int, size: int, stream: int) -> None:
        self.check("cuMemcpyDtoHAsync")
        ctypes.memmove(target, source, size)

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        self.check("cuMemcpyDtoDAsync")
        ctypes.memmove(target, source, size)

    def clear(self, target: int, size: int, stream: int) -> None:
        self.check("cuMemsetD8Async")
        ctypes.memset(target, 0, size)

    def stream(self) -> int:
        self.check("cuStreamCreate")
        return next(self._handles)

    def wait(self, stream: int) -> None:
        self.check("cuStreamSynchronize")

    def is_done(self, stream: int) -> bool:
        self.check("cuStreamQuery")
        return True

    def event(self) -> int:
        return next(self._handles)

    def record(self, event: int) -> None:
        """Record the time of an event."""
        self._events[event] = time.perf_counter()

    def elapsed(self, first: int, second: int) -> float:
        return self._events[second] - self._events[first]

    # Code

    def load(self, image: bytes, entries: Sequence[str]) -> tuple[int, ...]:
        self.check("cuModuleLoadDataEx")
        addresses = place(image, entries, named("native"))
        self._functions |= {address: HostKernel(address) for address in addresses}
        return addresses

    def allow_shared(self, function: int, size: int) -> None:
        self.check("cuFuncSetAttribute")

    def encode(self, tensor_map: TensorMap, target: int) -> None:
        ctypes.memmove(target, tensor_map.emulated(), BYTES)

    def graph(self) -> EmulatedGraph:
        self.check("cuGraphCreate")
        return EmulatedGraph(self)

    @property
    def has_conditionals(self) -> bool:
        return True

    def run(self, kernel: KernelNode, words: int) -> None:
        """Launch a kernel with the parameters at an address."""
        shape = kernel.shape
        function = self._functions[kernel.function]
        function(words, shape.grid, shape.block, shape.shared_bytes)


class EmulatedGraph(Graph):
    """Calls with their dependencies."""

    def __init__(self, context: EmulatedContext) -> None:
        self._context = context
        self._calls: list[Callable[[], None]] = []
        self._after: list[Sequence[int]] = []
        self._order: list[int] = []

    def add_kernel(self, kernel: KernelNode, after: Sequence[int]) -> int:
        return self._add(self._call(kernel), after)

    def _call(self, kernel: KernelNode) -> Callable[[], None]:
        """A launch with a copy of the kernel's current parameters."""
        given = np.frombuffer(ctypes.string_at(kernel.words, 8 * kernel.word_count), np.int64)
        maps = np.frombuffer(ctypes.string_at(kernel.maps, BYTES * kernel.map_count), np.uint8)
        maps = maps.copy()  # passed to the kernel by address
        words = np.append(given, maps.ctypes.data + BYTES * np.arange(kernel.map_count))
        words = words.astype(np.int64)

        def call(held: Any = maps) -> None:
            self._context.run(kernel, words.ctypes.data)

        return call

    def add_upload(self, target: int, source: int, size: int, after: Sequence[int]) -> int:
        return self._add(lambda: self._context.upload(target, source, size, 0), after)

    def add_download(self, target: int, source: int, size: int, after: Sequence[int]) -> int:
        return self._add(lambda: self._context.download(target, source, size, 0), after)

    def add_event(self, event: int, after: Sequence[int]) -> int:
        return self._add(lambda: self._context.record(event), after)

    def add_conditional(
        self, condition: Condition, repeats: bool, after: Sequence[int]
    ) -> tuple[int, EmulatedGraph]:
        body = EmulatedGraph(self._context)
        truth = ctypes.c_uint8.from_address(condition.truth)
        fault = ctypes.c_int32.from_address(condition.fault)
        stop = ctypes.c_uint8.from_address(condition.stop)

        def call() -> None:
            while (truth.value ^ condition.negated) and not (fault.value or stop.value):
                body.launch(0)
                if not repeats:
                    return

        return self._add(call, after), body

    def _add(self, call: Callable[[], None], after: Sequence[int]) -> int:
        self._calls.append(call)
        self._after.append(after)
        return len(self._calls) - 1

    def finish(self) -> None:
        """Order the nodes: of the ready ones, the last added comes first."""
        waiting = [len(set(after)) for after in self._after]
        followers: list[list[int]] = [[] for _ in self._calls]
        for number, after in enumerate(self._after):
            for earlier in set(after):
                followers[earlier].append(number)
        ready = [number for number, count in enumerate(waiting) if not count]
        while ready:
            number = ready.pop()
            self._order.append(number)
            for follower in followers[number]:
                waiting[follower] -= 1
                if not waiting[follower]:
                    ready.append(follower)

    def update(self, node: int, kernel: KernelNode) -> None:
        self._context.check("cuGraphExecKernelNodeSetParams")
        self._calls[node] = self._call(kernel)

    def launch(self, stream: int) -> None:
        self._context.check("cuGraphLaunch")
        for number in self._order:
            self._calls[number]()

    def close(self) -> None:
        self._calls.clear()
        self._order.clear()
