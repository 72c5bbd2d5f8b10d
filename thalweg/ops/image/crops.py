"""Crops: boxes of images, resized to one size, differentiable in images and boxes.

A crop is a weighted sum of pixels along each axis. Along an axis of `slopes` the weights are
replaced by their derivatives with respect to the pixel's position, for the gradients of boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import float32, int32
from thalweg.graph.known import constant_value
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape
from thalweg.ir import loop
from thalweg.ir.expr import Expr, select
from thalweg.ir.loop import IndexTuple, Operand, RuntimeCheck
from thalweg.ops.arrays import joining
from thalweg.ops.arrays.indexing import are_within
from thalweg.ops.core import casting, choosing, filling, shaping
from thalweg.ops.image.resizing import two_neighbours
from thalweg.ops.math import arithmetic, reduce
from thalweg.platform import blas
from thalweg.platform.arrays import Array
from thalweg.public import public

_AXES = (0, 1)


class CropAndResize(Op):
    """Boxes of images, cropped and resized to one size"""

    signature = (
        "image: T, boxes: float32, box_ind: int32, crop_size: int32 -> crops: float32; T: real"
    )
    method: str = "bilinear"
    extrapolation_value: float = 0.0

    def shape(
        self, image: Tensor, boxes: Tensor, box_ind: Tensor, crop_size: Tensor
    ) -> TensorShape:
        channels = image.shape.with_rank(4).as_list()[3]
        count = boxes.shape.with_rank(2)[0].merge_with(box_ind.shape.with_rank(1)[0]).value
        size = constant_value(crop_size)
        height, width = (None, None) if size is None else size.tolist()
        return TensorShape.of((count, height, width, channels))

    def methods(self) -> list[str]:
        """The interpolation methods of each axis."""
        return [self.method, self.method]

    def numpy(self, image: Array, boxes: Array, box_ind: Array, crop_size: Array) -> Array:
        _check_boxes(image, box_ind, crop_size)
        crops = np.empty((len(boxes), *crop_size.tolist(), image.shape[3]), np.float32)
        for crop, box, index in zip(crops, boxes, box_ind, strict=True):
            rows, columns = crop_matrices(image.shape, box, crop_size, self.methods())
            half = blas.tensordot(rows[0], image[index].astype(np.float32), (1, 0))
            crop[:] = blas.tensordot(half, columns[0], (1, 1)).transpose(0, 2, 1)
            inside = rows[1][:, None] & columns[1][None, :]
            crop[~inside] = self.extrapolation_value
        return crops

    def loop(
        self, at: IndexTuple, image: Operand, boxes: Operand, box_ind: Operand, crop_size: Operand
    ) -> Expr:
        if 0 in at.shape[1:3]:
            raise ValueError("crop dimensions must be positive")
        box, row, column, channel = at
        crop = CropPixel(boxes, box, (row, column), image.shape[1:3], at.shape[1:3])

        def part(*numbers: Expr) -> Expr:
            source, weight = crop.tap(self.methods(), numbers)
            pixel = image.or_else((box_ind[box], *source, channel), 0)
            return pixel.cast(np.float32) * weight

        mixed = loop.reduce("sum", _tap_counts(self.methods()), part)
        return select(crop.inside, mixed, self.extrapolation_value).cast(np.float32)

    def requires(
        self, image: Operand, boxes: Operand, box_ind: Operand, crop_size: Operand
    ) -> list[RuntimeCheck]:
        return [are_within(box_ind, image.shape[0])]

    def transposed(self) -> CropAndResizeGradImage:
        """The op that maps gradients of crops to those of images."""
        return CropAndResizeGradImage(method=self.method)

    def slope(self, axis: int) -> CropSlope | None:
        """The op for the derivative with respect to the pixel's position along an axis; None for 0.

        Nearest neighbours are differentiated as bilinear interpolation, which they approximate.
        """
        return CropSlope(slopes=(axis,))

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        image, boxes, box_ind, _ = node.inputs
        grad = self.transposed()(dy, boxes, box_ind, shaping.shape(image))
        to_boxes = _box_gradient(self, image, boxes, box_ind, dy)
        return [casting.cast(grad, image.dtype), to_boxes, None, None]


class CropSlope(CropAndResize):
    """The derivative of bilinear crops with respect to pixel positions along some axes"""

    private = True

    slopes: tuple[int, ...]

    def methods(self) -> list[str]:
        return ["slope" if axis in self.slopes else self.method for axis in _AXES]

    def transposed(self) -> CropAndResizeGradImage:
        return CropSlopeGradImage(slopes=self.slopes)

    def slope(self, axis: int) -> CropSlope | None:
        """None along axes of `slopes`: crops are piecewise linear, so second derivatives are 0."""
        return None if axis in self.slopes else CropSlope(slopes=(*self.slopes, axis))


def _box_gradient(
    op: CropAndResize, image: Tensor, boxes: Tensor, box_ind: Tensor, grads: Tensor
) -> Tensor:
    """The gradient of crops with respect to their boxes, [y_min, x_min, y_max, x_max]."""
    count = shaping.shape(grads)
    size = casting.cast(shaping.shape(image)[1:3] - 1, float32)
    starts: list[Tensor] = []
    ends: list[Tensor] = []
    for axis in _AXES:
        slope = op.slope(axis)
        if slope is None:
            starts.append(filling.zeros_like(boxes[:, 0]))
            ends.append(starts[-1])
            continue
        slopes = slope(image, boxes, box_ind, count[1:3])
        along = reduce.reduce_sum(grads * slopes, [2 - axis, 3]) * size[axis]
        share = _end_share(count[1 + axis])
        starts.append(reduce.reduce_sum(along * (1.0 - share), 1))
        ends.append(reduce.reduce_sum(along * share, 1))
    return joining.stack([*starts, *ends], 1)


def _end_share(count: Tensor) -> Tensor:
    """The derivative of the position of each of `count` pixels of a crop by the end of the box."""
    steps = casting.cast(filling.range(count), float32)
    last = casting.cast(arithmetic.maximum(count - 1, 1), float32)
    middle = filling.zeros_like(steps) + 0.5
    return choosing.where_v2(count > 1, steps / last, middle)


def _check_boxes(image: Array, box_ind: Array, crop_size: Array) -> None:
    if np.any(crop_size <= 0):
        raise errors.invalid(f"crop dimensions must be positive: {crop_size.tolist()}")
    if np.any((box_ind < 0) | (box_ind >= len(image))):
        raise errors.invalid(f"box_ind {box_ind.tolist()} has values outside [0, {len(image)})")


def crop_matrices(
    shape: tuple[int, ...], box: Array, crop_size: Array, methods: Sequence[str]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """For rows and columns: the weights of the source pixels, and whether they are inside."""
    size = crop_size.tolist()
    return (
        _crop_axis(shape[1], box[0], box[2], size[0], methods[0]),
        _crop_axis(shape[2], box[1], box[3], size[1], methods[1]),
    )


def _crop_places(size: int, start: Any, end: Any, count: int) -> Array:
    """The positions of the pixels of a crop, in float32: rounding decides which are integral."""
    extent = np.float32(size - 1)
    if count > 1:
        step = (end - start) * extent / np.float32(count - 1)
        return start * extent + np.arange(count, dtype=np.float32) * step
    return np.array([np.float32(0.5) * (start + end) * extent])


def _crop_axis(size: int, start: Any, end: Any, count: int, method: str) -> tuple[Array, Array]:
    places = _crop_places(size, start, end, count)
    inside = (places >= 0) & (places <= size - 1)
    matrix = np.zeros((count, size), np.float32)
    clipped = np.clip(places, 0, size - 1)
    rows = np.arange(count)
    if method == "nearest":
        matrix[rows, np.floor(clipped + 0.5).astype(int)] = 1
        return matrix, inside
    low, high = np.floor(clipped).astype(int), np.ceil(clipped).astype(int)
    above, below = (1, -1) if method == "slope" else (clipped - low, 1 - (clipped - low))
    np.add.at(matrix, (rows, low), below)
    np.add.at(matrix, (rows, high), above)
    return matrix, inside


def _tap_counts(methods: Sequence[str]) -> list[int]:
    """The number of source pixels of a pixel, by axis."""
    return [1 if method == "nearest" else 2 for method in methods]


class CropPixel:
    """A pixel of a crop in a loop: its position in the image, and whether it is inside."""

    def __init__(
        self,
        boxes: Operand,
        box: Expr,
        at: Sequence[Expr],
        image: Sequence[int],
        crop: Sequence[int],
    ) -> None:
        if boxes.shape[1] != 4:
            raise ValueError(f"boxes have {boxes.shape[1]} ends, not 4")
        self._sizes = tuple(image)
        self._places = [
            _crop_place(boxes[box, axis], boxes[box, axis + 2], *sizes)
            for axis, sizes in enumerate(zip(image, crop, at, strict=True))
        ]
        row, column = (
            (place >= 0) & (place <= size - 1)
            for place, size in zip(self._places, self._sizes, strict=True)
        )
        self.inside = row & column

    def tap(self, methods: Sequence[str], numbers: Sequence[Expr]) -> tuple[list[Expr], Expr]:
        """The row and column of a source pixel, and its weight."""
        parts = zip(self._places, self._sizes, numbers, methods, strict=True)
        taps = [
            _crop_tap(place.max(0).min(size - 1), size, number, method)
            for place, size, number, method in parts
        ]
        (_, above), (_, left) = taps
        return [source for source, _ in taps], above * left


def _crop_place(start: Expr, end: Expr, size: int, count: int, index: Expr) -> Expr:
    if count > 1:
        step = (end - start) * (size - 1) / (count - 1)
        return start * (size - 1) + step * index.cast(np.float32)
    return (start + end) * 0.5 * (size - 1)


def _crop_tap(place: Expr, size: int, number: Expr, method: str) -> tuple[Expr, Expr]:
    if method == "bilinear":
        return two_neighbours(place, size, number.cast(np.float32))
    if method == "slope":
        source = select(number.eq(0), place.floor(), place.ceil())
        return source.cast(np.int64), (number * 2 - 1).cast(np.float32)
    return (place + 0.5).floor().cast(np.int64), (number + 1).cast(np.float32)


class CropAndResizeGradImage(Op):
    """The gradients of images from those of their crops"""

    signature = (
        "grads: float32, boxes: float32, box_ind: int32, image_size: int32 -> output: float32"
    )
    method: str = "bilinear"

    def shape(
        self, grads: Tensor, boxes: Tensor, box_ind: Tensor, image_size: Tensor
    ) -> TensorShape:
        return shaping.known_shape(image_size)

    def forward(self) -> CropAndResize:
        """The op whose transpose this is."""
        return CropAndResize(method=self.method)

    def numpy(self, grads: Array, boxes: Array, box_ind: Array, image_size: Array) -> Array:
        result = np.zeros(tuple(image_size.tolist()), np.float32)
        size, methods = np.array(grads.shape[1:3]), self.forward().methods()
        for grad, box, index in zip(grads, boxes, box_ind, strict=True):
            rows, columns = crop_matrices(result.shape, box, size, methods)
            kept = grad * (rows[1][:, None] & columns[1][None, :])[..., None]
            half = blas.tensordot(rows[0].T, kept, (1, 0))
            result[index] += blas.tensordot(half, columns[0], (1, 0)).transpose(0, 2, 1)
        return result

    def loop(
        self, at: IndexTuple, grads: Operand, boxes: Operand, box_ind: Operand, image_size: Operand
    ) -> loop.Scatter:
        if not grads.shape[0] == boxes.shape[0] == box_ind.shape[0]:
            raise ValueError("as many crops as boxes and indices of images are needed")
        methods = self.forward().methods()

        def part(*index: Expr) -> tuple[Sequence[Any], Expr]:
            (box, row, column, channel), numbers = index[:4], index[4:]
            crop = CropPixel(boxes, box, (row, column), at.shape[1:3], grads.shape[1:3])
            source, weight = crop.tap(methods, numbers)
            value = select(crop.inside, grads[index[:4]] * weight, 0)
            return (box_ind[box], *source, channel), value

        return loop.scatter("sum", [*grads.shape, *_tap_counts(methods)], part, 0)

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        """Σ dy · this = Σ crops(dy) · grads: the gradients of crops with dy as images."""
        grads, boxes, box_ind, _ = node.inputs
        crop = self.forward()
        to_grads = crop(dy, boxes, box_ind, shaping.shape(grads)[1:3])
        return [to_grads, _box_gradient(crop, dy, boxes, box_ind, grads), None, None]


class CropSlopeGradImage(CropAndResizeGradImage):
    """The transpose of `CropSlope`."""

    private = True

    slopes: tuple[int, ...]

    def forward(self) -> CropAndResize:
        return CropSlope(slopes=self.slopes)


@public("image.crop_and_resize")
def crop_and_resize(
    image: Any,
    boxes: Any,
    box_ind: Any = None,
    crop_size: Any = None,
    method: str = "bilinear",
    extrapolation_value: float = 0,
    name: str | None = None,
    box_indices: Any = None,
) -> Tensor:
    """Boxes of images, cropped and resized to one size.

    Args:
        image: [batch, height, width, channels].
        boxes: [boxes, 4] as [y_min, x_min, y_max, x_max], relative to the image.
        box_ind: [boxes]: the image of each box.
        crop_size: (height, width), int32.
        method: "bilinear" or "nearest".
        extrapolation_value: the value outside of the image.
        name: the name of the node.
        box_indices: another name of `box_ind`.

    Returns:
        float32 [boxes, height, width, channels].

    Example:
        >>> images, box = tf.ones([1, 8, 8, 3]), [[0.0, 0.0, 0.5, 0.5]]
        >>> tf.image.crop_and_resize(images, box, [0], [4, 4]).shape.as_list()
        [1, 4, 4, 3]
    """
    if method not in ("bilinear", "nearest"):
        raise ValueError(f"method must be 'bilinear' or 'nearest', got {method!r}")
    indices = box_ind if box_indices is None else box_indices
    op = CropAndResize(method=method, extrapolation_value=float(extrapolation_value))
    size = convert_to_tensor(crop_size, int32)
    return op(image, convert_to_tensor(boxes, float32), indices, size, name=name)
