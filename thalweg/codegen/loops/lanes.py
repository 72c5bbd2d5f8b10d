"""Loops over a variable that is in the lanes of vectors, several vectors side by side.

What comes in are bounds and what to write for an iteration; what goes out is the loop with its
remainder, for whatever number of values is left over, and the loop-carried values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from thalweg.codegen.llvm.builder import I32, I64, Builder, Value, constant
from thalweg.codegen.loops.facts import extent_of
from thalweg.codegen.loops.scope import Scope
from thalweg.ir.loop import Variable

#: For each copy of a scope, values that are carried round a loop.
Slots = list[list[Value]]

#: Writes the inside of loops: takes the scope there and the carried values, gives their new values.
Body = Callable[[Scope, Slots], Slots]


class Lanes:
    """A loop over a variable in lanes: blocks of copies, then what is left.

    What is left goes in masked vectors, or, on processors without masks, singly. `kept` are the
    lanes of the carried values: one slot for each copy, and one for what goes singly.
    """

    def __init__(
        self, builder: Builder, variable: Variable, lanes: int, copies: int, masks: bool
    ) -> None:
        self._b, self._variable, self._lanes, self._copies = builder, variable, lanes, copies
        count = extent_of(variable)
        self._even = count is not None and count % lanes == 0
        self._masked, self._single = masks and not self._even, not masks and not self._even
        self._whole = count is not None and count % self.block == 0
        self.kept = [lanes] * copies + ([1] if self._single else [])

    @property
    def block(self) -> int:
        """How many values one iteration of the main loop takes."""
        return self._lanes * self._copies

    def run(
        self,
        scope: Scope,
        first: Value,
        last: Value,
        inside: Body,
        slots: Slots,
        whole: bool = True,
    ) -> Slots:
        """Write the loop from a first value to a last (exclusive) one.

        `whole` says that these bounds are whole blocks if the extent is.
        """
        blocks, rest = slots[: self._copies], slots[self._copies :]
        at = first
        if self._whole and whole:
            return self._loop(scope, first, last, inside, blocks)
        if self._copies > 1 or not self._masked:
            at = self._end(first, last, self.block)
            blocks = self._loop(scope, first, at, inside, blocks)
        if self._copies > 1 or self._masked:
            end = self._end(at, last, self._lanes) if self._single else last
            blocks[:1] = self._loop(scope, at, end, inside, blocks[:1])
            at = end
        if self._single:
            rest = self._loop(scope, at, last, inside, rest, lanes=1)
        return blocks + rest

    def _end(self, first: Value, last: Value, unit: int) -> Value:
        """The end of the whole units between two values."""
        b = self._b
        count = b.binary("sub nsw", last, first)
        rest = b.binary("urem", count, constant(I64, unit))
        return b.binary("sub nsw", last, rest)

    def _loop(
        self,
        scope: Scope,
        first: Value,
        last: Value,
        inside: Body,
        slots: Slots,
        lanes: int | None = None,
    ) -> Slots:
        b, width = self._b, self._lanes if lanes is None else lanes
        step = constant(I64, width * len(slots))
        with b.loop(first, last, step, flat(slots)) as loop:
            starts = [
                b.binary("add nsw", loop.index, constant(I64, width * copy)) if copy else loop.index
                for copy in range(len(slots))
            ]
            masked = self._masked and len(slots) == 1 and width > 1
            tail = self._tail(loop.index, last) if masked else None
            inner = scope.spread(self._variable, width, starts, tail)
            loop.next = flat(inside(inner, like(slots, loop.carried)))
        return like(slots, loop.results)

    def _tail(self, index: Value, last: Value) -> Value:
        """Which lanes are before the end."""
        b, kind = self._b, I32.of(self._lanes)
        left = b.call(
            "llvm.smin.i64", I64, b.binary("sub nsw", last, index), constant(I64, self._lanes)
        )
        short = b.convert("trunc", left, "i32")
        return b.compare("slt", b.lanes(kind), b.splat(short, self._lanes))


def flat(slots: Slots) -> list[Value]:
    """The values of all slots."""
    return [value for slot in slots for value in slot]


def like(slots: Slots, values: Sequence[Value]) -> Slots:
    """Values in slots of the same sizes."""
    remaining = iter(values)
    return [[next(remaining) for _ in slot] for slot in slots]
