"""Image resizing: every method is a weighted sum of pixels along each axis.

A method defines one matrix per axis, with rows for output pixels and columns for input pixels; the
image is multiplied by both. Gradients are the same product with the matrices transposed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np

from thalweg import errors
from thalweg.graph.known import constant_value
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape
from thalweg.ir import loop
from thalweg.ir.expr import Expr, call, select
from thalweg.ir.loop import IndexTuple, Operand
from thalweg.ops.core import casting, shaping
from thalweg.platform import blas
from thalweg.platform.arrays import Array
from thalweg.public import public

Weights = Callable[[int, int, bool, bool], Array]


def _scale(size: int, target: int, align_corners: bool) -> float:
    if align_corners and target > 1:
        return (size - 1) / (target - 1)
    return size / target


def _positions(size: int, target: int, align_corners: bool, half_pixel: bool) -> Array:
    """The position of each output pixel in input pixels."""
    scale = np.float32(_scale(size, target, align_corners))
    places = np.arange(target, dtype=np.float32)
    return (places + np.float32(0.5)) * scale - np.float32(0.5) if half_pixel else places * scale


def bilinear_weights(size: int, target: int, align_corners: bool, half_pixel: bool) -> Array:
    """The weights of bilinear interpolation between two neighbours."""
    places = np.maximum(_positions(size, target, align_corners, half_pixel), 0)
    low = np.minimum(np.floor(places).astype(int), size - 1)
    high = np.minimum(low + 1, size - 1)
    fraction = places - low
    matrix = np.zeros((target, size), np.float32)
    rows = np.arange(target)
    np.add.at(matrix, (rows, low), 1 - fraction)
    np.add.at(matrix, (rows, high), fraction)
    return matrix


def nearest_indices(size: int, target: int, align_corners: bool, half_pixel: bool) -> Array:
    """The input pixel that each output pixel copies."""
    if half_pixel:
        scale = np.float32(_scale(size, target, align_corners))
        places = (np.arange(target, dtype=np.float32) + np.float32(0.5)) * scale
        return np.clip(np.floor(places), 0, size - 1).astype(int)
    places = _positions(size, target, align_corners, half_pixel=False)
    rounded = np.floor(places + np.float32(0.5)) if align_corners else np.floor(places)
    return np.minimum(rounded, size - 1).astype(int)


#: The resolution of cubic interpolation: weights are those of the nearest 1/1024.
_CUBIC_STEPS = 1024
_CUBIC_TAPS = range(-1, 3)


def bicubic_weights(size: int, target: int, align_corners: bool, half_pixel: bool) -> Array:
    """The weights of cubic interpolation between four neighbours.

    With half-pixel centres, neighbours beyond the borders are dropped and the other weights
    normalised; otherwise the border is repeated.
    """
    places = _positions(size, target, align_corners, half_pixel)
    base = np.floor(places)
    fraction = np.rint((places - base) * np.float32(_CUBIC_STEPS)) / np.float32(_CUBIC_STEPS)
    taps = np.array(_CUBIC_TAPS, np.float32)
    weights = _cubic(np.abs(fraction[:, None] - taps), _sharpness(half_pixel))
    sources = base[:, None] + taps
    columns = np.clip(sources, 0, size - 1).astype(int)
    if half_pixel:
        weights = np.where(columns == sources, weights, np.float32(0))
        weights /= weights.sum(-1, keepdims=True)
    matrix = np.zeros((target, size), np.float32)
    np.add.at(matrix, (np.arange(target)[:, None], columns), weights)
    return matrix


def _sharpness(half_pixel: bool) -> float:
    """The slope of the cubic at distance 1: Keys' own, or a steeper one."""
    return -0.5 if half_pixel else -0.75


def _cubic(distance: Array, a: float) -> Array:
    d = distance
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0)).astype(np.float32)


def _cubic_at(d: Expr, a: float) -> Expr:
    """`_cubic` for one distance."""
    near = (d * (a + 2) - (a + 3)) * d * d + 1
    far = ((d * a - 5 * a) * d + 8 * a) * d - 4 * a
    return select(d <= 1, near, select(d < 2, far, 0))


