"""Max and average pooling over images.

The kernels loop over the taps of the window, with all axes treated alike, so data formats and
pooling across depth are not special cases. Max pooling passes gradients to the first maximum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from thalweg import errors
from thalweg.graph.known import constant_value_as_shape
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import REGISTRY, Op
from thalweg.graph.shapes import TensorShape
from thalweg.ir import loop
from thalweg.ir.expr import Expr, as_expr, constant, select
from thalweg.ir.loop import IndexTuple, Operand, widened, within
from thalweg.ops.core import filling, shaping
from thalweg.ops.nn import windows
from thalweg.ops.nn.bias import channel_axis
from thalweg.ops.nn.convolution import one_of
from thalweg.ops.nn.windows import Slide, containing, met, overlaps
from thalweg.platform import dtype_traits
from thalweg.platform.arrays import Array
from thalweg.public import public


class Pooling(Op, abstract=True):
    """The base of poolings: the window, its strides, and shapes."""

    ksize: tuple[int, ...]
    strides: tuple[int, ...]
    padding: str
    data_format: str = "NHWC"
    partner: ClassVar[str]  # the op type of the gradient

    @property
    def slides(self) -> list[Slide]:
        """The slides of the window along each axis, including batch and channels."""
        return [
            Slide(size, stride, 1, self.padding)
            for size, stride in zip(self.ksize, self.strides, strict=True)
        ]

    @property
    def disjoint(self) -> bool:
        """Whether windows do not overlap."""
        return all(k <= s for k, s in zip(self.ksize, self.strides, strict=True))

    def pooled_shape(self, x: TensorShape) -> TensorShape:
        """The static shape of the output."""
        sizes = x.with_rank(len(self.ksize)).sizes or ()
        return TensorShape.of(tuple(s.count(n) for s, n in zip(self.slides, sizes, strict=True)))

    def padded(self, x: Array, value: Any) -> Array:
        """`x` padded with `value` as the window requires."""
        return windows.pad(x, windows.all_pads(self.slides, x.shape), value)

    def views(self, padded: Array, positions: Sequence[int]) -> Iterator[Array]:
        """For each tap of the window, its elements, one per output element."""
        for _, seen in windows.taps(self.slides, positions):
            yield padded[seen]

    def scattered(self, sizes: Sequence[int], positions: Sequence[int], dtype: Any) -> Scatter:
        """Zeros of shape `sizes`, which taps add to."""
        return Scatter(self.slides, sizes, positions, dtype)

    def seen(self, x: Operand, places: Sequence[Any], taps: Sequence[Any], border: Any) -> Expr:
        """The element of a tap for a position of the window; `border` outside."""
        return x.or_else(met(self.slides, x.shape, places, taps), border)

    def to_partner(self, *inputs: Tensor) -> Tensor:
        """Apply the op of the gradient, with the same window."""
        return REGISTRY[self.partner](**self.attributes)(*inputs)

    def check_gradient(self, x: tuple[int, ...], y: tuple[int, ...]) -> None:
        """Raise unless y is the shape of pooling x."""
        wanted = self.pooled_shape(TensorShape.of(x)).sizes
        if y != wanted:
            raise ValueError(f"a gradient of shape {y} for a pooled shape of {wanted}")

    def over_windows(
        self, at: IndexTuple, positions: Sequence[int], body: Callable[[Any, Any], Expr]
    ) -> Expr:
        """The sum of the body, of position and tap, over windows that contain an element of x."""

        def part(*numbers: Expr) -> Expr:
            places, taps = containing(self.slides, at.shape, at, numbers)
            there = within([*places, *taps], [*positions, *self.ksize])
            return select(there, body(places, taps), 0)

        return loop.reduce("sum", overlaps(self.slides, at.shape), part)


class Scatter:
    """The gradient of an input under construction: `views` are written to, `result` is read."""

    def __init__(
        self, slides: Sequence[Slide], sizes: Sequence[int], positions: Sequence[int], dtype: Any
    ) -> None:
        self._pads = windows.all_pads(slides, sizes)
        self._sizes = tuple(sizes)
        self._padded = np.zeros([n + sum(p) for n, p in zip(sizes, self._pads, strict=True)], dtype)
        self.views = [self._padded[seen] for _, seen in windows.taps(slides, positions)]

    @property
    def result(self) -> Array:
        """The sum, without padding."""
        return self._padded[windows.inside(self._pads, self._sizes)]


def lowest(dtype: Any) -> Any:
    """The lowest value of `dtype`."""
    return dtype_traits.bounds(dtype)[0]


# Max pooling


class MaxPooling(Pooling, abstract=True):
    """y = the maximum of x in the window"""

    signature = "input: T -> output: T; T: real"
    laid_out = frozenset({"input", "output"})

    def shape(self, input: Tensor) -> TensorShape:
        shape = self.pooled_shape(input.shape)
        _check_depth_fits(input.shape[channel_axis(self.data_format)].value, self)
        return shape

    def numpy(self, input: Array) -> Array:
        _check_depth_fits(input.shape[channel_axis(self.data_format)], self)
        positions = windows.counts(self.slides, input.shape)
        taps = self.views(self.padded(input, lowest(input.dtype)), positions)
        largest = np.array(next(taps))
        for tap in taps:
            np.maximum(largest, tap, out=largest)
        return largest

    def loop(self, at: IndexTuple, input: Operand) -> Expr:
        border = lowest(input.dtype)
        return loop.reduce("max", self.ksize, lambda *taps: self.seen(input, at, taps, border))

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return self.to_partner(node.inputs[0], node.output, dy)


def _check_depth_fits(depth: int | None, op: Pooling) -> None:
    window = op.ksize[channel_axis(op.data_format)]
    if depth is not None and depth % window:
        raise errors.UnimplementedError(
            None,
            None,
            f"Depthwise max pooling requires the depth window to evenly divide the input depth: "
            f"{window} does not divide {depth}",
        )


class AtMaximum(Pooling, abstract=True):
    """The base of ops at the (first) maximum of x in each window."""

    signature = "orig_input: T, orig_output: T, grad: T -> output: T; T: real"
    laid_out = frozenset({"orig_input", "orig_output", "grad", "output"})

    def first_equal(self, x: Operand, y: Operand, places: Sequence[Any]) -> Expr:
        """The index of the first tap that equals the known maximum `y` of a window; of the first
        one if that is NaN, and out of range if no tap does."""
        count = math.prod(self.ksize)

        def candidate(tap: Expr) -> Expr:
            element = self.seen(x, places, loop.unravel(tap, self.ksize), lowest(x.dtype))
            return select(element < y[places], constant(count, np.int32), tap.cast(np.int32))

        return loop.reduce("min", [count], candidate)

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor]:
        x, y, _ = node.inputs
        to_grad = self.to_partner(x, y, dy)
        return [filling.zeros_like(x), filling.zeros_like(y), to_grad]


class MaxPoolingGrad(AtMaximum, abstract=True):
    """dx = dy, added at the (first) maximum of x in the window"""

    def shape(self, orig_input: Tensor, orig_output: Tensor, grad: Tensor) -> TensorShape:
        orig_output.shape.assert_is_compatible_with(grad.shape)
        return orig_input.shape.with_rank(len(self.ksize))

    def numpy(self, orig_input: Array, orig_output: Array, grad: Array) -> Array:
        positions = grad.shape
        dx = self.scattered(orig_input.shape, positions, grad.dtype)
        padded = self.padded(orig_input, lowest(orig_input.dtype))
        taps = self.views(padded, positions)
        for view, first in zip(dx.views, firsts(taps, orig_output), strict=True):
            if self.disjoint:
                np.copyto(view, grad, where=first)
            else:
                view += np.where(first, grad, grad.dtype.type(0))
        return dx.result

    def loop(
        self, at: IndexTuple, orig_input: Operand, orig_output: Operand, grad: Operand
    ) -> Expr:
        """An element sums the gradients of the windows in which it is the first maximum."""
        self.check_gradient(orig_input.shape, grad.shape)
        firsts = loop.intermediate(
            grad.shape,
            np.min_scalar_type(math.prod(self.ksize)),
            lambda *places: self.first_equal(orig_input, orig_output, places),
        )

        def part(*numbers: Expr) -> Expr:
            places, taps = containing(self.slides, at.shape, at, numbers)
            first = firsts.or_else(places, math.prod(self.ksize)).cast(np.int32)
            mine = as_expr(loop.ravel(taps, self.ksize)).cast(np.int32)
            is_mine = first.eq(mine) & within(taps, self.ksize)
            return select(is_mine, grad.or_else(places, 0), 0)

        return loop.reduce("sum", overlaps(self.slides, at.shape), part).cast(grad.dtype)


def firsts(taps: Iterator[Array], largest: Array) -> Iterator[Array]:
    """For each tap, a mask of the windows in which it is the first with the maximum.

    If the maximum is NaN, it is the first tap.
    """
    open_ = np.ones(largest.shape, np.bool_)
    for tap in taps:
        first = ~(tap < largest) & open_
        yield first
        open_ ^= first


class MaxPoolingGradGrad(AtMaximum, abstract=True):
    """y' = dx at the (first) maximum of x in the window: the adjoint of MaxPoolGrad"""

    def shape(self, orig_input: Tensor, orig_output: Tensor, grad: Tensor) -> TensorShape:
        return self.pooled_shape(orig_input.shape).merge_with(orig_output.shape)

    def numpy(self, orig_input: Array, orig_output: Array, grad: Array) -> Array:
        positions = orig_output.shape
        padded = self.padded(orig_input, lowest(orig_input.dtype))
        flags = firsts(self.views(padded, positions), orig_output)
        total = np.zeros(positions, grad.dtype)
        for tap, first in zip(self.views(self.padded(grad, 0), positions), flags, strict=True):
            total += np.where(first, tap, total.dtype.type(0))
        return total

    def loop(
        self, at: IndexTuple, orig_input: Operand, orig_output: Operand, grad: Operand
    ) -> Expr:
        self.check_gradient(grad.shape, orig_output.shape)
        first = self.first_equal(orig_input, orig_output, at)
        picked = self.seen(grad, at, loop.unravel(first, self.ksize), 0)
        return select(first < math.prod(self.ksize), picked, 0)


