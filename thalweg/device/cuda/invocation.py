"""Invocations: the memory and the CUDA graphs of one running call on a GPU.

An `Invocation` is a program template with its own memory: an arena, small arguments and results
with a pinned copy, a stream, and the CUDA graphs of its launches. Small inputs and the positions of
random streams are uploaded in one copy at the start of the first graph, if there are any; the fault
word and small results are downloaded in one copy at the end of the last. Without checks, kernels
write small results directly to host memory. Addresses that vary between calls are kernel
parameters, which are updated if they changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from thalweg.device.cuda.driver import Graph
from thalweg.device.cuda.graph_template import MAX_SMALL_OUTPUT, GraphTemplate
from thalweg.device.cuda.kernels import LoadedKernel
from thalweg.device.cuda.memory import DeviceBuffer, Memory
from thalweg.device.cuda.nodes import LaunchNodes
from thalweg.device.cuda.pinned import Pinned
from thalweg.device.program_template import STREAM_BYTES, Output
from thalweg.lower.memory.arena import rounded
from thalweg.ops.core.context import VariableCell
from thalweg.ops.state.variable_uses import Use
from thalweg.platform.arrays import Array

#: The maximum bytes of a small input, which is uploaded together with all others.
MAX_SMALL_INPUT = 1 << 16
_ALIGNMENT = 256
_FAULT_BYTES = 16  # results follow it

_Place = tuple[int, tuple[int, ...], np.dtype[Any]]  # a byte offset, and the array there


class Staged(NamedTuple):
    """Device memory of the invocation, and its pinned copy, if any."""

    address: int
    host: Array | None


def is_small(output: Output) -> bool:
    """Whether a result is downloaded together with the fault word."""
    size = np.dtype(output.dtype).itemsize * math.prod(output.shape)
    return output.reference < 0 and size <= MAX_SMALL_OUTPUT


class Timed(NamedTuple):
    """The events around one kernel of a graph."""

    first: int
    last: int


class Invocation(LaunchNodes):
    """A program with its own memory and graphs."""

    def __init__(
        self,
        template: GraphTemplate,
        kernels: Sequence[LoadedKernel],
        constants: Sequence[DeviceBuffer],
        input_dtypes: Sequence[Any],
        memory: Memory,
        use: Use[VariableCell],
        is_timed: bool = False,
    ) -> None:
        self._template, self._memory = template, memory
        self.use = use
        self.addresses = [0] * len(template.references)
        self.borrowed: Sequence[Any] = ()  # the buffers of variables that the words point to
        self.keep_alive: list[Any] = []  # buffers that running launches may access
        self._plan_memory(input_dtypes)
        base = self._block.address
        known = [base + self._fault, base + self._arena, base + self._streams]
        known += [buffer.address for buffer in constants]
        self._constants = constants
        words = np.array([0, *known], np.int64)[template.bases] + template.words
        super().__init__(template.launches, kernels, words, memory.context)
        for (targets, *_), staged in zip(template.outputs, self.outputs, strict=True):
            if staged is not None:
                self.bind(targets, staged.address)
        self.input_addresses = [staged.address for staged in self.inputs]
        #: For each input its number, its index in the values, and the memory it is staged in.
        self.places = [
            (number, place, staged.address, staged.host)
            for number, ((place, _), staged) in enumerate(
                zip(template.inputs, self.inputs, strict=True)
            )
        ]
        for (_, targets), staged in zip(template.inputs, self.inputs, strict=True):
            self.bind(targets, staged.address)
        self.stream = memory.context.stream()
        self.clear_fault()
        self.timed: list[Timed] = []
        self._is_timed = is_timed
        self.is_serial = is_timed  # each launch depends on the previous one
        pairs = enumerate(self.outputs)
        self.small_results = [(n, one.host) for n, one in pairs if one and one.host is not None]
        self.large_results = [
            number
            for number, (output, staged) in enumerate(
                zip(template.outputs, self.outputs, strict=True)
            )
            if staged is None and output.reference < 0
        ]
        self.graphs: list[Graph] = []

    # Memory

    def _plan_memory(self, dtypes: Sequence[Any]) -> None:
        """Lay out the memory: small inputs, streams, the fault word and small results are
        contiguous; then come the arena and large inputs."""
        template = self._template
        shapes = [(s, np.dtype(d)) for s, d in zip(template.input_shapes, dtypes, strict=True)]
        sizes = [kind.itemsize * math.prod(shape) for shape, kind in shapes]
        places: list[int] = []
        end = 0
        for size in sizes:
            places.append(end)
            end += rounded(size, _ALIGNMENT) if size <= MAX_SMALL_INPUT else 0
        self._streams = end
        end += rounded(STREAM_BYTES * len(template.streams), _ALIGNMENT)
        self._fault = end
        end, results = self._plan_results(end + _FAULT_BYTES)
        self._results_end = end
        self._arena = rounded(end, _ALIGNMENT)
        end = self._arena + rounded(template.arena, _ALIGNMENT)
        for number, size in enumerate(sizes):
            if size > MAX_SMALL_INPUT:
                places[number] = end
                end += rounded(size, _ALIGNMENT)
        self._block = self._memory.pool.allocate(end)
        self._upload = Pinned(self._memory.context, self._fault + _FAULT_BYTES)
        self._returned = Pinned(self._memory.context, self._results_end - self._fault)
        self._upload.array[:] = self._returned.array[:] = 0
        self.fault = self._returned.part(0, (1,), np.int32)
        self.inputs = [
            self._staged(place, *shapes[number], sizes[number] <= MAX_SMALL_INPUT)
            for number, place in enumerate(places)
        ]
        positions = len(template.streams), STREAM_BYTES // 4
        self.streams = self._upload.part(self._streams, positions, np.uint32)
        self.outputs = [None if one is None else self._result(*one) for one in results]

    @property
    def memory_size(self) -> int:
        """The bytes of its device memory."""
        return self._block.size

    def _plan_results(self, start: int) -> tuple[int, list[_Place | None]]:
        """Lay out the small results; None for other outputs."""
        found: list[_Place | None] = []
        for output in self._template.outputs:
            if not is_small(output):
                found.append(None)
                continue
            kind = np.dtype(output.dtype)
            found.append((start, output.shape, kind))
            start += rounded(kind.itemsize * math.prod(output.shape), _FAULT_BYTES)
        return start, found

    def _staged(self, place: int, shape: Any, dtype: Any, is_small: bool) -> Staged:
        address = self._block.address + place
        return Staged(address, self._upload.part(place, shape, dtype) if is_small else None)

    def _result(self, place: int, shape: Any, dtype: Any) -> Staged:
        start = place - self._fault
        array = self._returned.part(start, shape, dtype)
        if self._template.writes_to_host:
            return Staged(self._returned.address + start, array)
        return Staged(self._block.address + place, array)

    def clear_fault(self) -> None:
        """Clear the fault word, initially and after a fault."""
        context = self._memory.context
        context.clear(self._block.address + self._fault, _FAULT_BYTES, self.stream)
        context.wait(self.stream)

    # Graphs

    def serialize(self) -> None:
        """Serialize the launches of this and later calls."""
        if not self.is_serial:
            self.is_serial, self.is_ready = True, False
            self._close_graphs()

    def prepare(self) -> None:
        """Build the graphs on the first call, update them on later ones; sets `is_ready`."""
        if not self.graphs:
            self._build()
        self.update_changed()
        self.is_ready = True

    def _build(self) -> None:
        self._changed.clear()
        launches, starts = self._template.launches, self._template.graphs
        ends = [*starts[1:], len(launches)]
        for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
            is_last = number == len(starts) - 1
            self.graphs.append(self._graph(range(start, end), not number, is_last))

    def _graph(self, launches: range, is_first: bool, is_last: bool) -> Graph:
        graph = self._memory.context.graph()
        begin: list[int] = []
        if is_first and self._fault:
            begin = [graph.add_upload(self._block.address, self._upload.address, self._fault, ())]
        ends: dict[int, int] = {}  # the last node of each launch
        last = begin
        for number in launches:
            after = [ends[n] for n in self._template.launches[number].after if n in ends]
            before = last if self.is_serial else after or begin
            ends[number] = self.add_launch(graph, number, before)
            last = [ends[number]]
        if is_last and not self._template.writes_to_host:
            followed = {n for number in launches for n in self._template.launches[number].after}
            leaves = [node for number, node in ends.items() if number not in followed]
            size = self._results_end - self._fault
            source = self._block.address + self._fault
            graph.add_download(self._returned.address, source, size, leaves or begin)
        graph.finish()
        return graph

    def add_launch(self, graph: Graph, number: int, after: Sequence[int]) -> int:
        """Add a launch, between two events if it is timed; returns the last node."""
        if not self._is_timed:
            return super().add_launch(graph, number, after)
        first, last = self._context.event(), self._context.event()
        node = super().add_launch(graph, number, [graph.add_event(first, after)])
        self.timed.append(Timed(first, last))
        return graph.add_event(last, [node])

    def close(self) -> None:
        """Free the memory. Its graphs must not be running."""
        self._close_graphs()
        self._memory.pool.free(self._block)
        self.borrowed, self.keep_alive = (), []

    def _close_graphs(self) -> None:
        for graph in self.graphs:
            graph.close()
        self.graphs, self._nodes, self.timed = [], {}, []