def _area_scale(size: int, target: int, align_corners: bool) -> float:
    """The input pixels that an output pixel covers; aligned corners of one pixel are ignored."""
    return _scale(size, target, align_corners) or size / target


def area_weights(size: int, target: int, align_corners: bool, half_pixel: bool) -> Array:
    """The weights of averages over the input area of each output pixel."""
    scale = _area_scale(size, target, align_corners)
    starts = np.arange(target)[:, None] * scale
    pixels = np.arange(size)[None, :]
    overlap = np.minimum(starts + scale, pixels + 1) - np.maximum(starts, pixels)
    matrix = np.maximum(overlap, 0)
    beyond = np.maximum(starts[:, 0] + scale - size, 0)
    matrix[:, -1] += np.minimum(beyond, scale)
    return (matrix / scale).astype(np.float32)


def _apply(images: Array, rows: Array, columns: Array) -> Array:
    """rows · image · columnsᵀ for every image and channel."""
    half = blas.tensordot(rows, images, (1, 1))  # [out_h, n, w, c]
    full = blas.tensordot(columns, half, (1, 2))  # [out_w, out_h, n, c]
    return np.ascontiguousarray(full.transpose(2, 1, 0, 3))


def _target(size: Array) -> tuple[int, int]:
    if np.shape(size) != (2,):
        raise errors.invalid(
            f"size must be a 1-D Tensor of 2 elements: {np.asarray(size).tolist()}"
        )
    height, width = np.asarray(size).tolist()
    if height <= 0 or width <= 0:
        raise errors.invalid(f"output dimensions must be positive, got {height} x {width}")
    return height, width


def _check_not_empty(images: Array) -> None:
    if 0 in images.shape[1:3]:
        raise errors.invalid(f"input image must be of non-zero size, got {images.shape}")


def _check_pixels(*shapes: Sequence[int]) -> None:
    if any(0 in shape[1:3] for shape in shapes):
        raise ValueError("an image without pixels")


@dataclass(frozen=True)
class Axis:
    """One axis of a resize in a loop, from `size` to `target` pixels."""

    size: int
    target: int
    align_corners: bool
    half_pixel: bool

    @property
    def scale(self) -> float:
        """The distance of two output pixels in input pixels."""
        return _scale(self.size, self.target, self.align_corners)

    @property
    def area(self) -> float:
        """The number of input pixels that an output pixel covers."""
        return _area_scale(self.size, self.target, self.align_corners)

    def position(self, index: Expr) -> Expr:
        """The position of an output pixel in input pixels."""
        scale, place = float(np.float32(self.scale)), index.cast(np.float32)
        return (place + 0.5) * scale - 0.5 if self.half_pixel else place * scale

    def nearest(self, index: Expr) -> Expr:
        """The input pixel that an output pixel copies."""
        scale, place = float(np.float32(self.scale)), index.cast(np.float32)
        if self.half_pixel:
            return self.pixel(((place + 0.5) * scale).floor())
        return self.pixel((place * scale + (0.5 if self.align_corners else 0.0)).floor())

    def pixel(self, place: Expr) -> Expr:
        """A position as the index of a pixel, clamped to the borders."""
        return place.max(0).min(self.size - 1).cast(np.int64)

    def holds(self, place: Expr) -> Expr:
        """Whether a position is between the borders."""
        return (place >= 0) & (place <= self.size - 1)


def axes(
    source: Sequence[int], target: Sequence[int], align_corners: bool, half_pixel: bool
) -> tuple[Axis, Axis]:
    """The axes of rows and columns."""
    rows, columns = (
        Axis(size, count, align_corners, half_pixel)
        for size, count in zip(source, target, strict=True)
    )
    return rows, columns


def two_neighbours(place: Expr, size: int, tap: Expr) -> tuple[Expr, Expr]:
    """The first or second neighbour of a non-negative position, and its weight."""
    low = place.floor().min(size - 1)
    source = (low + tap).min(size - 1).cast(np.int64)
    return source, (1 - tap - (place - low)).abs().cast(np.float32)


