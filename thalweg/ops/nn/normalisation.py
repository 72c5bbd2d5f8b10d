"""Batch normalisation and local response normalisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, vector
from thalweg.ir import loop
from thalweg.ir.expr import Expr, select
from thalweg.ir.loop import IndexTuple, Operand, widened
from thalweg.ops.core import casting, shaping
from thalweg.ops.math import reduce, transcendental
from thalweg.ops.math.summing import summed
from thalweg.ops.nn import bias
from thalweg.platform import dtype_traits
from thalweg.platform.arrays import Array
from thalweg.public import public


class BatchNorm(Op, abstract=True):
    """The base of batch normalisation and its gradient."""

    epsilon: float = 0.0001
    data_format: str = "NHWC"
    is_training: bool = True

    @property
    def others(self) -> tuple[int, ...]:
        """The axes that are not channels."""
        return (0, 2, 3) if self.data_format == "NCHW" else (0, 1, 2)

    def column(self, values: Array) -> Array:
        """One number per channel, reshaped to broadcast with the images."""
        return values.reshape((1, -1, 1, 1) if self.data_format == "NCHW" else (1, 1, 1, -1))

    def channels(self, x: Tensor) -> TensorShape:
        """The shape of a number per channel."""
        return vector(x.shape.with_rank(4)[bias.channel_axis(self.data_format)])

    @property
    def axis(self) -> int:
        """The axis of the channels."""
        return bias.channel_axis(self.data_format) % 4

    def total(self, x: Operand, channel: Expr, body: Callable[[tuple[Any, ...]], Expr]) -> Expr:
        """The sum of the body, a function of indices into x, over one channel."""
        return loop.reduce(
            "sum",
            bias.without(x.shape, self.axis),
            lambda *others: body(bias.joined(others, channel, self.axis)),
        )


class FusedBatchNormV2(BatchNorm):
    """y = (x - mean) / sqrt(variance + epsilon) · scale + offset, by channel

    In training, mean and variance are those of the batch, and are output with Bessel's correction;
    the reserved outputs are the mean and the uncorrected variance, for the gradient.
    """

    laid_out = frozenset({"x", "y"})
    signature = (
        "x: T, scale: U, offset: U, mean: U, variance: U -> y: T, batch_mean: U, "
        "batch_variance: U, reserve_space_1: U, reserve_space_2: U; T: floating, U: floating"
    )

    def shape(
        self, x: Tensor, scale: Tensor, offset: Tensor, mean: Tensor, variance: Tensor
    ) -> list[TensorShape]:
        channels = self.channels(x)
        given = (scale, offset) if self.is_training else (scale, offset, mean, variance)
        for tensor in given:
            channels = channels.merge_with(tensor.shape.with_rank(1))
        sizes = list(x.shape.with_rank(4).as_list())
        sizes[bias.channel_axis(self.data_format)] = channels[0].value
        return [TensorShape.of(tuple(sizes)), channels, channels, channels, channels]

    def numpy(
        self, x: Array, scale: Array, offset: Array, mean: Array, variance: Array
    ) -> tuple[Array, ...]:
        if x.ndim != 4:
            raise errors.invalid(f"input must be 4-dimensional, got shape {list(x.shape)}")
        wide = x.astype(scale.dtype, copy=False)
        corrected = variance
        if self.is_training:
            mean = summed(wide, self.others) / _count(x, scale)
            centred = wide - self.column(mean)
            variance = summed(centred * centred, self.others) / _count(x, scale)
            corrected = variance * _bessel(x, scale)
        else:
            centred = wide - self.column(mean)
        factor = scale / np.sqrt(variance + scale.dtype.type(self.epsilon))
        centred *= self.column(factor)
        centred += self.column(offset)
        return centred.astype(x.dtype, copy=False), mean, corrected, mean, variance

    def loop(
        self,
        at: IndexTuple,
        x: Operand,
        scale: Operand,
        offset: Operand,
        mean: Operand,
        variance: Operand,
    ) -> Expr:
        channel = at[self.axis] if at.output == 0 else at[0]
        if self.is_training:
            statistics = self._statistics(x, channel, scale.dtype)
        else:
            statistics = mean[channel], variance[channel]
        return self._output(at, x, scale, offset, statistics)

    def relaxed_loop(
        self,
        at: IndexTuple,
        x: Operand,
        scale: Operand,
        offset: Operand,
        mean: Operand,
        variance: Operand,
    ) -> Expr:
        """The loop with the statistics of the batch in one pass over it."""
        if not self.is_training or not x.size:
            return self.loop(at, x, scale, offset, mean, variance)
        channel = at[self.axis] if at.output == 0 else at[0]
        statistics = self._shifted_statistics(x, channel, scale.dtype)
        return self._output(at, x, scale, offset, statistics)

    def _output(
        self,
        at: IndexTuple,
        x: Operand,
        scale: Operand,
        offset: Operand,
        statistics: tuple[Expr, Expr],
    ) -> Expr:
        channel, (middle, plain) = at[self.axis] if at.output == 0 else at[0], statistics
        if at.output in (1, 3):
            return middle
        if at.output in (2, 4):
            corrected = self.is_training and at.output == 2
            return plain * _bessel(x, scale) if corrected else plain
        factor = scale[channel] / (plain + self.epsilon).sqrt()
        y = (x[at].cast(scale.dtype) - middle) * factor + offset[channel]
        return y.cast(x.dtype)

    def _statistics(self, x: Operand, channel: Expr, kind: Any) -> tuple[Expr, Expr]:
        """The mean and the uncorrected variance of a channel."""
        count = x.size // max(x.shape[self.axis], 1)

        def square(index: tuple[Any, ...]) -> Expr:
            centred = x[index].cast(kind) - mean
            return centred * centred

        mean = self.total(x, channel, lambda index: x[index].cast(kind)) / float(count)
        return mean, self.total(x, channel, square) / float(count)

    def _shifted_statistics(self, x: Operand, channel: Expr, kind: Any) -> tuple[Expr, Expr]:
        """The same in one pass, by moments around the channel's first element: the cancellation in
        squares is then of the size of the variance, for any mean."""
        count = float(x.size // max(x.shape[self.axis], 1))
        first = x[bias.joined((0, 0, 0), channel, self.axis)].cast(kind)

        def centred(index: tuple[Any, ...]) -> Expr:
            return x[index].cast(kind) - first

        moved = self.total(x, channel, centred) / count
        square = self.total(x, channel, lambda index: centred(index) * centred(index)) / count
        return first + moved, (square - moved * moved).max(0)

    def gradient(self, node: Node, dy: Tensor, *_: Tensor) -> list[Tensor | None]:
        x, scale = node.inputs[:2]
        mean, variance = node.outputs[3:]
        grads = FusedBatchNormGradV2(**self.attributes)(dy, x, scale, mean, variance)
        return [*grads[:3], None, None]


def _count(x: Array, like: Array) -> Any:
    """The number of elements per channel."""
    return like.dtype.type(x.size // max(len(like), 1))


def _bessel(x: Array | Operand, like: Array | Operand) -> Any:
    count = x.size // max(like.size, 1)
    return like.dtype.type(count / max(count - 1, 1))


class FusedBatchNormGradV2(BatchNorm):
    """dx, dscale and doffset of FusedBatchNormV2

    With x̂ the normalised input and r = 1 / sqrt(variance + epsilon): doffset = Σ dy,
    dscale = Σ dy x̂, and dx = scale r (dy - mean(dy) - x̂ mean(dy x̂)), where the last two terms,
    the gradient through the statistics, apply only in training.
    """

    laid_out = frozenset({"y_backprop", "x", "x_backprop"})
    signature = (
        "y_backprop: T, x: T, scale: U, reserve_space_1: U, reserve_space_2: U -> "
        "x_backprop: T, scale_backprop: U, offset_backprop: U, reserve_space_3: U, "
        "reserve_space_4: U; T: floating, U: floating"
    )

    def shape(
        self, y_backprop: Tensor, x: Tensor, scale: Tensor, mean: Tensor, variance: Tensor
    ) -> list[TensorShape]:
        channels = self.channels(x).merge_with(scale.shape)
        return [x.shape.merge_with(y_backprop.shape), channels, channels, vector(0), vector(0)]

    def numpy(
        self, y_backprop: Array, x: Array, scale: Array, mean: Array, variance: Array
    ) -> tuple[Array, ...]:
        kind = scale.dtype
        dy = y_backprop.astype(kind, copy=False)
        inverse = 1 / np.sqrt(variance + kind.type(self.epsilon))
        normal = (x.astype(kind, copy=False) - self.column(mean)) * self.column(inverse)
        doffset = summed(dy, self.others)
        dscale = summed(dy * normal, self.others)
        if self.is_training:
            normal *= self.column(-dscale / _count(x, scale))
            normal += dy
            normal -= self.column(doffset / _count(x, scale))
            dy = normal
        dx = dy * self.column(scale * inverse)
        empty = np.zeros(0, kind)
        return dx.astype(x.dtype, copy=False), dscale, doffset, empty, empty

    def loop(
        self,
        at: IndexTuple,
        y_backprop: Operand,
        x: Operand,
        scale: Operand,
        mean: Operand,
        variance: Operand,
    ) -> Expr:
        kind, channel = scale.dtype, at[self.axis] if at.output == 0 else at[0]
        inverse = 1 / (variance[channel] + self.epsilon).sqrt()

        def dy(index: Any) -> Expr:
            return y_backprop[index].cast(kind)

        def normal(index: Any) -> Expr:
            return (x[index].cast(kind) - mean[channel]) * inverse

        if at.output > 2:
            return scale[channel]  # empty, like the reserved outputs
        dscale = self.total(x, channel, lambda index: dy(index) * normal(index))
        doffset = self.total(x, channel, dy)
        if at.output > 0:
            return dscale if at.output == 1 else doffset
        slope = dy(at)
        if self.is_training:
            count = float(x.size // max(scale.size, 1))
            slope = slope - doffset / count - normal(at) * (dscale / count)
        return (slope * (scale[channel] * inverse)).cast(x.dtype)

    def gradient(
        self, node: Node, ddx: Tensor, ddscale: Tensor, ddoffset: Tensor, *_: Tensor
    ) -> list[Tensor | None]:
        terms = _second_order(self, node, ddx, ddscale, ddoffset)
        return [terms.dy, terms.x, terms.scale, None, None]


class _Second(NamedTuple):
    dy: Tensor
    x: Tensor
    scale: Tensor


def _second_order(
    op: BatchNorm, node: Node, ddx: Tensor, ddscale: Tensor, ddoffset: Tensor
) -> _Second:
    """The gradient of L = Σ ddx dx + Σ ddscale dscale + Σ ddoffset doffset by dy, x and scale.

    With P(v) = v - mean(v) - x̂ mean(v x̂), which is symmetric, dx = scale r P(dy). The statistics
    are those of x, so L depends on x through x̂ and r.
    """
    dy, x, scale, mean, variance = node.inputs
    kind = scale.dtype.base_dtype
    dy, x, a = (casting.cast(t, kind) for t in (dy, x, ddx))
    g, r = _column(op, scale), _column(op, transcendental.rsqrt(variance + op.epsilon))
    b, c = _column(op, ddscale), _column(op, ddoffset)
    normal = (x - _column(op, mean)) * r
    if not op.is_training:
        to_scale = reduce.reduce_sum(a * dy * r, op.others)
        return _cast_back(node, _Second(a * g * r + b * normal + c, b * dy * r, to_scale))
    u, w = _mean(op, a * normal), _mean(op, dy * normal)
    projected = a - _mean(op, a) - normal * u
    inner = _mean(op, a * dy) - _mean(op, a) * _mean(op, dy) - u * w
    to_normal = b * dy - g * r * (a * w + dy * u)
    through_r = g * inner * r + _mean(op, to_normal * normal)
    to_x = r * (to_normal - _mean(op, to_normal) - normal * through_r)
    to_scale = reduce.reduce_sum(projected * dy * r, op.others)
    return _cast_back(node, _Second(g * r * projected + b * normal + c, to_x, to_scale))


def _mean(op: BatchNorm, x: Tensor) -> Tensor:
    return reduce.reduce_mean(x, op.others, keepdims=True)


def _column(op: BatchNorm, values: Tensor) -> Tensor:
    return shaping.reshape(values, [1, -1, 1, 1] if op.data_format == "NCHW" else [1, 1, 1, -1])


def _cast_back(node: Node, terms: _Second) -> _Second:
    kind = node.inputs[0].dtype.base_dtype
    return _Second(casting.cast(terms.dy, kind), casting.cast(terms.x, kind), terms.scale)


@public("nn.fused_batch_norm")
def fused_batch_norm(
    x: Any,
    scale: TensorLike,
    offset: TensorLike,
    mean: TensorLike | None = None,
    variance: TensorLike | None = None,
    epsilon: float = 0.001,
    data_format: str = "NHWC",
    is_training: bool = True,
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch normalization in one op.

    Args:
        x: [batch, height, width, channels], or channels second as "NCHW".
        scale, offset: vectors [channels].
        mean, variance: the moments to use when not training.
        epsilon: a number added to the variance.
        data_format: "NHWC" or "NCHW".
        is_training: whether the moments are those of the batch.
        name: the name of the node.

    Returns:
        (y, the mean, the variance).

    Example:
        >>> x = tf.reshape([1.0, 3.0], [2, 1, 1, 1])
        >>> y, mean, variance = tf.nn.fused_batch_norm(x, [1.0], [0.0])
        >>> sess.run(mean)
        array([2.], dtype=float32)
    """
    if data_format not in ("NHWC", "NCHW"):
        raise ValueError(f"data_format must be NHWC or NCHW, not {data_format!r}")
    if is_training and (mean is not None or variance is not None):
        raise ValueError("Both 'mean' and 'variance' must be None if is_training is True.")
    if not is_training and (mean is None or variance is None):
        raise ValueError("Both 'mean' and 'variance' must be given if is_training is False.")
    tensor = convert_to_tensor(x, name="input")
    wide = dtypes.float32 if tensor.dtype.size < 4 else tensor.dtype.base_dtype
    empty = np.zeros(0)
    given: list[Any] = [scale, offset, *([empty] * 2 if mean is None else [mean, variance])]
    names = ("scale", "offset", "mean", "variance")
    vectors = [convert_to_tensor(v, wide, name=n) for v, n in zip(given, names, strict=True)]
    op = FusedBatchNormV2(
        epsilon=float(epsilon), data_format=data_format, is_training=bool(is_training)
    )
    y, batch_mean, batch_variance, *_ = op(tensor, *vectors, name=name)
    return y, batch_mean, batch_variance


