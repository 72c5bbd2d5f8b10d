"""Scopes for a loop kernel's values: bound variables, lanes, values computed so far.

A `LaneScope` evaluates expressions in one iteration of the enclosing loops, for one vector of the
vector variable. A value that does not depend on the variables it binds is its parent's, computed
before the loop. A `Scope` is the lane scopes of the vectors that are interleaved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from thalweg.codegen.frame import Frame
from thalweg.codegen.llvm.builder import I32, I64, Builder, Type, Value, constant
from thalweg.codegen.math.conversion import from_memory, register_type, storage_type, to_memory
from thalweg.codegen.math.elements import is_speculatable
from thalweg.codegen.point import Address, PointEvaluator
from thalweg.ir.dynamic import Dynamic, is_static
from thalweg.ir.expr import (
    COMPARISONS,
    Call,
    Cast,
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    Scan,
    Select,
    Variable,
    Word,
)
from thalweg.ir.functions.dtypes import BOOL, INT64, Dtype
from thalweg.ir.index import Affine, term_expression
from thalweg.ir.kernel import Argument
from thalweg.ir.rewrite import Fold, free_variables, loads_in
from thalweg.platform.dtype_traits import is_narrow_float

_NARROW = 1 << 31  # offsets below it fit i32
_MIN_BRANCH_LOADS = 3  # of a uniform select that becomes a branch
_MAX_BRANCH_DEPTH = 16
_INT32: Any = np.dtype(np.int32)


class KernelContext(Frame):
    """What all scopes of a kernel share: the function, its buffers, how it faults and reduces."""

    is_aligned = False  # buffers are aligned for any vector
    is_simt = False  # lanes are of one GPU thread, whose masks are branches
    #: calls whose results are rounded to these dtypes at once, so that approximations suffice
    hidden: Mapping[Expr, Dtype] = MappingProxyType({})

    def fault(self, b: Builder, condition: Value) -> None:
        """Emit a fault under a scalar condition: some lane divides by zero."""
        raise NotImplementedError

    def reduce_masked(self, vector: LaneScope, expr: Reduce, mask: Value | None) -> Value:
        """The value of a reduction in the lanes of a mask."""
        raise NotImplementedError

    @cached_property
    def speculatable(self) -> Fold[bool]:
        """Whether an expression may be executed speculatively."""
        return Fold(lambda part, known: is_speculatable(part) and all(known.parts(part)))

    def reads_or_faults(self, expr: Expr) -> bool:
        return not (
            self.speculatable.of(expr) if isinstance(expr, Reduce | Scan) else is_speculatable(expr)
        )


@dataclass(frozen=True)
class Spill:
    """A spilled expression: an array with a value of type `kind` per value of a variable."""

    address: Value
    variable: Variable
    kind: Type


class LaneScope(PointEvaluator):
    """An evaluator in one iteration of the enclosing loops.

    `tail` masks the lanes that its code is for. The code runs only where there are any: what is
    uniform in these lanes is loaded without a mask.
    """

    def __init__(
        self,
        context: KernelContext,
        lanes: int = 1,
        parent: LaneScope | None = None,
        bound: dict[Variable, Value] | None = None,
        vector: Variable | None = None,
        tail: Value | None = None,
    ) -> None:
        self._bound = bound or {}
        values = {**(parent.values if parent else {}), **self._bound}
        super().__init__(context, values, lanes, vector, tail, context.fault)
        self.context, self.parent = context, parent
        self.bound_variables = frozenset(values)
        self.spilled: dict[Expr, Spill] = {}
        self._branch_depth = 0  # enclosing branches of selects

    def _call_dtypes(self, expr: Call) -> tuple[Dtype, ...]:
        """Narrows 64-bit comparisons to 32 bits on GPUs, where they take two instructions."""
        is_wide = expr.function in COMPARISONS and expr.loop[0] == INT64
        if self.context.is_simt and is_wide and all(map(_is_narrow, expr.arguments)):
            return _INT32, _INT32, BOOL
        return expr.loop

    def _rounding_dtypes(self, expr: Call, dtypes: tuple[Dtype, ...]) -> tuple[Dtype, ...]:
        rounded = self.context.hidden.get(expr)
        return dtypes if rounded is None else (rounded,) * len(dtypes)

    def nested(self, bound: dict[Variable, Value], tail: Value | None) -> LaneScope:
        """A nested scope in the same lanes, unless it binds the vector variable again."""
        vector = None if self.vector in bound else self.vector
        return LaneScope(self.context, self.lanes, self, bound, vector, tail)

    # Available values

    def _lookup(self, expr: Expr, mask: Value | None) -> Value | None:
        found = super()._lookup(expr, mask)
        if found is not None or self.parent is None:
            return found
        if free_variables(expr) & self._bound.keys():
            return self._reload(expr)
        return self.parent._lookup(expr, self.parent.tail)

    def _reload(self, expr: Expr) -> Value | None:
        """Reload a value that an earlier loop over a variable bound here has spilled."""
        scope = self.parent
        while scope is not None and expr not in scope.spilled:
            scope = scope.parent
        if scope is None or scope.spilled[expr].variable not in self._bound:
            return None
        spilled = scope.spilled[expr]
        kind = spilled.kind.of(self.lanes) if self.vector is spilled.variable else spilled.kind
        value = self.builder.load(kind, self._spill_address(spilled))
        self.define(expr, value)
        return value

    def _spill_address(self, spilled: Spill) -> Value:
        return self.builder.element(
            spilled.address, str(spilled.kind), self._bound[spilled.variable]
        )

    def spill(self, expr: Expr, spilled: Spill) -> None:
        """Store the value of an expression to its spill slot."""
        value = self.value(expr, self.tail)
        self.builder.store(value, self._spill_address(spilled))

    def has_value(self, expr: Expr) -> bool:
        """Whether a value is available for all lanes of this scope."""
        return self._lookup(expr, self.tail) is not None

    def define(self, expr: Expr, value: Value) -> None:
        """Set the value of an expression for all lanes of this scope."""
        self._values[self._key(expr, self.tail)] = value

    # Selects as branches

    def _missing_operands(self, expr: Expr, mask: Value | None) -> list[tuple[Expr, Value | None]]:
        if isinstance(expr, Select) and (
            self._should_branch(expr) or self._is_guarded_load(expr, mask)
        ):
            return self._unknown([(expr.condition, mask)])
        if isinstance(expr, Select) and (added := self._conditional_addend(expr)) is not None:
            if missing := self._unknown([(expr.condition, mask), (expr.otherwise, mask)]):
                return missing
            return self._unknown([(added, self._branch_mask(added, expr.condition, mask, True))])
        return super()._missing_operands(expr, mask)

    def _emit_select(self, expr: Select, mask: Value | None) -> Value:
        if self._is_guarded_load(expr, mask):
            return self._guarded_load(expr, mask)
        if (added := self._conditional_addend(expr)) is not None:
            return self._conditional_sum(expr, added, mask)
        if not self._should_branch(expr):
            return super()._emit_select(expr, mask)

        def side(part: Expr) -> Value:
            inner = self.nested({}, self.tail if mask is None else mask)
            inner._branch_depth = self._branch_depth + 1
            return inner.value_as(part, expr.dtype, mask)

        b, truth = self.builder, self._as(expr.condition, BOOL, mask)
        return self.where_any(
            mask,
            expr.dtype,
            lambda: b.choose(truth, lambda: side(expr.chosen), lambda: side(expr.otherwise)),
        )

    def where_any(self, mask: Value | None, dtype: Dtype, value: Callable[[], Value]) -> Value:
        """A value in all lanes, computed in a scope whose lanes are those of a mask."""
        if mask is None or mask == self.tail:
            return value()
        b, zeros = self.builder, constant(register_type(dtype, self.lanes), 0)
        return b.choose(b.any(mask), value, lambda: zeros)

    def _should_branch(self, expr: Select) -> bool:
        """Whether a select has a uniform condition and enough loads for a branch to cost less."""
        if self.lanes == 1 or self._branch_depth >= _MAX_BRANCH_DEPTH:
            return False
        if isinstance(expr.condition, Const) or self.vector in free_variables(expr.condition):
            return False
        loads = [len(loads_in([side])) for side in (expr.chosen, expr.otherwise)]
        return min(loads) > 0 and sum(loads) >= _MIN_BRANCH_LOADS

    # Guarded loads

    def _is_guarded_load(self, expr: Select, mask: Value | None) -> bool:
        """Whether a select under a uniform condition is a contiguous load, else a constant."""
        load, number = expr.chosen, expr.otherwise
        if not (isinstance(load, Load) and isinstance(number, Const)):
            return False
        mask = self._mask_of(load.buffer, load.offset, mask)
        is_tail = mask == self.tail and not self.context.is_simt
        if mask is not None and not is_tail and self.builder.uniform_value(mask) is None:
            return False
        if isinstance(expr.condition, Const) or self.vector in free_variables(expr.condition):
            return False
        step = 1 if self.vector is None else load.offset.factor(self.vector)
        in_row = self.lanes == 1 or step in (0, 1)
        if not in_row or not all(map(self._is_invariant, load.offset.computed)):
            return False
        return load.dtype == number.dtype == expr.dtype

    def _is_invariant(self, term: Expr) -> bool:
        """Whether a term of an offset has one value for all lanes, whatever the mask."""
        if self.context.is_simt or self._sensitive.of(term):
            return False
        return self.vector not in free_variables(term)

    def _guarded_load(self, expr: Select, mask: Value | None) -> Value:
        """Branch around the load on GPUs; elsewhere load from memory that holds the constant:
        processors do not prefetch what is loaded under a mask. The constant has the storage format.
        """
        load, number, b = cast("Load", expr.chosen), cast("Const", expr.otherwise), self.builder
        truth = self._as(expr.condition, BOOL, mask)
        if truth.type.lanes > 1:  # a branch has its value in every lane
            return super()._emit_select(expr, mask)
        under = self._mask_of(load.buffer, load.offset, mask)
        outer = None if under is None else b.uniform_value(under)
        if outer is not None:
            truth = b.binary("and", truth, outer)
        address = self.locate(load.buffer, load.offset, None)
        if address.lanes is not None:
            return super()._emit_select(expr, mask)
        kind = storage_type(load.buffer.dtype, self.lanes if address.contiguous else 1)
        pointer, other = partial(self.pointer, load.buffer, address), _stored_number(kind, number)
        if self.context.is_simt:
            raw = b.choose(
                truth,
                lambda: b.load(kind, pointer(), None, address.aligned),
                lambda: constant(kind, other),
            )
        else:
            chosen = b.select(truth, pointer(), b.module.filled(kind, other))
            under = under if outer is None and kind.lanes > 1 else None
            raw = self._unmasked(b.load(kind, chosen, under), under)
        return from_memory(b, raw, load.buffer.dtype)

    # Conditional additions on GPUs

    def _conditional_addend(self, expr: Select) -> Expr | None:
        """The addend of `select(condition, total + addend, total)`; None for other selects."""
        total, longer = expr.otherwise, expr.chosen
        if not self.context.is_simt or isinstance(expr.condition, Const):
            return None
        if not isinstance(longer, Call) or longer.function != "add" or total.dtype.kind != "f":
            return None
        first, second = longer.arguments
        is_sum = first is total and second.dtype == total.dtype == longer.dtype
        return second if is_sum else None

    def _conditional_sum(self, expr: Select, added: Expr, mask: Value | None) -> Value:
        truth = self._as(expr.condition, BOOL, mask)
        inner = self._branch_mask(added, expr.condition, mask, True)
        values = [self._as(expr.otherwise, expr.dtype, mask), self._as(added, expr.dtype, inner)]
        total, more = self._broadcast(values)
        longer = self.builder.binary("fadd", total, more)
        # Frozen, or LLVM selects between the addend and zero and always adds.
        longer = self.builder.emit(longer.type, f"freeze {longer}")
        truth, longer, total = self._broadcast([truth, longer, total])
        return self.builder.select(truth, longer, total)

    def _branch_mask(
        self, branch: Expr, condition: Expr, mask: Value | None, holds: bool
    ) -> Value | None:
        if _condition_covers_loads(branch, condition):
            return mask
        return super()._branch_mask(branch, condition, mask, holds)

    # Leaves

    def _leaf_value(self, expr: Expr, mask: Value | None) -> Value:
        if isinstance(expr, Reduce):
            return self.context.reduce_masked(self, expr, mask)
        return super()._leaf_value(expr, mask)

    def _load(self, argument: Argument, offset: Affine, mask: Value | None) -> Value:
        return super()._load(argument, offset, self._mask_of(argument, offset, mask))

    def _mask_of(self, argument: Argument, offset: Affine, mask: Value | None) -> Value | None:
        """The lanes that an offset must be loaded in only."""
        return self.tail if argument.contains(offset) else mask

    def _read_raw(self, argument: Argument, address: Address, mask: Value | None) -> Value:
        raw = super()._read_raw(argument, address, mask)
        return self._unmasked(raw, mask) if address.contiguous else raw

    def _unmasked(self, raw: Value, mask: Value | None) -> Value:
        """A vector just loaded; without a mask, LLVM does not fold the load into an instruction
        under one: processors may not prefetch for those."""
        if mask is not None or raw.type.lanes == 1 or self.context.is_simt:
            return raw
        return self.builder.emit(raw.type, f"freeze {raw}")

    # Addresses

    def locate(self, argument: Argument, offset: Affine, mask: Value | None) -> Address:
        """The offset of an element, or of one per lane."""
        narrow = is_static(argument.size) and argument.size < _NARROW
        kind = (I32 if narrow else I64).of(self.lanes)
        base, distances = self.context.integer(offset.constant), list[Value]()
        for term, factor in offset.terms.items():
            is_bound = isinstance(term, Variable)
            value = self.at(term) if is_bound else self._term(term_expression(term), mask)
            if value.type.lanes > 1:
                distances.append(self._times(self._resized(value, kind), factor))
            else:
                base = self._plus(base, self._times(value, factor))
        return self._spread(argument, offset, base, distances, kind)

    def _alignment(self, argument: Argument, offset: Affine) -> int:
        """The known alignment of the first lane's element, in elements. The vector variable's value
        there is a multiple of the lanes."""
        if not self.context.is_aligned:
            return 1
        others = [factor for term, factor in offset.terms.items() if term is not self.vector]
        known = [number for number in (*others, offset.constant) if not isinstance(number, Dynamic)]
        if len(known) <= len(others):
            return 1
        return math.gcd(self.lanes, *known)

    def _plus(self, one: Value, other: Value) -> Value:
        return other if one.text == "0" else self.builder.binary("add", one, other)

    # Atomic additions

    def has_atomic_add(self, argument: Argument) -> bool:
        """Whether the processor has an atomic addition for an argument's dtype."""
        known = np.dtype(argument.dtype)
        return known.kind in "iuf" and not is_narrow_float(known)

    def atomic_add(self, argument: Argument, address: Address, value: Value) -> None:
        """Add to an element atomically, so that concurrent steps lose no update of a counter."""
        raw = to_memory(self.builder, value, argument.dtype)
        operation = "fadd" if raw.type.is_float else "add"
        pointer = self.pointer(argument, address)
        self.builder.emit(raw.type, f"atomicrmw {operation} {pointer}, {raw} monotonic")


