"""Ops between batch, space and depth, and patches of images.

Every op here only moves (or copies) elements, so gradients are the opposite moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.known import constant_value
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import Size, TensorShape, unknown_shape
from thalweg.ir import loop
from thalweg.ir.expr import Expr
from thalweg.ir.loop import IndexTuple, Operand, Scatter, ravel, unravel
from thalweg.ops.arrays import joining, padding
from thalweg.ops.core import filling, shaping
from thalweg.ops.nn import windows
from thalweg.ops.nn.windows import Slide
from thalweg.platform.arrays import Array
from thalweg.public import public

# Space and batch


class SpaceToBatchND(Op):
    """Pads the axes after the first, splits them into blocks, moves block positions to batch."""

    signature = (
        "input: T, block_shape: Tblock_shape, paddings: Tpaddings -> output: T; "
        "Tblock_shape: index, Tpaddings: index"
    )

    def shape(self, input: Tensor, block_shape: Tensor, paddings: Tensor) -> TensorShape:
        return _moved_shape(input, block_shape, paddings, to_batch=True)

    def numpy(self, input: Array, block_shape: Array, paddings: Array) -> Array:
        return _space_to_batch(input, _block(block_shape), _margins(paddings))

    def loop(self, at: IndexTuple, input: Operand, block_shape: Operand, paddings: Operand) -> Expr:
        block, margins = _block(block_shape.constant()), _margins(paddings.constant())
        return _batch_from_space(at, input, block, margins)

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        _, block_shape, paddings = node.inputs
        return [BatchToSpaceND()(dy, block_shape, paddings), None, None]


class BatchToSpaceND(Op):
    """Moves block positions from batch back to the axes after it, then crops those."""

    signature = (
        "input: T, block_shape: Tblock_shape, crops: Tcrops -> output: T; "
        "Tblock_shape: index, Tcrops: index"
    )

    def shape(self, input: Tensor, block_shape: Tensor, crops: Tensor) -> TensorShape:
        return _moved_shape(input, block_shape, crops, to_batch=False)

    def numpy(self, input: Array, block_shape: Array, crops: Array) -> Array:
        return _batch_to_space(input, _block(block_shape), _margins(crops))

    def loop(self, at: IndexTuple, input: Operand, block_shape: Operand, crops: Operand) -> Expr:
        block, margins = _block(block_shape.constant()), _margins(crops.constant())
        return _space_from_batch(at, input, block, margins)

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        _, block_shape, crops = node.inputs
        return [SpaceToBatchND()(dy, block_shape, crops), None, None]


def _block(block_shape: Array) -> list[int]:
    block: list[int] = np.asarray(block_shape).tolist()
    if any(size < 1 for size in block):
        raise ValueError(f"block_shape must be positive, got {block}")
    return block


def _margins(margins: Array) -> list[list[int]]:
    pairs: list[list[int]] = np.asarray(margins).tolist()
    if any(size < 0 for pair in pairs for size in pair):
        raise ValueError(f"paddings and crops must not be negative, got {pairs}")
    return pairs


def _space_to_batch(x: Array, block: list[int], paddings: list[list[int]]) -> Array:
    count, rest = len(block), x.shape[1 + len(block) :]
    border = [[0, 0], *paddings, *[[0, 0]] * len(rest)]
    padded = padding.with_border(x, border, filling.zero_of(x.dtype))
    cut: list[int] = [padded.shape[0]]
    for size, part in zip(padded.shape[1:], block, strict=False):
        cut += [_divided(size, part), part]
    blocks = padded.reshape(*cut, *rest)
    order = [*range(2, 2 * count + 1, 2), 0, *range(1, 2 * count, 2)]
    moved = blocks.transpose(*order, *range(2 * count + 1, blocks.ndim))
    return moved.reshape(
        -1 if moved.size else _product(moved.shape[: count + 1]), *cut[1::2], *rest
    )


def _batch_to_space(x: Array, block: list[int], crops: list[list[int]]) -> Array:
    count = len(block)
    batch = _divided(x.shape[0], _product(block))
    blocks = x.reshape(*block, batch, *x.shape[1:])
    order = [count]
    for axis in range(count):
        order += [count + 1 + axis, axis]
    moved = blocks.transpose(*order, *range(2 * count + 1, blocks.ndim))
    space = [size * part for size, part in zip(x.shape[1:], block, strict=False)]
    whole = moved.reshape(batch, *space, *x.shape[1 + count :])
    for size, (before, after) in zip(space, crops, strict=True):
        if before + after > size:
            raise ValueError(f"crops {[before, after]} are larger than the size {size}")
    keeps = [slice(b, size - a) for size, (b, a) in zip(space, crops, strict=True)]
    return whole[(slice(None), *keeps)]


def _batch_from_space(
    at: IndexTuple, x: Operand, block: list[int], paddings: list[list[int]]
) -> Expr:
    """The loop form of `_space_to_batch`."""
    (batch, *space), rest = at.split(1 + len(block))
    within = unravel(batch // x.shape[0], block)
    pixels = [
        index * part + offset - before
        for index, part, offset, (before, _) in zip(space, block, within, paddings, strict=True)
    ]
    return x.or_else((batch % x.shape[0], *pixels, *rest), filling.zero_of(x.dtype))


def _space_from_batch(at: IndexTuple, x: Operand, block: list[int], crops: list[list[int]]) -> Expr:
    """The loop form of `_batch_to_space`."""
    (batch, *space), rest = at.split(1 + len(block))
    whole = [index + before for index, (before, _) in zip(space, crops, strict=True)]
    within = [index % part for index, part in zip(whole, block, strict=True)]
    pixels = [index // part for index, part in zip(whole, block, strict=True)]
    return x[(ravel(within, block) * at.shape[0] + batch, *pixels, *rest)]


def _product(sizes: Sequence[int]) -> int:
    return int(np.prod(sizes, dtype=np.int64))


def _divided(size: int, part: int) -> int:
    if size % part:
        raise ValueError(f"a size of {size} cannot be cut into blocks of {part}")
    return size // part


def _moved_shape(
    input: Tensor, block_shape: Tensor, margins: Tensor, to_batch: bool
) -> TensorShape:
    """The static shape of a move between space and batch."""
    block_rank = block_shape.shape.with_rank(1)[0].merge_with(margins.shape.with_rank(2)[0]).value
    if block_rank is None:
        margins.shape[1].assert_is_compatible_with(2)
        return unknown_shape(input.shape.rank)
    known = constant_value(block_shape)
    block: list[Any] = [None] * block_rank if known is None else _block(known)
    return _blocked_shape(input, block, margins, to_batch)


def _blocked_shape(input: Tensor, block: list[Any], margins: Tensor, to_batch: bool) -> TensorShape:
    """The same for given block sizes."""
    block_rank = len(block)
    margins.shape.assert_is_compatible_with([block_rank, 2])
    sizes = input.shape.with_rank_at_least(block_rank + 1).sizes
    if sizes is None:
        return unknown_shape()
    edges = constant_value(margins)
    pairs: list[Any] = [None] * block_rank if edges is None else _margins(edges)
    volume = None if None in block else _product(block)
    resize = _padded_part if to_batch else _cropped_whole
    space = [resize(*item) for item in zip(sizes[1:], block, pairs, strict=False)]
    batch = _scaled(sizes[0], volume, to_batch)
    return TensorShape.of((batch, *space, *sizes[1 + block_rank :]))


def _scaled(size: Size, factor: Size, up: bool) -> Size:
    if size is None or factor is None:
        return None
    return size * factor if up else _divided(size, factor)


def _padded_part(size: Size, part: Size, padding: list[int] | None) -> Size:
    if size is None or padding is None:
        return None
    return _scaled(size + sum(padding), part, up=False)


def _cropped_whole(size: Size, part: Size, crop: list[int] | None) -> Size:
    whole = _scaled(size, part, up=True)
    if whole is None or crop is None:
        return None
    if sum(crop) > whole:
        raise ValueError(f"crops {crop} are larger than the size {whole}")
    return whole - sum(crop)


@public("space_to_batch_nd", "manip.space_to_batch_nd")
def space_to_batch_nd(
    input: Any, block_shape: Any, paddings: Any, name: str | None = None
) -> Tensor:
    """Pad the axes after the first, split them into blocks, move positions in a block to batch.

    Args:
        input: [batch, space..., rest...].
        block_shape: the sizes of the blocks, one for each axis of space.
        paddings: [axes, 2]: the numbers of zeros before and after.
        name: the name of the node.

    Returns:
        A tensor with a larger batch.

    Example:
        >>> x = tf.reshape([1, 2, 3, 4], [1, 4, 1])
        >>> sess.run(tf.space_to_batch_nd(x, [2], [[0, 0]]))[..., 0]
        array([[1, 3],
               [2, 4]], dtype=int32)
    """
    return SpaceToBatchND()(input, _integers(block_shape), _integers(paddings), name=name)


@public("batch_to_space_nd", "manip.batch_to_space_nd")
def batch_to_space_nd(input: Any, block_shape: Any, crops: Any, name: str | None = None) -> Tensor:
    """The inverse of `space_to_batch_nd`: batch moves back into space, which is then cropped.

    Args:
        input: [batch, space..., rest...].
        block_shape: the sizes of the blocks, one for each axis of space.
        crops: [axes, 2]: the numbers of elements to crop at each end afterwards.
        name: the name of the node.

    Returns:
        A tensor with a smaller batch.

    Example:
        >>> x = tf.reshape([1, 2, 3, 4], [4, 1, 1])
        >>> sess.run(tf.batch_to_space_nd(x, [4], [[0, 0]])).ravel()
        array([1, 2, 3, 4], dtype=int32)
    """
    return BatchToSpaceND()(input, _integers(block_shape), _integers(crops), name=name)


def _integers(values: Any) -> Any:
    """Integers as given, except an empty list or array, whose dtype is set."""
    if isinstance(values, Tensor) or np.size(values):
        return values
    return np.zeros(np.shape(values), np.int32)


class SpaceToBatch(Op):
    """SpaceToBatchND with square blocks over the two axes of images."""

    signature = "input: T, paddings: Tpaddings -> output: T; Tpaddings: index"
    block_size: int

    def shape(self, input: Tensor, paddings: Tensor) -> TensorShape:
        input.shape.assert_has_rank(4)
        return _blocked_shape(input, _square(self.block_size), paddings, True).with_rank(4)

    def numpy(self, input: Array, paddings: Array) -> Array:
        return _space_to_batch(input, [self.block_size] * 2, _margins(paddings))

    def loop(self, at: IndexTuple, input: Operand, paddings: Operand) -> Expr:
        return _batch_from_space(at, input, [self.block_size] * 2, _margins(paddings.constant()))

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [BatchToSpace(block_size=self.block_size)(dy, node.inputs[1]), None]


class BatchToSpace(Op):
    """BatchToSpaceND with square blocks over the two axes of images."""

    signature = "input: T, crops: Tcrops -> output: T; Tcrops: index"
    block_size: int

    def shape(self, input: Tensor, crops: Tensor) -> TensorShape:
        input.shape.assert_has_rank(4)
        return _blocked_shape(input, _square(self.block_size), crops, False).with_rank(4)

    def numpy(self, input: Array, crops: Array) -> Array:
        return _batch_to_space(input, [self.block_size] * 2, _margins(crops))

    def loop(self, at: IndexTuple, input: Operand, crops: Operand) -> Expr:
        return _space_from_batch(at, input, [self.block_size] * 2, _margins(crops.constant()))

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [SpaceToBatch(block_size=self.block_size)(dy, node.inputs[1]), None]


def _square(block_size: int) -> list[Any]:
    if block_size < 2:
        raise ValueError(f"block_size must be greater than 1, got {block_size}")
    return [block_size] * 2


@public("space_to_batch", "nn.space_to_batch")
def space_to_batch(
    input: Any,
    paddings: Any,
    block_size: int | None = None,
    name: str | None = None,
    block_shape: Any = None,
) -> Tensor:
    """Pad images, split them into square blocks, move positions in a block to batch."""
    block = np.full(2, block_size, np.int64) if block_shape is None else block_shape
    moved = space_to_batch_nd(input, block, paddings, name=name)
    if block_shape is None:
        moved.set_shape(moved.shape.with_rank(4))
    return moved


@public("batch_to_space")
def batch_to_space(
    input: Any,
    crops: Any,
    block_size: int | None = None,
    name: str | None = None,
    block_shape: Any = None,
) -> Tensor:
    """The inverse of `space_to_batch`.

    Args:
        input: [batch, height, width, depth].
        crops: [2, 2]: the rows and columns to crop at each end.
        block_size, block_shape: the size of the blocks, by its old or new name.
        name: the name of the node.

    Returns:
        A tensor with a smaller batch.

    Example:
        >>> x = tf.reshape([1, 2, 3, 4], [4, 1, 1, 1])
        >>> sess.run(tf.batch_to_space(x, [[0, 0], [0, 0]], 2))[0, ..., 0]
        array([[1, 2],
               [3, 4]], dtype=int32)
    """
    block = np.full(2, block_size, np.int64) if block_shape is None else block_shape
    moved = batch_to_space_nd(input, block, crops, name=name)
    if block_shape is None:
        moved.set_shape(moved.shape.with_rank(4))
    return moved


@public("required_space_to_batch_paddings")
def required_space_to_batch_paddings(
    input_shape: Any, block_shape: Any, base_paddings: Any = None, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Paddings (at least `base_paddings`) to a multiple of blocks, and the crops that undo them."""
    with name_scope(name, "required_space_to_batch_paddings", [input_shape, block_shape]):
        sizes = convert_to_tensor(input_shape, dtypes.int32, name="input_shape")
        block = convert_to_tensor(block_shape, dtypes.int32, name="block_shape")
        block.shape.assert_is_fully_defined()
        block.shape.assert_has_rank(1)
        count = block.shape[0].value or 0
        sizes.shape.assert_is_compatible_with([count])
        given = np.zeros((count, 2), np.int32) if base_paddings is None else base_paddings
        base = convert_to_tensor(given, dtypes.int32, name="base_paddings")
        base.shape.assert_is_compatible_with([count, 2])
        before, after = base[:, 0], base[:, 1]
        extra = (block - (sizes + before + after) % block) % block
        paddings = joining.stack([before, after + extra], axis=1, name="paddings")
        crops = joining.stack([filling.zeros_like(extra), extra], axis=1, name="crops")
        return paddings, crops


