"""Emission of a loop kernel's expressions, hoisted out of all loops that they are invariant in.

Expressions and a scope come in; instructions go out, and the scope then holds the values.
Independent reductions over the same variables share one loop. Long expressions of a reduction that
are needed again are spilled to memory.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

from thalweg.codegen.llvm.builder import I64, Builder, Loop, Value, constant
from thalweg.codegen.loops.lanes import (
    BlockSplit,
    BlockTotals,
    LoopBody,
    Slots,
    Span,
    VectorLoop,
    block_split,
    flatten,
    initial_states,
    map_states,
    unflatten,
)
from thalweg.codegen.loops.plan import BLOCK, Plan, is_long, vector_width
from thalweg.codegen.loops.scope import KernelContext, LaneScope, Scope, Spill
from thalweg.codegen.loops.simplify import static_extent
from thalweg.codegen.math.conversion import register_type
from thalweg.codegen.math.elements import Accumulator, State, accumulator_of
from thalweg.ir.dynamic import is_static
from thalweg.ir.expr import Const, Expr, Reduce, Select
from thalweg.ir.kernel import Argument
from thalweg.ir.loop import Variable
from thalweg.ir.rewrite import free_variables, outside_reductions, postorder

_MAX_SPILLED, _PADDED = 1 << 13, 64  # elements: in L1; whole vectors
_REDUCED_COPIES = 4  # interleaved accumulators: an addition has a latency of four cycles
_REDUCED_PARTS = 32  # least partial sums: narrow vectors round no worse than wide ones
# Terms of a block of a sum, vectorized along it or not: shorter blocks are slower in L1.
_LANE_BLOCK, _COLUMN_BLOCK = 128, 256


@dataclass(frozen=True)
class ReductionNest:
    """The loops of a group of reductions, outermost first. `inside` accumulates the elements of an
    iteration; the innermost loop is vectorized if `lanes` is given."""

    variables: tuple[Variable, ...]
    group: Sequence[Reduce]
    inside: LoopBody
    lanes: VectorLoop | None = None

    @property
    def bodies(self) -> list[Expr]:
        """The reduced expressions."""
        return bodies_of(self.group)

    @property
    def iterations(self) -> list[int | None]:
        """The static trip count of each loop, or None."""
        counts = enumerate(map(static_extent, self.variables))
        return [count if count is None else -(-count // self.unit(n)) for n, count in counts]

    def unit(self, number: int) -> int:
        """How many values of variable `number` one iteration covers."""
        is_last = number == len(self.variables) - 1
        return self.lanes.block if self.lanes is not None and is_last else 1


class ExpressionEmitter(KernelContext):
    """Emits the expressions of a kernel."""

    def __init__(
        self,
        plan: Plan,
        b: Builder,
        pointers: Mapping[Argument, Value],
        words: Mapping[int, Value],
        fault: Value,
    ) -> None:
        super().__init__(b, pointers, words)
        self._plan, self._fault_word = plan, fault
        self._reduced = plan.form.every(Reduce)
        self._outside = outside_reductions(plan.form.roots)
        self._long = _long_expressions(plan.form.parts)

    def extent(self, variable: Variable) -> Value:
        """The extent of a variable."""
        for inner, blocks in self._plan.blocks.items():
            if variable is blocks:
                return self.ceil_div(self.extent(inner), BLOCK)
        return self.integer(variable.extent)

    def hoist(self, scope: Scope, certain: Sequence[Expr], perhaps: Sequence[Expr] = ()) -> None:
        """Compute the parts of expressions that are invariant in inner loops. Those of `certain`
        are computed in any case, those of `perhaps` only if they may be speculated."""
        found = self._hoistable(scope, certain, perhaps)
        for group in self._reduction_groups(scope, found):
            self._reduce(scope, group)
        for expr in found:
            for vector in scope.vectors:
                vector.scalar_or_vector(expr, vector.tail)

    def _hoistable(
        self, scope: Scope, certain: Sequence[Expr], perhaps: Sequence[Expr]
    ) -> list[Expr]:
        """The largest parts that are computable in a scope and safe to compute there."""
        bound, result = scope.bound_variables, dict[Expr, None]()
        roots = [*((r, True) for r in certain), *((r, False) for r in perhaps)]
        for expr, sure in _walk(roots, lambda expr: free_variables(expr) <= bound):
            if free_variables(expr) <= bound and (sure or self.speculatable.of(expr)):
                result[expr] = None
        return list(result)

    def _reduction_groups(self, scope: Scope, found: Sequence[Expr]) -> list[list[Reduce]]:
        """The reductions to compute here, grouped by the loops they share, inner ones first."""
        depths: dict[Expr, int] = {}
        groups: dict[Any, list[Reduce]] = {}
        for expr in self._reductions(scope, found):
            inner = [depths[part] for part in postorder([expr.body]) if part in depths]
            depths[expr] = 1 + max(inner, default=0)
            groups.setdefault((depths[expr], expr.variables), []).append(expr)
        return [groups[key] for key in sorted(groups, key=lambda key: key[0])]

    def _reductions(self, scope: Scope, found: Sequence[Expr]) -> list[Reduce]:
        bound, has_value = scope.bound_variables, scope.vectors[0].has_value
        chosen = {
            expr
            for expr, sure in _walk([(expr, True) for expr in found], has_value)
            if isinstance(expr, Reduce)
            and free_variables(expr) <= bound
            and (sure or self.speculatable.of(expr))
            and not has_value(expr)
        }
        return [expr for expr in postorder(found) if isinstance(expr, Reduce) and expr in chosen]

    # Reductions

    def reduce_masked(self, vector: LaneScope, expr: Reduce, mask: Value | None) -> Value:
        """The value of a reduction in the lanes of a mask."""

        def reduced() -> Value:
            inner = vector.nested({}, mask)
            self._reduce(Scope((inner,)), [expr])
            return inner.value(expr, mask)

        return vector.where_any(mask, expr.dtype, reduced)

    def _reduce(self, scope: Scope, group: Sequence[Reduce]) -> None:
        """Compute reductions over the same variables in one loop nest and define their values."""
        variables = group[0].variables
        self.hoist(scope, bodies_of(group))
        # A reduction is vectorized where no variable is yet.
        lane = self._plan.reduction_lanes.get(variables) if scope.lanes == 1 else None
        spilled = self._allocate_spills(scope, group)

        def accumulate(inner: Scope, slots: Slots) -> Slots:
            return self._accumulate(inner, group, slots, spilled)

        if lane is None or (is_static(lane.extent) and lane.extent < 4):
            start = [initial_states(group, vector.lanes) for vector in scope.vectors]
            slots = self._reduce_nest(
                scope, ReductionNest(variables, group, accumulate), start, _COLUMN_BLOCK
            )
        else:
            slots = self._reduce_in_lanes(scope, group, lane, accumulate)
        self._define_results(scope, group, slots)
        for vector, memory in zip(scope.vectors, spilled, strict=True):
            vector.spilled |= memory

    def _define_results(self, scope: Scope, group: Sequence[Reduce], slots: Slots) -> None:
        """Define the values of reductions, given their final states."""
        for vector, slot in zip(scope.vectors, slots, strict=True):
            for expr, state in zip(group, slot, strict=True):
                vector.define(expr, accumulator_of(expr).result(self.b, state))

    def _allocate_spills(self, scope: Scope, group: Sequence[Reduce]) -> list[dict[Expr, Spill]]:
        """Allocate a stack slot, per lane scope, for each long expression that is reused."""
        variable, *others = group[0].variables
        count = static_extent(variable)
        if not self._long or others or count is None or count * scope.lanes > _MAX_SPILLED:
            return [{} for _ in scope.vectors]
        chosen = self._reused_expressions(group, variable, scope.bound_variables | {variable})
        return [
            {expr: self._spill_slot(expr, variable, count, vector.lanes) for expr in chosen}
            for vector in scope.vectors
        ]

    def _reused_expressions(
        self, group: Sequence[Reduce], variable: Variable, bound: frozenset[Variable]
    ) -> list[Expr]:
        """The largest long expressions of a group of reductions that are needed elsewhere too."""
        others = [expr for expr in self._reduced if expr not in group]
        again = (self._outside | set(postorder(bodies_of(others)))) & self._long
        pending, result = bodies_of(group), dict[Expr, None]()
        while pending:
            expr = pending.pop()
            free = free_variables(expr)
            is_number = expr.dtype.kind != "b"
            if expr in again and variable in free and free <= bound and is_number:
                result[expr] = None
            elif expr in self._long and not isinstance(expr, Reduce):
                pending += expr.parts
        return list(result)

    def _spill_slot(self, expr: Expr, variable: Variable, count: int, lanes: int) -> Spill:
        kind = register_type(expr.dtype, lanes)
        return Spill(self.b.stack(kind, -(-count // _PADDED) * _PADDED), variable, kind)

    def _reduce_nest(self, scope: Scope, nest: ReductionNest, start: Slots, block: int) -> Slots:
        """The final states of a nest, summed in blocks where sums are long."""
        totals = BlockTotals(self.b, nest.group)
        split = block_split(nest.iterations, block) if totals.is_compensated else None
        if split is None:
            return self._merge_vectors(nest, self._loop_nest(scope, nest, start))
        if not split.is_certain:
            return self._reduce_perhaps_blocked(scope, nest, start, split)
        inside = replace(nest, variables=nest.variables[split.position :])

        def at_cut(inner: Scope, kept: Slots) -> Slots:
            with self._block_loop(nest, split, flatten(kept)) as (loop, span):
                states = self._loop_nest(inner, inside, start, span)
                taken = totals.add_block(
                    unflatten(kept, loop.carried), self._merge_vectors(nest, states)
                )
                loop.next = flatten(taken)
            return unflatten(kept, loop.results)

        outside = ReductionNest(nest.variables[: split.position], nest.group, at_cut)
        kept = totals.start(_merged_slots(nest, start))
        return totals.states(self._loop_nest(scope, outside, kept))

    def _reduce_perhaps_blocked(
        self, scope: Scope, nest: ReductionNest, start: Slots, split: BlockSplit
    ) -> Slots:
        """The same where there may be a single block at run time, which then needs no totals."""
        b, totals = self.b, BlockTotals(self.b, nest.group)
        none = totals.start(_merged_slots(nest, start))
        count = self.extent(nest.variables[0])
        with self._block_loop(nest, split, flatten(none + start)) as (loop, span):
            kept = unflatten(none, loop.carried)
            after = self._loop_nest(scope, nest, start, span)
            taken = b.choose_all(
                b.compare("slt", span[1], count),
                lambda: flatten(totals.add_block(kept, self._merge_vectors(nest, after))),
                lambda: flatten(kept),
            )
            loop.next = [*taken, *flatten(after)]
        slots = unflatten(none + start, loop.results)
        kept, joined = slots[: len(none)], self._merge_vectors(nest, slots[len(none) :])
        several = b.compare("sgt", count, split.size * nest.unit(split.position))
        values = b.choose_all(
            several,
            lambda: flatten(totals.states(totals.add_block(kept, joined))),
            lambda: flatten(joined),
        )
        return unflatten(joined, values)

    @contextmanager
    def _block_loop(
        self, nest: ReductionNest, split: BlockSplit, carried: Sequence[Value]
    ) -> Generator[tuple[Loop, Span]]:
        """A loop over the blocks of a nest; yields it and the span of a block."""
        count = self.extent(nest.variables[split.position])
        size = split.size * nest.unit(split.position)
        with self.b.loop(0, count, size, carried) as loop:
            yield loop, (loop.index, self.minimum(self.add(loop.index, size), count))

    def _loop_nest(
        self, scope: Scope, nest: ReductionNest, slots: Slots, span: Span | None = None
    ) -> Slots:
        """Emit a loop nest that carries values, its outermost loop over `span`."""
        if not nest.variables:
            return nest.inside(scope, slots)
        first = nest.variables[0]
        span = span or (constant(I64, 0), self.extent(first))
        if nest.lanes is not None and len(nest.variables) == 1:
            return nest.lanes.run(scope, span, nest.inside, slots)
        with self.b.loop(*span, 1, flatten(slots)) as loop:
            inner = scope.bind({first: loop.index})
            self.hoist(inner, nest.bodies)
            carried = unflatten(slots, loop.carried)
            others = replace(nest, variables=nest.variables[1:])
            loop.next = flatten(self._loop_nest(inner, others, carried))
        return unflatten(slots, loop.results)

    def _accumulate(
        self,
        scope: Scope,
        group: Sequence[Reduce],
        slots: Slots,
        spilled: Sequence[dict[Expr, Spill]],
    ) -> Slots:
        """Accumulate the elements of one iteration into the states."""
        self.hoist(scope, bodies_of(group))
        for vector, memory in zip(scope.vectors, cycle(spilled), strict=False):
            for expr, place in memory.items():
                vector.spill(expr, place)
        return [
            [self._accumulated(vector, *pair) for pair in zip(group, slot, strict=True)]
            for vector, slot in zip(scope.vectors, slots, strict=True)
        ]

    def _accumulated(self, vector: LaneScope, expr: Reduce, state: State) -> State:
        variables = expr.variables
        b, accumulator = self.b, accumulator_of(expr)
        element = vector.value_as(expr.body, accumulator.dtype, vector.tail)
        position = element
        if accumulator.row.gives_position:
            position = b.splat(vector.index(variables[0]), vector.lanes)
        after = accumulator.accumulate(b, state, element, position)
        if vector.tail is None or vector.vector not in variables:
            return after
        return [b.select(vector.tail, new, old) for new, old in zip(after, state, strict=True)]

    def _reduce_in_lanes(
        self, scope: Scope, group: Sequence[Reduce], lane: Variable, body: LoopBody
    ) -> Slots:
        """Reduce in interleaved vectors, then merge the partial states in a fixed order."""
        width = vector_width(lane, self._plan.target.lanes)
        copies = self._lane_interleave(lane, width, group)
        loop = VectorLoop(self, lane, width, copies, self._plan.masks_tails)
        others = [v for v in group[0].variables if v is not lane]
        start = [initial_states(group, lanes) for lanes in loop.slot_lanes]
        nest = ReductionNest((*others, lane), group, body, loop)
        return [self._merge_lanes(group, self._reduce_nest(scope, nest, start, _LANE_BLOCK))]

    def _merge_vectors(self, nest: ReductionNest, slots: Slots) -> Slots:
        """Merge the slots of interleaved vectors into one; a scalar slot stays."""
        vectors = [slot for slot in slots if slot[0][0].type.lanes > 1]
        if nest.lanes is None or not vectors:
            return slots
        return [self._merge_slots(nest.group, vectors), *slots[len(vectors) :]]

    def _merge_slots(self, group: Sequence[Reduce], slots: Slots) -> list[State]:
        """Merge the states of several slots."""
        columns = zip(group, *slots, strict=True)
        return [self._merge_tree(accumulator_of(expr), states) for expr, *states in columns]

    def _merge_lanes(self, group: Sequence[Reduce], slots: Slots) -> list[State]:
        """Merge the states of all slots and of all their lanes."""

        def across(accumulator: Accumulator, state: State) -> State:
            return accumulator.reduce_lanes(self.b, state)

        return self._merge_slots(group, [map_states(group, slot, across) for slot in slots])

    def _merge_tree(self, accumulator: Accumulator, states: list[State]) -> State:
        """Merge states pairwise, as a tree."""
        while len(states) > 1:
            odd: list[State] = states[-1:] if len(states) % 2 else []
            pairs = zip(states[::2], states[1::2], strict=False)
            states = [*(accumulator.merge(self.b, one, other) for one, other in pairs), *odd]
        return states[0]

    def _lane_interleave(self, lane: Variable, width: int, group: Sequence[Reduce]) -> int:
        count = static_extent(lane)
        side_by_side = max(_REDUCED_COPIES, _REDUCED_PARTS // self._plan.target.lanes)
        most = max(side_by_side // len(group), 1)
        return most if count is None else max(min(most, count // width), 1)


def _walk(
    roots: Sequence[tuple[Expr, bool]], ends: Callable[[Expr], bool]
) -> list[tuple[Expr, bool]]:
    """The expressions under some roots but constants, and whether each is computed in any case, in
    preorder; nothing inside of an expression that `ends`."""
    pending, seen = [*reversed(roots)], dict[tuple[Expr, bool], None]()
    while pending:
        pair = pending.pop()
        if pair not in seen and not isinstance(pair[0], Const):
            seen[pair] = None
            pending += [] if ends(pair[0]) else reversed(_operands(*pair))
    return list(seen)


def _operands(expr: Expr, sure: bool) -> list[tuple[Expr, bool]]:
    """The parts of an expression, and whether each is computed in any case."""
    if not isinstance(expr, Select):
        return [(part, sure) for part in expr.parts]
    known = sure and isinstance(expr.condition, Const)
    return [(expr.condition, sure), (expr.chosen, known), (expr.otherwise, known)]


def bodies_of(group: Sequence[Reduce]) -> list[Expr]:
    return [expr.body for expr in group]


def _long_expressions(exprs: Sequence[Expr]) -> set[Expr]:
    """The expressions, given parts first, that contain a long one."""
    result = set[Expr]()
    for expr in exprs:
        if is_long(expr) or not result.isdisjoint(expr.parts):
            result.add(expr)
    return result


def _merged_slots(nest: ReductionNest, slots: Slots) -> Slots:
    """Initial slots in the shape of merged ones."""
    vectors = [slot for slot in slots if slot[0][0].type.lanes > 1]
    return slots if nest.lanes is None else [*vectors[:1], *slots[len(vectors) :]]
