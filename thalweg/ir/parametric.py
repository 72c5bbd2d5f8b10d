"""Kernels up to their integers: the same loops over other sizes.

`integers` lists every size, stride, bound and number in a kernel, in one fixed order; `shape_of`
names the kernel without them. Two kernels of one shape differ in some of those integers at most:
with these replaced by `Dynamic` ones, read when the kernel runs, both are the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import numpy as np

from thalweg.ir.expr import Expr
from thalweg.ir.kernel import (
    Access,
    Argument,
    Check,
    Contraction,
    Dynamic,
    Kernel,
    Loops,
    Offset,
    Store,
)
from thalweg.ir.loop import Variable

Change = Callable[[int], int]


def integers(kernel: Kernel) -> tuple[int, ...]:
    """All integers of a kernel."""
    return _remembered(_integers, kernel, _known_integers)


def shape_of(kernel: Kernel) -> bytes:
    """A digest of everything in a kernel but its integers."""
    return _remembered(lambda kernel: _Digest().of(kernel), kernel, _known_shapes)


def places_of_offsets(kernel: Kernel) -> frozenset[int]:
    """Which of a kernel's integers are where a load or store begins: the constants of offsets."""
    return _Starts().of(kernel)


_T = TypeVar("_T")
_known_integers = WeakKeyDictionary[Kernel, "tuple[int, ...]"]()
_known_shapes = WeakKeyDictionary[Kernel, bytes]()


def _remembered(
    find: Callable[[Kernel], _T], kernel: Kernel, known: WeakKeyDictionary[Kernel, _T]
) -> _T:
    """What is found once for each kernel, as long as it lives."""
    found = known.get(kernel)
    if found is None:
        known[kernel] = found = find(kernel)
    return found


def _integers(kernel: Kernel) -> tuple[int, ...]:
    found: list[int] = []

    def note(number: int) -> int:
        found.append(number)
        return number

    _Walk(note).kernel(kernel)
    return tuple(found)


def with_dynamic(kernel: Kernel, places: Collection[int], first_word: int) -> Kernel:
    """The kernel with the integers at some places (of `integers`) read from its argument words."""
    words = {place: first_word + number for number, place in enumerate(sorted(places))}
    numbers = [
        _dynamic(number, words[place]) if place in words else number
        for place, number in enumerate(integers(kernel))
    ]
    following = iter(numbers)
    made = _Walk(lambda _: next(following)).kernel(kernel)
    _known_integers[made], _known_shapes[made] = tuple(numbers), shape_of(kernel)
    return made


def _dynamic(number: int, word: int) -> Dynamic:
    made = Dynamic(number)
    made.word = word
    return made


class _Walk:
    """A kernel with its integers changed, each visited once and in one order."""

    def __init__(self, change: Change) -> None:
        self._change = change
        self._variables: dict[Variable, Variable] = {}
        self._arguments: dict[Argument, Argument] = {}
        self._known: dict[int, Any] = {}
        self._kept: list[Any] = []

    def kernel(self, kernel: Kernel) -> Kernel:
        arguments = tuple(self._argument(argument) for argument in kernel.arguments)
        if isinstance(kernel, Loops):
            variables = self._all(kernel.variables)
            return Loops(
                arguments,
                variables,
                tuple(self._store(store) for store in kernel.stores),
                tuple(self._check(check) for check in kernel.checks),
                frozenset(self._variable(variable) for variable in kernel.serial),
            )
        return Contraction(
            arguments,
            self._all(kernel.batch),
            self._all(kernel.rows),
            self._all(kernel.columns),
            self._all(kernel.reduced),
            self._access(kernel.a),
            self._access(kernel.b),
            kernel.dtype,
            tuple(self._store(store) for store in kernel.stores),
        )

    def _argument(self, argument: Argument) -> Argument:
        made = replace(argument, size=self._change(argument.size))
        self._arguments[argument] = made
        return made

    def _all(self, variables: Sequence[Variable]) -> tuple[Variable, ...]:
        return tuple(self._variable(variable) for variable in variables)

    def _variable(self, variable: Variable) -> Variable:
        if variable not in self._variables:
            extent = self._change(variable.extent)
            self._variables[variable] = Variable(extent, variable.name)
        return self._variables[variable]

    def _store(self, store: Store) -> Store:
        return Store(
            self._arguments[store.argument],
            self._all(store.variables),
            self._offset(store.offset),
            self._value(store.value),
            store.combine,
            self._value(store.inside),
            frozenset(self._variable(variable) for variable in store.distinct),
        )

    def _check(self, check: Check) -> Check:
        return Check(self._all(check.variables), self._value(check.condition), check.fault)

    def _access(self, access: Access) -> Access:
        bounds = [
            (self._change(low), self._bound(place), self._change(high))
            for low, place, high in access.bounds
        ]
        return Access(self._value(access.value), tuple(bounds))

    def _bound(self, place: Offset) -> Offset:
        return self._offset(place)

    def _offset(self, offset: Offset) -> Offset:
        constant = self._change(offset.constant)
        terms = [
            (
                self._change(factor),
                self._variable(term) if isinstance(term, Variable) else self._value(term),
            )
            for factor, term in offset.terms
        ]
        return Offset(constant, tuple(terms))

    def _value(self, part: Any) -> Any:
        if type(part) is int or type(part) is Dynamic:
            return self._change(part)
        if not isinstance(part, Expr):
            return part
        if id(part) not in self._known:
            self._kept.append(part)
            self._known[id(part)] = self._expression(part)
        return self._known[id(part)]

    def _expression(self, part: Expr) -> Expr:
        match part.function:
            case "load":
                argument, offset = part.arguments
                return Expr("load", (self._arguments[argument], self._offset(offset)))
            case "index":
                return Expr("index", (self._variable(part.arguments[0]),))
            case "reduce":
                kind, variables, body = part.arguments
                return Expr("reduce", (kind, self._all(variables), self._value(body)))
            case "scan":
                kind, variable, body, *flags = part.arguments
                return Expr("scan", (kind, self._variable(variable), self._value(body), *flags))
            case "cast" | "bitcast":
                return Expr(part.function, (self._value(part.arguments[0]), part.arguments[1]))
            case function:
                return Expr(function, tuple(self._value(piece) for piece in part.arguments))


