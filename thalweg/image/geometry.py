"""Flipping, turning, cropping and padding images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import float64, int32
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.image.checks import (
    after,
    require,
    require_image,
    require_not_negative,
    require_positive,
    sizes_of,
    static,
)
from thalweg.ops.arrays import joining, padding, slicing, transposing
from thalweg.ops.core import casting, choosing, filling, shaping
from thalweg.ops.image.rotation import TurnQuarters
from thalweg.ops.math import arithmetic, compare
from thalweg.ops.random import random
from thalweg.public import public

if TYPE_CHECKING:
    pass


def as_image(image: Any) -> Tensor:
    """The image as a tensor; of unknown rank, it must be a single one."""
    tensor = convert_to_tensor(image, name="image")
    return tensor if tensor.shape.rank is not None else shaping.ensure_shape(tensor, [None] * 3)


def _one_or_many(image: Any) -> Tensor:
    tensor = as_image(image)
    return after(require_image(tensor, (3, 4)), tensor)


def _of_any_rank(image: Any) -> Tensor:
    """An image or a batch, which of both may be known in the step only."""
    tensor = convert_to_tensor(image, name="image")
    return after(require_image(tensor, (3, 4)), tensor)


def _flipped(image: Tensor, axis: int) -> Tensor:
    """Reverse along height (0) or width (1), counted from the end for batches."""
    return transposing.reverse(image, [axis - 3])


@public("image.flip_left_right")
def flip_left_right(image: Any) -> Tensor:
    """Images mirrored from left to right.

    Args:
        image: [height, width, channels], or a batch.

    Returns:
        A tensor of the same shape and dtype.

    Example:
        >>> sess.run(tf.image.flip_left_right([[[1], [2]]])).ravel()
        array([2, 1], dtype=int32)
    """
    return _flipped(_of_any_rank(image), 1)


@public("image.flip_up_down")
def flip_up_down(image: Any) -> Tensor:
    """Images mirrored from top to bottom.

    Args:
        image: [height, width, channels], or a batch.

    Returns:
        A tensor of the same shape and dtype.

    Example:
        >>> sess.run(tf.image.flip_up_down([[[1]], [[2]]])).ravel()
        array([2, 1], dtype=int32)
    """
    return _flipped(_of_any_rank(image), 0)


@public("image.random_flip_left_right")
def random_flip_left_right(image: Any, seed: int | None = None) -> Tensor:
    """Images mirrored from left to right, or not, as likely as not.

    Args:
        image: [height, width, channels], or a batch, each image of which has its own chance.
        seed: a number that fixes the sequence of choices.

    Returns:
        A tensor of the shape and dtype of `image`.

    Example:
        >>> image = tf.reshape([1.0, 2.0], [1, 2, 1])
        >>> sorted(sess.run(tf.image.random_flip_left_right(image)).ravel().tolist())
        [1.0, 2.0]
    """
    return _randomly_flipped(image, 1, seed)


@public("image.random_flip_up_down")
def random_flip_up_down(image: Any, seed: int | None = None) -> Tensor:
    """Images mirrored from top to bottom, or not, as likely as not.

    Args:
        image: [height, width, channels], or a batch, each image of which has its own chance.
        seed: a number that fixes the sequence of choices.

    Returns:
        A tensor of the shape and dtype of `image`.

    Example:
        >>> sorted(sess.run(tf.image.random_flip_up_down([[[1]], [[2]]])).ravel().tolist())
        [1, 2]
    """
    return _randomly_flipped(image, 0, seed)


def _randomly_flipped(image: Any, axis: int, seed: int | None) -> Tensor:
    tensor = _of_any_rank(image)
    batch = shaping.shape(tensor)[:-3]
    chance = random.random_uniform(batch, 0.0, 1.0, seed=seed)
    each = shaping.reshape(chance, joining.concat([batch, [1, 1, 1]], 0))
    result = choosing.where_v2(compare.less(each, 0.5), _flipped(tensor, axis), tensor)
    result.set_shape(tensor.shape)
    return result


@public("image.rot90")
def rot90(image: Any, k: Any = 1, name: str | None = None) -> Tensor:
    """Turn an image (or a batch) counter-clockwise by k quarter turns."""
    with name_scope(name, "rot90", [image, k]):
        return TurnQuarters()(_of_any_rank(image), k)


@public("image.transpose_image", "image.transpose")
def transpose_image(image: Any, name: str | None = None) -> Tensor:
    """Images with rows and columns exchanged.

    Args:
        image: [height, width, channels], or a batch.
        name: the name of the nodes.

    Returns:
        A tensor of the same dtype.

    Example:
        >>> tf.image.transpose_image(tf.zeros([2, 3, 1])).shape.as_list()
        [3, 2, 1]
    """
    with name_scope(name, "transpose_image", [image]):
        tensor = _of_any_rank(image)
        return transposing.transpose(tensor, _swapped(tensor))


def _swapped(image: Tensor) -> Any:
    """The order of axes with rows and columns swapped."""
    if image.shape.rank is not None:
        return [1, 0, 2] if image.shape.rank == 3 else [0, 2, 1, 3]
    rank = shaping.rank(image)
    return joining.concat([filling.range(rank - 3), [rank - 2, rank - 3, rank - 1]], 0)


@public("image.central_crop")
def central_crop(image: Any, central_fraction: float) -> Tensor:
    """The middle part of images.

    Args:
        image: [height, width, channels], or a batch.
        central_fraction: the share to keep along each axis, in (0, 1].

    Returns:
        A tensor of the same dtype and a smaller size.

    Example:
        >>> image = tf.reshape(tf.range(16), [4, 4, 1])
        >>> sess.run(tf.image.central_crop(image, 0.5))[:, :, 0]
        array([[ 5,  6],
               [ 9, 10]], dtype=int32)
    """
    if not 0.0 < central_fraction <= 1.0:
        raise ValueError(f"central_fraction must be within (0, 1], got {central_fraction}")
    tensor = _of_any_rank(image)
    if central_fraction == 1.0:
        return tensor
    height, width = _extent(tensor)
    top, left = _margin(height, central_fraction), _margin(width, central_fraction)
    return tensor[..., top : height - top, left : width - left, :]


def _extent(image: Tensor) -> Sequence[Any]:
    """Height and width: numbers where they are static, else tensors."""
    if image.shape.rank is not None:
        return sizes_of(image)[-3:-1]
    sizes = shaping.shape(image)
    return sizes[-3], sizes[-2]


def _margin(size: Any, fraction: float) -> Any:
    """How much the crop leaves away on each side."""
    if not isinstance(size, Tensor):
        return int((size - size * fraction) / 2)
    wide = casting.cast(size, float64)  # so that the arithmetic equals Python's
    return casting.cast((wide - wide * fraction) / 2.0, int32)


@public("image.pad_to_bounding_box")
def pad_to_bounding_box(
    image: Any,
    offset_height: Tensor | int,
    offset_width: Tensor | int,
    target_height: Tensor | int,
    target_width: Tensor | int,
) -> Tensor:
    """Images with zeros around them.

    Args:
        image: [height, width, channels], or a batch.
        offset_height, offset_width: how many rows and columns of zeros come first.
        target_height, target_width: the size of the result.

    Returns:
        A tensor of the same dtype and that size.

    Example:
        >>> sess.run(tf.image.pad_to_bounding_box([[[7]]], 0, 1, 2, 2))[:, :, 0]
        array([[0, 7],
               [0, 0]], dtype=int32)
    """
    tensor = _one_or_many(image)
    rank = tensor.shape.rank or 3
    sizes = sizes_of(tensor)
    below = target_height - offset_height - sizes[rank - 3]
    right = target_width - offset_width - sizes[rank - 2]
    checks = require_not_negative(offset_height, "offset_height")
    checks += require_not_negative(offset_width, "offset_width")
    checks += require(right >= 0, "width must be <= target - offset")
    checks += require(below >= 0, "height must be <= target - offset")
    tensor = after(checks, tensor)
    amounts: list[Any] = [[0, 0]] * (rank - 3)
    amounts += [[offset_height, below], [offset_width, right], [0, 0]]
    padded = padding.pad(tensor, shaping.reshape(_flat(amounts), [rank, 2]))
    return _with_size(padded, tensor, target_height, target_width)


def _flat(pairs: list[Any]) -> Tensor:
    return convert_to_tensor([value for pair in pairs for value in pair], int32)


def _with_size(result: Tensor, source: Tensor, height: Any, width: Any) -> Tensor:
    shape = source.shape.as_list()
    shape[-3], shape[-2] = static(height), static(width)
    result.set_shape(shape)
    return result


@public("image.crop_to_bounding_box")
def crop_to_bounding_box(
    image: Any,
    offset_height: Tensor | int,
    offset_width: Tensor | int,
    target_height: Tensor | int,
    target_width: Tensor | int,
) -> Tensor:
    """A part of images.

    Args:
        image: [height, width, channels], or a batch.
        offset_height, offset_width: the first row and column.
        target_height, target_width: the size of the part.

    Returns:
        A tensor of the same dtype and that size.

    Example:
        >>> image = tf.reshape(tf.range(9), [3, 3, 1])
        >>> sess.run(tf.image.crop_to_bounding_box(image, 1, 1, 2, 2))[:, :, 0]
        array([[4, 5],
               [7, 8]], dtype=int32)
    """
    tensor = _one_or_many(image)
    rank = tensor.shape.rank or 3
    sizes = sizes_of(tensor)
    checks = require_not_negative(offset_width, "offset_width")
    checks += require_not_negative(offset_height, "offset_height")
    checks += require_positive(target_width, "target_width")
    checks += require_positive(target_height, "target_height")
    fits_width = sizes[rank - 2] >= target_width + offset_width
    checks += require(fits_width, "width must be >= target + offset.")
    fits_height = sizes[rank - 3] >= target_height + offset_height
    checks += require(fits_height, "height must be >= target + offset.")
    tensor = after(checks, tensor)
    lead = [0] * (rank - 3)
    begin = [*lead, offset_height, offset_width, 0]
    size = [*([-1] * len(lead)), target_height, target_width, -1]
    cropped = slicing.slice(tensor, _flat([begin]), _flat([size]))
    return _with_size(cropped, tensor, target_height, target_width)


@public("image.resize_image_with_crop_or_pad", "image.resize_with_crop_or_pad")
def resize_image_with_crop_or_pad(
    image: Any, target_height: Tensor | int, target_width: Tensor | int
) -> Tensor:
    """Images cut, or padded with zeros, evenly on both sides to a size.

    Args:
        image: [height, width, channels], or a batch.
        target_height: the height of the result.
        target_width: the width of the result.

    Returns:
        A tensor of the same dtype and that size.

    Example:
        >>> image = tf.reshape([1.0, 2.0, 3.0, 4.0, 5.0], [1, 5, 1])
        >>> sess.run(tf.image.resize_image_with_crop_or_pad(image, 1, 3)).ravel()
        array([2., 3., 4.], dtype=float32)
    """
    tensor = _one_or_many(image)
    checks = require_positive(target_width, "target_width")
    checks += require_positive(target_height, "target_height")
    tensor = after(checks, tensor)
    rank = tensor.shape.rank or 3
    height, width = sizes_of(tensor)[rank - 3 : rank - 1]
    missing_width, missing_height = target_width - width, target_height - height
    cropped = crop_to_bounding_box(
        tensor,
        _most(_half(-missing_height), 0),
        _most(_half(-missing_width), 0),
        _least(target_height, height),
        _least(target_width, width),
    )
    return pad_to_bounding_box(
        cropped,
        _most(_half(missing_height), 0),
        _most(_half(missing_width), 0),
        target_height,
        target_width,
    )


def _half(value: Any) -> Any:
    return value // 2


def _most(x: Any, y: Any) -> Any:
    return arithmetic.maximum(x, y) if _symbolic(x, y) else max(x, y)


def _least(x: Any, y: Any) -> Any:
    return arithmetic.minimum(x, y) if _symbolic(x, y) else min(x, y)


def _symbolic(*values: Any) -> bool:
    return any(isinstance(value, Tensor) for value in values)
