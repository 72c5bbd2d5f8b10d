"""Depthwise convolution: each channel has its own filters; and its two adjoints.

y[n, i, j, c · m + q] = sum over taps of x[n, i s + k d, j s + l d, c] w[k, l, c, q], with m filters
per channel. As with full convolutions, each op's gradients are the other two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg.graph.node import Tensor
from thalweg.graph.shapes import Size
from thalweg.ir import loop
from thalweg.ir.expr import Expr
from thalweg.ops.core import shaping
from thalweg.ops.nn import windows
from thalweg.ops.nn.convolution import Convolution, Forward, ToFilter, ToInput, attributes
from thalweg.ops.nn.windows import Slide
from thalweg.platform.arrays import Array
from thalweg.public import public

_FAMILY = (
    "DepthwiseConv2dNative",
    "DepthwiseConv2dNativeBackpropInput",
    "DepthwiseConv2dNativeBackpropFilter",
)


class Depthwise(Convolution, abstract=True):
    """The base of the three ops: channel c of x yields the channels c · m … c · m + m - 1 of y."""

    family = _FAMILY

    def output_channels(self, window: Sequence[Size]) -> Size:
        multiplier, channels = window[-1], window[-2]
        return None if multiplier is None or channels is None else multiplier * channels

    def output_channel(self, filter: Sequence[int], channel: Any, last: Any) -> Any:
        return channel * filter[-1] + last


class DepthwiseConv2dNative(Depthwise, Forward):
    """y of x and w, separately for each channel"""

    def correlate(self, x: Array, w: Array, slides: list[Slide]) -> Array:
        positions = windows.counts(slides, x.shape[1:-1])
        pads = [(0, 0), *windows.all_pads(slides, x.shape[1:-1]), (0, 0)]
        padded = windows.pad(x, pads)
        y = np.zeros((len(x), *positions, *w.shape[-2:]), x.dtype)
        for index, seen in windows.taps(slides, positions):
            y += padded[(slice(None), *seen)][..., None] * w[index]
        return y.reshape(len(x), *positions, w.shape[-2] * w.shape[-1])

    def summed_channels(self, filter: tuple[int, ...]) -> tuple[int, ...]:
        return ()

    def filter_channels(
        self, filter: tuple[int, ...], output: Expr, *summed: Expr
    ) -> tuple[Any, ...]:
        return loop.unravel(output, filter[-2:])


class DepthwiseConv2dNativeBackpropInput(Depthwise, ToInput):
    """dx of DepthwiseConv2dNative"""

    def adjoint(self, sizes: Sequence[int], w: Array, dy: Array, slides: list[Slide]) -> Array:
        positions = dy.shape[1:-1]
        pads = [(0, 0), *windows.all_pads(slides, sizes), (0, 0)]
        shape = (len(dy), *sizes, w.shape[-2])
        padded = np.zeros([n + sum(p) for n, p in zip(shape, pads, strict=True)], dy.dtype)
        split = dy.reshape(*dy.shape[:-1], *w.shape[-2:])
        for index, seen in windows.taps(slides, positions):
            padded[(slice(None), *seen)] += np.einsum("...cm,cm->...c", split, w[index])
        return padded[windows.inside(pads, shape)]


class DepthwiseConv2dNativeBackpropFilter(Depthwise, ToFilter):
    """dw of DepthwiseConv2dNative"""

    def adjoint(self, x: Array, dy: Array, slides: list[Slide]) -> Array:
        positions, channels = dy.shape[1:-1], x.shape[-1]
        pads = [(0, 0), *windows.all_pads(slides, x.shape[1:-1]), (0, 0)]
        padded = windows.pad(x, pads)
        split = dy.reshape(*dy.shape[:-1], channels, dy.shape[-1] // max(channels, 1))
        dw = np.empty((*(s.window for s in slides), *split.shape[-2:]), x.dtype)
        for index, seen in windows.taps(slides, positions):
            tap = padded[(slice(None), *seen)]
            dw[index] = np.einsum("nhwc,nhwcm->cm", tap, split)
        return dw


@public("nn.depthwise_conv2d_native")
def depthwise_conv2d_native(
    input: Any,
    filter: Any,
    strides: Any,
    padding: str | Sequence[Any],
    data_format: str = "NHWC",
    dilations: Any = (1, 1, 1, 1),
    name: str | None = None,
) -> Tensor:
    """The convolution of each channel of images with its own filters [k, l, in, multiplier]."""
    op = DepthwiseConv2dNative(**attributes(2, strides, padding, data_format, dilations))
    return op(input, filter, name=name)


@public("nn.depthwise_conv2d_native_backprop_input", "nn.depthwise_conv2d_backprop_input")
def depthwise_conv2d_native_backprop_input(
    input_sizes: Any,
    filter: Any,
    out_backprop: Any,
    strides: Any,
    padding: str | Sequence[Any],
    data_format: str = "NHWC",
    dilations: Any = (1, 1, 1, 1),
    name: str | None = None,
) -> Tensor:
    """The gradient of a depthwise convolution's input, which has shape `input_sizes`."""
    op = DepthwiseConv2dNativeBackpropInput(
        **attributes(2, strides, padding, data_format, dilations)
    )
    return op(shaping.shape_tensor(input_sizes), filter, out_backprop, name=name)


@public("nn.depthwise_conv2d_native_backprop_filter", "nn.depthwise_conv2d_backprop_filter")
def depthwise_conv2d_native_backprop_filter(
    input: Any,
    filter_sizes: Any,
    out_backprop: Any,
    strides: Any,
    padding: str | Sequence[Any],
    data_format: str = "NHWC",
    dilations: Any = (1, 1, 1, 1),
    name: str | None = None,
) -> Tensor:
    """The gradient of a depthwise convolution's filter, which has shape `filter_sizes`."""
    op = DepthwiseConv2dNativeBackpropFilter(
        **attributes(2, strides, padding, data_format, dilations)
    )
    return op(input, shaping.shape_tensor(filter_sizes), out_backprop, name=name)
