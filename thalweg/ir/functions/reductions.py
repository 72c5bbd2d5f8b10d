"""The reductions: one row each, and the only list of them.

A row says what a reduction means (by NumPy), what it gives for no elements, how two partial results
join, as code over registers, and what planners ask. A new reduction is a row here, and the op block
that reduces with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from thalweg.ir.functions.dtypes import BOOL, INT64, Dtype
from thalweg.ir.functions.function import Emit, Site
from thalweg.ir.functions.register import Register
from thalweg.ir.functions.table import FUNCTIONS
from thalweg.platform.dtype_traits import bounds, is_float


@dataclass(frozen=True)
class Reduction:
    """A way to combine elements; the state of one that is under way is a list of registers.

    The elements may come in any order, except that a position is behind those taken before.
    """

    name: str
    numpy: Any  # a ufunc, or what finds a position along an axis
    identity: Callable[[Dtype], Any]  # what no elements give, as a number of their dtype
    function: str  # of the table: it combines two elements
    emit: Emit | None = None  # code for that where the table's is not the best
    result: Dtype | None = None  # the dtype of the result; None: that of the elements
    sign: str = ""  # of a store that combines a value with what is there
    rounds: bool = False  # floats lose digits: narrow ones are accumulated in float32
    compensated: bool = False  # long ones of floats keep what rounding took
    atomic: bool = False  # processors have an indivisible update of memory

    @property
    def keeps_dtype(self) -> bool:
        """Whether partial results are of the dtype of elements: it may be done in stages, and
        stores may combine with it."""
        return self.result is None

    @property
    def gives_position(self) -> bool:
        """Whether the result is the index of an element."""
        return self.result == INT64

    def combine(self, site: Site, one: Register, other: Register) -> Register:
        """Two elements or partial results combined."""
        emit = self.emit or FUNCTIONS[self.function].emit
        assert emit is not None
        return emit(site, one, other)

    def accumulate(
        self, site: Site, state: Sequence[Register], element: Register, position: Register
    ) -> list[Register]:
        """The state after one more element."""
        return [self.combine(site, state[0], element)]

    def merge(
        self, site: Site, one: Sequence[Register], other: Sequence[Register]
    ) -> list[Register]:
        """The state of the elements of two states."""
        return [self.combine(site, one[0], other[0])]


class _Position(Reduction):
    """The index of an extreme: the first of equal ones. NaN never is one."""

    def accumulate(
        self, site: Site, state: Sequence[Register], element: Register, position: Register
    ) -> list[Register]:
        wins = _beats(self.function, site, element, state[0])
        return [wins.choose(element, state[0]), wins.choose(position, state[1])]

    def merge(
        self, site: Site, one: Sequence[Register], other: Sequence[Register]
    ) -> list[Register]:
        earlier = other[1] < one[1]
        ties = one[0].equals(other[0]) & earlier
        wins = _beats(self.function, site, other[0], one[0]) | ties
        return [wins.choose(y, x) for x, y in zip(one, other, strict=True)]


def _beats(function: str, site: Site, one: Register, other: Register) -> Register:
    """Whether an element is larger (or smaller) than another; NaN never is."""
    relation = "gt" if function == "max" else "lt"
    if is_float(site.dtype):
        return one.compared(f"o{relation}", other)
    return one.compared(("s" if site.signed else "u") + relation, other)


def _extreme(function: str) -> Emit:
    """The larger or smaller of two, NaN if either is."""

    def emit(site: Site, one: Register, other: Register) -> Register:
        if site.is_float and (found := one.nan_extreme(f"{function}imum", other)) is not None:
            return found
        best = _beats(function, site, one, other).choose(one, other)
        # The processor's own maximum gives the second if either is NaN: what is left is the first.
        return one.is_nan().choose(one, best) if site.is_float else best

    return emit


def _number(value: int) -> Callable[[Dtype], Any]:
    return lambda dtype: np.asarray(value).astype(dtype)[()]


def _bound(side: int) -> Callable[[Dtype], Any]:
    return lambda dtype: bounds(dtype)[side]


_ROWS = (
    Reduction(
        "sum", np.add, _number(0), "add", sign="+=", rounds=True, compensated=True, atomic=True
    ),
    Reduction("prod", np.multiply, _number(1), "mul", sign="*=", rounds=True),
    Reduction("max", np.maximum, _bound(0), "max", _extreme("max"), sign="max="),
    Reduction("min", np.minimum, _bound(1), "min", _extreme("min"), sign="min="),
    Reduction("all", np.logical_and, _number(1), "and", result=BOOL),
    Reduction("any", np.logical_or, _number(0), "or", result=BOOL),
    _Position("argmax", np.argmax, _bound(0), "max", result=INT64),
    _Position("argmin", np.argmin, _bound(1), "min", result=INT64),
)

#: Every reduction by its name.
REDUCTIONS: dict[str, Reduction] = {row.name: row for row in _ROWS}
