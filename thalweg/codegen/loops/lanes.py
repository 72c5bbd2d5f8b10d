"""Vectorized loops with their remainders, and long sums in blocks.

A `VectorLoop` emits a loop over a vectorized variable for any bounds, with its remainder and its
loop-carried values.

Rounding errors of a float sum must grow with the length of a block, not of the whole sum. So a sum
starts from zero in every block, and the results of blocks are added up with compensation: what
rounding takes from the total is kept beside it (`BlockTotals`). Other reductions of the same loop
are merged block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from thalweg.codegen.frame import Frame
from thalweg.codegen.llvm.builder import Builder, Value, constant
from thalweg.codegen.loops.scope import Scope
from thalweg.codegen.loops.simplify import static_extent
from thalweg.codegen.math.elements import Accumulator, State, accumulator_of
from thalweg.ir.expr import Reduce, Scan
from thalweg.ir.loop import Variable

#: The half-open range of a loop.
Span = tuple[Value, Value]

#: For each lane scope, the states of several reductions that a loop carries.
Slots = list[list[State]]

#: Emits a loop body: takes the inner scope and the carried values, returns their new values.
LoopBody = Callable[[Scope, Slots], Slots]


class VectorLoop:
    """A loop over a vectorized variable: blocks of interleaved vectors, then the remainder.

    The remainder is masked vectors, or scalars on processors without masks. `slot_lanes` are the
    lanes of the carried values: one slot per interleaved vector, and one for the scalars.
    """

    def __init__(
        self, frame: Frame, variable: Variable, lanes: int, copies: int, masks: bool
    ) -> None:
        self._frame, self._variable, self._lanes, self._copies = frame, variable, lanes, copies
        count = static_extent(variable)
        self._even = count is not None and count % lanes == 0
        self._masked, self._single = masks and not self._even, not masks and not self._even
        self._is_whole = count is not None and count % self.block == 0
        self.slot_lanes = [lanes] * copies + ([1] if self._single else [])

    @property
    def block(self) -> int:
        """How many values one iteration of the main loop covers."""
        return self._lanes * self._copies

    def run(
        self, scope: Scope, span: Span, inside: LoopBody, slots: Slots, whole: bool = True
    ) -> Slots:
        """Emit the loop over a span.

        `whole` says that the span is whole blocks if the variable's extent is.
        """
        lanes, (at, last) = self._lanes, span
        blocks, rest = slots[: self._copies], slots[self._copies :]
        if self._is_whole and whole:
            return self._loop(scope, span, inside, blocks, lanes)
        if self._copies > 1 or not self._masked:
            end = self._frame.whole_end(at, last, self.block)
            blocks = self._loop(scope, (at, end), inside, blocks, lanes)
            at = end
        if self._copies > 1 or self._masked:
            end = self._frame.whole_end(at, last, lanes) if self._single else last
            blocks[:1] = self._loop(scope, (at, end), inside, blocks[:1], lanes)
            at = end
        if self._single:
            rest = self._loop(scope, (at, last), inside, rest, 1)
        return blocks + rest

    def _loop(self, scope: Scope, span: Span, inside: LoopBody, slots: Slots, width: int) -> Slots:
        frame, (first, last) = self._frame, span
        with frame.b.loop(first, last, width * len(slots), flatten(slots)) as loop:
            starts = [frame.add(loop.index, width * copy) for copy in range(len(slots))]
            masked = self._masked and len(slots) == 1 and width > 1
            tail = frame.lanes_below(loop.index, last, self._lanes) if masked else None
            inner = scope.vectorize(self._variable, width, starts, tail)
            loop.next = flatten(inside(inner, unflatten(slots, loop.carried)))
        return unflatten(slots, loop.results)


def initial_states(group: Sequence[Reduce | Scan], lanes: int) -> list[State]:
    """The initial states of several reductions or scans."""
    return [accumulator_of(expr).initial(lanes) for expr in group]


def map_states(
    group: Sequence[Reduce], slot: Sequence[State], made: Callable[[Accumulator, State], State]
) -> list[State]:
    """A slot with `made` applied to the state of each reduction."""
    return [made(accumulator_of(e), state) for e, state in zip(group, slot, strict=True)]


def flatten(slots: Slots) -> list[Value]:
    """The values of all slots in one list."""
    return [value for slot in slots for state in slot for value in state]


def unflatten(slots: Slots, values: Sequence[Value]) -> Slots:
    """The first of some values, in slots and states of the same sizes as these."""
    remaining = iter(values)
    return [[[next(remaining) for _ in state] for state in slot] for slot in slots]


@dataclass(frozen=True)
class BlockSplit:
    """Which loop of a nest is split into blocks of how many iterations.

    If not `is_certain`, there may turn out to be a single block at run time.
    """

    position: int
    size: int
    is_certain: bool


def block_split(counts: Sequence[int | None], block: int) -> BlockSplit | None:
    """Where to split loops, outermost first, so that a block has at most twice `block` terms."""
    inner = 1
    for position in reversed(range(len(counts))):
        count = counts[position]
        if count is None or inner * count > 2 * block:
            return BlockSplit(position, -(-block // inner), position > 0 or count is not None)
        inner *= max(count, 1)
    return None


@dataclass(frozen=True)
class BlockTotals:
    """The states of reductions over blocks; a float sum also carries its rounding error."""

    b: Builder
    group: Sequence[Reduce]

    @property
    def is_compensated(self) -> bool:
        """Whether any of the reductions is compensated."""
        return any(accumulator_of(expr).is_compensated for expr in self.group)

    def start(self, slots: Slots) -> Slots:
        """The totals before any block, for slots like these."""

        def first(accumulator: Accumulator, state: State) -> State:
            lost = [constant(state[0].type, 0.0)] if accumulator.is_compensated else []
            return accumulator.initial(state[0].type.lanes) + lost

        return [map_states(self.group, slot, first) for slot in slots]

    def add_block(self, totals: Slots, slots: Slots) -> Slots:
        """The totals after one more block."""
        return [
            [self._merged(*states) for states in zip(self.group, total, slot, strict=True)]
            for total, slot in zip(totals, slots, strict=True)
        ]

    def states(self, totals: Slots) -> Slots:
        """The totals as plain states of the reductions."""
        return [map_states(self.group, total, self._state) for total in totals]

    def _state(self, accumulator: Accumulator, kept: State) -> State:
        return [with_compensation(self.b, *kept)] if accumulator.is_compensated else kept

    def _merged(self, expr: Reduce, kept: State, state: State) -> State:
        accumulator = accumulator_of(expr)
        if not accumulator.is_compensated:
            return accumulator.merge(self.b, kept, state)
        return [*compensated_add(self.b, *kept, *state)]


def compensated_add(b: Builder, total: Value, lost: Value, more: Value) -> tuple[Value, Value]:
    """A total with `more` added, and its accumulated rounding error (Knuth's two-sum)."""
    new = b.binary("fadd", total, more)
    added = b.binary("fsub", new, total)  # `more`, as rounding left it
    missing = b.binary(
        "fadd",
        b.binary("fsub", total, b.binary("fsub", new, added)),
        b.binary("fsub", more, added),
    )
    return new, b.binary("fadd", lost, missing)


def with_compensation(b: Builder, total: Value, lost: Value) -> Value:
    """A total plus its rounding error; an error of NaN, after an overflow, is dropped."""
    is_whole = b.compare("uno", lost, lost)
    return b.select(is_whole, total, b.binary("fadd", total, lost))