# Local response normalisation


class LocalResponse(Op, abstract=True):
    """The base of local response normalisation and its gradient."""

    depth_radius: int = 5
    bias: float = 1.0
    alpha: float = 1.0
    beta: float = 0.5

    def scale(self, x: Array) -> Array:
        """n = bias + alpha · the sum of the squares of the neighbours"""
        kind = x.dtype.type
        return kind(self.bias) + kind(self.alpha) * neighbour_sum(x * x, self.depth_radius)

    def scale_at(self, x: Operand, pixel: Sequence[Any], channel: Any) -> Expr:
        """n of one element."""

        def square(near: Expr) -> Expr:
            element = widened(x[(*pixel, near)], x.dtype)
            return element * element

        return neighbours(channel, x.shape[-1], self.depth_radius, square) * self.alpha + self.bias


def neighbour_sum(x: Array, radius: int) -> Array:
    """For each channel, the sum over the channels at most `radius` away."""
    total = x.copy()
    for shift in range(1, min(radius, x.shape[-1] - 1) + 1):
        total[..., shift:] += x[..., :-shift]
        total[..., :-shift] += x[..., shift:]
    return total


def neighbours(channel: Any, channels: int, radius: int, body: Callable[[Expr], Expr]) -> Expr:
    """The sum of the body over the channels at most `radius` away from one."""
    reach = max(min(radius, channels - 1), 0)

    def term(shift: Expr) -> Expr:
        near = channel + shift - reach
        return select((near >= 0) & (near < channels), body(near), 0)

    return loop.reduce("sum", [2 * reach + 1], term)


