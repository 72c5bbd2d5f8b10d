"""Expressions at one point of the loops around them, in one lane or along a vector variable.

A `PointEvaluator` evaluates the leaves of expressions (loads, indices, run-time integers) and
accesses memory; subclasses say which values variables have. A `Point` is one of a contraction: all
variables have values in registers, and some a constant displacement besides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

from thalweg.codegen.frame import At, Frame
from thalweg.codegen.llvm.builder import I64, POINTER, Type, Value, constant
from thalweg.codegen.math.conversion import (
    converted,
    from_memory,
    register_type,
    storage_type,
    to_memory,
)
from thalweg.codegen.math.elements import Evaluator, Fault
from thalweg.ir.dynamic import is_static
from thalweg.ir.expr import Accumulated, Expr, Index, Load, Variable, Word
from thalweg.ir.functions.dtypes import BOOL, INT64
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Argument, Store


@dataclass(frozen=True)
class Address:
    """Where one element lies, or one per lane: from a `base`, which is a pointer or an offset in
    elements, at a vector of offsets if `lanes` is given.

    `contiguous` lanes follow each other from `base`, which is a multiple of `aligned` elements.
    """

    base: Value
    lanes: Value | None
    contiguous: bool
    aligned: int = 1


class PointEvaluator(Evaluator):
    """An evaluator where variables have `values`; `vector` grows by one from lane to lane.

    `tail` masks the lanes within the loop's bounds; None if all are.
    """

    def __init__(
        self,
        frame: Frame,
        values: At,
        lanes: int,
        vector: Variable | None,
        tail: Value | None,
        fault: Fault | None = None,
    ) -> None:
        super().__init__(frame.b, lanes, self._leaf_value, fault, frame.sensitive)
        self.frame, self.values, self.vector, self.tail = frame, values, vector, tail

    def at(self, variable: Variable) -> Value:
        """The scalar value of a variable; of the vector variable, that of the first lane."""
        return self.values[variable]

    def locate(self, argument: Argument, offset: Affine, mask: Value | None) -> Address:
        """The address of an element, or of one per lane."""
        raise NotImplementedError

    # Leaves

    def _leaf_value(self, expr: Expr, mask: Value | None) -> Value:
        match expr:
            case Index():
                return self.index(expr.variable)
            case Word():
                value = self.frame.integer(expr.number)
                return converted(self.builder, value, INT64, expr.dtype)
            case Load():
                return self._load(expr.buffer, expr.offset, mask)
            case _:
                raise ValueError(f"a {type(expr).__name__} where no loop carries it")

    def condition(self, expr: Expr | None, mask: Value | None) -> Value | None:
        """The lanes of a mask in which a condition holds; without one, the mask."""
        if expr is None:
            return mask
        holds = self.value_as(expr, BOOL, mask)
        return holds if mask is None else self.builder.binary("and", holds, mask)

    def index(self, variable: Variable) -> Value:
        """The value of a variable; of the vector variable, in all lanes."""
        value = self.at(variable)
        if variable is not self.vector or self.lanes == 1:
            return value
        b, kind = self.builder, I64.of(self.lanes)
        return b.binary("add", b.splat(value, self.lanes), b.lanes(kind))

    def _load(self, argument: Argument, offset: Affine, mask: Value | None) -> Value:
        return from_memory(self.builder, self._load_raw(argument, offset, mask), argument.dtype)

    def _load_raw(self, argument: Argument, offset: Affine, mask: Value | None) -> Value:
        """The elements at an offset, in their storage format."""
        address = self.locate(argument, offset, mask)
        return self._read_raw(argument, address, self._read_mask(address, mask))

    def _read_mask(self, address: Address, mask: Value | None) -> Value | None:
        """The mask to read under: a uniform element may be read wherever this code runs."""
        is_uniform = address.lanes is None and not address.contiguous
        return None if is_uniform and mask == self.tail else mask

    def _term(self, term: Expr, mask: Value | None) -> Value:
        """A computed term of an offset as i64."""
        return converted(self.builder, self.scalar_or_vector(term, mask), term.dtype, INT64)

    # Addresses

    def _spread(
        self, argument: Argument, offset: Affine, base: Value, distances: list[Value], kind: Type
    ) -> Address:
        """The address of all lanes, given that of the first and the computed `distances` of the
        others from it, of type `kind`."""
        b, step = self.builder, 0
        if self.vector is not None and self.lanes > 1:
            step = offset.factor(self.vector)
        if step == 1 and not distances:
            return Address(base, None, True, self._alignment(argument, offset))
        if not is_static(step) or step:
            distances = [*distances, self._times(b.lanes(kind), step)]
        lanes = reduce(partial(b.binary, "add"), distances) if distances else None
        return Address(base, lanes, False)

    def _alignment(self, argument: Argument, offset: Affine) -> int:
        """The known alignment of the first lane's element, in elements."""
        return 1

    def _times(self, value: Value, factor: int) -> Value:
        """A value, in every lane, times an integer of the kernel; the product may wrap."""
        b = self.builder
        if is_static(factor):
            return value if factor == 1 else b.binary("mul", value, factor)
        by = self._resized(self.frame.integer(factor), value.type)
        return b.binary("mul", value, b.splat(by, value.type.lanes))

    def _resized(self, value: Value, kind: Type) -> Value:
        if value.type.scalar == kind.scalar:
            return value
        return self.builder.convert("trunc", value, kind.scalar)

    # Memory

    def read(self, argument: Argument, address: Address, mask: Value | None) -> Value:
        """Load from an address, a scalar if it is uniform; nothing is read off the mask."""
        return from_memory(self.builder, self._read_raw(argument, address, mask), argument.dtype)

    def _read_raw(self, argument: Argument, address: Address, mask: Value | None) -> Value:
        b, pointer = self.builder, self.pointer(argument, address)
        is_vector = address.contiguous or address.lanes is not None
        kind = storage_type(argument.dtype, self.lanes if is_vector else 1)
        if address.lanes is not None:
            return b.gather(kind, pointer, mask)
        if address.contiguous or mask is None:
            return b.load(kind, pointer, mask, address.aligned)
        return b.choose(b.any(mask), lambda: b.load(kind, pointer), lambda: constant(kind, 0))

    def write(self, argument: Argument, address: Address, value: Value, mask: Value | None) -> None:
        """Store to an address where the mask allows."""
        b, pointer = self.builder, self.pointer(argument, address)
        raw = to_memory(b, value, argument.dtype)
        if address.lanes is not None:
            b.scatter(b.splat(raw, self.lanes), pointer, mask)
        elif address.contiguous:
            b.store(b.splat(raw, self.lanes), pointer, mask, address.aligned)
        elif mask is None:
            b.store(raw, pointer)
        else:
            with b.when(b.any(mask)):
                b.store(raw, pointer)

    def pointer(self, argument: Argument, address: Address) -> Value:
        """The pointer to an element, or a vector of pointers."""
        b, scalar, base = self.builder, storage_type(argument.dtype).scalar, address.base
        if base.type != POINTER:
            base = b.element(self.frame.pointers[argument], scalar, base)
        return base if address.lanes is None else b.element(base, scalar, address.lanes)


