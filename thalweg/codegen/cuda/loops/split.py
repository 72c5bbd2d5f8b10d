"""Split reductions: long reductions to few results in two launches.

If there are fewer teams than the GPU can run, several teams share a reduction. The first launch
stores the state of each team in scratch memory; the second combines them in a fixed order, and runs
the rest of the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from thalweg.codegen.cuda.loops.mapping import (
    MIN_UNROLLED,
    UNROLLED,
    Mapping,
    block_count,
    is_shared,
    item_count,
    terms_of,
)
from thalweg.codegen.llvm.builder import Value
from thalweg.codegen.loops.simplify import static_extent
from thalweg.codegen.math.elements import accumulator_of
from thalweg.ir.expr import Reduce
from thalweg.ir.rewrite import postorder

_CELL = 8  # bytes of a value in scratch memory
_MAX_ELEMENTS = 1 << 15  # a block reduces them faster than a second launch starts
_MIN_TERMS = 64  # of a part
_MAX_PARTS = 512
COLUMN_BLOCKS = 2  # resident blocks of column sums per multiprocessor
_COMBINING_TEAM, _COMBINING_THREADS = 64, 512  # of the second launch, with all loads in flight


@dataclass(frozen=True, eq=False)
class Split:
    """A split reduction: the number of parts, and the layout of their states in scratch memory.

    Each value of a state has a row of cells, indexed by part, then by the element of the items.
    """

    parts: int
    elements: int
    rows: dict[Reduce, int]

    @property
    def scratch(self) -> int:
        """The bytes of all states."""
        count = sum(accumulator_of(expr).size for expr in self.rows)
        return count * self.parts * self.elements * _CELL

    def row(self, expr: Reduce, number: int) -> int:
        """The first cell of a value of a reduction's states."""
        return (self.rows[expr] + number) * self.parts * self.elements


@dataclass(frozen=True)
class Phase:
    """One of the two launches."""

    split: Split
    is_first: bool
    scratch: Value


def split_of(mapping: Mapping) -> Split | None:
    """The split of the reductions of a kernel, if it pays."""
    if mapping.kind not in ("row", "column"):
        return None
    shared = [expr for expr in mapping.form.every(Reduce) if is_shared(expr, mapping.form)]
    inner = {part for expr in shared for part in postorder([expr.body])}
    extents = {v: static_extent(v) for v in mapping.items}
    if not inner.isdisjoint(shared) or None in extents.values():
        return None
    items = item_count(mapping, {v: int(v.extent) for v in mapping.items})
    blocks = block_count(mapping, items)
    terms = max(map(terms_of, shared))
    elements = items * mapping.item_width
    wanted = COLUMN_BLOCKS * mapping.target.multiprocessors // blocks
    parts = _even_parts(mapping, terms, min(wanted, terms // _MIN_TERMS, _MAX_PARTS))
    if parts < 2 or 2 * blocks > mapping.target.multiprocessors:
        return None
    if terms * elements <= _MAX_ELEMENTS * blocks:
        return None
    rows, count = dict[Reduce, int](), 0
    for expr in shared:
        rows[expr] = count
        count += accumulator_of(expr).size
    return Split(parts, elements, rows)


def _even_parts(mapping: Mapping, terms: int, most: int) -> int:
    """A number of parts, near the maximum, for which the threads of columns have the fewest rounds
    of terms."""
    if mapping.kind == "row":
        return most

    def rounds(parts: int) -> int:
        sharing = parts * mapping.team
        each = -(-terms // sharing)
        return -(-each // UNROLLED) if terms >= MIN_UNROLLED * sharing else each

    return min(range(most, most // 2, -1), key=rounds, default=most)


def combining(mapping: Mapping, split: Split) -> Mapping:
    """The mapping of the second launch."""
    if mapping.kind == "row":
        return mapping
    team = min(1 << (split.parts - 1).bit_length(), _COMBINING_TEAM)
    return replace(mapping, width=1, team=team, side=_COMBINING_THREADS // team)
