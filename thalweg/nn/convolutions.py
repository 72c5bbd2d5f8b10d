"""Convolutions made of the convolution ops: lines, any rank, transposed, dilated, separable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.known import constant_value_as_shape
from thalweg.graph.likes import IntsLike, TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.nn import dilation
from thalweg.ops.arrays import joining
from thalweg.ops.core import shaping
from thalweg.ops.nn import convolution as ops
from thalweg.ops.nn import depthwise
from thalweg.ops.nn.convolution import one_of
from thalweg.public import public

_FORMATS = {1: ("NWC", "NCW"), 2: ("NHWC", "NCHW"), 3: ("NDHWC", "NCDHW")}


@public("nn.conv1d")
def conv1d(
    value: Any = None,
    filters: Any = None,
    stride: Any = None,
    padding: str | Sequence[Any] | None = None,
    use_cudnn_on_gpu: bool | None = None,
    data_format: str | None = None,
    name: str | None = None,
    input: Any = None,
    dilations: Any = None,
) -> Tensor:
    """The convolution of lines with filters.

    Args:
        value: [batch, width, in], or [batch, in, width] as "NCW".
        filters: the kernel [k, in, out].
        stride: the distance between windows.
        padding: "SAME" or "VALID".
        use_cudnn_on_gpu: taken for old programs.
        data_format: "NWC" or "NCW".
        name: the name of the nodes.
        input: another name of `value`.
        dilations: the distance between the elements of a window.

    Returns:
        A tensor [batch, windows, out].

    Example:
        >>> x = tf.reshape([1.0, 2.0, 3.0, 4.0], [1, 4, 1])
        >>> sess.run(tf.nn.conv1d(x, tf.ones([2, 1, 1]), 1, "VALID")).ravel()
        array([3., 5., 7.], dtype=float32)
    """
    x = one_of("value", value, "input", input)
    with name_scope(name, "conv1d", [x, filters]):
        layout, axis = _line_format(data_format)
        rows = shaping.expand_dims(x, axis)
        result = ops.conv2d(
            rows,
            shaping.expand_dims(filters, 0),
            [1, _along_line(stride, axis)],
            _image_padding(padding, axis),
            use_cudnn_on_gpu,
            layout,
            None if dilations is None else [1, _along_line(dilations, axis)],
        )
        return shaping.squeeze(result, [axis])


def _line_format(data_format: str | None) -> tuple[str, int]:
    """The format of a line seen as an image one pixel high, and the axis of that height."""
    if data_format in (None, "NWC", "NHWC"):
        return "NHWC", 1
    if data_format in ("NCW", "NCHW"):
        return "NCHW", 2
    raise ValueError(f"data_format must be NWC or NCW, not {data_format!r}")


def _along_line(values: Any, axis: int) -> int:
    """The entry of the width in one number, or in one per axis."""
    given = np.atleast_1d(values).tolist()
    if len(given) not in (1, 3):
        raise ValueError(f"stride and dilations must have length 1 or 3, got {given}")
    return int(given[0] if len(given) == 1 else given[axis])


def _image_padding(padding: Any, axis: int) -> Any:
    if isinstance(padding, str | bytes):
        return padding
    pairs = list(padding)
    return [*pairs[:axis], [0, 0], *pairs[axis:]]


@public("nn.convolution")
def convolution(
    input: Any,
    filter: Any = None,
    padding: str | Sequence[Any] | None = None,
    strides: Sequence[int] | None = None,
    dilation_rate: Sequence[int] | None = None,
    name: str | None = None,
    data_format: str | None = None,
    filters: Any = None,
    dilations: Sequence[int] | None = None,
) -> Tensor:
    """The convolution over one, two or three spatial axes.

    Args:
        input: [batch, ..., in], or channels second.
        filter: the kernel [..., in, out].
        padding: "SAME" or "VALID".
        strides: a number per spatial axis; 1 if None.
        dilation_rate: the distance between the elements of a window, per spatial axis.
        name: the name of the nodes.
        data_format: such as "NHWC" or "NCHW".
        filters, dilations: other names of `filter` and `dilation_rate`.

    Returns:
        A tensor [batch, ..., out].

    Example:
        >>> x, kernel = tf.ones([1, 8, 8, 3]), tf.ones([3, 3, 3, 4])
        >>> tf.nn.convolution(x, kernel, "SAME", strides=[2, 2]).shape.as_list()
        [1, 4, 4, 4]
    """
    with name_scope(name, "convolution", [input, filter]) as scope:
        x = convert_to_tensor(input, name="input")
        w = convert_to_tensor(one_of("filter", filter, "filters", filters), name="filter")
        rank = _spatial_rank(x, w)
        rates = dilation_rate if dilations is None else dilations
        steps, rates = dilation.strides_and_rates(rank, strides, rates)
        layout = _FORMATS[rank][0] if data_format is None else data_format
        if layout not in _FORMATS[rank]:
            raise ValueError(f"data_format must be one of {', '.join(_FORMATS[rank])}")
        _check_channels(x, w, 1 if layout.startswith("NC") else rank + 1)
        if rank == 1:
            return conv1d(x, w, steps[0], padding, None, layout, scope, dilations=rates[0])
        function = ops.conv2d if rank == 2 else ops.conv3d
        return function(x, w, steps, padding, data_format=layout, dilations=rates, name=scope)


def _spatial_rank(x: Tensor, w: Tensor) -> int:
    total = x.shape.rank if w.shape.rank is None else w.shape.rank
    if total is None:
        raise ValueError("rank of input or filter must be known")
    if not 3 <= total <= 5:
        raise ValueError("`input` and `filter` must have rank at least 3 and at most 5")
    for tensor in (x, w):
        tensor.shape.assert_has_rank(total)
    return total - 2


def _check_channels(x: Tensor, w: Tensor, axis: int) -> None:
    mine, theirs = x.shape[axis], w.shape[-2] if w.shape.rank else x.shape[axis]
    if not mine.is_compatible_with(theirs):
        raise ValueError(
            "number of input channels does not match corresponding dimension of filter, "
            f"{mine} != {theirs}"
        )


# Transposed


@public("nn.conv2d_transpose", "nn.deconv2d")
def conv2d_transpose(
    value: Any = None,
    filter: Any = None,
    output_shape: Any = None,
    strides: Any = None,
    padding: str | Sequence[Any] = "SAME",
    data_format: str = "NHWC",
    name: str | None = None,
    input: Any = None,
    filters: Any = None,
    dilations: Any = None,
) -> Tensor:
    """The transpose (gradient) of `conv2d`: from its output back to an input of `output_shape`.

    Args:
        value: [batch, height, width, in], or channels second as "NCHW".
        filter: the kernel [k, l, out, in], as `conv2d` would take it.
        output_shape: the shape of the result, as a list or an int32 vector.
        strides: by how much the result is larger: a number, or one per axis.
        padding: "SAME" or "VALID", as of the convolution that this turns round.
        data_format: "NHWC" or "NCHW".
        name: the name of the nodes.
        input: another name of `value`.
        filters: another name of `filter`.
        dilations: the distance between the elements of a window.

    Returns:
        A tensor of `output_shape`.

    Example:
        >>> x, kernel = tf.ones([1, 2, 2, 1]), tf.ones([2, 2, 1, 1])
        >>> y = tf.nn.conv2d_transpose(x, kernel, [1, 4, 4, 1], strides=2)
        >>> sess.run(y).shape, sess.run(tf.reduce_sum(y))
        ((1, 4, 4, 1), np.float32(16.0))
    """
    x = one_of("value", value, "input", input)
    w = one_of("filter", filter, "filters", filters)
    with name_scope(name, "conv2d_transpose", [x, w, output_shape]) as scope:
        x, w, sizes = _transposed(x, w, output_shape, 2, data_format)
        return ops.conv2d_backprop_input(
            sizes, w, x, strides, padding, True, data_format, dilations, scope
        )


@public("nn.conv3d_transpose")
def conv3d_transpose(
    value: Any,
    filter: Any = None,
    output_shape: Any = None,
    strides: Any = None,
    padding: str | Sequence[Any] = "SAME",
    data_format: str = "NDHWC",
    name: str | None = None,
    input: Any = None,
    filters: Any = None,
    dilations: Any = None,
) -> Tensor:
    """The transpose (gradient) of `conv3d`: from its output back to an input of `output_shape`."""
    x = one_of("value", value, "input", input)
    w = one_of("filter", filter, "filters", filters)
    with name_scope(name, "conv3d_transpose", [x, w, output_shape]) as scope:
        x, w, sizes = _transposed(x, w, output_shape, 3, data_format)
        return ops.conv3d_backprop_input_v2(
            sizes, w, x, strides, padding, data_format, dilations, scope
        )


@public("nn.conv1d_transpose")
def conv1d_transpose(
    input: Any,
    filters: Any,
    output_shape: Any,
    strides: Any,
    padding: str | Sequence[Any] = "SAME",
    data_format: str = "NWC",
    dilations: Any = None,
    name: str | None = None,
) -> Tensor:
    """The transpose (gradient) of `conv1d`: from its output back to an input of `output_shape`."""
    with name_scope(name, "conv1d_transpose", [input, filters, output_shape]):
        layout, axis = _line_format(data_format)
        sizes = shaping.shape_tensor(output_shape)
        result = ops.conv2d_backprop_input(
            _with_one(sizes, axis),
            shaping.expand_dims(filters, 0),
            shaping.expand_dims(input, axis),
            [1, _along_line(strides, axis)],
            _image_padding(padding, axis),
            data_format=layout,
            dilations=None if dilations is None else [1, _along_line(dilations, axis)],
        )
        return shaping.squeeze(result, [axis])


def _with_one(sizes: Tensor, axis: int) -> Tensor:
    return joining.concat([sizes[:axis], [1], sizes[axis:]], 0)


@public("nn.conv_transpose")
def conv_transpose(
    input: Any,
    filters: Any,
    output_shape: TensorLike,
    strides: IntsLike,
    padding: str | Sequence[Any] = "SAME",
    data_format: str | None = None,
    dilations: IntsLike | None = None,
    name: str | None = None,
) -> Tensor:
    """The transpose of a convolution over one, two or three spatial axes."""
    with name_scope(name, "conv_transpose", [input, filters, output_shape]) as scope:
        x, w = convert_to_tensor(input), convert_to_tensor(filters)
        rank = _spatial_rank(x, w)
        layout = _FORMATS[rank][0] if data_format is None else data_format
        function = {1: conv1d_transpose, 2: conv2d_transpose, 3: conv3d_transpose}[rank]
        return function(
            x, w, output_shape, strides, padding, layout, dilations=dilations, name=scope
        )


def _transposed(
    value: Any, filter: Any, output_shape: Any, rank: int, data_format: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Input, filter and output shape of a transposed convolution, checked as far as known."""
    if data_format not in _FORMATS[rank]:
        raise ValueError(f"data_format has to be either {' or '.join(_FORMATS[rank])}.")
    x = convert_to_tensor(value, name="value")
    w = convert_to_tensor(filter, name="filter")
    channel = 1 if data_format.startswith("NC") else rank + 1
    ins, outs = w.shape.with_rank(rank + 2)[-1], w.shape.with_rank(rank + 2)[-2]
    if not x.shape[channel].is_compatible_with(ins):
        raise ValueError(
            f"input channels does not match filter's input channels, {x.shape[channel]} != {ins}"
        )
    sizes = shaping.shape_tensor(output_shape)
    if not sizes.shape.is_compatible_with([rank + 2]):
        raise ValueError(f"output_shape must have shape ({rank + 2},), got {sizes.shape}")
    wanted = constant_value_as_shape(sizes)[channel]
    if not outs.is_compatible_with(wanted):
        raise ValueError(
            f"output_shape does not match filter's output channels, {wanted} != {outs}"
        )
    return x, w, sizes


