"""Winograd's algorithm: m outputs of a filter of r taps for m + r - 1 products.

What comes in are the numbers of outputs and taps; what goes out are three small matrices, with
which a filtered piece of a line is `of_outputs · ((of_filters · taps) * (of_inputs · elements))`,
and the code that applies such a matrix along both axes of a tile of registers.
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
Terms = tuple[tuple[float, int], ...]  # the factors of a sum that are not zero, each of what

#: Where polynomials are multiplied, besides at infinity, by the number of products: few bits each,
#: of alternating sign so that two share their work, and near 1, so that no power of them is large.
#: With ±3/4 and ±3/2 results are three times as exact as with the usual ±1 and ±2.
_POINTS = {
    4: (Fraction(0), Fraction(1), Fraction(-1)),
    6: (Fraction(0), Fraction(3, 4), Fraction(-3, 4), Fraction(3, 2), Fraction(-3, 2)),
}


#: For so many taps, how many outputs a piece of a line may give: results of more are less exact.
OUTPUT_SIZES = {3: (2, 4), 5: (2,)}


@dataclass(frozen=True)
class Algorithm:
    """The transforms of pieces of `size` elements that give so many outputs."""

    outputs: int
    taps: int
    input_transform: Matrix
    filter_transform: Matrix
    output_transform: Matrix

    @property
    def size(self) -> int:
        """How many elements, and products, a piece of a line has."""
        return self.outputs + self.taps - 1

    @property
    def products(self) -> int:
        """How many products a tile has."""
        return self.size**2


@memoized(64)
def algorithm(outputs: int, taps: int) -> Algorithm:
    """The transforms of Toom and Cook, transposed, for one of `WAYS`."""
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
    """The coefficients of the product of x - root, the constant one first."""
    result = [Fraction(1)]
    for root in roots:
        raised, lowered = [Fraction(0), *result], [*(root * c for c in result), Fraction(0)]
        result = [a - b for a, b in zip(raised, lowered, strict=True)]
    return tuple(result)


@dataclass(frozen=True)
class _RowPair:
    """A row of a matrix, by its number; or two that differ in signs alone, which are the sum and
    the difference of two other rows."""

    rows: tuple[int, ...]
    parts: tuple[Terms, ...]


def transform_2d(b: Builder, matrix: Matrix, tile: Tile) -> list[list[Value]]:
    """matrix · tile · matrixᵀ, in registers."""
    columns = [transform_1d(b, matrix, column) for column in zip(*tile, strict=True)]
    return [transform_1d(b, matrix, row) for row in zip(*columns, strict=True)]


def transform_1d(b: Builder, matrix: Matrix, values: Sequence[Value]) -> list[Value]:
    """matrix · values."""
    found: dict[int, Value] = {}
    for pair in _row_pairs(matrix):
        parts = [_sum(b, terms, values) for terms in pair.parts]
        found[pair.rows[0]] = parts[0]
        if len(parts) == 2:
            for number, operation in zip(pair.rows, ("fadd", "fsub"), strict=True):
                found[number] = b.binary(operation, *parts)
    return [found[number] for number in range(len(matrix))]


@memoized(16)
def _row_pairs(matrix: Matrix) -> list[_RowPair]:
    pairs: list[_RowPair] = []
    taken: set[int] = set()
    for number, row in enumerate(matrix):
        if number in taken:
            continue
        twin = _twin(matrix, number)
        if twin is None:
            pairs.append(_RowPair((number,), (_terms(row),)))
            continue
        taken.add(twin)
        both = list(zip(row, matrix[twin], strict=True))
        same, opposite = (_terms([(a + s * b) / 2 for a, b in both]) for s in (1, -1))
        pairs.append(_RowPair((number, twin), (same, opposite)))
    return pairs


def _twin(matrix: Matrix, number: int) -> int | None:
    """A later row with the same coefficients, some of them with the other sign."""
    row = matrix[number]
    for other in range(number + 1, len(matrix)):
        pairs = list(zip(row, matrix[other], strict=True))
        equal, opposite = (sum(1 for a, b in pairs if a and a == s * b) for s in (1, -1))
        if equal and opposite and all(abs(a) == abs(b) for a, b in pairs):
            return other
    return None


def _terms(row: Sequence[Fraction]) -> Terms:
    """The terms of a row; those that need no product come first."""
    terms = [(float(factor), number) for number, factor in enumerate(row) if factor]
    return tuple(sorted(terms, key=lambda term: term[0] != 1))


def _sum(b: Builder, terms: Terms, values: Sequence[Value]) -> Value:
    """The sum of values times constants."""
    (first, at), *others = terms
    total = _scaled(b, first, values[at])
    for factor, number in others:
        total = _added(b, total, factor, values[number])
    return total


def _scaled(b: Builder, factor: float, value: Value) -> Value:
    if factor == 1:
        return value
    return b.binary("fmul", value, factor)


def _added(b: Builder, total: Value, factor: float, value: Value) -> Value:
    if abs(factor) == 1:
        return b.binary("fadd" if factor == 1 else "fsub", total, value)
    return b.multiply_add(value, constant(value.type, factor), total)
