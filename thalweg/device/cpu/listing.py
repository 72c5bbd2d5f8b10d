"""The launches of a lowered region with their code: what a program was made of.

Comes in: a lowered region and its loaded kernels. Goes out: a `Listing`, whose calls say where
argument words lie, which entries begin with a barrier, and which thread runs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thalweg.codegen.cache import Loaded
from thalweg.device.cpu.kept_packing import kept_packing
from thalweg.device.cpu.pool import Entry, entries_of
from thalweg.device.program import Listing
from thalweg.ir.target import Target
from thalweg.lower.dynamic_shapes import SpecializedKernel
from thalweg.lower.lowered import Launch, Lowered
from thalweg.lower.memory.arena import arrange
from thalweg.lower.memory.barriers import BarrierPlan, amid_updates, work_of


@dataclass(frozen=True, eq=False)
class Call:
    """A launch with its code: its argument words, how its threads meet, which of them run it."""

    launch: Launch
    specialized: SpecializedKernel
    code: Loaded
    words: int
    scratch: int
    barrier: bool  # before it; there is one between its functions in any case
    thread: int
    no_pause: bool  # it continues an update of a variable
    work: int
    #: the references that its packed factor is made of, where that is kept from call to call
    kept: frozenset[int] | None = None

    def entries(self, arguments: int) -> list[Entry]:
        """Its calls of functions, on argument words at an address."""
        how = self.barrier, self.thread, self.no_pause, self.work
        return entries_of(self.code.functions, arguments, *how)

    @staticmethod
    def count_words(launch: Launch, specialized: SpecializedKernel) -> int:
        """How many words a launch takes: the fault word, buffers, scratch and sizes."""
        return len(launch.buffers) + 2 + len(specialized.words)

    @property
    def word_count(self) -> int:
        """How many words its arguments take."""
        return self.count_words(self.launch, self.specialized)


def listed(
    lowered: Lowered,
    kernels: Sequence[SpecializedKernel],
    loaded: Sequence[Loaded],
    target: Target,
    words: int = 0,
    keeps: bool = False,
) -> Listing[Call]:
    """The launches of a region with their code, laid out in memory and among threads; `words` is
    where their argument words begin. What is packed is found again later if it `keeps`."""
    scratches = [kernel.scratch for kernel in loaded]
    kept = kept_packing(lowered, [each.kernel for each in kernels], loaded) if keeps else {}
    arena = arrange(lowered.launches, scratches, lowered.pieces, target, kept)
    calls: list[Call] = []
    barriers, no_pause = BarrierPlan(arena, target), amid_updates(lowered.launches)
    for position, launch in enumerate(lowered.launches):
        code, scratch = loaded[position], arena.scratch[position]
        piece = scratch, scratch + code.scratch
        barrier, thread = barriers.place(launch, piece, len(code.functions))
        how = barrier, thread, no_pause[position], int(work_of(launch.kernel, target))
        call = Call(launch, kernels[position], code, words, scratch, *how, kept.get(position))
        calls.append(call)
        words += calls[-1].word_count
    return Listing(lowered, calls, arena)
