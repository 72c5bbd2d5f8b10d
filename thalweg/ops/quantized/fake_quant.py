"""Fake quantization, for training: floats are rounded to the grid of their quantization.

The range is first nudged so that zero is on the grid. Gradients pass to values inside of the nudged
range, and to the end of the range that clips a value outside of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import REGISTRY, Op
from thalweg.graph.shapes import TensorShape, scalar
from thalweg.ir import loop
from thalweg.ir.either import both, cast, clip, equal, floor, greater, less, select
from thalweg.ir.expr import Expr, call
from thalweg.ir.loop import IndexTuple, Operand
from thalweg.ops.core import casting
from thalweg.ops.math import compare
from thalweg.platform.arrays import Array
from thalweg.public import public


class Grid(NamedTuple):
    """A nudged range and its step."""

    low: Any
    high: Any
    step: Any


class FakeQuant(Op, abstract=True):
    """x rounded to a grid of 2^num_bits points over a range"""

    num_bits: int = 8
    narrow_range: bool = False

    def check(self) -> None:
        if not 2 <= self.num_bits <= 16:
            raise ValueError(f"num_bits must be between 2 and 16, inclusive, got {self.num_bits}")

    def grid(self, low: Any, high: Any) -> Grid:
        """The range nudged so that zero is a point of the grid."""
        first, last = float(self.narrow_range), float((1 << self.num_bits) - 1)
        low, high = cast(low, np.float32), cast(high, np.float32)
        step = (high - low) / (last - first)
        zero = clip(floor(first - low / step + 0.5), first, last)
        return Grid((first - zero) * step, (last - zero) * step, step)

    def rounded(self, x: Any, low: Any, high: Any) -> Any:
        """x on the grid; zeros for the empty range at zero."""
        grid = self.grid(low, high)
        places = floor((clip(x, grid.low, grid.high) - grid.low) / grid.step + 0.5)
        return self._unless_empty(low, high, places * grid.step + grid.low)

    def side(self, x: Any, low: Any, high: Any) -> Any:
        """-1 below the range, 0 inside it, 1 above it."""
        grid = self.grid(low, high)
        above, below = greater(x, grid.high), less(x, grid.low)
        return self._unless_empty(low, high, cast(above, np.float32) - cast(below, np.float32))

    def _unless_empty(self, low: Any, high: Any, value: Any) -> Any:
        empty = both(equal(low, 0), equal(high, 0))
        return cast(select(empty, 0, value), np.float32)


# A fixed range


class FixedRange(FakeQuant, abstract=True):
    """A range known when the graph is built."""

    min: float = -6.0
    max: float = 6.0

    def ends(self) -> tuple[Expr, Expr]:
        """The ends of the range, as elements."""
        return call("cast", self.min, np.float32), call("cast", self.max, np.float32)


class FakeQuantWithMinMaxArgs(FixedRange):
    """x rounded to a grid over [min, max]"""

    signature = "inputs: float32 -> outputs: float32"

    def shape(self, inputs: Tensor) -> TensorShape:
        self.check()
        if self.min >= self.max:
            raise ValueError(f"min has to be smaller than max, was: {self.min} >= {self.max}")
        return inputs.shape

    def numpy(self, inputs: Array) -> Array:
        return self.rounded(inputs, self.min, self.max)

    def loop(self, at: IndexTuple, inputs: Operand) -> Expr:
        return self.rounded(inputs[at], *self.ends())

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return FakeQuantWithMinMaxArgsGradient(**self.attributes)(dy, node.inputs[0])


class FakeQuantWithMinMaxArgsGradient(FixedRange):
    """dx = dy inside the nudged range, 0 outside"""

    signature = "gradients: float32, inputs: float32 -> backprops: float32"

    def shape(self, gradients: Tensor, inputs: Tensor) -> TensorShape:
        return gradients.shape.merge_with(inputs.shape)

    def numpy(self, gradients: Array, inputs: Array) -> Array:
        inside = self.side(inputs, self.min, self.max) == 0
        return np.where(inside, gradients, np.float32(0))

    def loop(self, at: IndexTuple, gradients: Operand, inputs: Operand) -> Expr:
        side = self.side(inputs[at], *self.ends())
        return select(side.eq(0), gradients[at], 0)

    def gradient(self, node: Node, ddx: Tensor) -> list[Tensor | None]:
        return [FakeQuantWithMinMaxArgsGradient(**self.attributes)(ddx, node.inputs[1]), None]


@public("fake_quant_with_min_max_args", "quantization.fake_quant_with_min_max_args")
def fake_quant_with_min_max_args(
    inputs: Any,
    min: float = -6,
    max: float = 6,
    num_bits: int = 8,
    narrow_range: bool = False,
    name: str | None = None,
) -> Tensor:
    """`inputs` rounded to a grid of 2^num_bits points over a fixed range."""
    op = FakeQuantWithMinMaxArgs(
        min=float(min), max=float(max), num_bits=num_bits, narrow_range=narrow_range
    )
    return op(inputs, name=name)


@public(
    "fake_quant_with_min_max_args_gradient", "quantization.fake_quant_with_min_max_args_gradient"
)
def fake_quant_with_min_max_args_gradient(
    gradients: Any,
    inputs: Any,
    min: float = -6,
    max: float = 6,
    num_bits: int = 8,
    narrow_range: bool = False,
    name: str | None = None,
) -> Tensor:
    """The gradient of `fake_quant_with_min_max_args`."""
    op = FakeQuantWithMinMaxArgsGradient(
        min=float(min), max=float(max), num_bits=num_bits, narrow_range=narrow_range
    )
    return op(gradients, inputs, name=name)


# A learned range


class RangeSide(FakeQuant):
    """-1 where x is below the nudged range, 0 inside, 1 above"""

    private = True
    signature = "inputs: float32, min: float32, max: float32 -> side: float32"
    not_differentiable = True

    def shape(self, inputs: Tensor, min: Tensor, max: Tensor) -> TensorShape:
        return inputs.shape

    def numpy(self, inputs: Array, min: Array, max: Array) -> Array:
        return self.side(inputs, min, max)

    def loop(self, at: IndexTuple, inputs: Operand, min: Operand, max: Operand) -> Expr:
        return self.side(inputs[at], min.broadcast(at), max.broadcast(at))


class LearnedRange(FakeQuant, abstract=True):
    """x rounded to a grid over ranges that are inputs."""

    signature = "inputs: float32, min: float32, max: float32 -> outputs: float32"

    def numpy(self, inputs: Array, min: Array, max: Array) -> Array:
        return self.rounded(inputs, min, max)

    def loop(self, at: IndexTuple, inputs: Operand, min: Operand, max: Operand) -> Expr:
        return self.rounded(inputs[at], min.broadcast(at), max.broadcast(at))

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor]:
        return list(REGISTRY[f"{self.type_name}Gradient"](**self.attributes)(dy, *node.inputs))


class LearnedRangeGradient(FakeQuant, abstract=True):
    """The gradient for x, min and max."""

    signature = (
        "gradients: float32, inputs: float32, min: float32, max: float32 -> "
        "backprops_wrt_input: float32, backprop_wrt_min: float32, backprop_wrt_max: float32"
    )

    def loop(
        self, at: IndexTuple, gradients: Operand, inputs: Operand, min: Operand, max: Operand
    ) -> Expr:
        """The gradient of x inside the range, or of an end, the sum of those of clipped values."""

        def passed(place: Sequence[Expr]) -> Expr:
            side = self.side(inputs[place], min.broadcast(place), max.broadcast(place))
            goes_here = (side.eq(0), side < 0, side > 0)[at.output]
            return select(goes_here, gradients[place], 0)

        if at.output == 0:
            return passed(at)
        summed = inputs.shape[: inputs.rank - at.rank]
        return loop.reduce("sum", summed, lambda *k: passed((*k, *at)))

    def gradient(self, node: Node, *dds: Tensor) -> list[Tensor | None]:
        """By dy alone: from x inside the range, from its ends outside."""
        of_side = RangeSide(num_bits=self.num_bits, narrow_range=self.narrow_range)
        side = of_side(*node.inputs[1:])
        masks = compare.equal(side, 0.0), compare.less(side, 0.0), compare.greater(side, 0.0)
        parts = [casting.cast(m, dtypes.float32) * dd for m, dd in zip(masks, dds, strict=True)]
        return [parts[0] + parts[1] + parts[2], None, None, None]


class FakeQuantWithMinMaxVars(LearnedRange):
    """x rounded to a grid over the range of two scalars"""

    def shape(self, inputs: Tensor, min: Tensor, max: Tensor) -> TensorShape:
        self.check()
        min.shape.assert_has_rank(0)
        max.shape.assert_has_rank(0)
        return inputs.shape


class FakeQuantWithMinMaxVarsGradient(LearnedRangeGradient):
    """The gradient of FakeQuantWithMinMaxVars for x, min and max."""

    def shape(
        self, gradients: Tensor, inputs: Tensor, min: Tensor, max: Tensor
    ) -> list[TensorShape]:
        return [gradients.shape.merge_with(inputs.shape), scalar(), scalar()]

    def numpy(
        self, gradients: Array, inputs: Array, min: Array, max: Array
    ) -> tuple[Array, Any, Any]:
        side, dy = self.side(inputs, min, max), np.asarray(gradients)
        return np.where(side == 0, dy, 0), np.sum(dy[side < 0]), np.sum(dy[side > 0])


class FakeQuantWithMinMaxVarsPerChannel(LearnedRange):
    """x rounded to a separate grid for each channel, the last axis"""

    def shape(self, inputs: Tensor, min: Tensor, max: Tensor) -> TensorShape:
        self.check()
        depth = inputs.shape.with_rank_at_least(1)[-1]
        depth.merge_with(min.shape.with_rank(1)[0]).merge_with(max.shape.with_rank(1)[0])
        return inputs.shape


class FakeQuantWithMinMaxVarsPerChannelGradient(LearnedRangeGradient):
    """The gradient of FakeQuantWithMinMaxVarsPerChannel for x, min and max."""

    def shape(
        self, gradients: Tensor, inputs: Tensor, min: Tensor, max: Tensor
    ) -> list[TensorShape]:
        return [gradients.shape.merge_with(inputs.shape), min.shape, max.shape]

    def numpy(
        self, gradients: Array, inputs: Array, min: Array, max: Array
    ) -> tuple[Array, Array, Array]:
        side, dy = self.side(inputs, min, max), np.asarray(gradients)
        axes = tuple(range(dy.ndim - 1))
        ends = [np.sum(np.where(mask, dy, 0), axis=axes) for mask in (side < 0, side > 0)]
        return np.where(side == 0, dy, 0), ends[0], ends[1]


@public("fake_quant_with_min_max_vars", "quantization.fake_quant_with_min_max_vars")
def fake_quant_with_min_max_vars(
    inputs: Any,
    min: Any,
    max: Any,
    num_bits: int = 8,
    narrow_range: bool = False,
    name: str | None = None,
) -> Tensor:
    """`inputs` rounded to a grid of 2^num_bits points over the range of two scalars."""
    op = FakeQuantWithMinMaxVars(num_bits=num_bits, narrow_range=narrow_range)
    return op(inputs, min, max, name=name)


@public(
    "fake_quant_with_min_max_vars_gradient", "quantization.fake_quant_with_min_max_vars_gradient"
)
def fake_quant_with_min_max_vars_gradient(
    gradients: Any,
    inputs: Any,
    min: Any,
    max: Any,
    num_bits: int = 8,
    narrow_range: bool = False,
    name: str | None = None,
) -> Any:
    """The gradients of `fake_quant_with_min_max_vars` for inputs, min and max."""
    op = FakeQuantWithMinMaxVarsGradient(num_bits=num_bits, narrow_range=narrow_range)
    return op(gradients, inputs, min, max, name=name)


@public(
    "fake_quant_with_min_max_vars_per_channel",
    "quantization.fake_quant_with_min_max_vars_per_channel",
)
def fake_quant_with_min_max_vars_per_channel(
    inputs: Any,
    min: Any,
    max: Any,
    num_bits: int = 8,
    narrow_range: bool = False,
    name: str | None = None,
) -> Tensor:
    """`inputs` rounded to a separate grid for each channel (the last axis)."""
    op = FakeQuantWithMinMaxVarsPerChannel(num_bits=num_bits, narrow_range=narrow_range)
    return op(inputs, min, max, name=name)


@public(
    "fake_quant_with_min_max_vars_per_channel_gradient",
    "quantization.fake_quant_with_min_max_vars_per_channel_gradient",
)
def fake_quant_with_min_max_vars_per_channel_gradient(
    gradients: Any,
    inputs: Any,
    min: Any,
    max: Any,
    num_bits: int = 8,
    narrow_range: bool = False,
    name: str | None = None,
) -> Any:
    """The gradients of `fake_quant_with_min_max_vars_per_channel` for inputs, min and max."""
    op = FakeQuantWithMinMaxVarsPerChannelGradient(num_bits=num_bits, narrow_range=narrow_range)
    return op(gradients, inputs, min, max, name=name)
