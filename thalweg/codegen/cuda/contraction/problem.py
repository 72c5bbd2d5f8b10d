"""Contractions as matrix products: spaces of rows, columns and terms, and access to operands.

Given a lowered `Contraction`, it returns a `Problem`: the contraction over the fewest variables,
with one index per role, and for each operand its element type, the axis that is contiguous in
memory, and the number of elements of an aligned access along it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd
from typing import Any, Literal

import ml_dtypes
import numpy as np

from thalweg.codegen.contraction.form import (
    NotContraction,
    depthwise_lane,
    has_contiguous_rows,
    loads_of,
    normalized,
    swapped,
)
from thalweg.codegen.cuda.contraction.space import Space, Words
from thalweg.ir.dynamic import is_static
from thalweg.ir.expr import Cast, Expr, Load, Variable
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Access, Bound, Contraction
from thalweg.platform.dtype_traits import is_narrow_float

BFLOAT16, FLOAT16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)

ACCESS_BYTES = 16  # the widest access of a thread
Axis = Literal["k", "mn"]


@dataclass(frozen=True, eq=False)
class Operand:
    """A factor over two spaces: `across` (rows or columns) and `along` (terms of the sum).

    Elements are contiguous along the last variable of one of them, `axis`; `vector` of these are
    one aligned access, for all values of the other variables, and the bounds hold for all or none
    of them. In shared memory it has lines of `line_bytes`. One with a `source` is a copy of that in
    scratch memory, which an earlier launch makes.
    """

    access: Access
    across: Space
    along: Space
    axis: Axis
    vector: int
    line_bytes: int = 128
    source: Operand | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of its elements."""
        return np.dtype(self.access.value.dtype)

    @property
    def is_plain(self) -> bool:
        """Whether it is an element of memory at an affine offset, without conversion."""
        value = self.access.value
        return isinstance(value, Load) and value.offset.is_plain

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """The bounds outside of which it is zero."""
        return self.access.bounds


@dataclass(frozen=True, eq=False)
class Problem:
    """A contraction as a batch of matrix products."""

    kernel: Contraction
    batch: Space
    rows: Space
    columns: Space
    reduced: Space
    a: Operand
    b: Operand
    is_aligned: bool  # all buffers begin at multiples of 16 bytes

    @property
    def swapped(self) -> Problem:
        """The problem with rows and columns exchanged."""
        return replace(
            self,
            kernel=swapped(self.kernel),
            rows=self.columns,
            columns=self.rows,
            a=self.b,
            b=self.a,
        )

    @property
    def first_word(self) -> int:
        """The index of the first argument word that is a run-time size."""
        return len(self.kernel.arguments) + 2

    def words(self, sizes: Sequence[int] = ()) -> Words:
        """The sizes of a call."""
        return Words(self.first_word, sizes)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The type of the sums."""
        return np.dtype(self.kernel.dtype)

    @cached_property
    def shape(self) -> tuple[int, int, int, int]:
        """Batch, rows, columns and terms; a constant for those known only at run time."""
        words = self.words()
        spaces = self.batch, self.rows, self.columns, self.reduced
        batch, m, n, k = (max(1, space.count(words)) for space in spaces)
        return batch, m, n, k


def problem_of(kernel: Contraction, is_aligned: bool = True) -> Problem:
    """A contraction as a matrix product. The buffers begin at multiples of 16 bytes if they are
    `is_aligned`, else at any element.

    Raises `NotContraction` for dot products, and products of each channel with its own filter.
    """
    if not kernel.stores:
        raise NotContraction("nothing is stored")
    kernel = normalized(kernel)
    if has_contiguous_rows(kernel) or not kernel.columns:
        kernel = swapped(kernel)
    if not kernel.columns or not kernel.reduced:
        raise NotContraction("a product with neither rows nor columns, or of no sums")
    if depthwise_lane(kernel) is not None:
        raise NotContraction("channels with a filter each")
    kernel = replace(kernel, a=_narrow(kernel.a), b=_narrow(kernel.b))
    stored = [store.offset for store in kernel.stores]
    batch = Space(kernel.batch)
    rows = Space(_with_last(kernel.rows, [*_places(kernel.a), *stored]))
    columns = Space(_with_last(kernel.columns, [*stored, *_places(kernel.b)]))
    reduced = Space(_with_last(kernel.reduced, [*_places(kernel.a), *_places(kernel.b)]))
    a = _operand(kernel.a, rows, reduced, is_aligned)
    b = _operand(kernel.b, columns, reduced, is_aligned)
    return Problem(kernel, batch, rows, columns, reduced, a, b, is_aligned)


def _narrow(access: Access) -> Access:
    """A factor without its conversion to the dtype of the sum."""
    value = access.value
    if isinstance(value, Cast) and is_narrow_float(value.value.dtype):
        return replace(access, value=value.value)
    return access


def _places(access: Access) -> list[Affine]:
    return [load.offset for load in loads_of(access.value)]


def _with_last(variables: tuple[Variable, ...], places: Iterable[Affine]) -> tuple[Variable, ...]:
    """The variables, with the contiguous one last, if there is one."""
    for place in places:
        for variable in variables:
            factor = place.factor(variable)
            if is_static(factor) and factor == 1:
                return *(v for v in variables if v is not variable), variable
    return variables


def _operand(access: Access, across: Space, along: Space, is_aligned: bool) -> Operand:
    """A factor over its two spaces. If it is contiguous along neither, its elements are read one by
    one."""
    width = ACCESS_BYTES // np.dtype(access.value.dtype).itemsize if is_aligned else 1
    spaces: dict[Axis, Space] = {"k": along, "mn": across}
    is_near = {
        axis: any(_is_near(place, space.last) for place in _places(access))
        for axis, space in spaces.items()
    }
    widths: dict[Axis, int] = {
        axis: vector_of([access.value], access.bounds, space.last, width) if is_near[axis] else 1
        for axis, space in spaces.items()
    }
    if widths["k"] == widths["mn"]:
        axis: Axis = "mn" if is_near["mn"] and not is_near["k"] else "k"
    else:
        axis = "k" if widths["k"] > widths["mn"] else "mn"
    return Operand(access, across, along, axis, widths[axis])


def _is_near(place: Affine, variable: Variable | None) -> bool:
    return (
        variable is not None and is_static(place.factor(variable)) and place.factor(variable) == 1
    )


def vector_of(
    values: Iterable[Expr | None], bounds: Iterable[Bound], lane: Variable | None, most: int
) -> int:
    """The number of values of a variable that can be vectorized, at most `most`: loads are
    contiguous or uniform, and bounds hold for all or none."""
    if lane is None or not is_static(lane.extent):
        return 1
    if any(lane in place.variables for _, place, _ in bounds):
        return 1
    width = gcd(most, lane.extent)
    for value in values:
        for load in loads_of(value):
            width = gcd(width, _width(load.offset, lane))
    return width


def _width(place: Affine, lane: Variable) -> int:
    factor = place.factor(lane)
    if not place.is_plain or not is_static(factor):
        return 1
    return 0 if factor == 0 else alignment_of(place, lane) if factor == 1 else 1


def alignment_of(place: Affine, lane: Variable | None) -> int:
    """The alignment in elements of offsets at multiples of the lane's vector."""
    if not place.is_plain:
        return 1
    numbers = [place.constant, *(f for v, f in place.strides.items() if v is not lane)]
    return gcd(*map(int, numbers)) if all(map(is_static, numbers)) else 1