class LRN(LocalResponse):
    """y = x / n^beta, where n = bias + alpha · Σ x² over neighbouring channels"""

    signature = "input: T -> output: T; T: floating"

    def shape(self, input: Tensor) -> TensorShape:
        return input.shape.with_rank(4)

    def numpy(self, input: Array) -> Array:
        wide = dtype_traits.widened(input)
        result = wide * self.scale(wide) ** wide.dtype.type(-self.beta)
        return result.astype(input.dtype, copy=False)

    def loop(self, at: IndexTuple, input: Operand) -> Expr:
        power = self.scale_at(input, at[:-1], at[-1]).pow(-self.beta)
        return (widened(input[at], input.dtype) * power).cast(input.dtype)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return LRNGrad(**self.attributes)(dy, node.inputs[0], node.output)


class LRNGrad(LocalResponse):
    """dx = dy / n^beta - 2 alpha beta x · neighbours(dy y / n)"""

    signature = "input_grads: T, input_image: T, output_image: T -> output: T; T: floating"

    def shape(self, input_grads: Tensor, input_image: Tensor, output_image: Tensor) -> TensorShape:
        merged = input_grads.shape.with_rank(4).merge_with(input_image.shape)
        return merged.merge_with(output_image.shape)

    def numpy(self, input_grads: Array, input_image: Array, output_image: Array) -> Array:
        kind = input_image.dtype
        dy, x, y = map(dtype_traits.widened, (input_grads, input_image, output_image))
        n = self.scale(x)
        spread = neighbour_sum(dy * y / n, self.depth_radius)
        slope = x.dtype.type(2 * self.alpha * self.beta)
        dx = dy * n ** x.dtype.type(-self.beta) - slope * x * spread
        return dx.astype(kind, copy=False)

    def loop(self, at: IndexTuple, dy: Operand, x: Operand, y: Operand) -> Expr:
        pixel, channel = at[:-1], at[-1]

        def wide(operand: Operand, index: Any) -> Expr:
            return widened(operand[(*pixel, index)], operand.dtype)

        def share(near: Expr) -> Expr:
            return wide(dy, near) * wide(y, near) / self.scale_at(x, pixel, near)

        spread = neighbours(channel, x.shape[-1], self.depth_radius, share)
        power = self.scale_at(x, pixel, channel).pow(-self.beta)
        slope = 2 * self.alpha * self.beta
        return (wide(dy, channel) * power - wide(x, channel) * spread * slope).cast(x.dtype)

    def gradient(self, node: Node, ddx: Tensor) -> list[Tensor | None]:
        """The derivative of Σ ddx dx, with y = x / n^beta as a function of x."""
        dy, x, _ = node.inputs
        near = NeighbourSum(depth_radius=self.depth_radius)
        n = near(x * x) * self.alpha + self.bias
        power, slope = n**-self.beta, 2 * self.alpha * self.beta
        q, p = dy * x * power / n, ddx * x
        spread_q, spread_p = near(q), near(p)
        to_dy = ddx * power - slope * x * power / n * spread_p
        to_n = slope * (self.beta + 1) * spread_p * q / n - self.beta * ddx * dy * power / n
        to_x = 2 * self.alpha * x * near(to_n) - slope * (
            ddx * spread_q + dy * power / n * spread_p
        )
        return [to_dy, to_x, None]


