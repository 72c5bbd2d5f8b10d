"""Convolutions in two and three dimensions: the correlation and its two adjoints, each an op.

y = conv(x, w) is linear in x and in w, so its gradients are the adjoints, and the gradients of
each of the three ops are the other two. So derivatives of all orders exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from thalweg import errors
from thalweg.graph.known import constant_value_as_shape
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import REGISTRY, Op
from thalweg.graph.shapes import Size, TensorShape
from thalweg.ir import loop
from thalweg.ir.expr import Expr, select
from thalweg.ir.loop import IndexTuple, Operand, widened, within
from thalweg.ops.core import shaping
from thalweg.ops.nn import correlate
from thalweg.ops.nn.packed_channels import PackedChannels
from thalweg.ops.nn.windows import Slide, containing, met, overlaps, per_axis
from thalweg.platform import dtype_traits
from thalweg.platform.arrays import Array
from thalweg.public import public


class Convolution(Op, abstract=True):
    """The base of the three ops of a family: slides of the window, and the data format."""

    strides: tuple[int, ...]
    padding: str
    explicit_paddings: tuple[int, ...] = ()
    data_format: str = "NHWC"
    dilations: tuple[int, ...] = (1, 1, 1, 1)
    #: the types of the op linear in input and filter, and of its adjoints in each
    family: ClassVar[tuple[str, str, str]]

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return len(self.data_format) - 2

    @property
    def _first(self) -> int:
        """The first spatial axis."""
        return 2 if self.data_format.startswith("NC") else 1

    def spatial(self, full: Sequence[Any]) -> tuple[Any, ...]:
        """The entries of the spatial axes, of a list with one for each axis."""
        return tuple(full[self._first : self._first + self.rank])

    def slides(self, window: Sequence[Size]) -> list[Slide]:
        """The slides of the window along each spatial axis; unknown sizes are treated as 1."""
        return [
            Slide(size or 1, stride, dilation, padding)
            for size, stride, dilation, padding in zip(
                window,
                self.spatial(self.strides),
                self.spatial(self.dilations),
                self.spatial(self._paddings()),
                strict=True,
            )
        ]

    def _paddings(self) -> list[Any]:
        if self.padding != "EXPLICIT":
            return [self.padding] * (self.rank + 2)
        given = self.explicit_paddings
        return list(zip(given[::2], given[1::2], strict=True))

    def full(self, batch: Any, sizes: Sequence[Any], channels: Any) -> tuple[Any, ...]:
        """A shape in this op's data format."""
        if self._first == 2:
            return (batch, channels, *sizes)
        return (batch, *sizes, channels)

    def parts(self, full: Sequence[Any]) -> tuple[Any, tuple[Any, ...], Any]:
        """Batch, spatial sizes and channels of a shape in this op's data format."""
        return full[0], self.spatial(full), full[1 if self._first == 2 else -1]

    def channels_last(self, x: Array) -> Array:
        """`x` for the kernels: channels last, floats of at least 32 bits."""
        wide = dtype_traits.widened(x)
        return np.ascontiguousarray(np.moveaxis(wide, 1, -1)) if self._first == 2 else wide

    def restored(self, x: Array, dtype: Any) -> Array:
        """A kernel's result in this op's data format and dtype."""
        moved = np.moveaxis(x, -1, 1) if self._first == 2 else x
        return moved.astype(dtype, copy=False)

    def partners(self) -> list[Op]:
        """The op and its two adjoints, with the attributes of this one."""
        return [REGISTRY[name](**self.attributes) for name in self.family]

    def output_shape(self, x: TensorShape, w: TensorShape) -> TensorShape:
        """The static shape of y."""
        sizes = x.with_rank(self.rank + 2).as_list()
        window = w.with_rank(self.rank + 2).as_list()
        batch, spatial, channels = self.parts(sizes)
        if None not in (channels, window[-2]) and channels != window[-2]:
            raise ValueError(f"Dimensions must be equal, but are {channels} and {window[-2]}")
        known = [
            slide.count(size) if tap is not None or self.padding == "SAME" else None
            for slide, size, tap in zip(self.slides(window[:-2]), spatial, window, strict=False)
        ]
        return TensorShape.of(self.full(batch, known, self.output_channels(window)))

    def output_channels(self, window: Sequence[Size]) -> Size:
        """The channels of y."""
        return window[-1]

    def output_channel(self, filter: Sequence[int], channel: Any, last: Any) -> Any:
        """The channel of y that filter element [..., channel, last] adds to."""
        return last

    def can_pack(self, filter: Sequence[int], multiple: int) -> bool:
        """Whether channels can be packed: images have fewer than are read together, all are summed,
        and windows are not dilated."""
        summed = self.output_channels(filter) == filter[-1]
        return summed and filter[-2] < multiple and max(self.dilations) == 1

    def packed(
        self, multiple: int, x: Operand, filter: Sequence[int], positions: tuple[int, ...]
    ) -> PackedChannels:
        """The convolution over images with packed channels."""
        sizes, slides = self.spatial(x.shape), self.slides(filter[:-2])
        return PackedChannels(slides, x, sizes, positions, filter[-2], multiple, self.full)

    def check_gradient(self, x: Sequence[int], w: Sequence[int], dy: Sequence[int]) -> None:
        """Raise unless dy has the shape of y."""
        wanted = self.output_shape(TensorShape.of(tuple(x)), TensorShape.of(tuple(w))).sizes
        if wanted != tuple(dy):
            raise errors.invalid(
                f"{self.type_name}: out_backprop has shape {list(dy)}, but an input of shape "
                f"{list(x)} and a filter of shape {list(w)} give {list(wanted or ())}"
            )


