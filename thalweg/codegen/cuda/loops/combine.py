"""Combines the reduction states of the threads of a team.

The lanes of a warp exchange states; warps, and teams whose threads are not adjacent, use the
block's shared memory. All threads of a team get the same state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from thalweg.codegen.cuda.builder import GridBuilder
from thalweg.codegen.cuda.grid import Grid
from thalweg.codegen.cuda.loops.mapping import Mapping
from thalweg.codegen.llvm.builder import Type, Value
from thalweg.codegen.loops.lanes import map_states
from thalweg.codegen.math.elements import Accumulator, State, accumulator_of
from thalweg.ir.expr import Reduce

_CELL = 8  # bytes of a value in shared memory


def shared_bytes(mapping: Mapping, groups: Sequence[Reduce]) -> int:
    """The shared memory of a block for combining reductions sequentially."""
    values = max((accumulator_of(expr).size for expr in groups), default=0)
    if mapping.kind == "column":
        return values * mapping.width * mapping.threads * _CELL
    return values * (mapping.team // mapping.target.warp) * _CELL if mapping.side == 1 else 0


@dataclass(frozen=True)
class Combination:
    """Combines the states of a team: `thread` is the index in the block, `member` in the team, and
    `beside` the index of the team in the block."""

    mapping: Mapping
    b: GridBuilder
    grid: Grid
    thread: Value
    member: Value
    beside: Value

    def row(self, group: Sequence[Reduce], slot: Sequence[State]) -> list[State]:
        """Combine the states of adjacent threads."""
        return map_states(group, slot, self._neighbours)

    def columns(self, group: Sequence[Reduce], slot: Sequence[State]) -> list[State]:
        """Combine the states of threads whose distance is the number of teams."""
        return map_states(group, slot, self._apart)

    # Adjacent threads

    def _neighbours(self, accumulator: Accumulator, state: State) -> State:
        b, warp = self.b, self.mapping.target.warp
        lane = b.binary("and", self.thread, warp - 1)
        result = self._butterfly(accumulator, state, lane, min(warp, self.mapping.team))
        if self.mapping.team <= warp:
            return result
        warps = self.mapping.team // warp
        number = b.binary("udiv", self.thread, warp)
        self.grid.barrier()
        with b.when(b.compare("eq", lane, 0)):
            for n, value in enumerate(result):
                b.store(value, self._cell(n * warps, number))
        self.grid.barrier()
        place = b.binary("urem", lane, warps)
        result = [b.load(v.type, self._cell(n * warps, place)) for n, v in enumerate(result)]
        return self._butterfly(accumulator, result, lane, warps)

    def _butterfly(self, accumulator: Accumulator, state: State, lane: Value, count: int) -> State:
        """Combine the states of `count` lanes; all get the result."""
        mask = count // 2
        while mask:
            other = self.b.binary("xor", lane, mask)
            theirs = [self.grid.from_lane(value, other) for value in state]
            state = accumulator.merge(self.b, state, theirs)
            mask //= 2
        return state

    # Strided threads

    def _apart(self, accumulator: Accumulator, state: State) -> State:
        b, side = self.b, self.mapping.side
        self.grid.barrier()
        self._put(state)
        self.grid.barrier()
        half = self.mapping.team // 2
        while half:
            with b.when(b.compare("ult", self.member, half)):
                place = b.binary("add", self.thread, half * side)
                mine = self._state_of([v.type for v in state], self.thread)
                theirs = self._state_of([v.type for v in state], place)
                self._put(accumulator.merge(b, mine, theirs))
            self.grid.barrier()
            half //= 2
        return self._state_of([v.type for v in state], self.beside)

    def _put(self, state: Sequence[Value]) -> None:
        """Store this thread's state in shared memory, lane by lane."""
        for n, value in enumerate(state):
            for lane in range(value.type.lanes):
                one = self.b.extract(value, lane)
                self.b.store(one, self._cell(self._row(value.type, n, lane), self.thread))

    def _state_of(self, kinds: Sequence[Type], thread: Value) -> State:
        """Load the state of a thread from shared memory."""

        def loaded(number: int, kind: Type, lane: int) -> Value:
            return self.b.load(kind.of(1), self._cell(self._row(kind, number, lane), thread))

        return [self.b.from_lanes(kind, partial(loaded, n, kind)) for n, kind in enumerate(kinds)]

    def _row(self, kind: Type, number: int, lane: int) -> int:
        return (number * kind.lanes + lane) * self.mapping.threads

    def _cell(self, row: int, place: Value) -> Value:
        whole = self.b.convert("zext", place, "i64")
        at = self.b.binary("add", whole, row)
        return self.b.element(self.grid.shared(), "i64", at)
