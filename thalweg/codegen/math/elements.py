"""Expressions and reductions in registers, scalar or vector.

An `Evaluator` emits expressions with a builder; the caller supplies a function for the leaves:
loads, indices, reductions. An `Accumulator` is a reduction (a row of
`thalweg.ir.functions.reductions`) over elements of a dtype, in any number of lanes. Its state is
one value, or two where the result is a position. States of disjoint elements can be merged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, cast

import numpy as np

from thalweg.codegen.llvm.builder import I64, Builder, Value, constant
from thalweg.codegen.llvm.register import LlvmRegister
from thalweg.codegen.math.conversion import (
    converted,
    from_memory,
    register_type,
    storage_type,
    to_memory,
)
from thalweg.ir.expr import (
    Accumulated,
    Bitcast,
    Call,
    Cast,
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    Scan,
    Select,
    Word,
)
from thalweg.ir.functions.dtypes import BOOL, Dtype, Unsupported
from thalweg.ir.functions.function import Site
from thalweg.ir.functions.reductions import REDUCTIONS, Reduction
from thalweg.ir.functions.register import Register
from thalweg.ir.functions.table import FUNCTIONS
from thalweg.ir.rewrite import Fold
from thalweg.platform.caches import memoized
from thalweg.platform.dtype_traits import is_float

#: Emits a load, index, reduction, scan or sum in the lanes of a mask (None: all). The mask has as
#: many lanes as the evaluator; the value may be a scalar, the same for all lanes.
Leaf = Callable[[Expr, Value | None], Value]

#: Emits a fault under a scalar condition: some lane divides by zero.
Fault = Callable[[Builder, Value], None]

LEAVES = Load | Index | Word | Reduce | Scan | Accumulated


def _constant_of(number: Any, dtype: Dtype, lanes: int = 1) -> Value:
    """A Python or NumPy number as a constant of a dtype."""
    with np.errstate(all="ignore"):
        return constant(register_type(dtype, lanes), np.asarray(number).astype(dtype))


@memoized(4_096)
def _constant_as(expr: Const, dtype: Dtype) -> Value:
    return _constant_of(expr.value, dtype)


def mask_sensitivity(alone: Callable[[Expr], bool]) -> Fold[bool]:
    """Whether the mask matters under which an expression is computed, given whether it does for an
    expression by itself, its parts aside."""
    return Fold(
        lambda part, known: alone(part) or (not isinstance(part, LEAVES) and any(known.parts(part)))
    )


def reads_or_faults(expr: Expr) -> bool:
    """Whether an expression by itself loads, or may fault."""
    if isinstance(expr, Load) and not expr.offset.is_constant:
        return True
    return isinstance(expr, Reduce | Scan) or not is_speculatable(expr)


def is_speculatable(expr: Expr) -> bool:
    """Whether an expression by itself may be executed speculatively: it neither faults nor reads
    outside."""
    if isinstance(expr, Load):
        return expr.buffer.contains(expr.offset)
    if isinstance(expr, Call) and FUNCTIONS[expr.function].divides:
        return isinstance(expr.arguments[1], Const) or expr.dtype.kind not in "iub"
    return True


class Evaluator:
    """Emits expressions in a number of lanes; shared parts are computed once.

    Values are cached for the code that they dominate: code that runs conditionally needs an
    evaluator of its own.
    """

    def __init__(
        self,
        builder: Builder,
        lanes: int,
        leaf: Leaf,
        fault: Fault | None = None,
        sensitive: Fold[bool] | None = None,
    ) -> None:
        """`sensitive` is a `mask_sensitivity` that several evaluators share."""
        self.builder, self.lanes = builder, lanes
        self._leaf, self._fault = leaf, fault
        self._sensitive = sensitive or mask_sensitivity(reads_or_faults)
        self._values: dict[tuple[Expr, str], Value] = {}
        self._masks: dict[tuple[str, str, bool], Value] = {}
        self._parent_masks: dict[str, str] = {}  # a mask → the mask it is a subset of

    def value(self, expr: Expr, mask: Value | None = None) -> Value:
        """The value of an expression in all lanes; lanes off the mask are undefined."""
        return _splat(self.builder, self.scalar_or_vector(expr, mask), self.lanes)

    def value_as(self, expr: Expr, dtype: Any, mask: Value | None = None) -> Value:
        """The value of an expression converted to a dtype, in all lanes."""
        return _splat(self.builder, self._as(expr, np.dtype(dtype), mask), self.lanes)

    def scalar_or_vector(self, expr: Expr, mask: Value | None = None) -> Value:
        """The value of an expression: a scalar if it is uniform, else a vector."""
        if isinstance(expr, Const):
            return _constant_as(expr, expr.dtype)
        found = self._lookup(expr, mask)
        if found is None:
            self._compute(expr, mask)
            found = self._lookup(expr, mask)
        assert found is not None
        return found

    def _compute(self, expr: Expr, mask: Value | None) -> None:
        """Emit an expression after its missing parts, iteratively."""
        pending = [(expr, mask)]
        while pending:
            part, under = pending[-1]
            if self._lookup(part, under) is not None:
                pending.pop()
            elif missing := self._missing_operands(part, under):
                pending += reversed(missing)
            else:
                # A value that is cached for every mask must not depend on one.
                needed = under if self._sensitive.of(part) else None
                self._values[self._key(part, under)] = self._emit(part, needed)
                pending.pop()

    # Available values

    def _key(self, expr: Expr, mask: Value | None) -> tuple[Expr, str]:
        return expr, mask.text if mask is not None and self._sensitive.of(expr) else ""

    def _lookup(self, expr: Expr, mask: Value | None) -> Value | None:
        """A value that is valid under a mask: computed for it, or for a superset of it."""
        at = mask.text if mask is not None and self._sensitive.of(expr) else ""
        while True:
            if (value := self._values.get((expr, at))) is not None or not at:
                return value
            at = self._parent_masks.get(at, "")

    def _missing_operands(self, expr: Expr, mask: Value | None) -> list[tuple[Expr, Value | None]]:
        """The parts to compute before an expression; of a select, first the condition."""
        if isinstance(expr, LEAVES):
            return []
        if not isinstance(expr, Select):
            return self._unknown([(part, mask) for part in expr.parts])
        condition, chosen, otherwise = expr.parts
        if isinstance(condition, Const):
            return self._unknown([(chosen if condition.value else otherwise, mask)])
        if missing := self._unknown([(condition, mask)]):
            return missing
        return self._unknown(
            [
                (chosen, self._branch_mask(chosen, condition, mask, True)),
                (otherwise, self._branch_mask(otherwise, condition, mask, False)),
            ]
        )

    def _unknown(
        self, parts: Sequence[tuple[Expr, Value | None]]
    ) -> list[tuple[Expr, Value | None]]:
        return [
            (part, mask)
            for part, mask in parts
            if not isinstance(part, Const) and self._lookup(part, mask) is None
        ]

    def _branch_mask(
        self, branch: Expr, condition: Expr, mask: Value | None, holds: bool
    ) -> Value | None:
        """The mask under which a branch of a select is computed."""
        if not self._sensitive.of(branch):
            return mask
        truth = self._as(condition, BOOL, mask)
        key = ("" if mask is None else mask.text), truth.text, holds
        if key not in self._masks:
            spread = LlvmRegister(self.builder, self.builder.splat(truth, self.lanes))
            made = spread if holds else ~spread
            made = made if mask is None else made & LlvmRegister(self.builder, mask)
            self._masks[key] = made.value
            self._parent_masks.setdefault(made.value.text, key[0])
        return self._masks[key]

    # Emission

    def _as(self, expr: Expr, dtype: Dtype, mask: Value | None) -> Value:
        if isinstance(expr, Const):
            return _constant_as(expr, dtype)
        return converted(self.builder, self.scalar_or_vector(expr, mask), expr.dtype, dtype)

    def _emit(self, expr: Expr, mask: Value | None) -> Value:
        match expr:
            case Select():
                return self._emit_select(expr, mask)
            case Cast():
                return self._as(expr.value, expr.dtype, mask)
            case Bitcast():
                return self._emit_bitcast(expr, mask)
            case Call():
                return self._emit_call(expr, mask)
            case _:
                return self._leaf(expr, mask)

    def _emit_call(self, expr: Call, mask: Value | None) -> Value:
        parts, dtypes = expr.arguments, self._call_dtypes(expr)
        values = self._broadcast(
            [self._as(p, d, mask) for p, d in zip(parts, dtypes, strict=False)]
        )
        row = FUNCTIONS[expr.function]
        if row.emit is None:
            raise Unsupported(f"code of {expr.function}")
        fault = None if self._fault is None else partial(self._report, self._fault, mask)
        site = Site(self._rounding_dtypes(expr, dtypes), fault)
        result = row.emit_at(site, *(LlvmRegister(self.builder, v) for v in values))
        return cast("LlvmRegister", result).value

    def _call_dtypes(self, expr: Call) -> tuple[Dtype, ...]:
        """The dtypes that a call is computed in."""
        return expr.loop

    def _rounding_dtypes(self, expr: Call, dtypes: tuple[Dtype, ...]) -> tuple[Dtype, ...]:
        """The dtypes whose rounding the result of a call must be exact for."""
        return dtypes

    def _report(self, fault: Fault, mask: Value | None, condition: Register) -> None:
        """Emit a fault for a condition that holds in some lane of the mask."""
        found = cast("LlvmRegister", condition)
        if mask is not None:
            spread = LlvmRegister(self.builder, self.builder.splat(found.value, mask.type.lanes))
            found = spread & LlvmRegister(self.builder, mask)
        fault(self.builder, found.any().value)

    def _emit_select(self, expr: Select, mask: Value | None) -> Value:
        condition, chosen, otherwise, dtype = *expr.parts, expr.dtype
        if isinstance(condition, Const):
            return self._as(chosen if condition.value else otherwise, dtype, mask)
        truth = self._as(condition, BOOL, mask)
        yes = self._as(chosen, dtype, self._branch_mask(chosen, condition, mask, True))
        no = self._as(otherwise, dtype, self._branch_mask(otherwise, condition, mask, False))
        if truth.type.lanes > 1:
            yes, no = (_splat(self.builder, value, self.lanes) for value in (yes, no))
        return self.builder.select(truth, *self._broadcast([yes, no]))

    def _emit_bitcast(self, expr: Bitcast, mask: Value | None) -> Value:
        part, old, new = expr.value, expr.value.dtype, expr.dtype
        if old.itemsize != new.itemsize:
            raise Unsupported(f"the bits of {old} as {new}")
        raw = to_memory(self.builder, self._as(part, old, mask), old)
        stored = storage_type(new, raw.type.lanes)
        moved = raw if raw.type == stored else self.builder.convert("bitcast", raw, stored.scalar)
        return from_memory(self.builder, moved, new)

    def _broadcast(self, values: Sequence[Value]) -> list[Value]:
        """The values in as many lanes as the widest of them has."""
        lanes = max(value.type.lanes for value in values)
        return [_splat(self.builder, value, lanes) for value in values]


def _splat(b: Builder, value: Value, lanes: int) -> Value:
    """A scalar in every lane; a constant stays a constant."""
    if lanes == 1 or value.type.lanes == lanes or value.text.startswith("%"):
        return b.splat(value, lanes)
    return Value(value.type.of(lanes), f"splat ({value})", value.number)


State = list[Value]


@dataclass(frozen=True)
class Accumulator:
    """A reduction over elements of a dtype."""

    row: Reduction
    dtype: Dtype

    @cached_property
    def _site(self) -> Site:
        return Site((self.dtype,) * 3)

    @property
    def size(self) -> int:
        """The number of values in a state."""
        return 2 if self.row.gives_position else 1

    @property
    def is_compensated(self) -> bool:
        """Whether long reductions are summed with compensation."""
        return self.row.compensated and is_float(self.dtype)

    def initial(self, lanes: int) -> State:
        """The state before any element."""
        first = _constant_of(self.row.identity(self.dtype), self.dtype, lanes)
        return [first, constant(I64.of(lanes), 0)] if self.row.gives_position else [first]

    def result(self, b: Builder, state: State) -> Value:
        """The result of a final state; a sum of narrow floats, kept in float32, is rounded."""
        if not self.row.rounds or storage_type(self.dtype) == register_type(self.dtype):
            return state[-1]
        return from_memory(b, to_memory(b, state[-1], self.dtype), self.dtype)

    def accumulate(
        self, b: Builder, state: Sequence[Value], element: Value, position: Value
    ) -> State:
        """The state after one more element, whose position follows those before."""
        new, at = LlvmRegister(b, element), LlvmRegister(b, position)
        return _values(self.row.accumulate(self._site, _registers(b, state), new, at))

    def merge(self, b: Builder, one: Sequence[Value], other: Sequence[Value]) -> State:
        """The state of the elements of both."""
        return _values(self.row.merge(self._site, _registers(b, one), _registers(b, other)))

    def reduce_lanes(self, b: Builder, state: Sequence[Value]) -> State:
        """The state of all lanes: upper halves are merged into lower ones."""
        result = list(state)
        while result[0].type.lanes > 1:
            half = result[0].type.lanes // 2
            low = [_lane_range(b, value, 0, half) for value in result]
            high = [_lane_range(b, value, half, half) for value in result]
            result = self.merge(b, low, high)
        return result


def accumulator_of(expr: Reduce | Scan) -> Accumulator:
    """The accumulator of a reduction or a scan."""
    row = REDUCTIONS[expr.combine]
    return Accumulator(row, BOOL if row.result == BOOL else expr.body.dtype)


def combine_elements(b: Builder, row: Reduction, dtype: Any, one: Value, other: Value) -> Value:
    """Combine two elements by a reduction."""
    (result,) = Accumulator(row, np.dtype(dtype)).merge(b, [one], [other])
    return result


def _registers(b: Builder, values: Sequence[Value]) -> list[LlvmRegister]:
    return [LlvmRegister(b, value) for value in values]


def _values(registers: Sequence[Register]) -> State:
    return [cast("LlvmRegister", register).value for register in registers]


def _lane_range(b: Builder, value: Value, first: int, count: int) -> Value:
    if count == 1:
        return b.extract(value, first)
    return b.shuffle(value, None, range(first, first + count))
