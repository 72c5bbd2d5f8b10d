"""Pooling and clipping of quantized images, which do not change the real range."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.literal import plain_integers
from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, scalar
from thalweg.ir import loop
from thalweg.ir.expr import Expr
from thalweg.ir.loop import IndexTuple, Operand
from thalweg.ops.nn import pooling, windows
from thalweg.ops.nn.pooling import Pooling
from thalweg.ops.quantized import quantize
from thalweg.platform.arrays import Array
from thalweg.public import public


class QuantizedPooling(Pooling, abstract=True):
    """The base of poolings of quantized images."""

    signature = (
        "input: T, min_input: float32, max_input: float32 -> output: T, min_output: float32, "
        "max_output: float32; T: quantized"
    )
    not_differentiable = True

    def shape(self, input: Tensor, min_input: Tensor, max_input: Tensor) -> list[TensorShape]:
        return [self.pooled_shape(input.shape), scalar(), scalar()]

    def loop(self, at: IndexTuple, input: Operand, min_input: Operand, max_input: Operand) -> Expr:
        if at.output:
            return (min_input, max_input)[at.output - 1][()]
        return self.pooled(at, input).cast(input.dtype)

    def pooled(self, at: IndexTuple, x: Operand) -> Expr:
        """One integer of the output."""
        raise TypeError(f"{self.type_name} does not say how it pools")


class QuantizedMaxPool(QuantizedPooling):
    """The maximum integer of each window"""

    def numpy(self, input: Array, min_input: Array, max_input: Array) -> tuple[Array, ...]:
        x = plain_integers(input)
        largest = pooling.MaxPool(**self.attributes).numpy(x)
        return largest, min_input, max_input

    def pooled(self, at: IndexTuple, x: Operand) -> Expr:
        return pooling.MaxPool(**self.attributes).loop(at, x)


class QuantizedAvgPool(QuantizedPooling):
    """The mean of the integers of each window, truncated"""

    def numpy(self, input: Array, min_input: Array, max_input: Array) -> tuple[Array, ...]:
        x = plain_integers(input)
        positions = windows.counts(self.slides, x.shape)
        total = np.zeros(positions, np.int64)
        for tap in self.views(self.padded(x, 0), positions):
            total += tap
        share = pooling.shares(self.slides, x.shape, positions).astype(np.int64)
        return (total // share).astype(x.dtype), min_input, max_input

    def pooled(self, at: IndexTuple, x: Operand) -> Expr:
        def element(*taps: Expr) -> Expr:
            return self.seen(x, at, taps, 0).cast(np.int64)

        total = loop.reduce("sum", self.ksize, element)
        return total // pooling.covered(self.slides, x.shape, at)


@public("nn.quantized_max_pool")
def quantized_max_pool(
    input: Any,
    min_input: Any,
    max_input: Any,
    ksize: Any,
    strides: Any,
    padding: str,
    name: str | None = None,
) -> Any:
    """(the maximum integers of windows over quantized images, their real range)."""
    op = QuantizedMaxPool(**pooling.attributes(ksize, strides, padding, "NHWC"))
    return op(input, min_input, max_input, name=name)


@public("nn.quantized_avg_pool")
def quantized_avg_pool(
    input: Any,
    min_input: Any,
    max_input: Any,
    ksize: Any,
    strides: Any,
    padding: str,
    name: str | None = None,
) -> Any:
    """(the mean integers of windows over quantized images, their real range)."""
    op = QuantizedAvgPool(**pooling.attributes(ksize, strides, padding, "NHWC"))
    return op(input, min_input, max_input, name=name)


def _clipped(features: Array, top: float, low: float, high: float, kind: DType) -> Array:
    """The integers clipped to those of the reals 0 and `top`."""
    x = plain_integers(features)
    zero, most = quantize.first_quantized(np.array([0.0, top]), low, high, x.dtype).tolist()
    return np.clip(x, zero, most).astype(quantize.storage(kind))


def _clipped_at(
    at: IndexTuple, features: Operand, top: Any, low: Operand, high: Operand, kind: DType
) -> Expr:
    """`_clipped` for one element, or an end of the range."""
    if at.output:
        return (low, high)[at.output - 1][()]
    lowest, highest = quantize.limits(features.dtype)
    start, end = low[()].cast(np.float64), high[()].cast(np.float64)
    scale = (highest - lowest) / (end - start)
    zero = (lowest - _rounded(start * scale)).max(lowest).min(highest)
    most = (_rounded(scale * top) - _rounded(start * scale) + lowest).max(lowest).min(highest)
    clipped = features[at].cast(np.float64).max(zero).min(most)
    return clipped.cast(quantize.storage(kind))


def _rounded(x: Expr) -> Expr:
    """The nearest integer; halves are rounded away from zero."""
    return x.sign() * (x.abs() + 0.5).floor()


class QuantizedRelu(Op):
    """max(x, 0), of quantized features"""

    signature = (
        "features: Tinput, min_features: float32, max_features: float32 -> "
        "activations: out_type, min_activations: float32, max_activations: float32; "
        "Tinput: quantized, out_type: quantized"
    )
    not_differentiable = True
    out_type: DType = dtypes.quint8

    def shape(self, features: Tensor, *_: Tensor) -> list[TensorShape]:
        return [features.shape, scalar(), scalar()]

    def numpy(self, features: Array, low: Array, high: Array) -> tuple[Array, ...]:
        return _clipped(features, float(high), float(low), float(high), self.out_type), low, high

    def loop(self, at: IndexTuple, features: Operand, low: Operand, high: Operand) -> Expr:
        top = high[()].cast(np.float64)
        return _clipped_at(at, features, top, low, high, self.out_type)


class QuantizedRelu6(QuantizedRelu, name="QuantizedRelu6"):
    """min(max(x, 0), 6), of quantized features"""

    def numpy(self, features: Array, low: Array, high: Array) -> tuple[Array, ...]:
        return _clipped(features, 6.0, float(low), float(high), self.out_type), low, high

    def loop(self, at: IndexTuple, features: Operand, low: Operand, high: Operand) -> Expr:
        return _clipped_at(at, features, 6.0, low, high, self.out_type)


class QuantizedReluX(Op):
    """min(max(x, 0), max_value), of quantized features"""

    signature = (
        "features: Tinput, max_value: float32, min_features: float32, max_features: float32 -> "
        "activations: out_type, min_activations: float32, max_activations: float32; "
        "Tinput: quantized, out_type: quantized"
    )
    not_differentiable = True
    out_type: DType = dtypes.quint8

    def shape(self, features: Tensor, *_: Tensor) -> list[TensorShape]:
        return [features.shape, scalar(), scalar()]

    def numpy(self, features: Array, top: Array, low: Array, high: Array) -> tuple[Array, ...]:
        return _clipped(features, float(top), float(low), float(high), self.out_type), low, high

    def loop(
        self, at: IndexTuple, features: Operand, top: Operand, low: Operand, high: Operand
    ) -> Expr:
        end = top[()].cast(np.float64)
        return _clipped_at(at, features, end, low, high, self.out_type)


@public("nn.quantized_relu_x")
def quantized_relu_x(
    features: Any,
    max_value: Any,
    min_features: Any,
    max_features: Any,
    out_type: Any = dtypes.quint8,
    name: str | None = None,
) -> Any:
    """(quantized features clipped to [0, max_value], their real range)."""
    op = QuantizedReluX(out_type=as_dtype(out_type))
    return op(features, max_value, min_features, max_features, name=name)