class MaxPool(MaxPooling):
    """y[n, i, j, c] = the maximum of x[n, i s + k, j s + l, c]"""

    partner = "MaxPoolGrad"


class MaxPoolGrad(MaxPoolingGrad):
    """dx of MaxPool"""

    partner = "MaxPoolGradGrad"


class MaxPoolGradGrad(MaxPoolingGradGrad):
    """The adjoint of MaxPoolGrad in its gradient"""

    partner = "MaxPoolGrad"


@public("nn.max_pool")
def max_pool(
    value: Any = None,
    ksize: Any = None,
    strides: Any = None,
    padding: str = "VALID",
    data_format: str = "NHWC",
    name: str | None = None,
    input: Any = None,
) -> Tensor:
    """The maxima of windows that slide over images.

    Args:
        value: images [batch, height, width, channels], or channels second as "NCHW".
        ksize: the size of the window: a number, or one per axis of `value`.
        strides: the distance between windows, likewise.
        padding: "VALID": only full windows; "SAME": ceil(size / stride) windows.
        data_format: "NHWC" or "NCHW".
        name: the name of the node.
        input: another name of `value`.

    Returns:
        A tensor of the same rank and dtype.

    Example:
        >>> image = tf.reshape(tf.range(16.0), [1, 4, 4, 1])
        >>> sess.run(tf.nn.max_pool(image, 2, 2, "VALID"))[0, :, :, 0]
        array([[ 5.,  7.],
               [13., 15.]], dtype=float32)
    """
    x = one_of("value", value, "input", input)
    op = MaxPool(**attributes(ksize, strides, padding, data_format))
    return op(x, name=name or "MaxPool")


