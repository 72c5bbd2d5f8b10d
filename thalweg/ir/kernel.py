"""Kernels: loop nests with stores, and contractions, over flat buffers.

This is the IR between `thalweg.lower`, which fuses a step's ops into kernels, and
`thalweg.codegen`, which compiles them. There are no shapes: an element of a buffer has an `Affine`
offset, a sum of index variables times strides. Values are the expressions of `thalweg.ir.expr`,
with loads of arguments (`Load`) and, in the stores of a contraction, its sum (`Accumulated`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from thalweg.ir.dynamic import Dynamic, factors_of, is_static
from thalweg.ir.expr import Expr, Load, Reduce, Variable, Word, uncast
from thalweg.ir.index import Affine
from thalweg.ir.rewrite import Rewriter, postorder

Kind = TypeVar("Kind", bound=Expr)


@dataclass(frozen=True, eq=False)
class Argument:
    """A buffer that a kernel reads or writes: `size` elements in row-major order."""

    position: int
    dtype: Any
    size: int
    written: bool = False

    def contains(self, offset: Affine) -> bool:
        """Whether an offset is within the buffer for all values of its variables."""
        return is_static(self.size) and offset.is_within(self.size)


@dataclass(frozen=True, eq=False)
class Store:
    """A store of `value` to `offset`, for every value of `variables`.

    `combine` other than "set" is the reduction that combines it with the old element. Where
    `inside` is given and false, nothing is stored. Two values of a `distinct` variable never store
    to the same element, even if the offset is computed.
    """

    buffer: Any  # a `Buffer` of `thalweg.lower`; in a kernel, its `Argument`
    variables: tuple[Variable, ...]
    offset: Affine
    value: Expr
    combine: str = "set"
    inside: Expr | None = None
    distinct: frozenset[Variable] = frozenset()

    @property
    def is_plain(self) -> bool:
        """Whether it sets its element unconditionally."""
        return self.combine == "set" and self.inside is None

    @property
    def roots(self) -> list[Expr]:
        """The expressions that it computes."""
        inside = [] if self.inside is None else [self.inside]
        return [self.value, *inside, *self.offset.parts]


@dataclass(frozen=True, eq=False)
class Check:
    """A condition that must hold for every value of `variables`; else the step faults."""

    variables: tuple[Variable, ...]
    condition: Expr
    fault: int  # the fault word: the number of the check in its step, from 1

    @property
    def roots(self) -> list[Expr]:
        """The expressions that it computes."""
        return [self.condition]


Bound = tuple[int, Affine, int]


class _KernelBase:
    """What both kinds of kernels have."""

    stores: tuple[Store, ...]

    @property
    def roots(self) -> list[Expr]:
        """The root expressions of stores, checks and factors."""
        raise NotImplementedError

    @property
    def loops(self) -> tuple[Variable, ...]:
        """All loop variables, those of reductions inside expressions aside."""
        raise NotImplementedError

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """The bounds of both factors of a contraction."""
        return ()

    @cached_property
    def parts(self) -> list[Expr]:
        """All expressions in postorder."""
        return postorder(self.roots)

    def every(self, kind: type[Kind]) -> list[Kind]:
        """All expressions of a class."""
        return [part for part in self.parts if isinstance(part, kind)]

    @property
    def offsets(self) -> list[Affine]:
        """The offsets of all loads, bounds and stores."""
        loaded = [load.offset for load in self.every(Load)]
        return loaded + [bound[1] for bound in self.bounds] + [s.offset for s in self.stores]

    @property
    def words(self) -> list[int]:
        """The positions of the argument words that hold run-time integers."""
        inner = [v for reduction in self.every(Reduce) for v in reduction.variables]
        numbers = [variable.extent for variable in (*self.loops, *inner)]
        numbers += [limit for low, _, high in self.bounds for limit in (low, high)]
        numbers += [number for offset in self.offsets for number in offset.integers]
        numbers += [word.number for word in self.every(Word)]
        factors = [factor for number in numbers for factor in factors_of(number)]
        return sorted({factor.word for factor in factors if isinstance(factor, Dynamic)})


@dataclass(frozen=True, eq=False)
class Loops(_KernelBase):
    """A kernel of nested loops over `variables`, outermost first.

    The variables of each store and check are a prefix of them. Iterations may run in any order and
    on any thread, except those of `serial` variables, which run in order on one thread.
    """

    arguments: tuple[Argument, ...]
    variables: tuple[Variable, ...]
    stores: tuple[Store, ...]
    checks: tuple[Check, ...] = ()
    serial: frozenset[Variable] = frozenset()

    @property
    def roots(self) -> list[Expr]:
        return [root for work in (*self.checks, *self.stores) for root in work.roots]

    @property
    def loops(self) -> tuple[Variable, ...]:
        return self.variables


@dataclass(frozen=True, eq=False)
class Access:
    """A factor of a contraction: `value` is a load, or an elementwise expression over loads.

    Where one of `bounds` does not hold (padding), the factor is zero and is not read. A bound is
    (low, offset, high), for low <= offset < high.
    """

    value: Expr
    bounds: tuple[Bound, ...] = ()

    @property
    def load(self) -> Load:
        """The load under its casts."""
        value = uncast(self.value)
        assert isinstance(value, Load)
        return value


@dataclass(frozen=True, eq=False)
class Contraction(_KernelBase):
    """A sum of products: for all values of batch, rows and columns, Σ over reduced of a · b.

    `rows` occur in `a` and not in `b`, `columns` in `b` and not in `a`, `batch` and `reduced` in
    both (or in one of them). The stores, over (*batch, *rows, *columns), are the epilogue of the
    sum, which is of `dtype` (float32 or float64): bias, activation, residual, cast. In a nest it
    has no arguments yet, and the stores are the nest's.
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

    @property
    def loops(self) -> tuple[Variable, ...]:
        return self.batch + self.rows + self.columns + self.reduced

    @property
    def bounds(self) -> tuple[Bound, ...]:
        return self.a.bounds + self.b.bounds

    @property
    def roots(self) -> list[Expr]:
        limited = [part for _, offset, _ in self.bounds for part in offset.parts]
        stored = [root for store in self.stores for root in store.roots]
        return [self.a.value, self.b.value, *limited, *stored]


