"""The parts of a control program with their kernels: what a graph launches, and on which words.

Comes in: a program and its kernels. Goes out: for each part its launches
with their argument words, one part's after the other's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from thalweg.device.cuda.dependencies import chained
from thalweg.device.cuda.kernels import Kernels
from thalweg.device.cuda.listing import CudaCall, CudaListing, listed
from thalweg.device.cuda.loading import load_kernels
from thalweg.lower.control.program import ControlProgram, Part
from thalweg.lower.dynamic_shapes import SpecializedKernel
from thalweg.lower.memory.buffers import Buffer


@dataclass(frozen=True, eq=False)
class PlacedPart:
    """A part with its kernels; its words begin at `start` among those of all parts."""

    part: Part
    listing: CudaListing
    start: int

    @property
    def arena_size(self) -> int:
        """Bytes of its temporaries and scratch memory."""
        return self.listing.arena.size

    @property
    def word_count(self) -> int:
        """The argument words of all its launches."""
        return sum(call.word_count for call in self.listing.calls)

    def after(self) -> list[tuple[int, ...]]:
        """For each launch the earlier ones that it comes after. Where two buffers are one memory,
        hazards between them are not known: each launch comes after the one before."""
        views = list(self.part.views.values())
        if len(set(map(id, views))) < len(views):
            return chained(len(self.listing.calls))
        return [call.after for call in self.listing.calls]

    def addresses(self, call: CudaCall) -> Iterator[tuple[int, Buffer, int]]:
        """The words of a launch that point to buffers: (word, buffer, bytes after its start)."""
        places = zip(call.launch.buffers, call.launch.starts, strict=True)
        for number, (buffer, start) in enumerate(places, self.start + call.words + 1):
            yield number, buffer, start * np.dtype(buffer.dtype).itemsize


def placed_parts(
    program: ControlProgram, specialized: Sequence[SpecializedKernel], kernels: Kernels
) -> dict[Part, PlacedPart]:
    """The parts of a program, their kernels compiled or found."""
    adapted = iter(specialized)
    result: dict[Part, PlacedPart] = {}
    start = 0
    for part in program.parts:
        to = [next(adapted) for _ in part.lowered.launches]
        _, loaded = load_kernels(part.lowered, to, kernels, kernels.target)
        placed = PlacedPart(part, listed(part.lowered, to, loaded, kernels.target), start)
        result[part] = placed
        start += placed.word_count
    return result
