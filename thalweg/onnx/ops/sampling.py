"""Images read at points between their pixels: grids and regions of interest."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from thalweg.graph.node import Tensor
from thalweg.onnx.registry import NodeView, operator
from thalweg.onnx.values import rank_of
from thalweg.ops.core import python_call
from thalweg.platform.arrays import Array


@operator("GridSample", since=16)
def grid_sample(node: NodeView, x: Tensor, grid: Tensor) -> Tensor:
    """[batch, channels, …]: the image at points of a grid, which go from -1 to 1."""
    mode = str(node.get("mode", "linear")).removeprefix("bi")
    padding = node.get("padding_mode", "zeros")
    corners = bool(node.get("align_corners", 0))

    def read(image: Any, points: Any) -> Any:
        found = [
            _sampled(each, _places(where, each.shape[1:], corners), mode, padding, corners)
            for each, where in zip(image, points, strict=True)
        ]
        return np.stack(found).astype(image.dtype)

    result = python_call.numpy_function(read, [x, grid], x.dtype.base_dtype)
    batch, channels = x.shape.as_list()[:2]
    result.set_shape([batch, channels, *grid.shape.as_list()[1 : rank_of(node, grid) - 1]])
    return result


def _places(points: Array, sizes: tuple[int, ...], corners: bool) -> Array:
    """Points of a grid, the last axis first, as places among the pixels."""
    whole = np.array(sizes, np.float64)
    flipped = np.asarray(points, np.float64)[..., ::-1]
    return (flipped + 1) / 2 * (whole - 1) if corners else ((flipped + 1) * whole - 1) / 2


def _sampled(image: Array, places: Array, mode: str, padding: str, corners: bool) -> Array:
    sizes = np.array(image.shape[1:])
    places = np.rint(places) if mode == "nearest" else places
    low, high = (0.0, sizes - 1.0) if corners else (-0.5, sizes - 0.5)
    if padding == "border":
        places = np.clip(places, 0, sizes - 1)
    elif padding == "reflection":
        places = _reflected(places, low, high)
    first, weights = _taps(places, mode)
    total = np.zeros((image.shape[0], *places.shape[:-1]))
    for steps in itertools.product(*[range(weights.shape[0])] * len(sizes)):
        share = np.prod([weights[k, ..., axis] for axis, k in enumerate(steps)], 0)
        at = first + np.array(steps)
        total += share * _pixels(image, at, sizes, padding, low, high)
    return total


def _taps(places: Array, mode: str) -> tuple[Array, Array]:
    """The first pixels that count, and the weights of those from it on, along each axis."""
    if mode == "nearest":
        return places.astype(np.int64), np.ones((1, *places.shape))
    base = np.floor(places)
    part = places - base
    if mode == "linear":
        return base.astype(np.int64), np.stack([1 - part, part])
    distances = [part + 1, part, 1 - part, 2 - part]
    return base.astype(np.int64) - 1, np.stack([_cubic(distance) for distance in distances])


def _cubic(distance: Array, a: float = -0.75) -> Array:
    near = (a + 2) * distance**3 - (a + 3) * distance**2 + 1
    far = a * distance**3 - 5 * a * distance**2 + 8 * a * distance - 4 * a
    return np.where(distance <= 1, near, far)


def _pixels(image: Array, at: Array, sizes: Array, padding: str, low: Any, high: Any) -> Array:
    """Pixels at whole places; what lies outside is zero, the edge or mirrored."""
    if padding == "reflection":
        at = _reflected(at.astype(np.float64), low, high).astype(np.int64)
    inside = ((at >= 0) & (at < sizes)).all(-1)
    index = np.moveaxis(np.clip(at, 0, sizes - 1), -1, 0)
    found = image[(slice(None), *index)]
    return np.where(inside, found, 0) if padding == "zeros" else found


def _reflected(places: Array, first: Any, last: Any) -> Array:
    low, high = np.asarray(first, np.float64), np.asarray(last, np.float64)
    span = np.maximum(high - low, 1e-9)
    away = np.abs(places - low)
    turns = np.floor(away / span)
    rest = away - turns * span
    return np.where(turns % 2 == 0, low + rest, high - rest)


@operator("RoiAlign", since=10)
def roi_align(node: NodeView, x: Tensor, rois: Tensor, batches: Tensor) -> Tensor:
    """[regions, channels, rows, columns]: regions of images, averaged over points of each cell."""
    rows, columns = int(node.get("output_height", 1)), int(node.get("output_width", 1))
    ratio, scale = int(node.get("sampling_ratio", 0)), float(node.get("spatial_scale", 1.0))
    largest = node.get("mode", "avg") == "max"
    default = "half_pixel" if node.version >= 16 else "output_half_pixel"
    half = node.get("coordinate_transformation_mode", default) == "half_pixel"

    def read(images: Any, regions: Any, places: Any) -> Any:
        found = [
            _region(images[int(place)], region * scale, (rows, columns), ratio, half, largest)
            for region, place in zip(regions, places, strict=True)
        ]
        shape = (len(regions), images.shape[1], rows, columns)
        return np.array(found, images.dtype).reshape(shape)

    result = python_call.numpy_function(read, [x, rois, batches], x.dtype.base_dtype)
    result.set_shape([rois.shape.as_list()[0], x.shape.as_list()[1], rows, columns])
    return result


def _region(
    image: Array, region: Array, cells: tuple[int, int], ratio: int, half: bool, largest: bool
) -> Array:
    """One region of one image."""
    left, top, right, bottom = np.asarray(region, np.float64) - (0.5 if half else 0.0)
    spans = [bottom - top, right - left]
    if not half:
        spans = [max(span, 1.0) for span in spans]
    lines: list[Array] = []
    counts: list[int] = []
    for start, span, count in zip((top, left), spans, cells, strict=True):
        step = span / count
        points = ratio if ratio > 0 else int(np.ceil(step))
        inner = (np.array(range(points)) + 0.5) * step / max(points, 1)
        lines.append((start + np.array(range(count))[:, None] * step + inner).reshape(-1))
        counts.append(points)
    weighted = _bilinear(image, lines[0], lines[1])
    apart = weighted.reshape(4, image.shape[0], cells[0], counts[0], cells[1], counts[1])
    if largest:
        return apart.max((0, 3, 5))
    return apart.sum((0, 3, 5)) / max(counts[0] * counts[1], 1)


def _bilinear(image: Array, rows: Array, columns: Array) -> Array:
    """[4, channels, rows, columns]: the four pixels around each point, each with its weight."""
    sides: list[tuple[Array, Array, Array]] = []
    for at, size in ((rows, image.shape[1]), (columns, image.shape[2])):
        outside = (at < -1) | (at > size)
        at = np.clip(at, 0, size - 1)
        low = np.floor(at).astype(np.int64)
        high = np.minimum(low + 1, size - 1)
        part = np.where(outside, 0, at - low)
        whole = np.where(outside, 0, 1 - (at - low))
        sides.append((np.stack([low, high]), np.stack([whole, part]), outside))
    (y, wy, _), (x, wx, _) = sides
    found = [
        image[:, y[i]][:, :, x[j]] * (wy[i][:, None] * wx[j]) for i in range(2) for j in range(2)
    ]
    return np.stack(found)