class Resize(Op, abstract=True):
    """Images [n, h, w, c] resized to `size`, as float32."""

    signature = "images: T, size: int32 -> resized_images: float32; T: real"
    weights: ClassVar[Weights]
    align_corners: bool = False
    half_pixel_centers: bool = False

    def shape(self, images: Tensor, size: Tensor) -> TensorShape:
        return _resized_shape(images, size)

    def numpy(self, images: Array, size: Array) -> Array:
        _check_not_empty(images)
        rows, columns = self.matrices(images.shape[1:3], _target(size))
        return _apply(images.astype(np.float32), rows, columns)

    def matrices(self, source: tuple[int, ...], target: tuple[int, int]) -> tuple[Array, Array]:
        """The weights of both axes."""
        options = self.align_corners, self.half_pixel_centers
        weights = type(self).weights
        return (
            weights(source[0], target[0], *options),
            weights(source[1], target[1], *options),
        )

    def loop(self, at: IndexTuple, images: Operand, size: Operand) -> Expr:
        _check_pixels(images.shape, at.shape)
        batch, row, column, channel = at
        extents, taps = self.taps(images.shape[1:3], at.shape[1:3])

        def part(i: Expr, j: Expr) -> Expr:
            (source_row, source_column), weight = taps(row, column, i, j)
            pixel = images[batch, source_row, source_column, channel]
            return pixel.cast(np.float32) * weight

        return loop.reduce("sum", extents, part)

    def taps(
        self, source: Sequence[int], target: Sequence[int]
    ) -> tuple[list[int], Callable[..., tuple[tuple[Expr, Expr], Expr]]]:
        """The numbers of source pixels by axis, and a function for each with its weight."""
        rows, columns = axes(source, target, self.align_corners, self.half_pixel_centers)

        def tap(row: Expr, column: Expr, i: Expr, j: Expr) -> tuple[tuple[Expr, Expr], Expr]:
            source_row, above = self.tap(rows, row, i)
            source_column, left = self.tap(columns, column, j)
            return (source_row, source_column), above * left

        return [self.tap_count(rows), self.tap_count(columns)], tap

    def tap_count(self, axis: Axis) -> int:
        """The number of source pixels along an axis."""
        raise TypeError(f"{self.type_name} does not say how many pixels it mixes")

    def tap(self, axis: Axis, index: Expr, number: Expr) -> tuple[Expr, Expr]:
        """Source pixel `number` of the output pixel at an index, and its weight."""
        raise TypeError(f"{self.type_name} does not say which pixels it mixes")

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        images = node.inputs[0]
        grad = ResizeGrad(method=self)(dy, images)
        return [casting.cast(grad, images.dtype), None]


def _resized_shape(images: Tensor, size: Tensor) -> TensorShape:
    batch, _, _, channels = images.shape.with_rank(4).as_list()
    size.shape.assert_is_compatible_with([2])
    target = constant_value(size)
    height, width = (None, None) if target is None else target.tolist()
    return TensorShape.of((batch, height, width, channels))


class ResizeGrad(Op):
    """The transpose of a resize: the gradients of input pixels"""

    private = True
    signature = "grads: float32, original_image: T -> output: float32; T: real"
    method: Op  # a Resize

    @property
    def resize(self) -> Resize:
        """The op of which this is the transpose."""
        return cast("Resize", self.method)

    def shape(self, grads: Tensor, original_image: Tensor) -> TensorShape:
        return original_image.shape

    def numpy(self, grads: Array, original_image: Array) -> Array:
        source, target = original_image.shape[1:3], (grads.shape[1], grads.shape[2])
        rows, columns = self.resize.matrices(source, target)
        return _apply(grads, rows.T, columns.T)

    def loop(self, at: IndexTuple, grads: Operand, original_image: Operand) -> loop.Scatter:
        extents, taps = self.resize.taps(at.shape[1:3], grads.shape[1:3])

        def part(*index: Expr) -> tuple[Sequence[Any], Expr]:
            (batch, row, column, channel), numbers = index[:4], index[4:]
            source, weight = taps(row, column, *numbers)
            return (batch, *source, channel), grads[index[:4]] * weight

        return loop.scatter("sum", [*grads.shape, *extents], part, 0)

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        size = shaping.shape(node.inputs[0])[1:3]
        return [self.method(dy, size), None]


