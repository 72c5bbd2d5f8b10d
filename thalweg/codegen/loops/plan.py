"""How a loop kernel is run: the order of its loops, its vectors, and what threads share.

What comes in is a kernel in its simplest form; what goes out is a `Plan`. Iterations that may meet
at one element run in order on one thread; of the others, one variable may go into the lanes of
vectors and an outer one is split over the threads. The choice of the vector is by a rough count of
instructions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from thalweg.codegen.loops.simplify import (
    outside_reductions,
    speculation_safety,
    static_extent,
    stride,
    without_scans,
)
from thalweg.codegen.machine import CpuTarget
from thalweg.ir.dynamic import Dynamic
from thalweg.ir.expr import Call, Const, Expr, Index, Load, Reduce, Scan, Variable, Word
from thalweg.ir.functions.table import FUNCTIONS
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Check, Loops, Store
from thalweg.ir.rewrite import Fold, free_variables, postorder
from thalweg.ir.target import Target

_LONG_COST, _PLAIN_COST = 12.0, 1.0
_GATHER_COST, _SCATTER_COST = 0.8, 5.0  # of a lane
_ACROSS_COST = 12.0  # to combine the lanes of a vector
_LANES_PER_ITERATION = 16
BLOCK = 16  # values of a variable that runs inside the vector
_MIN_THREADED = 64  # iterations of an outer loop that is split over threads by itself


Variables = tuple[Variable, ...]
ReductionLanes = dict[Variables, Variable]


@dataclass(frozen=True, eq=False)
class Plan:
    """The decisions about a kernel.

    `split` are the levels (first, last) that threads share as one loop, if any. `lanes` maps the
    variables of reductions to the one among them that goes into lanes. `blocks` maps a variable
    that runs inside the vector, block by block, to that which counts its blocks.
    """

    form: Loops
    target: Target
    variables: Variables
    vector: Variable | None
    width: int  # lanes of the vector variable
    interleave: int  # vectors side by side
    threaded_levels: tuple[int, int] | None
    backward: frozenset[Variable]
    reduction_lanes: ReductionLanes
    blocks: dict[Variable, Variable]
    masks_tails: bool  # the ends of loops are done in vectors with a mask

    def depth(self, work: Store | Check) -> int:
        """How many loops are around a store or check."""
        count = len(work.variables)
        return len(self.variables) if count == len(self.form.variables) else count

    @cached_property
    def speculatable(self) -> Fold[bool]:
        """Which expressions may be computed where they are not wanted."""
        return speculation_safety()


def _masks_tails(form: Loops, target: CpuTarget) -> bool:
    """Whether the ends of loops are done in vectors with a mask."""
    sizes = [np.dtype(argument.dtype).itemsize for argument in form.arguments]
    return target.has_masks or (target.has("avx2") and min(sizes, default=4) >= 4)


def plan(form: Loops, target: CpuTarget) -> Plan:
    """Decide how a kernel runs."""
    ordered = sequential_variables(form)
    lanes = _reduction_lanes(form, target.lanes)
    vector = _vector(form, ordered, lanes, target.lanes)
    variables = _order(form, vector)
    form, backward = scans_in_order(form, variables, ordered)
    blocks = _blocks(form, variables, vector, ordered)
    # The blocks of some in their places, and these innermost.
    variables = tuple(blocks.get(v, v) for v in variables) + tuple(blocks)
    width = _width(vector, target.lanes)
    return Plan(
        form,
        target,
        variables,
        vector,
        width,
        _interleave(form, vector, width, target),
        _threaded_levels(form, variables, ordered, vector),
        backward,
        lanes,
        blocks,
        _masks_tails(form, target),
    )


# Which iterations must stay in order


def sequential_variables(form: Loops) -> frozenset[Variable]:
    """The variables whose iterations may meet at one element, or were said to be serial."""
    found = set(form.serial)
    for store in form.stores:
        found |= colliding_variables(store)
    return frozenset(found)


def colliding_variables(store: Store) -> set[Variable]:
    """The variables of a store that do not lead to places of their own."""
    offset = store.offset
    computed = frozenset[Variable]().union(*map(free_variables, offset.parts))
    apart = offset.variables - computed
    meeting = {v for v in store.variables if v not in apart} | (apart & _aliasing_variables(store))
    return meeting - store.distinct


def _aliasing_variables(store: Store) -> set[Variable]:
    """The plain variables of a place that may come to the same element as another term does.

    Terms in order of their factors: each must step beyond all that the smaller ones reach. What is
    known only at run time is taken to be the row-major layout it almost always is, unless elements
    are combined.
    """
    terms = [(f, t) for t, f in store.offset.terms.items() if not isinstance(f, Dynamic)]
    terms.sort(key=lambda pair: abs(pair[0]))
    reach: int | None = 0
    below = list[Variable]()
    found = set[Variable]()
    for factor, term in terms:
        if reach is None or abs(factor) <= reach:
            found |= {*below, *([term] if isinstance(term, Variable) else [])}
        if isinstance(term, Variable):
            below.append(term)
            reach = _extended_reach(reach, factor, static_extent(term), store.combine == "set")
    return found


def _extended_reach(
    reach: int | None, factor: int, count: int | None, trusting: bool
) -> int | None:
    if reach is None or (count is None and not trusting):
        return None
    return reach if count is None else reach + abs(factor) * max(count - 1, 0)


# What goes into lanes


def _reduction_lanes(form: Loops, lanes: int) -> ReductionLanes:
    """For each group of reduced variables, the one whose loads are best in lanes."""
    bodies: dict[Variables, list[Expr]] = {}
    for expr in form.every(Reduce):
        if expr.variables:
            bodies.setdefault(expr.variables, []).append(expr.body)
    chosen: ReductionLanes = {}
    for variables, roots in bodies.items():
        costs = {v: _load_cost(roots, v, lanes) for v in variables if int(v.extent) > 2}
        if costs:
            best = min(costs, key=lambda v: (costs[v], -variables.index(v)))
            if costs[best] <= 2.0 * len(roots) or any(map(is_long, postorder(roots))):
                chosen[variables] = best
    return chosen


def _load_cost(roots: Sequence[Expr], variable: Variable, lanes: int) -> float:
    loads = [part for part in postorder(roots) if isinstance(part, Load)]
    return sum([_access_cost(one.offset, variable, lanes) for one in loads]) / max(len(roots), 1)


def is_long(expr: Expr) -> bool:
    """Whether an expression by itself takes many instructions."""
    return isinstance(expr, Call) and FUNCTIONS[expr.function].is_long


def _access_cost(offset: Affine, variable: Variable, lanes: int) -> float:
    """What it costs to reach `lanes` elements along a variable."""
    if any(variable in free_variables(part) for part in offset.parts):
        return _GATHER_COST * lanes
    return 1.0 if stride(offset, variable) in (0, 1) else _GATHER_COST * lanes


def _vector(
    form: Loops, ordered: frozenset[Variable], lanes: ReductionLanes, width: int
) -> Variable | None:
    """The variable of the kernel that goes into lanes, if that pays."""
    costs = _Costs(form, lanes, width)
    best, least = None, costs.total(None)
    for variable in reversed(form.variables):
        if variable not in ordered and int(variable.extent) > 1:
            cost = costs.total(variable)
            if cost < 0.9 * least:
                best, least = variable, cost
    return best


class _Costs:
    """Instructions of a kernel, roughly, for one or the other variable in lanes."""

    def __init__(self, form: Loops, lanes: ReductionLanes, width: int) -> None:
        self._form, self._width, self._lanes = form, width, lanes
        self._outer = list(outside_reductions(form.roots))
        self._inner = list(postorder(expr.body for expr in form.every(Reduce)))
        self._reduced = tuple(dict.fromkeys(lanes.values()))

    def total(self, vector: Variable | None) -> float:
        """The cost of the kernel with a variable in lanes."""
        total = sum([self._cost(expr, vector, ()) for expr in self._outer])
        total += sum([self._cost(expr, vector, self._reduced) for expr in self._inner])
        return total + sum([self._store_cost(store, vector) for store in self._form.stores])

    def _cost(self, expr: Expr, vector: Variable | None, reduced: Variables) -> float:
        free = free_variables(expr)
        lane = vector if vector in free else next((v for v in reduced if v in free), None)
        iterations = _iterations(free, lane, self._width)
        match expr:
            case Load() if lane is not None:
                return iterations * _access_cost(expr.offset, lane, self._width)
            case Reduce():
                across = vector not in free and expr.variables in self._lanes
                return iterations * (_ACROSS_COST if across else 1.0)
            case Index() | Const() | Word():
                return 0.0
            case _:
                return iterations * (_LONG_COST if is_long(expr) else _PLAIN_COST)

    def _store_cost(self, store: Store, vector: Variable | None) -> float:
        lane = vector if vector in store.variables else None
        iterations = _iterations(store.variables, lane, self._width)
        contiguous = lane is None or stride(store.offset, lane) == 1
        return iterations * (1.0 if contiguous else _SCATTER_COST * self._width)


def _iterations(variables: Iterable[Variable], lane: Variable | None, width: int) -> float:
    """How often something that depends on variables is computed."""
    counts = [max(int(v.extent), 1) for v in variables if v is not lane]
    vectors = 1 if lane is None else max(math.ceil(int(lane.extent) / width), 1)
    return float(math.prod(counts) * vectors)


def _width(vector: Variable | None, lanes: int) -> int:
    """No more lanes than there are values."""
    count = None if vector is None else static_extent(vector)
    return lanes if count is None else min(lanes, 1 << max(count - 1, 1).bit_length())


def _interleave(form: Loops, vector: Variable | None, width: int, target: CpuTarget) -> int:
    """How many vectors side by side: enough to keep the processor busy, few where code is long."""
    if vector is None:
        return 1
    size, reduces = 0, False
    for expr in form.parts:
        if vector in free_variables(expr):
            size += 8 if is_long(expr) else 1
            reduces |= isinstance(expr, Reduce | Scan)
    copies = 4 if size <= 12 else 2 if size <= 30 else 1
    if reduces and size <= 6 and target.registers >= 32:
        copies = 8
    count = static_extent(vector)
    return copies if count is None else max(min(copies, count // width), 1)


# The order of loops


def _order(form: Loops, vector: Variable | None) -> Variables:
    """The variables with the vector innermost among those it may change places with.

    Loops of scans go inside it, so that each lane has a scan of its own. A variable may move as
    long as that of every store and check remain the outer ones.
    """
    scanned = {scan.variable for scan in form.every(Scan)}
    borders = {0, len(form.variables)}
    borders |= {len(work.variables) for work in (*form.stores, *form.checks)}
    found = list[Variable]()
    for first, last in pairwise(sorted(borders)):
        segment = form.variables[first:last]
        found += sorted(segment, key=lambda v: 2 * (v in scanned) + (v is vector))
    return tuple(found)


def scans_in_order(
    form: Loops, variables: Variables, ordered: frozenset[Variable]
) -> tuple[Loops, frozenset[Variable]]:
    """Which serial loops run backward. Scans that no single pass can do become reductions."""
    scans = form.every(Scan)
    if not scans:
        return form, frozenset()
    backward = {v for v in variables if _all_backward(v, scans, form)}
    slow = {scan for scan in scans if not _is_single_pass(scan, variables, backward)}
    return (without_scans(form, slow) if slow else form), frozenset(backward)


def _all_backward(variable: Variable, scans: Sequence[Scan], form: Loops) -> bool:
    directions = {scan.reverse for scan in scans if scan.variable is variable}
    free = all(variable not in colliding_variables(store) for store in form.stores)
    return directions == {True} and free


def _is_single_pass(scan: Scan, variables: Variables, backward: set[Variable]) -> bool:
    outer = frozenset(variables[: variables.index(scan.variable) + 1])
    return scan.reverse == (scan.variable in backward) and free_variables(scan) <= outer


def _blocks(
    form: Loops, variables: Variables, vector: Variable | None, ordered: frozenset[Variable]
) -> dict[Variable, Variable]:
    """A variable along which loads are contiguous that jump from lane to lane, as in a transpose.

    It runs inside the vector, in blocks small enough for what is loaded to stay in the cache.
    """
    works = {len(work.variables) for work in (*form.stores, *form.checks)}
    if vector is None or works != {len(variables)} or variables[-1] is not vector:
        return {}
    found = list[Variable]()
    for load in form.every(Load):
        if stride(load.offset, vector) not in (0, 1):
            found += [v for v in variables if stride(load.offset, v) == 1]
    for variable in found:
        if variable not in ordered and int(variable.extent) >= 2 * BLOCK:
            count = -(-int(variable.extent) // BLOCK)
            static = static_extent(variable) is not None
            return {variable: Variable(count if static else Dynamic(count), "block")}
    return {}


# Threads


def _threaded_levels(
    form: Loops, variables: Variables, ordered: frozenset[Variable], vector: Variable | None
) -> tuple[int, int] | None:
    """The levels whose iterations threads share: the outermost that are many enough together."""
    best, most = None, 0
    for first, last in _shareable_levels(form, variables, ordered, vector):
        count = math.prod(int(v.extent) for v in variables[first : last + 1])
        count //= _LANES_PER_ITERATION if variables[first] is vector else 1
        if count >= _MIN_THREADED:
            return first, last
        if best is None or count > most:
            best, most = (first, last), count
    return best


def _shareable_levels(
    form: Loops, variables: Variables, ordered: frozenset[Variable], vector: Variable | None
) -> Iterator[tuple[int, int]]:
    """The levels that threads may share, outermost first, without computing reductions again."""
    reduced = {
        1 + max(variables.index(v) for v in free)
        for expr in form.every(Reduce)
        if (free := free_variables(expr) & frozenset(variables))
    }
    works = {len(work.variables) for work in (*form.stores, *form.checks)}
    works -= {len(form.variables)}
    shared = [v not in ordered for v in variables]
    outermost = True
    for first in range(len(variables)):
        if not shared[first] or (not outermost and any(level <= first for level in reduced)):
            continue
        outermost = False
        yield first, first
        for last in range(first + 1, len(variables)):
            if not shared[last] or variables[last] is vector or variables[first] is vector:
                break
            if last in works or last in reduced:
                break
            yield first, last
