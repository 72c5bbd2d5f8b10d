"""Convolution of quantized images by quantized filters, in integers.

It takes the real ranges of its inputs and returns that of its output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.literal import plain_integers
from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, scalar
from thalweg.ir import loop
from thalweg.ir.expr import Expr
from thalweg.ir.loop import IndexTuple, Operand
from thalweg.ops.nn import correlate
from thalweg.ops.nn.windows import Slide
from thalweg.ops.quantized.quantize import spanned, steps_per_unit, storage, wide, zero_point
from thalweg.platform.arrays import Array
from thalweg.public import public


class QuantizedConv2D(Op):
    """The convolution of quantized images by quantized filters, in 32-bit integers."""

    signature = (
        "input: Tinput, filter: Tfilter, min_input: float32, max_input: float32, "
        "min_filter: float32, max_filter: float32 -> output: out_type, min_output: float32, "
        "max_output: float32; Tinput: quantized, Tfilter: quantized, out_type: quantized"
    )
    not_differentiable = True
    strides: tuple[int, ...]
    padding: str
    out_type: DType = dtypes.qint32
    dilations: tuple[int, ...] = (1, 1, 1, 1)

    def slides(self, window: Sequence[Any]) -> list[Slide]:
        moves = zip(window, self.strides[1:3], self.dilations[1:3], strict=True)
        return [Slide(size or 1, stride, rate, self.padding) for size, stride, rate in moves]

    def shape(self, input: Tensor, filter: Tensor, *ranges: Tensor) -> list[TensorShape]:
        batch, *sizes, depth = input.shape.with_rank(4).as_list()
        *window, filter_depth, channels = filter.shape.with_rank(4).as_list()
        if None not in (depth, filter_depth) and depth != filter_depth:
            raise ValueError(f"Dimensions must be equal, but are {depth} and {filter_depth}")
        slides = self.slides(window)
        known = None not in window
        found = [s.count(n) if known else None for s, n in zip(slides, sizes, strict=True)]
        return [TensorShape.of((batch, *found, channels)), scalar(), scalar()]

    def numpy(
        self,
        input: Array,
        filter: Array,
        min_input: Array,
        max_input: Array,
        min_filter: Array,
        max_filter: Array,
    ) -> tuple[Array, Any, Any]:
        x, w = plain_integers(input), plain_integers(filter)
        x_zero = zero_point(float(min_input), float(max_input), x.dtype)
        w_zero = zero_point(float(min_filter), float(max_filter), w.dtype)
        # Padding is the real zero, so the zero point must be subtracted first.
        product = correlate.correlate(
            x.astype(np.float64) - x_zero, w.astype(np.float64) - w_zero, self.slides(w.shape[:2])
        )
        steps = steps_per_unit(float(min_input), float(max_input), x.dtype)
        steps *= steps_per_unit(float(min_filter), float(max_filter), w.dtype)
        kind = storage(self.out_type)
        return product.astype(kind), *spanned(steps, kind)

    def loop(self, at: IndexTuple, input: Operand, filter: Operand, *ranges: Operand) -> Expr:
        x_range, w_range = wide(*ranges[:2]), wide(*ranges[2:])
        kind = storage(self.out_type)
        if at.output:
            steps = steps_per_unit(*x_range, input.dtype) * steps_per_unit(*w_range, filter.dtype)
            return spanned(steps, kind)[at.output - 1]
        batch, *position, channel = at
        slides = self.slides(filter.shape[:2])
        x_zero, w_zero = zero_point(*x_range, input.dtype), zero_point(*w_range, filter.dtype)

        def product(row: Expr, column: Expr, depth: Expr) -> Expr:
            taps = zip(slides, position, (row, column), input.shape[1:3], strict=True)
            place = [p * s.stride + tap * s.dilation - s.pads(size)[0] for s, p, tap, size in taps]
            x = input.or_else([batch, *place, depth], x_zero.cast(input.dtype))
            w = filter[row, column, depth, channel]
            return (x.cast(np.float64) - x_zero) * (w.cast(np.float64) - w_zero)

        return loop.reduce("sum", filter.shape[:3], product).cast(kind)


@public("nn.quantized_conv2d")
def quantized_conv2d(
    input: Any,
    filter: Any,
    min_input: Any,
    max_input: Any,
    min_filter: Any,
    max_filter: Any,
    strides: Sequence[int],
    padding: str,
    out_type: Any = dtypes.qint32,
    dilations: Sequence[int] = (1, 1, 1, 1),
    name: str | None = None,
) -> Any:
    """(the convolution of quantized images by quantized filters, its real range)."""
    op = QuantizedConv2D(
        strides=tuple(strides),
        padding=padding,
        out_type=as_dtype(out_type),
        dilations=tuple(dilations),
    )
    return op(
        convert_to_tensor(input),
        convert_to_tensor(filter),
        min_input,
        max_input,
        min_filter,
        max_filter,
        name=name,
    )
