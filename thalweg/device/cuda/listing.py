"""The listing of a GPU program: the launches of a lowered region with their kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from thalweg.codegen.cuda.kernel import emit, launch_shapes
from thalweg.codegen.cuda.launch import CudaKernel, LaunchShape
from thalweg.codegen.cuda.target import CudaTarget
from thalweg.device.cuda.dependencies import edges, is_check, writes_variable
from thalweg.device.cuda.kernels import LoadedKernel
from thalweg.device.program import Listing
from thalweg.device.program_template import STREAM_BYTES
from thalweg.lower.dynamic_shapes import SpecializedKernel
from thalweg.lower.flops_bytes import flops_bytes
from thalweg.lower.lowered import Launch, Lowered
from thalweg.lower.memory.arena import arrange
from thalweg.lower.memory.buffers import Buffer

_FLOPS_RATE = 2e13  # of plain arithmetic: an estimate, used only to split long steps into graphs


@dataclass(frozen=True, eq=False)
class CudaCall:
    """A launch with its kernel, argument words, grids and dependencies."""

    launch: Launch
    specialized: SpecializedKernel
    kernel: LoadedKernel
    words: int
    scratch: int
    guarded: bool
    aligned: bool
    shapes: tuple[LaunchShape, ...]
    after: tuple[int, ...]
    seconds: float  # estimated

    def emitted(self, target: CudaTarget) -> CudaKernel:
        """Its emitted code."""
        return emit(self.specialized.kernel, target, self.guarded, self.aligned)


CudaListing = Listing[CudaCall]


def guarded_launches(launches: Sequence[Launch]) -> list[bool]:
    """Whether each launch must do nothing after a fault: it writes a variable, and the region has
    checks."""
    checks = any(map(is_check, launches))
    return [checks and writes_variable(launch) for launch in launches]


def aligned_launches(lowered: Lowered) -> list[bool]:
    """Whether all buffers of each launch begin at multiples of 16 bytes."""
    streams = {buffer: n * STREAM_BYTES for n, buffer in enumerate(lowered.streams.values())}

    def start(buffer: Buffer, first: int) -> int:
        _, inside = lowered.pieces.get(buffer, (buffer, 0))
        return streams.get(buffer, 0) + (first + inside) * np.dtype(buffer.dtype).itemsize

    return [
        all(start(*pair) % 16 == 0 for pair in zip(launch.buffers, launch.starts, strict=True))
        for launch in lowered.launches
    ]


def listed(
    lowered: Lowered,
    kernels: Sequence[SpecializedKernel],
    loaded: Sequence[LoadedKernel],
    target: CudaTarget,
    words: int = 0,
) -> CudaListing:
    """The launches of a region with their kernels, memory plan and dependencies. Argument words
    begin at `words`."""
    launches = lowered.launches
    sizes = [kernel.scratch for kernel in loaded]
    arena = arrange(launches, sizes, lowered.pieces, target)
    after, guarded = edges(launches, arena, sizes), guarded_launches(launches)
    aligned = aligned_launches(lowered)
    calls: list[CudaCall] = []
    for number, launch in enumerate(launches):
        specialized = kernels[number]
        cuda_call = CudaCall(
            launch,
            specialized,
            loaded[number],
            words,
            arena.scratch[number],
            guarded[number],
            aligned[number],
            launch_shapes(specialized.kernel, target, specialized.words, aligned[number]),
            after[number],
            seconds_of(launch, target),
        )
        calls.append(cuda_call)
        words += specialized.word_count
    return CudaListing(lowered, calls, arena)


def seconds_of(launch: Launch, target: CudaTarget) -> float:
    """The estimated time of a launch."""
    work = flops_bytes(launch.kernel)
    busy = max(work.operations / _FLOPS_RATE, work.moved / target.memory_rate)
    return busy + target.launch_time * 1e-9