# Space and depth


class DepthMove(Op, abstract=True):
    """The base of moves between blocks of pixels and deeper pixels."""

    signature = "input: T -> output: T"
    block_size: int
    data_format: str = "NHWC"

    def sizes(self, input: Tensor) -> tuple[Size, Size, Size, Size]:
        """Batch, height, width and depth."""
        if self.block_size < 2:
            raise ValueError(f"block_size must be greater than 1, got {self.block_size}")
        if self.data_format not in ("NHWC", "NCHW"):
            raise ValueError(f"data_format must be NHWC or NCHW, got {self.data_format!r}")
        batch, *rest = input.shape.with_rank(4).as_list()
        height, width, depth = rest if self.data_format == "NHWC" else (*rest[1:], rest[0])
        return batch, height, width, depth

    def ordered(self, batch: Size, height: Size, width: Size, depth: Size) -> TensorShape:
        if self.data_format == "NHWC":
            return TensorShape.of((batch, height, width, depth))
        return TensorShape.of((batch, depth, height, width))

    def channels_last(self, array: Array) -> Array:
        return array if self.data_format == "NHWC" else np.moveaxis(array, 1, 3)

    def from_channels_last(self, array: Array) -> Array:
        return array if self.data_format == "NHWC" else np.moveaxis(array, 3, 1)

    def depth(self, shape: Sequence[int]) -> int:
        """The number of channels of a shape."""
        return shape[3 if self.data_format == "NHWC" else 1]

    def pixel(self, at: IndexTuple) -> tuple[Expr, Expr, Expr, Expr]:
        """Image, row, column and channel of an index."""
        batch, *rest = at
        row, column, channel = rest if self.data_format == "NHWC" else (*rest[1:], rest[0])
        return batch, row, column, channel

    def load(self, x: Operand, batch: Expr, row: Expr, column: Expr, channel: Expr) -> Expr:
        """The element of a channel of a pixel."""
        if self.data_format == "NHWC":
            return x[batch, row, column, channel]
        return x[batch, channel, row, column]