class ResizeBilinear(Resize):
    """Images resized by bilinear interpolation"""

    weights = staticmethod(bilinear_weights)

    def tap_count(self, axis: Axis) -> int:
        return 2

    def tap(self, axis: Axis, index: Expr, number: Expr) -> tuple[Expr, Expr]:
        place = axis.position(index).max(0)
        return two_neighbours(place, axis.size, number.cast(np.float32))


class ResizeBicubic(Resize):
    """Images resized by cubic interpolation."""

    weights = staticmethod(bicubic_weights)

    def tap_count(self, axis: Axis) -> int:
        return 4

    def tap(self, axis: Axis, index: Expr, number: Expr) -> tuple[Expr, Expr]:
        place = axis.position(index)
        base = place.floor()
        fraction = call("rint", (place - base) * _CUBIC_STEPS) * (1 / _CUBIC_STEPS)
        tap, sharpness = number.cast(np.float32) - 1, _sharpness(axis.half_pixel)
        weight = _cubic_at((fraction - tap).abs(), sharpness)
        if axis.half_pixel:
            present = [
                select(axis.holds(base + k), _cubic_at((fraction - k).abs(), sharpness), 0)
                for k in _CUBIC_TAPS
            ]
            weight = select(axis.holds(base + tap), weight, 0) / sum(present[1:], present[0])
        return axis.pixel(base + tap), weight.cast(np.float32)


class ResizeArea(Resize):
    """Images resized; each pixel is the mean of its input area"""

    weights = staticmethod(area_weights)

    def tap_count(self, axis: Axis) -> int:
        return math.ceil(axis.area) + 1

    def tap(self, axis: Axis, index: Expr, number: Expr) -> tuple[Expr, Expr]:
        start = index.cast(np.float64) * axis.area
        source = start.floor() + number.cast(np.float64)
        overlap = (start + axis.area).min(source + 1) - start.max(source)
        return axis.pixel(source), (overlap.max(0) / axis.area).cast(np.float32)


class ResizeNearestNeighbor(Op):
    """Images resized; each pixel is a copy of the nearest one"""

    signature = "images: T, size: int32 -> resized_images: T; T: real"
    align_corners: bool = False
    half_pixel_centers: bool = False

    def shape(self, images: Tensor, size: Tensor) -> TensorShape:
        return _resized_shape(images, size)

    def numpy(self, images: Array, size: Array) -> Array:
        _check_not_empty(images)
        rows, columns = self.indices(images.shape[1:3], _target(size))
        return images[:, rows][:, :, columns]

    def loop(self, at: IndexTuple, images: Operand, size: Operand) -> Expr:
        _check_pixels(images.shape, at.shape)
        batch, row, column, channel = at
        options = self.align_corners, self.half_pixel_centers
        rows, columns = axes(images.shape[1:3], at.shape[1:3], *options)
        return images[batch, rows.nearest(row), columns.nearest(column), channel]

    def indices(self, source: tuple[int, ...], target: tuple[int, int]) -> tuple[Array, Array]:
        """The source rows and columns."""
        options = self.align_corners, self.half_pixel_centers
        return (
            nearest_indices(source[0], target[0], *options),
            nearest_indices(source[1], target[1], *options),
        )

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        size = shaping.shape(node.inputs[0])[1:3]
        op = ResizeNearestNeighborGrad(
            align_corners=self.align_corners, half_pixel_centers=self.half_pixel_centers
        )
        return [op(dy, size), None]


