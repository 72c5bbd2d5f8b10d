"""The works of a loop kernel, its stores and checks, as instructions in a scope.

What comes in is a scope, in which some variables are bound; checks, scans and stores go out as
instructions. Which loops or threads are around them is the business of those who derive from
`WorkEmitter`: the CPU's loops (`emit.py`), and CUDA's grids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import numpy as np

from thalweg.codegen.llvm.builder import I64, Builder, Value, constant
from thalweg.codegen.loops.compute import Computation
from thalweg.codegen.loops.plan import Plan
from thalweg.codegen.loops.scope import Address, Frame, LaneScope, Scope
from thalweg.codegen.math.reductions import accumulator_of, combined
from thalweg.ir.expr import Expr, Scan
from thalweg.ir.functions.reductions import REDUCTIONS
from thalweg.ir.kernel import Argument, Check, Store

#: What goes into the fault word when an integer is divided by zero.
_DIVISION_FAULT = 1


class WorkEmitter:
    """A kernel being written into a function."""

    def __init__(
        self,
        plan: Plan,
        builder: Builder,
        pointers: dict[Argument, Value],
        words: dict[int, Value],
        fault: Value,
    ) -> None:
        self._plan, self._b = plan, builder
        self._fault_word = fault
        self._frame = Frame(
            builder,
            pointers,
            words,
            plan.safe,
            lambda _, condition: self._raise(condition, _DIVISION_FAULT),
            lambda copy, expr, mask: self._computation.alone(copy, expr, mask),
        )
        self._computation = self._evaluation()
        self._works: list[Check | Store] = [*plan.form.checks, *plan.form.stores]
        self._scans = plan.form.every(Scan)

    def _evaluation(self) -> Computation:
        """What writes the values of expressions."""
        return Computation(self._plan, self._b, self._frame)

    def _add(self, value: Value, number: int) -> Value:
        return self._b.binary("add nsw", value, constant(I64, number)) if number else value

    # Faults

    def _raise(self, condition: Value, fault: int) -> None:
        with self._b.when(condition):
            self._b.line(
                f"store atomic {constant(I64, fault)}, {self._fault_word} monotonic, align 8"
            )

    # Scans

    def _scan_starts(self, scope: Scope, scans: Sequence[Scan]) -> list[Value]:
        return [
            value
            for copy in scope.copies
            for scan in scans
            for value in accumulator_of(scan).start(copy.lanes)
        ]

    def _scanned(self, scope: Scope, scans: Sequence[Scan], carried: list[Value]) -> list[Value]:
        """Take one more element into each scan; its value is that before or after it."""
        states = dict(zip([(c, s) for c in scope.copies for s in scans], carried, strict=True))
        for scan in scans:
            accumulator, body, exclusive = accumulator_of(scan), scan.body, scan.exclusive
            self._computation.ready(scope, [body])
            for copy in scope.copies:
                before = states[copy, scan]
                element = copy.value_as(body, accumulator.dtype, copy.tail)
                (after,) = accumulator.take(self._b, [before], element, element)
                states[copy, scan] = after
                copy.remember(scan, before if exclusive else after)
        return list(states.values())

    # Computing ahead

    def _prepare(self, scope: Scope, works: Sequence[Check | Store]) -> None:
        """Compute what stores and checks here and further in need and can be known here."""
        certain = [root for work in works for root in _certain(work)]
        perhaps = [root for work in works for root in work.roots if root not in certain]
        self._computation.ready(scope, certain, perhaps)

    # Stores and checks

    def _perform(
        self,
        scope: Scope,
        works: Sequence[Check | Store],
        guard: Callable[[], Value] | None = None,
    ) -> None:
        """Check, compute everything that is stored, then store it, where a guard allows it."""
        stored = list[tuple[Store, LaneScope, Address, Value, Value | None]]()
        for work in works:
            for copy in scope.copies:
                if isinstance(work, Check):
                    self._check(copy, work)
                else:
                    stored.append((work, copy, *self._computed(copy, work)))
        if stored:
            with self._b.when(guard()) if guard else nullcontext():
                for one in stored:
                    self._store(*one)

    def _check(self, copy: LaneScope, check: Check) -> None:
        b = self._b
        holds = copy.value_as(check.condition, np.bool_, copy.tail)
        fails = b.binary("xor", holds, constant(holds.type, True))
        if copy.tail is not None:
            fails = b.binary("and", fails, copy.tail)
        self._raise(b.any(fails), check.fault)

    def _computed(self, copy: LaneScope, store: Store) -> tuple[Address, Value, Value | None]:
        mask = copy.tail
        if store.inside is not None:
            mask = copy.value_as(store.inside, np.bool_, copy.tail)
            if copy.tail is not None:
                mask = self._b.binary("and", mask, copy.tail)
        place = copy.place(store.buffer, store.offset, mask)
        return place, self._stored(copy, store, mask), mask

    def _stored(self, copy: LaneScope, store: Store, mask: Value | None) -> Value:
        """What is stored, in a register."""
        return copy.value_as(store.value, store.buffer.dtype, mask)

    def _store(
        self, store: Store, copy: LaneScope, place: Address, value: Value, mask: Value | None
    ) -> None:
        row = REDUCTIONS.get(store.combine)
        if row and row.atomic and not store.variables and copy.adds_at_once(store.buffer):
            copy.add(store.buffer, place, value)
            return
        if row:
            old = copy.read(store.buffer, place, mask)
            value = combined(self._b, row, store.buffer.dtype, old, value)
        copy.write(store.buffer, place, value, mask)


def _certain(work: Check | Store) -> list[Expr]:
    """The expressions of a work that are computed in any case."""
    if isinstance(work, Check):
        return [work.condition]
    return work.roots if work.inside is None else [work.inside]
