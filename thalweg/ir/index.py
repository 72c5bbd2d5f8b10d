"""Index arithmetic in normal form: constant + Σ factor · term.

A term is an index variable, `(number // divisor) % modulus` of another such sum, or an opaque
integer expression (an index read from memory). Reshapes become quotients and remainders, which
mostly cancel: `(i // 3) * 3 + i % 3` is `i`. Every sum knows the range of its values, which decides
the comparisons of most guards at compile time.

The offsets of loads and stores are such sums, in nests and in kernels. In kernels quotients and
remainders are expressions (`Affine.with_opaque_divisions`), which code generators hoist and share
like any other, and integers may be `Dynamic`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from thalweg.ir.dynamic import Dynamic, times
from thalweg.ir.expr import (
    COMPARISONS,
    FALSE,
    TRUE,
    Call,
    Cast,
    Const,
    Expr,
    Index,
    Reduce,
    Variable,
    Word,
    as_expr,
    call,
    logical,
)
from thalweg.ir.functions.reductions import REDUCTIONS

Bounds = tuple[float, float]
_ANY: Bounds = (-math.inf, math.inf)

#: Dtypes of index arithmetic, which does not overflow. Arithmetic on data may: nothing is concluded
#: from its sums that holds only of integers without bounds.
INDEX_DTYPES = frozenset({np.dtype(np.int32), np.dtype(np.int64)})


@dataclass(frozen=True)
class FloorMod:
    """(number // divisor) % modulus; no modulus if it is 0."""

    number: Affine
    divisor: int
    modulus: int

    @cached_property
    def bounds(self) -> Bounds:
        """The range of its values."""
        low, high = (_floor(b, self.divisor) for b in self.number.bounds)
        if self.modulus == 0 or (low >= 0 and high < self.modulus):
            return low, high
        return 0, self.modulus - 1

    @property
    def period(self) -> int:
        """The numbers after which a remainder repeats, or a quotient changes."""
        return self.divisor * max(self.modulus, 1)


Term = Variable | FloorMod | Expr


class Affine:
    """constant + Σ factor · term; the order of terms does not matter for equality."""

    def __init__(self, constant: int, terms: dict[Term, int] | None = None) -> None:
        self.constant = constant
        self.terms: dict[Term, int] = {} if terms is None else terms

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Affine) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> tuple[type[Affine], tuple[int, dict[Term, int]]]:
        return Affine, (self.constant, self.terms)  # as programs on disk store it

    def __repr__(self) -> str:
        parts = [f"{factor}*{_name(term)}" for term, factor in self.terms.items()]
        return " + ".join([*parts, str(self.constant)])

    @cached_property
    def key(self) -> Any:
        """A key for equality that keeps no expression alive."""
        terms = [(_term_key(term), factor) for term, factor in self.terms.items()]
        return self.constant, frozenset(terms)

    @cached_property
    def bounds(self) -> Bounds:
        """The least and the greatest possible value, infinite where unknown."""
        if any(isinstance(number, Dynamic) for number in self.integers):
            return _ANY
        low = high = float(self.constant)
        for term, factor in self.terms.items():
            ends = [factor * end for end in bounds_of(term)]
            low += min(ends)
            high += max(ends)
        return low, high

    def is_within(self, size: int) -> bool:
        """Whether all its values are in [0, size)."""
        low, high = self.bounds
        return low >= 0 and high < size

    @property
    def integers(self) -> tuple[int, ...]:
        """The constant and the factors."""
        return self.constant, *self.terms.values()

    @property
    def is_constant(self) -> bool:
        """Whether it has no terms."""
        return not self.terms

    @property
    def is_plain(self) -> bool:
        """Whether all terms are variables."""
        return all(isinstance(term, Variable) for term in self.terms)

    @property
    def sole_term(self) -> Term | None:
        """The term that it is, if it is nothing else."""
        is_term = self.constant == 0 and list(self.terms.values()) == [1]
        return next(iter(self.terms)) if is_term else None

    def factor(self, variable: Variable) -> int:
        """The factor of a variable among the terms; 0 if it is none of them."""
        return self.terms.get(variable, 0)

    @cached_property
    def parts(self) -> tuple[Expr, ...]:
        """The opaque expressions in it, those inside quotients and remainders included."""
        return tuple([part for term in self.terms for part in _parts_of(term)])

    @property
    def strides(self) -> dict[Variable, int]:
        """The terms that are variables, and their factors."""
        return {term: f for term, f in self.terms.items() if isinstance(term, Variable)}

    @property
    def computed(self) -> dict[Expr, int]:
        """The other terms as expressions, and their factors."""
        terms = self.terms.items()
        return {term_expression(term): f for term, f in terms if not isinstance(term, Variable)}

    @property
    def variables(self) -> frozenset[Variable]:
        """The variables in it, those inside quotients and remainders included."""
        inner = [term.number.variables for term in self.terms if isinstance(term, FloorMod)]
        return frozenset(self.strides).union(*inner)

    @property
    def floor_mods(self) -> list[FloorMod]:
        """The terms that are quotients and remainders."""
        return [term for term in self.terms if isinstance(term, FloorMod)]

    def replaced(self, new: Callable[[Variable | Expr], Affine | Variable | Expr | None]) -> Affine:
        """This with variables and opaque expressions replaced where `new` returns a sum or term."""
        made = {term: _replacement(term, new) for term in self.terms}
        if not any(made.values()):
            return self
        parts = [(made[term] or Affine(0, {term: 1})).scaled(f) for term, f in self.terms.items()]
        return total([Affine(self.constant), *parts])

    def without(self, dropped: Container[Term]) -> Affine:
        """This without some of its terms."""
        return Affine(self.constant, {t: f for t, f in self.terms.items() if t not in dropped})

    def with_opaque_divisions(self) -> Affine:
        """This with quotients and remainders as expressions."""
        if FloorMod not in map(type, self.terms):
            return self
        terms: dict[Term, int] = {
            term_expression(term) if isinstance(term, FloorMod) else term: factor
            for term, factor in self.terms.items()
        }
        return Affine(self.constant, terms)

    def __add__(self, other: Affine) -> Affine:
        return total([self, other])

    def scaled(self, factor: int) -> Affine:
        """This times a number."""
        if isinstance(factor, Dynamic):
            return self._scaled_dynamically(factor)
        if factor == 0:
            return number(0)
        if factor == 1:
            return self
        return Affine(self.constant * factor, {t: f * factor for t, f in self.terms.items()})

    def _scaled_dynamically(self, factor: Dynamic) -> Affine:
        """A dynamic factor applies to a single term: the sum becomes an expression if need be."""
        if list(self.integers) == [0, 1]:
            return Affine(0, dict.fromkeys(self.terms, factor))
        if not self.terms and self.constant in (0, 1):
            return Affine(factor) if self.constant else self
        return Affine(0, {expressed(self): factor})