class Forward(Convolution, abstract=True):
    """y = conv(x, w)"""

    signature = "input: T, filter: T -> output: T; T: floating"
    laid_out = frozenset({"input", "output"})

    def shape(self, input: Tensor, filter: Tensor) -> TensorShape:
        return self.output_shape(input.shape, filter.shape)

    def numpy(self, input: Array, filter: Array) -> Array:
        _check_depth(self, input, filter)
        x, w = self.channels_last(input), dtype_traits.widened(filter)
        return self.restored(self.correlate(x, w, self.slides(w.shape[:-2])), input.dtype)

    def correlate(self, x: Array, w: Array, slides: list[Slide]) -> Array:
        """The kernel, on arrays with channels last."""
        return correlate.correlate(x, w, slides)

    def loop(self, at: IndexTuple, input: Operand, filter: Operand) -> Expr:
        batch, places, output = self.parts(at)
        slides, sizes = self.slides(filter.shape[:-2]), self.spatial(input.shape)
        extents = [*filter.shape[:-2], *self.summed_channels(filter.shape)]

        def product(*index: Expr) -> Expr:
            taps, summed = index[: self.rank], index[self.rank :]
            channels = self.filter_channels(filter.shape, output, *summed)
            seen = met(slides, sizes, places, taps)
            x = input.or_else(self.full(batch, seen, channels[0]), 0)
            return widened(x, input.dtype) * widened(filter[(*taps, *channels)], filter.dtype)

        return loop.reduce("sum", extents, product).cast(input.dtype)

    def packed_loop(
        self, multiple: int, at: IndexTuple, input: Operand, filter: Operand
    ) -> Expr | None:
        """The loop over an image with packed channels; None if the image has enough channels."""
        if not self.can_pack(filter.shape, multiple):
            return None
        batch, places, output = self.parts(at)
        form = self.packed(multiple, input, filter.shape, self.spatial(at.shape))
        return form.forward(batch, places, output, filter)

    def summed_channels(self, filter: tuple[int, ...]) -> tuple[int, ...]:
        """The extents of the channels that are summed for one channel of y."""
        return filter[-2:-1]

    def filter_channels(
        self, filter: tuple[int, ...], output: Expr, *summed: Expr
    ) -> tuple[Any, ...]:
        """The last two indices of the filter for a channel of y and the summed ones of x."""
        return *summed, output

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor]:
        x, w = node.inputs
        _, to_input, to_filter = self.partners()
        return [
            to_input(shaping.shape(x), w, dy),
            to_filter(x, shaping.shape(w), dy),
        ]


