"""Rules: rewrites as data.

A rule has a name, says whether what it gives is the same to the bit or up to rounding, and has a
pattern, a replacement and conditions. The replacement is graph code over the tensors that the
pattern's symbols are bound to, by name. From a rule alone, `tests/optimize` draws graphs that match
it and compares their values before and after.

>>> from thalweg.optimize.pattern import op
>>> found = rule("negation twice", Exactness.EXACT, lambda x: op.Neg(op.Neg(x)), lambda x: x)
>>> print(found)
negation twice (exact): Neg(Neg(x))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
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
    """How a rule's results compare with those of what it replaces."""

    EXACT = "exact"  # the same values; NaN stays NaN, infinities and signs of zero stay
    ROUNDING = "rounding"  # the same up to rounding, or more exact
    FINITE = "finite"  # the same up to rounding where no number is NaN or infinite


class Match(NamedTuple):
    """Where a rule's pattern was found."""

    root: Node
    nodes: tuple[Node, ...]  # all that the pattern covers, the root first
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
    """A rewrite of what a pattern matches."""

    name: str
    exactness: Exactness
    pattern: Apply
    replacement: SymbolFunction
    arguments: tuple[str, ...]  # the symbols that the replacement takes
    when: Callable[[Match], bool] = always
    #: which dtypes the first input of the root may have
    dtypes: Callable[[DType], bool] = any_dtype
    #: only where nothing else uses what is inside the pattern
    single_use: bool = False
    #: draws arrays for symbols and values for attributes that fit the conditions, for the tests
    sample: Callable[[Any], Mapping[str, Any]] | None = field(default=None, compare=False)
    #: its results are the same wherever those of the pattern are finite: it is more stable
    stabilises: bool = False

    @cached_property
    def dropped(self) -> frozenset[str]:
        """The symbols that the replacement does without."""
        found = {name for name in _tensor_symbols(self.pattern) if name not in self.arguments}
        return frozenset(found)

    @property
    def root(self) -> str:
        """The op that a match starts at."""
        return self.pattern.kind.type_name

    @cached_property
    def types(self) -> frozenset[str]:
        """The ops that have to be in a graph for the rule to match."""
        return frozenset(each.kind.type_name for each in applications(self.pattern))

    def replaced(self, match: Match) -> Any:
        """What stands for the outputs of a match, built in the current graph."""
        build: Callable[..., Any] = self.replacement
        return build(*[match.bound[name] for name in self.arguments])

    def __str__(self) -> str:
        return f"{self.name} ({self.exactness.value}): {self.pattern}"


def _tensor_symbols(pattern: Apply) -> Iterator[str]:
    for applied in applications(pattern):
        yield from (each.name for each in applied.inputs if isinstance(each, Symbol))


def rule(
    name: str,
    exactness: Exactness,
    pattern: SymbolFunction,
    replacement: SymbolFunction,
    when: Callable[[Match], bool] = always,
    dtypes: Callable[[DType], bool] = any_dtype,
    single_use: bool = False,
    sample: Callable[[Any], Mapping[str, Any]] | None = None,
    stabilises: bool = False,
) -> Rule:
    """A rule of a pattern and a replacement, which are functions of the same symbols. An op as the
    replacement takes all of them; `root` is what the pattern matched."""
    expression, symbols = traced(pattern), parameters(pattern)
    taken = parameters(replacement) or symbols
    unknown = {*taken} - {*symbols, "root"}
    if unknown:
        raise TypeError(f"rule '{name}': the pattern has no symbol '{unknown.pop()}'")
    return Rule(
        name,
        exactness,
        expression,
        replacement,
        tuple(taken),
        when,
        dtypes,
        single_use,
        sample,
        stabilises,
    )