class _Starts(_Walk):
    """The places of the integers that say where a load or a store begins."""

    def __init__(self) -> None:
        super().__init__(self._count)
        self._places: set[int] = set()
        self._next = 0

    def of(self, kernel: Kernel) -> frozenset[int]:
        self.kernel(kernel)
        return frozenset(self._places)

    def _count(self, number: int) -> int:
        self._next += 1
        return number

    def _offset(self, offset: Offset) -> Offset:
        self._places.add(self._next)
        return super()._offset(offset)

    def _bound(self, place: Offset) -> Offset:
        return super()._offset(place)  # nothing begins there


class _Digest:
    """A kernel's structure: variables and arguments by number, integers left out."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)
        self._numbers: dict[Any, int] = {}
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []

    def of(self, kernel: Kernel) -> bytes:
        self._say(type(kernel).__name__)
        for argument in kernel.arguments:
            self._say(f"a{self._number(argument)}{argument.dtype}{argument.written}")
        if isinstance(kernel, Loops):
            self._variables(kernel.variables)
            for check in kernel.checks:
                self._say(f"check{check.fault}")
                self._variables(check.variables)
                self._value(check.condition)
            self._say(str(sorted(self._number(v) for v in kernel.serial)))
        else:
            self._say(str(kernel.dtype))
            for group in (kernel.batch, kernel.rows, kernel.columns, kernel.reduced):
                self._variables(group)
            for access in (kernel.a, kernel.b):
                self._value(access.value)
                for _, place, _ in access.bounds:
                    self._offset(place)
        for store in kernel.stores:
            self._say(f"s{self._number(store.argument)}{store.combine}")
            self._variables(store.variables)
            self._offset(store.offset)
            self._value(store.value)
            self._value(store.inside)
            self._say(str(sorted(self._number(v) for v in store.distinct)))
        return self._hash.digest()

    def _say(self, text: str) -> None:
        self._hash.update(text.encode())
        self._hash.update(b";")

    def _number(self, thing: Any) -> int:
        return self._numbers.setdefault(thing, len(self._numbers))

    def _variables(self, variables: Sequence[Variable]) -> None:
        # Extents 0 and 1 mean other loops, not other sizes.
        self._say("v" + ",".join(f"{self._number(v)}{_special(v.extent)}" for v in variables))

    def _offset(self, offset: Offset) -> None:
        self._say(f"o{len(offset.terms)}{'' if offset.constant else 'z'}")
        for factor, term in offset.terms:
            self._say("u" if factor == 1 else "f")
            if isinstance(term, Variable):
                self._say(f"v{self._number(term)}")
            else:
                self._value(term)

    def _value(self, part: Any) -> None:
        if not isinstance(part, Expr):
            self._leaf(part)
            return
        if id(part) in self._seen:
            self._say(f"@{self._seen[id(part)]}")
            return
        self._kept.append(part)
        self._seen[id(part)] = len(self._seen)
        self._say(part.function)
        match part.function:
            case "load":
                self._say(f"a{self._number(part.arguments[0])}")
                self._offset(part.arguments[1])
            case "index":
                self._say(f"v{self._number(part.arguments[0])}")
            case "reduce":
                kind, variables, body = part.arguments
                self._say(kind)
                self._variables(variables)
                self._value(body)
            case "scan":
                kind, variable, body, exclusive, reverse = part.arguments
                self._say(f"{kind}{self._number(variable)}{exclusive}{reverse}")
                self._value(body)
            case _:
                for piece in part.arguments:
                    self._value(piece)

    def _leaf(self, part: Any) -> None:
        if type(part) is int or type(part) is Dynamic:
            self._say("#")
        elif isinstance(part, np.generic):
            self._say(f"{type(cast('Any', part)).__name__}{part!r}")
        else:
            self._say(f"{type(part).__name__}{part!r}")


def _special(extent: int) -> str:
    return f"={extent}" if extent < 2 else ""
