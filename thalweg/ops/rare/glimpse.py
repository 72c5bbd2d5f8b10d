"""Glimpses: windows of images around given centres, with noise outside of the image."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg import errors
from thalweg.graph.analysis.effects import Resource, writes
from thalweg.graph.dtypes import float32, int32
from thalweg.graph.known import constant_value
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, matrix, vector
from thalweg.ops.core import casting, shaping
from thalweg.ops.core.context import Context
from thalweg.ops.random import distributions
from thalweg.ops.random.distributions import RESERVED
from thalweg.ops.random.philox import Stream
from thalweg.platform.arrays import Array
from thalweg.public import public


class ExtractGlimpse(Op):
    """y[b] = the window of x[b] of a size, centred at offsets[b] = (row, column)"""

    signature = "input: float32, size: int32, offsets: float32 -> glimpse: float32"
    effects = (writes(Resource.STREAM),)
    stateful = True  # the noise
    host_only = True  # the amount of noise depends on data
    not_differentiable = True
    centered: bool = True
    normalized: bool = True
    uniform_noise: bool = True

    def shape(self, input: Tensor, size: Tensor, offsets: Tensor) -> TensorShape:
        images = input.shape.with_rank(4)
        size.shape.merge_with(vector(2))
        batch = offsets.shape.merge_with(matrix(images[0], 2))[0]
        window = shaping.known_shape(size) if constant_value(size) is not None else [None, None]
        return TensorShape([batch, window[0], window[1], images[3]])

    def kernel(self, context: Context, input: Array, size: Array, offsets: Array) -> Array:
        window = tuple(size.tolist())
        if len(window) != 2 or min(window) <= 0:
            raise errors.invalid(f"size must be two positive numbers, got {list(window)}")
        if offsets.shape != (input.shape[0], 2):
            raise errors.invalid(
                f"offsets must be [{input.shape[0]}, 2], got {list(offsets.shape)}"
            )
        glimpses = np.empty((input.shape[0], *window, input.shape[3]), np.float32)
        stream = context.state(lambda: Stream(0, 0))
        for image, offset, glimpse in zip(input, offsets, glimpses, strict=True):
            corner = self._corner(image.shape[:2], window, offset)
            if not _inside(corner, window, image.shape[:2]):
                glimpse[...] = self._noise(stream, image, glimpse.shape)
            _copy_overlap(image, corner, glimpse)
        return glimpses

    def _corner(
        self, image: tuple[int, ...], window: tuple[int, ...], offset: Array
    ) -> tuple[int, int]:
        """The first row and column of the window, in pixels of the image."""
        extent = np.asarray(image, np.float32)
        place = offset * extent if self.normalized else offset
        if self.centered:
            place = place / 2 + extent / 2
        row, column = (place - np.asarray(window, np.float32) / 2).astype(np.int64).tolist()
        return row, column

    def _noise(self, stream: Any, image: Array, shape: tuple[int, ...]) -> Array:
        """Noise: uniform over the image's range, or normal with the moments of its channels."""
        count = int(np.prod(shape))
        generator = stream.reserve(count * RESERVED)
        if self.uniform_noise:
            low, high = np.min(image), np.max(image)
            drawn = distributions.uniform(generator, count, np.float32).reshape(shape)
            return drawn * (high - low) + low
        drawn = distributions.normal(generator, count, np.float32).reshape(shape)
        return drawn * np.std(image, (0, 1)) + np.mean(image, (0, 1))


def _inside(corner: tuple[int, int], window: tuple[int, ...], image: tuple[int, ...]) -> bool:
    parts = zip(corner, window, image, strict=True)
    return all(start >= 0 and start + length <= limit for start, length, limit in parts)


def _copy_overlap(image: Array, corner: tuple[int, int], glimpse: Array) -> None:
    """Copy the intersection of window and image."""
    source: list[slice] = []
    target: list[slice] = []
    for start, length, limit in zip(corner, glimpse.shape[:2], image.shape[:2], strict=True):
        first, last = max(start, 0), min(start + length, limit)
        if first >= last:
            return
        source.append(slice(first, last))
        target.append(slice(first - start, last - start))
    glimpse[tuple(target)] = image[tuple(source)]


@public("image.extract_glimpse")
def extract_glimpse(
    input: TensorLike,
    size: TensorLike,
    offsets: TensorLike,
    centered: bool = True,
    normalized: bool = True,
    uniform_noise: bool = True,
    name: str | None = None,
) -> Tensor:
    """Windows of a size around (row, column) offsets, one for each image.

    Normalized offsets range from -1 to 1 across the image if centered, else from 0 to 1.
    """
    op = ExtractGlimpse(centered=centered, normalized=normalized, uniform_noise=uniform_noise)
    images, places = casting.cast(input, float32), casting.cast(offsets, float32)
    return op(images, casting.cast(size, int32), places, name=name)