class ResizeNearestNeighborGrad(Op):
    """Sums the gradients of all copies of each pixel."""

    signature = "grads: T, size: int32 -> output: T; T: real"
    align_corners: bool = False
    half_pixel_centers: bool = False

    def shape(self, grads: Tensor, size: Tensor) -> TensorShape:
        return _resized_shape(grads, size)

    def numpy(self, grads: Array, size: Array) -> Array:
        source = _target(size)
        options = self.align_corners, self.half_pixel_centers
        rows = nearest_indices(source[0], grads.shape[1], *options)
        columns = nearest_indices(source[1], grads.shape[2], *options)
        result = np.zeros((grads.shape[0], *source, grads.shape[3]), grads.dtype)
        where: Any = (slice(None), rows[:, None], columns[None, :])
        np.add.at(result, where, grads)
        return result

    def loop(self, at: IndexTuple, grads: Operand, size: Operand) -> loop.Scatter:
        _check_pixels(at.shape)
        options = self.align_corners, self.half_pixel_centers
        rows, columns = axes(at.shape[1:3], grads.shape[1:3], *options)

        def part(batch: Expr, row: Expr, column: Expr, channel: Expr) -> tuple[Any, Expr]:
            source = batch, rows.nearest(row), columns.nearest(column), channel
            return source, grads[batch, row, column, channel]

        return loop.scatter("sum", grads.shape, part, 0)

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        size = shaping.shape(node.inputs[0])[1:3]
        op = ResizeNearestNeighbor(
            align_corners=self.align_corners, half_pixel_centers=self.half_pixel_centers
        )
        return [op(dy, size), None]


@public("image.resize_bilinear")
def resize_bilinear(
    images: Any,
    size: Any,
    align_corners: bool = False,
    name: str | None = None,
    half_pixel_centers: bool = False,
) -> Tensor:
    """Images of another size, by bilinear interpolation.

    Args:
        images: [batch, height, width, channels] of a real dtype.
        size: (height, width), two integers or an int32 vector.
        align_corners: whether the centres of the corner pixels are aligned.
        name: the name of the node.
        half_pixel_centers: whether positions are those of pixel centres.

    Returns:
        float32 images of that size.

    Example:
        >>> image = tf.reshape([0.0, 2.0], [1, 1, 2, 1])
        >>> sess.run(tf.image.resize_bilinear(image, [1, 4])).ravel()
        array([0., 1., 2., 2.], dtype=float32)
    """
    op = ResizeBilinear(align_corners=align_corners, half_pixel_centers=half_pixel_centers)
    return op(images, size, name=name)


@public("image.resize_nearest_neighbor")
def resize_nearest_neighbor(
    images: Any,
    size: Any,
    align_corners: bool = False,
    name: str | None = None,
    half_pixel_centers: bool = False,
) -> Tensor:
    """Images of another size, by copying the nearest pixels.

    Args:
        images: [batch, height, width, channels] of a real dtype.
        size: (height, width), two integers or an int32 vector.
        align_corners: whether the centres of the corner pixels are aligned.
        name: the name of the node.
        half_pixel_centers: whether positions are those of pixel centres.

    Returns:
        Images of that size and the same dtype.

    Example:
        >>> image = tf.reshape([1, 2], [1, 1, 2, 1])
        >>> sess.run(tf.image.resize_nearest_neighbor(image, [1, 4])).ravel()
        array([1, 1, 2, 2], dtype=int32)
    """
    op = ResizeNearestNeighbor(align_corners=align_corners, half_pixel_centers=half_pixel_centers)
    return op(images, size, name=name)


@public("image.resize_bicubic")
def resize_bicubic(
    images: Any,
    size: Any,
    align_corners: bool = False,
    name: str | None = None,
    half_pixel_centers: bool = False,
) -> Tensor:
    """Images of another size, by bicubic interpolation.

    Args:
        images: [batch, height, width, channels] of a real dtype.
        size: (height, width), two integers or an int32 vector.
        align_corners: whether the centres of the corner pixels are aligned.
        name: the name of the node.
        half_pixel_centers: whether positions are those of pixel centres.

    Returns:
        float32 images of that size.

    Example:
        >>> tf.image.resize_bicubic(tf.zeros([1, 4, 4, 3]), [8, 8]).shape.as_list()
        [1, 8, 8, 3]
    """
    op = ResizeBicubic(align_corners=align_corners, half_pixel_centers=half_pixel_centers)
    return op(images, size, name=name)


@public("image.resize_area")
def resize_area(
    images: Any, size: Any, align_corners: bool = False, name: str | None = None
) -> Tensor:
    """Resize [n, h, w, c] images to (height, width) by averaging areas."""
    return ResizeArea(align_corners=align_corners)(images, size, name=name)
