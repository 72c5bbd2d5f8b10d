"""Copies of tensors with slices, selected by coordinates, that are updated."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape
from thalweg.ir import loop
from thalweg.ir.expr import Expr
from thalweg.ir.loop import IndexTuple, Operand, Scatter
from thalweg.ops.arrays.indexing import (
    INVALID_COORDINATE,
    check_updates,
    coordinate_source,
    coordinates,
    gather_nd,
)
from thalweg.ops.core import filling
from thalweg.platform.arrays import Array
from thalweg.public import public


class TensorScatter(Op, abstract=True):
    """y = tensor, then y[indices[i…, 0], …, indices[i…, k - 1], r…] ∘= updates[i…, r…]"""

    signature = "tensor: T, indices: Tindices, updates: T -> output: T; T: numeric, Tindices: index"
    combine: ClassVar[str] = "sum"

    def change(self, value: Any) -> Any:
        """The value that is combined into an element, computed from one of updates."""
        return value

    def write(self, total: Array, index: Any, values: Array) -> None:
        """Combine the values into the elements at the index."""
        np.add.at(total, index, self.change(values))

    def shape(self, tensor: Tensor, indices: Tensor, updates: Tensor) -> TensorShape:
        check_updates(indices.shape, updates.shape, tensor.shape, "tensor")
        return tensor.shape

    def numpy(self, tensor: Array, indices: Array, updates: Array) -> Array:
        found = [TensorShape.of(np.shape(array)) for array in (indices, updates, tensor)]
        check_updates(found[0], found[1], found[2], "tensor")
        total = np.array(tensor)
        index = (*coordinates(indices, total.shape, INVALID_COORDINATE), Ellipsis)
        values = np.asarray(updates)
        if indices.shape[-1] == 0:  # every update is of the whole tensor
            for value in values.reshape(-1, *total.shape):
                self.write(total, index, value)
        else:
            self.write(total, index, values)
        return total

    def loop(self, at: IndexTuple, tensor: Operand, indices: Operand, updates: Operand) -> Scatter:
        def update(*place: Expr) -> tuple[tuple[Expr, ...], Expr]:
            return coordinate_source(place, indices), self.change(updates[place])

        return loop.scatter(self.combine, updates.shape, update, tensor[at])


class TensorScatterUpdate(TensorScatter):
    """y = tensor, then y[indices[i…, 0], …, indices[i…, k - 1], r…] = updates[i…, r…]"""

    signature = "tensor: T, indices: Tindices, updates: T -> output: T; Tindices: index"
    combine = "set"

    def write(self, total: Array, index: Any, values: Array) -> None:
        total[index] = values

    def gradient(self, node: Node, dy: Tensor) -> list[Any]:
        _, indices, updates = node.inputs
        kept = TensorScatterUpdate()(dy, indices, filling.zeros_like(updates))
        return [kept, None, gather_nd(dy, indices)]


class TensorScatterAdd(TensorScatter):
    """y = tensor, then y[indices[i…, 0], …, indices[i…, k - 1], r…] += updates[i…, r…]"""

    def gradient(self, node: Node, dy: Tensor) -> list[Any]:
        return [dy, None, gather_nd(dy, node.inputs[1])]


class TensorScatterSub(TensorScatter):
    """y = tensor, then y[indices[i…, 0], …, indices[i…, k - 1], r…] -= updates[i…, r…]"""

    def change(self, value: Any) -> Any:
        return -value

    def gradient(self, node: Node, dy: Tensor) -> list[Any]:
        return [dy, None, -gather_nd(dy, node.inputs[1])]


@public("tensor_scatter_update", "tensor_scatter_nd_update")
def tensor_scatter_update(
    tensor: TensorLike, indices: TensorLike, updates: TensorLike, name: str | None = None
) -> Tensor:
    """A copy of a tensor with slices replaced.

    Args:
        tensor: a tensor.
        indices: [..., k]: each vector of k numbers is an index into the first k axes.
        updates: the new slices, of the shape of `indices` without its last axis, then that of a
            slice; of repeated indices the last one wins.
        name: the name of the node.

    Returns:
        A tensor like `tensor`.

    Raises:
        InvalidArgumentError: if an index is out of bounds.

    Example:
        >>> sess.run(tf.tensor_scatter_update([1, 2, 3], [[0], [2]], [10, 30]))
        array([10,  2, 30], dtype=int32)
    """
    return TensorScatterUpdate()(tensor, indices, updates, name=name)


@public("tensor_scatter_add", "tensor_scatter_nd_add")
def tensor_scatter_add(
    tensor: TensorLike, indices: TensorLike, updates: TensorLike, name: str | None = None
) -> Tensor:
    """A copy of a tensor with slices added to.

    Args:
        tensor: a tensor.
        indices: [..., k]: each vector of k numbers is an index into the first k axes.
        updates: the addends, of the shape of `indices` without its last axis, then that of a
            slice; repeated indices accumulate.
        name: the name of the node.

    Returns:
        A tensor like `tensor`.

    Raises:
        InvalidArgumentError: if an index is out of bounds.

    Example:
        >>> sess.run(tf.tensor_scatter_add([1, 2, 3], [[0], [0]], [10, 20]))
        array([31,  2,  3], dtype=int32)
    """
    return TensorScatterAdd()(tensor, indices, updates, name=name)


@public("tensor_scatter_sub", "tensor_scatter_nd_sub")
def tensor_scatter_sub(
    tensor: TensorLike, indices: TensorLike, updates: TensorLike, name: str | None = None
) -> Tensor:
    """A copy of a tensor with slices subtracted from.

    Args:
        tensor: a tensor.
        indices: [..., k]: each vector of k numbers is an index into the first k axes.
        updates: the subtrahends, of the shape of `indices` without its last axis, then that of
            a slice.
        name: the name of the node.

    Returns:
        A tensor like `tensor`.

    Raises:
        InvalidArgumentError: if an index is out of bounds.

    Example:
        >>> sess.run(tf.tensor_scatter_sub([1, 2, 3], [[0], [2]], [1, 1]))
        array([0, 2, 2], dtype=int32)
    """
    return TensorScatterSub()(tensor, indices, updates, name=name)
