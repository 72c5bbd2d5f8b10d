"""Reductions in registers: what each kind starts from and how it takes in elements.

A `Fold` is one reduction in some number of lanes; its state is one value, or two where the place
of the best element is wanted. States of the same elements in another order can be merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from thalweg.codegen.llvm.builder import I64, Builder, Type, Value, constant
from thalweg.codegen.loops.facts import identity
from thalweg.codegen.math.conversion import (
    from_memory,
    register_type,
    storage_type,
    to_memory,
)
from thalweg.codegen.math.elements import constant_of
from thalweg.ir.expr import Reduce, Scan
from thalweg.ir.functions.dtypes import BOOL
from thalweg.platform.dtype_traits import is_float

State = list[Value]

_WHOLE = {"sum": "add", "prod": "mul", "all": "and", "any": "or"}
_FLOATING = {"sum": "fadd", "prod": "fmul"}


@dataclass(frozen=True)
class Fold:
    """A kind of reduction over elements of a dtype."""

    kind: str
    dtype: Any

    @property
    def size(self) -> int:
        """Of how many values a state consists."""
        return 2 if self.finds_place else 1

    @property
    def finds_place(self) -> bool:
        """Whether the result is the place of an element."""
        return self.kind in ("argmax", "argmin")

    def start(self, lanes: int) -> State:
        """The state before any element."""
        first = constant_of(identity(self.kind, self.dtype), self.dtype, lanes)
        return [first, constant(I64.of(lanes), 0)] if self.finds_place else [first]

    def result(self, b: Builder, state: State) -> Value:
        """What is wanted of a state; sums of narrow floats, which are float32, are rounded."""
        if self.kind not in _FLOATING or storage_type(self.dtype) == register_type(self.dtype):
            return state[-1]
        return from_memory(b, to_memory(b, state[-1], self.dtype), self.dtype)

    def take(self, b: Builder, state: Sequence[Value], element: Value, place: Value) -> State:
        """The state after one more element, whose place is behind those before."""
        if not self.finds_place:
            return [combine(b, self.kind, self.dtype, state[0], element)]
        wins = self._beats(b, state[0], element)
        return [b.select(wins, element, state[0]), b.select(wins, place, state[1])]

    def merge(self, b: Builder, one: Sequence[Value], other: Sequence[Value]) -> State:
        """The state of the elements of two states."""
        if not self.finds_place:
            return [combine(b, self.kind, self.dtype, one[0], other[0])]
        earlier = b.compare("slt", other[1], one[1])
        ties = b.binary("and", self._ties(b, one[0], other[0]), earlier)
        wins = b.binary("or", self._beats(b, one[0], other[0]), ties)
        return [b.select(wins, y, x) for x, y in zip(one, other, strict=True)]

    def _beats(self, b: Builder, best: Value, element: Value) -> Value:
        """Whether an element is larger (or smaller) than the best so far; NaN never is."""
        upper = self.kind == "argmax"
        if not is_float(np.dtype(self.dtype)):
            return b.compare(_ordering(self.dtype, upper), element, best)
        return b.compare("ogt" if upper else "olt", element, best)

    def _ties(self, b: Builder, one: Value, other: Value) -> Value:
        return b.compare("oeq" if is_float(np.dtype(self.dtype)) else "eq", one, other)

    def across(self, b: Builder, state: Sequence[Value]) -> State:
        """The state of all lanes in one, halves upon halves."""
        found = list(state)
        while found[0].type.lanes > 1:
            half = found[0].type.lanes // 2
            low = [_half(b, value, 0, half) for value in found]
            high = [_half(b, value, half, half) for value in found]
            found = self.merge(b, low, high)
        return found


def fold_of(expr: Reduce | Scan) -> Fold:
    """The fold of a reduction or a scan."""
    return Fold(expr.combine, BOOL if expr.combine in ("all", "any") else expr.body.dtype)


def combine(b: Builder, kind: str, dtype: Any, one: Value, other: Value) -> Value:
    """Two elements combined."""
    known = np.dtype(dtype)
    if kind in ("max", "min"):
        return _extreme(b, kind == "max", known, one, other)
    if known == BOOL:
        return b.binary("and" if kind in ("all", "prod") else "or", one, other)
    return b.binary((_FLOATING if is_float(known) else _WHOLE)[kind], one, other)


def _extreme(b: Builder, upper: bool, dtype: Any, one: Value, other: Value) -> Value:
    """The larger or smaller of two, NaN if either is."""
    if not is_float(dtype):
        return b.select(b.compare(_ordering(dtype, upper), one, other), one, other)
    # The processor's own maximum gives the second if either is NaN: what is left is the first.
    kept = b.select(b.compare("ogt" if upper else "olt", one, other), one, other)
    return b.select(b.compare("uno", one, one), one, kept)


def _ordering(dtype: Any, upper: bool) -> str:
    sign = "s" if np.dtype(dtype).kind == "i" else "u"
    return f"{sign}{'gt' if upper else 'lt'}"


def _half(b: Builder, value: Value, first: int, count: int) -> Value:
    """Some lanes of a vector."""
    if count == 1:
        return b.extract(value, first)
    numbers = ", ".join(f"i32 {first + lane}" for lane in range(count))
    kind: Type = value.type.of(count)
    return b.emit(kind, f"shufflevector {value}, {value.type} poison, <{count} x i32> <{numbers}>")
