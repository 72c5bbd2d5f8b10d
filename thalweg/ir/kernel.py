"""What a kernel is: loops that store elements, and contractions, over flat buffers.

This is the form between `thalweg.lower`, which fuses a step's ops into kernels, and
`thalweg.codegen`, which makes machine code of them. Shapes are gone: an element of a buffer is
found at an `Offset`, a sum of index variables times strides. Values are the expressions of
`thalweg.ir.expr`, with loads of arguments (`Load`), and in the stores of a contraction the finished
sum (`Accumulated`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from thalweg.ir.expr import Expr
from thalweg.ir.loop import Variable
from thalweg.ir.rewrite import Rewriter


class Dynamic(int):
    """An integer that is read when the kernel runs: a size or stride that varies between calls.

    Its value is that of the call the kernel was made for, a hint and nothing more; arithmetic on it
    would freeze the hint into the code, so there is none.
    """

    word: int  # where the kernel finds it among its argument words

    def __eq__(self, other: object) -> bool:
        """No number equals it but itself: its value is a hint."""
        return self is other or (
            type(other) is type(self)
            and vars(self) == vars(other) != {}
            and int(self) == int(other)
        )

    __hash__ = int.__hash__

    def _refuse(self, *_: object) -> Any:
        raise TypeError("arithmetic on an integer that is known only at run time")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __neg__ = _refuse


@dataclass(frozen=True, eq=False)
class Argument:
    """A buffer that a kernel reads or writes: `size` elements in row-major order."""

    position: int
    dtype: Any
    size: int
    written: bool = False


@dataclass(frozen=True)
class Offset:
    """The number of an element in its buffer: constant + Σ factor · term.

    A term is a variable, or an integer expression where the place is computed (a gathered row).
    """

    constant: int
    terms: tuple[tuple[int, Variable | Expr], ...] = ()

    def factor(self, variable: Variable) -> int:
        """By how much the offset grows when a variable grows by one (if it is a plain term)."""
        return next((factor for factor, term in self.terms if term is variable), 0)

    @cached_property
    def key(self) -> Any:
        """What tells it from other offsets, without keeping anything of it alive."""
        return self.constant, *((factor, id(term)) for factor, term in self.terms)

    @property
    def parts(self) -> tuple[Expr, ...]:
        """The terms that are computed."""
        return tuple([term for _, term in self.terms if isinstance(term, Expr)])

    @cached_property
    def variables(self) -> frozenset[Variable]:
        """The variables that are terms themselves."""
        return frozenset([term for _, term in self.terms if isinstance(term, Variable)])

    def rebuild(self, to: Rewriter) -> Offset:
        """This with what a rewriter has made of its computed terms."""
        if not self.parts:
            return self
        terms = [(f, to.new(term) if isinstance(term, Expr) else term) for f, term in self.terms]
        return Offset(self.constant, tuple(terms))


@dataclass(frozen=True, eq=False)
class Store:
    """An element that is written: for every value of `variables`, `value` goes to `offset`.

    `combine` other than "set" folds it into what is there. Where `inside` is given and false,
    nothing is stored. Two values of a `distinct` variable never lead to the same element, even
    where the offset is computed.
    """

    argument: Argument
    variables: tuple[Variable, ...]
    offset: Offset
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
    bounds: tuple[tuple[int, Offset, int], ...] = ()


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
