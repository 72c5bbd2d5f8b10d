"""Elementwise functions of products, in the registers of tensor cores' sums.

A lane has four sums of each tile of 16 rows by 8 others: columns 2t and 2t + 1 of rows g and g + 8,
where g = lane / 4 and t = lane % 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from thalweg.codegen.cuda.attention.form import AttentionForm
from thalweg.codegen.cuda.contraction.frame import GridFrame
from thalweg.codegen.cuda.contraction.helpers import inline
from thalweg.codegen.cuda.contraction.space import At
from thalweg.codegen.llvm.builder import FLOAT, Value, constant
from thalweg.codegen.math.elements import Evaluator
from thalweg.codegen.point import Point
from thalweg.ir.expr import Accumulated, Call, Const, Expr, Load, Reduce, Variable
from thalweg.ir.rewrite import walk

_LOG2_E = float(np.log2(np.e))
_ARGUMENT = Accumulated(np.float32)

Known = Mapping[Expr, Value]


def exponential(frame: GridFrame, value: Value, scale: float, less: Value) -> Value:
    """exp(value · scale - less) of float32 numbers, by the GPU's instruction for powers of 2, whose
    error is a few ulps."""
    b = frame.b
    if frame.target.is_emulated:
        scaled = b.binary("fmul", value, scale)
        shifted = b.binary("fsub", scaled, less)
        return Evaluator(b, 1, lambda expr, mask: shifted).value(_ARGUMENT.exp())
    negative = b.binary("fmul", less, _float32(-_LOG2_E))
    exponent = b.multiply_add(value, constant(FLOAT, _float32(scale * _LOG2_E)), negative)
    return inline(b, FLOAT, "ex2.approx.ftz.f32 $0, $1;", "=f,f", [exponent])


def scaled(value: Expr) -> tuple[Expr, float]:
    """Split a value into another one and a positive factor."""
    match value:
        case Call(function="mul", arguments=(inner, Const(value=number))) if number > 0:
            return inner, float(number)
        case _:
            return value, 1.0


def _float32(number: float) -> float:
    return float(np.float32(number))


class ElementEvaluator(Point):
    """Evaluates expressions of single elements; float32 exponentials by the GPU's instruction."""

    def __init__(self, frame: GridFrame, at: At, known: Known) -> None:
        super().__init__(frame, at, None, 1)
        self._frame, self._known = frame, known

    def _leaf_value(self, expr: Expr, mask: Value | None) -> Value:
        found = self._known.get(expr)
        return super()._leaf_value(expr, mask) if found is None else found

    def _emit_call(self, expr: Call, mask: Value | None) -> Value:
        match expr:
            case Call(function="exp", arguments=(Call(function="sub", arguments=(value, less)),)):
                if expr.dtype != np.float32 or value.dtype != expr.dtype:
                    return super()._emit_call(expr, mask)
                inner, scale = scaled(value)
                found = [self.value_as(part, expr.dtype, mask) for part in (inner, less)]
                return exponential(self._frame, found[0], scale, found[1])
            case _:
                return super()._emit_call(expr, mask)


@dataclass(frozen=True)
class RowElement:
    """A row that a lane has sums of: its index (i32), clamped to existing ones, and the values that
    do not depend on the other."""

    index: Value
    exists: Value
    at: At
    known: Known


def rows_of_lane(
    frame: GridFrame, form: AttentionForm, first: Value, batch: At, values: list[Expr]
) -> list[RowElement]:
    """Rows g and g + 8 of 16; `first` (i32) is row g. Their loads in `values` are hoisted here."""
    result: list[RowElement] = []
    for half in range(2):
        index = frame.plus32(first, 8 * half)
        end = frame.b.convert("trunc", frame.integer(form.row.extent), "i32")
        exists = frame.b.compare("slt", index, end)
        last = frame.plus32(end, -1)
        clamped = frame.b.intrinsic("smin", index, last)
        at = {**batch, form.row: frame.wide(clamped)}
        own = {*form.batch, form.row}
        point = Point(frame, at, None, 1)
        known: Known = {x: point.value(x) for x in _loads(values) if _is_over(x, own)}
        result.append(RowElement(index, exists, at, known))
    return result


def _loads(values: list[Expr]) -> list[Load]:
    """The loads of elementwise values, except those inside of products."""
    parts = walk(values, lambda part: () if isinstance(part, Reduce | Load) else part.parts)
    return [part for part in parts if isinstance(part, Load)]


def _is_over(load: Load, variables: set[Variable]) -> bool:
    return load.offset.is_plain and load.offset.variables <= variables
