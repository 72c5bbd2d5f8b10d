"""Bounding boxes: sampling, drawing, suppressing overlaps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.graph.analysis.effects import Resource, writes
from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import get_seed
from thalweg.graph.shapes import TensorShape, vector
from thalweg.ops.core.context import Context
from thalweg.platform.arrays import Array
from thalweg.public import public


class SampleDistortedBoundingBoxV2(Op):
    """A random window of an image that covers enough of one of the given boxes."""

    signature = (
        "image_size: T, bounding_boxes: float32, min_object_covered: float32 "
        "-> begin: T, size: T, bboxes: float32; T: integer"
    )
    effects = (writes(Resource.STREAM),)
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
            raise errors.invalid(
                "No bounding boxes provided as input. One must enable "
                "use_image_if_no_bounding_boxes if you wish to not provide any bounding boxes."
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
        """A window of random aspect ratio, area and position, if it fits in the image."""
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
    aspect_ratio_range: Sequence[float] | None = None,
    area_range: Sequence[float] | None = None,
    max_attempts: int | None = None,
    use_image_if_no_bounding_boxes: bool | None = None,
    name: str | None = None,
) -> Any:
    """A random window to crop an image by, which covers enough of one of its boxes.

    Args:
        image_size: [height, width, channels], integers.
        bounding_boxes: [batch, boxes, 4] as [y_min, x_min, y_max, x_max] in [0, 1].
        seed, seed2: numbers that fix the sequence of windows.
        min_object_covered: the share of a box that the window must cover.
        aspect_ratio_range: bounds of width / height.
        area_range: bounds of the share of the image.
        max_attempts: the number of windows to try before the whole image is used.
        use_image_if_no_bounding_boxes: whether the whole image is a box if there are none.
        name: the name of the node.

    Returns:
        (begin, size, box): the arguments of `tf.slice`, and the window as a box [1, 1, 4].

    Example:
        >>> boxes = tf.constant([[[0.0, 0.0, 1.0, 1.0]]])
        >>> begin, size, box = tf.image.sample_distorted_bounding_box([8, 8, 3], boxes)
        >>> begin.shape.as_list(), box.shape.as_list()
        ([3], [1, 1, 4])
    """
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


#: The supported numbers of channels of images to draw on: grey, RGB, RGBA.
_DRAWN = (1, 3, 4)


class DrawBoundingBoxes(Op):
    """Images with the borders of boxes drawn on them."""

    signature = "images: T, boxes: float32, colors: float32 -> output: T; T: floating"
    host_only = True
    not_differentiable = True

    def shape(self, images: Tensor, boxes: Tensor, colors: Tensor) -> TensorShape:
        shape = images.shape.with_rank(4)
        if shape[3].value not in (None, *_DRAWN):
            raise ValueError(f"the last dimension must be one of {_DRAWN} channels, got {shape}")
        boxes.shape.assert_is_compatible_with([shape[0], None, 4])
        colors.shape.assert_is_compatible_with([None, 4])
        return shape

    def numpy(self, images: Array, boxes: Array, colors: Array) -> Array:
        _check_drawn(images, boxes, colors)
        drawn = images.copy()
        palette = colors if colors.size else _palette(images.shape[3])
        for image, its_boxes in zip(drawn, boxes, strict=True):
            for index, box in enumerate(its_boxes):
                _draw(image, box, palette[index % len(palette)])
        return drawn


def _palette(channels: int) -> Array:
    """The default colours of boxes: white on grey images."""
    return _PALETTE if channels > 1 else np.ones((1, 4), np.float32)


def _check_drawn(images: Array, boxes: Array, colors: Array) -> None:
    if images.shape[3] not in _DRAWN:
        raise errors.invalid(f"images must have one of {_DRAWN} channels, got {images.shape}")
    if boxes.ndim != 3 or boxes.shape[0] != len(images) or boxes.shape[2] != 4:
        raise errors.invalid(f"boxes must be [{len(images)}, count, 4], got {list(boxes.shape)}")
    if colors.ndim != 2 or colors.shape[1] != 4:
        raise errors.invalid(f"colors must be [count, 4] (RGBA), got {list(colors.shape)}")


def _draw(image: Array, box: Array, colour: Array) -> None:
    height, width, channels = image.shape
    extent = np.array([height - 1, width - 1] * 2, np.float32)
    top, left, bottom, right = np.trunc(box * extent).tolist()
    outside = top >= height or bottom < 0 or left >= width or right < 0
    if not (top <= bottom and left <= right) or outside:
        return
    rows = slice(int(max(top, 0)), int(min(bottom, height - 1)) + 1)
    columns = slice(int(max(left, 0)), int(min(right, width - 1)) + 1)
    for edge in (top, bottom):
        if 0 <= edge < height:
            image[int(edge), columns] = colour[:channels]
    for edge in (left, right):
        if 0 <= edge < width:
            image[rows, int(edge)] = colour[:channels]


@public("image.draw_bounding_boxes")
def draw_bounding_boxes(
    images: Any, boxes: Any, name: str | None = None, colors: Any = None
) -> Tensor:
    """Images with the borders of boxes drawn on them.

    Args:
        images: [batch, height, width, channels], floating.
        boxes: [batch, boxes, 4] as [y_min, x_min, y_max, x_max], relative to the image.
        name: the name of the node.
        colors: [colors, channels], used cyclically; a default palette if None.

    Returns:
        A tensor of the shape and dtype of `images`.

    Example:
        >>> images = tf.zeros([1, 4, 4, 3])
        >>> drawn = tf.image.draw_bounding_boxes(images, [[[0.0, 0.0, 1.0, 1.0]]])
        >>> sess.run(drawn)[0, 0, 0].any(), sess.run(drawn)[0, 1, 1].any()
        (np.True_, np.False_)
    """
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
            raise errors.invalid("iou_threshold must be in [0, 1]")
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
    """Intersection over union of a box with others; corners may be in any order."""
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
    """The best boxes, none overlapping a better one too much.

    Args:
        boxes: float32 [boxes, 4], corners (y, x, y, x).
        scores: [boxes].
        max_output_size: the maximum number of boxes.
        iou_threshold: the maximum intersection over union of two boxes.
        score_threshold: the minimum score.
        name: the name of the node.

    Returns:
        int32 indices of the boxes, best first.

    Example:
        >>> boxes = [[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.9], [2.0, 2.0, 3.0, 3.0]]
        >>> sess.run(tf.image.non_max_suppression(boxes, [0.9, 0.8, 0.7], 3))
        array([0, 2], dtype=int32)
    """
    return NonMaxSuppressionV3()(
        boxes, scores, max_output_size, iou_threshold, score_threshold, name=name
    )
