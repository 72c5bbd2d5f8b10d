"""The schedule of a loop kernel: loop order, vectorization, and which loops threads share.

A kernel in canonical form comes in, a `Plan` goes out. Loops whose iterations may store to the same
element run in order on one thread. Of the others, one may be vectorized, chosen by a rough count of
instructions, and outer ones are shared by threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from thalweg.codegen.loops.simplify import static_extent, stride, without_scans
from thalweg.codegen.machine import CpuTarget
from thalweg.ir.dynamic import Dynamic
from thalweg.ir.expr import Call, Const, Expr, Index, Load, Reduce, Scan, Variable, Word
from thalweg.ir.functions.table import FUNCTIONS
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Check, Loops, Store
from thalweg.ir.rewrite import free_variables, outside_reductions, postorder
from thalweg.ir.target import Target

_LONG_COST, _PLAIN_COST = 12.0, 1.0
_GATHER_COST, _SCATTER_COST = 0.8, 5.0  # per lane
_ACROSS_COST = 12.0  # of a reduction across the lanes of a vector
_LANES_PER_ITERATION = 16
BLOCK = 16  # iterations of a loop that is blocked inside the vector loop
_MIN_THREADED = 64  # iterations that suffice to share one loop among threads


Variables = tuple[Variable, ...]
ReductionLanes = dict[Variables, Variable]


@dataclass(frozen=True, eq=False)
class Plan:
    """The schedule of a kernel.

    `threaded_levels` are the loops (first, last) that threads share as one collapsed loop, if any.
    `reduction_lanes` maps the variables of a reduction to the one that is vectorized. `blocks` maps
    a variable that is blocked inside the vector loop to the variable that counts its blocks.
    """

    form: Loops
    target: Target
    variables: Variables
    vector: Variable | None
    width: int  # lanes of a vector
    backward: frozenset[Variable]
    interleave: int = 1  # vectors per iteration
    threaded_levels: tuple[int, int] | None = None
    reduction_lanes: ReductionLanes = field(default_factory=ReductionLanes)
    blocks: dict[Variable, Variable] = field(default_factory=dict[Variable, Variable])
    masks_tails: bool = False  # remainders of vector loops are masked vectors, not scalars

    def depth(self, statement: Store | Check) -> int:
        """How many loops enclose a store or check."""
        count = len(statement.variables)
        return len(self.variables) if count == len(self.form.variables) else count


def _masks_tails(form: Loops, target: CpuTarget) -> bool:
    """Whether remainders of vector loops are masked vectors."""
    sizes = [np.dtype(argument.dtype).itemsize for argument in form.arguments]
    return target.has_masks or (target.has("avx2") and min(sizes, default=4) >= 4)


def plan(form: Loops, target: CpuTarget) -> Plan:
    """The schedule of a kernel in canonical form."""
    sequential = sequential_variables(form)
    lanes = _reduction_lanes(form, target.lanes)
    vector = _vector(form, sequential, lanes, target.lanes)
    variables = _order(form, vector)
    form, backward = scans_in_order(form, variables)
    blocks = _blocks(form, variables, vector, sequential)
    # Block counters replace the blocked variables, which become innermost.
    variables = tuple(blocks.get(v, v) for v in variables) + tuple(blocks)
    width = vector_width(vector, target.lanes)
    return Plan(
        form,
        target,
        variables,
        vector,
        width,
        backward,
        _interleave(form, vector, width, target),
        _threaded_levels(form, variables, sequential, vector),
        lanes,
        blocks,
        _masks_tails(form, target),
    )


# Loops that must run in order


def sequential_variables(form: Loops) -> frozenset[Variable]:
    """The loops whose iterations may store to one element, or that are declared serial."""
    found = set(form.serial)
    for store in form.stores:
        found |= colliding_variables(store)
    return frozenset(found)


def colliding_variables(store: Store) -> set[Variable]:
    """The variables of a store of which two values may store to the same element."""
    offset = store.offset
    computed = frozenset[Variable]().union(*map(free_variables, offset.parts))
    injective = offset.variables - computed
    aliasing = injective & _aliasing_variables(store)
    return ({v for v in store.variables if v not in injective} | aliasing) - store.distinct


def _aliasing_variables(store: Store) -> set[Variable]:
    """The variables of an offset that may reach the same element as another term.

    In order of its stride, each term must step over all that the smaller ones reach. Strides known
    only at run time are assumed to be those of a row-major layout, unless the store combines.
    """
    terms = [(f, t) for t, f in store.offset.terms.items() if not isinstance(f, Dynamic)]
    terms.sort(key=lambda pair: abs(pair[0]))
    reach: int | None = 0
    below = list[Variable]()
    result = set[Variable]()
    for factor, term in terms:
        if reach is None or abs(factor) <= reach:
            result |= {*below, *([term] if isinstance(term, Variable) else [])}
        if isinstance(term, Variable):
            below.append(term)
            reach = _extended_reach(reach, factor, static_extent(term), store.combine == "set")
    return result


def _extended_reach(
    reach: int | None, factor: int, count: int | None, trusting: bool
) -> int | None:
    if reach is None or (count is None and not trusting):
        return None
    return reach if count is None else reach + abs(factor) * max(count - 1, 0)


# Vectorization


def _reduction_lanes(form: Loops, lanes: int) -> ReductionLanes:
    """For the variables of each reduction, the one whose loads vectorize best."""
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
    """Whether an expression by itself is many instructions."""
    return isinstance(expr, Call) and FUNCTIONS[expr.function].is_long


def _access_cost(offset: Affine, variable: Variable, lanes: int) -> float:
    """The cost of accessing `lanes` elements along a variable."""
    if any(variable in free_variables(part) for part in offset.parts):
        return _GATHER_COST * lanes
    return 1.0 if stride(offset, variable) in (0, 1) else _GATHER_COST * lanes


def _vector(
    form: Loops, sequential: frozenset[Variable], lanes: ReductionLanes, width: int
) -> Variable | None:
    """The loop of the kernel to vectorize, if that pays."""
    costs = _Costs(form, lanes, width)
    best, least = None, costs.total(None)
    for variable in reversed(form.variables):
        if variable not in sequential and int(variable.extent) > 1:
            cost = costs.total(variable)
            if cost < 0.9 * least:
                best, least = variable, cost
    return best


class _Costs:
    """The rough instruction count of a kernel, by which loop is vectorized."""

    def __init__(self, form: Loops, lanes: ReductionLanes, width: int) -> None:
        self._form, self._width, self._lanes = form, width, lanes
        self._outer = list(outside_reductions(form.roots))
        self._inner = list(postorder(expr.body for expr in form.every(Reduce)))
        self._reduced = tuple(dict.fromkeys(lanes.values()))

    def total(self, vector: Variable | None) -> float:
        """The cost of the kernel with one loop vectorized, or none."""
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
    """How often a value that depends on these variables is computed."""
    counts = [max(int(v.extent), 1) for v in variables if v is not lane]
    vectors = 1 if lane is None else max(math.ceil(int(lane.extent) / width), 1)
    return float(math.prod(counts) * vectors)


def vector_width(vector: Variable | None, lanes: int) -> int:
    """The lanes of a vector: no more than the variable has values, as a power of two."""
    count = None if vector is None else static_extent(vector)
    return lanes if count is None else min(lanes, 1 << max(count - 1, 1).bit_length())


def _interleave(form: Loops, vector: Variable | None, width: int, target: CpuTarget) -> int:
    """The interleave count: enough to hide latency, small where the body is long."""
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


# Loop order


def _order(form: Loops, vector: Variable | None) -> Variables:
    """The loops, with the vector loop innermost among those it may be interchanged with.

    Loops of scans go inside it, so that each lane has a scan of its own. Loops may be interchanged
    only between the depths of stores and checks, whose variables stay a prefix.
    """
    scanned = {scan.variable for scan in form.every(Scan)}
    borders = {0, len(form.variables)}
    borders |= {len(statement.variables) for statement in (*form.stores, *form.checks)}
    result = list[Variable]()
    for first, last in pairwise(sorted(borders)):
        segment = form.variables[first:last]
        result += sorted(segment, key=lambda v: 2 * (v in scanned) + (v is vector))
    return tuple(result)


def scans_in_order(form: Loops, variables: Variables) -> tuple[Loops, frozenset[Variable]]:
    """The serial loops that run backward; scans that no single pass can do become reductions."""
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
    form: Loops, variables: Variables, vector: Variable | None, sequential: frozenset[Variable]
) -> dict[Variable, Variable]:
    """The loop to block inside the vector loop: loads are contiguous along it and strided along
    the vector, as in a transpose. A block is small enough for loaded lines to stay in the cache.
    """
    depths = {len(statement.variables) for statement in (*form.stores, *form.checks)}
    if vector is None or depths != {len(variables)} or variables[-1] is not vector:
        return {}
    found = list[Variable]()
    for load in form.every(Load):
        if stride(load.offset, vector) not in (0, 1):
            found += [v for v in variables if stride(load.offset, v) == 1]
    for variable in found:
        if variable not in sequential and int(variable.extent) >= 2 * BLOCK:
            count = -(-int(variable.extent) // BLOCK)
            static = static_extent(variable) is not None
            return {variable: Variable(count if static else Dynamic(count), "block")}
    return {}


# Sharing by threads


def _threaded_levels(
    form: Loops, variables: Variables, sequential: frozenset[Variable], vector: Variable | None
) -> tuple[int, int] | None:
    """The loops that threads share: the outermost with enough iterations together."""
    best, most = None, 0
    for first, last in _shareable_levels(form, variables, sequential, vector):
        count = math.prod(int(v.extent) for v in variables[first : last + 1])
        count //= _LANES_PER_ITERATION if variables[first] is vector else 1
        if count >= _MIN_THREADED:
            return first, last
        if best is None or count > most:
            best, most = (first, last), count
    return best


def _shareable_levels(
    form: Loops, variables: Variables, sequential: frozenset[Variable], vector: Variable | None
) -> Iterator[tuple[int, int]]:
    """The ranges of loops that threads may share, outermost first, such that no reduction is
    computed by more than one thread."""
    reduced = {
        1 + max(variables.index(v) for v in free)
        for expr in form.every(Reduce)
        if (free := free_variables(expr) & frozenset(variables))
    }
    depths = {len(statement.variables) for statement in (*form.stores, *form.checks)}
    depths -= {len(form.variables)}
    shared = [v not in sequential for v in variables]
    outermost = True
    for first in range(len(variables)):
        if not shared[first] or (not outermost and any(level <= first for level in reduced)):
            continue
        outermost = False
        yield first, first
        for last in range(first + 1, len(variables)):
            if not shared[last] or variables[last] is vector or variables[first] is vector:
                break
            if last in depths or last in reduced:
                break
            yield first, last
