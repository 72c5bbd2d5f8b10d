"""What a kernel is: loops that store elements, and contractions, over flat buffers.

This is the form between `thalweg.lower`, which fuses a step's ops into kernels, and
`thalweg.codegen`, which makes machine code of them. Shapes are gone: an element of a buffer is
found at an `Affine` offset, a sum of index variables times strides. Values are the expressions of
`thalweg.ir.expr`, with loads of arguments (`Load`), and in the stores of a contraction the finished
sum (`Accumulated`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.ir.dynamic import is_static
from thalweg.ir.expr import Expr, Variable
from thalweg.ir.index import Affine


@dataclass(frozen=True, eq=False)
class Argument:
    """A buffer that a kernel reads or writes: `size` elements in row-major order."""

    position: int
    dtype: Any
    size: int
    written: bool = False

    def contains(self, offset: Affine) -> bool:
        """Whether a place lies in the buffer for all values of its variables."""
        low, high = offset.bounds
        return low >= 0 and is_static(self.size) and high < self.size


@dataclass(frozen=True, eq=False)
class Store:
    """An element that is written: for every value of `variables`, `value` goes to `offset`.

    `combine` other than "set" is the reduction of it and what is there. Where `inside` is given and
    false, nothing is stored. Two values of a `distinct` variable never lead to the same element,
    even where the offset is computed.
    """

    argument: Argument
    variables: tuple[Variable, ...]
    offset: Affine
    value: Expr
    combine: str = "set"
    inside: Expr | None = None
    distinct: frozenset[Variable] = frozenset()


@dataclass(frozen=True, eq=False)
class Check:
    """A condition that must hold for every value of `variables`; if not, the step has a fault."""

    variables: tuple[Variable, ...]
    condition: Expr
    fault: int  # what goes into the fault word: the number of the check in its step, from 1


@dataclass(frozen=True, eq=False)
class Loops:
    """A kernel of nested loops: `variables` from the outermost to the innermost.

    The variables of each store and check are a prefix of them. Iterations may run in any order and
    on any thread, but for those of `serial` variables, which run in order on one thread.
    """

    arguments: tuple[Argument, ...]
    variables: tuple[Variable, ...]
    stores: tuple[Store, ...]
    checks: tuple[Check, ...] = ()
    serial: frozenset[Variable] = frozenset()


@dataclass(frozen=True, eq=False)
class Access:
    """A factor of a contraction: `value` is a load, or an elementwise expression over loads.

    Where one of `bounds` does not hold (padding), the factor counts as zero and is not read: each
    is (low, offset, high) for low <= offset < high.
    """

    value: Expr
    bounds: tuple[tuple[int, Affine, int], ...] = ()


@dataclass(frozen=True, eq=False)
class Contraction:
    """A sum of products: for all values of batch, rows and columns, Σ over reduced of a · b.

    `rows` occur in `a` and not in `b`, `columns` in `b` and not in `a`, `batch` and `reduced` in
    both (or in one of them). The stores, over (*batch, *rows, *columns), say what becomes of the
    sum, an element of `dtype` (float32 or float64): bias, activation, residual, cast.
    """

    arguments: tuple[Argument, ...]
    batch: tuple[Variable, ...]
    rows: tuple[Variable, ...]
    columns: tuple[Variable, ...]
    reduced: tuple[Variable, ...]
    a: Access
    b: Access
    dtype: Any
    stores: tuple[Store, ...]


Kernel = Loops | Contraction
