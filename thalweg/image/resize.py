"""`resize_images` and decoding of any format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import as_dtype
from thalweg.graph.known import constant_value
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.image import colour
from thalweg.image.checks import after, require_image, require_positive
from thalweg.image.geometry import as_image, pad_to_bounding_box
from thalweg.ops.arrays import joining
from thalweg.ops.core import casting, shaping
from thalweg.ops.image.codecs import DecodeImage
from thalweg.ops.image.resizing import (
    resize_area,
    resize_bicubic,
    resize_bilinear,
    resize_nearest_neighbor,
)
from thalweg.ops.math import arithmetic, reduce, rounding
from thalweg.public import public

if TYPE_CHECKING:
    pass


@public("image.ResizeMethod")
class ResizeMethod:
    """How pixels are mixed when an image is resized, for `tf.image.resize_images`.

    Example:
        >>> image = tf.reshape([0.0, 2.0], [1, 2, 1])
        >>> nearest = tf.image.ResizeMethod.NEAREST_NEIGHBOR
        >>> sess.run(tf.image.resize_images(image, [1, 4], nearest)).ravel()
        array([0., 0., 2., 2.], dtype=float32)
    """

    BILINEAR = 0
    NEAREST_NEIGHBOR = 1
    BICUBIC = 2
    AREA = 3


_METHODS: dict[Any, Any] = {
    ResizeMethod.BILINEAR: resize_bilinear,
    ResizeMethod.NEAREST_NEIGHBOR: resize_nearest_neighbor,
    ResizeMethod.BICUBIC: resize_bicubic,
    ResizeMethod.AREA: resize_area,
}


@public("image.resize_images", "image.resize")
def resize_images(
    images: Any,
    size: Any,
    method: int | str = ResizeMethod.BILINEAR,
    align_corners: bool = False,
    preserve_aspect_ratio: bool = False,
    name: str | None = None,
) -> Tensor:
    """Images of another size.

    Args:
        images: [batch, height, width, channels], or one image without a batch.
        size: (height, width), two integers or an int32 vector.
        method: a `tf.image.ResizeMethod`: bilinear (the default), nearest neighbour, bicubic, area.
        align_corners: whether the centres of the corner pixels stay where they are.
        preserve_aspect_ratio: shrink the target to the shape of the images.
        name: the name of the nodes.

    Returns:
        float32 images of that size; of the dtype of `images` by nearest neighbour, or where the
        size does not change.

    Example:
        >>> image = tf.reshape([0.0, 2.0, 4.0, 6.0], [2, 2, 1])
        >>> sess.run(tf.image.resize_images(image, [4, 4])).shape
        (4, 4, 1)
    """
    if method not in _METHODS:
        raise ValueError("Resize method is not implemented.")
    with name_scope(name, "resize", [images, size]):
        tensor = convert_to_tensor(images, name="images")
        if tensor.shape.rank not in (3, 4):
            known = "no shape" if tensor.shape.rank is None else f"shape {tensor.shape}"
            raise ValueError(f"'images' must have either 3 or 4 dimensions; it has {known}.")
        batch = tensor if tensor.shape.rank == 4 else shaping.expand_dims(tensor, 0)
        resized = _resized(batch, size, method, align_corners, preserve_aspect_ratio)
        return resized if tensor.shape.rank == 4 else shaping.squeeze(resized, [0])


def _resized(
    batch: Tensor, size: Any, method: Any, align_corners: bool, preserve_aspect_ratio: bool
) -> Tensor:
    target = _target(size)
    if preserve_aspect_ratio:
        target = _proportional(batch, target)
    known = constant_value(target)
    if known is not None and known.tolist() == batch.shape.as_list()[1:3]:
        return batch
    return _METHODS[method](batch, target, align_corners=align_corners)


def _target(size: Any) -> Tensor:
    try:
        target = convert_to_tensor(size, dtypes.int32, name="size")
    except (TypeError, ValueError) as error:
        raise ValueError(f"'size' must be a 1-D int32 Tensor: {error}") from error
    if not target.shape.is_compatible_with([2]):
        raise ValueError("'size' must be a 1-D Tensor of 2 elements: new_height, new_width")
    return target


def _proportional(batch: Tensor, target: Tensor) -> Tensor:
    """The largest size within `target` that keeps the shape of the image."""
    source = casting.cast(shaping.shape(batch)[1:3], dtypes.float32)
    scale = reduce.reduce_min(casting.cast(target, dtypes.float32) / source)
    return casting.cast(rounding.round_half_even(source * scale), dtypes.int32)


@public("image.resize_image_with_pad")
def resize_image_with_pad(
    image: Any,
    target_height: Tensor | int,
    target_width: Tensor | int,
    method: int | str = ResizeMethod.BILINEAR,
    align_corners: bool = False,
) -> Tensor:
    """Resize within the target keeping the aspect ratio, and pad the rest evenly with zeros."""
    with name_scope(None, "resize_image_with_pad", [image]):
        tensor = as_image(image)
        checks = require_image(tensor, (3, 4))
        checks += require_positive(target_width, "target_width")
        checks += require_positive(target_height, "target_height")
        tensor = after(checks, tensor)
        target = casting.cast(joining.stack([target_height, target_width]), dtypes.float32)
        source = casting.cast(shaping.shape(tensor)[-3:-1], dtypes.float32)
        fitted = source / reduce.reduce_max(source / target)
        margins = arithmetic.maximum(_whole((target - fitted) / 2.0), 0)
        resized = resize_images(tensor, _whole(fitted), method, align_corners)
        return pad_to_bounding_box(resized, margins[0], margins[1], target_height, target_width)


def _whole(x: Tensor) -> Tensor:
    whole: Tensor = rounding.floor(x)
    return casting.cast(whole, dtypes.int32)


@public("image.decode_image", "io.decode_image")
def decode_image(
    contents: Any,
    channels: int | None = None,
    dtype: Any = dtypes.uint8,
    name: str | None = None,
    expand_animations: bool = True,
) -> Tensor:
    """The pixels of a BMP, GIF, JPEG or PNG file, whichever it is.

    Args:
        contents: the bytes of the file, a scalar string.
        channels: 0 or None as the file has them, 1 grey, 3 RGB, 4 RGBA.
        dtype: the dtype to convert pixels to, as `tf.image.convert_image_dtype` does.
        name: the name of the nodes.
        expand_animations: whether a GIF gives all its frames, [frames, height, width, 3].

    Returns:
        A tensor [height, width, channels] whose static shape is unknown.

    Example:
        >>> file = tf.image.encode_png(np.zeros([4, 6, 3], np.uint8))
        >>> sess.run(tf.image.decode_image(file)).shape
        (4, 6, 3)
    """
    if channels not in (None, 0, 1, 3, 4):
        raise ValueError("channels must be in (None, 0, 1, 3, 4)")
    op = DecodeImage(channels=channels or 0, expand_animations=expand_animations)
    return colour.convert_image_dtype(op(contents, name=name), as_dtype(dtype))
