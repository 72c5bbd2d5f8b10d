"""Rules: rewrites as data.

A rule has a name, an exactness, a pattern, a replacement and conditions. The replacement is graph
code over the tensors that the pattern's symbols of the same names are bound to. The tests draw
graphs that match a rule from the rule alone, and compare their values before and after.

>>> from thalweg.optimize.pattern import op
>>> found = Rule("negation twice", lambda x: op.Neg(op.Neg(x)), lambda x: x)
>>> print(found)
negation twice (exact): Neg(Neg(x))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, partial
from typing import Any, NamedTuple

from thalweg.graph.dtypes import DType
from thalweg.graph.node import Node, Tensor
from thalweg.optimize.pattern import (
    Apply,
    Symbol,
    SymbolFunction,
    applications,
    parameters,
    traced,
)


class Exactness(Enum):
    """How the values of a rule's replacement compare with those of its pattern."""

    EXACT = "exact"  # equal bit for bit, including NaN, infinities and signs of zeros
    ROUNDING = "rounding"  # equal up to rounding, or more accurate
    FINITE = "finite"  # equal up to rounding where all numbers are finite


EXACT, ROUNDING, FINITE = Exactness


class Match(NamedTuple):
    """A match of a rule's pattern."""

    root: Node
    nodes: tuple[Node, ...]  # all matched nodes, the root first
    bound: Mapping[str, Any]  # tensors and values of attributes by symbol
    uses: Callable[[Tensor], int]


def always(match: Match) -> bool:
    """No condition."""
    return True


def any_dtype(dtype: DType) -> bool:
    """Every dtype."""
    return True


@dataclass(frozen=True)
class Rule:
    """A rewrite rule: a pattern, its replacement and conditions. The pattern is written as a
    function of symbols, and the replacement as one with parameters of the same names: an op takes
    all of them, a parameter `root` is the matched tensor."""

    name: str
    written: SymbolFunction
    replacement: SymbolFunction
    when: Callable[[Match], bool] = always
    #: which dtypes the first input of the root may have
    dtypes: Callable[[DType], bool] = any_dtype
    #: whether nothing else may use the inner nodes of a match
    single_use: bool = False
    #: for tests: draws arrays for symbols and values for attributes that satisfy the conditions
    sample: Callable[[Any], Mapping[str, Any]] | None = field(default=None, compare=False)
    #: numerically more stable: values are compared only where those of the pattern are finite
    stabilises: bool = False
    exactness: Exactness = EXACT

    def __post_init__(self) -> None:
        _ = self.pattern  # raises unless it is an op of something
        unknown = {*self.arguments} - {*parameters(self.written), "root"}
        if unknown:
            raise TypeError(f"rule '{self.name}': the pattern has no symbol '{unknown.pop()}'")

    @cached_property
    def pattern(self) -> Apply:
        """What it matches."""
        return traced(self.written)

    @cached_property
    def arguments(self) -> list[str]:
        """The symbols that the replacement takes."""
        return parameters(self.replacement) or parameters(self.written)

    @cached_property
    def dropped(self) -> frozenset[str]:
        """The symbols that the replacement does not use."""
        operands = [part for applied in applications(self.pattern) for part in applied.inputs]
        symbols = {part.name for part in operands if isinstance(part, Symbol)}
        return frozenset(symbols.difference(self.arguments))

    @property
    def root(self) -> str:
        """The op type of a match's root."""
        return self.pattern.kind.type_name

    @cached_property
    def types(self) -> frozenset[str]:
        """The op types that a graph must have for the rule to match."""
        return frozenset(applied.kind.type_name for applied in applications(self.pattern))

    def replaced(self, match: Match) -> Any:
        """Build the replacement of a match in the current graph."""
        build: Callable[..., Any] = self.replacement
        return build(*[match.bound[name] for name in self.arguments])

    def __str__(self) -> str:
        return f"{self.name} ({self.exactness.value}): {self.pattern}"


#: Rules that are not exact.
rounding, finite = partial(Rule, exactness=ROUNDING), partial(Rule, exactness=FINITE)
