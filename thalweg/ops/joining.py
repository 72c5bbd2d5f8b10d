"""Putting tensors together and taking them apart: concat, stack, unstack, split, tile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.convert import (
    convert_all,
    convert_to_tensor,
    register_tensor_conversion_function,
)
from thalweg.graph.dtypes import DType
from thalweg.graph.known import constant_value, constant_value_as_shape
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, unknown_shape
from thalweg.ops import indexing, shaping
from thalweg.public import public

Array = NDArray[Any]


class Pack(Op):
    """Tensors of one shape stacked along a new axis."""

    signature = "values: N*T -> output: T"
    axis: int = 0

    def shape(self, values: list[Tensor]) -> TensorShape:
        merged = unknown_shape()
        for tensor in values:
            merged = merged.merge_with(tensor.shape)
        if merged.sizes is None:
            return unknown_shape()
        place = _insertion(self.axis, len(merged.sizes))
        return TensorShape.of((*merged.sizes[:place], len(values), *merged.sizes[place:]))

    def dimensions(self, values: list[Tensor]) -> TensorShape:
        known = [constant_value(tensor) for tensor in values]
        return TensorShape.of(tuple(None if v is None or v < 0 else int(v) for v in known))

    def numpy(self, values: list[Array]) -> Array:
        return np.stack(values, self.axis)

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor]:
        return unstack(dy, len(node.inputs), self.axis)


def _insertion(axis: int, rank: int) -> int:
    if not -rank - 1 <= axis <= rank:
        raise ValueError(f"axis = {axis} not in [{-rank - 1}, {rank + 1})")
    return axis + rank + 1 if axis < 0 else axis


@public("stack", "pack")
def stack(values: Any, axis: int = 0, name: str | None = None) -> Tensor:
    """Tensors of one shape stacked along a new axis."""
    if isinstance(values, Tensor):
        return values
    return Pack(axis=axis)(convert_all(cast("Sequence[Any]", values)), name=name or "stack")


class Unpack(Op):
    """The slices of x along an axis."""

    signature = "value: T -> output: num*T"
    num: int
    axis: int = 0

    def shape(self, value: Tensor) -> list[TensorShape]:
        sizes = value.shape.sizes
        if sizes is None:
            return [unknown_shape()] * self.num
        axis = self.axis % len(sizes)
        if sizes[axis] not in (None, self.num):
            raise ValueError(f"Dimension {self.axis} must be {self.num} but is {sizes[axis]}")
        return [TensorShape.of(sizes[:axis] + sizes[axis + 1 :])] * self.num

    def numpy(self, value: Array) -> list[Array]:
        moved = np.moveaxis(value, self.axis, 0)
        if len(moved) != self.num:
            raise ValueError(
                f"Input shape axis {self.axis} must equal {self.num}, got {len(moved)}"
            )
        return list(moved)

    def gradient(self, node: Node, *dy: Tensor) -> Tensor:
        return stack(list(dy), self.axis)


@public("unstack", "unpack")
def unstack(
    value: Any, num: int | None = None, axis: int = 0, name: str = "unstack"
) -> list[Tensor]:
    """The slices of a tensor along an axis, as a list; the size must be known or given."""
    tensor = convert_to_tensor(value)
    if num is None:
        sizes = tensor.shape.sizes
        if sizes is not None and not -len(sizes) <= axis < len(sizes):
            raise ValueError(f"axis = {axis} not in [{-len(sizes)}, {len(sizes)})")
        num = None if sizes is None else sizes[axis]
    if num is None:
        raise ValueError(f"Cannot infer num from shape {tensor.shape}")
    return Unpack(num=num, axis=axis)(tensor, name=name)


class ConcatV2(Op):
    """Tensors joined along an axis they all have."""

    signature = "values: N*T, axis: I -> output: T; I: index"

    def shape(self, values: list[Tensor], axis: Tensor) -> TensorShape:
        axis.shape.assert_has_rank(0)
        ranks = [t.shape.rank for t in values if t.shape.rank is not None]
        rank = ranks[0] if ranks else None
        place = constant_value(axis)
        if rank is None or place is None:
            return unknown_shape(rank)
        return _concatenated([t.shape.with_rank(rank) for t in values], int(place))

    def dimensions(self, values: list[Tensor], axis: Tensor) -> TensorShape:
        total = TensorShape.of(())
        for tensor in values:
            total = total.concatenate(constant_value_as_shape(tensor))
        return total

    def numpy(self, values: list[Array], axis: Array) -> Array:
        return np.concatenate(values, int(axis))

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        *values, axis = node.inputs
        sizes = [_size_along(value, axis) for value in values]
        return [*split(dy, sizes, axis), None]


def _concatenated(shapes: list[TensorShape], axis: int) -> TensorShape:
    rank = shapes[0].rank or 0
    if not -rank <= axis < rank:
        raise ValueError(f"Expected axis in the range [{-rank}, {rank}), but got {axis}")
    place = axis % rank
    along: int | None = 0
    merged = unknown_shape(rank)
    for shape in shapes:
        sizes = list(shape.sizes or ())
        size, sizes[place] = sizes[place], None
        along = None if along is None or size is None else along + size
        merged = merged.merge_with(TensorShape.of(tuple(sizes)))
    final = list(merged.sizes or ())
    final[place] = along
    return TensorShape.of(tuple(final))


def _size_along(value: Tensor, axis: Tensor) -> Any:
    """The size of a tensor along an axis: a number where it is static."""
    sizes, place = value.shape.sizes, constant_value(axis)
    if sizes is not None and place is not None:
        size = sizes[int(place)]
        if size is not None:
            return size
    return indexing.gather(shaping.shape(value), axis)


@public("concat")
def concat(values: Any, axis: Any, name: str = "concat") -> Tensor:
    """Tensors joined along an axis they all have."""
    if isinstance(axis, list | tuple) or not isinstance(values, list | tuple):
        # Before 1.0 the axis came first.
        values, axis = _old_order(values, axis)
    tensors = convert_all(cast("Sequence[Any]", values))
    place = convert_to_tensor(axis, dtypes.int32 if not isinstance(axis, Tensor) else None)
    return ConcatV2()(tensors, place, name=name)


def _old_order(values: Any, axis: Any) -> tuple[Any, Any]:
    if isinstance(axis, list | tuple):
        return cast(Any, axis), values
    return [values], axis


class SplitV(Op):
    """x cut along an axis into pieces of given sizes; one size may be -1."""

    signature = "value: T, size_splits: I, split_dim: int32 -> output: num_split*T; I: index"
    num_split: int

    def shape(self, value: Tensor, size_splits: Tensor, split_dim: Tensor) -> list[TensorShape]:
        sizes, axis = value.shape.sizes, constant_value(split_dim)
        if sizes is None or axis is None:
            return [unknown_shape(None if sizes is None else len(sizes))] * self.num_split
        place = _axis(int(axis), len(sizes))
        pieces = constant_value_as_shape(size_splits).sizes or (None,) * self.num_split
        whole = sizes[place]
        if pieces.count(None) == 1 and whole is not None:
            rest = whole - sum(p for p in pieces if p is not None)
            pieces = tuple(rest if p is None else p for p in pieces)
        return [TensorShape.of((*sizes[:place], p, *sizes[place + 1 :])) for p in pieces]

    def numpy(self, value: Array, size_splits: Array, split_dim: Array) -> list[Array]:
        axis = _axis(int(split_dim), value.ndim)
        sizes: list[int] = size_splits.tolist()
        if -1 in sizes:
            sizes[sizes.index(-1)] = value.shape[axis] - sum(s for s in sizes if s != -1)
        if sum(sizes) != value.shape[axis] or min(sizes) < 0:
            raise errors.InvalidArgumentError(
                None,
                None,
                f"the sizes {size_splits.tolist()} do not add up to the {value.shape[axis]} "
                f"elements along axis {axis}",
            )
        return np.split(value, np.cumsum(sizes)[:-1].tolist(), axis)

    def gradient(self, node: Node, *dy: Tensor) -> list[Tensor | None]:
        return [concat(list(dy), node.inputs[2]), None, None]


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is not in the range [{-rank}, {rank})")
    return axis % rank


@public("split")
def split(
    value: Any,
    num_or_size_splits: Any,
    axis: Any = 0,
    num: int | None = None,
    name: str = "split",
) -> list[Tensor]:
    """A tensor cut along an axis: into equal pieces by number, or by a list of sizes."""
    if isinstance(value, int) and isinstance(num_or_size_splits, int):
        value, axis = axis, value  # before 1.0: split(split_dim, num_split, value)
    tensor = convert_to_tensor(value)
    if isinstance(num_or_size_splits, int):
        return _split_evenly(tensor, num_or_size_splits, axis, name)
    sizes = convert_to_tensor(num_or_size_splits)
    count = num if num is not None else sizes.shape.as_list()[0]
    if count is None:
        raise ValueError(f"Cannot infer num from shape {sizes.shape} of {sizes.name}")
    return SplitV(num_split=count)(tensor, sizes, axis, name=name)


class Split(Op):
    """x cut along an axis into equal pieces."""

    signature = "split_dim: int32, value: T -> output: num_split*T"
    num_split: int

    def shape(self, split_dim: Tensor, value: Tensor) -> list[TensorShape]:
        sizes, axis = value.shape.sizes, constant_value(split_dim)
        if sizes is None or axis is None:
            return [unknown_shape(None if sizes is None else len(sizes))] * self.num_split
        place = _axis(int(axis), len(sizes))
        size = sizes[place]
        if size is not None and size % self.num_split:
            raise ValueError(
                f"Dimension size must be evenly divisible by {self.num_split} but is {size}"
            )
        piece = None if size is None else size // self.num_split
        return [TensorShape.of((*sizes[:place], piece, *sizes[place + 1 :]))] * self.num_split

    def numpy(self, split_dim: Array, value: Array) -> list[Array]:
        return np.split(value, self.num_split, int(split_dim))

    def gradient(self, node: Node, *dy: Tensor) -> list[Tensor | None]:
        return [None, concat(list(dy), node.inputs[0])]


def _split_evenly(tensor: Tensor, count: int, axis: Any, name: str) -> list[Tensor]:
    return Split(num_split=count)(axis, tensor, name=name)


def _contains_tensor(values: Any) -> bool:
    pending = list(values)
    while pending:
        item = pending.pop()
        if isinstance(item, Tensor) or hasattr(item, "_as_graph_element"):
            return True
        if isinstance(item, list | tuple):
            pending += cast("Sequence[Any]", item)
    return False


def _stack_conversion(
    value: Any, dtype: DType | None = None, name: str | None = None, as_ref: bool = False
) -> Any:
    """A (nested) list with tensors in it becomes their stack."""
    if not _contains_tensor(value):
        return NotImplemented
    if dtype is None:
        dtype = _dtype_within(value)
    parts = [convert_to_tensor(item, dtype) for item in value]
    return Pack()(parts, name=name or "packed")


def _dtype_within(values: Any) -> DType | None:
    for item in values:
        if isinstance(item, list | tuple):
            found = _dtype_within(item)
            if found is not None:
                return found
        elif isinstance(item, Tensor) or hasattr(item, "_as_graph_element"):
            return item.dtype.base_dtype
    return None


register_tensor_conversion_function((list, tuple), _stack_conversion, priority=99)