def _check_depth(op: Convolution, x: Array, w: Array) -> None:
    if x.ndim != op.rank + 2 or w.ndim != op.rank + 2:
        raise errors.invalid(
            f"input and filter must be {op.rank + 2}-dimensional, got shapes {list(x.shape)} and "
            f"{list(w.shape)}"
        )
    channels = op.parts(x.shape)[2]
    if channels != w.shape[-2]:
        raise errors.invalid(
            f"input and filter must have the same depth: {channels} vs {w.shape[-2]}"
        )


class ToInput(Convolution, abstract=True):
    """dx = the adjoint of conv in x, applied to dy"""

    signature = "input_sizes: I, filter: T, out_backprop: T -> output: T; T: floating, I: index"
    laid_out = frozenset({"input_sizes", "out_backprop", "output"})

    def shape(self, input_sizes: Tensor, filter: Tensor, out_backprop: Tensor) -> TensorShape:
        known = constant_value_as_shape(input_sizes).with_rank(self.rank + 2)
        out_backprop.shape.assert_has_rank(self.rank + 2)
        self.output_shape(known, filter.shape)  # checks the channels; sizes are checked at run time
        return known

    def numpy(self, input_sizes: Array, filter: Array, out_backprop: Array) -> Array:
        sizes: list[int] = np.asarray(input_sizes).tolist()
        self.check_gradient(sizes, filter.shape, out_backprop.shape)
        w, dy = dtype_traits.widened(filter), self.channels_last(out_backprop)
        dx = self.adjoint(self.spatial(sizes), w, dy, self.slides(w.shape[:-2]))
        return self.restored(dx, out_backprop.dtype)

    def adjoint(self, sizes: Sequence[int], w: Array, dy: Array, slides: list[Slide]) -> Array:
        """The kernel, on arrays with channels last."""
        return correlate.input_adjoint(sizes, w, dy, slides)

    def loop(
        self, at: IndexTuple, input_sizes: Operand, filter: Operand, out_backprop: Operand
    ) -> Expr:
        self.check_gradient(at.shape, filter.shape, out_backprop.shape)
        batch, elements, channel = self.parts(at)
        slides = self.slides(filter.shape[:-2])

        def product(*index: Expr) -> Expr:
            *numbers, last = index
            places, taps = containing(slides, self.spatial(at.shape), elements, numbers)
            output = self.output_channel(filter.shape, channel, last)
            dy = out_backprop.or_else(self.full(batch, places, output), 0)
            # An infinite dy has no effect outside of the taps.
            dy = select(within(taps, filter.shape[:-2]), dy, 0)
            w = filter.or_else((*taps, channel, last), 0)
            return widened(dy, out_backprop.dtype) * widened(w, filter.dtype)

        extents = [*overlaps(slides, self.spatial(at.shape)), filter.shape[-1]]
        return loop.reduce("sum", extents, product).cast(out_backprop.dtype)

    def gradient(self, node: Node, ddx: Tensor) -> list[Tensor | None]:
        _, w, dy = node.inputs
        forward, _, to_filter = self.partners()
        return [
            None,
            to_filter(ddx, shaping.shape(w), dy),
            forward(ddx, w),
        ]


