"""Operators that make, cut, join and rearrange tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.node import Tensor
from thalweg.onnx.ops.normalization import as_matrix
from thalweg.onnx.registry import NodeView, operator
from thalweg.onnx.values import (
    at_axis,
    axis_of,
    constant,
    elements,
    like,
    rank_of,
    shape_vector,
    sizes_of,
    static,
    static_ints,
    to_int32,
    wrapped,
)
from thalweg.ops.arrays import (
    indexing,
    joining,
    marking,
    padding,
    rearranging,
    slicing,
    splitting,
    transposing,
)
from thalweg.ops.core import basic, broadcast, casting, choosing, filling
from thalweg.ops.core import shaping as shapes
from thalweg.ops.math import arithmetic, compare, division, reduce

# Making


@operator("Constant")
def constant_value(node: NodeView) -> Any:
    """A tensor, or since version 12 numbers or text."""
    kinds = {
        "value_int": np.int64,
        "value_ints": np.int64,
        "value_float": np.float32,
        "value_floats": np.float32,
    }
    for name, value in node.attributes.items():
        if name == "value":
            return constant(value)
        if name in kinds:
            return constant(np.array(value, kinds[name]))
        if name in ("value_string", "value_strings"):
            return constant(np.array(value, object))
    raise node.unsupported(f"a constant of {sorted(node.attributes)}")


@operator("ConstantOfShape", since=9)
def constant_of_shape(node: NodeView, shape: Tensor) -> Tensor:
    value = node.get("value")
    value = np.zeros(1, np.float32) if value is None else value
    return filling.fill(_sizes(shape), constant(np.reshape(value, ())))


def _sizes(shape: Any) -> Any:
    known = static_ints(shape)
    return to_int32(shape) if known is None else np.array(known, np.int32)


@operator("Range", since=11)
def range_(node: NodeView, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    first, last, step = (shapes.reshape(each, []) for each in (start, limit, delta))
    return filling.range(first, last, step)


@operator("EyeLike", since=9)
def eye_like(node: NodeView, x: Tensor) -> Tensor:
    dtype = elements(int(node.get("dtype"))) if "dtype" in node.attributes else x.dtype.base_dtype
    rows, columns = sizes_of(x)
    k = int(node.get("k", 0))
    at = filling.range(0, columns) - shapes.expand_dims(filling.range(0, rows), 1)
    return casting.cast(compare.equal(at, k), dtype)


@operator("Shape")
def shape(node: NodeView, x: Tensor) -> Tensor:
    """Of all axes, or since version 15 of a range of them."""
    result = shapes.shape(x, out_type=dtypes.int64)
    start, end = node.get("start", 0), node.get("end")
    if not start and end is None:
        return result
    return result[_clamped(node, x, start, 0) : _clamped(node, x, end, rank_of(node, x))]


def _clamped(node: NodeView, x: Tensor, place: int | None, default: int) -> int:
    rank = rank_of(node, x)
    place = default if place is None else place
    return min(max(place + rank if place < 0 else place, 0), rank)


@operator("Size")
def size(node: NodeView, x: Tensor) -> Tensor:
    return shapes.size(x, out_type=dtypes.int64)


# Shapes


@operator("Reshape")
def reshape_fixed(node: NodeView, x: Tensor) -> Tensor:
    return _reshaped(node, x, constant(np.array(node.get("shape"), np.int64)))


@operator("Reshape", since=5)
def reshape(node: NodeView, x: Tensor, shape: Tensor) -> Tensor:
    return _reshaped(node, x, shape)


def _reshaped(node: NodeView, x: Tensor, shape: Tensor) -> Tensor:
    """A 0 stands for the size as it was, unless it is asked for."""
    known = static_ints(shape)
    if node.get("allowzero", 0):
        return shapes.reshape(x, _sizes(shape))
    if known is not None:
        own = sizes_of(x) if 0 in known else []
        return shapes.reshape(
            x, shape_vector([own[a] if size == 0 else size for a, size in enumerate(known)])
        )
    sizes = to_int32(shape)
    count = shapes.size(sizes)
    own = joining.concat([shapes.shape(x), filling.zeros_like(sizes)], 0)[:count]
    return shapes.reshape(x, choosing.where_v2(compare.equal(sizes, 0), own, sizes))


@operator("Flatten")
def flatten(node: NodeView, x: Tensor) -> Tensor:
    return as_matrix(x, axis_of(node, x, 1))


@operator("Squeeze")
def squeeze(node: NodeView, x: Tensor, axes: Any = None) -> Tensor:
    given = node.get("axes") if axes is None else static_ints(axes)
    if axes is None and given is None:
        return shapes.squeeze(x)
    if given is not None:
        return shapes.squeeze(x, list(given)) if given else basic.identity(x)
    rank = rank_of(node, x)
    gone = wrapped(to_int32(axes), rank)
    kept = arithmetic.subtract(1, marking.one_hot(gone, rank, axis=0))
    mask = casting.cast(reduce.reduce_min(kept, 1), dtypes.bool)
    return shapes.reshape(x, marking.boolean_mask(shapes.shape(x), mask))


@operator("Unsqueeze")
def unsqueeze(node: NodeView, x: Tensor, axes: Any = None) -> Tensor:
    given = node.get("axes") if axes is None else static_ints(axes)
    if given is None:
        raise node.unsupported("axes must be a constant")
    rank = rank_of(node, x) + len(given)
    for axis in sorted(axis + rank if axis < 0 else axis for axis in given):
        x = shapes.expand_dims(x, axis)
    return basic.identity(x) if not given else x


@operator("Expand", since=8)
def expand(node: NodeView, x: Tensor, shape: Tensor) -> Tensor:
    sizes = _sizes(shape)
    return broadcast.broadcast_to(x, broadcast.broadcast_dynamic_shape(shapes.shape(x), sizes))


@operator("Transpose")
def transpose(node: NodeView, x: Tensor) -> Tensor:
    order = node.get("perm")
    if order is None:
        return transposing.transpose(x)
    return transposing.transpose(x, list(order))


@operator("Tile", since=6)
def tile(node: NodeView, x: Tensor, repeats: Tensor) -> Tensor:
    return joining.tile(x, _sizes(repeats))


@operator("Tile")
def tile_axis(node: NodeView, x: Tensor, tiles: Tensor, axis: Tensor) -> Tensor:
    times = shapes.reshape(to_int32(tiles), [1])
    rank = rank_of(node, x)
    known = static_ints(axis)
    if known is None:
        raise node.unsupported("the axis must be a constant")
    parts = [times if a == known[0] else constant(np.ones(1, np.int32)) for a in range(rank)]
    return joining.tile(x, joining.concat(parts, 0))


# Joining and cutting


@operator("Concat")
def concat(node: NodeView, *inputs: Tensor) -> Tensor:
    axis = axis_of(node, inputs[0], 1)
    return basic.identity(inputs[0]) if len(inputs) == 1 else joining.concat(list(inputs), axis)


@operator("Split")
def split(node: NodeView, x: Tensor, sizes: Any = None) -> Any:
    """Into equal parts, of which the last may be smaller, or parts of given sizes."""
    axis, count = axis_of(node, x), len(node.outputs)
    given = node.get("split") if sizes is None else static_ints(sizes)
    if sizes is not None and given is None:
        return tuple(splitting.split(x, to_int32(sizes), axis, num=count))
    if given is None:
        count = int(node.get("num_outputs", count))
        known = x.shape.as_list()[axis]
        if known is None:
            return tuple(splitting.split(x, count, axis))
        part = -(-known // count)
        given = [part] * (count - 1) + [known - part * (count - 1)]
    return tuple(splitting.split(x, list(given), axis)) if len(given) > 1 else basic.identity(x)


@operator("Slice")
def slice_fixed(node: NodeView, x: Tensor) -> Tensor:
    starts, ends = (np.array(node.get(name), np.int64) for name in ("starts", "ends"))
    return _sliced(node, x, starts, ends, node.get("axes"), None)


@operator("Slice", since=10)
def slice_(
    node: NodeView, x: Tensor, starts: Any, ends: Any, axes: Any = None, steps: Any = None
) -> Tensor:
    return _sliced(node, x, starts, ends, axes, steps)


def _sliced(node: NodeView, x: Tensor, starts: Any, ends: Any, axes: Any, steps: Any) -> Tensor:
    rank = rank_of(node, x)
    known_axes = static_ints(np.array(axes) if node.version < 10 and axes is not None else axes)
    if axes is not None and known_axes is None:
        raise node.unsupported("the axes must be constants")
    known = [static_ints(each) for each in (starts, ends)]
    strides = [1] * len(known[0] or []) if steps is None else static_ints(steps)
    if None not in known and strides is not None:
        return _static_slice(x, known[0] or [], known[1] or [], known_axes, strides, rank)
    return _dynamic_slice(node, x, starts, ends, known_axes, steps)


def _static_slice(
    x: Tensor,
    starts: list[int],
    ends: list[int],
    axes: list[int] | None,
    steps: list[int],
    rank: int,
) -> Tensor:
    index = [slice(None)] * rank
    places = range(len(starts)) if axes is None else [a + rank if a < 0 else a for a in axes]
    for axis, start, end, step in zip(places, starts, ends, steps, strict=True):
        size = x.shape.as_list()[axis]
        # A walk backwards past the front has no end that Python could name.
        stop: int | None = end
        if step < 0 and (end < -(1 << 30) or (size is not None and end < -size)):
            stop = None
        if step > 0 and end > (1 << 30):
            stop = None
        begin: int | None = start
        if step < 0 and start > (1 << 30):
            begin = None
        index[axis] = slice(begin, stop, step)
    return x[tuple(index)]


def _dynamic_slice(
    node: NodeView, x: Tensor, starts: Any, ends: Any, axes: list[int] | None, steps: Any
) -> Tensor:
    """Bounds that are only known when a step runs, clamped to the sizes then."""
    rank = rank_of(node, x)
    count = next((t.shape.as_list()[0] for t in (starts, ends) if t.shape.rank == 1), None)
    if axes is None:
        if count is None:
            raise node.unsupported("the number of axes must be known")
        axes = list(range(count))
    sizes = shapes.shape(x)
    begin: list[Any] = [0] * rank
    end: list[Any] = [sizes[a] for a in range(rank)]
    stride: list[Any] = [1] * rank
    masks = 0
    for index, axis in enumerate(axes):
        axis = axis + rank if axis < 0 else axis
        size = sizes[axis]
        step = constant(1) if steps is None else to_int32(steps[index])
        first = wrapped(_clamp(starts[index]), size)
        last = wrapped(_clamp(ends[index]), size)
        forward = compare.greater(step, 0)
        low = choosing.where_v2(forward, 0, -1)
        high = choosing.where_v2(forward, size, size - 1)
        first = arithmetic.minimum(arithmetic.maximum(first, 0), high)
        last = arithmetic.minimum(arithmetic.maximum(last, low), high)
        # From here on -1 would count from the end: before the front is one size further.
        last = choosing.where_v2(compare.less(last, 0), -size - 1, last)
        begin[axis], end[axis], stride[axis] = first, last, step
    return slicing.strided_slice(
        x, shape_vector(begin), shape_vector(end), shape_vector(stride), masks, masks
    )


def _clamp(value: Tensor) -> Tensor:
    """An index as int32, whatever it was."""
    limit = (1 << 31) - 2
    if value.dtype.base_dtype is dtypes.int64:
        value = arithmetic.minimum(
            arithmetic.maximum(value, like(-limit, value)), like(limit, value)
        )
    return to_int32(value)


@operator("Pad")
def pad_fixed(node: NodeView, x: Tensor) -> Tensor:
    pads = np.array(node.get("pads", node.get("paddings")), np.int64)
    return _padded(node, x, pads, node.get("value", 0.0), None)


@operator("Pad", since=11)
def pad(node: NodeView, x: Tensor, pads: Any, value: Any = None, axes: Any = None) -> Tensor:
    return _padded(node, x, pads, 0 if value is None else value, axes)


def _padded(node: NodeView, x: Tensor, pads: Any, value: Any, axes: Any) -> Tensor:
    rank = rank_of(node, x)
    known, places = static_ints(pads), static_ints(axes)
    if axes is not None and places is None:
        raise node.unsupported("the axes must be constants")
    mode = node.get("mode", "constant")
    fill = like(0, x) if isinstance(value, int | float) else shapes.reshape(value, [])
    fill = like(value, x) if isinstance(value, float) else fill
    if known is None:
        if axes is not None or mode != "constant":
            raise node.unsupported("pads must be constants")
        pairs = transposing.transpose(shapes.reshape(to_int32(pads), [2, rank]))
        return padding.pad(x, pairs, constant_values=fill)
    border = np.zeros((rank, 2), np.int64)
    order = range(rank) if places is None else [a + rank if a < 0 else a for a in places]
    for index, axis in enumerate(order):
        border[axis] = known[index], known[index + len(known) // 2]
    return bordered(node, x, border, mode, fill)


def bordered(node: NodeView, x: Tensor, border: Any, mode: str, fill: Any) -> Tensor:
    """A tensor with elements put around it, or cut off where a border is negative."""
    if (border < 0).any():
        sizes = shapes.shape(x)
        begins = [int(max(0, -before)) for before, _ in border]
        ends = [sizes[a] + int(min(0, after)) for a, (_, after) in enumerate(border)]
        x = slicing.strided_slice(x, np.array(begins, np.int32), shape_vector(ends))
        border = np.maximum(border, 0)
    if not border.any():
        return basic.identity(x)
    if mode == "constant":
        return padding.pad(x, border, constant_values=fill)
    if mode == "reflect":
        return padding.pad(x, border, "REFLECT")
    if mode not in ("edge", "wrap"):
        raise node.unsupported(f"the mode {mode!r}")
    for axis, (before, after) in enumerate(border.tolist()):
        x = _extended(x, axis, before, after, mode)
    return x


def _extended(x: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    """Along one axis, the edges repeated or the other end joined."""
    if not before and not after:
        return x
    size = shapes.shape(x)[axis]
    at = filling.range(-before, size + after)
    if mode == "wrap":
        return indexing.gather(x, division.floormod(at, size), axis=axis)
    return indexing.gather(x, arithmetic.minimum(arithmetic.maximum(at, 0), size - 1), axis=axis)


@operator("CenterCropPad", since=18)
def center_crop_pad(node: NodeView, x: Tensor, shape: Tensor) -> Tensor:
    wanted = static_ints(shape)
    if wanted is None:
        raise node.unsupported("the shape must be a constant")
    rank = rank_of(node, x)
    axes = node.get("axes") or list(range(rank))
    for axis, size in zip(axes, wanted, strict=True):
        axis = axis + rank if axis < 0 else axis
        own = x.shape.as_list()[axis]
        if own is None:
            raise node.unsupported("the sizes of its input must be known")
        if own > size:
            x = at_axis(x, axis, (own - size) // 2, size)
        elif own < size:
            border = np.zeros((rank, 2), np.int64)
            border[axis] = (size - own) // 2, size - own - (size - own) // 2
            x = padding.pad(x, border)
    return x


# Rearranging


@operator("DepthToSpace")
def depth_to_space(node: NodeView, x: Tensor) -> Tensor:
    block = int(node.get("blocksize"))
    batch, channels, height, width = sizes_of(x)
    parts = [batch, block, block, channels // (block * block), height, width]
    order = [0, 3, 4, 1, 5, 2]
    if node.get("mode", "DCR") == "CRD":
        parts = [batch, channels // (block * block), block, block, height, width]
        order = [0, 1, 4, 2, 5, 3]
    apart = transposing.transpose(shapes.reshape(x, shape_vector(parts)), order)
    sizes = [batch, channels // (block * block), height * block, width * block]
    return shapes.reshape(apart, shape_vector(sizes))


@operator("SpaceToDepth")
def space_to_depth(node: NodeView, x: Tensor) -> Tensor:
    return rearranging.space_to_depth(x, int(node.get("blocksize")), data_format="NCHW")


@operator("ReverseSequence", since=10)
def reverse_sequence(node: NodeView, x: Tensor, lengths: Tensor) -> Tensor:
    return transposing.reverse_sequence(
        x,
        lengths,
        seq_axis=int(node.get("time_axis", 0)),
        batch_axis=int(node.get("batch_axis", 1)),
    )


@operator("Trilu", since=14)
def trilu(node: NodeView, x: Tensor, k: Any = None) -> Tensor:
    """One triangle of matrices, up to the diagonal number k."""
    offset = 0 if k is None else to_int32(shapes.reshape(k, []))
    if static(offset) is not None:
        offset = int(np.asarray(static(offset)))
    at = filling.range(0, shapes.shape(x)[-1]) - shapes.expand_dims(
        filling.range(0, shapes.shape(x)[-2]), 1
    )
    kept = (
        compare.greater_equal(at, offset)
        if node.get("upper", 1)
        else compare.less_equal(at, offset)
    )
    return choosing.where_v2(kept, x, filling.zeros_like(x))