# Dilated


@public("nn.atrous_conv2d")
def atrous_conv2d(
    value: Any, filters: Any, rate: int, padding: str, name: str | None = None
) -> Tensor:
    """The convolution of images with a filter that has holes.

    Args:
        value: images [batch, height, width, in].
        filters: the kernel [k, l, in, out].
        rate: the distance between the elements of a window; 1 has no holes.
        padding: "SAME" or "VALID".
        name: the name of the nodes.

    Returns:
        A tensor [batch, rows, columns, out].

    Example:
        >>> x, kernel = tf.ones([1, 8, 8, 1]), tf.ones([3, 3, 1, 2])
        >>> tf.nn.atrous_conv2d(x, kernel, 2, "VALID").shape.as_list()
        [1, 4, 4, 2]
    """
    with name_scope(name, "atrous_conv2d", [value, filters]) as scope:
        x, w = convert_to_tensor(value, name="value"), convert_to_tensor(filters, name="filters")
        _check_atrous(x, w, 2, rate)
        return ops.conv2d(x, w, [1, 1, 1, 1], padding, dilations=[rate, rate], name=scope)


def _check_atrous(x: Tensor, w: Tensor, axis: int, rate: int) -> None:
    mine = x.shape[3] if x.shape.rank else None
    theirs = w.shape[axis] if w.shape.rank else None
    if mine is not None and not mine.is_compatible_with(theirs):
        raise ValueError(
            f"value's input channels does not match filters' input channels, {mine} != {theirs}"
        )
    if rate < 1:
        raise ValueError(f"rate {rate} cannot be less than one")