class ToFilter(Convolution, abstract=True):
    """dw = the adjoint of conv in w, applied to dy"""

    signature = "input: T, filter_sizes: int32, out_backprop: T -> output: T; T: floating"
    laid_out = frozenset({"input", "out_backprop"})

    def shape(self, input: Tensor, filter_sizes: Tensor, out_backprop: Tensor) -> TensorShape:
        input.shape.assert_has_rank(self.rank + 2)
        out_backprop.shape.assert_has_rank(self.rank + 2)
        known = constant_value_as_shape(filter_sizes).with_rank(self.rank + 2)
        self.output_shape(input.shape, known)  # checks the channels; sizes are checked at run time
        return known

    def numpy(self, input: Array, filter_sizes: Array, out_backprop: Array) -> Array:
        sizes: list[int] = np.asarray(filter_sizes).tolist()
        self.check_gradient(input.shape, sizes, out_backprop.shape)
        x, dy = self.channels_last(input), self.channels_last(out_backprop)
        dw = self.adjoint(x, dy, self.slides(sizes[:-2]))
        return dw.astype(input.dtype, copy=False)

    def adjoint(self, x: Array, dy: Array, slides: list[Slide]) -> Array:
        """The kernel, on arrays with channels last."""
        return correlate.filter_adjoint(x, dy, slides)

    def loop(
        self, at: IndexTuple, input: Operand, filter_sizes: Operand, out_backprop: Operand
    ) -> Expr:
        self.check_gradient(input.shape, at.shape, out_backprop.shape)
        taps, (channel, last) = at.split(self.rank)
        slides = self.slides(at.shape[:-2])
        output = self.output_channel(at.shape, channel, last)

        def product(batch: Expr, *places: Expr) -> Expr:
            seen = met(slides, self.spatial(input.shape), places, taps)
            x = input.or_else(self.full(batch, seen, channel), 0)
            dy = out_backprop[self.full(batch, places, output)]
            return widened(x, input.dtype) * widened(dy, out_backprop.dtype)

        extents = [input.shape[0], *self.spatial(out_backprop.shape)]
        return loop.reduce("sum", extents, product).cast(input.dtype)

    def packed_loop(
        self,
        multiple: int,
        at: IndexTuple,
        input: Operand,
        filter_sizes: Operand,
        out_backprop: Operand,
    ) -> Expr | None:
        """The loop over an image with packed channels; None if the image has enough channels."""
        if not self.can_pack(at.shape, multiple):
            return None
        self.check_gradient(input.shape, at.shape, out_backprop.shape)
        positions = self.spatial(out_backprop.shape)
        return self.packed(multiple, input, at.shape, positions).to_filter(at, out_backprop)

    def gradient(self, node: Node, ddw: Tensor) -> list[Tensor | None]:
        x, _, dy = node.inputs
        forward, to_input, _ = self.partners()
        return [
            to_input(shaping.shape(x), ddw, dy),
            None,
            forward(x, ddw),
        ]


# Two dimensions

_FAMILY_2D = ("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter")


class Conv2D(Forward):
    """y[n, i, j, o] = sum of x[n, i s + k d, j s + l d, c] w[k, l, c, o]"""

    use_cudnn_on_gpu: bool = True
    family = _FAMILY_2D


class Conv2DBackpropInput(ToInput):
    """dx of Conv2D"""

    use_cudnn_on_gpu: bool = True
    family = _FAMILY_2D


class Conv2DBackpropFilter(ToFilter):
    """dw of Conv2D"""

    use_cudnn_on_gpu: bool = True
    family = _FAMILY_2D


def attributes(
    rank: int, strides: Any, padding: Any, data_format: str | None, dilations: Any
) -> dict[str, Any]:
    """The attributes of a convolution, from checked arguments."""
    layout = _checked_format(rank, data_format)
    channel = 1 if layout.startswith("NC") else rank + 1
    name, explicit = _checked_padding(rank, padding)
    steps = per_axis("strides", strides, layout)
    rates = per_axis("dilations", 1 if dilations is None else dilations, layout)
    for what, values in (("strides", steps), ("dilations", rates)):
        if values[0] != 1 or values[channel] != 1:
            raise errors.invalid(
                f"Current implementation does not yet support {what} in the batch and depth "
                f"dimensions: {list(values)}"
            )
        if min(values) < 1:
            raise ValueError(f"{what} must be positive, got {list(values)}")
    return {
        "strides": steps,
        "padding": name,
        "explicit_paddings": explicit,
        "data_format": layout,
        "dilations": rates,
    }


_FORMATS = {1: ("NWC", "NCW"), 2: ("NHWC", "NCHW"), 3: ("NDHWC", "NCDHW")}


