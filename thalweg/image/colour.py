"""Brightness, contrast, hue, saturation, gamma; dtypes and colour spaces of images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype, float32
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.image.checks import after, require, require_image, sizes_of
from thalweg.ops.arrays import joining, splitting
from thalweg.ops.core import basic, casting, filling, shaping
from thalweg.ops.image import colour
from thalweg.ops.math import arithmetic, compare, division, reduce, transcendental
from thalweg.ops.random import random
from thalweg.public import public

_LUMINANCE = (0.2989, 0.5870, 0.1140)


@public("image.convert_image_dtype")
def convert_image_dtype(
    image: Any, dtype: Any, saturate: bool = False, name: str | None = None
) -> Tensor:
    """Images of another dtype, their values scaled: floats lie in [0, 1], integers use their range.

    Args:
        image: a tensor of any shape.
        dtype: the dtype to convert to.
        saturate: cut values off that the dtype cannot hold, instead of letting them wrap.
        name: the name of the nodes.

    Returns:
        A tensor of the same shape and that dtype.

    Example:
        >>> pixels = tf.constant([0, 51, 255], tf.uint8)
        >>> sess.run(tf.image.convert_image_dtype(pixels, tf.float32))
        array([0. , 0.2, 1. ], dtype=float32)
    """
    tensor = convert_to_tensor(image, name="image")
    target, source = as_dtype(dtype), tensor.dtype.base_dtype
    if target is source:
        return basic.identity(tensor, name=name)
    with name_scope(name, "convert_image", [tensor]) as scope:
        if source.is_integer and target.is_integer:
            return _between_integers(tensor, target, saturate, scope)
        if source.is_floating and target.is_floating:
            return casting.cast(tensor, target, name=scope)
        if source.is_integer:
            return arithmetic.multiply(casting.cast(tensor, target), 1.0 / source.max, name=scope)
        return _converted(tensor * (target.max + 0.5), target, saturate, scope)


def _converted(x: Tensor, target: DType, saturate: bool, name: str | None = None) -> Tensor:
    if saturate:
        return casting.saturate_cast(x, target, name=name)
    return casting.cast(x, target, name=name)


def _between_integers(tensor: Tensor, target: DType, saturate: bool, scope: str) -> Tensor:
    source = tensor.dtype.base_dtype
    if source.max > target.max:
        scaled = tensor // ((source.max + 1) // (target.max + 1))
        return _converted(scaled, target, saturate, scope)
    return arithmetic.multiply(
        _converted(tensor, target, saturate), (target.max + 1) // (source.max + 1), name=scope
    )


def _in_floats(image: Any, change: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Apply a function to an image as float32 in [0, 1] and convert back, saturating."""
    tensor = convert_to_tensor(image, name="image")
    floats = convert_image_dtype(tensor, float32)
    return convert_image_dtype(change(floats, *arguments), tensor.dtype.base_dtype, saturate=True)


@public("image.adjust_brightness")
def adjust_brightness(image: TensorLike, delta: TensorLike) -> Tensor:
    """Images with a number added to all pixels.

    Args:
        image: a tensor of any shape.
        delta: what is added; 1 is the whole range of the dtype.

    Returns:
        A tensor of the shape and dtype of `image`.

    Example:
        >>> sess.run(tf.image.adjust_brightness(tf.constant([0.25, 0.5]), 0.25))
        array([0.5 , 0.75], dtype=float32)
    """
    with name_scope(None, "adjust_brightness", [image, delta]):
        return _in_floats(image, arithmetic.add, casting.cast(delta, float32))


@public("image.adjust_contrast")
def adjust_contrast(images: Any, contrast_factor: TensorLike) -> Tensor:
    """Images whose distances from the mean are multiplied by a factor.

    Args:
        images: [..., height, width, channels]; the mean is that of each channel of each image.
        contrast_factor: the factor.

    Returns:
        A tensor of the shape and dtype of `images`.

    Example:
        >>> image = tf.reshape([1.0, 3.0], [1, 2, 1])
        >>> sess.run(tf.image.adjust_contrast(image, 2.0)).ravel()
        array([0., 4.], dtype=float32)
    """
    with name_scope(None, "adjust_contrast", [images, contrast_factor]):
        return _in_floats(images, _contrasted, contrast_factor)


def _contrasted(x: Tensor, factor: TensorLike) -> Tensor:
    if x.shape.rank is not None and x.shape.rank < 3:
        raise ValueError(f"Shape must be at least rank 3, got {x.shape}")
    mean = reduce.reduce_mean(x, [-3, -2], keep_dims=True)
    return (x - mean) * casting.cast(factor, float32) + mean


@public("image.adjust_gamma")
def adjust_gamma(image: TensorLike, gamma: Tensor | float = 1, gain: TensorLike = 1) -> Tensor:
    """out = gain · in ** gamma, on values scaled to [0, 1]."""

    def change(x: Tensor, power: Tensor) -> Tensor:
        return casting.cast(gain, float32) * arithmetic.power(x, power)

    with name_scope(None, "adjust_gamma", [image, gamma, gain]):
        checks = require(gamma >= 0, "Gamma should be a non-negative real number.")
        power = after(checks, casting.cast(gamma, float32))
        return _in_floats(image, change, power)