Kernel = Loops | Contraction


class KernelRewriter(Rewriter):
    """Rewrites kernels and their expressions over other variables."""

    def kernel(self, kernel: Kernel) -> Kernel:
        """A kernel with all its expressions rewritten."""
        return self.loops(kernel) if isinstance(kernel, Loops) else self.contraction(kernel)

    def loops(self, kernel: Loops) -> Loops:
        """A kernel of loops with all its expressions rewritten."""
        return Loops(
            tuple(map(self.buffer, kernel.arguments)),
            self.variables(kernel.variables),
            tuple(map(self.store, kernel.stores)),
            tuple(map(self.check, kernel.checks)),
            frozenset(self.variables([v for v in kernel.variables if v in kernel.serial])),
        )

    def contraction(self, kernel: Contraction) -> Contraction:
        """A contraction with all its expressions rewritten."""
        return Contraction(
            tuple(map(self.buffer, kernel.arguments)),
            self.variables(kernel.batch),
            self.variables(kernel.rows),
            self.variables(kernel.columns),
            self.variables(kernel.reduced),
            self.access(kernel.a),
            self.access(kernel.b),
            kernel.dtype,
            tuple(map(self.store, kernel.stores)),
        )

    def store(self, store: Store) -> Store:
        """A store with its expressions rewritten."""
        return replace(
            store,
            buffer=self.buffer(store.buffer),
            variables=self.variables(store.variables),
            offset=self.place(store.offset),
            value=self.of(store.value),
            inside=store.inside and self.of(store.inside),
            distinct=frozenset(self.variables([v for v in store.variables if v in store.distinct])),
        )

    def check(self, check: Check) -> Check:
        """A check with its condition rewritten."""
        return Check(self.variables(check.variables), self.of(check.condition), check.fault)

    def access(self, access: Access) -> Access:
        """A factor with its expressions rewritten."""
        return Access(self.of(access.value), tuple(map(self.bound, access.bounds)))

    def bound(self, bound: Bound) -> Bound:
        """A bound of a factor with its expressions rewritten."""
        low, offset, high = bound
        return low, self.place(offset), high

    def place(self, offset: Affine) -> Affine:
        """An offset, with the expressions in it rewritten first."""
        for part in offset.parts:
            self.of(part)
        return self.offset(offset)


class RenameVariables(KernelRewriter):
    """Replaces variables of a kernel; None replaces one that can only be 0."""

    def __init__(self, new: Mapping[Variable, Variable | None]) -> None:
        super().__init__()
        self._new = new

    def renamed(self, variable: Variable) -> Variable | None:
        return self._new.get(variable, variable)

    def offset(self, offset: Affine) -> Affine:
        return super().offset(offset).with_opaque_divisions()
