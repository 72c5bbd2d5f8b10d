"""The operations of a kernel and the bytes it moves, counted from its expressions.

Every operation on data counts once for each value of the variables that it depends on: what does
not change in a loop is hoisted out of it. Arithmetic on indices is not counted, and a function such
as exp counts as one operation. Each accessed element of a buffer counts once; bytes that are read
and written count twice as moved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from thalweg.ir.expr import Accumulated, Cast, Const, Expr, Index, Load, Reduce, Variable, Word
from thalweg.ir.fingerprint import Summary, summary
from thalweg.ir.kernel import Argument, Contraction, Kernel
from thalweg.ir.loop import iterations
from thalweg.ir.rewrite import Fold, free_variables
from thalweg.platform.caches import Bounded

_NOTHING: frozenset[Variable] = frozenset()
_FREE = Const | Word | Index | Load | Accumulated | Cast


class FlopsBytes(NamedTuple):
    """The operations and memory traffic of one call of a kernel."""

    operations: float  # a multiplication with its addition counts as two
    touched: tuple[int, ...]  # the bytes of each argument that are accessed
    moved: int  # bytes read and bytes written


#: The iterations of an unrolled loop are launches of the same few kernels.
_known = Bounded[Summary, FlopsBytes]("flops and bytes of kernels", 2_000)


def flops_bytes(kernel: Kernel) -> FlopsBytes:
    """The operations and bytes of one call of a kernel."""
    key = summary(kernel)
    counts = _known.get(key)
    if counts is None:
        counts = _known[key] = FlopsBytes(_operations(kernel), *_traffic(kernel))
    return counts


def _operations(kernel: Kernel) -> float:
    if not isinstance(kernel, Contraction):
        roots = [*(s.value for s in kernel.stores), *(c.condition for c in kernel.checks)]
        return _Count(_NOTHING).all(roots)
    results = frozenset((*kernel.batch, *kernel.rows, *kernel.columns))
    products = 2.0 * iterations(results.union(kernel.reduced))
    return products + _Count(results).all([store.value for store in kernel.stores])


def _traffic(kernel: Kernel) -> tuple[tuple[int, ...], int]:
    """The bytes of each argument that are accessed, and all that are read and written."""
    count = _Count(_NOTHING)
    count.all(kernel.roots)
    read, written = Counter(count.touched), Counter[Argument]()
    for store in kernel.stores:
        written[store.buffer] += iterations(store.variables)
        if store.combine != "set":
            read[store.buffer] += iterations(store.variables)
    moved = sum(_bytes(argument, n) for side in (read, written) for argument, n in side.items())
    return tuple([_bytes(a, read[a] + written[a]) for a in kernel.arguments]), moved


def _bytes(argument: Argument, times: int) -> int:
    """The bytes of `times` accesses, at most those of the argument."""
    return min(times, int(argument.size)) * np.dtype(argument.dtype).itemsize


_Facts = tuple[frozenset[Variable], bool]  # the variables it depends on, whether it reads data


class _Count:
    """Counts operations and loads in a fold of expressions."""

    def __init__(self, of_sum: frozenset[Variable]) -> None:
        self._of_sum = of_sum  # the variables that a contraction's sum depends on
        self._fold = Fold(self._expression)
        self._total = 0.0
        self.touched: dict[Argument, int] = {}  # how often elements are loaded

    def all(self, roots: Iterable[Expr]) -> float:
        """The operations of some expressions."""
        for root in roots:
            self._fold.of(root)
        return self._total

    def _expression(self, part: Expr, known: Fold[_Facts]) -> _Facts:
        operands = known.parts(part)
        variables = _NOTHING.union(*[variables for variables, _ in operands])
        reads_data = any(is_data for _, is_data in operands)
        match part:
            case Accumulated():
                return self._of_sum, True
            case Load():
                free = free_variables(part)
                self.touched[part.buffer] = self.touched.get(part.buffer, 0) + iterations(free)
                return free, True
            case Reduce():
                self._add(variables.union(part.variables), reads_data)
                return variables.difference(part.variables), reads_data
            case Index():
                return frozenset([part.variable]), False
            case _ if not isinstance(part, _FREE):
                self._add(variables, reads_data)
            case _:
                pass
        return variables, reads_data

    def _add(self, variables: frozenset[Variable], reads_data: bool) -> None:
        self._total += iterations(variables) if reads_data else 0