@public("image.adjust_hue")
def adjust_hue(image: TensorLike, delta: TensorLike, name: str | None = None) -> Tensor:
    """RGB images whose hue is turned.

    The darkest and the brightest channel of a pixel keep their values, whatever their range.

    Args:
        image: [..., 3] RGB images.
        delta: by how much of the whole colour circle, from -1 to 1.
        name: the name of the nodes.

    Returns:
        A tensor of the shape and dtype of `image`.

    Example:
        >>> red = tf.constant([[[1.0, 0.0, 0.0]]])
        >>> sess.run(tf.image.adjust_hue(red, 1 / 3)).round(3)
        array([[[0., 1., 0.]]], dtype=float32)
    """

    def change(x: Tensor) -> Tensor:
        hue = colour.rgb_to_hsv(_coloured(x))[..., :1]
        shifted = (hue + (casting.cast(delta, float32) + 1.0)) % 1.0
        ones = filling.ones_like(shifted)
        pure = colour.hsv_to_rgb(joining.concat([shifted, ones, ones], -1))
        darkest = reduce.reduce_min(x, [-1], keep_dims=True)
        brightest = reduce.reduce_max(x, [-1], keep_dims=True)
        return darkest + pure * (brightest - darkest)

    with name_scope(name, "adjust_hue", [image]):
        return _in_floats(image, change)


@public("image.adjust_saturation")
def adjust_saturation(
    image: TensorLike, saturation_factor: TensorLike, name: str | None = None
) -> Tensor:
    """RGB images whose saturation is multiplied by a factor.

    Args:
        image: [..., 3] RGB images.
        saturation_factor: the factor; 0 makes grey.
        name: the name of the nodes.

    Returns:
        A tensor of the shape and dtype of `image`.

    Example:
        >>> sess.run(tf.image.adjust_saturation(tf.constant([[[1.0, 0.5, 0.5]]]), 0.0))
        array([[[1., 1., 1.]]], dtype=float32)
    """

    def change(x: Tensor) -> Tensor:
        hue, saturation, value = splitting.split(colour.rgb_to_hsv(_coloured(x)), 3, -1)
        factor = casting.cast(saturation_factor, float32)
        scaled = arithmetic.clip_by_value(saturation * factor, 0.0, 1.0)
        return colour.hsv_to_rgb(joining.concat([hue, scaled, value], -1))

    with name_scope(name, "adjust_saturation", [image]):
        return _in_floats(image, change)


def _coloured(x: Tensor) -> Tensor:
    x.shape.with_rank_at_least(3)
    return x


@public("image.random_brightness")
def random_brightness(image: Any, max_delta: float, seed: int | None = None) -> Tensor:
    """Images with one random number in [-max_delta, max_delta) added to all pixels.

    Args:
        image: a tensor of any shape.
        max_delta: the bound, not negative; 1 is the whole range of the dtype.
        seed: a number that fixes the sequence of values.

    Returns:
        A tensor of the shape and dtype of `image`.

    Example:
        >>> bright = sess.run(tf.image.random_brightness(tf.zeros([2, 2, 3]), 0.5, seed=1))
        >>> len(set(bright.ravel().tolist())), abs(bright[0, 0, 0]) <= 0.5
        (1, np.True_)
    """
    if max_delta < 0:
        raise ValueError("max_delta must be non-negative.")
    return adjust_brightness(image, random.random_uniform([], -max_delta, max_delta, seed=seed))


@public("image.random_contrast")
def random_contrast(image: Any, lower: float, upper: float, seed: int | None = None) -> Tensor:
    """Images whose distances from the mean are multiplied by a random factor in [lower, upper).

    Args:
        image: [..., height, width, channels]; the mean is that of each channel of each image.
        lower: the smallest factor, not negative.
        upper: the bound that factors stay below.
        seed: a number that fixes the sequence of values.

    Returns:
        A tensor of the shape and dtype of `image`.

    Example:
        >>> image = tf.reshape([0.0, 1.0], [1, 2, 1])
        >>> a, b = sess.run(tf.image.random_contrast(image, 0.5, 0.75, seed=1)).ravel()
        >>> round(float(a + b), 4), 0.5 <= b - a <= 0.75
        (1.0, np.True_)
    """
    _check_range(lower, upper)
    return adjust_contrast(image, random.random_uniform([], lower, upper, seed=seed))


