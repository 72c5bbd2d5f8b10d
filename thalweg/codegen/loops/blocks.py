"""Long sums in blocks: rounding errors grow with the length of a block, not with that of the sum.

A sum of floats in a register loses what lies below its last digit with every addition. So it starts
from zero in every block, and what blocks give is added up with what rounding took from that sum
kept beside it. Other reductions of the same loop are merged block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from thalweg.codegen.llvm.builder import Builder, Value, constant
from thalweg.codegen.loops.lanes import Slots
from thalweg.codegen.math.reductions import Accumulator, State, accumulator_of
from thalweg.ir.expr import Reduce


@dataclass(frozen=True)
class Cut:
    """Which loop of a nest is cut, into blocks of how many iterations; `certain`: into several."""

    position: int
    size: int
    certain: bool


def cut_of(counts: Sequence[int | None], block: int) -> Cut | None:
    """Where to cut loops, outermost first, so that blocks add up to twice `block` terms at most."""
    inner = 1
    for position in reversed(range(len(counts))):
        count = counts[position]
        if count is None or inner * count > 2 * block:
            return Cut(position, -(-block // inner), position > 0 or count is not None)
        inner *= max(count, 1)
    return None


@dataclass(frozen=True)
class Totals:
    """The states of reductions over blocks: of a sum of floats, what rounding lost goes along."""

    b: Builder
    group: Sequence[Reduce]

    @property
    def rounds(self) -> bool:
        """Whether blocks make a difference to any of the reductions."""
        return any(accumulator_of(expr).is_compensated for expr in self.group)

    def start(self, slots: Slots) -> Slots:
        """The totals before any block, of slots like these."""
        return self._each_slot(slots, slots, lambda one, state, _: self._start(one, state))

    def take(self, totals: Slots, slots: Slots) -> Slots:
        """The totals after one more block."""
        return self._each_slot(
            slots, totals, lambda one, state, kept: self._taken(one, kept, state)
        )

    def states(self, totals: Slots) -> Slots:
        """The totals as the states of reductions that were never cut."""
        return self._each_slot(totals, totals, lambda one, _, kept: self._state(one, kept), True)

    def _each_slot(
        self,
        slots: Slots,
        totals: Slots,
        made: Callable[[Accumulator, State, State], State],
        are_totals: bool = False,
    ) -> Slots:
        """What is made of the states of all reductions in each slot, and of the totals for it."""
        pairs = zip(slots, totals, strict=True)
        return [
            [value for parts in self._each(slot, total, are_totals) for value in made(*parts)]
            for slot, total in pairs
        ]

    def _each(
        self, slot: Sequence[Value], total: Sequence[Value], is_total: bool
    ) -> Iterator[tuple[Accumulator, State, State]]:
        """Each reduction with its part of a slot, and of the totals for that slot."""
        first = start = 0
        for expr in self.group:
            accumulator = accumulator_of(expr)
            size, kept = accumulator.size, accumulator.size + accumulator.is_compensated
            step = kept if is_total else size
            yield accumulator, list(slot[first : first + size]), list(total[start : start + kept])
            first, start = first + step, start + kept

    def _start(self, accumulator: Accumulator, state: State) -> State:
        lost = [constant(state[0].type, 0.0)] if accumulator.is_compensated else []
        return accumulator.start(state[0].type.lanes) + lost

    def _taken(self, accumulator: Accumulator, kept: State, state: State) -> State:
        if not accumulator.is_compensated:
            return accumulator.merge(self.b, kept, state)
        (total, lost), (more,) = kept, state
        return [*compensated(self.b, total, lost, more)]

    def _state(self, accumulator: Accumulator, kept: State) -> State:
        if not accumulator.is_compensated:
            return kept
        return [restored(self.b, *kept)]


def compensated(b: Builder, total: Value, lost: Value, more: Value) -> tuple[Value, Value]:
    """A total with more added to it, and all that rounding took from it so far."""
    new = b.binary("fadd", total, more)
    added = b.binary("fsub", new, total)  # what became of `more`
    missing = b.binary(
        "fadd",
        b.binary("fsub", total, b.binary("fsub", new, added)),
        b.binary("fsub", more, added),
    )
    return new, b.binary("fadd", lost, missing)


def restored(b: Builder, total: Value, lost: Value) -> Value:
    """A total with what was lost; of one that left the range of numbers nothing is known to be."""
    is_whole = b.compare("uno", lost, lost)
    return b.select(is_whole, total, b.binary("fadd", total, lost))
