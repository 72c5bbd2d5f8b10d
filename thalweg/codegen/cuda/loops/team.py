"""Kernels whose long reductions are shared by teams of threads: a team per row, or column.

The threads of a team reduce strided elements, then their states are combined, after which all of
them have the result. The rest of the kernel's loops (the normalisation of a row, for example) is
shared in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from thalweg.codegen.cuda.loops import online
from thalweg.codegen.cuda.loops.combine import Combination
from thalweg.codegen.cuda.loops.emit import GridEmitter
from thalweg.codegen.cuda.loops.mapping import (
    MIN_UNROLLED,
    STRAIGHT,
    UNROLLED,
    is_shared,
    terms_of,
    typical,
)
from thalweg.codegen.cuda.loops.rows import Rows
from thalweg.codegen.cuda.loops.split import Phase
from thalweg.codegen.llvm.builder import I32, I64, Builder, Type, Value, constant
from thalweg.codegen.loops.compute import bodies_of
from thalweg.codegen.loops.lanes import (
    BlockTotals,
    Slots,
    flatten,
    initial_states,
    unflatten,
)
from thalweg.codegen.loops.scope import Scope
from thalweg.codegen.loops.simplify import static_extent
from thalweg.codegen.math.elements import State, accumulator_of
from thalweg.ir.expr import Load, Reduce, Variable
from thalweg.ir.kernel import Check, Store
from thalweg.ir.rewrite import outside_reductions

_MIN_CHAINS = 8  # independent chains of additions
_MIN_COMPENSATED = 256  # terms of a thread's sum from which it is compensated


class TeamEmitter(GridEmitter):
    """The emitter of kernels in which each team of threads has an item."""

    item: Scope | None = None  # the scope that all threads of a team share
    phase: Phase | None = None  # of split reductions

    def write(self) -> None:
        b, m, grid = self.b, self.mapping, self._grid
        thread, team, side = grid.thread(), constant(I32, m.team), constant(I32, m.side)
        if m.kind == "row":
            member, beside = b.binary("urem", thread, team), b.binary("udiv", thread, team)
        else:
            member, beside = b.binary("udiv", thread, side), b.binary("urem", thread, side)
        self.member = self._wide(member)
        self.combination = Combination(m, self._builder, grid, thread, member, beside)
        self.rows = Rows(m, self._builder, grid)
        first = self._times(self._wide(grid.block()), constant(I64, m.side))
        step = self._times(self._wide(grid.blocks()), constant(I64, m.side))
        count = self.count(m.items, m.item_width)
        if m.kind == "row":
            # The item is uniform over a warp, and over a block if a team is a block.
            first = self._plus(first, self._wide(beside))
            with b.loop(first, count, step) as loop:
                self._item(loop.index, None)
        else:
            with b.loop(first, count, step) as loop:
                number = self._plus(loop.index, self._wide(beside))
                inside = b.compare("slt", number, count)
                last = b.binary("sub", count, 1)
                self._item(b.select(inside, number, last), inside)

    def _item(self, number: Value, inside: Value | None) -> None:
        """Emit an item; if it is not `inside`, threads only take part in synchronization."""
        m, b = self.mapping, self.b
        self.number, self.inside = number, inside
        values = self.digits(number, m.items, m.item_width)
        plain = self._root.bind(values)
        self.item = plain
        if m.kind == "column" and m.vector is not None and m.width > 1:
            outer = {v: value for v, value in values.items() if v is not m.vector}
            self.item = self._root.bind(outer).vectorize(m.vector, m.width, [values[m.vector]])
        if self.phase is not None and self.phase.is_first:
            self.hoist(self.item, list(self.phase.split.rows))
            return
        self._hoist_statements(self.item, self._statements)
        own = [work for work in self._statements if set(work.variables) <= set(m.items)]
        whole = [work for work in own if set(m.items) <= set(work.variables)]
        shared = [work for work in self._statements if work not in own]
        with b.when(inside):
            with b.when(b.compare("eq", self.member, 0)):
                self._execute(self.item.bind({}), whole)
                self._partial(self.item, plain, values, [w for w in own if w not in whole])
            if _overwrites(shared, own):
                self._team_barrier()
            if shared:
                self._rest(plain, values, shared)

    def _team_barrier(self) -> None:
        """Synchronize the threads of the team: a block, or a part of a warp."""
        self._grid.barrier() if self.mapping.side == 1 else self._grid.warp_barrier()

    def part(self) -> Value:
        """The part of split reductions that the block computes."""
        return self._wide(self._grid.block("y"))

    # The rest of the loops, shared by a team

    def _rest(
        self, plain: Scope, values: dict[Variable, Value], works: Sequence[Check | Store]
    ) -> None:
        m, b = self.mapping, self.b
        in_lanes = m.kind == "row" and m.vector is not None
        width = m.width if in_lanes else 1
        first = self._times(self.member, constant(I64, width))
        step, count = m.team * width, self.count(m.rest)
        straight = _iterations(m.rest, step) if in_lanes else None
        if straight is not None and straight <= STRAIGHT:
            starts = [self._plus(first, constant(I64, n * step)) for n in range(straight)]
            self._rest_at(plain, values, works, starts)
            return
        if in_lanes and len(m.rest) == 1 and typical(m.rest[0].extent) >= UNROLLED * step:
            last = b.binary("sub", count, (UNROLLED - 1) * step)
            stride = constant(I64, UNROLLED * step)
            with b.loop(first, last, stride, [first]) as loop:
                starts = [self._plus(loop.index, constant(I64, n * step)) for n in range(UNROLLED)]
                self._rest_at(plain, values, works, starts)
                loop.next = [self._plus(loop.index, stride)]
            (first,) = loop.results
        with b.loop(first, count, step) as loop:
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
            scope, places = item.vectorize(variable, m.width, starts), {variable: starts[0]}
        else:
            places = self._places(starts[0])
            scope = self._in_lanes(item, places)
        whole = [w for w in works if set(m.form.variables) == set(w.variables)]
        self.rows.recall(scope)
        self._hoist_statements(scope, whole)
        self._execute(scope, whole)
        others = [work for work in works if work not in whole]
        self._partial(scope, plain.bind(places), values | places, others)

    def _places(self, number: Value) -> dict[Variable, Value]:
        return self.digits(number, self.mapping.rest)

    def _in_lanes(self, item: Scope, places: dict[Variable, Value]) -> Scope:
        m = self.mapping
        if m.kind != "row" or m.vector is None or m.width == 1:
            return item.bind(places)
        outer = {v: value for v, value in places.items() if v is not m.vector}
        return (item.bind(outer) if outer else item).vectorize(
            m.vector, m.width, [places[m.vector]]
        )

    # Reductions, shared by a team

    def _reduce(self, scope: Scope, group: Sequence[Reduce]) -> None:
        if scope is not self.item or not is_shared(group[0], self.mapping.form):
            super()._reduce(scope, group)
            return
        for most in [expr for expr in group if expr in self._powers]:
            self._reduce_online(scope, most, self._powers[most])
        group = [expr for expr in group if not scope.vectors[0].has_value(expr)]
        if not group:
            return
        phase = self.phase
        if phase is None or phase.is_first:
            self.hoist(scope, bodies_of(group))
            slots = self._thread_states(scope, group)
        else:
            slots = [self._parts(phase, group, copy.lanes) for copy in scope.vectors]
        combination = self.combination
        combine = combination.row if self.mapping.kind == "row" else combination.columns
        slots = [combine(group, slot) for slot in slots]
        if phase is not None and phase.is_first:
            self._keep(phase, group, slots)
        self._define_results(scope, group, slots)

    # Maxima with sums of exponentials

    def _reduce_online(self, scope: Scope, most: Reduce, total: Reduce) -> None:
        b, width, (lane,) = self.b, self.mapping.width, most.variables
        rows = self.rows
        self.hoist(scope, [most.body])
        step = self.mapping.team * width

        def take(index: Value, state: Sequence[Value], vectors: int) -> list[Value]:
            starts = [b.binary("add", index, n * step) for n in range(vectors)]
            inner = scope.vectorize(lane, width, starts)
            rows.keep(inner)
            self.hoist(inner, [most.body])
            elements = [copy.value_as(most.body, most.dtype, copy.tail) for copy in inner.vectors]
            return online.taken(b, state, elements)

        first = b.binary("mul", self.member, width)
        end, state = self.count(most.variables), online.start()
        last = b.binary("sub", end, (UNROLLED - 1) * step)
        stride = constant(I64, UNROLLED * step)
        with b.loop(first, last, stride, [first, *state]) as loop:
            after = take(loop.index, loop.carried[1:], UNROLLED)
            loop.next = [b.binary("add", loop.index, stride), *after]
        first, *state = loop.results
        with b.loop(first, end, step, state) as loop:
            loop.next = take(loop.index, loop.carried, 1)
        ((largest,),) = self.combination.row([most], [loop.results[:1]])
        powers = online.finished(b, loop.results, largest)
        ((summed,),) = self.combination.row([total], [[powers]])
        for copy in scope.vectors:
            copy.define(most, largest)
            copy.define(total, summed)

    # Shares of a reduction

    def _thread_states(self, scope: Scope, group: Sequence[Reduce]) -> Slots:
        """The states of this thread, for each copy."""
        if self.mapping.kind == "row":
            return [self._merge_lanes(group, self._row(scope, group))]
        return self._columns(scope, group)

    def _first(self) -> Value:
        """The index of this thread among those that share a reduction."""
        if self.phase is None:
            return self.member
        team = constant(I64, self.mapping.team)
        return self.b.binary("add", self.b.binary("mul", self.part(), team), self.member)

    @property
    def _sharing(self) -> int:
        """The number of threads that share a reduction."""
        phase = self.phase
        return self.mapping.team * (1 if phase is None else phase.split.parts)

    def _row(self, scope: Scope, group: Sequence[Reduce]) -> Slots:
        b, m = self.b, self.mapping
        lane = m.reduced if m.reduced in group[0].variables else group[0].variables[-1]
        assert lane is not None
        variables = (*(v for v in group[0].variables if v is not lane), lane)
        width = m.width if lane is m.reduced else 1
        step = self._sharing * width
        iterations = _iterations(variables, step)
        copies = _copies(iterations)

        def take(index: Value, carried: Slots) -> Slots:
            if len(variables) > 1:
                places = self.digits(index, variables)
                outer = scope.bind({v: x for v, x in places.items() if v is not lane})
                inner = outer.vectorize(lane, width, [places[lane]])
            else:
                starts = [b.binary("add", index, n * step) for n in range(copies)]
                inner = scope.vectorize(lane, width, starts)
            return self._accumulate(inner, group, carried, [{}])

        first = b.binary("mul", self._first(), width)
        start = [initial_states(group, width) for _ in range(copies)]
        if iterations == copies:
            return take(first, start)
        count = self.count(variables)
        if copies == 1:
            return self._strided(group, (first, count, step), start, take, width)
        with b.loop(first, count, copies * step, flatten(start)) as loop:
            loop.next = flatten(take(loop.index, unflatten(start, loop.carried)))
        return unflatten(start, loop.results)

    def _columns(self, scope: Scope, group: Sequence[Reduce]) -> Slots:
        variables = group[0].variables
        start = [initial_states(group, copy.lanes) for copy in scope.vectors]

        def take(index: Value, carried: Slots) -> Slots:
            inner = scope.bind(self.digits(index, variables))
            return self._accumulate(inner, group, carried, [{}])

        span = self._first(), self.count(variables), self._sharing
        return self._strided(group, span, start, take)

    def _strided(
        self,
        group: Sequence[Reduce],
        span: tuple[Value, Value, int],
        start: Slots,
        take: Callable[[Value, Slots], Slots],
        width: int = 1,
    ) -> Slots:
        """The states after the strided elements of a span (first, end, step). Long loops are
        unrolled, so that several loads are in flight; the remainder loads the last `width` elements
        in place of those beyond the end."""
        b, (first, end, step) = self.b, span
        if not _is_long(group[0], MIN_UNROLLED * step):
            with b.loop(first, end, step, flatten(start)) as loop:
                loop.next = flatten(take(loop.index, unflatten(start, loop.carried)))
            return unflatten(start, loop.results)
        first, start = self._several(group, (first, end, step), start, take)
        last = b.binary("sub", end, width)

        def left() -> list[Value]:
            slots = start
            for number in range(UNROLLED - 1):
                index = b.binary("add", first, number * step)
                inside = b.compare("slt", index, end)
                taken = flatten(take(b.select(inside, index, last), slots))
                pairs = zip(taken, flatten(slots), strict=True)
                slots = unflatten(start, [_where(b, inside, new, old) for new, old in pairs])
            return flatten(slots)

        is_left = b.compare("slt", first, end)
        return unflatten(start, b.choose_all(is_left, left, lambda: flatten(start)))

    def _several(
        self,
        group: Sequence[Reduce],
        span: tuple[Value, Value, int],
        start: Slots,
        take: Callable[[Value, Slots], Slots],
    ) -> tuple[Value, Slots]:
        """The unrolled loop: its end, and the states there. Of long sums, each run starts from zero
        and is added to the total with compensation for rounding. The elements of a run have
        separate states, unless the lanes are enough independent chains."""
        b, (first, end, step) = self.b, span
        totals = BlockTotals(b, group)
        kept = totals.is_compensated and _is_long(group[0], _MIN_COMPENSATED * step)
        chained = not kept and sum(value.type.lanes for value in flatten(start)) >= _MIN_CHAINS
        side = [slot for _ in range(UNROLLED) for slot in start]
        carried = totals.start(start) if kept else start if chained else side
        last = b.binary("sub", end, (UNROLLED - 1) * step)
        stride = constant(I64, UNROLLED * step)
        with b.loop(first, last, stride, [first, *flatten(carried)]) as loop:
            before, after = unflatten(carried, loop.carried[1:]), Slots()
            slots = side if kept else before
            for number in range(UNROLLED):
                index = b.binary("add", loop.index, number * step)
                place = 0 if chained else number * len(start)
                taken = take(index, slots[place : place + len(start)])
                after, slots = ([], taken) if chained else (after + taken, slots)
            after = slots if chained else after
            if kept:
                after = totals.add_block(before, self._side_by_side(group, after, len(start)))
            loop.next = [b.binary("add", loop.index, stride), *flatten(after)]
        done = unflatten(carried, loop.results[1:])
        if kept:
            return loop.results[0], totals.states(done)
        if chained:
            return loop.results[0], done
        return loop.results[0], self._side_by_side(group, done, len(start))

    def _side_by_side(self, group: Sequence[Reduce], slots: Slots, copies: int) -> Slots:
        """Combine the states of several elements, for each copy."""
        return [self._merge_slots(group, slots[copy::copies]) for copy in range(copies)]

    # Reductions in parts

    def _keep(self, phase: Phase, group: Sequence[Reduce], slots: Slots) -> None:
        """Store the states of a team in scratch memory."""
        b = self.b
        first = b.compare("eq", self.member, 0)
        if self.inside is not None:
            first = b.binary("and", first, self.inside)
        part = self.part()
        with b.when(first):
            for slot in slots:
                for expr, state in zip(group, slot, strict=True):
                    for number, value in enumerate(state):
                        for lane in range(value.type.lanes):
                            one = b.extract(value, lane)
                            b.store(one, self._cell(phase, expr, number, part, lane))

    def _parts(self, phase: Phase, group: Sequence[Reduce], lanes: int) -> list[State]:
        """This thread's share of the states that the first launch stored."""
        b, m, count = self.b, self.mapping, phase.split.parts
        start = initial_states(group, lanes)
        if count > STRAIGHT * m.team:
            with b.loop(self.member, count, m.team, flatten([start])) as loop:
                (slot,) = unflatten([start], loop.carried)
                loop.next = flatten([self._with_part(phase, group, slot, loop.index)])
            return unflatten([start], loop.results)[0]
        slots = Slots()
        for first in range(0, count, m.team):
            part = b.binary("add", self.member, first)
            slots.append(self._optional_part(phase, group, part, start, first + m.team <= count))
        return self._merge_slots(group, slots)

    def _optional_part(
        self,
        phase: Phase,
        group: Sequence[Reduce],
        part: Value,
        start: list[State],
        is_certain: bool,
    ) -> list[State]:
        """The state of a part, or the identity if there is no such part."""
        if is_certain:
            return self._with_part(phase, group, start, part)
        b, last = self.b, constant(I64, phase.split.parts - 1)
        inside = b.compare("ule", part, last)
        found = self._with_part(phase, group, start, b.select(inside, part, last))
        pairs = zip(flatten([found]), flatten([start]), strict=True)
        return unflatten([start], [_where(b, inside, one, none) for one, none in pairs])[0]

    def _with_part(
        self, phase: Phase, group: Sequence[Reduce], slot: Sequence[State], part: Value
    ) -> list[State]:
        return [
            accumulator_of(expr).merge(self.b, state, self._left(phase, expr, state, part))
            for expr, state in zip(group, slot, strict=True)
        ]

    def _left(
        self, phase: Phase, expr: Reduce, like_state: Sequence[Value], part: Value
    ) -> list[Value]:

        def loaded(number: int, kind: Type, lane: int) -> Value:
            return self.b.load(kind.of(1), self._cell(phase, expr, number, part, lane))

        kinds = [value.type for value in like_state]
        return [self.b.from_lanes(kind, partial(loaded, n, kind)) for n, kind in enumerate(kinds)]

    def _cell(self, phase: Phase, expr: Reduce, number: int, part: Value, lane: int) -> Value:
        """The address of a value of an item's state."""
        b, split = self.b, phase.split
        item = b.binary("mul", self.number, self.mapping.item_width)
        row = b.binary("mul", part, split.elements)
        place = b.binary("add", b.binary("add", row, item), lane)
        place = b.binary("add", place, split.row(expr, number))
        return b.element(phase.scratch, "i64", place)