class NeighbourSum(Op):
    """y[…, c] = the sum of x[…, c'] over |c - c'| <= depth_radius: its own transpose"""

    private = True
    signature = "input: T -> output: T; T: floating"
    depth_radius: int

    def shape(self, input: Tensor) -> TensorShape:
        return input.shape

    def numpy(self, input: Array) -> Array:
        return neighbour_sum(input, self.depth_radius)

    def loop(self, at: IndexTuple, input: Operand) -> Expr:
        def element(near: Expr) -> Expr:
            return input[(*at[:-1], near)]

        return neighbours(at[-1], input.shape[-1], self.depth_radius, element)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return NeighbourSum(depth_radius=self.depth_radius)(dy)


@public("nn.lrn", "nn.local_response_normalization")
def local_response_normalization(
    input: Any,
    depth_radius: int = 5,
    bias: float = 1,
    alpha: float = 1,
    beta: float = 0.5,
    name: str | None = None,
) -> Tensor:
    """Divide by the squares of neighbouring channels: input / (bias + alpha · Σ squares) ** beta.

    Args:
        input: a floating tensor [batch, height, width, channels].
        depth_radius: the number of neighbours on either side.
        bias, alpha, beta: the numbers of the formula.
        name: the name of the node.

    Returns:
        A tensor of the shape and dtype of `input`.

    Example:
        >>> sess.run(tf.nn.lrn(tf.ones([1, 1, 1, 3]), depth_radius=1, beta=1.0)).ravel()
        array([0.33333334, 0.25      , 0.33333334], dtype=float32)
    """
    op = LRN(depth_radius=int(depth_radius), bias=float(bias), alpha=float(alpha), beta=float(beta))
    return op(input, name=name)