class SpaceToDepth(DepthMove):
    """Each block of pixels becomes one pixel with all their channels."""

    def shape(self, input: Tensor) -> TensorShape:
        batch, height, width, depth = self.sizes(input)
        block = self.block_size
        height, width = _scaled(height, block, False), _scaled(width, block, False)
        return self.ordered(batch, height, width, _scaled(depth, block * block, True))

    def numpy(self, input: Array) -> Array:
        x, block = self.channels_last(input), self.block_size
        batch, height, width, depth = x.shape
        rows, columns = _divided(height, block), _divided(width, block)
        blocks = x.reshape(batch, rows, block, columns, block, depth)
        moved = blocks.transpose(0, 1, 3, 2, 4, 5)
        return self.from_channels_last(moved.reshape(batch, rows, columns, block * block * depth))

    def loop(self, at: IndexTuple, input: Operand) -> Expr:
        batch, row, column, channel = self.pixel(at)
        block = self.block_size
        down, right, inner = unravel(channel, (block, block, self.depth(input.shape)))
        return self.load(input, batch, row * block + down, column * block + right, inner)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return DepthToSpace(block_size=self.block_size, data_format=self.data_format)(dy)


class DepthToSpace(DepthMove):
    """Each pixel becomes a block of pixels that its channels are distributed over."""

    def shape(self, input: Tensor) -> TensorShape:
        batch, height, width, depth = self.sizes(input)
        block = self.block_size
        height, width = _scaled(height, block, True), _scaled(width, block, True)
        return self.ordered(batch, height, width, _scaled(depth, block * block, False))

    def numpy(self, input: Array) -> Array:
        x, block = self.channels_last(input), self.block_size
        batch, height, width, depth = x.shape
        part = _divided(depth, block * block)
        blocks = x.reshape(batch, height, width, block, block, part)
        moved = blocks.transpose(0, 1, 3, 2, 4, 5)
        return self.from_channels_last(moved.reshape(batch, height * block, width * block, part))

    def loop(self, at: IndexTuple, input: Operand) -> Expr:
        batch, row, column, channel = self.pixel(at)
        block = self.block_size
        within = (row % block, column % block, channel)
        deep = ravel(within, (block, block, self.depth(at.shape)))
        return self.load(input, batch, row // block, column // block, deep)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return SpaceToDepth(block_size=self.block_size, data_format=self.data_format)(dy)


@public("space_to_depth", "nn.space_to_depth")
def space_to_depth(
    input: Any, block_size: int, name: str | None = None, data_format: str = "NHWC"
) -> Tensor:
    """Blocks of pixels as single deeper pixels.

    Args:
        input: [batch, height, width, depth], the sizes multiples of `block_size`.
        block_size: the size of a block, 2 or more.
        name: the name of the node.
        data_format: "NHWC" or "NCHW".

    Returns:
        A tensor [batch, height / block_size, width / block_size, depth * block_size²].

    Example:
        >>> x = tf.reshape([1, 2, 3, 4], [1, 2, 2, 1])
        >>> sess.run(tf.space_to_depth(x, 2)).ravel()
        array([1, 2, 3, 4], dtype=int32)
    """
    return SpaceToDepth(block_size=block_size, data_format=data_format)(input, name=name)


@public("depth_to_space", "nn.depth_to_space")
def depth_to_space(
    input: Any, block_size: int, name: str | None = None, data_format: str = "NHWC"
) -> Tensor:
    """Deep pixels as blocks of pixels: the inverse of `tf.space_to_depth`.

    Args:
        input: [batch, height, width, depth], the depth a multiple of the square of `block_size`.
        block_size: the size of a block, 2 or more.
        name: the name of the node.
        data_format: "NHWC" or "NCHW".

    Returns:
        A tensor [batch, height * block_size, width * block_size, depth / block_size²].

    Example:
        >>> x = tf.reshape([1, 2, 3, 4], [1, 1, 1, 4])
        >>> sess.run(tf.depth_to_space(x, 2))[0, :, :, 0]
        array([[1, 2],
               [3, 4]], dtype=int32)
    """
    return DepthToSpace(block_size=block_size, data_format=data_format)(input, name=name)


# Patches


class Patches(Op, abstract=True):
    """The geometry of patches: sizes, strides and rates over [batch, rows, columns, depth]."""

    ksizes: tuple[int, ...]
    strides: tuple[int, ...]
    rates: tuple[int, ...]
    padding: str

    def slides(self) -> list[Slide]:
        for name in ("ksizes", "strides", "rates"):
            sizes = getattr(self, name)
            if len(sizes) != 4 or sizes[0] != 1 or sizes[3] != 1:
                raise ValueError(f"{name} must be [1, rows, columns, 1], got {list(sizes)}")
        if self.padding not in ("SAME", "VALID"):
            raise ValueError(f"padding must be SAME or VALID, got {self.padding!r}")
        moves = zip(self.ksizes[1:3], self.strides[1:3], self.rates[1:3], strict=True)
        return [Slide(size, stride, rate, self.padding) for size, stride, rate in moves]

    def pads(self, sizes: Sequence[int]) -> list[tuple[int, int]]:
        """The padding of each axis of images of [rows, columns]."""
        return [(0, 0), *windows.all_pads(self.slides(), sizes), (0, 0)]

    def places(self, sizes: Sequence[int]) -> Iterator[tuple[slice, ...]]:
        """For each pixel of a patch, its slices of the padded images over all patches."""
        slides = self.slides()
        for _, seen in windows.taps(slides, windows.counts(slides, sizes)):
            yield slice(None), *seen

    def source(self, at: Sequence[Expr], shape: Sequence[int]) -> list[Expr]:
        """The index in images of an element of a patch; out of bounds in their padding."""
        batch, *positions, element = at
        slides = self.slides()
        *taps, channel = unravel(element, (*(slide.window for slide in slides), shape[3]))
        moves = zip(slides, positions, taps, shape[1:3], strict=True)
        pixel = [
            position * slide.stride + tap * slide.dilation - slide.pads(size)[0]
            for slide, position, tap, size in moves
        ]
        return [batch, *pixel, channel]


class ExtractImagePatches(Patches):
    """y[b, r, c, :] = the pixels of the patch at (r, c) of image b, concatenated"""

    signature = "images: T -> patches: T; T: numeric|bool"

    def shape(self, images: Tensor) -> TensorShape:
        slides = self.slides()
        batch, *sizes, depth = images.shape.with_rank(4).as_list()
        positions = [slide.count(size) for slide, size in zip(slides, sizes, strict=True)]
        deep = _scaled(depth, windows.tap_count(slides), True)
        return TensorShape.of((batch, *positions, deep))

    def numpy(self, images: Array) -> Array:
        sizes = images.shape[1:3]
        whole = windows.pad(images, self.pads(sizes))
        return np.concatenate([whole[place] for place in self.places(sizes)], axis=3)

    def loop(self, at: IndexTuple, images: Operand) -> Expr:
        return images.or_else(self.source(at, images.shape), filling.zero_of(images.dtype))

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        adjoint = SumImagePatches(**self.attributes)
        return adjoint(dy, shaping.shape(node.inputs[0]))


class SumImagePatches(Patches):
    """The transpose of ExtractImagePatches: sums the pixels of patches in the image."""

    private = True
    signature = "patches: T, image_shape: int32 -> images: T; T: numeric"

    def shape(self, patches: Tensor, image_shape: Tensor) -> TensorShape:
        return shaping.known_shape(image_shape).with_rank(4)

    def numpy(self, patches: Array, image_shape: Array) -> Array:
        shape: list[int] = image_shape.tolist()
        sizes, depth = shape[1:3], shape[3]
        pads = self.pads(sizes)
        total = np.zeros([n + sum(p) for n, p in zip(shape, pads, strict=True)], patches.dtype)
        for i, place in enumerate(self.places(sizes)):
            total[place] += patches[..., i * depth : (i + 1) * depth]
        return total[windows.inside(pads, shape)]

    def loop(self, at: IndexTuple, patches: Operand, image_shape: Operand) -> Scatter:
        def update(*place: Expr) -> tuple[list[Expr], Expr]:
            return self.source(place, at.shape), patches[place]

        return loop.scatter("sum", patches.shape, update, filling.zero_of(patches.dtype))

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [ExtractImagePatches(**self.attributes)(dy), None]


@public("extract_image_patches", "image.extract_image_patches")
def extract_image_patches(
    images: Any,
    ksizes: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    rates: Sequence[int] | None = None,
    padding: str | None = None,
    name: str | None = None,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """The patches of images, each flattened along the depth axis at its position in a grid.

    Args:
        images: [batch, height, width, depth].
        ksizes, sizes: [1, rows, columns, 1]: the size of a patch, by its old or new name.
        strides: [1, rows, columns, 1]: the distance between patches.
        rates: [1, rows, columns, 1]: the distance between the pixels of a patch.
        padding: "VALID" or "SAME".
        name: the name of the node.

    Returns:
        [batch, rows, columns, patch elements].

    Example:
        >>> x = tf.reshape(tf.range(9), [1, 3, 3, 1])
        >>> ones = [1, 1, 1, 1]
        >>> patches = tf.extract_image_patches(x, [1, 2, 2, 1], ones, ones, "VALID")
        >>> sess.run(patches)[0, 0]
        array([[0, 1, 3, 4],
               [1, 2, 4, 5]], dtype=int32)
    """
    given = sizes if ksizes is None else ksizes
    if given is None or strides is None or rates is None or padding is None:
        raise ValueError("extract_image_patches needs ksizes, strides, rates and padding")
    op = ExtractImagePatches(
        ksizes=tuple(given), strides=tuple(strides), rates=tuple(rates), padding=padding
    )
    return op(images, name=name)


@public("image.extract_patches")
def extract_patches(
    images: Any,
    sizes: Sequence[int],
    strides: Sequence[int],
    rates: Sequence[int],
    padding: str,
    name: str | None = None,
) -> Tensor:
    """The patches of images, each flattened along the depth axis at its position in a grid."""
    return extract_image_patches(images, sizes, strides, rates, padding, name)
