"""Lowered regions as programs of a GPU.

A call takes an idle `Invocation`, copies small inputs to its pinned memory and large ones to the
device, binds the variables, and launches its CUDA graphs. Results stay on the device as buffers,
for other regions there; small ones are downloaded with the fault word as arrays. A call returns
when the GPU is done, so the memory that it used can be reused at once.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.codegen.cuda.target import CudaTarget
from thalweg.device.compiled_kernel import CompiledKernel
from thalweg.device.cuda.compiled_kernel import GpuKernel
from thalweg.device.cuda.graph_template import GraphTemplate
from thalweg.device.cuda.invocation import Invocation, Timed, is_small
from thalweg.device.cuda.kernels import LoadedKernel
from thalweg.device.cuda.listing import CudaCall, CudaListing
from thalweg.device.cuda.memory import DeviceBuffer, Memory
from thalweg.device.program import DeviceProgram, FirstValues, Times
from thalweg.graph.node import Tensor
from thalweg.lower.memory.buffers import BufferKind
from thalweg.lower.specialise import Region
from thalweg.ops.core.buffer import Buffer
from thalweg.ops.core.context import VariableCell
from thalweg.platform import amounts
from thalweg.platform.amounts import plural

_MAX_NAMED = 5  # tensors in the message of an out-of-memory error
#: The maximum bytes of an invocation that is kept after the first call; larger ones are kept after
#: the second: initializers, whose feeds may be as large as the model, run only once.
_MAX_KEPT_AT_ONCE = 1 << 20


class DeviceMemory:
    """The state that the programs of a device share: its memory and its name."""

    def __init__(self, memory: Memory, target: CudaTarget) -> None:
        self.memory, self.name, self.target = memory, memory.context.name, target
        self.programs: weakref.WeakSet[CudaProgram] = weakref.WeakSet()
        self.releases: list[Callable[[], None]] = []  # free other cached memory
        memory.pool.release_idle = self.release_idle

    def holds(self, value: Any) -> bool:
        """Whether a value is a buffer of this device."""
        return isinstance(value, DeviceBuffer) and value.device == self.name

    def release_idle(self) -> None:
        """Free the memory of idle invocations and other cached memory."""
        for program in list(self.programs):
            program.release_memory()
        for release in self.releases:
            release()


class CudaProgram(DeviceProgram[Invocation, CudaCall]):
    """A region, compiled for one set of shapes on a GPU."""

    template: GraphTemplate
    holds_gil = False
    work = inf  # the reference kernels run on the host

    def __init__(
        self,
        template: GraphTemplate,
        kernels: Sequence[LoadedKernel],
        region: Region,
        listing: Callable[[], CudaListing],
        shared: DeviceMemory,
    ) -> None:
        super().__init__(template, region, listing)
        self.template, self.kernels, self._region = template, kernels, region
        self.input_dtypes = [
            region.inputs[place].dtype.base_dtype.as_numpy_dtype for place, _ in template.inputs
        ]
        self._shared, self._driver = shared, shared.memory.context
        self.device, self.target = shared.name, shared.target
        self._constants: list[DeviceBuffer] | None = None
        references = [output.reference for output in template.outputs]
        self._returned_cells = [(n, one) for n, one in enumerate(references) if one >= 0]
        self.gives_host_values = all(map(is_small, template.outputs))
        self._is_repeated = False  # it ran, and may be taken to run again and again
        shared.programs.add(self)

    def __call__(
        self,
        context: Any,
        values: Sequence[Any],
        cells: Sequence[VariableCell],
        deliver: Any = None,
    ) -> list[Any] | None:
        """The region's outputs, or None where its reference kernels must decide."""
        results = super().__call__(context, values, cells)
        if not self._is_repeated:
            self._is_repeated = True
            idle = self._idle.copy()  # other threads borrow and return invocations meanwhile
            if any(invocation.memory_size > _MAX_KEPT_AT_ONCE for invocation in idle):
                self.release_memory()
        return results

    def _invocation(self, is_timed: bool = False) -> Invocation:
        """Memory and graphs for a call; one that is timed has events around its kernels."""
        memory = self._shared.memory
        try:
            if self._constants is None:
                self._constants = [memory.uploaded(array) for array in self.template.constants]
            return Invocation(
                self.template,
                self.kernels,
                self._constants,
                self.input_dtypes,
                memory,
                self._new_use(),
                is_timed,
            )
        except errors.ResourceExhaustedError as error:
            raise self._exhausted(error) from None

    def compiled_kernels(self) -> list[CompiledKernel]:
        """The kernels of its launches, in order."""
        memory = self._shared.memory
        return [GpuKernel(call, self.target, memory) for call in self.listing.calls]

    @property
    def summary(self) -> str:
        """As how many CUDA graphs it runs, of how many kernels."""
        launches = sum(len(call.shapes) for call in self.listing.calls)
        code = sum(kernel.size for kernel in self.kernels)
        graphs = plural(len(self.template.graphs), "CUDA graph")
        nodes = plural(launches, "kernel node")
        return f"on {self.device} as {graphs} of {nodes}, {amounts.size(code)} of code"

    def timed(
        self, context: Any, values: Sequence[Any], cells: Sequence[VariableCell]
    ) -> tuple[list[Any] | None, Times]:
        """A call, and the begin and end of each launch."""
        timed = TimedCudaProgram(self)
        return timed(context, values, cells), timed.times

    def release_memory(self) -> None:
        """Free the memory of idle invocations; the next call allocates again."""
        while self._idle:
            try:
                self._idle.pop().close()
            except IndexError:
                return

    def run_rows(self, values: Sequence[Any], is_row: Sequence[bool], count: int) -> None:
        """None: a GPU computes whole batches, rows are for the host."""
        return

    # A call

    def _run(self, invocation: Invocation, context: Any, values: Sequence[Any]) -> list[Any] | None:
        if self.inputs:
            self._bind_inputs(invocation, values)
        results: list[Any] = [None] * len(self.outputs)
        for number, reference in self._returned_cells:
            results[number] = invocation.use.cells[reference]
        if invocation.large_results:
            self._bind_outputs(invocation, results)
        if self.streams:
            for row, (node, known) in enumerate(self.streams):
                invocation.streams[row] = node.op.stream(context.at(node), *known)
        if not invocation.is_ready:
            invocation.prepare()
        self._launch(invocation, context)
        if invocation.keep_alive:
            invocation.keep_alive.clear()
        if invocation.fault[0]:
            invocation.clear_fault()
            return None
        for place, array in invocation.small_results:
            results[place] = array.copy() if array.ndim else array[()]
        return results

    def _launch(self, invocation: Invocation, context: Any) -> None:
        """Run the graphs in sequence; a step may be cancelled between two of them."""
        driver, stream, graphs = self._driver, invocation.stream, invocation.graphs
        try:
            graphs[0].launch(stream)
            driver.wait(stream)
            if len(graphs) > 1:
                for graph in graphs[1:]:
                    context.cancellation.check()
                    graph.launch(stream)
                    driver.wait(stream)
        except BaseException:
            if driver.lost is None:
                driver.wait(stream)  # running kernels may use memory that is about to be freed
            raise

    def _bind_inputs(self, invocation: Invocation, values: Sequence[Any]) -> None:
        addresses = invocation.input_addresses
        for number, place, address, host in invocation.places:
            value = values[place]
            if type(value) is np.ndarray or not isinstance(value, Buffer):
                if host is not None:
                    host[...] = value
                else:
                    self._upload(address, value, number)
            elif self._shared.holds(value):
                address = value.address
                invocation.keep_alive.append(value)
            elif host is not None:
                host[...] = value.lease()
            else:
                self._upload(address, value.lease(), number)
            if address != addresses[number]:
                addresses[number] = address
                invocation.bind(self.inputs[number][1], address)

    def _upload(self, address: int, value: Any, number: int) -> None:
        """Upload a large array of the host."""
        self._shared.memory.upload(address, np.asarray(value, self.input_dtypes[number]))

    def _bind_outputs(self, invocation: Invocation, results: list[Any]) -> None:
        """Allocate the large results, which the invocation has no memory for."""
        for number in invocation.large_results:
            targets, shape, dtype, _, _ = self.outputs[number]
            made = results[number] = self._allocated(shape, dtype)
            invocation.bind(targets, made.address)

    def _allocated(self, shape: tuple[int, ...], dtype: Any) -> DeviceBuffer:
        try:
            return self._shared.memory.buffer(shape, dtype)
        except errors.ResourceExhaustedError as error:
            raise self._exhausted(error) from None

    # Variables

    def _borrow(self, invocation: Invocation, borrowed: list[Buffer | None]) -> FirstValues | None:
        if borrowed == invocation.borrowed:  # the very buffers of the call before
            return {}
        if any(buffer is not None and not self._shared.holds(buffer) for buffer in borrowed):
            return None  # a variable of the host: the reference kernels read and write it
        first = super()._borrow(invocation, borrowed)
        if first is None:
            return None
        cells = invocation.use.cells
        invocation.borrowed = () if first else list(borrowed)
        if len(set(map(id, cells))) < len(cells):  # aliased variables have unknown hazards
            invocation.serialize()
        return first

    # Errors

    def _exhausted(self, error: errors.ResourceExhaustedError) -> errors.ResourceExhaustedError:
        """The out-of-memory error with the largest tensors of the region."""
        named = "; ".join(self._largest())
        message = f"{error.message}. The largest tensors of this step: {named}"
        hint = "Use a smaller batch, or put parts of the model on another device"
        return errors.ResourceExhaustedError(None, None, f"{message}. {hint}")

    def _largest(self) -> list[str]:
        lowered = self.listing.lowered
        found = {buffer: buffer.bytes for launch in lowered.launches for buffer in launch.buffers}
        every = sorted(found, key=lambda buffer: -found[buffer])
        kept = [b for b in every if b.kind is not BufferKind.STREAM][:_MAX_NAMED]
        return [self._described(buffer.source, buffer.bytes) for buffer in kept]

    def _described(self, source: Any, size: int) -> str:
        if not isinstance(source, Tensor):
            return amounts.size(size)
        shape = self.listing.lowered.spec.shapes.get(source)
        kind = source.dtype.base_dtype.name
        sizes = "" if shape is None else list(shape)
        return f"'{source.name}' {kind}{sizes}, {amounts.size(size)}, made at {source.op.origin}"


class TimedCudaProgram(CudaProgram):
    """A copy of a program that records the times of its last run; it shares all other state."""

    def __init__(self, program: CudaProgram) -> None:
        vars(self).update(vars(program))
        self._idle = deque[Invocation]()
        self._events: list[Timed] = []

    def _invocation(self, is_timed: bool = True) -> Invocation:
        """Memory and graphs for a call, with events around kernels, which run one by one."""
        return super()._invocation(is_timed=True)

    def _run(self, invocation: Invocation, context: Any, values: Sequence[Any]) -> list[Any] | None:
        results = super()._run(invocation, context, values)
        self._events = invocation.timed
        return results

    @property
    def times(self) -> Times:
        """The begin and end of each launch of the last run in nanoseconds, [launch, 0, 2]."""
        elapsed, now = self._shared.memory.context.elapsed, time.perf_counter_ns()
        result = np.zeros((len(self._events), 1, 2), np.int64)
        first = self._events[0].first if self._events else 0
        for number, (begin, end) in enumerate(self._events):
            result[number, 0] = [now + int(elapsed(first, event) * 1e9) for event in (begin, end)]
        return result