def _checked_format(rank: int, data_format: str | None) -> str:
    layout = _FORMATS[rank][0] if data_format is None else data_format
    if layout not in _FORMATS[rank]:
        raise ValueError(
            f"data_format must be one of {', '.join(_FORMATS[rank])}, not {data_format!r}"
        )
    return layout


def _checked_padding(rank: int, padding: Any) -> tuple[str, tuple[int, ...]]:
    if isinstance(padding, str | bytes):
        name = padding.decode() if isinstance(padding, bytes) else padding
        if name.upper() not in ("SAME", "VALID"):
            raise ValueError(f"padding must be SAME, VALID or a list of pairs, not {padding!r}")
        return name.upper(), ()
    pairs = np.array(padding)
    if pairs.shape != (rank + 2, 2) or pairs.min() < 0:
        raise ValueError(f"An explicit padding is {rank + 2} pairs of sizes, not {padding!r}")
    return "EXPLICIT", tuple(pairs.ravel().tolist())


def one_of(what: str, value: Any, alias: str, other: Any) -> Any:
    """An argument with two names, of which exactly one must be given."""
    if value is not None and other is not None:
        raise ValueError(f"Cannot specify both '{what}' and '{alias}'")
    if value is None and other is None:
        raise ValueError(f"Missing argument: '{what}'")
    return other if value is None else value


@public("nn.conv2d")
def conv2d(
    input: Any,
    filter: Any = None,
    strides: Any = None,
    padding: str | Sequence[Any] | None = None,
    use_cudnn_on_gpu: bool | None = True,
    data_format: str = "NHWC",
    dilations: Any = (1, 1, 1, 1),
    name: str | None = None,
    filters: Any = None,
) -> Tensor:
    """The convolution of images with filters (the kernel is not flipped).

    Args:
        input: images [batch, height, width, in], or [batch, in, height, width] as "NCHW".
        filter: the kernel [k, l, in, out], of the same floating dtype.
        strides: the distance between windows: a number, or [1, rows, columns, 1].
        padding: "VALID": only full windows; "SAME": ceil(size / stride) windows, padded with zeros;
            or pairs (before, after) of zeros for each axis.
        use_cudnn_on_gpu: taken for old programs.
        data_format: "NHWC" or "NCHW".
        dilations: the distance between the elements of a window, like `strides`.
        name: the name of the node.
        filters: another name of `filter`.

    Returns:
        A tensor [batch, rows, columns, out], or [batch, out, rows, columns] as "NCHW".

    Example:
        >>> image = tf.reshape([1.0, 2.0, 3.0, 4.0], [1, 2, 2, 1])
        >>> kernel = tf.ones([2, 2, 1, 1])
        >>> sess.run(tf.nn.conv2d(image, kernel, strides=1, padding="SAME"))[0, :, :, 0]
        array([[10.,  6.],
               [ 7.,  4.]], dtype=float32)
    """
    w = one_of("filter", filter, "filters", filters)
    op = Conv2D(
        **attributes(2, strides, padding, data_format, dilations),
        use_cudnn_on_gpu=use_cudnn_on_gpu is not False,
    )
    return op(input, w, name=name)


@public("nn.conv2d_backprop_input")
def conv2d_backprop_input(
    input_sizes: Any,
    filter: Any = None,
    out_backprop: Any = None,
    strides: Any = None,
    padding: str | Sequence[Any] | None = None,
    use_cudnn_on_gpu: bool | None = True,
    data_format: str = "NHWC",
    dilations: Any = (1, 1, 1, 1),
    name: str | None = None,
    filters: Any = None,
) -> Tensor:
    """The gradient of a convolution's input, which has shape `input_sizes`."""
    w = one_of("filter", filter, "filters", filters)
    op = Conv2DBackpropInput(
        **attributes(2, strides, padding, data_format, dilations),
        use_cudnn_on_gpu=use_cudnn_on_gpu is not False,
    )
    return op(shaping.shape_tensor(input_sizes), w, out_backprop, name=name)