def _stored_number(kind: Type, number: Const) -> Any:
    """A number in its storage format."""
    stored = np.asarray(number.value)
    if kind.is_float or stored.dtype.kind in "iu":
        return stored[()]
    return int(stored.view(f"u{stored.dtype.itemsize}")[()])


def _condition_covers_loads(branch: Expr, condition: Expr) -> bool:
    """Whether a branch loads only offsets that its condition loads under the same guards, from
    buffers at least as large: those loads are safe without the condition."""
    mine, given = _guarded_loads(branch), _guarded_loads(condition)
    if not mine or given is None:
        return False
    return all(key in given and given[key] <= size for key, size in mine.items())


def _guarded_loads(root: Expr) -> dict[tuple[Expr | None, Affine], int] | None:
    """The (guard, offset) of each load in an expression, with the size of its buffer; None if the
    expression has parts other than calls that cannot fault, casts, constants and such loads."""
    result = dict[tuple[Expr | None, Affine], int]()
    pending = [root]
    while pending:
        expr = pending.pop()
        match expr:
            case Load():
                guard, load = None, expr
            case Select(condition=Expr() as guard, chosen=Load() as load, otherwise=Const()):
                pending.append(guard)
            case Call() | Cast() if is_speculatable(expr):
                pending += expr.parts
                continue
            case Const() | Index() | Word():
                continue
            case _:
                return None
        if not is_static(load.buffer.size):
            return None
        key = guard, load.offset
        result[key] = min(result.get(key, load.buffer.size), load.buffer.size)
    return result


