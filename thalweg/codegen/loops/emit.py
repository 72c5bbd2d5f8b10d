"""Emission of a planned loop kernel: its statements, which are stores and checks, in their loops.

A `Plan` and a function to write into come in; loops, scans, checks and stores go out as
instructions. Loop invariants are computed before each loop. A `StatementEmitter` emits statements
in a scope, in which some variables are bound. Subclasses emit what binds them: loops here, grids
for CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cached_property

import numpy as np

from thalweg.codegen.llvm.builder import I64, Builder, Value, constant
from thalweg.codegen.loops.compute import ExpressionEmitter
from thalweg.codegen.loops.lanes import Slots, Span, VectorLoop, flatten, initial_states
from thalweg.codegen.loops.plan import BLOCK
from thalweg.codegen.loops.scope import LaneScope, Scope
from thalweg.codegen.loops.simplify import static_extent
from thalweg.codegen.math.elements import accumulator_of, combine_elements
from thalweg.codegen.point import Address
from thalweg.ir.expr import Expr, Scan
from thalweg.ir.functions.reductions import REDUCTIONS
from thalweg.ir.kernel import Check, Store
from thalweg.ir.loop import Variable

#: The fault word of an integer division by zero.
_DIVISION_FAULT = 1


class StatementEmitter(ExpressionEmitter):
    """Emits the statements of a kernel into a function."""

    @cached_property
    def _statements(self) -> list[Check | Store]:
        return [*self._plan.form.checks, *self._plan.form.stores]

    @cached_property
    def _scans(self) -> list[Scan]:
        return self._plan.form.every(Scan)

    # Faults

    def fault(self, b: Builder, condition: Value) -> None:
        self._report_fault(condition, _DIVISION_FAULT)

    def _report_fault(self, condition: Value, fault: int) -> None:
        with self.b.when(condition):
            self.b.line(
                f"store atomic {constant(I64, fault)}, {self._fault_word} monotonic, align 8"
            )

    # Scans

    @contextmanager
    def _scanning_loop(
        self, scope: Scope, variable: Variable, count: Value, span: Span
    ) -> Generator[Scope]:
        """A loop over a span of a variable of `count` values, which carries the scans over it;
        yields the inner scope."""
        scans = [scan for scan in self._scans if scan.variable is variable]
        with self.b.loop(*span, 1, self._initial_scans(scope, scans)) as loop:
            index = loop.index
            if variable in self._plan.backward:
                index = self.b.binary("sub", self.add(count, -1), index)
            inner = scope.bind({variable: index})
            loop.next = self._advance_scans(inner, scans, loop.carried)
            yield inner

    def _initial_scans(self, scope: Scope, scans: Sequence[Scan]) -> list[Value]:
        return flatten([initial_states(scans, vector.lanes) for vector in scope.vectors])

    def _advance_scans(
        self, scope: Scope, scans: Sequence[Scan], carried: list[Value]
    ) -> list[Value]:
        """Accumulate one more element into each scan, and define its value: the accumulator after
        that element, or before it if exclusive. Returns the new accumulators."""
        states = dict(zip([(c, s) for c in scope.vectors for s in scans], carried, strict=True))
        for scan in scans:
            accumulator, body, exclusive = accumulator_of(scan), scan.body, scan.exclusive
            self.hoist(scope, [body])
            for vector in scope.vectors:
                before = states[vector, scan]
                element = vector.value_as(body, accumulator.dtype, vector.tail)
                (after,) = accumulator.accumulate(self.b, [before], element, element)
                states[vector, scan] = after
                vector.define(scan, before if exclusive else after)
        return list(states.values())

    # Hoisting

    def _hoist_statements(self, scope: Scope, statements: Sequence[Check | Store]) -> None:
        """Compute what statements here and in inner loops need and what is invariant in those."""
        certain = [root for statement in statements for root in _unconditional_roots(statement)]
        perhaps = [
            root for statement in statements for root in statement.roots if root not in certain
        ]
        self.hoist(scope, certain, perhaps)

    # Stores and checks

    def _execute(
        self,
        scope: Scope,
        statements: Sequence[Check | Store],
        guard: Callable[[], Value] | None = None,
    ) -> None:
        """Emit checks, then all stored values, then the stores, which run only under the guard."""
        stored = list[tuple[Store, LaneScope, Address, Value, Value | None]]()
        for statement in statements:
            for vector in scope.vectors:
                if isinstance(statement, Check):
                    self._check(vector, statement)
                else:
                    evaluated = self._evaluate_store(vector, statement)
                    stored.append((statement, vector, *evaluated))
        if stored:
            with self.b.when(guard() if guard else None):
                for one in stored:
                    self._store(*one)

    def _check(self, vector: LaneScope, check: Check) -> None:
        b = self.b
        holds = vector.value_as(check.condition, np.bool_, vector.tail)
        fails = b.binary("xor", holds, True)
        if vector.tail is not None:
            fails = b.binary("and", fails, vector.tail)
        self._report_fault(b.any(fails), check.fault)

    def _evaluate_store(
        self, vector: LaneScope, store: Store
    ) -> tuple[Address, Value, Value | None]:
        mask = vector.condition(store.inside, vector.tail)
        address = vector.locate(store.buffer, store.offset, mask)
        return address, self._stored_value(vector, store, mask), mask

    def _stored_value(self, vector: LaneScope, store: Store, mask: Value | None) -> Value:
        """The value to store, in its register type."""
        return vector.value_as(store.value, store.buffer.dtype, mask)

    def _store(
        self, store: Store, vector: LaneScope, address: Address, value: Value, mask: Value | None
    ) -> None:
        row = REDUCTIONS.get(store.combine)
        if row and row.atomic and not store.variables and vector.has_atomic_add(store.buffer):
            vector.atomic_add(store.buffer, address, value)
            return
        if row:
            old = vector.read(store.buffer, address, mask)
            value = combine_elements(self.b, row, store.buffer.dtype, old, value)
        vector.write(store.buffer, address, value, mask)


def _unconditional_roots(statement: Check | Store) -> list[Expr]:
    """The expressions of a statement that are computed in any case."""
    if isinstance(statement, Check):
        return [statement.condition]
    return statement.roots if statement.inside is None else [statement.inside]


_MIN_BLOCKS = 64  # of a vector loop that threads share block by block


class CpuEmitter(StatementEmitter):
    """Emits a kernel for CPUs into a function of (fault, buffers …, words …, thread, threads)."""

    def write(self, thread: Value, threads: Value) -> None:
        """Emit the whole kernel, as thread number `thread` of `threads` runs it."""
        self._threads = thread, threads
        # The loops that threads share; of no depth if there are none.
        self._first_shared, self._last_shared = self._plan.threaded_levels or (-1, -1)
        scope = Scope((LaneScope(self),))
        with self.b.when(self._is_first() if self._first_shared < 0 else None):
            self._level(scope, 0)

    def _is_first(self) -> Value:
        return self.b.compare("eq", self._threads[0], 0)

    # Levels of the kernel's loops

    def _level(self, scope: Scope, depth: int) -> None:
        """Emit all that runs where the first `depth` variables are bound, inner loops included."""
        here = [work for work in self._statements if self._plan.depth(work) == depth]
        inside = [work for work in self._statements if self._plan.depth(work) >= depth]
        self._hoist_statements(scope, inside)
        self._execute(scope, here, self._is_first if depth <= self._first_shared else None)
        if depth < len(self._plan.variables):
            self._loop(scope, depth)

    def _loop(self, scope: Scope, depth: int) -> None:
        variable = self._plan.variables[depth]
        if depth == self._first_shared < self._last_shared:
            self._collapsed_loop(scope, depth, self._last_shared)
        elif variable is self._plan.vector:
            self._vector_loop(scope, depth)
        else:
            self._scalar_loop(scope, depth, variable)

    def _thread_bounds(self, depth: int, count: Value, unit: int) -> tuple[Value, Value]:
        """The range of a loop on this thread: whole units, except at the end of the loop."""
        if depth != self._first_shared:
            return constant(I64, 0), count
        first, last = self.shares(self.ceil_div(count, unit), *self._threads)
        if unit == 1:
            return first, last
        return self.multiply(first, unit), self.minimum(self.multiply(last, unit), count)

    def _scalar_loop(self, scope: Scope, depth: int, variable: Variable) -> None:
        count = self.extent(variable)
        span = self._thread_bounds(depth, count, 1)
        if variable in self._plan.blocks:
            span = self._block_bounds(scope, variable, count)
        with self._scanning_loop(scope, variable, count, span) as inner:
            self._level(inner, depth + 1)

    def _block_bounds(self, scope: Scope, variable: Variable, count: Value) -> tuple[Value, Value]:
        """The range of a blocked variable in the current block."""
        first = self.multiply(scope.vectors[0].at(self._plan.blocks[variable]), BLOCK)
        return first, self.minimum(self.add(first, BLOCK), count)

    def _collapsed_loop(self, scope: Scope, first: int, last: int) -> None:
        """Emit several loops as one, so that threads have enough iterations to share."""
        variables = self._plan.variables[first : last + 1]
        counts = [self.extent(variable) for variable in variables]
        low, high = self._thread_bounds(first, self.product(counts), 1)
        with self.b.loop(low, high) as loop:
            indices = self.unravel(loop.index, counts)
            self._level(scope.bind(dict(zip(variables, indices, strict=True))), last + 1)

    def _vector_loop(self, scope: Scope, depth: int) -> None:
        """Emit blocks of interleaved vectors, then single vectors, then a masked or scalar tail."""
        variable, lanes = self._plan.variables[depth], self._plan.width
        loop = VectorLoop(self, variable, lanes, self._plan.interleave, self._plan.masks_tails)
        count = static_extent(variable)
        unit = loop.block if count is not None and count >= _MIN_BLOCKS * loop.block else lanes
        bounds = self._thread_bounds(depth, self.extent(variable), unit)

        def inside(inner: Scope, slots: Slots) -> Slots:
            self._level(inner, depth + 1)
            return slots

        whole = unit == loop.block or depth != self._first_shared
        loop.run(scope, bounds, inside, [[] for _ in loop.slot_lanes], whole)
