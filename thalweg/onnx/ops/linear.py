"""Products of matrices, convolutions and poolings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.node import Tensor
from thalweg.nn import convolutions
from thalweg.onnx.ops.shaping import bordered
from thalweg.onnx.registry import NodeView, operator
from thalweg.onnx.values import (
    constant,
    known_sizes,
    like,
    rank_of,
    shape_vector,
    sizes_of,
    static_ints,
)
from thalweg.ops.arrays import indexing, joining, padding, searching, splitting, transposing
from thalweg.ops.core import casting, choosing, filling, shaping
from thalweg.ops.linalg import einsum as einsums
from thalweg.ops.linalg import linalg
from thalweg.ops.linalg import matmul as products
from thalweg.ops.math import arithmetic, compare, reduce
from thalweg.ops.nn import convolution, pooling

# Matrices


@operator("MatMul")
def matmul(node: NodeView, x: Tensor, y: Tensor) -> Tensor:
    return matrix_product(x, y)


def matrix_product(x: Tensor, y: Tensor) -> Tensor:
    """As NumPy has it: vectors are rows and columns, all axes but two are broadcast."""
    gone: list[int] = []
    if x.shape.rank == 1:
        x = shaping.expand_dims(x, 0)
        gone.append(-2)
    if y.shape.rank == 1:
        y = shaping.expand_dims(y, 1)
        gone.append(-1)
    found = products.matmul(x, y)
    return shaping.squeeze(found, gone) if gone else found


@operator("Gemm")
def gemm(node: NodeView, a: Tensor, b: Tensor, c: Any = None) -> Tensor:
    result = products.matmul(
        a, b, transpose_a=bool(node.get("transA", 0)), transpose_b=bool(node.get("transB", 0))
    )
    alpha, beta = float(node.get("alpha", 1.0)), float(node.get("beta", 1.0))
    if alpha != 1:
        result = result * like(alpha, result)
    if c is None:
        return result
    return result + (c if beta == 1 else c * like(beta, result))


@operator("Einsum", since=12)
def einsum(node: NodeView, *inputs: Tensor) -> Tensor:
    return einsums.einsum(node.get("equation").replace(" ", ""), *inputs)


@operator("Det", since=11)
def det(node: NodeView, x: Tensor) -> Tensor:
    return linalg.matrix_determinant(x)


# Windows


class Window:
    """Where a window goes over an image: sizes, steps, gaps and borders of each axis."""

    def __init__(self, node: NodeView, x: Tensor, sizes: Sequence[int]) -> None:
        self.rank = rank_of(node, x) - 2
        self.sizes = [int(size) for size in sizes]
        self.strides = [int(s) for s in node.get("strides") or [1] * self.rank]
        self.dilations = [int(d) for d in node.get("dilations") or [1] * self.rank]
        self.spans = [(k - 1) * d + 1 for k, d in zip(self.sizes, self.dilations, strict=True)]
        self.borders = self._borders(node, x)
        self.excess = self._excess(node, x)

    def _borders(self, node: NodeView, x: Tensor) -> list[tuple[int, int]]:
        pads = node.get("pads")
        auto = node.get("auto_pad", "NOTSET")
        if auto == "VALID":
            return [(0, 0)] * self.rank
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            return [self._same(node, x, axis, auto) for axis in range(self.rank)]
        pads = [0] * (2 * self.rank) if pads is None else [int(p) for p in pads]
        return [(pads[a], pads[a + self.rank]) for a in range(self.rank)]

    def _same(self, node: NodeView, x: Tensor, axis: int, auto: str) -> tuple[int, int]:
        size = x.shape.as_list()[2 + axis]
        if size is None:
            raise node.unsupported(f"auto_pad {auto} needs known sizes")
        stride = self.strides[axis]
        out = -(-size // stride)
        total = max(0, (out - 1) * stride + self.spans[axis] - size)
        small, large = total // 2, total - total // 2
        return (small, large) if auto == "SAME_UPPER" else (large, small)

    def _excess(self, node: NodeView, x: Tensor) -> list[int]:
        """What has to be added behind so that windows which begin inside are whole."""
        if not node.get("ceil_mode", 0):
            return [0] * self.rank
        result: list[int] = []
        for axis in range(self.rank):
            size = x.shape.as_list()[2 + axis]
            if size is None:
                raise node.unsupported("ceil_mode needs known sizes")
            before, after = self.borders[axis]
            stride, whole = self.strides[axis], size + before + after
            count = -(-(whole - self.spans[axis]) // stride) + 1
            if (count - 1) * stride >= size + before:  # it would begin in the border
                count -= 1
            result.append(max(0, (count - 1) * stride + self.spans[axis] - whole))
        return result

    @property
    def is_bare(self) -> bool:
        """Whether nothing is added around an image."""
        return not any(map(sum, self.borders)) and not any(self.excess)

    def padded(self, x: Tensor, value: Any) -> Tensor:
        """An image with its borders."""
        if self.is_bare:
            return x
        pairs = zip(self.borders, self.excess, strict=True)
        border = [(0, 0), (0, 0), *((before, after + more) for (before, after), more in pairs)]
        return padding.pad(x, np.array(border), constant_values=value)


def _as_2d(x: Tensor) -> tuple[Tensor, int]:
    """A line as an image of one row; how many axes were added."""
    return (shaping.expand_dims(x, 2), 1) if x.shape.rank == 3 else (x, 0)


# Convolutions


@operator("Conv")
def conv(node: NodeView, x: Tensor, w: Tensor, bias: Any = None) -> Tensor:
    kernel = node.get("kernel_shape") or known_sizes(node, w)[2:]
    window = Window(node, x, kernel)
    found = _convolved(node, window.padded(x, like(0, x)), w, window, int(node.get("group", 1)))
    return found if bias is None else found + _per_channel(bias, rank_of(node, x))


def _per_channel(values: Tensor, rank: int) -> Tensor:
    return shaping.reshape(values, [-1, *[1] * (rank - 2)])


def _convolved(node: NodeView, x: Tensor, w: Tensor, window: Window, groups: int) -> Tensor:
    """A convolution without borders; each group of channels by itself."""
    channels = x.shape.as_list()[1]
    if groups > 1 and groups == channels and w.shape.as_list()[0] == groups and window.rank == 2:
        return _depthwise(x, w, window)
    if groups > 1:
        parts = zip(splitting.split(x, groups, 1), splitting.split(w, groups, 0), strict=True)
        found = [_convolved(node, part, weights, window, 1) for part, weights in parts]
        return joining.concat(found, 1)
    rank = window.rank
    filters = transposing.transpose(w, [*range(2, 2 + rank), 1, 0])
    if rank == 1:
        filters = shaping.expand_dims(filters, 0)
        image, _ = _as_2d(x)
        strides, dilations = [1, *window.strides], [1, *window.dilations]
        found = convolution.conv2d(
            image,
            filters,
            [1, 1, *strides],
            "VALID",
            data_format="NCHW",
            dilations=[1, 1, *dilations],
        )
        return shaping.squeeze(found, [2])
    if rank not in (2, 3):
        raise node.unsupported(f"a convolution along {rank} axes")
    function = convolution.conv2d if rank == 2 else convolution.conv3d
    return function(
        x,
        filters,
        strides=[1, 1, *window.strides],
        padding="VALID",
        data_format="NCHW" if rank == 2 else "NCDHW",
        dilations=[1, 1, *window.dilations],
    )


def _depthwise(x: Tensor, w: Tensor, window: Window) -> Tensor:
    filters = transposing.transpose(w, [2, 3, 0, 1])
    return convolutions.depthwise_conv2d(
        x, filters, [1, 1, *window.strides], "VALID", window.dilations, data_format="NCHW"
    )


@operator("ConvTranspose")
def conv_transpose(node: NodeView, x: Tensor, w: Tensor, bias: Any = None) -> Tensor:
    """Each element spread over a window: a convolution of the input with zeros between."""
    rank = rank_of(node, x) - 2
    kernel = known_sizes(node, w)[2:]
    strides = [int(s) for s in node.get("strides") or [1] * rank]
    dilations = [int(d) for d in node.get("dilations") or [1] * rank]
    extra = [int(e) for e in node.get("output_padding") or [0] * rank]
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    borders = _transposed_borders(node, x, strides, spans, extra)
    for axis in range(rank):
        x = _with_gaps(x, 2 + axis, strides[axis])
    around = [
        (span - 1 - before, span - 1 - after + more)
        for span, (before, after), more in zip(spans, borders, extra, strict=True)
    ]
    x = bordered(node, x, np.array([(0, 0), (0, 0), *around]), "constant", like(0, x))
    groups = int(node.get("group", 1))
    weights = transposing.reverse(w, list(range(2, 2 + rank)))
    parts = splitting.split(weights, groups, 0) if groups > 1 else [weights]
    order = [1, 0, *range(2, 2 + rank)]
    transposed = [transposing.transpose(part, order) for part in parts]
    filters = joining.concat(transposed, 0) if groups > 1 else transposed[0]
    window = _plain_window(rank, kernel, dilations)
    found = _convolved(node, x, filters, window, groups)
    return found if bias is None else found + _per_channel(bias, rank + 2)


def _plain_window(rank: int, kernel: list[int], dilations: list[int]) -> Window:
    window = Window.__new__(Window)
    window.rank, window.sizes, window.dilations = rank, kernel, dilations
    window.strides, window.borders, window.excess = [1] * rank, [(0, 0)] * rank, [0] * rank
    window.spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    return window


def _transposed_borders(
    node: NodeView, x: Tensor, strides: list[int], spans: list[int], extra: list[int]
) -> list[tuple[int, int]]:
    rank = len(strides)
    shape, auto = node.get("output_shape"), node.get("auto_pad", "NOTSET")
    if shape is None and auto in ("NOTSET", "VALID"):
        pads = node.get("pads") or [0] * (2 * rank)
        return [(int(pads[a]), int(pads[a + rank])) for a in range(rank)]
    borders: list[tuple[int, int]] = []
    for axis in range(rank):
        size = x.shape.as_list()[2 + axis]
        if size is None:
            raise node.unsupported("sizes must be known")
        wanted = size * strides[axis] if shape is None else int(shape[-rank:][axis])
        total = strides[axis] * (size - 1) + extra[axis] + spans[axis] - wanted
        small, large = total // 2, total - total // 2
        borders.append((large, small) if auto == "SAME_LOWER" else (small, large))
    return borders


def _with_gaps(x: Tensor, axis: int, stride: int) -> Tensor:
    """A tensor with zeros between the elements of an axis."""
    if stride == 1:
        return x
    rank = x.shape.rank or 0
    wide = shaping.expand_dims(x, axis + 1)
    border = np.zeros((rank + 1, 2), np.int64)
    border[axis + 1, 1] = stride - 1
    sizes = sizes_of(x)
    sizes[axis] = sizes[axis] * stride
    spread = shaping.reshape(padding.pad(wide, border), shape_vector(sizes))
    index = [slice(None)] * rank
    index[axis] = slice(None, -(stride - 1))
    return spread[tuple(index)]


# Poolings


def _windows(x: Tensor, window: Window) -> Tensor:
    """[…, windows…, elements]: the elements under each place of a window."""
    sizes = shaping.shape(x)
    found = x
    for axis in range(window.rank):
        size = sizes[2 + axis]
        count = (size - window.spans[axis]) // window.strides[axis] + 1
        starts = filling.range(0, count) * window.strides[axis]
        inner = np.arange(window.sizes[axis]) * window.dilations[axis]
        places = shaping.expand_dims(starts, 1) + inner
        found = indexing.gather(found, places, axis=2 + 2 * axis)
    outer = [2 + 2 * axis for axis in range(window.rank)]
    inside = [3 + 2 * axis for axis in range(window.rank)]
    transposed = transposing.transpose(found, [0, 1, *outer, *inside])
    shape = shaping.shape(transposed)[: 2 + window.rank]
    return shaping.reshape(transposed, joining.concat([shape, [math.prod(window.sizes)]], 0))


def _lowest(x: Tensor) -> Tensor:
    dtype = x.dtype.base_dtype
    return like(-math.inf if dtype.is_floating else dtype.min, x)


@operator("MaxPool")
def max_pool(node: NodeView, x: Tensor) -> Any:
    window = Window(node, x, node.get("kernel_shape"))
    padded = window.padded(x, _lowest(x))
    result = reduce.reduce_max(_windows(padded, window), -1)
    if _is_native(window):
        result = _pooled(padded, window, "max")
    if not node.wants(1):
        return result
    return result, _max_places(node, x, window)


def _is_native(window: Window) -> bool:
    return window.rank == 2 and all(d == 1 for d in window.dilations)


def _pooled(x: Tensor, window: Window, kind: str) -> Tensor:
    function = pooling.max_pool if kind == "max" else pooling.avg_pool
    sizes, strides = [1, 1, *window.sizes], [1, 1, *window.strides]
    return function(x, sizes, strides, "VALID", data_format="NCHW")


def _max_places(node: NodeView, x: Tensor, window: Window) -> Tensor:
    """Where each maximum was, as a number in the whole input."""
    sizes = known_sizes(node, x)
    numbers: Any = np.arange(math.prod(sizes)).reshape(sizes)
    if node.get("storage_order", 0):
        image = np.arange(math.prod(sizes[2:])).reshape(sizes[2:][::-1]).T
        starts = np.arange(sizes[0] * sizes[1]).reshape(sizes[:2]) * math.prod(sizes[2:])
        numbers = starts[(..., *[None] * (len(sizes) - 2))] + image
    places = window.padded(constant(numbers.astype(np.int64)), np.int64(-1))
    values = _windows(window.padded(x, _lowest(x)), window)
    best = casting.cast(searching.argmax(values, -1), dtypes.int64)
    under = _windows(places, window)
    is_best = compare.equal(
        shaping.expand_dims(best, -1), np.arange(math.prod(window.sizes), dtype=np.int64)
    )
    chosen = choosing.where_v2(is_best, under, filling.zeros_like(under) - 1)
    return reduce.reduce_max(chosen, -1)


@operator("AveragePool")
def average_pool(node: NodeView, x: Tensor) -> Tensor:
    window = Window(node, x, node.get("kernel_shape"))
    if window.is_bare and _is_native(window):
        return _pooled(x, window, "average")
    total = reduce.reduce_sum(_windows(window.padded(x, like(0, x)), window), -1)
    inside = filling.ones_like(x)
    if node.get("count_include_pad", 0):
        border = np.array([(0, 0), (0, 0), *window.borders])
        inside = padding.pad(inside, border, constant_values=like(1, x))
        behind = np.array([(0, 0), (0, 0), *((0, more) for more in window.excess)])
        inside = padding.pad(inside, behind)
    else:
        inside = window.padded(inside, like(0, x))
    return total / reduce.reduce_sum(_windows(inside, window), -1)


@operator("LpPool")
def lp_pool(node: NodeView, x: Tensor) -> Tensor:
    window = Window(node, x, node.get("kernel_shape"))
    p = like(float(node.get("p", 2)), x)
    values = _windows(window.padded(arithmetic.absolute(x), like(0, x)), window)
    return arithmetic.power(reduce.reduce_sum(arithmetic.power(values, p), -1), like(1, x) / p)


@operator("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(node: NodeView, x: Tensor) -> Tensor:
    axes = list(range(2, rank_of(node, x)))
    if node.op == "GlobalMaxPool":
        return reduce.reduce_max(x, axes, True)
    if node.op == "GlobalAveragePool":
        return reduce.reduce_mean(x, axes, True)
    p = like(float(node.get("p", 2)), x)
    powers = arithmetic.power(arithmetic.absolute(x), p)
    return arithmetic.power(reduce.reduce_sum(powers, axes, True), like(1, x) / p)


@operator("MaxUnpool", since=9)
def max_unpool(node: NodeView, x: Tensor, places: Tensor, shape: Any = None) -> Tensor:
    """Values put back to where maxima were, zeros elsewhere."""
    window = Window(node, x, node.get("kernel_shape"))
    own = known_sizes(node, x)
    inner = [
        (size - 1) * stride - before - after + span
        for size, stride, (before, after), span in zip(
            own[2:], window.strides, window.borders, window.spans, strict=True
        )
    ]
    small = [*own[:2], *inner]
    flat = indexing.scatter_nd(
        shaping.reshape(places, [-1, 1]),
        shaping.reshape(x, [-1]),
        np.array([math.prod(small if shape is None else static_ints(shape) or small)], np.int64),
    )
    return shaping.reshape(flat, small if shape is None else static_ints(shape) or small)
