"""An interpreter of loop forms on NumPy: the executable semantics of `thalweg.ir`.

Every index variable is an axis; expressions are whole-array operations that broadcast over the
axes, and a reduction removes its own. Slow and simple: tests use it to check loop forms against
reference kernels, and code generators against loop forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg.ir.expr import (
    Bitcast,
    Call,
    Cast,
    Const,
    Expr,
    Index,
    OperandLoad,
    Reduce,
    Select,
)
from thalweg.ir.functions.reductions import REDUCTIONS, Reduction
from thalweg.ir.functions.table import FUNCTIONS
from thalweg.ir.loop import IndexTuple, Intermediate, Operand, Scatter, Variable, lowered
from thalweg.ir.rewrite import Fold, walk
from thalweg.platform.arrays import Array
from thalweg.platform.dtype_traits import compute_dtype


def run_loop(
    op: Any,
    operands: Sequence[Any],
    arrays: Sequence[Any],
    shape: Sequence[int],
    output: int = 0,
    channels: int = 1,
    relaxed: bool = False,
) -> Array:
    """Evaluate one output of an op by its loop form. `operands` may nest lists."""
    at = IndexTuple.over(shape, output)
    form = lowered(op, at, operands, channels, relaxed)
    if isinstance(form, Scatter):
        return _scattered(form, at, arrays)
    value = _Evaluation([form], at.variables, arrays).value(form)
    return _over(value, at.variables)


class _Evaluation:
    """Evaluates expressions: an axis per variable, and memoized values."""

    def __init__(
        self, roots: Sequence[Expr], outer: Sequence[Variable], arrays: Sequence[Any]
    ) -> None:
        self._arrays = arrays
        reductions = [part for part in walk(roots) if isinstance(part, Reduce)]
        inner = [variable for reduction in reductions for variable in reduction.variables]
        self._axes = {v: axis for axis, v in enumerate(dict.fromkeys([*outer, *inner]))}
        self._intermediates: dict[Intermediate, Array] = {}
        #: The value of an expression; variables that it does not depend on are axes of size 1.
        self.value = Fold(self._compute).of

    def _compute(self, part: Expr, known: Fold[Any]) -> Any:
        values = known.parts(part)
        match part:
            case Const():
                return part.value
            case Index():
                return self._axis(part.variable)
            case OperandLoad():
                return self._load(part, values)
            case Reduce():
                return self._reduce(part, *values)
            case Select():
                return FUNCTIONS["select"].numpy(*values)
            case Cast():
                return FUNCTIONS["cast"].numpy(*values, part.dtype)
            case Bitcast():
                return FUNCTIONS["bitcast"].numpy(*values, part.dtype)
            case Call():
                return FUNCTIONS[part.function].numpy(*values)
            case _:
                raise TypeError(f"{type(part).__name__} is not part of a loop form")

    def _axis(self, variable: Variable) -> Array:
        shape = [1] * len(self._axes)
        shape[self._axes[variable]] = variable.extent
        return np.arange(variable.extent).reshape(shape)

    def _load(self, load: OperandLoad, indices: Sequence[Any]) -> Any:
        array = self._array(load.operand)
        if not indices:
            return array.reshape([1] * len(self._axes)) if self._axes else array
        # A load out of range is under a select that does not choose it: any element will do.
        places = [
            np.clip(index, 0, max(size - 1, 0))
            for index, size in zip(indices, array.shape, strict=True)
        ]
        if array.size == 0:
            return np.zeros(np.broadcast_shapes(*(np.shape(p) for p in places)), array.dtype)
        return array[tuple(places)]

    def _array(self, operand: Operand) -> Array:
        if not isinstance(operand, Intermediate):
            return np.asarray(self._arrays[operand.position])
        if operand not in self._intermediates:
            inner = _Evaluation([operand.element], operand.at.variables, self._arrays)
            self._intermediates[operand] = _over(inner.value(operand.element), operand.at.variables)
        return self._intermediates[operand]

    def _reduce(self, part: Reduce, body: Any) -> Array:
        axes = tuple(self._axes[variable] for variable in part.variables)
        value = np.asarray(body)
        shape = list(value.shape or [1] * len(self._axes))
        for variable, axis in zip(part.variables, axes, strict=True):
            shape[axis] = variable.extent
        full = np.broadcast_to(value, shape)
        row = REDUCTIONS[part.combine]
        if not row.gives_position:
            return _combined(row, full, axes)
        numbers = np.where(np.isnan(full), row.identity(full.dtype), full)
        return np.asarray(row.numpy(numbers, axis=axes[0], keepdims=True))


def _combined(row: Reduction, full: Array, axes: tuple[int, ...]) -> Array:
    """Reduce over axes; sums and products of narrow floats accumulate in float32."""
    dtype = compute_dtype(full.dtype) if row.rounds else None
    initial = row.identity(full.dtype)
    found = row.numpy.reduce(full, axis=axes, keepdims=True, dtype=dtype, initial=initial)
    return found.astype(row.result or full.dtype)


def _over(value: Any, variables: Sequence[Variable]) -> Array:
    """A value as an array over these variables, which are the first axes."""
    shape = [variable.extent for variable in variables]
    array = np.asarray(value)
    if array.ndim > len(shape):
        array = array.reshape(array.shape[: len(shape)])
    return np.broadcast_to(array, shape)


def _scattered(form: Scatter, at: IndexTuple, arrays: Sequence[Any]) -> Array:
    start = _Evaluation([form.initial], at.variables, arrays).value(form.initial)
    inner = _Evaluation([*form.index, form.value], form.variables, arrays)
    value = _over(inner.value(form.value), form.variables)
    result = np.array(_over(start, at.variables)).astype(value.dtype)
    places = [np.asarray(_over(inner.value(index), form.variables)) for index in form.index]
    inside = np.ones(value.shape, bool)
    for place, size in zip(places, result.shape, strict=True):
        inside &= (place >= 0) & (place < size)
    where = tuple(place[inside] for place in places)
    if form.combine == "set":
        result[where] = value[inside]
    else:
        REDUCTIONS[form.combine].numpy.at(result, where, value[inside])
    return result
