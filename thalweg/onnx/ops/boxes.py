"""Boxes of images: suppression of those that overlap better ones."""

from __future__ import annotations

import numpy as np

from thalweg.platform.arrays import Array


def suppressed(
    boxes: Array, scores: Array, most: Array, iou: Array, score: Array, is_center: bool
) -> Array:
    """The (batch, class, box) that stay, of each class of each image by falling score."""
    corners = _corners(np.asarray(boxes, np.float32), is_center)
    found: list[tuple[int, int, int]] = []
    for batch, classes in enumerate(scores):
        for kind, row in enumerate(classes):
            kept: list[int] = []
            for box in np.argsort(-row, kind="stable").tolist():
                if len(kept) >= int(most) or row[box] <= float(score):
                    break
                overlaps = (_overlap(corners[batch][box], corners[batch][k]) for k in kept)
                if all(overlap <= float(iou) for overlap in overlaps):
                    kept.append(box)
            found += [(batch, kind, box) for box in kept]
    return np.array(found, np.int64).reshape(-1, 3)


def _corners(boxes: Array, is_center: bool) -> Array:
    """Boxes as the lower and the upper corner."""
    if is_center:
        x, y, width, height = np.moveaxis(boxes, -1, 0)
        return np.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], -1)
    first, second = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], -1)


def _overlap(first: Array, second: Array) -> float:
    """The area that two boxes share, of the area that they cover."""
    low, high = np.maximum(first[:2], second[:2]), np.minimum(first[2:], second[2:])
    shared = float(np.prod(np.maximum(high - low, 0)))
    areas = [float(np.prod(box[2:] - box[:2])) for box in (first, second)]
    return shared / (sum(areas) - shared) if shared else 0.0
