"""Digests of kernels and expressions, up to renaming of variables.

The fingerprint of a kernel leaves out its integers (sizes, strides, bounds, constants) and lists
them: kernels of one fingerprint are the same loops over other sizes. With the integers that differ
replaced by `Dynamic` ones, read at run time, they are the same code.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, NamedTuple, TypeGuard
from weakref import WeakKeyDictionary

import numpy as np

from thalweg.ir.dynamic import Dynamic, dynamic
from thalweg.ir.expr import Accumulated, Const, Conversion, Expr, Variable, Word, constant
from thalweg.ir.index import Affine, Term, term_expression
from thalweg.ir.kernel import Argument, Bound, Check, Kernel, KernelRewriter, Store
from thalweg.ir.rewrite import postorder
from thalweg.platform.caches import memoized


class Summary(NamedTuple):
    """A digest of everything in a kernel but its integers, and the integers."""

    fingerprint: bytes
    integers: tuple[int, ...]  # in the order in which a rewriter visits them
    starts: frozenset[int]  # which of them are the constants of offsets of loads and stores


_summaries = WeakKeyDictionary[Kernel, Summary]()


def summary(kernel: Kernel) -> Summary:
    """The fingerprint and the integers of a kernel (cached)."""
    found = _summaries.get(kernel)
    if found is None:
        digest = _Digest()
        digest.kernel(kernel)
        numbers, starts = tuple(digest.integers), frozenset(digest.starts)
        found = _summaries[kernel] = Summary(digest.result(), numbers, starts)
    return found


def with_dynamic(kernel: Kernel, places: Collection[int], first_word: int) -> Kernel:
    """The kernel with some of its `integers` read from argument words, from `first_word` on."""
    words = {place: first_word + number for number, place in enumerate(sorted(places))}
    known = summary(kernel)
    numbers = [
        dynamic(number, words[place]) if place in words else number
        for place, number in enumerate(known.integers)
    ]
    result = _Integers(numbers).kernel(kernel)
    _summaries[result] = known._replace(integers=tuple(numbers))
    return result


def _is_integer(part: Expr) -> TypeGuard[Const | Word]:
    """Whether an expression counts as an integer of the kernel."""
    if isinstance(part, Const):
        return part.is_index and -(1 << 63) <= int(part.value) < 1 << 63
    return isinstance(part, Word)


class _Integers(KernelRewriter):
    """Visits the integers of a kernel in one order, and replaces them by others."""

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        super().__init__()
        self._new = iter(numbers)
        self._variables: dict[Variable, Variable] = {}
        self._arguments: dict[Argument, Argument] = {}

    def number(self, number: int) -> int:
        """What replaces an integer. Equal ones at two positions are distinct: for another size only
        one of them may change."""
        return next(self._new)

    def buffer(self, buffer: Argument) -> Argument:
        if buffer not in self._arguments:
            size = self.number(buffer.size)
            self._arguments[buffer] = buffer if size is buffer.size else replace(buffer, size=size)
        return self._arguments[buffer]

    def renamed(self, variable: Variable) -> Variable:
        if variable not in self._variables:
            extent = self.number(variable.extent)
            is_same = extent is variable.extent
            self._variables[variable] = variable if is_same else Variable(extent, variable.name)
        return self._variables[variable]

    def bound(self, bound: Bound) -> Bound:
        low, offset, high = bound
        return self.number(low), self.place(offset), self.number(high)

    def of(self, root: Expr) -> Expr:
        made = self._rewritten
        for node in postorder([root], made):
            if not _is_integer(node):
                made[node] = self.rebuilt(node)
        return self.new(root) if _is_integer(root) else made[root]

    def new(self, part: Expr) -> Expr:
        if not _is_integer(part):
            return super().new(part)
        number = self.number(part.number if isinstance(part, Word) else int(part.value))
        if isinstance(number, Dynamic):
            return Word(number, part.dtype)
        return constant(number, part.dtype)

    def offset(self, offset: Affine) -> Affine:
        constant, terms = self.number(offset.constant), dict[Term, int]()
        for term, factor in offset.terms.items():
            number = self.number(factor)
            is_variable = isinstance(term, Variable)
            made = self.renamed(term) if is_variable else self.new(term_expression(term))
            terms[made] = number
        return Affine(constant, terms)


class _Digest(_Integers):
    """Lists the integers of a kernel, and writes down all else. Variables, buffers and expressions
    are numbered in order of appearance."""

    def __init__(self) -> None:
        super().__init__()
        self._words: list[Any] = []
        self._numbers: dict[Any, int] = {}
        self.integers: list[int] = []
        self.starts: list[int] = []

    def result(self) -> bytes:
        return blake2b(repr(self._words).encode(), digest_size=16).digest()

    def number(self, number: int) -> int:
        self.integers.append(number)
        return number

    def _numbered(self, thing: Any) -> int:
        return self._numbers.setdefault(thing, len(self._numbers))

    def kernel(self, kernel: Kernel) -> Kernel:
        self._words += type(kernel).__name__, str(getattr(kernel, "dtype", ""))
        return super().kernel(kernel)

    def store(self, store: Store) -> Store:
        self._words.append(store.combine)
        return super().store(store)

    def check(self, check: Check) -> Check:
        self._words += "check", check.fault
        return super().check(check)

    def bound(self, bound: Bound) -> Bound:
        made = super().bound(bound)
        self.starts.pop()  # only those of loads and stores count
        return made

    def buffer(self, buffer: Argument) -> Argument:
        if buffer not in self._numbers:
            self._words += str(buffer.dtype), buffer.written
        self._words.append(self._numbered(buffer))
        return super().buffer(buffer)

    def variables(self, variables: Iterable[Variable]) -> tuple[Variable, ...]:
        made = super().variables(variables)
        self._words += "variables", len(made)
        return made

    def renamed(self, variable: Variable) -> Variable:
        if variable not in self._numbers:  # loops of extents 0 and 1 are other code
            self._words.append(min(int(variable.extent), 2))
        self._words.append(self._numbered(variable))
        return super().renamed(variable)

    def of(self, root: Expr) -> Expr:
        made = super().of(root)
        self._words.append(self._numbers.get(root))
        return made

    def rebuilt(self, node: Expr) -> Expr:
        self._words.append(type(node).__name__)
        if isinstance(node, Accumulated | Const | Conversion):  # the dtypes of others follow
            self._words.append(str(node.dtype))
        fields: list[Any] = [getattr(node, name) for name in node.__match_args__]
        self._words += [field for field in fields if isinstance(field, str | bool | np.generic)]
        made = super().rebuilt(node)
        self._numbered(node)
        return made

    def new(self, part: Expr) -> Expr:
        number = self._numbers.get(part)
        self._words.append(str(part.dtype) if number is None else number)
        return super().new(part)

    def offset(self, offset: Affine) -> Affine:
        self.starts.append(len(self.integers))
        self._words.append(bool(offset.constant))
        self._words += [factor == 1 for factor in offset.terms.values()]
        super().offset(offset)
        return offset


# Expressions of nests


def structure(parts: Sequence[Expr | Affine], variables: Sequence[Variable]) -> Hashable:
    """A key of expressions and offsets over these variables: equal keys compute the same values
    from the same buffers."""
    to = _Canonical()
    extents = tuple([to.renamed(variable).extent for variable in variables])
    return extents, *[to.place(p) if isinstance(p, Affine) else to.of(p) for p in parts]


class _Canonical(KernelRewriter):
    """Renames variables by extent and order of appearance, so that equal expressions become one
    object."""

    def __init__(self) -> None:
        super().__init__()
        self._variables: dict[Variable, Variable] = {}

    def renamed(self, variable: Variable) -> Variable:
        if variable not in self._variables:
            self._variables[variable] = _canonical(len(self._variables), variable.extent)
        return self._variables[variable]


@memoized(4_096)
def _canonical(number: int, extent: int) -> Variable:
    return Variable(extent, f"v{number}")
