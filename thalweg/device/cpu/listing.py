"""The launches of a lowered region with their code.

Comes in: a lowered region and its loaded kernels. Goes out: a `Listing`, whose calls have the start
of their argument words, the barriers between them, and the threads that run them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from thalweg.codegen.cache import Loaded
from thalweg.device.cpu.table_template import Entry
from thalweg.device.program import Listing
from thalweg.ir.target import Target
from thalweg.lower.dynamic_shapes import SpecializedKernel
from thalweg.lower.lowered import Launch, Lowered
from thalweg.lower.memory.arena import arrange
from thalweg.lower.memory.barriers import BarrierPlan, amid_updates, work_of


@dataclass(frozen=True, eq=False)
class Call:
    """A launch with its code."""

    launch: Launch
    specialized: SpecializedKernel
    code: Loaded
    scratch: int  # the offset of its scratch memory in the arena
    entry: Entry  # of its first function; the arguments are the index of its first argument word
    #: the references that its packed factor depends on, if calls reuse the packed factor
    packed_from: frozenset[int] | None = None

    def entries(self, functions: Mapping[int, int]) -> list[Entry]:
        """The entries of its functions, given their numbers by address. There is a barrier between
        them, but no pause, unless the first one packs and may be left out."""
        amid_call = self.packed_from is None
        return [
            self.entry._replace(
                function=functions[function],
                barrier=self.entry.barrier or phase > 0,
                no_pause=self.entry.no_pause or (amid_call and phase > 0),
            )
            for phase, function in enumerate(self.code.functions)
        ]


def build_listing(
    lowered: Lowered,
    kernels: Sequence[SpecializedKernel],
    loaded: Sequence[Loaded],
    target: Target,
    prepacked: Mapping[int, frozenset[int]],
    words: int = 0,
) -> Listing[Call]:
    """The launches of a region with their code, memory and barriers.

    `prepacked`: the launches that reuse packed factors, and the references that these depend on.
    Argument words begin at `words`.
    """
    scratches = [kernel.scratch for kernel in loaded]
    arena = arrange(lowered.launches, scratches, lowered.pieces, target, prepacked)
    barriers, no_pause = BarrierPlan(arena, target), amid_updates(lowered.launches)
    calls: list[Call] = []
    for number, launch in enumerate(lowered.launches):
        code, scratch = loaded[number], arena.scratch[number]
        slot = barriers.place(launch, (scratch, scratch + code.scratch), len(code.functions))
        entry = Entry(0, words, *slot, no_pause[number], int(work_of(launch.kernel, target)))
        packed_from = prepacked.get(number)
        calls.append(Call(launch, kernels[number], code, scratch, entry, packed_from))
        words += kernels[number].word_count
    return Listing(lowered, calls, arena)
