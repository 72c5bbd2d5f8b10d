"""Splitting tensors: unstack, and split into equal pieces or by sizes."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from thalweg import errors
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.known import constant_value, constant_value_as_shape
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import Dimension, TensorShape, unknown_shape
from thalweg.ir.expr import Expr
from thalweg.ir.loop import IndexTuple, Operand
from thalweg.ops.arrays import joining
from thalweg.ops.core import shaping
from thalweg.platform.arrays import Array
from thalweg.public import public


class Unpack(Op):
    """The slices of x along an axis."""

    signature = "value: T -> output: num*T"
    num: int
    axis: int = 0

    def shape(self, value: Tensor) -> list[TensorShape]:
        sizes = value.shape.sizes
        if sizes is None:
            return [unknown_shape()] * self.num
        axis = shaping.axis_within(self.axis, len(sizes))
        if sizes[axis] not in (None, self.num):
            raise ValueError(f"Dimension {self.axis} must be {self.num} but is {sizes[axis]}")
        return [TensorShape.of(sizes[:axis] + sizes[axis + 1 :])] * self.num

    def numpy(self, value: Array) -> list[Array]:
        moved = np.moveaxis(value, self.axis, 0)
        if len(moved) != self.num:
            raise ValueError(
                f"Input shape axis {self.axis} must equal {self.num}, got {len(moved)}"
            )
        return [moved[index, ...] for index in range(self.num)]

    def loop(self, at: IndexTuple, value: Operand) -> Expr:
        axis = shaping.axis_within(self.axis, value.rank)
        return value[(*at[:axis], at.output, *at[axis:])]

    def gradient(self, node: Node, *dy: Tensor) -> Tensor:
        return joining.stack(list(dy), self.axis)


@public("unstack", "unpack")
def unstack(
    value: Any, num: int | None = None, axis: int = 0, name: str = "unstack"
) -> list[Tensor]:
    """The slices of a tensor along an axis, as a list.

    Args:
        value: a tensor of rank 1 or more.
        num: the number of slices; required if it is not static.
        axis: the axis, which is removed.
        name: the name of the node.

    Returns:
        A list of tensors.

    Example:
        >>> sess.run(tf.unstack([[1, 2], [3, 4]], axis=1))
        [array([1, 3], dtype=int32), array([2, 4], dtype=int32)]
    """
    tensor = convert_to_tensor(value)
    if num is None:
        sizes = tensor.shape.sizes
        if sizes is not None and not -len(sizes) <= axis < len(sizes):
            raise ValueError(f"axis = {axis} not in [{-len(sizes)}, {len(sizes)})")
        num = None if sizes is None else sizes[axis]
    if num is None:
        raise ValueError(f"Cannot infer num from shape {tensor.shape}")
    return Unpack(num=num, axis=axis)(tensor, name=name)


class SplitV(Op):
    """x split along an axis into pieces of given sizes; one size may be -1"""

    signature = "value: T, size_splits: Tlen, split_dim: int32 -> output: num_split*T; Tlen: index"
    num_split: int

    def shape(self, value: Tensor, size_splits: Tensor, split_dim: Tensor) -> list[TensorShape]:
        sizes, axis = value.shape.sizes, constant_value(split_dim)
        if sizes is None or axis is None:
            return [unknown_shape(None if sizes is None else len(sizes))] * self.num_split
        place = shaping.axis_within(int(axis), len(sizes))
        pieces = constant_value_as_shape(size_splits).sizes or (None,) * self.num_split
        whole = sizes[place]
        if pieces.count(None) == 1 and whole is not None:
            rest = whole - sum(p for p in pieces if p is not None)
            pieces = tuple(rest if p is None else p for p in pieces)
        return [TensorShape.of((*sizes[:place], p, *sizes[place + 1 :])) for p in pieces]

    def numpy(self, value: Array, size_splits: Array, split_dim: Array) -> list[Array]:
        axis = shaping.axis_within(int(split_dim), value.ndim)
        sizes = _piece_sizes(size_splits, value.shape[axis])
        if sum(sizes) != value.shape[axis] or min(sizes) < 0:
            raise errors.invalid(
                f"the sizes {size_splits.tolist()} do not add up to the {value.shape[axis]} "
                f"elements along axis {axis}"
            )
        return np.split(value, np.cumsum(sizes)[:-1].tolist(), axis)

    def loop(
        self, at: IndexTuple, value: Operand, size_splits: Operand, split_dim: Operand
    ) -> Expr:
        axis = shaping.axis_within(int(split_dim.constant()), at.rank)
        sizes = _piece_sizes(size_splits.constant(), value.shape[axis])
        if sum(sizes) != value.shape[axis] or min(sizes) < 0:
            raise ValueError(f"{sizes} do not add up to {value.shape[axis]} elements")
        return value[joining.moved(at, axis, sum(sizes[: at.output]))]

    def gradient(self, node: Node, *dy: Tensor) -> list[Tensor | None]:
        return [joining.concat(list(dy), node.inputs[2]), None, None]


def _piece_sizes(size_splits: Array, whole: int) -> list[int]:
    """The sizes of pieces; -1 is the rest."""
    sizes: list[int] = size_splits.tolist()
    if -1 in sizes:
        sizes[sizes.index(-1)] = whole - sum(size for size in sizes if size != -1)
    return sizes


class Split(Op):
    """x split along an axis into equal pieces"""

    signature = "split_dim: int32, value: T -> output: num_split*T"
    num_split: int

    def shape(self, split_dim: Tensor, value: Tensor) -> list[TensorShape]:
        if self.num_split < 1:
            raise ValueError(f"num_split must be at least 1, got {self.num_split}")
        sizes, axis = value.shape.sizes, constant_value(split_dim)
        if sizes is None or axis is None:
            return [unknown_shape(None if sizes is None else len(sizes))] * self.num_split
        place = shaping.axis_within(int(axis), len(sizes))
        size = sizes[place]
        if size is not None and size % self.num_split:
            raise ValueError(
                f"Dimension size must be evenly divisible by {self.num_split} but is {size}. "
                "Number of ways to split should evenly divide the split dimension"
            )
        piece = None if size is None else size // self.num_split
        return [TensorShape.of((*sizes[:place], piece, *sizes[place + 1 :]))] * self.num_split

    def numpy(self, split_dim: Array, value: Array) -> list[Array]:
        axis = shaping.axis_within(int(split_dim), np.ndim(value))
        return np.split(value, self.num_split, axis)

    def loop(self, at: IndexTuple, split_dim: Operand, value: Operand) -> Expr:
        axis = shaping.axis_within(int(split_dim.constant()), at.rank)
        return value[joining.moved(at, axis, at.output * at.shape[axis])]

    def gradient(self, node: Node, *dy: Tensor) -> list[Tensor | None]:
        return [None, joining.concat(list(dy), node.inputs[0])]


@public("split")
def split(
    value: Any = None,
    num_or_size_splits: Any = None,
    axis: Any = 0,
    num: int | None = None,
    name: str = "split",
    split_dim: Any = None,
    num_split: int | None = None,
) -> list[Tensor]:
    """A tensor split along an axis: into a number of equal pieces, or by a list of sizes.

    Args:
        value: the tensor. (The order before TensorFlow 1.0, axis, number, tensor, works too.)
        num_or_size_splits: a number of pieces that divides the size, or the size of each piece, of
            which one may be -1.
        axis: the axis to split along.
        num: the number of pieces, if the sizes are a tensor of unknown shape.
        name: the name of the node.
        split_dim: the old name of `axis`.
        num_split: the old name of `num_or_size_splits`.

    Returns:
        A list of tensors.

    Example:
        >>> x = tf.constant([[1, 2, 3], [4, 5, 6]])
        >>> left, right = tf.split(x, [1, 2], axis=1)
        >>> sess.run(right)
        array([[2, 3],
               [5, 6]], dtype=int32)
    """
    if isinstance(value, int) and isinstance(num_or_size_splits, int):
        value, axis = axis, value
    axis = axis if split_dim is None else split_dim
    given = num_or_size_splits if num_split is None else num_split
    tensor = convert_to_tensor(value, name="value")
    if isinstance(given, int | np.integer | Dimension):
        return Split(num_split=int(cast(Any, given)))(axis, tensor, name=name)
    return split_v(tensor, given, axis, num, name)


@public("split_v")
def split_v(
    value: Any, size_splits: Any, split_dim: Any = 0, num: int | None = None, name: str = "split"
) -> list[Tensor]:
    """A tensor split along an axis into pieces of given sizes, one of which may be -1."""
    sizes = convert_to_tensor(size_splits)
    if sizes.shape.rank == 0:
        raise ValueError(
            "Rank-0 tensors are not supported as the num_or_size_splits argument to split. "
            f"Argument provided: {size_splits}"
        )
    count = sizes.shape.with_rank(1)[0].value if num is None else num
    if count is None:
        raise ValueError(f"Cannot infer num from shape {size_splits}")
    return SplitV(num_split=count)(value, sizes, split_dim, name=name)
