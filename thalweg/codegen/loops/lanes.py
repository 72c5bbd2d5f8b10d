"""Loops over a variable that is in the lanes of vectors, and long sums in blocks.

What comes in are bounds and what to write for an iteration; what goes out is the loop with its
remainder, for whatever number of values is left over, and the loop-carried values.

A sum of floats in a register loses what lies below its last digit with every addition: rounding
errors are to grow with the length of a block, not with that of the sum. So it starts from zero in
every block, and what blocks give is added up with what rounding took from that sum kept beside it.
Other reductions of the same loop are merged block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from thalweg.codegen.llvm.builder import I32, I64, Builder, Value, constant
from thalweg.codegen.loops.scope import Scope
from thalweg.codegen.loops.simplify import static_extent
from thalweg.codegen.math.elements import Accumulator, State, accumulator_of
from thalweg.ir.expr import Reduce
from thalweg.ir.loop import Variable

#: The first and the last (exclusive) value of a loop.
Span = tuple[Value, Value]

#: For each copy of a scope, values that are carried round a loop.
Slots = list[list[Value]]

#: Writes the inside of loops: takes the scope there and the carried values, gives their new values.
LoopBody = Callable[[Scope, Slots], Slots]


class VectorLoop:
    """A loop over a variable in lanes: blocks of copies, then what is left.

    What is left goes in masked vectors, or, on processors without masks, singly. `kept` are the
    lanes of the carried values: one slot for each copy, and one for what goes singly.
    """

    def __init__(
        self, builder: Builder, variable: Variable, lanes: int, copies: int, masks: bool
    ) -> None:
        self._b, self._variable, self._lanes, self._copies = builder, variable, lanes, copies
        count = static_extent(variable)
        self._even = count is not None and count % lanes == 0
        self._masked, self._single = masks and not self._even, not masks and not self._even
        self._is_whole = count is not None and count % self.block == 0
        self.slot_lanes = [lanes] * copies + ([1] if self._single else [])

    @property
    def block(self) -> int:
        """How many values one iteration of the main loop takes."""
        return self._lanes * self._copies

    def run(
        self, scope: Scope, span: Span, inside: LoopBody, slots: Slots, whole: bool = True
    ) -> Slots:
        """Write the loop over a span.

        `whole` says that its bounds are whole blocks if the extent is.
        """
        lanes, (at, last) = self._lanes, span
        blocks, rest = slots[: self._copies], slots[self._copies :]
        if self._is_whole and whole:
            return self._loop(scope, span, inside, blocks, lanes)
        if self._copies > 1 or not self._masked:
            end = self._end(at, last, self.block)
            blocks = self._loop(scope, (at, end), inside, blocks, lanes)
            at = end
        if self._copies > 1 or self._masked:
            end = self._end(at, last, lanes) if self._single else last
            blocks[:1] = self._loop(scope, (at, end), inside, blocks[:1], lanes)
            at = end
        if self._single:
            rest = self._loop(scope, (at, last), inside, rest, 1)
        return blocks + rest

    def _end(self, first: Value, last: Value, unit: int) -> Value:
        """The end of the whole units between two values."""
        count = self._b.binary("sub nsw", last, first)
        return self._b.binary("sub nsw", last, self._b.binary("urem", count, unit))

    def _loop(self, scope: Scope, span: Span, inside: LoopBody, slots: Slots, width: int) -> Slots:
        b, (first, last) = self._b, span
        with b.loop(first, last, width * len(slots), flatten(slots)) as loop:
            starts = [
                b.binary("add nsw", loop.index, width * copy) if copy else loop.index
                for copy in range(len(slots))
            ]
            masked = self._masked and len(slots) == 1 and width > 1
            tail = self._tail(loop.index, last) if masked else None
            inner = scope.vectorize(self._variable, width, starts, tail)
            loop.next = flatten(inside(inner, unflatten(slots, loop.carried)))
        return unflatten(slots, loop.results)

    def _tail(self, index: Value, last: Value) -> Value:
        """Which lanes are before the end."""
        b, kind = self._b, I32.of(self._lanes)
        left = b.call(
            "llvm.smin.i64", I64, b.binary("sub nsw", last, index), constant(I64, self._lanes)
        )
        short = b.convert("trunc", left, "i32")
        return b.compare("slt", b.lanes(kind), b.splat(short, self._lanes))


def initial_states(group: Sequence[Reduce], lanes: int) -> list[Value]:
    """The states of several reductions before any element."""
    return [value for expr in group for value in accumulator_of(expr).initial(lanes)]


def split_states(group: Sequence[Reduce], slot: Sequence[Value]) -> Iterator[tuple[Reduce, State]]:
    """The states of several reductions in one copy."""
    values = iter(slot)
    for expr in group:
        yield expr, list(islice(values, accumulator_of(expr).size))


def map_states(
    group: Sequence[Reduce], slot: Sequence[Value], made: Callable[[Accumulator, State], State]
) -> list[Value]:
    """What is made of the state of each of several reductions in one copy."""
    pairs = split_states(group, slot)
    return [value for expr, state in pairs for value in made(accumulator_of(expr), state)]


def flatten(slots: Slots) -> list[Value]:
    """The values of all slots."""
    return [value for slot in slots for value in slot]


def unflatten(slots: Slots, values: Sequence[Value]) -> Slots:
    """Values in slots of the same sizes."""
    remaining = iter(values)
    return [[next(remaining) for _ in slot] for slot in slots]


@dataclass(frozen=True)
class BlockSplit:
    """Which loop of a nest is cut, into blocks of how many iterations; `certain`: into several."""

    position: int
    size: int
    is_certain: bool


def block_split(counts: Sequence[int | None], block: int) -> BlockSplit | None:
    """Where to cut loops, outermost first, so that blocks add up to twice `block` terms at most."""
    inner = 1
    for position in reversed(range(len(counts))):
        count = counts[position]
        if count is None or inner * count > 2 * block:
            return BlockSplit(position, -(-block // inner), position > 0 or count is not None)
        inner *= max(count, 1)
    return None


@dataclass(frozen=True)
class BlockTotals:
    """The states of reductions over blocks: of a sum of floats, what rounding lost goes along."""

    b: Builder
    group: Sequence[Reduce]

    @property
    def is_compensated(self) -> bool:
        """Whether blocks make a difference to any of the reductions."""
        return any(accumulator_of(expr).is_compensated for expr in self.group)

    def start(self, slots: Slots) -> Slots:
        """The totals before any block, of slots like these."""

        def first(accumulator: Accumulator, state: State) -> State:
            lost = [constant(state[0].type, 0.0)] if accumulator.is_compensated else []
            return accumulator.initial(state[0].type.lanes) + lost

        return [map_states(self.group, slot, first) for slot in slots]

    def add_block(self, totals: Slots, slots: Slots) -> Slots:
        """The totals after one more block."""
        return [
            [
                value
                for (accumulator, kept), (_, state) in zip(
                    self._split(total), split_states(self.group, slot), strict=True
                )
                for value in self._merged(accumulator, kept, state)
            ]
            for total, slot in zip(totals, slots, strict=True)
        ]

    def states(self, totals: Slots) -> Slots:
        """The totals as the states of reductions that were never cut."""
        return [
            [
                value
                for accumulator, kept in self._split(total)
                for value in (
                    [with_compensation(self.b, *kept)] if accumulator.is_compensated else kept
                )
            ]
            for total in totals
        ]

    def _split(self, total: Sequence[Value]) -> Iterator[tuple[Accumulator, State]]:
        """Each reduction, and its state with what was lost."""
        values = iter(total)
        for accumulator in map(accumulator_of, self.group):
            yield accumulator, list(islice(values, accumulator.size + accumulator.is_compensated))

    def _merged(self, accumulator: Accumulator, kept: State, state: State) -> State:
        if not accumulator.is_compensated:
            return accumulator.merge(self.b, kept, state)
        return [*compensated_add(self.b, *kept, *state)]


def compensated_add(b: Builder, total: Value, lost: Value, more: Value) -> tuple[Value, Value]:
    """A total with more added to it, and all that rounding took from it so far."""
    new = b.binary("fadd", total, more)
    added = b.binary("fsub", new, total)  # what became of `more`
    missing = b.binary(
        "fadd",
        b.binary("fsub", total, b.binary("fsub", new, added)),
        b.binary("fsub", more, added),
    )
    return new, b.binary("fadd", lost, missing)


def with_compensation(b: Builder, total: Value, lost: Value) -> Value:
    """A total with what was lost; of one that left the range of numbers nothing is known to be."""
    is_whole = b.compare("uno", lost, lost)
    return b.select(is_whole, total, b.binary("fadd", total, lost))