@public("nn.atrous_conv2d_transpose")
def atrous_conv2d_transpose(
    value: Any,
    filters: Any,
    output_shape: Any,
    rate: int,
    padding: str,
    name: str | None = None,
) -> Tensor:
    """The transpose (gradient) of `atrous_conv2d`.

    Args:
        value: [batch, height, width, channels of the result].
        filters: [rows, columns, output channels, input channels].
        output_shape: the shape of the result.
        rate: the distance between the elements of the filters.
        padding: "VALID" or "SAME".
        name: the name of the nodes.

    Returns:
        A tensor of that shape.

    Example:
        >>> y = tf.nn.atrous_conv2d_transpose(
        ...     tf.ones([1, 2, 2, 1]), tf.ones([2, 2, 3, 1]), [1, 4, 4, 3], rate=2, padding="VALID"
        ... )
        >>> y.shape.as_list()
        [1, 4, 4, 3]
    """
    with name_scope(name, "atrous_conv2d_transpose", [value, filters, output_shape]) as scope:
        x, w, sizes = _transposed(value, filters, output_shape, 2, "NHWC")
        _check_atrous(x, w, 3, rate)
        return ops.conv2d_backprop_input(
            sizes, w, x, [1, 1, 1, 1], padding, dilations=[rate, rate], name=scope
        )