# The batch normalisation of old graphs


class GlobalNormalization(Op, abstract=True):
    """The base of batch normalisation by given statistics and its gradient."""

    variance_epsilon: float
    scale_after_normalization: bool

    def factor(self, variance: Array, gamma: Array) -> tuple[Array, Array]:
        """1 / sqrt(variance + epsilon), and the scale of the result."""
        inverse = 1 / np.sqrt(variance + variance.dtype.type(self.variance_epsilon))
        return inverse, gamma if self.scale_after_normalization else np.ones_like(gamma)

    def factor_at(self, channel: Expr, v: Operand, gamma: Operand) -> tuple[Expr, Any]:
        """`factor` for one channel."""
        inverse = 1 / (v[channel] + self.variance_epsilon).sqrt()
        return inverse, gamma[channel] if self.scale_after_normalization else 1


class BatchNormWithGlobalNormalization(GlobalNormalization):
    """y = (t - m) / sqrt(v + variance_epsilon) · gamma + beta, along the last axis"""

    signature = "t: T, m: T, v: T, beta: T, gamma: T -> result: T; T: floating"

    def shape(self, t: Tensor, *parameters: Tensor) -> TensorShape:
        images = t.shape.with_rank(4)
        for vector_ in parameters:
            images[3].assert_is_compatible_with(vector_.shape.with_rank(1)[0])
        return images

    def numpy(self, t: Array, m: Array, v: Array, beta: Array, gamma: Array) -> Array:
        inverse, scale = self.factor(v, gamma)
        return (t - m) * (inverse * scale) + beta

    def loop(
        self, at: IndexTuple, t: Operand, m: Operand, v: Operand, beta: Operand, gamma: Operand
    ) -> Expr:
        inverse, scale = self.factor_at(at[-1], v, gamma)
        return (t[at] - m[at[-1]]) * (inverse * scale) + beta[at[-1]]

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor]:
        t, m, v, _, gamma = node.inputs
        op = BatchNormWithGlobalNormalizationGrad(**self.attributes)
        return list(op(t, m, v, gamma, dy))


