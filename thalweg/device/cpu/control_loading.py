"""Loads a lowered control node as a program: compiles its parts and builds its template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from thalweg.codegen.cache import Loaded
from thalweg.codegen.machine import CpuTarget
from thalweg.device.cpu.control_parts import placed_parts, threads_for
from thalweg.device.cpu.control_program import CpuControlStep
from thalweg.device.cpu.control_template import ControlTemplate, PlacedJump
from thalweg.device.cpu.listing import Call
from thalweg.device.cpu.pool import Pool
from thalweg.device.cpu.table_template import PlacedCall
from thalweg.device.program import Listing
from thalweg.device.program_template import ABSOLUTE, ARENA, KernelLayout, Layout, Words
from thalweg.graph.analysis.node_effects import locks_updates
from thalweg.lower.control.program import (
    BufferView,
    ControlProgram,
    Item,
    Loop,
    Part,
    Storage,
)
from thalweg.lower.dynamic_shapes import SpecializedKernel
from thalweg.lower.memory.arena import rounded
from thalweg.lower.memory.buffers import Buffer
from thalweg.lower.specialise import ControlRegion

_Listings = Mapping[Part, Listing[Call]]


def make_control_step(
    unit: ControlRegion,
    program: ControlProgram,
    kernels: Sequence[SpecializedKernel],
    list_capacity: int,
    pool: Pool,
    target: CpuTarget,
    threads: int,
) -> CpuControlStep:
    """The program of a control node, lowered for a target, on at most `threads` threads."""
    threads = threads_for(program, threads, target)
    listings, loaded = placed_parts(program, kernels, target, threads)
    offsets, frame = _frame(program, listings, target.alignment)
    layout = _ViewLayout(listings, offsets)
    table = _table(program, listings, list(loaded.values()), layout)
    variables = [view for view in layout.views if view.where is Storage.VARIABLE]
    written = program.written_views()
    changed = [number for number, view in enumerate(variables) if view in written]
    template = ControlTemplate(
        tuple(KernelLayout.of(name, kernel) for name, kernel in loaded.items()),
        np.array(layout.words or [0], np.int64),
        np.array(layout.bases or [0], np.int64),
        layout.constants,
        table,
        program.interface,
        layout.views,
        changed,
        changed if locks_updates(unit.node) else [],
        any(part.lowered.checked for part in program.parts),
        frame,
        target.alignment,
        threads,
        list_capacity,
    )
    return CpuControlStep(template, list(loaded.values()), pool)


def _frame(
    program: ControlProgram, listings: _Listings, alignment: int
) -> tuple[dict[BufferView, int], int]:
    """The offsets of the views in the frame, and its size. The temporaries, whose memory the parts
    share, come first."""
    temporary = max((listing.arena.size for listing in listings.values()), default=0)
    end = rounded(temporary, alignment)
    offsets: dict[BufferView, int] = {}
    for view in program.views():
        if view.where is Storage.OWN:
            offsets[view] = end
            end += rounded(view.bytes, alignment)
    return offsets, end


def _table(
    program: ControlProgram, listings: _Listings, loaded: Sequence[Loaded], layout: _ViewLayout
) -> list[PlacedCall | PlacedJump]:
    """The calls of the parts, and the jumps of loops and conditionals."""
    numbers = {kernel: number for number, kernel in enumerate(loaded)}
    placed: list[PlacedCall | PlacedJump] = []

    def jump(entry: int, truth: BufferView | None = None, if_true: bool = False) -> PlacedJump:
        address = (ABSOLUTE, 0) if truth is None else layout.address_of(truth)
        return PlacedJump(entry, *address, if_true)

    def add(items: Sequence[Item], entry: int) -> int:
        """Add items from an entry on; returns the entry after them."""
        for item in items:
            start = len(placed)
            if isinstance(item, Part):
                # The calls that an iteration function contains have no code of their own.
                calls = [call for call in listings[item].calls if call.code.functions]
                placed.extend(
                    [PlacedCall(numbers[c.code], c.words, c.dispatch, False) for c in calls]
                )
                entry += sum(len(call.code.functions) for call in calls)
            elif isinstance(item, Loop):
                end = add(item.body, entry + 1) + 1
                placed.insert(start, jump(end, item.truth))
                placed.append(jump(entry + 1, item.truth, if_true=True))
                entry = end
            else:
                otherwise = add(item.if_true, entry + 1) + 1
                placed.insert(start, jump(otherwise, item.truth))
                middle, entry = len(placed), add(item.if_false, otherwise)
                placed.insert(middle, jump(entry))
        return entry

    add(program.items, 0)
    return placed


class _ViewLayout(Layout):
    """The argument words of the calls of all parts. A buffer that is bound to a view is at its
    offset in the frame, or is bound by each call."""

    def __init__(self, parts: _Listings, offsets: Mapping[BufferView, int]) -> None:
        super().__init__()
        self._offsets = offsets
        self._view_words: dict[BufferView, list[tuple[int, int]]] = {}
        for part, listing in parts.items():
            self.arena, self._views = listing.arena, part.views
            for call in listing.calls:
                self.add(call.launch, call.scratch, call.specialized.words)

    @property
    def views(self) -> dict[BufferView, Words]:
        """The views that words point to, with those words."""
        return {view: tuple(words) for view, words in self._view_words.items()}

    def address(self, buffer: Buffer, shift: int) -> tuple[int, int]:
        view = self._views.get(buffer)
        if view is None:
            return super().address(buffer, shift)
        self._view_words.setdefault(view, []).append((len(self.words), shift))
        base, start = self.address_of(view)
        return base, start + shift

    def address_of(self, view: BufferView) -> tuple[int, int]:
        """The base of a view, and its offset from the base."""
        if view.where is Storage.CONSTANT:
            return self.constant(view), 0
        return (ARENA, self._offsets[view]) if view.where is Storage.OWN else (ABSOLUTE, 0)