@public("nn.conv2d_backprop_filter")
def conv2d_backprop_filter(
    input: Any,
    filter_sizes: Any,
    out_backprop: Any,
    strides: Any,
    padding: str | Sequence[Any],
    use_cudnn_on_gpu: bool | None = True,
    data_format: str = "NHWC",
    dilations: Any = (1, 1, 1, 1),
    name: str | None = None,
) -> Tensor:
    """The gradient of a convolution's filter, which has shape `filter_sizes`."""
    op = Conv2DBackpropFilter(
        **attributes(2, strides, padding, data_format, dilations),
        use_cudnn_on_gpu=use_cudnn_on_gpu is not False,
    )
    return op(input, shaping.shape_tensor(filter_sizes), out_backprop, name=name)


# Three dimensions

_FAMILY_3D = ("Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2")


class Conv3D(Forward):
    """Conv2D with one more spatial axis"""

    data_format: str = "NDHWC"
    dilations: tuple[int, ...] = (1, 1, 1, 1, 1)
    family = _FAMILY_3D


class Conv3DBackpropInputV2(ToInput):
    """dx of Conv3D"""

    data_format: str = "NDHWC"
    dilations: tuple[int, ...] = (1, 1, 1, 1, 1)
    family = _FAMILY_3D


class Conv3DBackpropFilterV2(ToFilter):
    """dw of Conv3D"""

    data_format: str = "NDHWC"
    dilations: tuple[int, ...] = (1, 1, 1, 1, 1)
    family = _FAMILY_3D


@public("nn.conv3d")
def conv3d(
    input: Any,
    filter: Any = None,
    strides: Any = None,
    padding: str | Sequence[Any] | None = None,
    data_format: str = "NDHWC",
    dilations: Any = (1, 1, 1, 1, 1),
    name: str | None = None,
    filters: Any = None,
) -> Tensor:
    """The convolution of volumes with filters.

    Args:
        input: [batch, depth, height, width, in], or channels second as "NCDHW".
        filter: the kernel [k, l, m, in, out].
        strides: a number, or one per axis.
        padding: "SAME" or "VALID".
        data_format: "NDHWC" or "NCDHW".
        dilations: the distance between the elements of a window, like `strides`.
        name: the name of the node.
        filters: another name of `filter`.

    Returns:
        A tensor of rank 5.

    Example:
        >>> x, kernel = tf.ones([1, 4, 4, 4, 1]), tf.ones([2, 2, 2, 1, 3])
        >>> tf.nn.conv3d(x, kernel, [1, 1, 1, 1, 1], "VALID").shape.as_list()
        [1, 3, 3, 3, 3]
    """
    w = one_of("filter", filter, "filters", filters)
    op = Conv3D(**attributes(3, strides, padding, data_format, dilations))
    return op(input, w, name=name)


@public("nn.conv3d_backprop_input_v2")
def conv3d_backprop_input_v2(
    input_sizes: Any,
    filter: Any,
    out_backprop: Any,
    strides: Any,
    padding: str | Sequence[Any],
    data_format: str = "NDHWC",
    dilations: Any = (1, 1, 1, 1, 1),
    name: str | None = None,
) -> Tensor:
    """The gradient of a 3-D convolution's input, which has shape `input_sizes`."""
    op = Conv3DBackpropInputV2(**attributes(3, strides, padding, data_format, dilations))
    return op(shaping.shape_tensor(input_sizes), filter, out_backprop, name=name)


@public("nn.conv3d_backprop_filter_v2", "nn.conv3d_backprop_filter")
def conv3d_backprop_filter_v2(
    input: Any,
    filter_sizes: Any,
    out_backprop: Any,
    strides: Any,
    padding: str | Sequence[Any],
    data_format: str = "NDHWC",
    dilations: Any = (1, 1, 1, 1, 1),
    name: str | None = None,
) -> Tensor:
    """The gradient of a 3-D convolution's filter, which has shape `filter_sizes`."""
    op = Conv3DBackpropFilterV2(**attributes(3, strides, padding, data_format, dilations))
    return op(input, shaping.shape_tensor(filter_sizes), out_backprop, name=name)
