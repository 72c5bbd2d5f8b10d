"""How like two images are, and how rough one is."""

from __future__ import annotations

from typing import Any

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import float32
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.image.colour import convert_image_dtype
from thalweg.ops.math import arithmetic, reduce, transcendental
from thalweg.public import public

_LN10 = 2.302585092994046


@public("image.total_variation")
def total_variation(images: Any, name: str | None = None) -> Tensor:
    """The sum of absolute differences of neighbouring pixels, per image."""
    with name_scope(name, "total_variation", [images]):
        x = convert_to_tensor(images)
        if x.shape.rank not in (3, 4):
            raise ValueError("'images' must be either 3 or 4-dimensional.")
        if x.dtype.is_unsigned:
            raise TypeError(f"differences of {x.dtype.name} are not in its range; cast the images")
        down = x[..., 1:, :, :] - x[..., :-1, :, :]
        across = x[..., :, 1:, :] - x[..., :, :-1, :]
        axes = None if x.shape.rank == 3 else [1, 2, 3]
        return reduce.reduce_sum(abs(down), axes) + reduce.reduce_sum(abs(across), axes)


@public("image.psnr")
def psnr(a: Any, b: Any, max_val: Any, name: str | None = None) -> Tensor:
    """The peak signal-to-noise ratio of two images in decibels, per image."""
    with name_scope(name, "PSNR", [a, b]):
        first, second = convert_to_tensor(a), convert_to_tensor(b)
        peak = convert_image_dtype(convert_to_tensor(max_val, first.dtype), float32)
        difference = convert_image_dtype(first, float32) - convert_image_dtype(second, float32)
        error = reduce.reduce_mean(arithmetic.square(difference), [-3, -2, -1])
        return (20.0 * transcendental.log(peak) - 10.0 * transcendental.log(error)) / _LN10