@dataclass(eq=False)
class Point(PointEvaluator):
    """A point of a contraction.

    Variables have the values `values`, plus a constant `displacement`. `sum` is the finished sum.
    """

    frame: Frame
    values: At
    vector: Variable | None
    lanes: int
    tail: Value | None = None
    sum: Value | None = None
    displacement: Mapping[Variable, int] = field(default_factory=dict[Variable, int])

    def __post_init__(self) -> None:
        super().__init__(self.frame, self.values, self.lanes, self.vector, self.tail)

    def at(self, variable: Variable) -> Value:
        """The scalar value of a variable, with its displacement."""
        return self.frame.add(self.values[variable], self.displacement.get(variable, 0))

    def _leaf_value(self, expr: Expr, mask: Value | None) -> Value:
        if isinstance(expr, Accumulated) and self.sum is not None:
            return self.sum
        return super()._leaf_value(expr, mask)

    def raw_bits(self, value: Expr, dtype: Any, mask: Value | None) -> Value:
        """An expression in its storage format, a vector. A load of a narrow dtype is copied as it
        is, without conversion to the register type and back."""
        b, is_narrow = self.builder, storage_type(dtype) != register_type(dtype)
        if is_narrow and isinstance(value, Load) and value.dtype == dtype:
            raw = self._load_raw(value.buffer, value.offset, mask)
            return raw if raw.type.lanes == self.lanes else b.splat(raw, self.lanes)
        return to_memory(b, self.value_as(value, dtype, mask), dtype)

    def locate(self, argument: Argument, offset: Affine, mask: Value | None) -> Address:
        """The address of an element, or of one per lane."""
        frame, scalar = self.frame, storage_type(argument.dtype).scalar
        distance, distances = frame.integer(0), list[Value]()
        for variable, displacement in self.displacement.items():
            distance = frame.add(distance, frame.multiply(displacement, offset.factor(variable)))
        for part, factor in offset.computed.items():
            value = self._term(part, mask)
            if value.type.lanes == 1:
                distance = frame.add(distance, frame.multiply(value, factor))
            else:
                distances.append(self._times(value, factor))
        # The address without the displacement, which all points of a tile share.
        start = frame.evaluate(Affine(offset.constant, {**offset.strides}), self.values)
        base = self.builder.element(frame.pointers[argument], scalar, start)
        base = frame.element(base, scalar, distance)
        return self._spread(argument, offset, base, distances, I64.of(self.lanes))

    def store(self, store: Store, value: Value, mask: Value | None = None) -> None:
        """Store a value in the lanes of a mask; in one place for all, that of the last lane."""
        address = self.locate(store.buffer, store.offset, mask)
        if self.lanes > 1 and address.lanes is None and not address.contiguous:
            address = replace(address, lanes=constant(I64.of(self.lanes), 0))
        self.write(store.buffer, address, value, mask)