@public("nn.max_pool2d")
def max_pool2d(
    input: Any,
    ksize: Any,
    strides: Any,
    padding: str,
    data_format: str = "NHWC",
    name: str | None = None,
) -> Tensor:
    """`max_pool` of images.

    Args:
        input: [batch, height, width, channels].
        ksize: the size of the window: a number, or one for each axis.
        strides: the distance between windows.
        padding: "VALID" or "SAME".
        data_format: "NHWC" or "NCHW".
        name: the name of the node.

    Returns:
        A tensor.

    Example:
        >>> x = tf.reshape(tf.range(4.0), [1, 2, 2, 1])
        >>> sess.run(tf.nn.max_pool2d(x, 2, 2, "VALID")).ravel()
        array([3.], dtype=float32)
    """
    return max_pool(input, ksize, strides, padding, data_format, name)


def attributes(ksize: Any, strides: Any, padding: str, data_format: str | None) -> dict[str, Any]:
    """The attributes of a pooling over images, from checked arguments."""
    layout = data_format or "NHWC"
    if layout not in ("NHWC", "NCHW"):
        raise ValueError(f"data_format must be NHWC or NCHW, not {data_format!r}")
    window = windows.per_axis("ksize", ksize, layout)
    steps = windows.per_axis("strides", strides, layout)
    check(window, steps, padding)
    depth = 1 if layout == "NCHW" else 3
    spatial = [i for i in (1, 2, 3) if i != depth]
    if window[depth] != 1:
        _check_depth_pooling(window, steps, depth, spatial)
    return {"ksize": window, "strides": steps, "padding": padding, "data_format": layout}


