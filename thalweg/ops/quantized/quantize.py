"""Quantized tensors: quantization, dequantization and concatenation.

A quantized tensor is an integer tensor with the real range [min, max] of its integers. Kernels get
plain integers of the storage width. Formulas are in float64, for arrays or elements.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.known import constant_value
from thalweg.graph.literal import plain_integers
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, scalar, unknown_shape
from thalweg.ir import loop
from thalweg.ir.either import (
    absolute,
    both,
    cast,
    clip,
    divide,
    equal,
    floor,
    greater,
    maximum,
    minimum,
    rint,
    select,
    sign,
)
from thalweg.ir.expr import Expr
from thalweg.ir.loop import IndexTuple, Operand, RuntimeCheck
from thalweg.platform.arrays import Array
from thalweg.public import public

_MIN_RANGE = 0.01  # relative to the larger end: narrower ranges are widened to it


def storage(kind: DType) -> Any:
    """The NumPy integer dtype of a quantized dtype."""
    structured = np.dtype(kind.as_numpy_dtype)
    return structured[0].base if structured.fields else structured


def limits(kind: Any) -> tuple[int, int]:
    """The lowest and the highest integer of a NumPy dtype."""
    info = np.iinfo(kind)
    return int(info.min), int(info.max)


def _round_half_away(x: Any) -> Any:
    return sign(x) * floor(absolute(x) + 0.5)


_ROUNDING: dict[str, Callable[[Any], Any]] = {
    "HALF_AWAY_FROM_ZERO": _round_half_away,
    "HALF_TO_EVEN": rint,
}


# The grid of QuantizedConv2D and friends: the lowest integer is min, the highest is max.


def steps_per_unit(low: Any, high: Any, kind: Any) -> Any:
    """The number of integers per real distance of 1."""
    lowest, highest = limits(kind)
    return divide(highest - lowest, high - low)


def spanned(steps: Any, kind: Any) -> tuple[Any, Any]:
    """The real range of integers around zero with `steps` per distance of 1."""
    lowest, highest = limits(kind)
    return cast(lowest / steps, np.float32), cast(highest / steps, np.float32)


def first_quantized(x: Any, low: Any, high: Any, kind: Any) -> Any:
    """Reals as integers, with `low` exactly at the lowest one."""
    lowest, highest = limits(kind)
    scale = steps_per_unit(low, high, kind)
    grid = _round_half_away(x * scale) - _round_half_away(low * scale) + lowest
    return clip(grid, lowest, highest)


def first_dequantized(x: Any, low: Any, high: Any, kind: Any) -> Any:
    """The reals of integers of dtype `kind` quantized by `first_quantized`."""
    lowest, highest = limits(kind)
    scale = (high - low) / (highest - lowest)
    start = _round_half_away(divide(low, scale)) * scale
    return select(equal(low, high), low, start + (cast(x, np.float64) - lowest) * scale)


def zero_point(low: Any, high: Any, kind: Any) -> Any:
    """The integer of the real zero."""
    return first_quantized(0.0, low, high, kind)


def wide(low: Operand, high: Operand) -> tuple[Expr, Expr]:
    """The ends of a range as float64 elements."""
    return low[()].cast(np.float64), high[()].cast(np.float64)


class QuantizeV2(Op):
    """Reals in [min_range, max_range] as integers of dtype T, with their real range"""

    signature = (
        "input: float32, min_range: float32, max_range: float32 "
        "-> output: T, output_min: float32, output_max: float32; T: quantized"
    )
    not_differentiable = True
    T: DType
    mode: str = "MIN_COMBINED"
    round_mode: str = "HALF_AWAY_FROM_ZERO"

    def shape(self, input: Tensor, min_range: Tensor, max_range: Tensor) -> list[TensorShape]:
        if self.mode not in _QUANTIZERS:
            raise ValueError(f"mode must be one of {sorted(_QUANTIZERS)}, got {self.mode!r}")
        if self.round_mode not in _ROUNDING:
            raise ValueError(f"round_mode must be one of {sorted(_ROUNDING)}")
        min_range.shape.assert_has_rank(0)
        max_range.shape.assert_has_rank(0)
        return [input.shape, scalar(), scalar()]

    def numpy(self, input: Array, min_range: Array, max_range: Array) -> tuple[Any, Any, Any]:
        low, high = float(min_range), float(max_range)
        if low > high:
            raise ValueError(f"min_range {low} must not be larger than max_range {high}")
        return self._quantized(np.asarray(input, np.float64), low, high)

    def loop(self, at: IndexTuple, input: Operand, min_range: Operand, max_range: Operand) -> Expr:
        x = input[at].cast(np.float64) if at.output == 0 else 0.0
        return self._quantized(x, *wide(min_range, max_range))[at.output]

    def requires(
        self, input: Operand, min_range: Operand, max_range: Operand
    ) -> list[RuntimeCheck]:
        return [RuntimeCheck((), min_range[()] <= max_range[()])]

    def _quantized(self, x: Any, low: Any, high: Any) -> tuple[Any, Any, Any]:
        quantize, kind = _QUANTIZERS[self.mode], storage(self.T)
        usable = _usable_range(low, high)
        grid, low, high = quantize(x, *usable, kind, _ROUNDING[self.round_mode])
        return cast(grid, kind), cast(low, np.float32), cast(high, np.float32)


def _usable_range(low: Any, high: Any) -> tuple[Any, Any]:
    """A non-empty range that contains zero."""
    low = minimum(low, 0.0)
    least = maximum(maximum(absolute(low), absolute(high)), 1.0) * _MIN_RANGE
    return low, maximum(high, low + least)


Quantized = tuple[Any, Any, Any]


def _combined(x: Any, low: Any, high: Any, kind: Any, round: Any) -> Quantized:
    lowest, _ = limits(kind)
    grid = (clip(x, low, high) - low) * steps_per_unit(low, high, kind) + lowest
    return round(grid), low, high


def _first(x: Any, low: Any, high: Any, kind: Any, round: Any) -> Quantized:
    return first_quantized(x, low, high, kind), low, high


def _scaled(x: Any, low: Any, high: Any, kind: Any, round: Any) -> Quantized:
    lowest, highest = limits(kind)
    scale = _largest_scale(low, high, lowest, highest)
    low, high = lowest / scale, highest / scale
    return round(clip(x, low, high) * scale), low, high


def _largest_scale(low: Any, high: Any, lowest: int, highest: int) -> Any:
    """The largest factor that keeps [low, high] within [lowest, highest]."""
    from_low = select(greater(lowest * low, 0), divide(lowest, low), np.inf)
    from_high = select(greater(highest * high, 0), divide(highest, high), np.inf)
    return minimum(from_low, from_high)


_QUANTIZERS: dict[str, Callable[..., Quantized]] = {
    "MIN_COMBINED": _combined,
    "MIN_FIRST": _first,
    "SCALED": _scaled,
}


@public("quantize_v2")
def quantize_v2(
    input: Any,
    min_range: Any,
    max_range: Any,
    T: Any,  # noqa: N803 - TensorFlow's name
    mode: str = "MIN_COMBINED",
    name: str | None = None,
    round_mode: str = "HALF_AWAY_FROM_ZERO",
) -> Any:
    """(integers of dtype `T`, their real range) of reals in [min_range, max_range]."""
    op = QuantizeV2(T=as_dtype(T), mode=mode, round_mode=round_mode)
    return op(input, min_range, max_range, name=name)


@public("quantize", "quantization.quantize")
def quantize(
    input: Any,
    min_range: Any,
    max_range: Any,
    T: Any,  # noqa: N803 - TensorFlow's name
    mode: str = "MIN_COMBINED",
    round_mode: str = "HALF_AWAY_FROM_ZERO",
    name: str | None = None,
) -> Any:
    """(integers of dtype `T`, their real range) of reals in [min_range, max_range]."""
    return quantize_v2(input, min_range, max_range, T, mode, name, round_mode)


class Dequantize(Op):
    """The reals of quantized integers"""

    signature = "input: T, min_range: float32, max_range: float32 -> output: float32; T: quantized"
    not_differentiable = True
    mode: str = "MIN_COMBINED"

    def shape(self, input: Tensor, min_range: Tensor, max_range: Tensor) -> TensorShape:
        if self.mode not in _QUANTIZERS:
            raise ValueError(f"mode must be one of {sorted(_QUANTIZERS)}, got {self.mode!r}")
        return input.shape

    def numpy(self, input: Array, min_range: Array, max_range: Array) -> Array:
        x = plain_integers(input)
        reals = self._reals(x.astype(np.float64), float(min_range), float(max_range), x.dtype)
        return reals.astype(np.float32)

    def loop(self, at: IndexTuple, input: Operand, min_range: Operand, max_range: Operand) -> Expr:
        x = input[at].cast(np.float64)
        return self._reals(x, *wide(min_range, max_range), input.dtype).cast(np.float32)

    def _reals(self, x: Any, low: Any, high: Any, kind: Any) -> Any:
        lowest, highest = limits(kind)
        if self.mode == "MIN_FIRST":
            return first_dequantized(x, low, high, kind)
        if self.mode == "SCALED":
            side = low / lowest if lowest else 0.0
            return x * maximum(side, high / highest)
        return (x - lowest) / steps_per_unit(low, high, kind) + low


@public("dequantize", "quantization.dequantize")
def dequantize(
    input: Any,
    min_range: Any,
    max_range: Any,
    mode: str = "MIN_COMBINED",
    name: str | None = None,
) -> Tensor:
    """The reals of quantized integers with the range [min_range, max_range]."""
    return Dequantize(mode=mode)(input, min_range, max_range, name=name)


class QuantizeAndDequantizeV3(Op):
    """x quantized and dequantized; the gradient is that of the identity"""

    signature = "input: T, input_min: T, input_max: T, num_bits: int32 -> output: T; T: floating"
    signed_input: bool = True
    range_given: bool = True
    round_mode: str = "HALF_TO_EVEN"
    narrow_range: bool = False

    def shape(self, input: Tensor, *_: Tensor) -> TensorShape:
        modes = {"HALF_UP", *_ROUNDING}
        if self.round_mode not in modes:
            raise ValueError(f"round_mode must be one of {sorted(modes)}, got {self.round_mode!r}")
        return input.shape

    def numpy(self, input: Array, input_min: Array, input_max: Array, num_bits: Array) -> Array:
        x = np.asarray(input)
        if not x.size:
            return x
        lowest, highest = self._ends(int(num_bits))
        low, high = (input_min, input_max) if self.range_given else (x.min(), x.max())
        if low > high:
            raise ValueError(f"Invalid range: input_min {low} > input_max {high}")
        return self._rounded(x.astype(np.float64), float(low), float(high), lowest, highest).astype(
            x.dtype
        )

    def loop(
        self,
        at: IndexTuple,
        input: Operand,
        input_min: Operand,
        input_max: Operand,
        num_bits: Operand,
    ) -> Expr:
        low, high = wide(input_min, input_max) if self.range_given else _extremes(input)
        x, ends = input[at].cast(np.float64), self._ends(int(num_bits.constant()))
        return self._rounded(x, low, high, *ends).cast(input.dtype)

    def requires(
        self, input: Operand, input_min: Operand, input_max: Operand, num_bits: Operand
    ) -> list[RuntimeCheck]:
        return [RuntimeCheck((), input_min[()] <= input_max[()])] if self.range_given else []

    def _rounded(self, x: Any, low: Any, high: Any, lowest: int, highest: int) -> Any:
        scale = _largest_scale(low, high, lowest, highest)
        grid = (clip(x, lowest / scale, highest / scale) if self.range_given else x) * scale
        rounded = floor(grid + 0.5) if self.round_mode == "HALF_UP" else rint(grid)
        # The scale of an empty range is infinite: do not round.
        return select(equal(scale, np.inf), x, rounded / scale)

    def _ends(self, bits: int) -> tuple[int, int]:
        if not 1 <= bits <= 63:
            raise ValueError(f"num_bits is out of range: {bits}")
        if not self.signed_input:
            return 0, (1 << bits) - 1
        half = 1 << (bits - 1)
        return -half + self.narrow_range, half - 1

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [dy, None, None, None]


def _extremes(x: Operand) -> tuple[Expr, Expr]:
    """The least and the largest element."""

    def element(*k: Expr) -> Expr:
        return x[k].cast(np.float64)

    return loop.reduce("min", x.shape, element), loop.reduce("max", x.shape, element)


@public("quantization.quantize_and_dequantize")
def quantize_and_dequantize(
    input: Any,
    input_min: Any,
    input_max: Any,
    signed_input: bool = True,
    num_bits: int = 8,
    range_given: bool = False,
    round_mode: str = "HALF_TO_EVEN",
    name: str | None = None,
    narrow_range: bool = False,
) -> Tensor:
    """`input` rounded to a grid of `num_bits` bits in its range (or the given one)."""
    op = QuantizeAndDequantizeV3(
        signed_input=signed_input,
        range_given=range_given,
        round_mode=round_mode,
        narrow_range=narrow_range,
    )
    return op(input, input_min, input_max, num_bits, name=name)


class QuantizedConcat(Op):
    """Quantized tensors requantized to one range and concatenated along an axis"""

    signature = (
        "concat_dim: int32, values: N*T, input_mins: N*float32, input_maxes: N*float32 "
        "-> output: T, output_min: float32, output_max: float32"
    )
    not_differentiable = True

    def shape(
        self, concat_dim: Tensor, values: list[Tensor], mins: list[Tensor], maxes: list[Tensor]
    ) -> list[TensorShape]:
        axis, shape = constant_value(concat_dim), values[0].shape
        sizes = [value.shape.sizes for value in values]
        if axis is None or None in sizes:
            return [unknown_shape(shape.rank), scalar(), scalar()]
        along = [s[int(axis)] for s in sizes if s is not None]
        merged = shape.as_list()
        merged[int(axis)] = None if None in along else sum(a for a in along if a is not None)
        return [TensorShape(merged), scalar(), scalar()]

    def numpy(
        self, concat_dim: Array, values: list[Array], mins: list[Array], maxes: list[Array]
    ) -> tuple[Array, Any, Any]:
        low, high = min(0.0, *map(float, mins)), max(map(float, maxes))
        integers = [plain_integers(x) for x in values]
        parts = [
            _requantized(x, float(a), float(b), low, high, x.dtype)
            for x, a, b in zip(integers, mins, maxes, strict=True)
        ]
        return np.concatenate(parts, int(concat_dim)), np.float32(low), np.float32(high)

    def loop(
        self,
        at: IndexTuple,
        concat_dim: Operand,
        values: list[Operand],
        mins: list[Operand],
        maxes: list[Operand],
    ) -> Expr:
        axis = int(concat_dim.constant())
        if len({x.shape[:axis] + x.shape[axis:][1:] for x in values}) > 1:
            raise ValueError("values differ in other sizes than those along the axis")
        lows, highs = zip(*map(wide, mins, maxes), strict=True)
        low, high = functools.reduce(minimum, lows, 0.0), functools.reduce(maximum, highs)
        if at.output:
            return (low, high)[at.output - 1].cast(np.float32)
        starts = np.cumsum([0, *(x.shape[axis] for x in values)]).tolist()

        def piece(number: int) -> Expr:
            x, before, after = values[number], at[:axis], at[axis:][1:]
            element = x[(*before, at[axis] - starts[number], *after)]
            return _requantized(element, lows[number], highs[number], low, high, x.dtype)

        result = piece(0)
        for number in range(1, len(values)):
            result = select(at[axis] < starts[number], result, piece(number))
        return result


def _requantized(x: Any, old_low: Any, old_high: Any, low: Any, high: Any, kind: Any) -> Any:
    reals = first_dequantized(x, old_low, old_high, kind)
    grid = cast(first_quantized(reals, low, high, kind), kind)
    return select(both(equal(old_low, low), equal(old_high, high)), x, grid)


@public("quantized_concat", "quantization.quantized_concat")
def quantized_concat(
    concat_dim: Any,
    values: Sequence[Any],
    input_mins: Sequence[Any],
    input_maxes: Sequence[Any],
    name: str | None = None,
) -> Any:
    """(quantized tensors concatenated along `concat_dim`, their real range)."""
    return QuantizedConcat()(
        concat_dim, list(values), list(input_mins), list(input_maxes), name=name
    )
