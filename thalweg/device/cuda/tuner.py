"""The tuner of contractions on a GPU.

Each contraction of a program runs on scratch memory of the device with the schedules that the cost
model ranks best. It returns the measurements, and stores the winners on disk.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from thalweg.codegen.contraction.form import NotContraction
from thalweg.codegen.cuda.contraction.kernel import contraction_shapes, emit_contraction
from thalweg.codegen.cuda.contraction.plan import schedules
from thalweg.codegen.cuda.contraction.problem import problem_of
from thalweg.codegen.cuda.contraction.schedule import Schedule
from thalweg.codegen.cuda.launch import CudaKernel
from thalweg.codegen.cuda.target import CudaTarget
from thalweg.codegen.cuda.tensor_map import BYTES
from thalweg.codegen.kernels import keep_schedule
from thalweg.device.cuda.driver import Graph, KernelNode
from thalweg.device.cuda.kernels import code_of
from thalweg.device.cuda.memory import Memory
from thalweg.device.tuning import Subject, Tuned
from thalweg.lower.memory.arena import rounded

_RUNS = 20  # of a schedule in one graph
_ROUNDS = 3
_ALIGNMENT = 256


@dataclass(frozen=True)
class CudaSubject(Subject):
    """A contraction to tune, and the memory of its device."""

    is_aligned: bool
    memory: Memory
    target: CudaTarget

    def tune(self, deadline: float) -> Tuned | None:
        """Measure and keep."""
        try:
            choices = schedules(problem_of(self.kernel, self.is_aligned), self.target)
        except NotContraction:
            return None
        bench, likely = ScheduleBench(self), choices[0]
        seconds = {likely: bench.seconds(likely)}
        for schedule in choices[1:]:
            if time.monotonic() > deadline:
                break
            seconds[schedule] = bench.seconds(schedule)
        bench.close()
        best, tuned = self.winner(seconds, likely)
        keep_schedule(self.kernel, self.target, best)
        return tuned


class ScheduleBench:
    """Runs a contraction on scratch memory and measures its time."""

    def __init__(self, subject: CudaSubject) -> None:
        self._subject, self._memory = subject, subject.memory
        kinds = [(int(a.size), np.dtype(a.dtype)) for a in subject.kernel.arguments]
        sizes = [rounded(max(size * kind.itemsize, 1), _ALIGNMENT) for size, kind in kinds]
        self._block = subject.memory.pool.allocate(_ALIGNMENT + sum(sizes))
        starts = np.cumsum([self._block.address + _ALIGNMENT, *sizes])[:-1]
        self._addresses = [self._block.address, *map(int, starts)]
        for start, size in zip(self._addresses, [_ALIGNMENT, *sizes], strict=True):
            subject.memory.upload(start, np.zeros(size, np.uint8))

    def close(self) -> None:
        """Free the memory."""
        self._memory.pool.free(self._block)

    def compiled(self, schedule: Schedule) -> tuple[CudaKernel, bytes]:
        """The contraction compiled with a schedule, and its code."""
        subject = self._subject
        given = subject.kernel, subject.target, False, subject.is_aligned, schedule
        emitted = emit_contraction(*given)
        return emitted, code_of(emitted, subject.target)[0]

    def seconds(
        self, schedule: Schedule, compiled: tuple[CudaKernel, bytes] | None = None
    ) -> float:
        """The minimum over rounds of the mean time of a launch."""
        subject, context = self._subject, self._memory.context
        emitted, code = compiled or self.compiled(schedule)
        functions = context.load(code, emitted.entries)
        scratch = self._memory.pool.allocate(max(emitted.scratch, 1))
        words = [*self._addresses, scratch.address, *subject.specialized.words]
        held = np.array(words, np.int64)
        maps = np.zeros(BYTES * (len(emitted.tensor_maps) + 1), np.uint8)
        start = -(-maps.ctypes.data // 64) * 64
        for number, spec in enumerate(emitted.tensor_maps):
            context.encode(spec.resolved(words), start + BYTES * number)
        shapes = contraction_shapes(
            subject.kernel, subject.target, subject.specialized.words, subject.is_aligned, schedule
        )
        graph, events = context.graph(), (context.event(), context.event())
        after = [graph.add_event(events[0], ())]
        for _ in range(_RUNS):
            for function, shape in zip(functions, shapes, strict=True):
                context.allow_shared(function, shape.shared_bytes)
                node = KernelNode(
                    function, shape, held.ctypes.data, len(held), start, len(emitted.tensor_maps)
                )
                after = [graph.add_kernel(node, after)]
        graph.add_event(events[1], after)
        graph.finish()
        try:
            return min(self._elapsed(graph, events) for _ in range(_ROUNDS)) / _RUNS
        finally:
            graph.close()
            self._memory.pool.free(scratch)

    def _elapsed(self, graph: Graph, events: tuple[int, int]) -> float:
        context, stream = self._memory.context, self._memory.stream
        graph.launch(stream)
        context.wait(stream)
        return context.elapsed(*events)
