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
from thalweg.ir.kernel import Access, Argument, Kernel, KernelRewriter, Store

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
    visit = _ChangeIntegers(lambda number: number)
    visit.kernel(kernel)
    return frozenset(visit.starts)


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
    `starts` are the places of those that say where a load or a store begins.
    """

    def __init__(self, change: Change) -> None:
        super().__init__()
        self._change_one, self._visited = change, 0
        self._variables: dict[Variable, Variable] = {}
        self._arguments: dict[Argument, Argument] = {}
        self.starts: set[int] = set()

    def _change(self, number: int) -> int:
        self._visited += 1
        return self._change_one(number)

    def buffer(self, buffer: Argument) -> Argument:
        if buffer not in self._arguments:
            self._arguments[buffer] = replace(buffer, size=self._change(buffer.size))
        return self._arguments[buffer]

    def renamed(self, variable: Variable) -> Variable:
        if variable not in self._variables:
            extent = self._change(variable.extent)
            self._variables[variable] = Variable(extent, variable.name)
        return self._variables[variable]

    def store(self, store: Store) -> Store:
        return replace(super().store(store), distinct=frozenset(self.variables(store.distinct)))

    def access(self, access: Access) -> Access:
        bounds = [
            (self._change(low), self._limited(place), self._change(high))
            for low, place, high in access.bounds
        ]
        return Access(self.of(access.value), tuple(bounds))

    # Expressions

    def of(self, root: Expr) -> Expr:
        return self.new(root) if is_integer(root) else super().of(root)

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
        self.starts.add(self._visited)
        return self._sum(offset)

    def _limited(self, place: Affine) -> Affine:
        """The place of a bound: nothing begins there."""
        for part in place.parts:
            self.of(part)
        return self._sum(place)

    def _sum(self, offset: Affine) -> Affine:
        constant, terms = self._change(offset.constant), dict[Term, int]()
        for term, factor in offset.terms.items():
            number = self._change(factor)
            is_variable = isinstance(term, Variable)
            made = self.renamed(term) if is_variable else self.new(term_expression(term))
            terms[made] = number
        return Affine(constant, terms)

    def load(self, buffer: Argument, offset: Affine) -> Expr:
        return Load(self.buffer(buffer), offset)
