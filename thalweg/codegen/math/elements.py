"""Elements in registers: the dtype of an expression, and its value in one lane or several.

An `Evaluator` writes the instructions of expressions with a builder. What loads, indices and
reductions are is the caller's business: it gives a function for these leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from thalweg.codegen.llvm.builder import Builder, Type, Value, constant
from thalweg.codegen.llvm.register import LlvmRegister
from thalweg.codegen.math.conversion import (
    converted,
    from_memory,
    register_type,
    storage_type,
    to_memory,
)
from thalweg.ir.expr import Expr
from thalweg.ir.functions.dtypes import BOOL, Dtype, Unsupported
from thalweg.ir.functions.function import Comparison, Site
from thalweg.ir.functions.register import Register
from thalweg.ir.functions.table import FUNCTIONS
from thalweg.ir.kernel import Dynamic
from thalweg.ir.types import dtype_of, loop_dtypes, weak_dtype

__all__ = [
    "Evaluator",
    "constant_of",
    "converted",
    "from_memory",
    "register_type",
    "storage_type",
    "to_memory",
]

#: Gives the value of a load, index, reduction, scan or sum in the lanes a mask allows (None: all).
#: The mask has as many lanes as the evaluator; the value may have one, the same for all lanes.
Leaf = Callable[[Expr, Value | None], Value]

#: Told of a scalar condition that must not be: some lane divides by zero.
Fault = Callable[[Builder, Value], None]

LEAVES = frozenset({"load", "index", "reduce", "scan", "sum", "input"})
_FLOAT32: Dtype = np.dtype(np.float32)
_INT64: Dtype = np.dtype(np.int64)


def constant_of(number: Any, dtype: Any, lanes: int = 1) -> Value:
    """A Python or NumPy number as a constant of a dtype."""
    known = np.dtype(dtype)
    kind = register_type(known, lanes)
    if kind.is_float:
        with np.errstate(over="ignore"):
            return constant(kind, np.asarray(float(number)).astype(known))
    if isinstance(number, float | np.floating):
        return constant(kind, np.asarray(number).astype(known))
    return constant(kind, number)


class Evaluator:
    """Writes the value of expressions in a number of lanes; shared parts are computed once.

    Values are remembered for the block that is being written: code that does not always run before
    what follows needs an evaluator of its own.
    """

    def __init__(
        self,
        builder: Builder,
        lanes: int,
        leaf: Leaf,
        fault: Fault | None = None,
        sum_dtype: Any = _FLOAT32,
    ) -> None:
        self.builder, self.lanes = builder, lanes
        self._leaf, self._fault, self._sum_dtype = leaf, fault, np.dtype(sum_dtype)
        self._values: dict[tuple[Expr, str], Value] = {}
        self._masks: dict[tuple[str, str, bool], Value] = {}
        self._wider: dict[str, str] = {}  # a mask → the mask it was narrowed from
        self._sensitive: dict[Expr, bool] = {}

    def dtype(self, expr: Any) -> Dtype:
        """The dtype of an expression here."""
        return dtype_of(expr, self._sum_dtype)

    def value(self, expr: Any, mask: Value | None = None) -> Value:
        """The register value of an expression in all lanes; lanes off the mask hold anything."""
        return _spread(self.builder, self.narrow(expr, mask), self.lanes)

    def value_as(self, expr: Any, dtype: Any, mask: Value | None = None) -> Value:
        """The value of an expression (or a Python number) converted to a dtype, in all lanes."""
        return _spread(self.builder, self._as(expr, np.dtype(dtype), mask), self.lanes)

    def narrow(self, expr: Any, mask: Value | None = None) -> Value:
        """The value of an expression in one lane if it is the same in all, else in all lanes."""
        if not isinstance(expr, Expr):
            return constant_of(expr, dtype_of(expr))
        found = self._found(expr, mask)
        if found is None:
            self._compute(expr, mask)
            found = self._found(expr, mask)
        assert found is not None
        return found

    def _compute(self, expr: Expr, mask: Value | None) -> None:
        """Write an expression and all that it needs, those first."""
        pending = [(expr, mask)]
        while pending:
            part, under = pending[-1]
            if self._found(part, under) is not None:
                pending.pop()
            elif missing := self._missing(part, under):
                pending += reversed(missing)
            else:
                # What no mask matters to is kept for every mask, so none may shape it.
                needed = under if self._is_sensitive(part) else None
                self._values[self._key(part, under)] = self._computed(part, needed)
                pending.pop()

    # What is known

    def _key(self, expr: Expr, mask: Value | None) -> tuple[Expr, str]:
        return expr, mask.text if mask is not None and self._is_sensitive(expr) else ""

    def _found(self, expr: Expr, mask: Value | None) -> Value | None:
        """A value that holds under a mask: computed for it, or for one it was narrowed from."""
        _, at = self._key(expr, mask)
        while True:
            if (value := self._values.get((expr, at))) is not None or not at:
                return value
            at = self._wider.get(at, "")

    def _missing(self, expr: Expr, mask: Value | None) -> list[tuple[Expr, Value | None]]:
        """The parts that must be computed before an expression (for a select, in two rounds)."""
        if expr.function in LEAVES:
            return []
        if expr.function != "select":
            return self._unknown([(part, mask) for part in expr.arguments])
        condition, chosen, otherwise = expr.arguments
        if not isinstance(condition, Expr):
            return self._unknown([(chosen if condition else otherwise, mask)])
        if missing := self._unknown([(condition, mask)]):
            return missing
        return self._unknown(
            [
                (chosen, self._narrowed(chosen, condition, mask, True)),
                (otherwise, self._narrowed(otherwise, condition, mask, False)),
            ]
        )

    def _unknown(
        self, parts: Sequence[tuple[Any, Value | None]]
    ) -> list[tuple[Expr, Value | None]]:
        return [
            (part, mask)
            for part, mask in parts
            if isinstance(part, Expr) and self._found(part, mask) is None
        ]

    def _narrowed(
        self, branch: Any, condition: Expr, mask: Value | None, holds: bool
    ) -> Value | None:
        """The mask under which a branch of a select is computed."""
        if not (isinstance(branch, Expr) and self._is_sensitive(branch)):
            return mask
        truth = self._as(condition, BOOL, mask)
        key = ("" if mask is None else mask.text), truth.text, holds
        if key not in self._masks:
            spread = LlvmRegister(self.builder, self.builder.splat(truth, self.lanes))
            made = spread if holds else ~spread
            made = made if mask is None else made & LlvmRegister(self.builder, mask)
            self._masks[key] = made.value
            self._wider.setdefault(made.value.text, key[0])
        return self._masks[key]

    def _is_sensitive(self, expr: Expr) -> bool:
        """Whether it matters in which lanes an expression is computed: it loads, or may fault."""
        pending = [expr]
        while expr not in self._sensitive:
            part = pending[-1]
            parts = [a for a in part.arguments if isinstance(a, Expr)]
            missing = [p for p in parts if p not in self._sensitive]
            if missing and part.function not in LEAVES:
                pending += missing
                continue
            self._sensitive[part] = self._reads_or_faults(part) or (
                part.function not in LEAVES and any(self._sensitive[p] for p in parts)
            )
            pending.pop()
        return self._sensitive[expr]

    def _reads_or_faults(self, expr: Expr) -> bool:
        match expr.function:
            case "load":
                return not _always_inside(*expr.arguments)
            case "reduce" | "scan":
                return True
            case function if (row := FUNCTIONS.get(function)) and row.divides:
                divisor = expr.arguments[1]
                return isinstance(divisor, Expr) and self.dtype(expr).kind in "iu"
            case _:
                return False

    # What is written

    def _as(self, expr: Any, dtype: Dtype, mask: Value | None) -> Value:
        if not isinstance(expr, Expr):
            return constant_of(expr, dtype)
        value = self.narrow(expr, mask)
        return converted(self.builder, value, self.dtype(expr), dtype)

    def _computed(self, expr: Expr, mask: Value | None) -> Value:
        match expr.function:
            case function if function in LEAVES:
                return self._leaf(expr, mask)
            case "select":
                return self._selected(expr, mask)
            case "cast":
                part, target = expr.arguments
                return self._as(_as_cast(part, target), np.dtype(target), mask)
            case "bitcast":
                part, target = expr.arguments
                return self._reinterpreted(part, target, mask)
            case _:
                return self._called(expr, mask)

    def _called(self, expr: Expr, mask: Value | None) -> Value:
        row, parts = FUNCTIONS[expr.function], expr.arguments
        kinds = tuple(self.dtype(p) if isinstance(p, Expr) else weak_dtype(p) for p in parts)
        dtypes = loop_dtypes(expr.function, kinds)
        if row.comparison and (known := _decided(row.comparison, parts, dtypes)) is not None:
            return constant(Type("i1"), known)
        values = self._level([self._as(p, d, mask) for p, d in zip(parts, dtypes, strict=False)])
        assert row.emit is not None
        fault = None if self._fault is None else partial(self._report, self._fault, mask)
        result = row.emit(Site(dtypes, fault), *(LlvmRegister(self.builder, v) for v in values))
        return cast("LlvmRegister", result).value

    def _report(self, fault: Fault, mask: Value | None, condition: Register) -> None:
        """Report a condition that holds in some lane that counts."""
        found = cast("LlvmRegister", condition)
        if mask is not None:
            spread = LlvmRegister(self.builder, self.builder.splat(found.value, mask.type.lanes))
            found = spread & LlvmRegister(self.builder, mask)
        fault(self.builder, found.any().value)

    def _selected(self, expr: Expr, mask: Value | None) -> Value:
        condition, chosen, otherwise = expr.arguments
        dtype = self.dtype(expr)
        if not isinstance(condition, Expr):
            return self._as(chosen if condition else otherwise, dtype, mask)
        truth = self._as(condition, BOOL, mask)
        yes = self._as(chosen, dtype, self._narrowed(chosen, condition, mask, True))
        no = self._as(otherwise, dtype, self._narrowed(otherwise, condition, mask, False))
        if truth.type.lanes > 1:
            yes, no = (_spread(self.builder, value, self.lanes) for value in (yes, no))
        return self.builder.select(truth, *self._level([yes, no]))

    def _reinterpreted(self, part: Any, target: Any, mask: Value | None) -> Value:
        old, new = self.dtype(part), np.dtype(target)
        if old.itemsize != new.itemsize:
            raise Unsupported(f"the bits of {old} as {new}")
        raw = to_memory(self.builder, self._as(part, old, mask), old)
        stored = storage_type(new, raw.type.lanes)
        moved = raw if raw.type == stored else self.builder.convert("bitcast", raw, stored.scalar)
        return from_memory(self.builder, moved, new)

    def _level(self, values: Sequence[Value]) -> list[Value]:
        """Values in as many lanes as the widest of them has."""
        lanes = max(value.type.lanes for value in values)
        return [_spread(self.builder, value, lanes) for value in values]


def _spread(b: Builder, value: Value, lanes: int) -> Value:
    """A scalar in every lane; constants stay constants."""
    if lanes == 1 or value.type.lanes == lanes or value.text.startswith("%"):
        return b.splat(value, lanes)
    return Value(value.type.of(lanes), f"splat ({value})")


def _as_cast(part: Any, target: Any) -> Any:
    """A number under a cast first becomes what it is by itself; then it is cast."""
    if isinstance(part, Expr):
        return part
    with np.errstate(all="ignore"):
        return cast("Any", np.asarray(part).astype(target)[()])


def _always_inside(argument: Any, offset: Any) -> bool:
    """Whether a load is at a fixed place within its buffer."""
    numbers = offset.constant, argument.size
    if offset.terms or any(isinstance(number, Dynamic) for number in numbers):
        return False
    return 0 <= offset.constant < argument.size


def _decided(
    comparison: Comparison, parts: Sequence[Any], dtypes: tuple[Dtype, ...]
) -> bool | None:
    """A comparison with a Python integer that the other side's dtype cannot hold, if it is one."""
    for side, (part, dtype) in enumerate(zip(parts, dtypes, strict=False)):
        if isinstance(part, int) and dtype.kind in "iu":
            limits = np.iinfo(dtype)
            if not limits.min <= part <= limits.max:
                left_is_less = (part < limits.min) == (side == 0)
                return comparison.if_less if left_is_less else comparison.if_greater
    return None
