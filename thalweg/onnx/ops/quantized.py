"""Integers that stand for numbers: quantisation, and products of quantised tensors."""

from __future__ import annotations

from typing import Any

from thalweg.graph import dtypes
from thalweg.graph.dtypes import DType
from thalweg.graph.node import Tensor
from thalweg.onnx.ops.linear import conv, matrix_product
from thalweg.onnx.registry import NodeView, operator
from thalweg.onnx.values import cast_to, elements, like, rank_of
from thalweg.ops.core import casting, shaping
from thalweg.ops.math import arithmetic, reduce, rounding


def _along(values: Tensor, x: Tensor, axis: int) -> Tensor:
    """One value for each index of an axis, to be broadcast."""
    if values.shape.rank != 1:
        return values
    rank = x.shape.rank or 1
    axis = axis + rank if axis < 0 else axis
    return shaping.reshape(values, [-1 if a == axis else 1 for a in range(rank)])


def _bounded(x: Tensor, dtype: DType) -> Tensor:
    """Numbers as integers, the nearest in range."""
    low, high = like(dtype.min, x), like(dtype.max, x)
    return casting.cast(arithmetic.minimum(arithmetic.maximum(x, low), high), dtype)


@operator("QuantizeLinear", since=10)
def quantize_linear(node: NodeView, x: Tensor, scale: Tensor, zero: Any = None) -> Tensor:
    if node.get("block_size", 0) or scale.shape.rank not in (0, 1):
        raise node.unsupported("quantisation by blocks")
    kind = dtypes.uint8 if zero is None else zero.dtype.base_dtype
    if zero is None and node.get("output_dtype", 0):
        kind = elements(int(node.get("output_dtype")))
    if not kind.is_integer:
        raise node.unsupported(f"quantisation to {kind.name}")
    axis = int(node.get("axis", 1))
    steps = rounding.rint(
        casting.cast(x, dtypes.float32) / casting.cast(_along(scale, x, axis), dtypes.float32)
    )
    if zero is not None:
        steps = steps + casting.cast(_along(zero, x, axis), dtypes.float32)
    return _bounded(steps, kind)


@operator("DequantizeLinear", since=10)
def dequantize_linear(node: NodeView, x: Tensor, scale: Tensor, zero: Any = None) -> Tensor:
    if node.get("block_size", 0) or scale.shape.rank not in (0, 1):
        raise node.unsupported("quantisation by blocks")
    axis = int(node.get("axis", 1))
    kind = scale.dtype.base_dtype
    found = casting.cast(x, dtypes.float32)
    if zero is not None:
        found = found - casting.cast(_along(zero, x, axis), dtypes.float32)
    return casting.cast(found * casting.cast(_along(scale, x, axis), dtypes.float32), kind)


@operator("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(node: NodeView, x: Tensor) -> Any:
    low = arithmetic.minimum(reduce.reduce_min(x), like(0, x))
    high = arithmetic.maximum(reduce.reduce_max(x), like(0, x))
    scale = (high - low) / like(255, x)
    zero = _bounded(rounding.rint(-low / scale), dtypes.uint8)
    steps = rounding.rint(x / scale) + casting.cast(zero, dtypes.float32)
    return _bounded(steps, dtypes.uint8), scale, zero


def _centred(x: Tensor, zero: Any, rows: bool = False) -> Tensor:
    """Quantised integers less their zero, wide enough to be multiplied."""
    wide = casting.cast(x, dtypes.int32)
    if zero is None:
        return wide
    shift = cast_to(zero, dtypes.int32)
    if shift.shape.rank == 1 and rows:
        shift = shaping.expand_dims(shift, 1)
    return wide - shift


@operator("MatMulInteger", since=10)
def matmul_integer(
    node: NodeView, a: Tensor, b: Tensor, a_zero: Any = None, b_zero: Any = None
) -> Tensor:
    return matrix_product(_centred(a, a_zero, rows=True), _centred(b, b_zero))


@operator("QLinearMatMul", since=10)
def qlinear_matmul(
    node: NodeView,
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
) -> Tensor:
    total = matrix_product(_centred(a, a_zero, rows=True), _centred(b, b_zero))
    return _requantized(total, [a_scale, b_scale], y_scale, y_zero)


def _requantized(total: Tensor, scales: list[Tensor], scale: Tensor, zero: Tensor) -> Tensor:
    first, second, last = (casting.cast(each, dtypes.float32) for each in (*scales, scale))
    found = rounding.rint(casting.cast(total, dtypes.float32) * (first * second / last))
    return _bounded(found + casting.cast(zero, dtypes.float32), zero.dtype.base_dtype)


def _exact_conv(node: NodeView, x: Tensor, w: Tensor) -> Tensor:
    """A convolution of integers, in float64, which holds their sums exactly."""
    found = conv(node, casting.cast(x, dtypes.float64), casting.cast(w, dtypes.float64))
    return casting.cast(found, dtypes.int32)


@operator("ConvInteger", since=10)
def conv_integer(
    node: NodeView, x: Tensor, w: Tensor, x_zero: Any = None, w_zero: Any = None
) -> Tensor:
    rank = rank_of(node, x)
    if w_zero is not None and w_zero.shape.rank == 1:
        w_zero = shaping.reshape(w_zero, [-1, *[1] * (rank - 1)])
    return _exact_conv(node, _centred(x, x_zero), _centred(w, w_zero))


@operator("QLinearConv", since=10)
def qlinear_conv(
    node: NodeView,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    bias: Any = None,
) -> Tensor:
    rank = rank_of(node, x)
    filters = [-1, *[1] * (rank - 1)]
    channels = [-1, *[1] * (rank - 2)]
    if w_zero.shape.rank == 1:
        w_zero = shaping.reshape(w_zero, filters)
    total = _exact_conv(node, _centred(x, x_zero), _centred(w, w_zero))
    if bias is not None:
        total = total + shaping.reshape(bias, channels)
    scale = shaping.reshape(w_scale, channels) if w_scale.shape.rank == 1 else w_scale
    return _requantized(total, [x_scale, scale], y_scale, y_zero)
