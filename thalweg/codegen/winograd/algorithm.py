"""Winograd's algorithm: m outputs of a filter of r taps for m + r - 1 products.

The numbers of outputs and taps come in; three small matrices go out, with which in one dimension
outputs are `output_transform · ((filter_transform · taps) * (input_transform · inputs))`, and the
code that applies a matrix along both axes of a tile in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from thalweg.codegen.llvm.builder import Builder, Value, constant
from thalweg.platform.caches import memoized

Row = tuple[Fraction, ...]
Matrix = tuple[Row, ...]
Tile = Sequence[Sequence[Value]]
Terms = tuple[tuple[float, int], ...]  # (coefficient, index) of a sum, zeros left out

#: Interpolation points besides infinity, by the number of products: of few bits, and near 1, so
#: that no power of them is large. With ±3/4 and ±3/2 errors are a third of those with the usual ±1
#: and ±2.
_POINTS = {
    4: (Fraction(0), Fraction(1), Fraction(-1)),
    6: (Fraction(0), Fraction(3, 4), Fraction(-3, 4), Fraction(3, 2), Fraction(-3, 2)),
}


#: The possible numbers of outputs per tile and axis, by taps: more outputs are less accurate.
OUTPUT_SIZES = {3: (2, 4), 5: (2,)}


@dataclass(frozen=True)
class Algorithm:
    """The transform matrices for a number of outputs and taps, F(outputs, taps)."""

    outputs: int
    taps: int
    input_transform: Matrix
    filter_transform: Matrix
    output_transform: Matrix

    @property
    def size(self) -> int:
        """The inputs, and products, of a tile along an axis."""
        return self.outputs + self.taps - 1

    @property
    def products(self) -> int:
        """The products of a two-dimensional tile."""
        return self.size**2


@memoized(64)
def algorithm(outputs: int, taps: int) -> Algorithm:
    """The transposed Toom-Cook transforms for one of `OUTPUT_SIZES`."""
    points = _POINTS[outputs + taps - 1]
    others = {p: [q for q in points if q != p] for p in points}
    inputs = [(*_polynomial(rest), Fraction(0)) for rest in others.values()]
    scales = {p: 1 / prod((p - q for q in rest), start=Fraction(1)) for p, rest in others.items()}
    filters = [tuple(p**k * scale for k in range(taps)) for p, scale in scales.items()]
    last = tuple(Fraction(k == taps - 1) for k in range(taps))
    results = ((*(p**i for p in points), Fraction(i == outputs - 1)) for i in range(outputs))
    return Algorithm(
        outputs, taps, (*inputs, _polynomial(points)), (*filters, last), tuple(results)
    )


def _polynomial(roots: Sequence[Fraction]) -> Row:
    """The coefficients of Π (x - root), the constant one first."""
    result = [Fraction(1)]
    for root in roots:
        raised, lowered = [Fraction(0), *result], [*(root * c for c in result), Fraction(0)]
        result = [a - b for a, b in zip(raised, lowered, strict=True)]
    return tuple(result)


def transform_2d(b: Builder, matrix: Matrix, tile: Tile) -> list[list[Value]]:
    """matrix · tile · matrixᵀ, in registers."""
    columns = [transform_1d(b, matrix, column) for column in zip(*tile, strict=True)]
    return [transform_1d(b, matrix, row) for row in zip(*columns, strict=True)]


def transform_1d(b: Builder, matrix: Matrix, values: Sequence[Value]) -> list[Value]:
    """matrix · values."""
    return [_sum(b, terms, values) for terms in _rows_of_terms(matrix)]


@memoized(16)
def _rows_of_terms(matrix: Matrix) -> list[Terms]:
    """The nonzero terms of each row; those of coefficient 1 come first."""
    rows = [[(float(f), number) for number, f in enumerate(row) if f] for row in matrix]
    return [tuple(sorted(terms, key=lambda term: term[0] != 1)) for terms in rows]


def _sum(b: Builder, terms: Terms, values: Sequence[Value]) -> Value:
    """Emit the sum of values times constants."""
    (first, at), *others = terms
    total = values[at] if first == 1 else b.binary("fmul", values[at], first)
    for factor, number in others:
        value = values[number]
        if abs(factor) == 1:
            total = b.binary("fadd" if factor == 1 else "fsub", total, value)
        else:
            total = b.multiply_add(value, constant(value.type, factor), total)
    return total
