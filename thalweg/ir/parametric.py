"""Kernels up to their integers: the same loops over other sizes.

`integers` lists every size, stride, bound and whole number in a kernel, in one fixed order. Kernels
of one fingerprint differ in some of those integers at most: with these replaced by `Dynamic` ones,
read when the kernel runs, both are the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from weakref import WeakKeyDictionary

from thalweg.ir.dynamic import Dynamic, dynamic
from thalweg.ir.expr import Const, Expr, Load, Variable, Word, constant
from thalweg.ir.fingerprint import fingerprint, is_integer, note_fingerprint
from thalweg.ir.index import Affine, Term, term_expression
from thalweg.ir.kernel import (
    Access,
    Argument,
    Check,
    Contraction,
    Kernel,
    KernelRewriter,
    Loops,
    Store,
)

Change = Callable[[int], int]

_known = WeakKeyDictionary[Kernel, "tuple[int, ...]"]()


def integers(kernel: Kernel) -> tuple[int, ...]:
    """All integers of a kernel."""
    found = _known.get(kernel)
    if found is None:
        found = _known[kernel] = _integers(kernel)
    return found


def places_of_offsets(kernel: Kernel) -> frozenset[int]:
    """Which of a kernel's integers are where a load or store begins: the constants of offsets."""
    return _Starts().of_kernel(kernel)


def _integers(kernel: Kernel) -> tuple[int, ...]:
    found: list[int] = []

    def note(number: int) -> int:
        found.append(number)
        return number

    _ChangeIntegers(note).kernel(kernel)
    return tuple(found)


def with_dynamic(kernel: Kernel, places: Collection[int], first_word: int) -> Kernel:
    """The kernel with the integers at some places (of `integers`) read from its argument words."""
    words = {place: first_word + number for number, place in enumerate(sorted(places))}
    numbers = [
        dynamic(number, words[place]) if place in words else number
        for place, number in enumerate(integers(kernel))
    ]
    following = iter(numbers)
    made = _ChangeIntegers(lambda _: next(following)).kernel(kernel)
    _known[made] = tuple(numbers)
    note_fingerprint(made, fingerprint(kernel))
    return made


class _ChangeIntegers(KernelRewriter):
    """A kernel with its integers changed, each visited once and in one order.

    Equal numbers at two places are two integers: for another size only one of them may change.
    """

    def __init__(self, change: Change) -> None:
        super().__init__()
        self._change = change
        self._variables: dict[Variable, Variable] = {}
        self._arguments: dict[Argument, Argument] = {}

    def kernel(self, kernel: Kernel) -> Kernel:
        """The kernel with changed integers."""
        arguments = tuple(self._argument(argument) for argument in kernel.arguments)
        if isinstance(kernel, Loops):
            variables = self.variables(kernel.variables)
            return Loops(
                arguments,
                variables,
                tuple(self.store(store) for store in kernel.stores),
                tuple(self.check(check) for check in kernel.checks),
                frozenset(self.renamed(variable) for variable in kernel.serial),
            )
        return Contraction(
            arguments,
            self.variables(kernel.batch),
            self.variables(kernel.rows),
            self.variables(kernel.columns),
            self.variables(kernel.reduced),
            self.access(kernel.a),
            self.access(kernel.b),
            kernel.dtype,
            tuple(self.store(store) for store in kernel.stores),
        )

    def _argument(self, argument: Argument) -> Argument:
        made = replace(argument, size=self._change(argument.size))
        self._arguments[argument] = made
        return made

    def renamed(self, variable: Variable) -> Variable:
        if variable not in self._variables:
            extent = self._change(variable.extent)
            self._variables[variable] = Variable(extent, variable.name)
        return self._variables[variable]

    def store(self, store: Store) -> Store:
        return Store(
            self._arguments[store.argument],
            self.variables(store.variables),
            self._place(store.offset),
            self._value(store.value),
            store.combine,
            None if store.inside is None else self._value(store.inside),
            frozenset(self.renamed(variable) for variable in store.distinct),
        )

    def check(self, check: Check) -> Check:
        return Check(self.variables(check.variables), self._value(check.condition), check.fault)

    def access(self, access: Access) -> Access:
        bounds = [
            (self._change(low), self._bound(place), self._change(high))
            for low, place, high in access.bounds
        ]
        return Access(self._value(access.value), tuple(bounds))

    def _bound(self, place: Affine) -> Affine:
        return self._place(place)

    def _place(self, offset: Affine) -> Affine:
        for part in offset.parts:
            self._value(part)
        return self.offset(offset)

    def _value(self, part: Expr) -> Expr:
        return self.new(part) if is_integer(part) else self.of(part)

    # Expressions

    def needed(self, node: Expr) -> Iterable[Expr]:
        return [part for part in node.parts if not is_integer(part)]

    def new(self, part: Expr) -> Expr:
        if isinstance(part, Const) and is_integer(part):
            return self._number(self._change(int(part.value)), part)
        if isinstance(part, Word):
            return self._number(self._change(part.number), part)
        return super().new(part)

    def _number(self, number: int, part: Expr) -> Expr:
        if isinstance(number, Dynamic):
            return Word(number, part.dtype.name)
        return constant(number, part.dtype)

    def offset(self, offset: Affine) -> Affine:
        constant, terms = self._change(offset.constant), dict[Term, int]()
        for term, factor in offset.terms.items():
            number = self._change(factor)
            is_variable = isinstance(term, Variable)
            made = self.renamed(term) if is_variable else self.new(term_expression(term))
            terms[made] = number
        return Affine(constant, terms)

    def load(self, buffer: Argument, offset: Affine) -> Expr:
        return Load(self._arguments[buffer], offset)


class _Starts(_ChangeIntegers):
    """The places of the integers that say where a load or a store begins."""

    def __init__(self) -> None:
        super().__init__(self._count)
        self._places: set[int] = set()
        self._next = 0

    def of_kernel(self, kernel: Kernel) -> frozenset[int]:
        """Those of a kernel."""
        self.kernel(kernel)
        return frozenset(self._places)

    def _count(self, number: int) -> int:
        self._next += 1
        return number

    def offset(self, offset: Affine) -> Affine:
        self._places.add(self._next)
        return super().offset(offset)

    def _bound(self, place: Affine) -> Affine:
        return _ChangeIntegers.offset(self, place)  # nothing begins there