# Depthwise


@public("nn.depthwise_conv2d")
def depthwise_conv2d(
    input: Any,
    filter: Any,
    strides: Any,
    padding: str | Sequence[Any],
    rate: Any = None,
    name: str | None = None,
    data_format: str | None = None,
    dilations: Any = None,
) -> Tensor:
    """The convolution of each channel with filters of its own.

    Args:
        input: images [batch, height, width, in], or channels second as "NCHW".
        filter: the kernels [k, l, in, multiplier].
        strides: one per axis.
        padding: "SAME" or "VALID".
        rate: the distance between the elements of a window, (rows, columns).
        name: the name of the nodes.
        data_format: "NHWC" or "NCHW".
        dilations: another name of `rate`.

    Returns:
        A tensor [batch, rows, columns, in * multiplier].

    Example:
        >>> x, kernel = tf.ones([1, 4, 4, 3]), tf.ones([3, 3, 3, 2])
        >>> tf.nn.depthwise_conv2d(x, kernel, [1, 1, 1, 1], "SAME").shape.as_list()
        [1, 4, 4, 6]
    """
    with name_scope(name, "depthwise", [input, filter]) as scope:
        return depthwise.depthwise_conv2d_native(
            convert_to_tensor(input, name="tensor_in"),
            convert_to_tensor(filter, name="filter_in"),
            strides,
            padding,
            data_format or "NHWC",
            rate if dilations is None else dilations,
            scope,
        )


@public("nn.separable_conv2d")
def separable_conv2d(
    input: Any,
    depthwise_filter: Any,
    pointwise_filter: Any,
    strides: Any,
    padding: str | Sequence[Any],
    rate: Any = None,
    name: str | None = None,
    data_format: str | None = None,
    dilations: Any = None,
) -> Tensor:
    """A depthwise convolution, then one of size 1 x 1 that mixes the channels.

    Args:
        input: images [batch, height, width, in], or channels second as "NCHW".
        depthwise_filter: [k, l, in, multiplier].
        pointwise_filter: [1, 1, in * multiplier, out].
        strides: one per axis.
        padding: "SAME" or "VALID".
        rate: the distance between the elements of a window, (rows, columns).
        name: the name of the nodes.
        data_format: "NHWC" or "NCHW".
        dilations: another name of `rate`.

    Returns:
        A tensor [batch, rows, columns, out].

    Example:
        >>> x = tf.ones([1, 8, 8, 3])
        >>> depthwise, pointwise = tf.ones([3, 3, 3, 2]), tf.ones([1, 1, 6, 4])
        >>> y = tf.nn.separable_conv2d(x, depthwise, pointwise, [1, 1, 1, 1], "SAME")
        >>> y.shape.as_list()
        [1, 8, 8, 4]
    """
    values = [input, depthwise_filter, pointwise_filter]
    with name_scope(name, "separable_conv2d", values) as scope:
        x = convert_to_tensor(input, name="tensor_in")
        each = convert_to_tensor(depthwise_filter, name="depthwise_filter")
        mix = convert_to_tensor(pointwise_filter, name="pointwise_filter")
        for axis in (0, 1):
            mix.shape.with_rank(4)[axis].assert_is_compatible_with(1)
        layout = data_format or "NHWC"
        rates = rate if dilations is None else dilations
        filtered = depthwise.depthwise_conv2d_native(
            x, each, strides, padding, layout, rates, "depthwise"
        )
        return ops.conv2d(filtered, mix, 1, "VALID", data_format=layout, name=scope)