def _overwrites(later: Sequence[Check | Store], works: Sequence[Check | Store]) -> bool:
    """Whether later works store to buffers that others load from."""
    stored = {work.buffer for work in later if isinstance(work, Store)}
    roots = [root for work in works for root in work.roots]
    loads = [part for part in outside_reductions(roots) if isinstance(part, Load)]
    return any(load.buffer in stored for load in loads)


def _where(b: Builder, condition: Value, chosen: Value, otherwise: Value) -> Value:
    """One of two values, in all lanes."""
    return b.select(b.splat(condition, chosen.type.lanes), chosen, otherwise)


def _is_long(expr: Reduce, terms: int) -> bool:
    """Whether a reduction has at least `terms` terms, or may have."""
    return terms_of(expr) >= terms or any(static_extent(v) is None for v in expr.variables)


def _iterations(variables: Sequence[Variable], step: int) -> int | None:
    """The iterations of each thread in a loop over one variable, if the number is uniform."""
    count = static_extent(variables[0]) if len(variables) == 1 else None
    return None if count is None or not count or count % step else count // step


def _copies(iterations: int | None) -> int:
    """The number of vectors that a thread reduces in an unrolled iteration."""
    if iterations is None:
        return 1
    if iterations <= STRAIGHT:
        return iterations
    return UNROLLED if iterations % UNROLLED == 0 else 1