def _parts_of(term: Term) -> tuple[Expr, ...]:
    if isinstance(term, Variable):
        return ()
    return term.number.parts if isinstance(term, FloorMod) else (term,)


def _term_key(term: Term) -> Any:
    if isinstance(term, FloorMod):
        return term.number.key, term.divisor, term.modulus
    return id(term)


def _replacement(
    term: Term, new: Callable[[Variable | Expr], Affine | Variable | Expr | None]
) -> Affine | None:
    if isinstance(term, FloorMod):
        inner = term.number.replaced(new)
        return None if inner is term.number else floor_mod(inner, term.divisor, term.modulus)
    made = new(term)
    return made if made is None or isinstance(made, Affine) else Affine(0, {made: 1})


def bounds_of(term: Term) -> Bounds:
    """The range of a term."""
    if isinstance(term, Variable):
        return 0, math.inf if isinstance(term.extent, Dynamic) else max(term.extent - 1, 0)
    return term.bounds if isinstance(term, FloorMod) else _range_of(term)


def _range_of(expression: Expr) -> Bounds:
    """The range of an opaque integer: known for constants, clamps, argmax, and what is divided."""
    match expression:
        case Const():
            return int(expression.value), int(expression.value)
        case Reduce() if REDUCTIONS[expression.combine].gives_position:
            return 0, max(math.prod(v.extent for v in expression.variables) - 1, 0)
        case Call(function="min" | "max"):
            parts = [_range_of(part) for part in expression.arguments]
            choose = min if expression.function == "min" else max
            return choose(p[0] for p in parts), choose(p[1] for p in parts)
        case Call("floor_div", (divided, Const(value=by))) if by > 0:
            return FloorMod(affine(divided), int(by), 0).bounds
        case Call("remainder", (divided, Const(value=by))) if by > 0:
            return FloorMod(affine(divided), 1, int(by)).bounds
        case _:
            return _ANY


