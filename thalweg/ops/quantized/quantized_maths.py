"""Arithmetic on quantized tensors: products, sums with a bias, and changes of the range.

Products and sums are wide integers, whose range is far larger than their values; the last ops
requantize them to narrow ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.dtypes import DType
from thalweg.graph.literal import plain_integers
from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, scalar
from thalweg.ir import loop
from thalweg.ir.either import cast, greater, maximum, minimum, select
from thalweg.ir.expr import Expr
from thalweg.ir.loop import IndexTuple, Operand, RuntimeCheck
from thalweg.ops.core import shaping
from thalweg.ops.linalg import matmul
from thalweg.ops.nn import bias
from thalweg.ops.quantized.quantize import (
    first_dequantized,
    first_quantized,
    spanned,
    steps_per_unit,
    storage,
    wide,
    zero_point,
)
from thalweg.platform import blas
from thalweg.platform.arrays import Array

_HEADROOM = 1 << 17  # the range of a sum, relative to that of its terms


class QuantizedMatMul(Op):
    """The product of two quantized matrices, in wide integers"""

    signature = (
        "a: T1, b: T2, min_a: float32, max_a: float32, min_b: float32, max_b: float32 -> "
        "out: Toutput, min_out: float32, max_out: float32; "
        "T1: quantized, T2: quantized, Toutput: quantized"
    )
    not_differentiable = True
    Toutput: DType = dtypes.qint32
    transpose_a: bool = False
    transpose_b: bool = False

    def shape(self, a: Tensor, b: Tensor, *ranges: Tensor) -> list[TensorShape]:
        plain = matmul.MatMul(transpose_a=self.transpose_a, transpose_b=self.transpose_b)
        return [plain.shape(a, b), scalar(), scalar()]

    def numpy(
        self, a: Array, b: Array, min_a: Array, max_a: Array, min_b: Array, max_b: Array
    ) -> tuple[Array, Any, Any]:
        left, left_steps = _centred(a, float(min_a), float(max_a))
        right, right_steps = _centred(b, float(min_b), float(max_b))
        product = blas.matmul(
            left.T if self.transpose_a else left, right.T if self.transpose_b else right
        )
        kind = storage(self.Toutput)
        return product.astype(kind), *spanned(left_steps * right_steps, kind)

    def loop(self, at: IndexTuple, a: Operand, b: Operand, *ranges: Operand) -> Expr:
        a_range, b_range = wide(*ranges[:2]), wide(*ranges[2:])
        kind = storage(self.Toutput)
        if at.output:
            steps = steps_per_unit(*a_range, a.dtype) * steps_per_unit(*b_range, b.dtype)
            return spanned(steps, kind)[at.output - 1]
        row, column = at
        a_zero, b_zero = zero_point(*a_range, a.dtype), zero_point(*b_range, b.dtype)

        def product(k: Expr) -> Expr:
            left = a[k, row] if self.transpose_a else a[row, k]
            right = b[column, k] if self.transpose_b else b[k, column]
            return centred(left, a_zero) * centred(right, b_zero)

        return loop.reduce("sum", [a.shape[0 if self.transpose_a else 1]], product).cast(kind)


def centred(x: Any, zero: Any) -> Any:
    """Integers less the zero point."""
    return cast(x, np.int64) - cast(zero, np.int64)


def _centred(value: Array, low: float, high: float) -> tuple[Array, float]:
    """The integers less the zero point, and the number of steps to a real distance of 1."""
    x = plain_integers(value)
    zero = zero_point(low, high, x.dtype)
    return centred(x, zero), steps_per_unit(low, high, x.dtype)


class QuantizedBiasAdd(Op):
    """x + bias along the last axis, in wide integers of a wide range"""

    signature = (
        "input: T1, bias: T2, min_input: float32, max_input: float32, min_bias: float32, "
        "max_bias: float32 -> output: out_type, min_out: float32, max_out: float32; "
        "T1: quantized, T2: quantized, out_type: quantized"
    )
    not_differentiable = True
    out_type: DType = dtypes.qint32

    def shape(self, input: Tensor, bias_vector: Tensor, *ranges: Tensor) -> list[TensorShape]:
        return [bias.BiasAdd().shape(input, bias_vector), scalar(), scalar()]

    def numpy(self, input: Array, bias: Array, *ranges: Array) -> tuple[Array, Any, Any]:
        x, terms = plain_integers(input), plain_integers(bias)
        low_x, high_x, low, high = map(float, ranges)
        reals = first_dequantized(x, low_x, high_x, x.dtype)
        total = reals + first_dequantized(terms, low, high, terms.dtype)
        return self._quantized(total, low_x, high_x, low, high)

    def loop(self, at: IndexTuple, input: Operand, bias: Operand, *ranges: Operand) -> Expr:
        x_range, bias_range = wide(*ranges[:2]), wide(*ranges[2:])
        if at.output:
            return self._quantized(0.0, *x_range, *bias_range)[at.output]
        x = first_dequantized(input[at], *x_range, input.dtype)
        term = first_dequantized(bias[at[-1]], *bias_range, bias.dtype)
        return self._quantized(x + term, *x_range, *bias_range)[0]

    def _quantized(self, total: Any, *ends: Any) -> tuple[Any, Any, Any]:
        low, high, bias_low, bias_high = ends
        largest = maximum(maximum(-low, high), maximum(-bias_low, bias_high)) * _HEADROOM
        kind = storage(self.out_type)
        grid = cast(first_quantized(total, -largest, largest, kind), kind)
        return grid, cast(-largest, np.float32), cast(largest, np.float32)


class Requantize(Op):
    """The same reals, in integers of another dtype and range"""

    signature = (
        "input: Tinput, input_min: float32, input_max: float32, requested_output_min: float32, "
        "requested_output_max: float32 -> output: out_type, output_min: float32, "
        "output_max: float32; Tinput: quantized, out_type: quantized"
    )
    not_differentiable = True
    out_type: DType

    def shape(self, input: Tensor, *ranges: Tensor) -> list[TensorShape]:
        return [input.shape, scalar(), scalar()]

    def numpy(self, input: Array, *ranges: Array) -> tuple[Array, Any, Any]:
        old_low, old_high, low, high = map(float, ranges)
        if low > 0:
            raise errors.invalid(f"requested_output_min must be <= 0, but got {low}")
        if high < low:
            raise errors.invalid(
                f"requested_output_max must be >= requested_output_min, but got {high}"
            )
        x = plain_integers(input)
        reals = first_dequantized(x, old_low, old_high, x.dtype)
        return _narrowed(reals, low, high, self.out_type)

    def loop(self, at: IndexTuple, input: Operand, *ranges: Operand) -> Expr:
        x = 0.0 if at.output else first_dequantized(input[at], *wide(*ranges[:2]), input.dtype)
        return _narrowed(x, *wide(*ranges[2:]), self.out_type)[at.output]

    def requires(self, input: Operand, *ranges: Operand) -> list[RuntimeCheck]:
        low, high = (end[()] for end in ranges[2:])
        return [RuntimeCheck((), (low <= 0) & (low <= high))]


class RequantizationRange(Op):
    """The real range of the values of a quantized tensor and zero"""

    signature = (
        "input: Tinput, input_min: float32, input_max: float32 -> "
        "output_min: float32, output_max: float32; Tinput: quantized"
    )
    not_differentiable = True

    def shape(self, input: Tensor, input_min: Tensor, input_max: Tensor) -> list[TensorShape]:
        return [scalar(), scalar()]

    def numpy(self, input: Array, input_min: Array, input_max: Array) -> tuple[Any, Any]:
        low, high = _used(_reals(input, input_min, input_max))
        return np.float32(low), np.float32(high)

    def loop(self, at: IndexTuple, input: Operand, input_min: Operand, input_max: Operand) -> Expr:
        return _used_elements(input, input_min, input_max)[at.output].cast(np.float32)


class QuantizeDownAndShrinkRange(Op):
    """The same reals, in integers of another dtype whose range is that of the values"""

    signature = (
        "input: Tinput, input_min: float32, input_max: float32 -> output: out_type, "
        "output_min: float32, output_max: float32; Tinput: quantized, out_type: quantized"
    )
    not_differentiable = True
    out_type: DType

    def shape(self, input: Tensor, input_min: Tensor, input_max: Tensor) -> list[TensorShape]:
        return [input.shape, scalar(), scalar()]

    def numpy(self, input: Array, input_min: Array, input_max: Array) -> tuple[Array, Any, Any]:
        reals = _reals(input, input_min, input_max)
        return _narrowed(reals, *_used(reals), self.out_type)

    def loop(self, at: IndexTuple, input: Operand, input_min: Operand, input_max: Operand) -> Expr:
        used, ends = _used_elements(input, input_min, input_max), wide(input_min, input_max)
        x = 0.0 if at.output else first_dequantized(input[at], *ends, input.dtype)
        return _narrowed(x, *used, self.out_type)[at.output]


def _reals(input: Array, low: Array, high: Array) -> Array:
    x = plain_integers(input)
    return first_dequantized(x, float(low), float(high), x.dtype)


def _used(reals: Array) -> tuple[float, float]:
    """The range of the values, extended to zero, which a grid must contain."""
    return min(0.0, float(np.min(reals, initial=0))), float(np.max(reals, initial=0))


def _used_elements(input: Operand, low: Operand, high: Operand) -> tuple[Expr, Expr]:
    """`_used` for all elements of a quantized tensor."""
    ends = wide(low, high)

    def real(*k: Expr) -> Expr:
        return first_dequantized(input[k], *ends, input.dtype)

    least, most = (loop.reduce(kind, input.shape, real) for kind in ("min", "max"))
    return minimum(least, 0.0), maximum(most, 0.0)


def _narrowed(reals: Any, low: Any, high: Any, out_type: DType) -> tuple[Any, Any, Any]:
    kind = storage(out_type)
    # All values are equal if the range is empty: any grid is valid.
    top = select(greater(high, low), high, low + 1)
    grid = cast(first_quantized(reals, low, top, kind), kind)
    return grid, cast(low, np.float32), cast(high, np.float32)


class QuantizedReshape(Op):
    """A quantized tensor in another shape, with its range"""

    signature = (
        "tensor: T, shape: Tshape, input_min: float32, input_max: float32 -> output: T, "
        "output_min: float32, output_max: float32; Tshape: index"
    )
    not_differentiable = True

    def shape(self, tensor: Tensor, shape: Tensor, *ranges: Tensor) -> list[TensorShape]:
        return [shaping.Reshape().shape(tensor, shape), scalar(), scalar()]

    def numpy(self, tensor: Array, shape: Array, low: Array, high: Array) -> tuple[Array, Any, Any]:
        return shaping.Reshape().numpy(tensor, shape), low, high

    def loop(
        self, at: IndexTuple, tensor: Operand, shape: Operand, low: Operand, high: Operand
    ) -> Expr:
        if at.output:
            return (low, high)[at.output - 1][()]
        return tensor[loop.reshaped(at, tensor.shape)]
