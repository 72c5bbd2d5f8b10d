"""Reductions inside larger expressions: which stay in their kernel, which get one of their own.

A reduction over the rest of its row (a softmax's sum) stays: its value is found once per row. One
that depends on inner loops only (a channel's mean), or on none at all, would be found again and
again: it is stored by a kernel of its own. Long reductions with few results are cut into a fixed
number of parts, so that threads may share them and the order of summing never depends on how many
threads there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

import numpy as np

from thalweg.graph.node import Node
from thalweg.ir.expr import Expr, select
from thalweg.ir.index import Affine, row_major, total
from thalweg.ir.index import variable as index_of
from thalweg.ir.loop import Variable
from thalweg.ir.target import Target
from thalweg.ir.types import dtype_of
from thalweg.lower.key import structure
from thalweg.lower.memory.buffers import Buffer, BufferKind
from thalweg.lower.nests.inline_producers import walk
from thalweg.lower.nests.loop_nest import Renaming, Write, free_variables
from thalweg.lower.nests.match_contraction import product_of
from thalweg.platform.dtype_traits import bounds

#: the variables that count the parts of a reduction
_parts: WeakSet[Variable] = WeakSet()

Add = Callable[[Node, tuple[Variable, ...], Sequence[Write]], None]


def outermost(values: Sequence[Any]) -> list[Expr]:
    """The reductions of expressions that are not inside other ones."""
    found: list[Expr] = []
    pending, seen = list(values), set[int]()
    while pending:
        part = pending.pop()
        if isinstance(part, tuple):
            pending += part
        if not isinstance(part, Expr) or id(part) in seen:
            continue
        seen.add(id(part))
        if part.function == "reduce":
            found.append(part)
        else:
            pending += part.arguments
    return found


class Apart:
    """Expressions of a nest with the reductions that do not fit it read from buffers."""

    def __init__(
        self,
        variables: tuple[Variable, ...],
        stored: dict[Any, Buffer],
        add: Add,
        target: Target,
    ) -> None:
        self._variables, self._target = variables, target
        self._stored = stored
        self._add = add
        self._known: dict[int, frozenset[Variable]] = {}
        self._kept: list[Expr] = []  # what `_known` tells of must stay the object it was

    def of(self, node: Node, value: Any) -> Any:
        """The value, with what has to be stored stored: inner reductions before outer ones."""
        replaced: dict[int, Any] = {}
        for part in _inner_first(value):
            kind, bound, body = part.arguments
            inner = _with(replaced, body)
            again = part if inner is body else Expr("reduce", (kind, bound, inner))
            stays = free_variables(again, self._known) - frozenset(self._variables)
            new = None if stays else self._replacement(node, again)
            self._kept.append(again)
            if new is not None or again is not part:
                replaced[id(part)] = again if new is None else new
        return _with(replaced, value)

    def _replacement(self, node: Node, part: Expr) -> Expr | None:
        free = free_variables(part, self._known)
        level = tuple(v for v in self._variables if v in free)
        if self._fits(level, part):
            if len(level) == len(self._variables):
                return self._cut(node, part, level)
            return None
        key = structure(part, level)
        buffer = self._stored.get(key)
        place = row_major(level)
        if buffer is None:
            buffer = Buffer(
                BufferKind.TEMPORARY, dtype_of(part), math.prod(v.extent for v in level), node
            )
            self._stored[key] = buffer
            self._add(node, level, [Write(buffer, level, place, part)])
        return Expr("load", (buffer, place))

    def _fits(self, level: tuple[Variable, ...], part: Expr) -> bool:
        """Whether it is found once per row of this nest, and rows are enough to share."""
        if level != self._variables[: len(level)]:
            return False
        if len(level) == len(self._variables):
            return True
        rows = math.prod(v.extent for v in level)
        work = math.prod(v.extent for v in part.arguments[1])
        few = rows < self._target.min_rows_with_reduction
        return not few or rows * work < self._target.min_split_elements

    def _cut(self, node: Node, part: Expr, level: tuple[Variable, ...]) -> Expr | None:
        """A long reduction to few results in two stages: parts, then their combination."""
        kind, variables, body = part.arguments
        results = math.prod(v.extent for v in level)
        length = math.prod(v.extent for v in variables)
        dtype = np.dtype(dtype_of(part))
        if any(v in _parts for v in level):
            return None  # a part of one that was cut already
        target, along_rows = self._target, _goes_along_rows(body, variables)
        if results >= (target.min_shared_rows if along_rows else target.min_shared_results):
            return None
        least = target.min_split_elements * 2
        if length * max(results, 1) < least or length < target.reduction_splits * 4:
            return None
        if kind not in ("sum", "max", "min", "prod") or dtype.itemsize < 4:
            return None
        if product_of(part, self._variables, target) is not None:
            return None
        longest = max(variables, key=lambda v: v.extent)
        if longest.extent < 8:
            return None
        outer, inner, index, guard = _split(longest, target.reduction_splits)
        renamed = Renaming({longest: index}).of(body)
        if guard is not None:
            renamed = select(guard, renamed, _identity(kind, dtype))
        rest = tuple(inner if v is longest else v for v in variables)
        partial = Expr("reduce", (kind, rest, renamed))
        nest = (outer, *level)
        size = math.prod(v.extent for v in nest)
        buffer = Buffer(BufferKind.TEMPORARY, dtype, size, node)
        place = row_major(nest)
        self._add(node, nest, [Write(buffer, nest, place, partial)])
        return Expr("reduce", (kind, (outer,), Expr("load", (buffer, place))))


def _goes_along_rows(body: Any, variables: Sequence[Variable]) -> bool:
    """Whether a reduction takes elements that lie one after the other."""
    found = False

    def visit(part: Expr) -> None:
        nonlocal found
        if part.function == "load":
            found = found or any(part.arguments[1].terms.get(v) == 1 for v in variables)

    walk([body], visit)
    return found


def _with(replaced: dict[int, Any], value: Any) -> Any:
    if not replaced:
        return value
    return Renaming({}, lambda part: replaced.get(id(part))).of(value)


def _inner_first(value: Any) -> list[Expr]:
    """All reductions of an expression, those inside others before them."""
    found: list[Expr] = []
    seen: set[int] = set()
    pending: list[tuple[Any, bool]] = [(value, False)]
    while pending:
        part, is_done = pending.pop()
        if is_done:
            found.append(part)
        elif isinstance(part, Expr) and id(part) not in seen:
            seen.add(id(part))
            if part.function == "reduce":
                pending += [(part, True), (part.arguments[2], False)]
            elif part.function == "load":
                pending += [(atom, False) for atom in part.arguments[1].terms]
            else:
                pending += [(piece, False) for piece in part.arguments]
    return found


def _split(variable: Variable, splits: int) -> tuple[Variable, Variable, Affine, Expr | None]:
    """A variable as part and place in the part, and the guard of an uneven last part."""
    parts = next((p for p in range(splits, 7, -1) if variable.extent % p == 0), 0)
    each = variable.extent // parts if parts else -(-variable.extent // splits)
    count = parts or -(-variable.extent // each)
    outer, inner = Variable.fresh(count), Variable.fresh(each)
    _parts.add(outer)
    index = total([index_of(outer).scaled(each), index_of(inner)])
    if parts:
        return outer, inner, index, None
    place = Expr("add", (Expr("mul", (Expr("index", (outer,)), each)), Expr("index", (inner,))))
    return outer, inner, index, Expr("lt", (place, variable.extent))


def _identity(kind: str, dtype: Any) -> Any:
    if kind in ("sum", "prod"):
        return np.dtype(dtype).type(kind == "prod")
    return bounds(dtype)[kind == "min"]
