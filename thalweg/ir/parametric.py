"""Kernels with other integers: the same loops over other sizes.

Kernels of one fingerprint differ in some of their integers at most: with these replaced by
`Dynamic` ones, read when the kernel runs, both are the same code.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from thalweg.ir.dynamic import Dynamic, dynamic
from thalweg.ir.expr import Expr, Load, Variable, Word, constant
from thalweg.ir.fingerprint import integers, is_integer, note_integers
from thalweg.ir.index import Affine, Term, term_expression
from thalweg.ir.kernel import Access, Argument, Kernel, KernelRewriter, Store


def with_dynamic(kernel: Kernel, places: Collection[int], first_word: int) -> Kernel:
    """The kernel with the integers at some places (of `integers`) read from its argument words."""
    words = {place: first_word + number for number, place in enumerate(sorted(places))}
    numbers = [
        dynamic(number, words[place]) if place in words else number
        for place, number in enumerate(integers(kernel))
    ]
    made = _OtherIntegers(numbers).kernel(kernel)
    note_integers(made, kernel, numbers)
    return made


class _OtherIntegers(KernelRewriter):
    """A kernel with other integers, in the order of its own.

    Equal numbers at two places are two integers: for another size only one of them may change.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__()
        self._numbers = iter(numbers)
        self._variables: dict[Variable, Variable] = {}
        self._arguments: dict[Argument, Argument] = {}

    def buffer(self, buffer: Argument) -> Argument:
        if buffer not in self._arguments:
            self._arguments[buffer] = replace(buffer, size=next(self._numbers))
        return self._arguments[buffer]

    def renamed(self, variable: Variable) -> Variable:
        if variable not in self._variables:
            self._variables[variable] = Variable(next(self._numbers), variable.name)
        return self._variables[variable]

    def store(self, store: Store) -> Store:
        return replace(super().store(store), distinct=frozenset(self.variables(store.distinct)))

    def access(self, access: Access) -> Access:
        value = self.of(access.value)
        bounds = [
            (next(self._numbers), self.place(place), next(self._numbers))
            for _, place, _ in access.bounds
        ]
        return Access(value, tuple(bounds))

    # Expressions

    def of(self, root: Expr) -> Expr:
        return self.new(root) if is_integer(root) else super().of(root)

    def needed(self, node: Expr) -> Iterable[Expr]:
        return [part for part in node.parts if not is_integer(part)]

    def new(self, part: Expr) -> Expr:
        if not is_integer(part):
            return super().new(part)
        number = next(self._numbers)
        if isinstance(number, Dynamic):
            return Word(number, part.dtype.name)
        return constant(number, part.dtype)

    def offset(self, offset: Affine) -> Affine:
        constant, terms = next(self._numbers), dict[Term, int]()
        for term in offset.terms:
            number = next(self._numbers)
            is_variable = isinstance(term, Variable)
            made = self.renamed(term) if is_variable else self.new(term_expression(term))
            terms[made] = number
        return Affine(constant, terms)

    def load(self, buffer: Argument, offset: Affine) -> Expr:
        return Load(self.buffer(buffer), offset)
