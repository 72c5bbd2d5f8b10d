"""Arithmetic on quantized tensors: products, sums with a bias, and changes of the range.

Products and sums come in wide integers, whose range is far larger than the values in it; the ops
at the end bring them back to narrow ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.dtypes import DType
from thalweg.graph.literal import plain_integers
from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, scalar
from thalweg.ops import bias, matmul, shaping
from thalweg.ops.quantize import (
    first_dequantized,
    first_quantized,
    spanned,
    steps_per_unit,
    storage,
    zero_point,
)

Array = NDArray[Any]

_HEADROOM = 1 << 17  # the range of a sum is this many times that of its terms


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
        product = (left.T if self.transpose_a else left) @ (right.T if self.transpose_b else right)
        kind = storage(self.Toutput)
        return product.astype(kind), *spanned(left_steps * right_steps, kind)


def _centred(value: Array, low: float, high: float) -> tuple[Array, float]:
    """The integers less the one that stands for zero, and how many there are to a distance of 1."""
    x = plain_integers(value)
    centred = x.astype(np.int64) - int(zero_point(low, high, x.dtype))
    return centred, steps_per_unit(low, high, x.dtype)


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
        x_low, x_high, bias_low, bias_high = map(float, ranges)
        total = first_dequantized(plain_integers(input), x_low, x_high) + first_dequantized(
            plain_integers(bias), bias_low, bias_high
        )
        high = _HEADROOM * max(-x_low, x_high, -bias_low, bias_high)
        kind = storage(self.out_type)
        grid = first_quantized(total, -high, high, kind).astype(kind)
        return grid, np.float32(-high), np.float32(high)


class Requantize(Op):
    """The same reals, in integers of another dtype that span another range"""

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
            raise _refusal(f"requested_output_min must be <= 0, but got {low}")
        if high < low:
            raise _refusal(f"requested_output_max must be >= requested_output_min, but got {high}")
        reals = first_dequantized(plain_integers(input), old_low, old_high)
        return _narrowed(reals, low, high, self.out_type)


class RequantizationRange(Op):
    """The real range that the values of a quantized tensor, and zero, really span"""

    signature = (
        "input: Tinput, input_min: float32, input_max: float32 -> "
        "output_min: float32, output_max: float32; Tinput: quantized"
    )
    not_differentiable = True

    def shape(self, input: Tensor, input_min: Tensor, input_max: Tensor) -> list[TensorShape]:
        return [scalar(), scalar()]

    def numpy(self, input: Array, input_min: Array, input_max: Array) -> tuple[Any, Any]:
        reals = first_dequantized(plain_integers(input), float(input_min), float(input_max))
        low, high = _used(reals)
        return np.float32(low), np.float32(high)


class QuantizeDownAndShrinkRange(Op):
    """The same reals, in integers of another dtype that span just the range in use"""

    signature = (
        "input: Tinput, input_min: float32, input_max: float32 -> output: out_type, "
        "output_min: float32, output_max: float32; Tinput: quantized, out_type: quantized"
    )
    not_differentiable = True
    out_type: DType

    def shape(self, input: Tensor, input_min: Tensor, input_max: Tensor) -> list[TensorShape]:
        return [input.shape, scalar(), scalar()]

    def numpy(self, input: Array, input_min: Array, input_max: Array) -> tuple[Array, Any, Any]:
        reals = first_dequantized(plain_integers(input), float(input_min), float(input_max))
        return _narrowed(reals, *_used(reals), self.out_type)


def _used(reals: Array) -> tuple[float, float]:
    """The range of the values, widened to hold zero: a grid must have it."""
    return min(0.0, float(np.min(reals, initial=0))), float(np.max(reals, initial=0))


def _narrowed(reals: Array, low: float, high: float, out_type: DType) -> tuple[Array, Any, Any]:
    kind = storage(out_type)
    # All values are alike where the range is empty: any grid will do.
    top = high if high > low else low + 1
    grid = first_quantized(reals, low, top, kind).astype(kind)
    return grid, np.float32(low), np.float32(high)


def _refusal(message: str) -> errors.InvalidArgumentError:
    return errors.InvalidArgumentError(None, None, message)


class QuantizedReshape(Op):
    """A quantized tensor under another shape, with its range"""

    signature = (
        "tensor: T, shape: Tshape, input_min: float32, input_max: float32 -> output: T, "
        "output_min: float32, output_max: float32; Tshape: index"
    )
    not_differentiable = True

    def shape(self, tensor: Tensor, shape: Tensor, *ranges: Tensor) -> list[TensorShape]:
        return [shaping.Reshape().shape(tensor, shape), scalar(), scalar()]

    def numpy(self, tensor: Array, shape: Array, low: Array, high: Array) -> tuple[Array, Any, Any]:
        return shaping.Reshape().numpy(tensor, shape), low, high
