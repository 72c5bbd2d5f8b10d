"""The table of reductions: one row each, and the only list of them.

A row has a reduction's NumPy definition, its identity, the function that combines two elements,
and what planners need. A new reduction is a row here, and the op block that reduces with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from thalweg.ir.functions.dtypes import BOOL, INT64, Dtype
from thalweg.ir.functions.function import Site
from thalweg.ir.functions.register import Register
from thalweg.ir.functions.table import FUNCTIONS
from thalweg.platform.dtype_traits import bounds, is_float


@dataclass(frozen=True)
class Reduction:
    """A reduction; its state is a list of registers.

    Elements may be accumulated in any order, but positions must increase.
    """

    name: str
    numpy: Any  # a ufunc, or a function that finds a position along an axis
    identity: Callable[[Dtype], Any]  # the result for no elements, by dtype
    function: str  # of the function table: combines two elements
    result: Dtype | None = None  # the dtype of the result; None: that of the elements
    sign: str = ""  # of a combining store in kernel text: "+="
    rounds: bool = False  # inexact: narrow floats accumulate in float32
    compensated: bool = False  # long float reductions are compensated
    atomic: bool = False  # processors have an atomic update of memory

    @property
    def keeps_dtype(self) -> bool:
        """Whether partial results have the elements' dtype: it may be split into stages, and stores
        may combine with it."""
        return self.result is None

    @property
    def gives_position(self) -> bool:
        """Whether the result is the index of an element."""
        return self.result == INT64

    def combine(self, site: Site, one: Register, other: Register) -> Register:
        """Combine two elements or partial results."""
        emit = FUNCTIONS[self.function].emit
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
        """The state of the elements of both."""
        return [self.combine(site, one[0], other[0])]


class _Position(Reduction):
    """The index of the first extreme; NaN is ignored."""

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
    """Whether an element is larger (or smaller) than another; false for NaN."""
    relation = "gt" if function == "max" else "lt"
    if is_float(site.dtype):
        return one.compared(f"o{relation}", other)
    return one.compared(("s" if site.signed else "u") + relation, other)


def _number(value: int) -> Callable[[Dtype], Any]:
    return lambda dtype: np.asarray(value).astype(dtype)[()]


def _bound(side: int) -> Callable[[Dtype], Any]:
    return lambda dtype: bounds(dtype)[side]


_ROWS = (
    Reduction(
        "sum", np.add, _number(0), "add", sign="+=", rounds=True, compensated=True, atomic=True
    ),
    Reduction("prod", np.multiply, _number(1), "mul", sign="*=", rounds=True),
    Reduction("max", np.maximum, _bound(0), "max", sign="max="),
    Reduction("min", np.minimum, _bound(1), "min", sign="min="),
    Reduction("all", np.logical_and, _number(1), "and", result=BOOL),
    Reduction("any", np.logical_or, _number(0), "or", result=BOOL),
    _Position("argmax", np.argmax, _bound(0), "max", result=INT64),
    _Position("argmin", np.argmin, _bound(1), "min", result=INT64),
)

#: Every reduction by its name.
REDUCTIONS: dict[str, Reduction] = {row.name: row for row in _ROWS}
