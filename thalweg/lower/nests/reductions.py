"""Reductions inside larger expressions: which stay in their nest, which get a nest of their own.

A reduction that depends on outer loops only (a softmax's sum) stays: it runs once per row. One that
depends on inner loops only (a channel's mean), or on none at all, would run again in every outer
iteration: it is stored by a nest of its own. Long reductions with few results are split into a
fixed number of partial ones, so that threads may share them and the order of summation does not
depend on the number of threads.

The loop form of a cumulative sum is a reduction under the guard `k <= i`. Where i is a loop of the
nest and the summand does not depend on it, the loop is serial and carries the sum: a scan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from thalweg.graph.node import Node
from thalweg.ir.expr import Call, Cast, Expr, Index, Load, Reduce, Scan, Select, constant, select
from thalweg.ir.fingerprint import structure
from thalweg.ir.functions.reductions import REDUCTIONS
from thalweg.ir.index import Affine, index_of, row_major, total
from thalweg.ir.kernel import Store
from thalweg.ir.loop import Variable, iterations
from thalweg.ir.rewrite import Replace, free_variables, loads_in, postorder, walk
from thalweg.ir.target import Target
from thalweg.lower.memory.buffers import Buffer
from thalweg.lower.nests.loop_nest import Renaming, stored
from thalweg.lower.nests.match_contraction import product_of

#: the variables over partial reductions
_split_variables: WeakSet[Variable] = WeakSet()

_MIN_APART_ELEMENTS = 1 << 14  # reducing fewer takes less time than a launch

Add = Callable[[Node, tuple[Variable, ...], Sequence[Store]], None]


def outermost(values: Sequence[Expr]) -> list[Reduce]:
    """The reductions in expressions that are not inside other ones."""
    parts = walk(values, lambda part: () if isinstance(part, Reduce | Load) else part.parts)
    return [part for part in parts if isinstance(part, Reduce)]


@dataclass(eq=False)
class HoistReductions:
    """Moves the reductions that do not fit a nest into nests of their own."""

    variables: tuple[Variable, ...]
    buffers: dict[Any, Buffer]  # of reductions that were moved
    add: Add
    target: Target

    def of(self, node: Node, value: Expr) -> Expr:
        """The value with the hoisted reductions replaced by loads; inner ones are hoisted before
        outer ones."""
        replaced: dict[Expr, Expr] = {}
        reductions = [part for part in postorder([value]) if isinstance(part, Reduce)]
        nested = {inner for part in reductions for inner in walk([part.body])}
        for part in reductions:
            rewritten = Reduce(part.combine, part.variables, _substituted(replaced, part.body))
            stays = free_variables(rewritten) - frozenset(self.variables)
            is_apart = not stays and (
                (part is not value and self._exceeds_row(part))
                or (part in nested and self._is_separate(part))
            )
            replacement = None if stays else self._replacement(node, rewritten, is_apart)
            if replacement is not None or rewritten is not part:
                replaced[part] = rewritten if replacement is None else replacement
        return _substituted(replaced, value)

    def _replacement(self, node: Node, part: Reduce, is_apart: bool) -> Expr | None:
        free = free_variables(part)
        level = tuple(v for v in self.variables if v in free)
        # One that reads a variable is of this nest alone: the variable may change before the next.
        key = structure([part], level), self if _reads_variables(part) else None
        is_shared = self.target.shares_reductions and key in self.buffers
        if self._fits(level, part) and not is_apart and not is_shared:
            if len(level) == len(self.variables):
                return self._split(node, part, level)
            return None
        if key not in self.buffers:
            write, _ = stored(part, level, node)
            self.add(node, level, [write])
            self.buffers[key] = write.buffer
        return Load(self.buffers[key], row_major(level))

    def _fits(self, level: tuple[Variable, ...], part: Reduce) -> bool:
        """Whether a reduction runs once per row of this nest, and there are enough rows to
        share."""
        if level != self.variables[: len(level)]:
            return False
        if len(level) == len(self.variables):
            return True
        rows = iterations(level)
        few = rows < self.target.min_rows_with_reduction
        return not few or rows * iterations(part.variables) < self.target.min_split_elements

    def _exceeds_row(self, part: Reduce) -> bool:
        """Whether a reduction's row is too long to be kept for the code after it: then equal
        reductions are computed once for all nests."""
        is_long = iterations(part.variables) > self.target.max_row_at_hand
        return is_long and not _reads_variables(part)

    def _is_separate(self, part: Reduce) -> bool:
        """Whether a long reduction inside another one is computed first: several thread blocks
        share each of the two, and cannot synchronise in between."""
        target, results = self.target, iterations(free_variables(part))
        along = is_contiguous(part)
        if results >= (target.min_nested_rows if along else target.min_nested_columns):
            return False
        return results * iterations(part.variables) >= _MIN_APART_ELEMENTS

    def _split(self, node: Node, part: Reduce, level: tuple[Variable, ...]) -> Expr | None:
        """A long reduction to few results in two stages: partial ones, then their combination."""
        kind, variables, body = part.combine, part.variables, part.body
        results, length, dtype = iterations(level), iterations(variables), part.dtype
        if any(v in _split_variables for v in level):
            return None  # it is a partial reduction itself
        target, along_rows = self.target, is_contiguous(part)
        if results >= (target.min_shared_rows if along_rows else target.min_shared_results):
            return None
        least = target.min_split_elements * 2
        if length * max(results, 1) < least or length < target.reduction_splits * 4:
            return None
        if not REDUCTIONS[kind].keeps_dtype or dtype.itemsize < 4:
            return None
        if product_of(part, self.variables, target) is not None:
            return None
        longest = max(variables, key=lambda v: v.extent)
        if longest.extent < 8:
            return None
        outer, inner, index, guard = _split_variable(longest, target.reduction_splits)
        renamed = Renaming({longest: index}).of(body)
        if guard is not None:
            renamed = select(guard, renamed, constant(REDUCTIONS[kind].identity(dtype)))
        rest = tuple(inner if v is longest else v for v in variables)
        loops = (outer, *level)
        write, load = stored(Reduce(kind, rest, renamed), loops, node)
        self.add(node, loops, [write])
        return Reduce(kind, (outer,), load)


def _reads_variables(part: Reduce) -> bool:
    """Whether a reduction reads variables, which an update may change between two nests."""
    return any(load.buffer.is_variable for load in loads_in([part.body]))


def is_contiguous(part: Reduce) -> bool:
    """Whether a reduction loads contiguous elements."""
    offsets = [load.offset for load in loads_in([part.body])]
    return any(offset.factor(v) == 1 for offset in offsets for v in part.variables)


def _substituted(replaced: dict[Expr, Expr], value: Expr) -> Expr:
    return Replace(replaced.get).of(value) if replaced else value


def _split_variable(
    variable: Variable, splits: int
) -> tuple[Variable, Variable, Affine, Expr | None]:
    """A variable split in two: the number of a part, the index in it, their combined index, and the
    guard of a last part that is shorter."""
    count = next((n for n in range(splits, 7, -1) if variable.extent % n == 0), splits)
    size = -(-variable.extent // count)
    outer, inner = Variable.fresh(-(-variable.extent // size)), Variable.fresh(size)
    _split_variables.add(outer)
    index = total([index_of(outer).scaled(size), index_of(inner)])
    is_even = outer.extent * size == variable.extent
    guard = None if is_even else Index(outer) * size + Index(inner) < variable.extent
    return outer, inner, index, guard


# Scans: cumulative reductions that run as one serial loop

#: comparison of the summed index with the loop's -> (exclusive, reverse)
_DIRECTIONS = {
    "le": (False, False),
    "lt": (True, False),
    "ge": (False, True),
    "gt": (True, True),
}


def as_scan(value: Expr, variables: Sequence[Variable]) -> tuple[Expr, Variable] | None:
    """A cumulative reduction as a scan, and the variable of the serial loop; None for others."""
    match value:
        case Cast():
            inner = as_scan(value.value, variables)
            return None if inner is None else (Cast(inner[0], value.dtype), inner[1])
        case Reduce(
            variables=(summed,),
            body=Select(Call(compared, (Index(variable=counted), Index(variable=along))), chosen),
        ) if counted is summed:
            pass
        case _:
            return None
    if compared not in _DIRECTIONS or along not in variables or along.extent != summed.extent:
        return None
    if REDUCTIONS[value.combine].gives_position or along in free_variables(chosen):
        return None
    summand = Renaming({summed: index_of(along)}).of(chosen)
    return Scan(value.combine, along, summand, *_DIRECTIONS[compared]), along
