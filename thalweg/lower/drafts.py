"""Drafts: kernels while they are being put together.

A draft is a loop nest with its writes, as expressions over buffers with offsets in normal form, and
where it holds a sum of products, that sum taken out. Fusion joins drafts; `thalweg.lower.finish`
turns them into kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from thalweg.graph.node import Node
from thalweg.loops.expr import Expr
from thalweg.loops.loop import Variable
from thalweg.lower.affine import Affine, Digit, digit, expressed, total
from thalweg.lower.affine import affine as as_sum
from thalweg.lower.affine import variable as index_of
from thalweg.lower.buffers import Buffer
from thalweg.lower.resolve import Needed, walk

Bound = tuple[int, Affine, int]

#: the sum of a contraction, inside the writes that take it
SUM = Expr("sum", ())


@dataclass(frozen=True, eq=False)
class Factor:
    """One side of a sum of products: a load, perhaps cast, counting as zero outside its bounds."""

    value: Expr
    bounds: tuple[Bound, ...]

    @property
    def load(self) -> Expr:
        """The load itself, without casts."""
        value = self.value
        while value.function == "cast":
            value = value.arguments[0]
        return value

    @property
    def buffer(self) -> Buffer:
        """What is read."""
        return self.load.arguments[0]


@dataclass(frozen=True, eq=False)
class Product:
    """Σ over the reduced variables of a · b, by the roles of the draft's variables."""

    batch: tuple[Variable, ...]
    rows: tuple[Variable, ...]
    columns: tuple[Variable, ...]
    reduced: tuple[Variable, ...]
    a: Factor
    b: Factor
    dtype: Any


@dataclass(frozen=True, eq=False)
class Write:
    """One element that is written for each value of the variables."""

    buffer: Buffer
    variables: tuple[Variable, ...]
    offset: Affine
    value: Any
    combine: str = "set"
    inside: Any = None
    distinct: frozenset[Variable] = frozenset()


@dataclass(frozen=True, eq=False)
class Draft:
    """A loop nest over `variables`: what it writes, and which nodes it computes."""

    variables: tuple[Variable, ...]
    writes: tuple[Write, ...]
    nodes: tuple[Node, ...]
    product: Product | None = None
    needed: tuple[Needed, ...] = ()
    serial: frozenset[Variable] = field(default_factory=frozenset[Variable])
    behind: frozenset[Buffer] = frozenset()  # pieces of a buffer it reads, written on their own

    @property
    def loads(self) -> dict[Buffer, list[Affine]]:
        """Where each buffer is read."""
        return self._seen[0]

    @property
    def parts(self) -> int:
        """How large its expressions are."""
        return self._seen[1]

    @cached_property
    def _seen(self) -> tuple[dict[Buffer, list[Affine]], int]:
        found: dict[Buffer, list[Affine]] = {}
        count = 0

        def visit(part: Expr) -> None:
            nonlocal count
            count += 1
            if part.function == "load":
                found.setdefault(part.arguments[0], []).append(part.arguments[1])

        walk(self._roots(), visit)
        return found, count

    def _roots(self) -> list[Any]:
        roots: list[Any] = [w for write in self.writes for w in (write.value, write.offset)]
        roots += [write.inside for write in self.writes]
        roots += [need.condition for need in self.needed]
        if self.product is not None:
            roots += [self.product.a.value, self.product.b.value]
        return roots

    @cached_property
    def reads(self) -> frozenset[Buffer]:
        """The buffers it reads; one that is combined into is read as well."""
        combined = [write.buffer for write in self.writes if write.combine != "set"]
        return frozenset([*self.loads, *combined]) | self.behind

    @cached_property
    def written(self) -> frozenset[Buffer]:
        """The buffers it writes."""
        return frozenset(write.buffer for write in self.writes)

    @cached_property
    def has_reductions(self) -> bool:
        """Whether its writes hold reductions (a product's own sum aside)."""
        found = False

        def visit(part: Expr) -> None:
            nonlocal found
            found = found or part.function in ("reduce", "scan")

        walk([write.value for write in self.writes], visit)
        return found

    @property
    def domain(self) -> tuple[int, ...]:
        """The extents of its loops."""
        return tuple(variable.extent for variable in self.variables)


class Renaming:
    """Expressions with sums of other variables, and other parts, put in place of some."""

    def __init__(
        self,
        variables: Mapping[Variable, Affine],
        replace: Callable[[Expr], Any] = lambda part: None,
    ) -> None:
        self._variables = variables
        self._replace = replace
        self._known: dict[int, Any] = {}
        self._kept: list[Any] = []

    def of(self, part: Any) -> Any:
        """A part with everything in it replaced."""
        if isinstance(part, Affine):
            return self.affine(part)
        if isinstance(part, tuple):
            return tuple(self.of(piece) for piece in part)  # pyright: ignore[reportUnknownVariableType] - of a tree of any parts
        if not isinstance(part, Expr):
            return part
        if id(part) not in self._known:
            self._kept.append(part)
            self._known[id(part)] = self._expression(part)
        return self._known[id(part)]

    def _expression(self, part: Expr) -> Any:
        replaced = self._replace(part)
        if replaced is not None:
            return replaced
        if part.function == "index":
            new = self._variables.get(part.arguments[0])
            return part if new is None else expressed(new)
        arguments = tuple(self.of(argument) for argument in part.arguments)
        same = all(a is b for a, b in zip(arguments, part.arguments, strict=True))
        return part if same else Expr(part.function, arguments)

    def affine(self, value: Affine) -> Affine:
        """A sum with its variables replaced."""
        parts = [Affine(value.constant, {})]
        changed = False
        for atom, factor in value.terms.items():
            if isinstance(atom, Variable):
                new = self._variables.get(atom) or Affine(0, {atom: 1})
            elif isinstance(atom, Digit):
                new = digit(self.affine(atom.number), atom.divisor, atom.modulus)
            else:
                new = as_sum(self.of(atom))
            changed = changed or atom not in new.terms
            parts.append(new.scaled(factor))
        return total(parts) if changed else value


def renaming(old: Sequence[Variable], new: Sequence[Variable]) -> dict[Variable, Affine]:
    """Variables in place of others, one by one."""
    pairs = zip(old, new, strict=True)
    return {before: index_of(after) for before, after in pairs if before is not after}


def free_variables(part: Any, known: dict[int, frozenset[Variable]]) -> frozenset[Variable]:
    """The variables an expression depends on and does not bind."""
    if isinstance(part, Variable):
        return frozenset([part])
    if isinstance(part, Affine):
        return _union([free_variables(atom, known) for atom in part.terms])
    if isinstance(part, Digit):
        return free_variables(part.number, known)
    if isinstance(part, tuple):
        return _union([free_variables(piece, known) for piece in part])  # pyright: ignore[reportUnknownVariableType] - of a tree of any parts
    if not isinstance(part, Expr):
        return frozenset()
    if id(part) not in known:
        if part.function == "reduce":
            _, bound, body = part.arguments
            known[id(part)] = free_variables(body, known) - frozenset(bound)
        else:
            known[id(part)] = free_variables(part.arguments, known)
    return known[id(part)]


def _union(sets: Sequence[frozenset[Variable]]) -> frozenset[Variable]:
    return frozenset[Variable]().union(*sets)


def is_float(dtype: Any) -> bool:
    """Whether a dtype is a float that code computes in as it is."""
    return np.dtype(dtype) in (np.dtype(np.float32), np.dtype(np.float64))
