"""Kernels whose long reductions are shared by teams of threads: one for each row, or column.

A thread takes every so many elements of a reduction, then the states of a team are combined, after
which all of its threads know the result. What follows (the rest of the kernel's loops: a row that
is normalised) is shared in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from thalweg.codegen.cuda.loops.combine import Combination
from thalweg.codegen.cuda.loops.emit import GridComputation, GridEmitter
from thalweg.codegen.cuda.loops.mapping import MIN_SHARED_TERMS, STRAIGHT
from thalweg.codegen.llvm.builder import I32, I64, Builder, Value, constant
from thalweg.codegen.loops.compute import Computation, bodies_of, split_states, start_states
from thalweg.codegen.loops.facts import extent_of
from thalweg.codegen.loops.lanes import Slots, flat, like
from thalweg.codegen.loops.plan import Plan
from thalweg.codegen.loops.scope import Frame, Scope
from thalweg.codegen.math.reductions import accumulator_of
from thalweg.ir.expr import Reduce, Variable
from thalweg.ir.kernel import Check, Store

_UNROLLED = 4  # vectors of a long row that a thread has at once


class TeamEmitter(GridEmitter):
    """A kernel in which teams of threads have an item each."""

    item: Scope | None = None  # what is done here, all threads of a team do together

    def write(self) -> None:
        b, m, grid = self._b, self.mapping, self._grid
        thread, team, side = grid.thread(), constant(I32, m.team), constant(I32, m.side)
        if m.kind == "row":
            member, beside = b.binary("urem", thread, team), b.binary("udiv", thread, team)
        else:
            member, beside = b.binary("udiv", thread, side), b.binary("urem", thread, side)
        self.member = self._wide(member)
        self.combination = Combination(m, self._builder, grid, thread, member, beside)
        first = self._times(self._wide(grid.block()), constant(I64, m.side))
        step = self._times(self._wide(grid.blocks()), constant(I64, m.side))
        count = self.count(m.items, m.item_width)
        if m.kind == "row":
            # The threads of a warp have the same item, and those of a block if a team is a block.
            first = self._plus(first, self._wide(beside))
            with b.loop(first, count, step) as loop:
                self._item(loop.index, None)
        else:
            with b.loop(first, count, step) as loop:
                number = self._plus(loop.index, self._wide(beside))
                inside = b.compare("slt", number, count)
                last = b.binary("sub", count, constant(I64, 1))
                self._item(b.select(inside, number, last), inside)

    def _evaluation(self) -> Computation:
        return TeamComputation(self, self._plan, self._b, self._frame)

    def _item(self, number: Value, inside: Value | None) -> None:
        """An item; where it is not `inside`, threads only take part in what a block does."""
        m, b = self.mapping, self._b
        values = self.digits(number, m.items, m.item_width)
        plain = self._root.bind(values)
        self.item = plain
        if m.kind == "column" and m.vector is not None and m.width > 1:
            outer = {v: value for v, value in values.items() if v is not m.vector}
            self.item = self._root.bind(outer).spread(m.vector, m.width, [values[m.vector]])
        self._prepare(self.item, self._works)
        own = [work for work in self._works if set(work.variables) <= set(m.items)]
        whole = [work for work in own if set(m.items) <= set(work.variables)]
        shared = [work for work in self._works if work not in own]
        with b.when(inside) if inside is not None else nullcontext():
            with b.when(b.compare("eq", self.member, constant(I64, 0))):
                self._perform(self.item.bind({}), whole)
                self._partial(self.item, plain, values, [w for w in own if w not in whole])
            if shared:
                self._rest(plain, values, shared)

    # What a team shares after its reductions

    def _rest(
        self, plain: Scope, values: dict[Variable, Value], works: Sequence[Check | Store]
    ) -> None:
        m, b = self.mapping, self._b
        in_lanes = m.kind == "row" and m.vector is not None
        width = m.width if in_lanes else 1
        first = self._times(self.member, constant(I64, width))
        step, count = m.team * width, self.count(m.rest)
        straight = _iterations(m.rest, step) if in_lanes else None
        if straight is not None and straight <= STRAIGHT:
            starts = [self._plus(first, constant(I64, n * step)) for n in range(straight)]
            self._rest_at(plain, values, works, starts)
            return
        with b.loop(first, count, constant(I64, step)) as loop:
            self._rest_at(plain, values, works, [loop.index])

    def _rest_at(
        self,
        plain: Scope,
        values: dict[Variable, Value],
        works: Sequence[Check | Store],
        starts: Sequence[Value],
    ) -> None:
        m, item = self.mapping, self.item
        assert item is not None
        if len(starts) > 1:
            (variable,) = m.rest
            scope, places = item.spread(variable, m.width, starts), {variable: starts[0]}
        else:
            places = self._places(starts[0])
            scope = self._in_lanes(item, places)
        whole = [w for w in works if set(m.form.variables) == set(w.variables)]
        self._prepare(scope, whole)
        self._perform(scope, whole)
        others = [work for work in works if work not in whole]
        self._partial(scope, plain.bind(places), values | places, others)

    def _places(self, number: Value) -> dict[Variable, Value]:
        return self.digits(number, self.mapping.rest)

    def _in_lanes(self, item: Scope, places: dict[Variable, Value]) -> Scope:
        m = self.mapping
        if m.kind != "row" or m.vector is None or m.width == 1:
            return item.bind(places)
        outer = {v: value for v, value in places.items() if v is not m.vector}
        return (item.bind(outer) if outer else item).spread(m.vector, m.width, [places[m.vector]])


class TeamComputation(GridComputation):
    """Values, of which a team's threads reduce together what they know as one item."""

    def __init__(self, emitter: TeamEmitter, plan: Plan, builder: Builder, frame: Frame) -> None:
        super().__init__(plan, builder, frame)
        self._emitter, self._map = emitter, emitter.mapping

    def _reduce(self, scope: Scope, group: Sequence[Reduce]) -> None:
        terms = 1
        for variable in group[0].variables:
            terms *= int(variable.extent)
        if scope is not self._emitter.item or terms < MIN_SHARED_TERMS:
            super()._reduce(scope, group)
            return
        self.ready(scope, bodies_of(group))
        slots = self._row(scope, group) if self._map.kind == "row" else self._columns(scope, group)
        for copy, slot in zip(scope.copies, slots, strict=True):
            for expr, state in split_states(group, slot):
                copy.remember(expr, accumulator_of(expr).result(self._b, state))

    def _row(self, scope: Scope, group: Sequence[Reduce]) -> Slots:
        b, m, emitter = self._b, self._map, self._emitter
        lane = m.reduced if m.reduced in group[0].variables else group[0].variables[-1]
        assert lane is not None
        variables = (*(v for v in group[0].variables if v is not lane), lane)
        width = m.width if lane is m.reduced else 1
        step = m.team * width
        iterations = _iterations(variables, step)
        copies = _copies(iterations)

        def take(index: Value, carried: Slots) -> Slots:
            if len(variables) > 1:
                places = emitter.digits(index, variables)
                outer = scope.bind({v: x for v, x in places.items() if v is not lane})
                inner = outer.spread(lane, width, [places[lane]])
            else:
                starts = [b.binary("add", index, constant(I64, n * step)) for n in range(copies)]
                inner = scope.spread(lane, width, starts)
            return self._take(inner, group, carried, [{}])

        first = b.binary("mul", emitter.member, constant(I64, width))
        start = [start_states(group, width) for _ in range(copies)]
        if iterations == copies:
            done = take(first, start)
        else:
            count = emitter.count(variables)
            with b.loop(first, count, constant(I64, copies * step), flat(start)) as loop:
                loop.next = flat(take(loop.index, like(start, loop.carried)))
            done = like(start, loop.results)
        return [emitter.combination.row(group, self._merged(group, done))]

    def _columns(self, scope: Scope, group: Sequence[Reduce]) -> Slots:
        b, m, emitter = self._b, self._map, self._emitter
        variables = group[0].variables
        start = [start_states(group, copy.lanes) for copy in scope.copies]
        count = emitter.count(variables)
        with b.loop(emitter.member, count, constant(I64, m.team), flat(start)) as loop:
            inner = scope.bind(emitter.digits(loop.index, variables))
            loop.next = flat(self._take(inner, group, like(start, loop.carried), [{}]))
        slots = like(start, loop.results)
        return [emitter.combination.columns(group, slot) for slot in slots]


def _iterations(variables: Sequence[Variable], step: int) -> int | None:
    """How many iterations a loop over one variable has for every thread, if that is one number."""
    count = extent_of(variables[0]) if len(variables) == 1 else None
    return None if count is None or not count or count % step else count // step


def _copies(iterations: int | None) -> int:
    """How many vectors a thread reduces side by side."""
    if iterations is None:
        return 1
    if iterations <= STRAIGHT:
        return iterations
    return _UNROLLED if iterations % _UNROLLED == 0 else 1