def check(window: Sequence[int], steps: Sequence[int], padding: str) -> None:
    """Raise unless the window is supported."""
    if padding not in ("SAME", "VALID"):
        raise ValueError(f"padding must be SAME or VALID, not {padding!r}")
    if min(window) < 1 or min(steps) < 1:
        raise ValueError(f"ksize and strides must be positive, got {window} and {steps}")
    if window[0] != 1 or steps[0] != 1:
        raise errors.UnimplementedError(
            None, None, "Pooling is not yet supported on the batch dimension."
        )


def _check_depth_pooling(
    window: Sequence[int], steps: Sequence[int], depth: int, spatial: Sequence[int]
) -> None:
    if any(window[axis] != 1 for axis in spatial):
        raise errors.UnimplementedError(
            None,
            None,
            "MaxPooling supports exactly one of pooling across depth or pooling across "
            "width/height.",
        )
    if window[depth] != steps[depth]:
        raise errors.UnimplementedError(
            None, None, "Depthwise max pooling requires the depth window to equal the depth stride."
        )


# Average pooling


class AvgPooling(Pooling, abstract=True):
    """y = the mean of x in the window, without padding"""

    signature = "value: T -> output: T; T: floating"
    laid_out = frozenset({"value", "output"})

    def shape(self, value: Tensor) -> TensorShape:
        return self.pooled_shape(value.shape)

    def numpy(self, value: Array) -> Array:
        positions = windows.counts(self.slides, value.shape)
        taps = self.views(self.padded(value, 0), positions)
        total = np.array(next(taps), np.promote_types(_wide(value.dtype), np.float32))
        for tap in taps:
            total += tap
        total /= shares(self.slides, value.shape, positions).astype(total.dtype)
        return total.astype(value.dtype, copy=False)

    def loop(self, at: IndexTuple, value: Operand) -> Expr:
        def element(*taps: Expr) -> Expr:
            return widened(self.seen(value, at, taps, 0), value.dtype)

        share = covered(self.slides, value.shape, at)
        total = loop.reduce("sum", self.ksize, element)
        return (total / share.cast(_wide(value.dtype))).cast(value.dtype)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return self.to_partner(shaping.shape(node.inputs[0]), dy)


