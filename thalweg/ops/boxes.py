"""Bounding boxes: sampling, drawing, suppressing overlaps, cropping by them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg import errors
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import float32, int32
from thalweg.graph.known import constant_value
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import get_seed
from thalweg.graph.shapes import TensorShape, vector
from thalweg.loops import loop
from thalweg.loops.expr import Expr, select
from thalweg.loops.loop import Operand, Place, Requirement
from thalweg.ops import casting, shaping
from thalweg.ops.context import Context
from thalweg.ops.indexing import are_within
from thalweg.ops.resizing import two_neighbours
from thalweg.platform import blas
from thalweg.public import public

Array = NDArray[Any]


class SampleDistortedBoundingBoxV2(Op):
    """A random window of an image that covers enough of one of the given boxes."""

    signature = (
        "image_size: T, bounding_boxes: float32, min_object_covered: float32 "
        "-> begin: T, size: T, bboxes: float32; T: integer"
    )
    stateful = True
    host_only = True
    not_differentiable = True
    seed: int = 0
    seed2: int = 0
    aspect_ratio_range: tuple[float, float] = (0.75, 1.33)
    area_range: tuple[float, float] = (0.05, 1.0)
    max_attempts: int = 100
    use_image_if_no_bounding_boxes: bool = False

    def shape(
        self, image_size: Tensor, bounding_boxes: Tensor, min_object_covered: Tensor
    ) -> list[TensorShape]:
        return [vector(3), vector(3), TensorShape.of((1, 1, 4))]

    def kernel(
        self, context: Context, image_size: Array, bounding_boxes: Array, min_object_covered: Any
    ) -> tuple[Array, Array, Array]:
        generator = context.state(self._generator)
        height, width = int(image_size[0]), int(image_size[1])
        boxes = self._boxes(bounding_boxes)
        window = self._sample(generator, height, width, boxes, float(min_object_covered))
        top, left, bottom, right = window
        kind = image_size.dtype
        relative = [top / height, left / width, bottom / height, right / width]
        return (
            np.array([top, left, 0], kind),
            np.array([bottom - top, right - left, -1], kind),
            np.array(relative, np.float32).reshape(1, 1, 4),
        )

    def _generator(self) -> np.random.Generator:
        seeded = self.seed or self.seed2
        key = [self.seed & (2**64 - 1), self.seed2 & (2**64 - 1)] if seeded else None
        return np.random.Generator(np.random.Philox(key))

    def _boxes(self, bounding_boxes: Array) -> Array:
        boxes = bounding_boxes.reshape(-1, 4)
        if len(boxes):
            return boxes
        if not self.use_image_if_no_bounding_boxes:
            raise errors.InvalidArgumentError(
                None,
                None,
                "No bounding boxes provided as input. One must enable "
                "use_image_if_no_bounding_boxes if you wish to not provide any bounding boxes.",
            )
        return np.array([[0, 0, 1, 1]], np.float32)

    def _sample(
        self, random: np.random.Generator, height: int, width: int, boxes: Array, covered: float
    ) -> tuple[int, int, int, int]:
        for _ in range(self.max_attempts):
            box = boxes[random.integers(len(boxes))] * [height, width, height, width]
            window = self._candidate(random, height, width)
            if window is not None and _coverage(window, box) >= covered:
                return window
        return 0, 0, height, width

    def _candidate(
        self, random: np.random.Generator, height: int, width: int
    ) -> tuple[int, int, int, int] | None:
        """A window of random aspect ratio, area and place, if one fits."""
        low, high = self.aspect_ratio_range
        aspect = random.uniform(low, high)
        least, most = (bound * height * width for bound in self.area_range)
        shortest = max(1, int(np.ceil(np.sqrt(least / aspect))))
        longest = min(int(np.sqrt(most / aspect)), height, int(width / aspect))
        if longest < shortest:
            return None
        rows = int(random.integers(shortest, longest + 1))
        columns = round(rows * aspect)
        if not (0 < columns <= width and least <= rows * columns <= most):
            return None
        top = int(random.integers(height - rows + 1))
        left = int(random.integers(width - columns + 1))
        return top, left, top + rows, left + columns


def _coverage(window: tuple[int, int, int, int], box: Array) -> float:
    """The share of a box that a window covers."""
    area = (box[2] - box[0]) * (box[3] - box[1])
    if area <= 0:
        return 0.0
    rows = min(window[2], box[2]) - max(window[0], box[0])
    columns = min(window[3], box[3]) - max(window[1], box[1])
    return max(rows, 0.0) * max(columns, 0.0) / area


@public("image.sample_distorted_bounding_box")
def sample_distorted_bounding_box(
    image_size: Any,
    bounding_boxes: Any,
    seed: int | None = None,
    seed2: int | None = None,
    min_object_covered: Any = 0.1,
    aspect_ratio_range: Any = None,
    area_range: Any = None,
    max_attempts: int | None = None,
    use_image_if_no_bounding_boxes: bool | None = None,
    name: str | None = None,
) -> Any:
    """A random crop window (begin, size, box) that covers enough of one of the boxes."""
    first, second = (seed, seed2) if seed2 is not None else get_seed(seed)
    op = SampleDistortedBoundingBoxV2(
        seed=first or 0,
        seed2=second or 0,
        aspect_ratio_range=_range(aspect_ratio_range, (0.75, 1.33)),
        area_range=_range(area_range, (0.05, 1.0)),
        max_attempts=max_attempts or 100,
        use_image_if_no_bounding_boxes=bool(use_image_if_no_bounding_boxes),
    )
    return op(image_size, bounding_boxes, min_object_covered, name=name)


def _range(given: Any, default: tuple[float, float]) -> tuple[float, float]:
    low, high = default if given is None else given
    return float(low), float(high)


_PALETTE = np.array(
    [
        [1, 1, 0, 1],
        [0, 0, 1, 1],
        [1, 0, 0, 1],
        [0, 1, 0, 1],
        [0.5, 0, 0.5, 1],
        [0.5, 0.5, 0, 1],
        [0.5, 0, 0, 1],
        [0, 0, 0.5, 1],
        [0, 1, 1, 1],
        [1, 0, 1, 1],
    ],
    np.float32,
)


class DrawBoundingBoxes(Op):
    """Images with the borders of boxes drawn on them."""

    signature = "images: T, boxes: float32, colors: float32 -> output: T; T: floating"
    host_only = True
    not_differentiable = True

    def shape(self, images: Tensor, boxes: Tensor, colors: Tensor) -> TensorShape:
        return images.shape.with_rank(4)

    def numpy(self, images: Array, boxes: Array, colors: Array) -> Array:
        drawn = images.copy()
        palette = colors if colors.size else _PALETTE
        for image, its_boxes in zip(drawn, boxes, strict=True):
            for index, box in enumerate(its_boxes):
                _draw(image, box, palette[index % len(palette)])
        return drawn


def _draw(image: Array, box: Array, colour: Array) -> None:
    height, width, channels = image.shape
    top, bottom = (round(float(edge) * (height - 1)) for edge in (box[0], box[2]))
    left, right = (round(float(edge) * (width - 1)) for edge in (box[1], box[3]))
    outside = top >= height or bottom < 0 or left >= width or right < 0
    if top > bottom or left > right or outside:
        return
    paint = colour[:channels] if channels > 1 else 1
    rows = slice(max(top, 0), min(bottom, height - 1) + 1)
    columns = slice(max(left, 0), min(right, width - 1) + 1)
    for edge in (top, bottom):
        if 0 <= edge < height:
            image[edge, columns] = paint
    for edge in (left, right):
        if 0 <= edge < width:
            image[rows, edge] = paint


@public("image.draw_bounding_boxes")
def draw_bounding_boxes(
    images: Any, boxes: Any, name: str | None = None, colors: Any = None
) -> Tensor:
    """Draw the borders of [y_min, x_min, y_max, x_max] boxes, relative to the image, on images."""
    palette = np.zeros((0, 4), np.float32) if colors is None else colors
    return DrawBoundingBoxes()(images, boxes, palette, name=name)


class NonMaxSuppressionV3(Op):
    """The boxes of highest score that do not overlap a better one too much."""

    signature = (
        "boxes: T, scores: T, max_output_size: int32, iou_threshold: float32, "
        "score_threshold: float32 -> selected_indices: int32; T: floating"
    )
    host_only = True
    not_differentiable = True

    def shape(self, boxes: Tensor, scores: Tensor, *limits: Tensor) -> TensorShape:
        boxes.shape.assert_is_compatible_with([None, 4])
        boxes.shape.with_rank(2)[0].assert_is_compatible_with(scores.shape.with_rank(1)[0])
        return vector(None)

    def numpy(
        self,
        boxes: Array,
        scores: Array,
        max_output_size: Any,
        iou_threshold: Any,
        score_threshold: Any,
    ) -> Array:
        if not 0 <= iou_threshold <= 1:
            raise errors.InvalidArgumentError(None, None, "iou_threshold must be in [0, 1]")
        chosen: list[int] = []
        for index in np.argsort(-scores, kind="stable").tolist():
            if len(chosen) >= max_output_size:
                break
            if scores[index] <= score_threshold:
                continue
            if not chosen or np.all(_overlaps(boxes[index], boxes[chosen]) <= iou_threshold):
                chosen.append(index)
        return np.array(chosen, np.int32)


def _overlaps(box: Array, others: Array) -> Array:
    """Intersection over union of a box with others; corners may come in any order."""
    low, high = np.minimum(box[:2], box[2:]), np.maximum(box[:2], box[2:])
    lows = np.minimum(others[:, :2], others[:, 2:])
    highs = np.maximum(others[:, :2], others[:, 2:])
    common = np.prod(np.maximum(np.minimum(high, highs) - np.maximum(low, lows), 0), -1)
    area, areas = np.prod(high - low), np.prod(highs - lows, -1)
    union = area + areas - common
    return np.where((area > 0) & (areas > 0), common / np.where(union > 0, union, 1), 0)


@public("image.non_max_suppression")
def non_max_suppression(
    boxes: Any,
    scores: Any,
    max_output_size: Any,
    iou_threshold: Any = 0.5,
    score_threshold: Any = float("-inf"),
    name: str | None = None,
) -> Tensor:
    """Indices of the best boxes, each overlapping no better one by more than the threshold."""
    return NonMaxSuppressionV3()(
        boxes, scores, max_output_size, iou_threshold, score_threshold, name=name
    )


class CropAndResize(Op):
    """Boxes of images, cut out and resized to one size."""

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

    def numpy(self, image: Array, boxes: Array, box_ind: Array, crop_size: Array) -> Array:
        _check_boxes(image, box_ind, crop_size)
        crops = np.empty((len(boxes), *crop_size.tolist(), image.shape[3]), np.float32)
        for crop, box, index in zip(crops, boxes, box_ind, strict=True):
            rows, columns = crop_matrices(image.shape, box, crop_size, self.method)
            half = blas.tensordot(rows[0], image[index].astype(np.float32), (1, 0))
            crop[:] = blas.tensordot(half, columns[0], (1, 1)).transpose(0, 2, 1)
            inside = rows[1][:, None] & columns[1][None, :]
            crop[~inside] = self.extrapolation_value
        return crops

    def loop(
        self, at: Place, image: Operand, boxes: Operand, box_ind: Operand, crop_size: Operand
    ) -> Expr:
        if 0 in at.shape[1:3]:
            raise ValueError("crop dimensions must be positive")
        box, row, column, channel = at
        crop = CropPixel(boxes, box, (row, column), image.shape[1:3], at.shape[1:3])

        def part(*numbers: Expr) -> Expr:
            source, weight = crop.tap(self.method, numbers)
            pixel = image.or_else((box_ind[box], *source, channel), 0)
            return pixel.cast(np.float32) * weight

        mixed = loop.reduce("sum", _TAPS[self.method], part)
        return select(crop.inside, mixed, self.extrapolation_value).cast(np.float32)

    def requires(
        self, image: Operand, boxes: Operand, box_ind: Operand, crop_size: Operand
    ) -> list[Requirement]:
        return [are_within(box_ind, image.shape[0])]

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        image, boxes, box_ind, _ = node.inputs
        op = CropAndResizeGradImage(method=self.method)
        grad = op(dy, boxes, box_ind, shaping.shape(image))
        return [casting.cast(grad, image.dtype), None, None, None]


def _check_boxes(image: Array, box_ind: Array, crop_size: Array) -> None:
    if np.any(crop_size <= 0):
        raise errors.InvalidArgumentError(
            None, None, f"crop dimensions must be positive: {crop_size.tolist()}"
        )
    if np.any((box_ind < 0) | (box_ind >= len(image))):
        raise errors.InvalidArgumentError(
            None, None, f"box_ind {box_ind.tolist()} has values outside [0, {len(image)})"
        )


def crop_matrices(
    shape: tuple[int, ...], box: Array, crop_size: Array, method: str
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """For rows and columns: the weights of the source pixels, and which lie inside the image."""
    size = crop_size.tolist()
    return (
        _crop_axis(shape[1], float(box[0]), float(box[2]), size[0], method),
        _crop_axis(shape[2], float(box[1]), float(box[3]), size[1], method),
    )


def _crop_axis(size: int, start: float, end: float, count: int, method: str) -> tuple[Array, Array]:
    if count > 1:
        places = start * (size - 1) + np.arange(count) * ((end - start) * (size - 1) / (count - 1))
    else:
        places = np.array([0.5 * (start + end) * (size - 1)])
    inside = (places >= 0) & (places <= size - 1)
    matrix = np.zeros((count, size), np.float32)
    clipped = np.clip(places, 0, size - 1)
    rows = np.arange(count)
    if method == "nearest":
        matrix[rows, np.floor(clipped + 0.5).astype(int)] = 1
        return matrix, inside
    low = np.floor(clipped).astype(int)
    high = np.minimum(low + 1, size - 1)
    np.add.at(matrix, (rows, low), 1 - (clipped - low))
    np.add.at(matrix, (rows, high), clipped - low)
    return matrix, inside


#: how many pixels make one, by axis
_TAPS = {"bilinear": (2, 2), "nearest": (1, 1)}


class CropPixel:
    """A pixel of a crop in a loop: where it lies in the image, and whether that is inside."""

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
            _crop_place(
                boxes[box, axis].cast(np.float64), boxes[box, axis + 2].cast(np.float64), *sizes
            )
            for axis, sizes in enumerate(zip(image, crop, at, strict=True))
        ]
        row, column = (
            (place >= 0) & (place <= size - 1)
            for place, size in zip(self._places, self._sizes, strict=True)
        )
        self.inside = row & column

    def tap(self, method: str, numbers: Sequence[Expr]) -> tuple[list[Expr], Expr]:
        """The row and column of one of the pixels that are mixed, and its weight."""
        taps = [
            _crop_tap(place.max(0).min(size - 1), size, number, method)
            for place, size, number in zip(self._places, self._sizes, numbers, strict=True)
        ]
        (_, above), (_, left) = taps
        return [source for source, _ in taps], above * left


def _crop_place(start: Expr, end: Expr, size: int, count: int, index: Expr) -> Expr:
    if count > 1:
        return start * (size - 1) + (end - start) * (size - 1) / (count - 1) * index
    return (start + end) * 0.5 * (size - 1)


def _crop_tap(place: Expr, size: int, number: Expr, method: str) -> tuple[Expr, Expr]:
    if method == "bilinear":
        return two_neighbours(place, size, number.cast(np.float64))
    return (place + 0.5).floor().cast(np.int64), (number + 1).cast(np.float32)


class CropAndResizeGradImage(Op):
    """The gradients of crops brought back to the images they were cut from."""

    signature = (
        "grads: float32, boxes: float32, box_ind: int32, image_size: int32 -> output: float32"
    )
    method: str = "bilinear"

    def shape(
        self, grads: Tensor, boxes: Tensor, box_ind: Tensor, image_size: Tensor
    ) -> TensorShape:
        return shaping.known_shape(image_size)

    def numpy(self, grads: Array, boxes: Array, box_ind: Array, image_size: Array) -> Array:
        result = np.zeros(tuple(image_size.tolist()), np.float32)
        size = np.array(grads.shape[1:3])
        for grad, box, index in zip(grads, boxes, box_ind, strict=True):
            rows, columns = crop_matrices(result.shape, box, size, self.method)
            kept = grad * (rows[1][:, None] & columns[1][None, :])[..., None]
            half = blas.tensordot(rows[0].T, kept, (1, 0))
            result[index] += blas.tensordot(half, columns[0], (1, 0)).transpose(0, 2, 1)
        return result

    def loop(
        self, at: Place, grads: Operand, boxes: Operand, box_ind: Operand, image_size: Operand
    ) -> loop.Scatter:
        if not grads.shape[0] == boxes.shape[0] == box_ind.shape[0]:
            raise ValueError("as many crops as boxes and indices of images are needed")

        def part(*index: Expr) -> tuple[Sequence[Any], Expr]:
            (box, row, column, channel), numbers = index[:4], index[4:]
            crop = CropPixel(boxes, box, (row, column), at.shape[1:3], grads.shape[1:3])
            source, weight = crop.tap(self.method, numbers)
            value = select(crop.inside, grads[index[:4]] * weight, 0)
            return (box_ind[box], *source, channel), value

        return loop.scatter("sum", [*grads.shape, *_TAPS[self.method]], part, 0)

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        grads, boxes, box_ind, _ = node.inputs
        size = shaping.shape(grads)[1:3]
        return [CropAndResize(method=self.method)(dy, boxes, box_ind, size), None, None, None]


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
    """Cut the boxes out of the images `box_ind` names and resize each to `crop_size`."""
    if method not in ("bilinear", "nearest"):
        raise ValueError(f"method must be 'bilinear' or 'nearest', got {method!r}")
    indices = box_ind if box_indices is None else box_indices
    op = CropAndResize(method=method, extrapolation_value=float(extrapolation_value))
    size = convert_to_tensor(crop_size, int32)
    return op(image, convert_to_tensor(boxes, float32), indices, size, name=name)
