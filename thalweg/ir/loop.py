"""Loop forms: how an op that is not elementwise defines its output elements.

A block's `loop(self, at, *operands)` gets the index of an output element (`at`, one expression per
dimension) and its inputs as operands, and returns the element as an expression:

    def loop(self, at: IndexTuple, x: Operand, perm: Operand) -> Expr:  # transpose
        order = perm.constant().tolist()
        return x[tuple(at[order.index(axis)] for axis in range(x.rank))]

    def loop(self, at: IndexTuple, a: Operand, b: Operand) -> Expr:     # matrix product
        return reduce("sum", [a.shape[1]], lambda k: a[at[0], k] * b[k, at[1]])

An output that is written at computed indices (scatter, segment sums) is a `Scatter` instead. Shapes
are concrete here: a step is specialised for the shapes that were fed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from thalweg.ir.expr import (
    Expr,
    Index,
    OperandLoad,
    Reduce,
    Variable,
    as_expr,
    constant,
    select,
)
from thalweg.ir.functions.reductions import REDUCTIONS
from thalweg.platform.arrays import Array
from thalweg.platform.dtype_traits import compute_dtype


class NotLowered(Exception):
    """This node has no loop form: a value that it needs is not known before the step runs."""


class IndexTuple(tuple[Expr, ...]):
    """The index of an output element: an expression per dimension, and their extents."""

    variables: tuple[Variable, ...]  # the indices, if they are those of a loop nest
    shape: tuple[int, ...]
    output: int  # which output, for ops that have several

    @classmethod
    def over(cls, shape: Sequence[int], output: int = 0) -> IndexTuple:
        """The index in a loop nest over `shape`."""
        variables = tuple([Variable.fresh(extent) for extent in shape])
        result = cls.of(tuple(map(Index, variables)), [v.extent for v in variables], output)
        result.variables = variables
        return result

    @classmethod
    def of(cls, indices: Sequence[Expr], shape: Sequence[int], output: int = 0) -> IndexTuple:
        """An index of arbitrary expressions into an output of this shape."""
        result = cls(indices)
        result.variables, result.shape, result.output = (), tuple(shape), output
        return result

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self)

    def split(self, count: int) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
        """The first `count` indices, and the rest."""
        return self[:count], self[count:]


@dataclass(frozen=True, eq=False)
class Operand:
    """An input of the node: its concrete shape and dtype, and its value where that is constant."""

    position: int
    shape: tuple[int, ...]
    dtype: Any
    value: Array | None = None

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    def constant(self) -> Array:
        """The value, which must be known before the step runs (axes, permutations, paddings)."""
        if self.value is None:
            raise NotLowered(f"input {self.position} is not constant")
        return self.value

    def __getitem__(self, indices: Any) -> Expr:
        """The element at these indices (a tuple of expressions and integers)."""
        several = isinstance(indices, tuple | list)
        given = tuple(cast("Sequence[Any]", indices)) if several else (indices,)
        if len(given) != self.rank:
            raise ValueError(f"{len(given)} indices into an operand of rank {self.rank}")
        return OperandLoad(self, tuple([as_expr(index) for index in given]))

    def broadcast(self, at: IndexTuple | Sequence[Expr]) -> Expr:
        """The element at an index after broadcasting: aligned right, size 1 stretched."""
        aligned = list(at)[len(at) - self.rank :]
        return self[
            tuple(0 if size == 1 else i for size, i in zip(self.shape, aligned, strict=True))
        ]

    def or_else(self, indices: Sequence[Any], otherwise: Any) -> Expr:
        """The element at these indices, or `otherwise` where they are out of range."""
        pairs = zip(indices, self.shape, strict=True)
        computed = [(index, size) for index, size in pairs if isinstance(index, Expr)]
        if not computed:
            return self[tuple(indices)]
        return select(within(*zip(*computed, strict=True)), self[indices], otherwise)

    def flat(self, index: Any) -> Expr:
        """The element number `index` in row-major order."""
        return self[unravel(index, self.shape)]


@dataclass(frozen=True, eq=False, kw_only=True)
class Intermediate(Operand):
    """A tensor between the operands of an op and its output: each of its elements is computed once
    and stored, for all elements of the output that read it."""

    at: IndexTuple
    element: Expr


def intermediate(shape: Sequence[int], dtype: Any, body: Callable[..., Any]) -> Intermediate:
    """An `Intermediate`: `body` gives its element for one index per dimension."""
    at, kind = IndexTuple.over(shape), np.dtype(dtype)
    return Intermediate(-1, tuple(shape), kind, at=at, element=as_expr(body(*at)).cast(kind))


@dataclass(frozen=True, eq=False)
class Scatter:
    """An output that is written at computed indices.

    It starts as `initial` (an expression at the output's index, or a number). For every value of
    the variables `value` is combined into the element at `index`; one out of range is dropped.
    """

    combine: str
    variables: tuple[Variable, ...]
    index: tuple[Any, ...]
    value: Expr
    initial: Expr


@dataclass(frozen=True, eq=False)
class RuntimeCheck:
    """A condition on an op's input values; if it is false for any value of the variables, the op
    fails."""

    variables: tuple[Variable, ...]
    condition: Any


def runtime_check(extents: Sequence[int], body: Callable[..., Any]) -> RuntimeCheck:
    """A `RuntimeCheck` over a domain: `body` gives the condition for one index per extent."""
    at = IndexTuple.over(extents)
    return RuntimeCheck(at.variables, body(*at))


def reduce(kind: str, extents: Sequence[Any], body: Callable[..., Any]) -> Expr:
    """A reduction of the body, a function of one index per extent."""
    if kind not in REDUCTIONS:
        raise ValueError(f"no reduction '{kind}'")
    at = IndexTuple.over(extents)
    return Reduce(kind, at.variables, as_expr(body(*at)))


def prefix(
    kind: str,
    extent: int,
    here: Expr,
    body: Callable[[Expr], Any],
    exclusive: bool = False,
    reverse: bool = False,
) -> Expr:
    """A scan: the body reduced over the indices up to `here` (from it on, if reversed).

    It is a reduction over a guarded body, which lowering recognizes and runs in one pass.
    """

    def guarded(k: Expr) -> Expr:
        if reverse:
            counts = k > here if exclusive else k >= here
        else:
            counts = k < here if exclusive else k <= here
        value = as_expr(body(k))
        return select(counts, value, constant(REDUCTIONS[kind].identity(value.dtype)))

    return reduce(kind, [extent], guarded)


def scatter(
    combine: str,
    extents: Sequence[int],
    body: Callable[..., tuple[Sequence[Any], Any]],
    initial: Any,
) -> Scatter:
    """A `Scatter` over a domain: `body` gives (indices, value) for one index per extent."""
    at = IndexTuple.over(extents)
    index, value = body(*at)
    made = as_expr(value)
    start = initial if isinstance(initial, Expr) else constant(initial, made.dtype)
    return Scatter(combine, at.variables, tuple(map(as_expr, index)), made, start)


def ravel(indices: Sequence[Any], shape: Sequence[int]) -> Any:
    """The row-major number of the element at `indices`."""
    number: Any = 0
    for index, size in zip(indices, shape, strict=True):
        number = number * size + index
    return number


def unravel(number: Any, shape: Sequence[int]) -> tuple[Any, ...]:
    """The indices of element `number` in row-major order."""
    indices: list[Any] = []
    for size in reversed(shape):
        indices.append(0 if size == 1 else number % size)
        number = number // max(size, 1)
    return tuple(reversed(indices))


def reshaped(at: IndexTuple, shape: Sequence[int]) -> tuple[Any, ...]:
    """The indices into `shape` of the element with the same row-major number."""
    return unravel(ravel(at, at.shape), shape)


def within(indices: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Whether all indices are in range."""
    first, *others = [(i >= 0) & (i < size) for i, size in zip(indices, sizes, strict=True)]
    for other in others:
        first = first & other
    return first


def zero_of(operand: Operand) -> Expr:
    """Zero in an operand's dtype; a plain 0 would promote booleans."""
    return constant(0, operand.dtype)


def widened(x: Expr, dtype: Any) -> Expr:
    """An element in the dtype that kernels compute in: narrow floats become float32."""
    wide = compute_dtype(dtype)
    return x if wide == np.dtype(dtype) else x.cast(wide)


def lowered(
    op: Any,
    at: IndexTuple,
    operands: Sequence[Any],
    channels: int = 1,
    relaxed: bool = False,
) -> Expr | Scatter:
    """The loop form of an op at an index: its `loop`, or its `element` over broadcast operands.

    An op on images may have a `packed_loop` for targets that read several `channels` at once. A
    `relaxed_loop` rounds differently from `loop`, and reads memory fewer times or divides less.
    """
    if channels > 1 and op.has("packed_loop"):
        form = op.packed_loop(channels, at, *operands)
        if form is not None:
            return as_expr(form)
    if relaxed and op.has("relaxed_loop"):
        return as_expr(op.relaxed_loop(at, *operands))
    if op.has("loop"):
        form = op.loop(at, *operands)
        return form if isinstance(form, Scatter) else as_expr(form)
    return as_expr(op.element(*[_element(operand, at) for operand in operands]))


def _element(operand: Operand, at: IndexTuple) -> Expr:
    """An operand as an elementwise op reads it; one of higher rank is not read."""
    return (operand if operand.rank <= at.rank else replace(operand, shape=())).broadcast(at)


def iterations(variables: Iterable[Variable]) -> int:
    """The number of iterations of nested loops."""
    return math.prod([variable.extent for variable in variables])
