"""Patterns: what a rule looks for, written as Python code over symbols.

A pattern is a function of symbols that gives an expression of ops: `lambda x, y: x + op.Neg(y)`.
Python's operators mean what they mean on tensors; `op.Name(…)` is any op block by its name, with
attributes by keyword. An attribute that is not named must have its default value; one that is given
a symbol may have any and is bound to it. A number stands for a constant of which every element is
that number, `const(c)` for any constant. On tensors the same code builds the nodes: a replacement
is written in the same words.

>>> pattern = traced(lambda x, y: x + op.Neg(y))
>>> print(pattern)
Add(x, Neg(y))
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from types import FunctionType
from typing import Any, cast

from thalweg.graph.op import REGISTRY, Op


class Expression:
    """What a pattern is made of; Python's operators build larger ones."""

    def __add__(self, other: Operand) -> Expression:
        return op.Add(self, other)

    def __radd__(self, other: Operand) -> Expression:
        return op.Add(other, self)

    def __sub__(self, other: Operand) -> Expression:
        return op.Sub(self, other)

    def __rsub__(self, other: Operand) -> Expression:
        return op.Sub(other, self)

    def __mul__(self, other: Operand) -> Expression:
        return op.Mul(self, other)

    def __rmul__(self, other: Operand) -> Expression:
        return op.Mul(other, self)

    def __truediv__(self, other: Operand) -> Expression:
        return op.RealDiv(self, other)

    def __rtruediv__(self, other: Operand) -> Expression:
        return op.RealDiv(other, self)

    def __neg__(self) -> Expression:
        return op.Neg(self)


Operand = Expression | int | float

#: A function of so many symbols or tensors, which are what the function makes of them.
SymbolFunction = (
    Callable[[Any], Any]
    | Callable[[Any, Any], Any]
    | Callable[[Any, Any, Any], Any]
    | Callable[[Any, Any, Any, Any], Any]
    | Callable[[Any, Any, Any, Any, Any], Any]
    | Callable[[Any, Any, Any, Any, Any, Any], Any]
    | Callable[[Any, Any, Any, Any, Any, Any, Any], Any]
    | Callable[[Any, Any, Any, Any, Any, Any, Any, Any, Any], Any]
)


@dataclass(frozen=True)
class Symbol(Expression):
    """Any tensor; as the value of an attribute, any value. The same symbol is the same tensor."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Constant(Expression):
    """Any constant."""

    symbol: Symbol

    def __str__(self) -> str:
        return f"const({self.symbol})"


@dataclass(frozen=True)
class Literal(Expression):
    """A constant of any shape, of which every element is a number."""

    number: float

    def __str__(self) -> str:
        return f"{self.number:g}"


@dataclass(frozen=True)
class Apply(Expression):
    """An op of expressions."""

    kind: type[Op]
    inputs: tuple[Expression, ...]
    #: a value, or a symbol for any
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])

    def __str__(self) -> str:
        given = self.attributes.items()
        named = [f"**{value}" if name == EVERY else f"{name}={value}" for name, value in given]
        return f"{self.kind.type_name}({', '.join([*map(str, self.inputs), *named])})"


class _Ops:
    """The op blocks by name, as functions: of expressions in a pattern, of tensors in a graph."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        kind = REGISTRY.get(name)
        if kind is None:
            raise AttributeError(f"there is no op named {name}")

        def apply(*inputs: Any, **attributes: Any) -> Any:
            if not any(isinstance(each, Expression) for each in inputs):
                return kind(**attributes)(*_grouped(kind, inputs))
            return Apply(kind, tuple([_expression(each) for each in inputs]), attributes)

        return apply


def _grouped(kind: type[Op], inputs: tuple[Any, ...]) -> list[Any]:
    """Flat inputs as an op takes them: its one list gets those that are left over."""
    spare = len(inputs) - sum(not each.is_list for each in kind.parsed.inputs)
    counts = tuple(spare if each.is_list else 1 for each in kind.parsed.inputs)
    return kind.parsed.group(list(inputs), counts) if kind.parsed.has_lists else list(inputs)


op = _Ops()


def const(symbol: Expression) -> Constant:
    """Any constant, bound to a symbol."""
    return Constant(cast("Symbol", symbol))


#: The name under which a pattern has the symbol of all attributes.
EVERY = "*"


def every(symbol: Any) -> dict[str, Any]:
    """All attributes of an op, whatever they are, bound to a symbol: `op.Conv2D(x, w, **every(a))`.
    A replacement passes them on: `op.Conv2D(x, w, **a)`."""
    return {EVERY: symbol}


def _expression(value: Operand) -> Expression:
    return value if isinstance(value, Expression) else Literal(value)


def traced(function: SymbolFunction) -> Apply:
    """The expression that a function of symbols gives."""
    given: Callable[..., Any] = function
    found = given(*map(Symbol, parameters(function)))
    if not isinstance(found, Apply):
        raise TypeError(f"A pattern must be an op of something, not {found}")
    return found


def parameters(function: SymbolFunction) -> list[str]:
    """The names of a function's parameters, less those that have a value already."""
    if isinstance(function, FunctionType) and not hasattr(function, "__wrapped__"):
        code, given = function.__code__, len(function.__defaults__ or ())  # at a tenth of the cost
        return [*code.co_varnames[: code.co_argcount - given]]
    found = inspect.signature(function).parameters.values()
    return [each.name for each in found if each.default is each.empty and each.kind in _NAMED]


_NAMED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def orders(pattern: Apply) -> list[Apply]:
    """A pattern with the operands of commutative ops in each order."""
    found: list[tuple[Expression, ...]] = []
    for inputs in product(*map(_orders, pattern.inputs)):
        both = [inputs, inputs[::-1]] if _is_commutative(pattern) else [inputs]
        for each in both:
            if each not in found:
                found.append(each)
    return [Apply(pattern.kind, inputs, pattern.attributes) for inputs in found]


def _orders(pattern: Expression) -> list[Expression]:
    return [*orders(pattern)] if isinstance(pattern, Apply) else [pattern]


def _is_commutative(pattern: Apply) -> bool:
    return pattern.kind.commutative and len(pattern.inputs) == 2


def applications(pattern: Expression) -> Iterator[Apply]:
    """The ops of a pattern, the outermost first."""
    if isinstance(pattern, Apply):
        yield pattern
        for each in pattern.inputs:
            yield from applications(each)


def nesting(pattern: Expression) -> int:
    """How many ops deep a pattern is."""
    return 1 + max(map(nesting, pattern.inputs), default=0) if isinstance(pattern, Apply) else 0
