"""How much a kernel computes and moves, counted from its expressions.

Every operation on data counts once for each value of the variables that it depends on: what does
not change in a loop is taken out of it. Arithmetic on indices is not counted, and a function such
as exp counts as one operation. Of a buffer, the elements that are touched count, each once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from thalweg.loops.expr import Expr
from thalweg.loops.kernel import Argument, Contraction, Kernel, Offset
from thalweg.loops.loop import Variable
from thalweg.loops.parametric import integers, shape_of

_NOTHING: frozenset[Variable] = frozenset()
_FREE = {"load", "index", "sum", "cast"}


class Amounts(NamedTuple):
    """What one call of a kernel comes to."""

    operations: float
    touched: tuple[int, ...]  # bytes of each argument


_MOST_KNOWN = 10_000
_known: dict[Any, Amounts] = {}  # the steps of an unrolled loop are the same few kernels


def operations(kernel: Kernel) -> float:
    """The operations of one call, a multiplication with its addition being two."""
    return _amounts(kernel).operations


def moved_bytes(kernel: Kernel) -> int:
    """What one call reads and writes."""
    return sum(touched_bytes(kernel))


def touched_bytes(kernel: Kernel) -> tuple[int, ...]:
    """What one call reads and writes of each of its arguments."""
    return _amounts(kernel).touched


def _amounts(kernel: Kernel) -> Amounts:
    key = shape_of(kernel), integers(kernel)
    found = _known.get(key)
    if found is None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        found = _known[key] = Amounts(_operations(kernel), _touched(kernel))
    return found


def _operations(kernel: Kernel) -> float:
    if not isinstance(kernel, Contraction):
        roots = [*(s.value for s in kernel.stores), *(c.condition for c in kernel.checks)]
        return _Count(_NOTHING).all(roots)
    results = frozenset((*kernel.batch, *kernel.rows, *kernel.columns))
    products = 2.0 * _times(results.union(kernel.reduced))
    return products + _Count(results).all([store.value for store in kernel.stores])


def _touched(kernel: Kernel) -> tuple[int, ...]:
    count = _Count(_NOTHING)
    roots: list[Any] = [part for s in kernel.stores for part in (s.value, s.offset, s.inside)]
    if isinstance(kernel, Contraction):
        roots += [kernel.a.value, kernel.b.value]
    else:
        roots += [check.condition for check in kernel.checks]
    count.all(roots)
    times = Counter(count.touched)
    for store in kernel.stores:
        times[store.argument] += _times(store.variables)
    return tuple(
        min(times[argument], int(argument.size)) * np.dtype(argument.dtype).itemsize
        for argument in kernel.arguments
    )


def _times(variables: Iterable[Variable]) -> int:
    return prod(int(variable.extent) for variable in variables)


class _Count:
    """Expressions seen once each: what they depend on, and whether data is in them."""

    def __init__(self, of_sum: frozenset[Variable]) -> None:
        self._of_sum = of_sum  # what the sum of a contraction depends on
        self._known: dict[int, tuple[frozenset[Variable], bool]] = {}
        self._total = 0.0
        self.touched: dict[Argument, int] = {}  # how often elements are loaded

    def all(self, roots: Iterable[Any]) -> float:
        """The operations of some expressions."""
        for root in roots:
            self._visit(root)
        return self._total

    def _visit(self, part: Any) -> tuple[frozenset[Variable], bool]:
        if isinstance(part, Variable):
            return frozenset([part]), False
        if isinstance(part, Offset):
            return self._together(term for _, term in part.terms)
        if not isinstance(part, Expr):
            return _NOTHING, False
        if id(part) not in self._known:
            self._known[id(part)] = self._expression(part)
        return self._known[id(part)]

    def _together(self, parts: Iterable[Any]) -> tuple[frozenset[Variable], bool]:
        seen = [self._visit(part) for part in parts]
        return _NOTHING.union(*(variables for variables, _ in seen)), any(d for _, d in seen)

    def _expression(self, part: Expr) -> tuple[frozenset[Variable], bool]:
        if part.function == "sum":
            return self._of_sum, True
        if part.function == "load":
            argument, offset = part.arguments
            variables, _ = self._visit(offset)
            self.touched[argument] = self.touched.get(argument, 0) + _times(variables)
            return variables, True
        if part.function == "reduce":
            _, bound, body = part.arguments
            variables, data = self._visit(body)
            self._add(variables.union(bound), data)
            return variables.difference(bound), data
        variables, data = self._together(part.arguments)
        if part.function not in _FREE:
            self._add(variables, data)
        return variables, data

    def _add(self, variables: frozenset[Variable], data: bool) -> None:
        self._total += _times(variables) if data else 0
