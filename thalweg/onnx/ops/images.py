"""Images: resizing, sampling at points, regions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from thalweg.graph.node import Tensor
from thalweg.onnx.registry import NodeView, operator
from thalweg.onnx.values import constant, known_sizes, like, static, static_ints
from thalweg.ops.arrays import transposing
from thalweg.ops.core import basic, casting, choosing
from thalweg.ops.linalg import tensordot as tensordots
from thalweg.platform.arrays import Array


@operator("Upsample", since=7)
def upsample_fixed(node: NodeView, x: Tensor) -> Tensor:
    return _resized(node, x, [float(s) for s in node.get("scales")], None, None)


@operator("Upsample", since=9)
@operator("Resize", since=10)
def resize_scaled(node: NodeView, x: Tensor, scales: Tensor) -> Tensor:
    known = static(scales)
    if known is None:
        raise node.unsupported("scales must be constants")
    return _resized(node, x, known.tolist(), None, None)


@operator("Resize", since=11)
def resize(
    node: NodeView, x: Tensor, roi: Any = None, scales: Any = None, sizes: Any = None
) -> Tensor:
    factors, wanted = static(scales), static_ints(sizes)
    if (scales is not None and factors is None) or (sizes is not None and wanted is None):
        raise node.unsupported("scales and sizes must be constants")
    given = None if factors is None or not factors.size else factors.tolist()
    regions = static(roi)
    return _resized(node, x, given, wanted, None if regions is None else regions.tolist())


def _resized(node: NodeView, x: Tensor, scales: Any, sizes: Any, roi: Any) -> Tensor:
    """A product with a matrix of weights along each axis that changes."""
    own = known_sizes(node, x)
    rank = len(own)
    axes = [a + rank if a < 0 else a for a in node.get("axes") or range(rank)]
    plan = _plan(node, own, axes, scales, sizes)
    kind = x.dtype.base_dtype
    found = x if kind.is_floating else casting.cast(x, "float32")
    for index, axis in enumerate(axes):
        scale, size = plan[index]
        region = (0.0, 1.0) if not roi else (roi[index], roi[index + len(axes)])
        if (
            size == own[axis]
            and scale == 1
            and node.get("coordinate_transformation_mode") != "tf_crop_and_resize"
        ):
            continue
        matrix, outside = _weights(node, own[axis], size, scale, region)
        found = _along(found, axis, matrix)
        if outside.any():
            found = _replaced(found, axis, outside, float(node.get("extrapolation_value", 0.0)))
    if kind.is_floating:
        return basic.identity(found) if found is x else found
    return casting.cast(found, kind)


def _plan(
    node: NodeView, own: list[int], axes: list[int], scales: Any, sizes: Any
) -> list[tuple[float, int]]:
    """For each axis, how much larger it gets and how large it is then."""
    if sizes is None:
        return [(float(s), math.floor(own[a] * s)) for a, s in zip(axes, scales, strict=True)]
    policy = node.get("keep_aspect_ratio_policy", "stretch")
    ratios = [size / own[a] for a, size in zip(axes, sizes, strict=True)]
    if policy == "stretch":
        return [(ratio, int(size)) for ratio, size in zip(ratios, sizes, strict=True)]
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    return [(ratio, math.floor(own[a] * ratio + 0.5)) for a in axes]


def _along(x: Tensor, axis: int, matrix: Array) -> Tensor:
    rank = x.shape.rank or 0
    weights = constant(matrix.astype(x.dtype.base_dtype.as_numpy_dtype))
    found = tensordots.tensordot(x, weights, [[axis], [1]])
    order = list(range(rank - 1))
    order.insert(axis, rank - 1)
    return transposing.transpose(found, order)


def _replaced(x: Tensor, axis: int, outside: Array, value: float) -> Tensor:
    rank = x.shape.rank or 0
    mask = outside.reshape([-1 if a == axis else 1 for a in range(rank)])
    return choosing.where_v2(constant(mask), like(value, x), x)


def _weights(
    node: NodeView, size: int, out: int, scale: float, region: tuple[float, float]
) -> tuple[Array, Array]:
    """[out, in]: of which elements each new one is the sum; which ones lie outside."""
    places = _places(node, size, out, scale, region)
    outside = np.zeros(out, bool)
    if node.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        outside = (places < 0) | (places > size - 1)
    mode = node.get("mode", "nearest")
    if mode == "nearest":
        return _nearest(node, places, size), outside
    shrink = min(scale, 1.0) if node.get("antialias", 0) else 1.0
    kernel = _linear if mode == "linear" else _cubic(float(node.get("cubic_coeff_a", -0.75)))
    reach = (1 if mode == "linear" else 2) / shrink
    array = np.zeros((out, size))
    for row, place in enumerate(places):
        first, last = math.floor(place - reach) + 1, math.ceil(place + reach)
        near = np.array(range(first, last + 1), np.int64)
        weights = np.array([kernel((place - k) * shrink) for k in range(first, last + 1)])
        if node.get("exclude_outside", 0):
            weights = np.where((near < 0) | (near >= size), 0.0, weights)
        weights = weights / weights.sum()
        np.add.at(array[row], np.clip(near, 0, size - 1), weights)
    return array, outside


def _places(
    node: NodeView, size: int, out: int, scale: float, region: tuple[float, float]
) -> Array:
    """Where new elements lie among the old ones."""
    at = np.arange(out, dtype=np.float64)
    default = "asymmetric" if node.version < 11 or node.op == "Upsample" else "half_pixel"
    mode = node.get("coordinate_transformation_mode", default)
    if mode == "asymmetric":
        return at / scale
    if mode == "align_corners":
        return at * (size - 1) / (out - 1) if out > 1 else np.zeros(out)
    if mode == "tf_crop_and_resize":
        start, end = region
        if out > 1:
            return start * (size - 1) + at * (end - start) * (size - 1) / (out - 1)
        return np.full(out, 0.5 * (start + end) * (size - 1))
    if mode == "pytorch_half_pixel" and out == 1:
        return np.full(out, -0.5)
    if mode == "half_pixel_symmetric":
        adjust = out / (scale * size)
        return size / 2 * (1 - adjust) + (at + 0.5) / scale - 0.5
    if mode not in ("half_pixel", "pytorch_half_pixel"):
        raise node.unsupported(f"the coordinate transformation {mode!r}")
    return (at + 0.5) / scale - 0.5


def _nearest(node: NodeView, places: Array, size: int) -> Array:
    default = "floor" if node.version < 11 or node.op == "Upsample" else "round_prefer_floor"
    mode = node.get("nearest_mode", default)
    if mode.startswith("round"):
        rounded = np.ceil(places - 0.5) if mode.endswith("floor") else np.floor(places + 0.5)
    else:
        rounded = np.floor(places) if mode == "floor" else np.ceil(places)
    chosen = np.clip(rounded, 0, size - 1).astype(np.int64)
    return np.eye(size)[chosen]


def _linear(distance: float) -> float:
    return max(0.0, 1 - abs(distance))


def _cubic(a: float) -> Any:
    def kernel(distance: float) -> float:
        d = abs(distance)
        if d <= 1:
            return (a + 2) * d**3 - (a + 3) * d**2 + 1
        return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else 0.0

    return kernel