def _is_narrow(expr: Expr) -> bool:
    """Whether an integer expression is known to fit 32 bits."""
    match expr:
        case Index(variable=variable):
            return not isinstance(variable.extent, Dynamic) and variable.extent < _NARROW
        case Cast(value=inner) if expr.dtype == INT64:
            return inner.dtype.kind in "iu" and _is_narrow(inner)
        case Const(value=value):
            return -_NARROW <= int(value) < _NARROW
        case _:
            return expr.dtype == _INT32


@dataclass(frozen=True, eq=False)
class Scope:
    """The lane scopes of interleaved vectors, in the same loops."""

    vectors: tuple[LaneScope, ...]

    @property
    def bound_variables(self) -> frozenset[Variable]:
        """The variables that are bound here."""
        return self.vectors[0].bound_variables

    @property
    def lanes(self) -> int:
        """The lanes of all lane scopes together."""
        return sum(vector.lanes for vector in self.vectors)

    def bind(self, values: dict[Variable, Value]) -> Scope:
        """A nested scope that binds variables."""
        return Scope(tuple([vector.nested(values, vector.tail) for vector in self.vectors]))

    def vectorize(
        self, variable: Variable, lanes: int, starts: Sequence[Value], tail: Value | None = None
    ) -> Scope:
        """A nested scope in which a variable is vectorized, a lane scope per start."""
        (outer,) = self.vectors
        return Scope(
            tuple(
                LaneScope(outer.context, lanes, outer, {variable: start}, variable, tail)
                for start in starts
            )
        )
