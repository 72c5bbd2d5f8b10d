"""The parts of a control program with their kernels and argument words.

Given a program and its kernels, it lists the launches of each part; their argument words are
contiguous, part by part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from thalweg.device.cuda.dependencies import serial_edges
from thalweg.device.cuda.kernels import Kernels
from thalweg.device.cuda.listing import CudaCall, CudaListing, listed
from thalweg.device.cuda.loading import load_kernels
from thalweg.lower.control.program import ControlProgram, Part
from thalweg.lower.dynamic_shapes import SpecializedKernel
from thalweg.lower.memory.buffers import Buffer


@dataclass(frozen=True, eq=False)
class PlacedPart:
    """A part with its kernels; `start` is the index of its first word among those of all parts."""

    part: Part
    listing: CudaListing
    start: int

    @property
    def arena_size(self) -> int:
        """The bytes of its temporaries and scratch memory."""
        return self.listing.arena.size

    @property
    def word_count(self) -> int:
        """The number of argument words of all its launches."""
        return sum(call.specialized.word_count for call in self.listing.calls)

    def after(self) -> list[tuple[int, ...]]:
        """The dependencies of each launch. If two buffers are bound to one view, their hazards are
        unknown: the launches are serialized."""
        views = list(self.part.views.values())
        if len(set(map(id, views))) < len(views):
            return serial_edges(len(self.listing.calls))
        return [call.after for call in self.listing.calls]

    def addresses(self, call: CudaCall) -> Iterator[tuple[int, Buffer, int]]:
        """The words of a launch that point to buffers: (word, buffer, byte offset)."""
        places = zip(call.launch.buffers, call.launch.starts, strict=True)
        for number, (buffer, start) in enumerate(places, self.start + call.words + 1):
            yield number, buffer, start * np.dtype(buffer.dtype).itemsize


def place_parts(
    program: ControlProgram, specialized: Sequence[SpecializedKernel], kernels: Kernels
) -> dict[Part, PlacedPart]:
    """The parts of a program, with kernels from the cache or compiled."""
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
