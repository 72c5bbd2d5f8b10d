"""The form of a loop kernel that the code generator works on, and making one anew.

A `Form` is a `Loops` kernel in the making. A `Rebuild` replaces all its expressions, parts before
wholes; equal expressions become one object.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from thalweg.codegen.loops.facts import Facts, postorder, roots_of
from thalweg.ir.expr import Expr
from thalweg.ir.kernel import Argument, Check, Dynamic, Offset, Store
from thalweg.ir.loop import Variable


@dataclass(eq=False)
class Form:
    """A kernel in its simplest form.

    `extents` has the extents of loops that are several in one, as factors, where the outermost is
    known only at run time.
    """

    arguments: tuple[Argument, ...]
    variables: tuple[Variable, ...]
    stores: list[Store]
    checks: list[Check]
    serial: frozenset[Variable]
    extents: dict[Variable, tuple[int, ...]] = field(
        default_factory=dict[Variable, tuple[int, ...]]
    )
    facts: Facts = field(default_factory=Facts)

    @property
    def roots(self) -> list[Any]:
        """All expressions that are computed for a store or a check."""
        return [root for work in (*self.checks, *self.stores) for root in roots_of(work)]

    def factors(self, variable: Variable) -> tuple[int, ...]:
        """Integers whose product is the extent of a variable."""
        return self.extents.get(variable, (variable.extent,))

    def offsets(self) -> Iterator[Offset]:
        """The places of all loads and stores."""
        for expr in postorder(self.roots):
            if expr.function == "load":
                yield expr.arguments[1]
        for store in self.stores:
            yield store.offset


def rebuild_form(form: Form, rebuild: Rebuild) -> None:
    """Replace all expressions and places of a form."""
    for expr in postorder(form.roots):
        rebuild.add(expr)
    form.stores = [
        replace(
            store,
            variables=rebuild.variables(store.variables),
            offset=rebuild.offset(store.offset),
            value=rebuild.new(store.value),
            inside=_unless_true(rebuild.new(store.inside)),
        )
        for store in form.stores
    ]
    checks = [
        replace(
            check,
            variables=rebuild.variables(check.variables),
            condition=rebuild.new(check.condition),
        )
        for check in form.checks
    ]
    form.checks = [check for check in checks if _unless_true(check.condition) is not None]
    form.variables = rebuild.variables(form.variables)
    form.serial = frozenset(rebuild.variables(tuple(form.serial)))


def _unless_true(condition: Any) -> Any:
    return None if condition is True else condition


class Rebuild:
    """Makes expressions anew from their parts, equal ones once."""

    def __init__(self) -> None:
        self._new: dict[Expr, Any] = {}
        self._made: dict[Any, Expr] = {}
        self._keys: dict[int, Any] = {}

    def new(self, part: Any) -> Any:
        """What a part of the old kernel has become."""
        return self._new[part] if isinstance(part, Expr) else part

    def add(self, expr: Expr) -> None:
        """Make an expression whose parts are made."""
        self._new[expr] = self.rebuilt(expr)

    def rebuilt(self, expr: Expr) -> Any:
        """The new form of an expression."""
        match expr.function:
            case "index" if isinstance(expr.arguments[0], Variable):
                return self.index(expr.arguments[0])
            case "load":
                argument, offset = expr.arguments
                return self.make("load", argument, self.offset(offset))
            case "reduce":
                kind, variables, body = expr.arguments
                return self.make("reduce", kind, self.variables(variables), self.new(body))
            case "scan":
                kind, variable, body, exclusive, reverse = expr.arguments
                return self.make("scan", kind, variable, self.new(body), exclusive, reverse)
            case "index":
                return self.make("index", *expr.arguments)
            case function:
                return self.call(function, *(self._argument(part) for part in expr.arguments))

    def _argument(self, part: Any) -> Any:
        """A part of a call. An integer known only at run time reads as an index does."""
        return self.make("index", part) if isinstance(part, Dynamic) else self.new(part)

    def index(self, variable: Variable) -> Any:
        """The value of a variable."""
        return self.make("index", variable)

    def variables(self, old: tuple[Variable, ...]) -> tuple[Variable, ...]:
        """The variables that take the place of others."""
        return old

    def offset(self, old: Offset) -> Offset:
        """A place with its computed terms made anew."""
        return Offset(old.constant, tuple((factor, self.new(term)) for factor, term in old.terms))

    def call(self, function: str, *arguments: Any) -> Any:
        """A function applied to new parts."""
        return self.make(function, *arguments)

    def make(self, function: str, *arguments: Any) -> Expr:
        """An expression; the same one for the same parts."""
        key = function, *map(key_of, arguments)
        if key not in self._made:
            self._made[key] = Expr(function, arguments)
        return self._made[key]


def key_of(part: Any) -> Any:
    """Something equal for parts that mean the same. Numbers differ by type and sign of zero."""
    if isinstance(part, Dynamic):
        return Dynamic, part.word
    if isinstance(part, tuple):
        return tuple(map(key_of, part))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - parts of any kind
    if isinstance(part, Offset):
        return key_of(part.constant), key_of(part.terms)
    if isinstance(part, int | float | np.number | np.bool_):
        return _number_key(part)
    return part


def _number_key(number: Any) -> tuple[str, str]:
    return type(number).__name__, repr(number)
