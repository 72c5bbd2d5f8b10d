"""Patterns: what a rule looks for, written as Python code over symbols.

A pattern is a function of symbols that returns an expression of ops: `lambda x, y: x + op.Neg(y)`.
Python's operators mean the same as on tensors; `op.Name(…)` is any op by its name, with attributes
by keyword. An attribute that is not named must have its default value; one whose value is a symbol
may have any value, which is bound to the symbol. A number stands for a constant with that number in
every element, `const(c)` for any constant. On tensors the same code builds nodes: replacements are
written in the same way.

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


def _operator(name: str) -> tuple[Callable[..., Expression], Callable[..., Expression]]:
    """The methods of a binary operator: with the expression on the left, and on the right."""

    def operate(self: Expression, other: Operand) -> Expression:
        return getattr(op, name)(self, other)

    def operate_reflected(self: Expression, other: Operand) -> Expression:
        return getattr(op, name)(other, self)

    return operate, operate_reflected


class Expression:
    """A node of a pattern; Python's operators build larger expressions."""

    __add__, __radd__ = _operator("Add")
    __sub__, __rsub__ = _operator("Sub")
    __mul__, __rmul__ = _operator("Mul")
    __truediv__, __rtruediv__ = _operator("RealDiv")

    def __neg__(self) -> Expression:
        return op.Neg(self)


Operand = Expression | int | float

#: A pattern or a replacement: a function of some number of symbols or tensors.
SymbolFunction = (
    Callable[[Any], Any]
    | Callable[[Any, Any], Any]
    | Callable[[Any, Any, Any], Any]
    | Callable[[Any, Any, Any, Any], Any]
    | Callable[[Any, Any, Any, Any, Any], Any]
    | Callable[[Any, Any, Any, Any, Any, Any], Any]
    | Callable[[Any, Any, Any, Any, Any, Any, Any], Any]
)


@dataclass(frozen=True)
class Symbol(Expression):
    """Any tensor or, as an attribute, any value. Equal symbols match equal tensors or values."""

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
    """A constant of any shape with the same number in every element."""

    number: float

    def __str__(self) -> str:
        return f"{self.number:g}"


@dataclass(frozen=True)
class Apply(Expression):
    """An op applied to expressions."""

    kind: type[Op]
    inputs: tuple[Expression, ...]
    #: values, or symbols for any value
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])

    def __str__(self) -> str:
        items = self.attributes.items()
        keywords = [f"**{value}" if name == EVERY else f"{name}={value}" for name, value in items]
        return f"{self.kind.type_name}({', '.join([*map(str, self.inputs), *keywords])})"


class _Ops:
    """The ops by name, as functions of expressions (in patterns) or of tensors (in
    replacements)."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        kind = REGISTRY.get(name)
        if kind is None:
            raise AttributeError(f"there is no op named {name}")

        def apply(*inputs: Any, **attributes: Any) -> Any:
            if not any(isinstance(operand, Expression) for operand in inputs):
                grouped = kind.parsed.group(inputs, kind.parsed.counts(len(inputs)))
                return kind(**attributes)(*grouped)
            return Apply(kind, tuple([_expression(operand) for operand in inputs]), attributes)

        return apply


op = _Ops()


def const(symbol: Expression) -> Constant:
    """Any constant, bound to a symbol."""
    return Constant(cast("Symbol", symbol))


#: The attribute name that stands for all attributes.
EVERY = "*"


def every(symbol: Any) -> dict[str, Any]:
    """All attributes of an op, of any values, bound to a symbol: `op.Conv2D(x, w, **every(a))`. A
    replacement passes them on: `op.Conv2D(x, w, **a)`."""
    return {EVERY: symbol}


def _expression(value: Operand) -> Expression:
    return value if isinstance(value, Expression) else Literal(value)


def traced(function: SymbolFunction) -> Apply:
    """The expression that a function of symbols returns."""
    traced_function: Callable[..., Any] = function
    expression = traced_function(*map(Symbol, parameters(function)))
    if not isinstance(expression, Apply):
        raise TypeError(f"A pattern must be an op of something, not {expression}")
    return expression


def parameters(function: SymbolFunction) -> list[str]:
    """The names of a function's parameters without defaults."""
    if isinstance(function, FunctionType) and not hasattr(function, "__wrapped__"):
        code, defaults = function.__code__, function.__defaults__ or ()  # faster than a signature
        return [*code.co_varnames[: code.co_argcount - len(defaults)]]
    signature = inspect.signature(function).parameters.values()
    return [p.name for p in signature if p.default is p.empty and p.kind in _NAMED]


_NAMED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def orders(pattern: Apply) -> list[Apply]:
    """A pattern with the operands of commutative ops in each order."""
    operand_orders: list[tuple[Expression, ...]] = []
    for inputs in product(*map(_orders, pattern.inputs)):
        candidates = [inputs, inputs[::-1]] if _is_commutative(pattern) else [inputs]
        for operands in candidates:
            if operands not in operand_orders:
                operand_orders.append(operands)
    return [Apply(pattern.kind, inputs, pattern.attributes) for inputs in operand_orders]


def _orders(pattern: Expression) -> list[Expression]:
    return [*orders(pattern)] if isinstance(pattern, Apply) else [pattern]


def _is_commutative(pattern: Apply) -> bool:
    return pattern.kind.commutative and len(pattern.inputs) == 2


def applications(pattern: Expression) -> Iterator[Apply]:
    """The ops of a pattern, the outermost first."""
    if isinstance(pattern, Apply):
        yield pattern
        for operand in pattern.inputs:
            yield from applications(operand)


def nesting(pattern: Expression) -> int:
    """The depth of a pattern in ops."""
    return 1 + max(map(nesting, pattern.inputs), default=0) if isinstance(pattern, Apply) else 0
