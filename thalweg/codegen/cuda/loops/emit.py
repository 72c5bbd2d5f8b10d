"""Emits a loop kernel by its mapping: items, serial loops, atomic stores.

This module has the base of the emitters of all mappings, and kernels in which every thread has its
own items.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from thalweg.codegen.cuda.builder import GridBuilder
from thalweg.codegen.cuda.grid import Grid
from thalweg.codegen.cuda.loops.atomics import combine_atomically
from thalweg.codegen.cuda.loops.hidden import hidden_calls
from thalweg.codegen.cuda.loops.mapping import Mapping, divisor
from thalweg.codegen.cuda.loops.online import sums_of_powers
from thalweg.codegen.llvm.builder import I32, I64, Value, constant
from thalweg.codegen.loops.compute import ReductionNest
from thalweg.codegen.loops.emit import StatementEmitter
from thalweg.codegen.loops.lanes import Slots, Span
from thalweg.codegen.loops.plan import Plan, is_long
from thalweg.codegen.loops.scope import LaneScope, Scope, Spill
from thalweg.codegen.loops.simplify import static_extent
from thalweg.codegen.point import Address
from thalweg.ir.expr import Cast, Expr, Reduce, Variable
from thalweg.ir.kernel import Argument, Check, Store
from thalweg.ir.rewrite import postorder
from thalweg.platform.dtype_traits import is_narrow_float

_NARROW = 1 << 31
_MAX_UNROLLED = 27  # iterations: a window of 3x3x3
_MAX_UNROLLED_INSTRUCTIONS = 4000  # about


def _is_short(counts: Sequence[int | None], nest: ReductionNest, scope: Scope) -> bool:
    """Whether loops have few and short iterations."""
    known = [count for count in counts if count is not None]
    if not counts or len(known) < len(counts) or math.prod(known) > _MAX_UNROLLED:
        return False
    size = sum(8 if is_long(part) else 1 for part in postorder(nest.bodies))
    return math.prod(known) * size * scope.lanes <= _MAX_UNROLLED_INSTRUCTIONS


class GridEmitter(StatementEmitter):
    """The base of emitters for a grid."""

    def __init__(
        self,
        mapping: Mapping,
        builder: GridBuilder,
        pointers: dict[Argument, Value],
        words: dict[int, Value],
        fault: Value,
        is_aligned: bool,
    ) -> None:
        self.mapping, self._grid = mapping, Grid.of(builder)
        form, vector = mapping.form, mapping.vector
        # The parts that it shares with CPUs need no more of a plan.
        plan = Plan(form, mapping.target, form.variables, vector, mapping.width, mapping.backward)
        super().__init__(plan, builder, pointers, words, fault)
        self.is_aligned, self.is_simt = is_aligned, True
        self._powers = sums_of_powers(mapping)
        self.hidden = hidden_calls(form, set(self._powers.values()))
        self._builder = builder

    def write(self) -> None:
        """Emit the kernel."""
        raise NotImplementedError

    @property
    def _root(self) -> Scope:
        return Scope((LaneScope(self),))

    def _report_fault(self, condition: Value, fault: int) -> None:
        with self.b.when(condition):
            code = constant(I64, fault)
            kind = 'syncscope("device") monotonic, align 8'
            self.b.emit(I64, f"atomicrmw umax {self._fault_word}, {code} {kind}")

    def _stored_value(self, copy: LaneScope, store: Store, mask: Value | None) -> Value:
        """The value to store: a float32 number is rounded if it is stored as a narrow float."""
        match store.value:
            case Cast(value=inner, dtype=dtype) if dtype == store.buffer.dtype:
                is_rounded = is_narrow_float(dtype) and inner.dtype == np.dtype(np.float32)
                if is_rounded and store.combine == "set":
                    return copy.value(inner, mask)
            case _:
                pass
        return super()._stored_value(copy, store, mask)

    def _store(
        self, store: Store, copy: LaneScope, place: Address, value: Value, mask: Value | None
    ) -> None:
        if self.mapping.atomic(store):
            combine_atomically(self._builder, store, copy, place, value, mask)
        else:
            super()._store(store, copy, place, value, mask)

    # Reductions of a thread

    def _loop_nest(
        self, scope: Scope, nest: ReductionNest, slots: Slots, span: Span | None = None
    ) -> Slots:
        """Short loops are unrolled, so that their loads are in flight together."""
        counts = [static_extent(variable) for variable in nest.variables]
        if span is not None or nest.lanes is not None or not _is_short(counts, nest, scope):
            return super()._loop_nest(scope, nest, slots, span)
        first, *others = nest.variables
        for number in range(counts[0] or 0):
            inner = scope.bind({first: constant(I64, number)})
            self.hoist(inner, nest.bodies)
            slots = self._loop_nest(inner, replace(nest, variables=tuple(others)), slots)
        return slots

    def _allocate_spills(self, scope: Scope, group: Sequence[Reduce]) -> list[dict[Expr, Spill]]:
        """None: a thread has no memory to spill to."""
        return [{} for _ in scope.vectors]

    # Numbers

    def _wide(self, value: Value) -> Value:
        return self.b.convert("zext", value, "i64")

    def _times(self, one: Value, other: Value) -> Value:
        return self.b.binary("mul", one, other)

    def _plus(self, one: Value, other: Value) -> Value:
        return self.b.binary("add", one, other)

    def count(self, variables: Sequence[Variable], width: int = 1) -> Value:
        """The number of values of some variables together, `width` of the last at a time."""
        total = constant(I64, 1)
        for variable in variables:
            extent = self.extent(variable)
            total = extent if total.text == "1" else self._times(total, extent)
        return total if width == 1 else self.b.binary("udiv", total, width)

    def digits(
        self, number: Value, variables: Sequence[Variable], width: int = 1
    ) -> dict[Variable, Value]:
        """The values of variables at an index; the last is the fastest, in steps of `width`."""
        if not variables:
            return {}
        b, narrow = self.b, _is_narrow(variables)
        rest = b.convert("trunc", number, "i32") if narrow else number
        result = dict[Variable, Value]()
        for position in reversed(range(1, len(variables))):
            variable = variables[position]
            step = width if position == len(variables) - 1 else 1
            count = self._digit_count(variable, step, narrow)
            result[variable] = self._digit(b.binary("urem", rest, count), step)
            rest = b.binary("udiv", rest, count)
        result[variables[0]] = self._digit(rest, width if len(variables) == 1 else 1)
        return result

    def _digit_count(self, variable: Variable, step: int, narrow: bool) -> Value:
        known = static_extent(variable)
        if known is not None:
            return constant(I32 if narrow else I64, known // step)
        return self.b.binary("udiv", self.extent(variable), step)

    def _digit(self, value: Value, step: int) -> Value:
        whole = self._wide(value) if value.type.bits < 64 else value
        return whole if step == 1 else self._times(whole, constant(I64, step))

    # Works with fewer variables than their scope

    def _at_zero(self, values: dict[Variable, Value], work: Check | Store) -> Value | None:
        """Whether the variables that a work lacks are 0; None if it has all of them."""
        found: Value | None = None
        for variable, value in values.items():
            if variable not in work.variables:
                zero = self.b.compare("eq", value, 0)
                found = zero if found is None else self.b.binary("and", found, zero)
        return found

    def _partial(
        self,
        scope: Scope,
        plain: Scope,
        values: dict[Variable, Value],
        works: Iterable[Check | Store],
    ) -> None:
        """Emit works that lack some variables, once; without lanes if they lack that one."""
        for work in works:
            guard = self._at_zero(values, work)
            around = scope if self.mapping.vector in work.variables else plain
            with self.b.when(guard):
                inner = around.bind({})  # values computed here are not visible afterwards
                self._hoist_statements(inner, [work])
                self._execute(inner, [work])


class EachEmitter(GridEmitter):
    """The emitter of kernels in which every thread has its own items."""

    def write(self) -> None:
        b, m, grid = self.b, self.mapping, self._grid
        block, threads = self._wide(grid.block()), self._wide(grid.threads())
        first = self._plus(self._times(block, threads), self._wide(grid.thread()))
        step = self._times(self._wide(grid.blocks()), threads)
        with b.loop(first, self.count(m.items, m.item_width), step) as loop:
            self._item(self.digits(loop.index, m.items, m.item_width))
        if m.vector is not None and divisor(m.vector.extent) % m.width:
            self._left_over(m.vector, first, step)

    def _left_over(self, variable: Variable, first: Value, step: Value) -> None:
        """Emit the remainder of the only variable, which vectors do not cover."""
        width = constant(I64, self.mapping.width)
        end = self.extent(variable)
        whole = self._times(self.b.binary("udiv", end, width), width)
        with self.b.loop(self._plus(whole, first), end, step) as loop:
            values = {variable: loop.index}
            scope = self._root.bind(values)
            self._level(scope, scope, values, 0)

    def _item(self, values: dict[Variable, Value]) -> None:
        vector, root = self.mapping.vector, self._root
        if vector is None or self.mapping.width == 1:
            plain = scope = root.bind(values)
        else:
            plain = root.bind({v: value for v, value in values.items() if v is not vector})
            scope = plain.vectorize(vector, self.mapping.width, [values[vector]])
        self._level(scope, plain, values, 0)

    def _level(self, scope: Scope, plain: Scope, values: dict[Variable, Value], depth: int) -> None:
        """Emit the works inside of the first `depth` serial loops."""
        m = self.mapping
        inside = [work for work in self._statements if self._depth(work) >= depth]
        here = [work for work in inside if self._depth(work) == depth]
        whole = [work for work in inside if set(m.items) <= set(work.variables)]
        self._hoist_statements(scope, whole)
        self._execute(scope, [work for work in here if work in whole])
        self._partial(scope, plain, values, [work for work in here if work not in whole])
        if depth < len(m.serial) and any(self._depth(work) > depth for work in inside):
            self._serial_loop(scope, plain, values, depth)

    def _depth(self, work: Check | Store) -> int:
        return sum(variable in work.variables for variable in self.mapping.serial)

    def _serial_loop(
        self, scope: Scope, plain: Scope, values: dict[Variable, Value], depth: int
    ) -> None:
        variable = self.mapping.serial[depth]
        count = self.extent(variable)
        with self._scanning_loop(scope, variable, count, (constant(I64, 0), count)) as inner:
            index = inner.vectors[0].at(variable)
            plain = inner if plain is scope else plain.bind({variable: index})
            self._level(inner, plain, values, depth + 1)


def _is_narrow(variables: Sequence[Variable]) -> bool:
    """Whether indices of the values of variables are known to fit in 32 bits."""
    total = 1
    for variable in variables:
        known = static_extent(variable)
        if known is None:
            return False
        total *= known
    return total < _NARROW
