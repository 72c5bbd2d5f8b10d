"""Index arithmetic in normal form: constant + Σ factor · atom.

An atom is an index variable, a digit `(number // divisor) % modulus` of another such sum, or an
integer expression that is opaque here (an index read from memory). Reshapes turn into digits and
mostly cancel again: `(i // 3) * 3 + i % 3` is `i`. Every sum knows the range of its values, which
settles the comparisons of most guards before any code is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from thalweg.ir.expr import Call, Cast, Const, Expr, Index, Reduce, as_expr, call
from thalweg.ir.loop import Variable
from thalweg.ir.rewrite import Rewriter

Bounds = tuple[float, float]
_ANY: Bounds = (-math.inf, math.inf)


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


Term = Variable | FloorMod | Expr


class Affine:
    """constant + Σ factor · atom, as a value: equal sums are equal and hash alike."""

    __slots__ = ("_bounds", "_hash", "_key", "_parts", "constant", "terms")

    def __init__(self, constant: int, terms: dict[Term, int]) -> None:
        self.constant = constant
        self.terms = terms
        self._hash: int | None = None
        self._key: Any = None
        self._parts: tuple[Expr, ...] | None = None
        self._bounds: Bounds | None = None

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Affine)
            and self.constant == other.constant
            and self.terms == other.terms
        )

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.constant, frozenset(self.terms.items())))
        return self._hash

    def __repr__(self) -> str:
        parts = [f"{factor}*{_name(atom)}" for atom, factor in self.terms.items()]
        return " + ".join([*parts, str(self.constant)])

    @property
    def key(self) -> Any:
        """What tells it from other sums, without keeping anything of it alive."""
        if self._key is None:
            terms = [(_atom_key(atom), factor) for atom, factor in self.terms.items()]
            self._key = self.constant, frozenset(terms)
        return self._key

    @property
    def bounds(self) -> Bounds:
        """The least and the greatest value it may take."""
        if self._bounds is None:
            self._bounds = self._find_bounds()
        return self._bounds

    def _find_bounds(self) -> Bounds:
        low = high = float(self.constant)
        for atom, factor in self.terms.items():
            ends = [factor * end for end in bounds_of(atom)]
            low += min(ends)
            high += max(ends)
        return low, high

    @property
    def is_constant(self) -> bool:
        """Whether it is a number."""
        return not self.terms

    @property
    def parts(self) -> tuple[Expr, ...]:
        """The opaque integers in it, those inside digits among them."""
        if self._parts is None:
            self._parts = tuple([part for atom in self.terms for part in _parts_of(atom)])
        return self._parts

    @property
    def variables(self) -> frozenset[Variable]:
        """The variables in it, those inside digits among them."""
        own = [atom for atom in self.terms if isinstance(atom, Variable)]
        inner = [atom.number.variables for atom in self.terms if isinstance(atom, FloorMod)]
        return frozenset(own).union(*inner)

    def rebuild(self, to: Rewriter) -> Affine:
        """This with what a rewriter has made of the opaque integers in it."""
        if not self.parts:
            return self

        def new(atom: Variable | Expr) -> Affine | None:
            made = to.new(atom) if isinstance(atom, Expr) else atom
            return affine(made) if isinstance(made, Expr) and made is not atom else None

        return self.replaced(new)

    def replaced(self, new: Callable[[Variable | Expr], Affine | None]) -> Affine:
        """This with sums in place of those variables and opaque integers that `new` gives one."""
        made = {atom: _instead(atom, new) for atom in self.terms}
        if not any(made.values()):
            return self
        parts = [(made[atom] or Affine(0, {atom: 1})).scaled(f) for atom, f in self.terms.items()]
        return total([Affine(self.constant, {}), *parts])

    def __add__(self, other: Affine) -> Affine:
        return total([self, other])

    def scaled(self, factor: int) -> Affine:
        """This times a number."""
        if factor == 0:
            return number(0)
        if factor == 1:
            return self
        return Affine(self.constant * factor, {a: f * factor for a, f in self.terms.items()})


def _parts_of(atom: Term) -> tuple[Expr, ...]:
    if isinstance(atom, Variable):
        return ()
    return atom.number.parts if isinstance(atom, FloorMod) else (atom,)


def _atom_key(atom: Term) -> Any:
    if isinstance(atom, FloorMod):
        return atom.number.key, atom.divisor, atom.modulus
    return id(atom)


def _instead(atom: Term, new: Callable[[Variable | Expr], Affine | None]) -> Affine | None:
    if not isinstance(atom, FloorMod):
        return new(atom)
    inner = atom.number.replaced(new)
    return None if inner is atom.number else floor_mod(inner, atom.divisor, atom.modulus)


def bounds_of(atom: Term) -> Bounds:
    """The range of an atom."""
    if isinstance(atom, Variable):
        return 0, max(atom.extent - 1, 0)
    return atom.bounds if isinstance(atom, FloorMod) else _range_of(atom)


def _range_of(expression: Expr) -> Bounds:
    """What is known of an opaque integer: clamps have limits, and places of extremes too."""
    match expression:
        case Const():
            return int(expression.value), int(expression.value)
        case Reduce(combine="argmax" | "argmin"):
            return 0, max(math.prod(v.extent for v in expression.variables) - 1, 0)
        case Call(function="min" | "max"):
            parts = [_range_of(part) for part in expression.arguments]
            choose = min if expression.function == "min" else max
            return choose(p[0] for p in parts), choose(p[1] for p in parts)
        case _:
            return _ANY


def _name(atom: Term) -> str:
    if isinstance(atom, Variable):
        return atom.name
    if isinstance(atom, FloorMod):
        return f"(({atom.number!r}) // {atom.divisor} % {atom.modulus})"
    return f"<{atom.function if isinstance(atom, Call) else type(atom).__name__}>"


def _floor(value: float, divisor: int) -> float:
    return value if math.isinf(value) else value // divisor


def number(value: int) -> Affine:
    """A constant."""
    return Affine(int(value), {})


def variable(index: Variable) -> Affine:
    """An index variable; one that can only be 0 is 0."""
    return number(0) if index.extent == 1 else Affine(0, {index: 1})


def row_major(variables: Sequence[Variable]) -> Affine:
    """The number of a turn of nested loops, the last of them the innermost."""
    parts: list[Affine] = []
    stride = 1
    for index in reversed(variables):
        parts.append(variable(index).scaled(stride))
        stride *= index.extent
    return total(parts) if parts else number(0)


def total(parts: Iterable[Affine]) -> Affine:
    """The sum of sums, with digits of one number joined again."""
    constant, terms = 0, dict[Term, int]()
    for part in parts:
        constant += part.constant
        for atom, factor in part.terms.items():
            summed = terms.get(atom, 0) + factor
            if summed:
                terms[atom] = summed
            else:
                del terms[atom]
    if sum(isinstance(atom, FloorMod) for atom in terms) > 0:
        return _joined(constant, terms)
    return Affine(constant, terms)


def _joined(constant: int, terms: dict[Term, int]) -> Affine:
    """Digits that follow one another become one: F·(n//cm % k) + f·(n//c % m) = f·(n//c % mk).

    It holds where F = f·m; a number that lost all its digits' limits is added as it is.
    """
    for low, factor in terms.items():
        if not isinstance(low, FloorMod) or low.modulus == 0:
            continue
        for high, other in terms.items():
            if (
                isinstance(high, FloorMod)
                and high.divisor == low.divisor * low.modulus
                and other == factor * low.modulus
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
    """value // divisor: multiples of the divisor come out, a rest within [0, divisor) vanishes."""
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
        ((atom, factor),) = rest.items()
        if isinstance(atom, FloorMod) and factor == 1 and atom.modulus == 0:
            inner = floor_mod(atom.number, atom.divisor * divisor, 0)
            return total([Affine(outside, whole), inner])
        if isinstance(atom, FloorMod) and factor == 1 and atom.modulus % divisor == 0:
            inner = floor_mod(atom.number, atom.divisor * divisor, atom.modulus // divisor)
            return total([Affine(outside, whole), inner])
        if divisor % abs(factor) == 0 and abs(factor) != 1 and factor > 0:
            inner = _quotient(Affine(0, {atom: 1}), divisor // factor)
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
        ((atom, factor),) = rest.terms.items()
        if isinstance(atom, FloorMod) and factor == 1:
            if atom.modulus == 0:
                return Affine(0, {FloorMod(atom.number, atom.divisor, modulus): 1})
            if atom.modulus % modulus == 0:
                return floor_mod(atom.number, atom.divisor, modulus)
    return Affine(0, {FloorMod(rest, 1, modulus): 1})


# From expressions and back


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
            return variable(expression.variable)
        case Cast() if expression.target.kind in "iu" and expression.value.is_index:
            return affine(expression.value)
        case Call() if expression.function in _RULES:
            sides = [affine(part) for part in expression.arguments]
            return _RULES[expression.function](expression, *sides)
        case _:
            return _opaque(expression)


def _opaque(expression: Expr) -> Affine:
    return Affine(0, {expression: 1})


def _sum(_: Call, left: Affine, right: Affine) -> Affine:
    return left + right


def _difference(_: Call, left: Affine, right: Affine) -> Affine:
    return left + right.scaled(-1)


def _negated(_: Call, value: Affine) -> Affine:
    return value.scaled(-1)


def _product(expression: Call, left: Affine, right: Affine) -> Affine:
    if right.is_constant:
        return left.scaled(right.constant)
    if left.is_constant:
        return right.scaled(left.constant)
    return _plain(expression, left, right)


def _division(expression: Call, left: Affine, right: Affine) -> Affine:
    if right.is_constant and right.constant > 0:
        if expression.function == "floor_div":
            return _quotient(left, right.constant)
        return _remainder(left, right.constant)
    return _plain(expression, left, right)


def _extreme(expression: Call, left: Affine, right: Affine) -> Affine:
    wants_least = expression.function == "min"
    if left.bounds[1] <= right.bounds[0]:
        return left if wants_least else right
    if right.bounds[1] <= left.bounds[0]:
        return right if wants_least else left
    return _plain(expression, left, right)


def _plain(expression: Call, left: Affine, right: Affine) -> Affine:
    return _opaque(call(expression.function, expressed(left), expressed(right)))


_RULES: dict[str, Callable[..., Affine]] = {
    "add": _sum,
    "sub": _difference,
    "neg": _negated,
    "mul": _product,
    "floor_div": _division,
    "remainder": _division,
    "max": _extreme,
    "min": _extreme,
}


def upper_border(condition: Expr) -> tuple[Term, int] | None:
    """The index that must be below a number for a condition to hold, and that number."""
    match condition:
        case Call(function="lt", arguments=(left, Const() as border)) if left.is_index:
            place = affine(left)
        case _:
            return None
    if place.constant or list(place.terms.values()) != [1]:
        return None
    (atom,) = place.terms
    return atom, int(border.value)


def expressed(value: Affine) -> Expr:
    """A sum as an expression over indices that code generators know."""
    result: Any = value.constant if value.constant or not value.terms else None
    for atom, factor in value.terms.items():
        term = atom_expression(atom)
        term = term if factor == 1 else call("mul", term, factor)
        result = term if result is None else call("add", term, result)
    made = as_expr(result)
    if made.normal_form is None:
        object.__setattr__(made, "normal_form", value)
    return made


def atom_expression(atom: Term) -> Expr:
    """An atom as an expression."""
    if isinstance(atom, Variable):
        return Index(atom)
    if isinstance(atom, Expr):
        return atom
    result = expressed(atom.number)
    if atom.divisor != 1:
        result = call("floor_div", result, atom.divisor)
    return call("remainder", result, atom.modulus) if atom.modulus else result


def compared(function: str, left: Affine, right: Affine) -> bool | None:
    """A comparison that the ranges settle, or None."""
    low, high = (left + right.scaled(-1)).bounds
    match function:
        case "lt":
            return True if high < 0 else False if low >= 0 else None
        case "le":
            return True if high <= 0 else False if low > 0 else None
        case "gt":
            return True if low > 0 else False if high <= 0 else None
        case "ge":
            return True if low >= 0 else False if high < 0 else None
        case "eq":
            return True if low == high == 0 else False if low > 0 or high < 0 else None
        case _:
            return False if low == high == 0 else True if low > 0 or high < 0 else None
