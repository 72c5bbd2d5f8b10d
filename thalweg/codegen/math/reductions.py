"""Reductions in registers: the rows of `thalweg.ir.functions.reductions` over LLVM values.

An `Accumulator` is one reduction in some number of lanes; its state is one value, or two where the
position of the best element is wanted. States of the same elements in another order can be merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np

from thalweg.codegen.llvm.builder import I64, Builder, Value, constant
from thalweg.codegen.llvm.register import LlvmRegister
from thalweg.codegen.math.conversion import from_memory, register_type, storage_type, to_memory
from thalweg.codegen.math.elements import constant_of
from thalweg.ir.expr import Reduce, Scan
from thalweg.ir.functions.dtypes import BOOL, Dtype
from thalweg.ir.functions.function import Site
from thalweg.ir.functions.reductions import REDUCTIONS, Reduction
from thalweg.ir.functions.register import Register
from thalweg.platform.dtype_traits import is_float

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
        """Of how many values a state consists."""
        return 2 if self.row.gives_position else 1

    @property
    def is_compensated(self) -> bool:
        """Whether what rounding takes from a long one is kept beside it."""
        return self.row.compensated and is_float(self.dtype)

    def start(self, lanes: int) -> State:
        """The state before any element."""
        first = constant_of(self.row.identity(self.dtype), self.dtype, lanes)
        return [first, constant(I64.of(lanes), 0)] if self.row.gives_position else [first]

    def result(self, b: Builder, state: State) -> Value:
        """What is wanted of a state; sums of narrow floats, which are float32, are rounded."""
        if not self.row.rounds or storage_type(self.dtype) == register_type(self.dtype):
            return state[-1]
        return from_memory(b, to_memory(b, state[-1], self.dtype), self.dtype)

    def take(self, b: Builder, state: Sequence[Value], element: Value, position: Value) -> State:
        """The state after one more element, whose position is behind those before."""
        new, at = LlvmRegister(b, element), LlvmRegister(b, position)
        return _values(self.row.taken(self._site, _registers(b, state), new, at))

    def merge(self, b: Builder, one: Sequence[Value], other: Sequence[Value]) -> State:
        """The state of the elements of two states."""
        return _values(self.row.merged(self._site, _registers(b, one), _registers(b, other)))

    def across(self, b: Builder, state: Sequence[Value]) -> State:
        """The state of all lanes in one: upper halves are merged into lower ones."""
        found = list(state)
        while found[0].type.lanes > 1:
            half = found[0].type.lanes // 2
            low = [_some_lanes(b, value, 0, half) for value in found]
            high = [_some_lanes(b, value, half, half) for value in found]
            found = self.merge(b, low, high)
        return found


def accumulator_of(expr: Reduce | Scan) -> Accumulator:
    """The accumulator of a reduction or a scan."""
    row = REDUCTIONS[expr.combine]
    return Accumulator(row, BOOL if row.result == BOOL else expr.body.dtype)


def combined(b: Builder, row: Reduction, dtype: Any, one: Value, other: Value) -> Value:
    """Two elements combined."""
    (result,) = Accumulator(row, np.dtype(dtype)).merge(b, [one], [other])
    return result


def _registers(b: Builder, values: Sequence[Value]) -> list[LlvmRegister]:
    return [LlvmRegister(b, value) for value in values]


def _values(registers: Sequence[Register]) -> State:
    return [cast("LlvmRegister", register).value for register in registers]


def _some_lanes(b: Builder, value: Value, first: int, count: int) -> Value:
    if count == 1:
        return b.extract(value, first)
    return b.shuffle(value, None, range(first, first + count))