def _name(term: Term) -> str:
    if isinstance(term, Variable):
        return term.name
    if isinstance(term, FloorMod):
        return f"(({term.number!r}) // {term.divisor} % {term.modulus})"
    return f"<{term.function if isinstance(term, Call) else type(term).__name__}>"


def _floor(value: float, divisor: int) -> float:
    return value if math.isinf(value) else value // divisor


def number(value: int) -> Affine:
    """A constant."""
    return Affine(int(value), {})


def index_of(variable: Variable) -> Affine:
    """An index variable; one that can only be 0 is 0."""
    return number(0) if variable.extent == 1 else Affine(0, {variable: 1})


def row_major(variables: Sequence[Variable]) -> Affine:
    """The row-major number of an iteration of nested loops."""
    return flat([index_of(index) for index in variables], [index.extent for index in variables])


def unraveled(value: Affine, variables: Sequence[Variable]) -> dict[Variable, Affine]:
    """The indices of the iteration of nested loops that has this row-major number."""
    indices: dict[Variable, Affine] = {}
    for index in reversed(variables):
        indices[index] = floor_mod(value, 1, index.extent)
        value = floor_mod(value, index.extent, 0)
    return indices


def flat(indices: Sequence[Affine], shape: Sequence[int]) -> Affine:
    """The row-major offset of an element."""
    parts: list[Affine] = []
    stride = 1
    for index, size in zip(reversed(indices), reversed(shape), strict=True):
        parts.append(index.scaled(stride))
        stride *= size
    return total(parts)


def total(parts: Iterable[Affine]) -> Affine:
    """The sum of sums, with matching quotients and remainders joined."""
    constant, terms = 0, dict[Term, int]()
    for part in parts:
        if type(part.constant) is int and type(constant) is int:
            constant += part.constant
        else:
            constant = _plus_dynamic(constant, part.constant, terms)
        for term, factor in part.terms.items():
            _add(terms, term, factor)
    if FloorMod in map(type, terms):
        return _join_digits(constant, terms)
    return Affine(constant, terms)


def _add(terms: dict[Term, int], term: Term, factor: int) -> None:
    """Add a term to others. Two factors of which one is dynamic cannot be added: the second term
    then becomes an expression."""
    before = terms.get(term)
    if before is None:
        if factor or isinstance(factor, Dynamic):
            terms[term] = factor
    elif isinstance(before, Dynamic) or isinstance(factor, Dynamic):
        _add(terms, call("mul", term_expression(term), as_operand(factor)), 1)
    elif before + factor:
        terms[term] = before + factor
    else:
        del terms[term]


def _plus_dynamic(constant: int, other: int, terms: dict[Term, int]) -> int:
    """The sum of two constants; where one is dynamic, the second is added as a term."""
    both = [number for number in (constant, other) if isinstance(number, Dynamic) or number]
    for extra in both[1:]:
        _add(terms, as_expr(as_operand(extra)), 1)
    return both[0] if both else 0


def as_operand(number: int) -> int | Word:
    """An integer as an operand of expressions: a dynamic one becomes a `Word`."""
    return Word(number) if isinstance(number, Dynamic) else number