class BatchNormWithGlobalNormalizationGrad(GlobalNormalization):
    """The gradients of the five inputs of BatchNormWithGlobalNormalization"""

    signature = (
        "t: T, m: T, v: T, gamma: T, backprop: T -> dx: T, dm: T, dv: T, db: T, dg: T; T: floating"
    )

    def shape(
        self, t: Tensor, m: Tensor, v: Tensor, gamma: Tensor, backprop: Tensor
    ) -> list[TensorShape]:
        return [t.shape.merge_with(backprop.shape), m.shape, m.shape, m.shape, gamma.shape]

    def numpy(self, t: Array, m: Array, v: Array, gamma: Array, dy: Array) -> tuple[Array, ...]:
        inverse, scale = self.factor(v, gamma)
        dx = dy * (inverse * scale)
        offset = summed(dy, (0, 1, 2))
        spread = summed(dy * (t - m), (0, 1, 2))
        dv = spread * scale * inverse**3 * v.dtype.type(-0.5)
        dg = spread * inverse if self.scale_after_normalization else np.zeros_like(gamma)
        return dx, -offset * inverse * scale, dv, offset, dg

    def loop(
        self, at: IndexTuple, t: Operand, m: Operand, v: Operand, gamma: Operand, dy: Operand
    ) -> Expr:
        channel = at[-1]
        inverse, scale = self.factor_at(channel, v, gamma)
        if at.output == 0:
            return dy[at] * (inverse * scale)

        def centred(*others: Expr) -> Expr:
            return dy[(*others, channel)] * (t[(*others, channel)] - m[channel])

        offset = loop.reduce("sum", t.shape[:-1], lambda *others: dy[(*others, channel)])
        spread = loop.reduce("sum", t.shape[:-1], centred)
        dg = spread * inverse if self.scale_after_normalization else gamma[channel] * 0
        dv = spread * scale * (inverse * inverse * inverse) * -0.5
        return (-offset * inverse * scale, dv, offset, dg)[at.output - 1]
