"""A loop kernel as instructions, by its plan: its works, which are stores and checks, in loops.

What comes in is a `Plan` and a function to write into; loops, scans, checks and stores go out as
instructions. Before each loop, everything invariant in it is computed. A `WorkEmitter` writes works
in a scope, in which some variables are bound; which loops or threads are around them is the
business of those who derive from it: the CPU's loops here, and CUDA's grids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import numpy as np

from thalweg.codegen.llvm.builder import I64, Builder, Value, constant
from thalweg.codegen.loops.compute import Computation
from thalweg.codegen.loops.lanes import Lanes, Slots
from thalweg.codegen.loops.plan import BLOCK, Plan
from thalweg.codegen.loops.scope import Address, Frame, LaneScope, Scope
from thalweg.codegen.loops.simplify import extent_of
from thalweg.codegen.math.elements import accumulator_of, combined
from thalweg.ir.expr import Expr, Scan
from thalweg.ir.functions.reductions import REDUCTIONS
from thalweg.ir.kernel import Argument, Check, Store
from thalweg.ir.loop import Variable

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
        return self._b.binary("add nsw", value, number) if number else value

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
        self, scope: Scope, works: Sequence[Check | Store], guard: Callable[[], Value] | None = None
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
        fails = b.binary("xor", holds, True)
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


_MANY = 64  # blocks of a loop that threads may share block by block


class Emission(WorkEmitter):
    """A kernel being written into a function of (pointers …, fault, words …, thread, threads)."""

    def write(self, thread: Value, threads: Value) -> None:
        """The whole kernel, as one of some threads runs it."""
        self._threads = thread, threads
        scope = Scope((LaneScope(self._frame),))
        with self._b.when(self._is_first()) if self._plan.split is None else nullcontext():
            self._level(scope, 0)

    # Small things

    def _is_first(self) -> Value:
        return self._b.compare("eq", self._threads[0], 0)

    # Levels of the kernel's loops

    def _level(self, scope: Scope, depth: int) -> None:
        """All that is done where the first `depth` variables are bound, loops inside included."""
        here = [work for work in self._works if self._plan.depth(work) == depth]
        self._prepare(scope, [work for work in self._works if self._plan.depth(work) >= depth])
        split = self._plan.split
        once = split is not None and depth <= split[0]
        self._perform(scope, here, self._is_first if once else None)
        if depth < len(self._plan.variables):
            self._loop(scope, depth)

    def _loop(self, scope: Scope, depth: int) -> None:
        split = self._plan.split
        variable = self._plan.variables[depth]
        if split is not None and split[0] == depth and split[1] > depth:
            self._flattened(scope, depth, split[1])
        elif variable is self._plan.vector:
            self._vector_loop(scope, depth)
        else:
            self._scalar_loop(scope, depth, variable)

    def _bounds(self, depth: int, count: Value, unit: int) -> tuple[Value, Value]:
        """From where to where a loop goes on this thread: whole units of it, but for the last."""
        b = self._b
        if not self._is_shared(depth):
            return constant(I64, 0), count
        units = count
        if unit > 1:
            units = b.binary("udiv", self._add(count, unit - 1), unit)
        thread, threads = self._threads
        first, last = (
            b.binary("udiv", b.binary("mul", units, number), threads)
            for number in (thread, self._add(thread, 1))
        )
        if unit == 1:
            return first, last
        ends = [b.binary("mul", number, unit) for number in (first, last)]
        return ends[0], b.call("llvm.smin.i64", I64, ends[1], count)

    def _is_shared(self, depth: int) -> bool:
        """Whether threads share the loop at a level."""
        return self._plan.split is not None and self._plan.split[0] == depth

    def _scalar_loop(self, scope: Scope, depth: int, variable: Variable) -> None:
        count = self._computation.extent(variable)
        first, last = self._bounds(depth, count, 1)
        if variable in self._plan.blocks:
            first, last = self._block(scope, variable, count)
        scans = [scan for scan in self._scans if scan.variable is variable]
        carried = self._scan_starts(scope, scans)
        with self._b.loop(first, last, 1, carried) as loop:
            index = loop.index
            if variable in self._plan.backward:
                index = self._b.binary("sub", self._add(count, -1), index)
            inner = scope.bind({variable: index})
            loop.next = self._scanned(inner, scans, loop.carried)
            self._level(inner, depth + 1)

    def _block(self, scope: Scope, variable: Variable, count: Value) -> tuple[Value, Value]:
        """From where to where a variable goes in the block that the loops outside are at."""
        b = self._b
        number = scope.copies[0].at(self._plan.blocks[variable])
        first = b.binary("mul", number, BLOCK)
        return first, b.call("llvm.smin.i64", I64, self._add(first, BLOCK), count)

    def _flattened(self, scope: Scope, first: int, last: int) -> None:
        """Several loops as one, so that threads have enough to share."""
        b, variables = self._b, self._plan.variables[first : last + 1]
        counts = [self._computation.extent(variable) for variable in variables]
        total = counts[0]
        for count in counts[1:]:
            total = b.binary("mul", total, count)
        low, high = self._bounds(first, total, 1)
        with b.loop(low, high) as loop:
            rest, values = loop.index, dict[Variable, Value]()
            for variable, count in zip(variables[:0:-1], counts[:0:-1], strict=True):
                values[variable] = b.binary("urem", rest, count)
                rest = b.binary("udiv", rest, count)
            values[variables[0]] = rest
            self._level(scope.bind(values), last + 1)

    def _vector_loop(self, scope: Scope, depth: int) -> None:
        """Blocks of several vectors, then vectors, then what is left in a masked one or singly."""
        variable, lanes = self._plan.variables[depth], self._plan.width
        loop = Lanes(self._b, variable, lanes, self._plan.copies, self._plan.masked)
        count = extent_of(variable)
        unit = loop.block if count is not None and count >= _MANY * loop.block else lanes
        bounds = self._bounds(depth, self._computation.extent(variable), unit)

        def inside(inner: Scope, slots: Slots) -> Slots:
            self._level(inner, depth + 1)
            return slots

        whole = unit == loop.block or not self._is_shared(depth)
        loop.run(scope, bounds, inside, [[] for _ in loop.kept], whole)