def _join_digits(constant: int, terms: dict[Term, int]) -> Affine:
    """Join adjacent digits: F·(n//cm % k) + f·(n//c % m) = f·(n//c % mk), where F = f·m.

    A digit without a modulus is the rest of the number.
    """
    for low, factor in terms.items():
        if not isinstance(low, FloorMod) or low.modulus == 0:
            continue
        for high, other in terms.items():
            if (
                isinstance(high, FloorMod)
                and high.divisor == low.divisor * low.modulus
                and other == times(factor, low.modulus)
                and high.number == low.number
            ):
                modulus = low.modulus * high.modulus
                rest = {a: f for a, f in terms.items() if a is not low and a is not high}
                joined = floor_mod(low.number, low.divisor, modulus).scaled(factor)
                return total([Affine(constant, rest), joined])
    return Affine(constant, terms)


def floor_mod(value: Affine, divisor: int, modulus: int) -> Affine:
    """(value // divisor) % modulus in its simplest form."""
    quotient = _quotient(value, divisor)
    return quotient if modulus == 0 else _remainder(quotient, modulus)


def _quotient(value: Affine, divisor: int) -> Affine:
    """value // divisor: multiples of the divisor divide, a remainder in [0, divisor) vanishes."""
    if divisor == 1:
        return value
    whole = {a: f // divisor for a, f in value.terms.items() if f % divisor == 0}
    rest = {a: f for a, f in value.terms.items() if f % divisor}
    outside, constant = divmod(value.constant, divisor)
    left = Affine(constant, rest)
    low, high = left.bounds
    if _floor(low, divisor) == _floor(high, divisor) and not math.isinf(low):
        return Affine(outside + int(low // divisor), whole)
    if len(rest) == 1 and constant == 0:
        ((term, factor),) = rest.items()
        if isinstance(term, FloorMod) and factor == 1 and term.modulus % divisor == 0:
            inner = floor_mod(term.number, term.divisor * divisor, term.modulus // divisor)
            return total([Affine(outside, whole), inner])
        if factor > 1 and divisor % factor == 0:
            inner = _quotient(Affine(0, {term: 1}), divisor // factor)
            return total([Affine(outside, whole), inner])
    return Affine(outside, {**whole, FloorMod(left, divisor, 0): 1})


def _remainder(value: Affine, modulus: int) -> Affine:
    """value % modulus: multiples of the modulus vanish."""
    rest = Affine(value.constant % modulus, {a: f for a, f in value.terms.items() if f % modulus})
    low, high = rest.bounds
    if low >= 0 and high < modulus:
        return rest
    if not math.isinf(low) and low // modulus == high // modulus:
        return Affine(rest.constant - int(low // modulus) * modulus, rest.terms)
    if len(rest.terms) == 1 and rest.constant == 0:
        ((term, factor),) = rest.terms.items()
        if isinstance(term, FloorMod) and factor == 1:
            if term.modulus == 0:
                return Affine(0, {FloorMod(term.number, term.divisor, modulus): 1})
            if term.modulus % modulus == 0:
                return floor_mod(term.number, term.divisor, modulus)
    return Affine(0, {FloorMod(rest, 1, modulus): 1})


# Conversion from and to expressions


def affine(expression: Expr) -> Affine:
    """An integer expression over indices in normal form."""
    found: Affine | None = expression.normal_form
    if found is None:
        found = _normal_form(expression)
        object.__setattr__(expression, "normal_form", found)
    return found


def _normal_form(expression: Expr) -> Affine:
    match expression:
        case Const():
            return number(int(expression.value))
        case Index():
            return index_of(expression.variable)
        case Cast() if expression.dtype in INDEX_DTYPES and _is_affine(expression.value):
            return affine(expression.value)
        case Call(function="neg", arguments=(part,)) if expression.dtype in INDEX_DTYPES:
            return affine(part).scaled(-1)
        case Call() if (
            expression.function in _AFFINE_FUNCTIONS and expression.dtype in INDEX_DTYPES
        ):
            left, right = map(affine, expression.arguments)
            sides = () if expression.function in _SUMS else (left, right)
            if all(_fits(side, expression.dtype) for side in sides):
                found = _combined(expression.function, left, right)
                if found is not None:
                    return found
            return _opaque_term(call(expression.function, expressed(left), expressed(right)))
        case _:
            return _opaque_term(expression)


def _fits(value: Affine, dtype: np.dtype[Any]) -> bool:
    """Whether no part of a sum overflows in a dtype: indices and sizes do not, data do not where
    their range is known, or where they are no sum."""
    if all(isinstance(part, Word) for part in value.parts):
        return True
    if not all(_fits(term.number, dtype) for term in value.floor_mods):
        return False
    low, high = value.bounds
    limits = np.iinfo(dtype)
    return value.sole_term is not None or (limits.min <= low and high <= limits.max)


def _is_affine(value: Expr) -> bool:
    return value.is_index or (value.dtype in INDEX_DTYPES and not affine(value).parts)


def _opaque_term(expression: Expr) -> Affine:
    return Affine(0, {expression: 1})


#: Functions of two sums whose result may be a sum; for `_SUMS`, also if the sums overflow.
_SUMS = frozenset({"add", "sub", "mul"})
_AFFINE_FUNCTIONS = _SUMS | {"floor_div", "remainder", "max", "min"}


def _combined(function: str, left: Affine, right: Affine) -> Affine | None:
    """A function of two sums as a sum, if it is one."""
    is_divided = right.is_constant and right.constant > 0
    match function:
        case "add":
            return left + right
        case "sub":
            return left + right.scaled(-1)
        case "mul" if right.is_constant:
            return left.scaled(right.constant)
        case "mul" if left.is_constant:
            return right.scaled(left.constant)
        case "floor_div" if is_divided:
            return _quotient(left, right.constant)
        case "remainder" if is_divided:
            return _remainder(left, right.constant)
        case "min" | "max" if left.bounds[1] <= right.bounds[0]:
            return left if function == "min" else right
        case "min" | "max" if right.bounds[1] <= left.bounds[0]:
            return right if function == "min" else left
        case _:
            return None


def expressed(value: Affine) -> Expr:
    """A sum as an expression."""
    result: Any = None
    if isinstance(value.constant, Dynamic) or value.constant or not value.terms:
        result = as_operand(value.constant)
    for term, factor in value.terms.items():
        product = term_expression(term)
        if isinstance(factor, Dynamic) or factor != 1:
            product = call("mul", product, as_operand(factor))
        result = product if result is None else call("add", product, result)
    made = as_expr(result)
    if made.normal_form is None:
        object.__setattr__(made, "normal_form", value)
    return made


def term_expression(term: Term) -> Expr:
    """A term as an expression."""
    if isinstance(term, Variable):
        return Index(term)
    if isinstance(term, Expr):
        return term
    result = expressed(term.number)
    if term.divisor != 1:
        result = call("floor_div", result, term.divisor)
    return call("remainder", result, term.modulus) if term.modulus else result


def compared(function: str, left: Affine, right: Affine) -> bool | None:
    """The result of a comparison that ranges decide, or None."""
    low, high = (left + right.scaled(-1)).bounds
    where = COMPARISONS[function]
    may_be = (
        (where.if_less, low < 0),
        (where.if_equal, low <= 0 <= high),
        (where.if_greater, high > 0),
    )
    found = {holds for holds, possible in may_be if possible}
    return found.pop() if len(found) == 1 else None


def simplified_call(function: str, arguments: tuple[Expr, ...]) -> Expr:
    """A call; a comparison of indices that ranges decide, and logic with constants, are folded."""
    are_indices = all(part.is_index or part.dtype in INDEX_DTYPES for part in arguments)
    if function in COMPARISONS and are_indices:
        left, right = map(affine, arguments)
        decided = compared(function, left, right)
        fit = [_fits(side, part.dtype) for side, part in zip((left, right), arguments, strict=True)]
        if decided is not None and all(fit):
            return TRUE if decided else FALSE
    is_logic = function in ("and", "or", "not")
    return logical(function, arguments) if is_logic else Call(function, arguments)
