"""Reductions over axes: sums, products, extremes, means, logical ones, and what is made of them."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.known import constant_value
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, unknown_shape
from thalweg.ops import broadcast, shaping
from thalweg.public import public

Array = NDArray[Any]


class Reduction(Op, abstract=True):
    """y = the combination of x over the given axes."""

    signature = "input: T, reduction_indices: I -> output: T; T: numeric, I: index"
    function: ClassVar[Any]  # the NumPy reduction
    keep_dims: bool = False

    def shape(self, input: Tensor, reduction_indices: Tensor) -> TensorShape:
        axes, sizes = constant_value(reduction_indices), input.shape.sizes
        if sizes is None or axes is None:
            kept = sizes is not None and self.keep_dims
            return unknown_shape(len(sizes) if kept else None)  # pyright: ignore[reportArgumentType] - kept implies sizes
        reduced = set(normal_axes(axes, len(sizes)))
        if self.keep_dims:
            return TensorShape.of(tuple(1 if i in reduced else s for i, s in enumerate(sizes)))
        return TensorShape.of(tuple(s for i, s in enumerate(sizes) if i not in reduced))

    def numpy(self, input: Array, reduction_indices: Array) -> Array:
        axes = normal_axes(reduction_indices, np.ndim(input))
        return type(self).function(input, axis=axes, keepdims=self.keep_dims)


def normal_axes(axes: Array, rank: int) -> tuple[int, ...]:
    """Axes as distinct numbers in [0, rank)."""
    found: list[int] = []
    for axis in np.atleast_1d(axes).tolist():
        if not -rank <= axis < rank:
            raise ValueError(f"Invalid reduction dimension {axis} for input with {rank} dimensions")
        found.append(axis % rank)
    return tuple(dict.fromkeys(found))


def _summed(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    return np.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


class Sum(Reduction):
    """y = sum of x over axes"""

    function = staticmethod(_summed)

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [stretch(node, dy), None]


def stretch(node: Node, dy: Tensor) -> Tensor:
    """Broadcast a reduction's gradient (or output) back over the reduced axes."""
    x, axes = node.inputs
    input_shape = shaping.shape(x)
    sizes, known = x.shape.sizes, constant_value(axes)
    if sizes is not None and known is not None:
        reduced = set(normal_axes(known, len(sizes)))
        ones = [1 if i in reduced else (-1 if s is None else s) for i, s in enumerate(sizes)]
        if ones.count(-1) <= 1:
            return broadcast.BroadcastTo()(shaping.reshape(dy, ones), input_shape)
    kept = KeptShape()(input_shape, axes)
    return broadcast.BroadcastTo()(shaping.reshape(dy, kept), input_shape)


class KeptShape(Op):
    """A shape with the given axes set to 1: what `keep_dims` would have given."""

    signature = "shape: T, axes: I -> output: T; T: index, I: index"
    not_differentiable = True

    def shape(self, shape: Tensor, axes: Tensor) -> TensorShape:
        return shape.shape

    def numpy(self, shape: Array, axes: Array) -> Array:
        kept = shape.copy()
        kept[list(normal_axes(axes, len(shape)))] = 1
        return kept


@public("reduce_sum", "math.reduce_sum")
def reduce_sum(
    input_tensor: Any,
    axis: Any = None,
    keep_dims: bool | None = None,
    name: str | None = None,
    reduction_indices: Any = None,
    keepdims: bool | None = None,
) -> Tensor:
    """The sum of elements over `axis` (all axes if None)."""
    x, axes, keep = arguments(input_tensor, axis, reduction_indices, keep_dims, keepdims)
    return Sum(keep_dims=keep)(x, axes, name=name)


def _multiplied(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    return np.prod(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


class Prod(Reduction):
    """y = product of x over axes"""

    function = staticmethod(_multiplied)


@public("reduce_prod", "math.reduce_prod")
def reduce_prod(
    input_tensor: Any,
    axis: Any = None,
    keep_dims: bool | None = None,
    name: str | None = None,
    reduction_indices: Any = None,
    keepdims: bool | None = None,
) -> Tensor:
    """The product of elements over `axis` (all axes if None)."""
    x, axes, keep = arguments(input_tensor, axis, reduction_indices, keep_dims, keepdims)
    return Prod(keep_dims=keep)(x, axes, name=name)


def arguments(
    input_tensor: Any,
    axis: Any,
    reduction_indices: Any,
    keep_dims: bool | None,
    keepdims: bool | None,
) -> tuple[Tensor, Tensor, bool]:
    """The input, the axes as a tensor, and whether to keep them, from every old spelling."""
    if axis is not None and reduction_indices is not None:
        raise ValueError("Can't specify both axis and reduction_indices.")
    x = convert_to_tensor(input_tensor)
    given = axis if axis is not None else reduction_indices
    keep = bool(keep_dims if keepdims is None else keepdims)
    if given is None:
        return x, _all_axes(x), keep
    if isinstance(given, list | tuple) and not given:
        given = np.zeros(0, np.int32)
    return x, convert_to_tensor(given), keep


def _all_axes(x: Tensor) -> Tensor:
    if x.shape.rank is not None:
        return convert_to_tensor(np.arange(x.shape.rank, dtype=np.int32))
    return AllAxes()(x)


class AllAxes(Op):
    """0, 1, …, rank(x) - 1"""

    signature = "input: T -> output: int32"
    not_differentiable = True

    def shape(self, input: Tensor) -> TensorShape:
        return TensorShape.of((input.shape.rank,))

    def numpy(self, input: Array) -> Array:
        return np.arange(np.ndim(input), dtype=np.int32)
