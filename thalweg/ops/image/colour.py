"""Colour spaces and contrast."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg import errors
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape
from thalweg.ir.expr import Expr, select
from thalweg.ir.loop import IndexTuple, Operand
from thalweg.ops.arrays import joining, marking, searching, splitting, transposing
from thalweg.ops.core import casting
from thalweg.ops.math import arithmetic, compare, division, reduce
from thalweg.platform.arrays import Array
from thalweg.public import public


class ColourMap(Op, abstract=True):
    """The base of functions of the three channels of each pixel."""

    signature = "images: T -> output: T; T: floating"

    def shape(self, images: Tensor) -> TensorShape:
        shape = images.shape.with_rank_at_least(1)
        if shape.sizes is not None and shape.sizes[-1] not in (None, 3):
            raise ValueError(f"the last dimension must be 3 channels, got {shape}")
        return shape[:-1].concatenate([3])

    def loop(self, at: IndexTuple, images: Operand) -> Expr:
        pixel, (channel,) = at.split(at.rank - 1)
        first, second, third = (images[(*pixel, k)] for k in range(3))
        return self.mapped(channel, first, second, third).cast(images.dtype)

    def mapped(self, channel: Expr, first: Expr, second: Expr, third: Expr) -> Expr:
        """One channel of a pixel, from its three."""
        raise TypeError(f"{self.type_name} does not say what it maps to")


def _check_channels(images: Array) -> None:
    if images.shape[-1] != 3:
        raise errors.invalid(f"input must have 3 channels but instead has {images.shape[-1]}")


class RGBToHSV(ColourMap):
    """Red, green, blue in [0, 1] to hue, saturation, value in [0, 1]."""

    def numpy(self, images: Array) -> Array:
        _check_channels(images)
        red, green, blue = images[..., 0], images[..., 1], images[..., 2]
        value = images.max(-1)
        spread = value - images.min(-1)
        divisor = np.where(spread > 0, spread * 6, 1)
        hue = np.where(
            value == red,
            (green - blue) / divisor,
            np.where(
                value == green, (blue - red) / divisor + 1 / 3, (red - green) / divisor + 2 / 3
            ),
        )
        hue = np.where(spread > 0, np.where(hue < 0, hue + 1, hue), 0)
        saturation = np.where(value > 0, spread / np.where(value > 0, value, 1), 0)
        return np.stack([hue, saturation, value], -1).astype(images.dtype)

    def mapped(self, channel: Expr, red: Expr, green: Expr, blue: Expr) -> Expr:
        value = red.max(green).max(blue)
        spread = value - red.min(green).min(blue)
        sixth = spread * 6
        sector = select(
            value.eq(red),
            (green - blue) / sixth,
            select(value.eq(green), (blue - red) / sixth + 1 / 3, (red - green) / sixth + 2 / 3),
        )
        hue = select(spread > 0, select(sector < 0, sector + 1, sector), 0)
        saturation = select(value > 0, spread / value, 0)
        return select(channel.eq(0), hue, select(channel.eq(1), saturation, value))

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        """Of equal channels, the first is the brightest and the last the darkest."""
        x = node.inputs[0]
        brightest = _mark(searching.argmax(x, -1), x)
        darkest = _mark(2 - searching.argmin(transposing.reverse(x, [-1]), -1), x)
        value, least = _chosen(brightest, x), _chosen(darkest, x)
        spread = value - least
        # hue = third of the brightest + (next channel - the one after it) / (6 spread)
        difference = _chosen(brightest, _next(x, 1) - _next(x, 2))
        slope = _next(brightest, -1) - _next(brightest, -2)
        to_hue = division.div_no_nan(slope, 6.0 * spread) - division.div_no_nan(
            difference * (brightest - darkest), 6.0 * spread * spread
        )
        # saturation = 1 - least / value
        to_saturation = division.div_no_nan(least * brightest, value * value) - division.div_no_nan(
            darkest, value
        )
        seen = casting.cast(value > 0, x.dtype)
        hue, saturation, third = splitting.split(dy, 3, -1)
        within = casting.cast(x > 0, x.dtype)
        return seen * (hue * to_hue + saturation * to_saturation * within) + third * brightest


def _mark(channel: Tensor, like: Tensor) -> Tensor:
    """1 at a channel of each pixel, 0 at the others."""
    return marking.one_hot(channel, 3, dtype=like.dtype.base_dtype)


def _chosen(marks: Tensor, x: Tensor) -> Tensor:
    """The marked channel, as the only one."""
    return reduce.reduce_sum(marks * x, [-1], keep_dims=True)


def _next(x: Tensor, step: int) -> Tensor:
    """The channels rotated by `step`."""
    return transposing.roll(x, -step, -1)


class HSVToRGB(ColourMap):
    """Hue, saturation, value in [0, 1] to red, green, blue in [0, 1]."""

    def numpy(self, images: Array) -> Array:
        _check_channels(images)
        hue, saturation, value = images[..., 0], images[..., 1], images[..., 2]
        wheel = hue * 6
        red = np.clip(np.abs(wheel - 3) - 1, 0, 1)
        green = np.clip(2 - np.abs(wheel - 2), 0, 1)
        blue = np.clip(2 - np.abs(wheel - 4), 0, 1)
        pure = np.stack([red, green, blue], -1)
        mixed = (1 - saturation[..., None]) + saturation[..., None] * pure
        return (mixed * value[..., None]).astype(images.dtype)

    def mapped(self, channel: Expr, hue: Expr, saturation: Expr, value: Expr) -> Expr:
        wheel = hue * 6
        red, green, blue = (wheel - 3).abs() - 1, 2 - (wheel - 2).abs(), 2 - (wheel - 4).abs()
        pure = select(channel.eq(0), red, select(channel.eq(1), green, blue)).max(0).min(1)
        return ((1 - saturation) + saturation * pure) * value

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        hue, saturation, value = splitting.split(node.inputs[0], 3, -1)
        kind = hue.dtype.as_numpy_dtype
        side = hue * 6.0 - np.array([3, 2, 4], kind)
        sign = np.array([1, -1, -1], kind)
        ramp = abs(side) * sign + np.array([-1, 2, 2], kind)
        pure = arithmetic.clip_by_value(ramp, 0.0, 1.0)
        rising = casting.cast(compare.equal(ramp, pure), hue.dtype)
        to_hue = value * saturation * (6.0 * sign * arithmetic.sign(side) * rising)
        parts = [to_hue, value * (pure - 1.0), 1.0 - saturation + saturation * pure]
        return joining.concat([_sum(dy * part) for part in parts], -1)


def _sum(x: Tensor) -> Tensor:
    return reduce.reduce_sum(x, [-1], keep_dims=True)


@public("image.rgb_to_hsv")
def rgb_to_hsv(images: Any, name: str | None = None) -> Tensor:
    """RGB images as hue, saturation and value.

    Args:
        images: [..., 3] in [0, 1], floating.
        name: the name of the node.

    Returns:
        A tensor of the same shape and dtype.

    Example:
        >>> sess.run(tf.image.rgb_to_hsv([[[0.0, 1.0, 0.0]]]))
        array([[[0.33333334, 1.        , 1.        ]]], dtype=float32)
    """
    return RGBToHSV()(images, name=name)


@public("image.hsv_to_rgb")
def hsv_to_rgb(images: Any, name: str | None = None) -> Tensor:
    """Hue, saturation and value as RGB images.

    Args:
        images: [..., 3] in [0, 1], floating.
        name: the name of the node.

    Returns:
        A tensor of the same shape and dtype.

    Example:
        >>> sess.run(tf.image.hsv_to_rgb([[[0.0, 0.0, 0.5]]]))
        array([[[0.5, 0.5, 0.5]]], dtype=float32)
    """
    return HSVToRGB()(images, name=name)