@public("image.random_hue")
def random_hue(image: Any, max_delta: float, seed: int | None = None) -> Tensor:
    """RGB images whose hue is turned by a random amount in [-max_delta, max_delta).

    Args:
        image: [..., 3] RGB images.
        max_delta: the bound, from 0 to 0.5; 1 would be a whole turn.
        seed: a number that fixes the sequence of values.

    Returns:
        A tensor of the shape and dtype of `image`.

    Example:
        >>> grey = tf.fill([2, 2, 3], 0.5)
        >>> np.allclose(sess.run(tf.image.random_hue(grey, 0.25)), 0.5)
        True
    """
    if not 0 <= max_delta <= 0.5:
        raise ValueError(f"max_delta must be in [0, 0.5], got {max_delta}")
    return adjust_hue(image, random.random_uniform([], -max_delta, max_delta, seed=seed))


@public("image.random_saturation")
def random_saturation(image: Any, lower: float, upper: float, seed: int | None = None) -> Tensor:
    """RGB images whose saturation is multiplied by a random factor in [lower, upper).

    Args:
        image: [..., 3] RGB images.
        lower: the smallest factor, not negative.
        upper: the bound that factors stay below.
        seed: a number that fixes the sequence of values.

    Returns:
        A tensor of the shape and dtype of `image`.

    Example:
        >>> grey = tf.fill([2, 2, 3], 0.5)
        >>> np.allclose(sess.run(tf.image.random_saturation(grey, 0.5, 1.5)), 0.5)
        True
    """
    _check_range(lower, upper)
    return adjust_saturation(image, random.random_uniform([], lower, upper, seed=seed))


def _check_range(lower: float, upper: float) -> None:
    if lower < 0:
        raise ValueError("lower must be non-negative.")
    if upper <= lower:
        raise ValueError("upper must be > lower.")


@public("image.per_image_standardization", "image.per_image_whitening")
def per_image_standardization(image: Any) -> Tensor:
    """Images scaled to mean 0 and variance 1, each on its own.

    Args:
        image: [..., height, width, channels]; all pixels and channels of an image count.

    Returns:
        A float32 tensor of the same shape; an image of one colour becomes 0.

    Example:
        >>> image = tf.reshape([1.0, 3.0], [1, 2, 1])
        >>> sess.run(tf.image.per_image_standardization(image)).ravel()
        array([-1.,  1.], dtype=float32)
    """
    with name_scope(None, "per_image_standardization", [image]) as scope:
        tensor = convert_to_tensor(image, name="image")
        tensor = after(require_image(tensor, (3, 4)), tensor)
        values = casting.cast(tensor, float32)
        axes = [-1, -2, -3]
        mean = reduce.reduce_mean(values, axes, keep_dims=True)
        square = reduce.reduce_mean(arithmetic.square(values), axes, keep_dims=True)
        variance = arithmetic.maximum(square - arithmetic.square(mean), 0.0)
        pixels = reduce.reduce_prod(shaping.shape(values)[-3:])
        least = transcendental.rsqrt(casting.cast(pixels, float32))
        deviation = arithmetic.maximum(transcendental.sqrt(variance), least)
        return division.divide(values - mean, deviation, name=scope)


@public("image.rgb_to_grayscale")
def rgb_to_grayscale(images: Any, name: str | None = None) -> Tensor:
    """The luminance of RGB images, as one channel.

    Args:
        images: [..., 3] RGB images.
        name: the name of the nodes.

    Returns:
        A tensor [..., 1] of the same dtype.

    Example:
        >>> sess.run(tf.image.rgb_to_grayscale(tf.ones([1, 1, 3])))
        array([[[0.9999]]], dtype=float32)
    """
    with name_scope(name, "rgb_to_grayscale", [images]):
        tensor = convert_to_tensor(images, name="images")
        floats = convert_image_dtype(tensor, float32)
        gray = reduce.reduce_sum(floats * list(_LUMINANCE), [-1], keep_dims=True)
        gray.set_shape(tensor.shape[:-1].concatenate([1]))
        return convert_image_dtype(gray, tensor.dtype.base_dtype)


@public("image.grayscale_to_rgb")
def grayscale_to_rgb(images: Any, name: str | None = None) -> Tensor:
    """Grey images as RGB, with three equal channels.

    Args:
        images: [..., 1].
        name: the name of the nodes.

    Returns:
        A tensor [..., 3] of the same dtype.

    Example:
        >>> sess.run(tf.image.grayscale_to_rgb([[[0.5]]]))
        array([[[0.5, 0.5, 0.5]]], dtype=float32)
    """
    with name_scope(name, "grayscale_to_rgb", [images]) as scope:
        tensor = convert_to_tensor(images, name="images")
        one = shaping.shape(tensor)[-1] if tensor.shape.rank is None else sizes_of(tensor)[-1]
        checks = require(
            compare.equal(one, 1) if isinstance(one, Tensor) else one == 1,
            "Last dimension of a grayscale image should be size 1.",
        )
        grey = after(checks, tensor)
        lead = filling.ones_like(shaping.shape(grey)[:-1])
        rgb = joining.tile(grey, joining.concat([lead, [3]], 0), name=scope)
        rgb.set_shape(tensor.shape[:-1].concatenate([3]))
        return rgb