def _wide(dtype: Any) -> Any:
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def shares(slides: Sequence[Slide], sizes: Sequence[int], positions: Sequence[int]) -> Array:
    """The number of input elements in each window; broadcasts with the output."""
    total = np.ones([1] * len(slides))
    for axis, (slide, size, count) in enumerate(zip(slides, sizes, positions, strict=True)):
        starts = np.arange(count) * slide.stride - slide.pads(size)[0]
        covered = np.minimum(starts + slide.window, size) - np.maximum(starts, 0)
        total = total * covered.reshape([-1 if i == axis else 1 for i in range(len(slides))])
    return total


def covered(slides: Sequence[Slide], sizes: Sequence[int], at: Sequence[Any]) -> Any:
    """The number of input elements in the window at a position."""
    total: Any = 1
    for slide, size, start in zip(
        slides, sizes, met(slides, sizes, at, [0] * len(at)), strict=True
    ):
        total = ((start + slide.window).min(size) - start.max(0)) * total
    return total


class AvgPoolingGrad(Pooling, abstract=True):
    """dx = dy, distributed evenly over the window"""

    signature = "orig_input_shape: int32, grad: T -> output: T; T: floating"
    laid_out = frozenset({"orig_input_shape", "grad", "output"})

    def shape(self, orig_input_shape: Tensor, grad: Tensor) -> TensorShape:
        grad.shape.assert_has_rank(len(self.ksize))
        return constant_value_as_shape(orig_input_shape).with_rank(len(self.ksize))

    def numpy(self, orig_input_shape: Array, grad: Array) -> Array:
        sizes = orig_input_shape.tolist()
        share = shares(self.slides, sizes, grad.shape).astype(_wide(grad.dtype))
        part = grad / share
        dx = self.scattered(sizes, grad.shape, part.dtype)
        for view in dx.views:
            view += part
        return dx.result.astype(grad.dtype, copy=False)

    def loop(self, at: IndexTuple, orig_input_shape: Operand, grad: Operand) -> Expr:
        self.check_gradient(at.shape, grad.shape)

        def part(places: Any, taps: Any) -> Expr:
            share = covered(self.slides, at.shape, places).cast(_wide(grad.dtype))
            return widened(grad[places], grad.dtype) / share

        return self.over_windows(at, grad.shape, part).cast(grad.dtype)

    def gradient(self, node: Node, ddx: Tensor) -> list[Tensor | None]:
        return [None, self.to_partner(ddx)]


class AvgPool(AvgPooling):
    """y[n, i, j, c] = the mean of x[n, i s + k, j s + l, c]"""

    partner = "AvgPoolGrad"


class AvgPoolGrad(AvgPoolingGrad):
    """dx of AvgPool"""

    partner = "AvgPool"


@public("nn.avg_pool", "nn.avg_pool2d")
def avg_pool(
    value: Any = None,
    ksize: Any = None,
    strides: Any = None,
    padding: str = "VALID",
    data_format: str = "NHWC",
    name: str | None = None,
    input: Any = None,
) -> Tensor:
    """The means of windows that slide over images; padding is excluded.

    Args:
        value: images [batch, height, width, channels], or channels second as "NCHW".
        ksize: the size of the window: a number, or one per axis of `value`.
        strides: the distance between windows, likewise.
        padding: "VALID": only full windows; "SAME": ceil(size / stride) windows.
        data_format: "NHWC" or "NCHW".
        name: the name of the node.
        input: another name of `value`.

    Returns:
        A tensor of the same rank and dtype.

    Example:
        >>> image = tf.reshape(tf.range(16.0), [1, 4, 4, 1])
        >>> sess.run(tf.nn.avg_pool(image, 2, 2, "VALID"))[0, :, :, 0]
        array([[ 2.5,  4.5],
               [10.5, 12.5]], dtype=float32)
    """
    x = one_of("value", value, "input", input)
    op = AvgPool(**attributes(ksize, strides, padding, data_format))
    return op(x, name=name or "AvgPool")
