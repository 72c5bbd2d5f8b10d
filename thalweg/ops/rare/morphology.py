"""Grayscale morphology: dilation and erosion of images by structuring functions.

Dilation is a convolution over the (max, +) semiring; its gradients are those of the first tap that
attains the maximum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import Size, TensorShape
from thalweg.ir import loop
from thalweg.ir.expr import Expr, select
from thalweg.ir.loop import IndexTuple, Operand, within
from thalweg.ops.arrays import transposing
from thalweg.ops.math import arithmetic
from thalweg.ops.nn import pooling, windows
from thalweg.ops.nn.convolution import one_of
from thalweg.ops.nn.windows import Slide, containing, met, overlaps
from thalweg.platform import dtype_traits
from thalweg.platform.arrays import Array
from thalweg.public import public


class Morphology(Op, abstract=True):
    """The base of dilation and its gradients."""

    strides: tuple[int, ...]
    rates: tuple[int, ...]
    padding: str

    def slides(self, window: Sequence[Size]) -> list[Slide]:
        """The strides, rates and padding of the window along rows and columns."""
        moves = zip(window, self.strides[1:3], self.rates[1:3], strict=True)
        return [Slide(size or 1, stride, rate, self.padding) for size, stride, rate in moves]

    def output_shape(self, x: TensorShape, w: TensorShape) -> TensorShape:
        """The static shape of y."""
        sizes, window = x.with_rank(4).as_list(), w.with_rank(3).as_list()
        channels = x.with_rank(4)[3].merge_with(w.with_rank(3)[2]).value
        moves = zip(self.slides(window[:2]), sizes[1:3], window[:2], strict=True)
        spatial = [
            slide.count(size) if tap is not None or self.padding == "SAME" else None
            for slide, size, tap in moves
        ]
        return TensorShape.of((sizes[0], *spatial, channels))

    def taps(self, x: Array, w: Array) -> tuple[tuple[int, ...], Iterator[Array]]:
        """The shape of y, and for each tap the sums x + w."""
        slides = self.slides(w.shape[:2])
        positions = windows.counts(slides, x.shape[1:3])
        padded = windows.pad(x, self.pads(x.shape, slides), _lowest(x.dtype))
        sums = (
            padded[(slice(None), *seen)] + w[index]
            for index, seen in windows.taps(slides, positions)
        )
        return (len(x), *positions, x.shape[-1]), sums

    def check_gradient(self, x: Operand, w: Operand, dy: Operand) -> None:
        """Raise unless dy has the shape of y."""
        wanted = self.output_shape(TensorShape.of(x.shape), TensorShape.of(w.shape)).sizes
        if dy.shape != wanted:
            raise ValueError(f"out_backprop has shape {dy.shape}, the output {wanted}")

    def pads(self, sizes: Sequence[int], slides: Sequence[Slide]) -> list[tuple[int, int]]:
        """The padding of the images."""
        return [(0, 0), *windows.all_pads(slides, sizes[1:3]), (0, 0)]

    def sum_at(self, x: Operand, w: Operand, place: Sequence[Any], taps: Sequence[Any]) -> Expr:
        """The sum x + w of one tap at a position of y."""
        batch, *places, channel = place
        wide = _wide_type(x.dtype)
        seen = met(self.slides(w.shape[:2]), x.shape[1:3], places, taps)
        inside = within(seen, x.shape[1:3])
        element = select(inside, x[(batch, *seen, channel)].cast(wide), _lowest(wide))
        return element + w[(*taps, channel)].cast(wide)

    def winner(self, x: Operand, w: Operand, place: Sequence[Any]) -> Expr:
        """The number of the first tap that attains the maximum at a position of y."""

        def candidate(tap: Expr) -> Expr:
            return self.sum_at(x, w, place, loop.unravel(tap, w.shape[:2]))

        return loop.reduce("argmax", [w.shape[0] * w.shape[1]], candidate)


def _wide_type(dtype: Any) -> Any:
    return _wide(np.zeros((), dtype)).dtype


def _wide(x: Array) -> Array:
    """Integers as int64, so that padding is below every element; narrow floats as float32."""
    if x.dtype.kind in "iu":
        return x.astype(np.int64)
    return dtype_traits.widened(x)


def _lowest(dtype: Any) -> Any:
    return np.iinfo(dtype).min // 2 if np.dtype(dtype).kind == "i" else -np.inf


def _largest(shape: tuple[int, ...], sums: Iterator[Array]) -> Array:
    largest = np.broadcast_to(next(sums), shape).copy()
    for candidate in sums:
        np.maximum(largest, candidate, out=largest)
    return largest


class Dilation2D(Morphology):
    """y[n, i, j, c] = max over k, l of x[n, i s + k r, j s + l r, c] + w[k, l, c]"""

    signature = "input: T, filter: T -> output: T; T: real"

    def shape(self, input: Tensor, filter: Tensor) -> TensorShape:
        return self.output_shape(input.shape, filter.shape)

    def numpy(self, input: Array, filter: Array) -> Array:
        largest = _largest(*self.taps(_wide(input), _wide(filter)))
        return largest.astype(input.dtype, copy=False)

    def loop(self, at: IndexTuple, input: Operand, filter: Operand) -> Expr:
        def candidate(*taps: Expr) -> Expr:
            return self.sum_at(input, filter, at, taps)

        return loop.reduce("max", filter.shape[:2], candidate).cast(input.dtype)

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor]:
        x, w = node.inputs
        return [
            Dilation2DBackpropInput(**self.attributes)(x, w, dy),
            Dilation2DBackpropFilter(**self.attributes)(x, w, dy),
        ]


class Dilation2DBackpropInput(Morphology):
    """dx = dy, added at the element that attains the maximum"""

    signature = "input: T, filter: T, out_backprop: T -> in_backprop: T; T: real"

    def shape(self, input: Tensor, filter: Tensor, out_backprop: Tensor) -> TensorShape:
        return input.shape

    def numpy(self, input: Array, filter: Array, out_backprop: Array) -> Array:
        x, w, dy = _wide(input), _wide(filter), _wide(out_backprop)
        slides = self.slides(w.shape[:2])
        pads = self.pads(x.shape, slides)
        padded = np.zeros([n + sum(p) for n, p in zip(x.shape, pads, strict=True)], dy.dtype)
        seen_by_tap = windows.taps(slides, dy.shape[1:3])
        for (_, seen), first in zip(seen_by_tap, _winners(self, x, w), strict=True):
            padded[(slice(None), *seen)] += dy * first
        return padded[windows.inside(pads, x.shape)].astype(input.dtype, copy=False)

    def loop(self, at: IndexTuple, input: Operand, filter: Operand, out_backprop: Operand) -> Expr:
        self.check_gradient(input, filter, out_backprop)
        batch, *elements, channel = at
        window, positions = filter.shape[:2], out_backprop.shape[1:3]
        slides = self.slides(window)

        def part(*numbers: Expr) -> Expr:
            places, taps = containing(slides, input.shape[1:3], elements, numbers)
            place = (batch, *places, channel)
            won = self.winner(input, filter, place).eq(loop.ravel(taps, window))
            there = within([*places, *taps], [*positions, *window])
            return select(there & won, out_backprop[place], 0)

        return loop.reduce("sum", overlaps(slides, input.shape[1:3]), part)


def _winners(op: Morphology, x: Array, w: Array) -> Iterator[Array]:
    """For each tap a mask of the positions at which it is the first to attain the maximum."""
    largest = _largest(*op.taps(x, w))
    return pooling.firsts(op.taps(x, w)[1], largest)


class Dilation2DBackpropFilter(Morphology):
    """dw = the sum of dy over the positions at which the tap attains the maximum"""

    signature = "input: T, filter: T, out_backprop: T -> filter_backprop: T; T: real"

    def shape(self, input: Tensor, filter: Tensor, out_backprop: Tensor) -> TensorShape:
        return filter.shape

    def numpy(self, input: Array, filter: Array, out_backprop: Array) -> Array:
        x, w, dy = _wide(input), _wide(filter), _wide(out_backprop)
        totals = [(dy * first).sum((0, 1, 2)) for first in _winners(self, x, w)]
        return np.stack(totals).reshape(w.shape).astype(input.dtype, copy=False)

    def loop(self, at: IndexTuple, input: Operand, filter: Operand, out_backprop: Operand) -> Expr:
        self.check_gradient(input, filter, out_backprop)
        taps, (channel,) = at.split(2)
        number = loop.ravel(taps, filter.shape[:2])

        def part(*places: Expr) -> Expr:
            place = (*places, channel)
            won = self.winner(input, filter, place).eq(number)
            return select(won, out_backprop[place], 0)

        return loop.reduce("sum", out_backprop.shape[:3], part)


@public("nn.dilation2d")
def dilation2d(
    input: Any,
    filter: Any = None,
    strides: Sequence[int] | None = None,
    rates: Sequence[int] | None = None,
    padding: str | None = None,
    name: str | None = None,
    filters: Any = None,
    dilations: Sequence[int] | None = None,
) -> Tensor:
    """The grayscale dilation of images [batch, height, width, c] by a function [k, l, c].

    Args:
        input: [batch, height, width, channels].
        filter, filters: [rows, columns, channels], by the old or new name.
        strides: [1, rows, columns, 1]: the distance between windows.
        rates, dilations: [1, rows, columns, 1]: the distance between the elements of a window.
        padding: "VALID" or "SAME".
        name: the name of the node.

    Returns:
        A tensor: the maximum of the sums of pixel and filter in each window.

    Example:
        >>> x, ones = tf.reshape(tf.range(4.0), [1, 2, 2, 1]), [1, 1, 1, 1]
        >>> sess.run(tf.nn.dilation2d(x, tf.zeros([2, 2, 1]), ones, ones, "VALID")).ravel()
        array([3.], dtype=float32)
    """
    w = one_of("filter", filter, "filters", filters)
    apart = one_of("rates", rates, "dilations", dilations)
    op = Dilation2D(
        strides=_per_axis("strides", strides),
        rates=_per_axis("rates", apart),
        padding=_checked_padding(padding),
    )
    return op(input, w, name=name)


def _per_axis(what: str, values: Any) -> tuple[int, ...]:
    given = tuple(int(v) for v in values)
    if len(given) != 4 or given[0] != 1 or given[3] != 1 or min(given) < 1:
        raise ValueError(f"{what} must be [1, rows, columns, 1] with sizes above 0, not {values}")
    return given


def _checked_padding(padding: str | None) -> str:
    if padding not in ("SAME", "VALID"):
        raise ValueError(f"padding must be SAME or VALID, not {padding!r}")
    return padding


@public("nn.erosion2d")
def erosion2d(
    value: Any,
    kernel: Any,
    strides: Sequence[int],
    rates: Sequence[int],
    padding: str,
    name: str | None = None,
) -> Tensor:
    """The grayscale erosion of images: the negated dilation of negated images by the mirrored
    function."""
    with name_scope(name, "erosion2d", [value, kernel]) as scope:
        mirrored = transposing.reverse(kernel, [0, 1])
        dilated = dilation2d(arithmetic.negative(value), mirrored, strides, rates, padding)
        return arithmetic.negative(dilated, name=scope)
