"""TensorFlow 2's lists: immutable values along variant edges.

TensorFlow 2 exports TensorArrays in this form. An op that sets an entry returns a new list, which
shares all other entries with the old one. An unset entry is zeros, once its shape is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.graph.dtypes import DType
from thalweg.graph.known import constant_value_as_shape
from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, as_shape, scalar, unknown_shape
from thalweg.platform.arrays import Array

MAX_ENTRIES = 1 << 31


@dataclass(frozen=True, eq=False)
class ImmutableList:
    """An immutable list: its entries (None if unset), their dtype and static shape."""

    dtype: DType
    shape: TensorShape
    entries: tuple[Array | None, ...] = ()
    limit: int = -1  # on the number of entries; none if negative

    def with_entries(self, entries: Sequence[Array | None]) -> ImmutableList:
        """A list like this one with other entries."""
        if 0 <= self.limit < len(entries):
            raise errors.invalid(f"Tried to push item into a full list of {self.limit} elements")
        return replace(self, entries=tuple(entries))

    def resized(self, count: int) -> ImmutableList:
        """A list with entries removed from, or unset ones appended to, its end."""
        if not 0 <= count < MAX_ENTRIES:
            raise errors.invalid(
                f"The num_elements to reserve must be a non negative number: {count}"
            )
        unset = (None,) * (count - len(self.entries))
        return self.with_entries((*self.entries[:count], *unset))

    def check(self, dtype: DType, value: Any = None) -> None:
        """Raise unless the list has a dtype and an item fits its shape."""
        if self.dtype is not dtype:
            raise errors.invalid(
                f"Invalid data types; list elements {self.dtype.name}, op {dtype.name}"
            )
        if value is not None:
            fault = "Tried to set item of another shape than a list's"
            _merge_shapes(self.shape, np.shape(value), fault)

    def item(self, index: int, shape: TensorShape) -> Array:
        """An entry; zeros if it is unset."""
        if not 0 <= index < len(self.entries):
            raise errors.invalid(
                f"Trying to access element {index} in a list with {len(self.entries)} elements."
            )
        entry = self.entries[index]
        wanted = self.full_shape(shape, entry)
        return np.zeros(wanted, self.dtype.as_numpy_dtype) if entry is None else entry

    def full_shape(self, shape: TensorShape, entry: Array | None = None) -> tuple[int, ...]:
        """The shape of an entry, from the list's, the requested and other entries' shapes."""
        known = _merge_shapes(self.shape, shape, "The shape asked for is not that of the list")
        if entry is not None:
            known = _merge_shapes(known, entry.shape, "An entry does not have the shape asked for")
        elif not known.is_fully_defined():
            others = [other.shape for other in self.entries if other is not None]
            known = _merge_shapes(known, others[0], "Entries differ in shape") if others else known
        if known.whole is None:
            raise errors.invalid(
                "Trying to read an uninitialized element of a list whose element shape is not "
                f"fully defined: {known.sizes}"
            )
        return known.whole

    def stacked(self, indices: Sequence[int], shape: TensorShape) -> Array:
        """Entries of one shape as the rows of an array."""
        if not indices:
            return np.zeros((0, *self.full_shape(shape)), self.dtype.as_numpy_dtype)
        rows = [self.item(index, shape) for index in indices]
        if any(row.shape != rows[0].shape for row in rows):
            shapes = sorted({row.shape for row in rows})
            raise errors.invalid(f"Tried to stack list which has elements of shapes {shapes}")
        return np.stack(rows)


def _shape_of(value: Any) -> TensorShape:
    """The shape given by a tensor of sizes; -1 is an unknown rank or size."""
    sizes = np.asarray(value)
    if sizes.ndim == 0:
        if int(sizes) >= 0:
            raise errors.invalid(f"The shape of elements must be a vector, or -1: {sizes}")
        return unknown_shape()
    return TensorShape.of(tuple(None if size < 0 else size for size in sizes.tolist()))


def _merge_shapes(first: TensorShape, second: Any, fault: str) -> TensorShape:
    if not first.is_compatible_with(second):
        raise errors.invalid(f"{fault}: {first.as_list()} and {as_shape(second).as_list()}")
    return first.merge_with(second)


class TensorListOp(Op, abstract=True):
    """The base of ops on immutable lists."""

    effects = ()
    stateful = True  # a list is no constant
    host_only = True

    def shape(self, *_: Tensor) -> Any:
        return scalar()


class TypedTensorListOp(TensorListOp, abstract=True):
    """The base of ops on lists of one dtype."""

    element_dtype: DType

    def empty(self, element_shape: Array) -> ImmutableList:
        """A list without entries, of this dtype."""
        return ImmutableList(self.element_dtype, _shape_of(element_shape))


class EmptyTensorList(TypedTensorListOp):
    """A list without entries, of limited size."""

    signature = "element_shape: shape_type, max_num_elements: int32 -> handle: variant"

    def numpy(self, element_shape: Array, max_num_elements: Array) -> ImmutableList:
        return replace(self.empty(element_shape), limit=int(max_num_elements))


class TensorListReserve(TypedTensorListOp):
    """A list of unset entries."""

    signature = "element_shape: shape_type, num_elements: int32 -> handle: variant"

    def numpy(self, element_shape: Array, num_elements: Array) -> ImmutableList:
        return self.empty(element_shape).resized(int(num_elements))


class TensorListFromTensor(TypedTensorListOp):
    """A list of the rows of a tensor."""

    signature = "tensor: element_dtype, element_shape: shape_type -> output_handle: variant"

    def numpy(self, tensor: Array, element_shape: Array) -> ImmutableList:
        if tensor.ndim == 0:
            raise errors.invalid("Tensor must be at least a vector to be a list")
        shape = _merge_shapes(_shape_of(element_shape), tensor.shape[1:], "Rows have another shape")
        return ImmutableList(self.element_dtype, shape, tuple(np.asarray(row) for row in tensor))


class TensorListStack(TypedTensorListOp):
    """The entries of a list as the rows of a tensor."""

    signature = "input_handle: variant, element_shape: int32 -> tensor: element_dtype"
    num_elements: int = -1

    def shape(self, input_handle: Tensor, element_shape: Tensor) -> TensorShape:
        rows = TensorShape.of((self.num_elements if self.num_elements >= 0 else None,))
        return rows.concatenate(constant_value_as_shape(element_shape))

    def numpy(self, input_handle: ImmutableList, element_shape: Array) -> Array:
        input_handle.check(self.element_dtype)
        count = len(input_handle.entries)
        if self.num_elements not in (-1, count):
            raise errors.invalid(
                f"Operation expected a list with {self.num_elements} elements: {count}"
            )
        return input_handle.stacked(range(count), _shape_of(element_shape))


class TensorListGetItem(TypedTensorListOp):
    """An entry."""

    signature = "input_handle: variant, index: int32, element_shape: int32 -> item: element_dtype"

    def shape(self, input_handle: Tensor, index: Tensor, element_shape: Tensor) -> TensorShape:
        return constant_value_as_shape(element_shape)

    def numpy(self, input_handle: ImmutableList, index: Array, element_shape: Array) -> Array:
        input_handle.check(self.element_dtype)
        return input_handle.item(int(index), _shape_of(element_shape))


class TensorListSetItem(TypedTensorListOp):
    """A list with one entry replaced."""

    signature = "input_handle: variant, index: int32, item: element_dtype -> output_handle: variant"
    resize_if_index_out_of_bounds: bool = False

    def numpy(self, input_handle: ImmutableList, index: Array, item: Array) -> ImmutableList:
        input_handle.check(self.element_dtype, item)
        entry = int(index)
        if self.resize_if_index_out_of_bounds and entry >= len(input_handle.entries):
            input_handle = input_handle.resized(entry + 1)
        entries = list(input_handle.entries)
        if not 0 <= entry < len(entries):
            raise errors.invalid(f"Trying to modify element {entry} in a list with {len(entries)}")
        entries[entry] = item
        return input_handle.with_entries(entries)


class TensorListPushBack(TypedTensorListOp):
    """A list with one more entry at its end."""

    signature = "input_handle: variant, tensor: element_dtype -> output_handle: variant"

    def numpy(self, input_handle: ImmutableList, tensor: Array) -> ImmutableList:
        input_handle.check(self.element_dtype, tensor)
        return input_handle.with_entries((*input_handle.entries, tensor))


class TensorListPopBack(TypedTensorListOp):
    """A list without its last entry, and that entry."""

    signature = (
        "input_handle: variant, element_shape: int32 -> "
        "output_handle: variant, tensor: element_dtype"
    )

    def shape(self, input_handle: Tensor, element_shape: Tensor) -> list[TensorShape]:
        return [scalar(), constant_value_as_shape(element_shape)]

    def numpy(self, input_handle: ImmutableList, element_shape: Array) -> tuple[Any, Array]:
        input_handle.check(self.element_dtype)
        if not input_handle.entries:
            raise errors.invalid("Trying to pop from an empty list.")
        last = input_handle.item(len(input_handle.entries) - 1, _shape_of(element_shape))
        return input_handle.with_entries(input_handle.entries[:-1]), last


class TensorListLength(TensorListOp):
    """The number of entries."""

    signature = "input_handle: variant -> length: int32"

    def numpy(self, input_handle: ImmutableList) -> Any:
        return np.int32(len(input_handle.entries))


class TensorListElementShape(TensorListOp):
    """The static shape of a list's entries."""

    signature = "input_handle: variant -> element_shape: shape_type"
    shape_type: DType

    def shape(self, input_handle: Tensor) -> TensorShape:
        return unknown_shape()

    def numpy(self, input_handle: ImmutableList) -> Array:
        sizes = input_handle.shape.sizes
        known = -1 if sizes is None else [-1 if size is None else size for size in sizes]
        return np.array(known, self.shape_type.as_numpy_dtype)


class TensorListResize(TensorListOp):
    """A list with entries removed from, or unset ones appended to, its end."""

    signature = "input_handle: variant, size: int32 -> output_handle: variant"

    def numpy(self, input_handle: ImmutableList, size: Array) -> ImmutableList:
        return input_handle.resized(int(size))


class TensorListGather(TypedTensorListOp):
    """Some entries as the rows of a tensor."""

    signature = (
        "input_handle: variant, indices: int32, element_shape: int32 -> values: element_dtype"
    )

    def shape(self, input_handle: Tensor, indices: Tensor, element_shape: Tensor) -> TensorShape:
        return indices.shape.with_rank(1).concatenate(constant_value_as_shape(element_shape))

    def numpy(self, input_handle: ImmutableList, indices: Array, element_shape: Array) -> Array:
        input_handle.check(self.element_dtype)
        return input_handle.stacked(indices.tolist(), _shape_of(element_shape))


class TensorListScatterV2(TypedTensorListOp):
    """A new list with the rows of a tensor at these indices."""

    signature = (
        "tensor: element_dtype, indices: int32, element_shape: shape_type, num_elements: int32 -> "
        "output_handle: variant"
    )

    def numpy(
        self, tensor: Array, indices: Array, element_shape: Array, num_elements: Array
    ) -> ImmutableList:
        count = int(num_elements)
        if count < 0:  # as many as the indices need
            count = max([0, *(indices + 1).tolist()])
        return _scatter(self.empty(element_shape).resized(count), tensor, indices)


class TensorListScatterIntoExistingList(TypedTensorListOp):
    """A list with the rows of a tensor written at these indices."""

    signature = (
        "input_handle: variant, tensor: element_dtype, indices: int32 -> output_handle: variant"
    )

    def numpy(self, input_handle: ImmutableList, tensor: Array, indices: Array) -> ImmutableList:
        count = max([len(input_handle.entries), *(indices + 1).tolist()])
        return _scatter(input_handle.resized(count), tensor, indices)


def _scatter(start: ImmutableList, tensor: Array, indices: Array) -> ImmutableList:
    if indices.ndim != 1 or tensor.ndim == 0 or len(indices) != len(tensor):
        raise errors.invalid(
            f"Indices must be a vector, as long as the tensor: {indices.shape}, {tensor.shape}"
        )
    entries = list(start.entries)
    for index, row in zip(indices.tolist(), tensor, strict=True):
        if not 0 <= index < len(entries):
            raise errors.invalid(
                f"Trying to scatter to place {index} of a list with {len(entries)}"
            )
        start.check(start.dtype, row)
        entries[index] = np.asarray(row)
    return start.with_entries(entries)


class TensorListConcatV2(TypedTensorListOp):
    """The entries joined along their first axis, and the length of each."""

    signature = (
        "input_handle: variant, element_shape: shape_type, leading_dims: int64 -> "
        "tensor: element_dtype, lengths: int64"
    )

    def shape(
        self, input_handle: Tensor, element_shape: Tensor, leading_dims: Tensor
    ) -> list[TensorShape]:
        known = constant_value_as_shape(element_shape)
        rest = unknown_shape() if not known.rank else known[1:]
        return [unknown_shape(1).concatenate(rest), unknown_shape(1)]

    def numpy(
        self, input_handle: ImmutableList, element_shape: Array, leading_dims: Array
    ) -> tuple[Array, Array]:
        input_handle.check(self.element_dtype)
        sizes, leading = _shape_of(element_shape).sizes, leading_dims.tolist()
        parts: list[Array] = []
        for index in range(len(input_handle.entries)):
            length = leading[index] if index < len(leading) else None
            entry_sizes = sizes and (sizes[0] or length, *sizes[1:])
            parts.append(input_handle.item(index, TensorShape.of(entry_sizes)))
        if any(part.ndim == 0 for part in parts):
            raise errors.invalid(
                "Concat saw a scalar shape at index 0 but requires at least vectors."
            )
        if not parts:
            rest = input_handle.full_shape(TensorShape.of((0, *sizes[1:]) if sizes else None))
            return np.zeros(rest, self.element_dtype.as_numpy_dtype), np.zeros(0, np.int64)
        return np.concatenate(parts), np.array([len(part) for part in parts], np.int64)


class TensorListSplit(TypedTensorListOp):
    """A list of pieces of a tensor, of these lengths along its first axis."""

    signature = (
        "tensor: element_dtype, element_shape: shape_type, lengths: int64 -> output_handle: variant"
    )

    def numpy(self, tensor: Array, element_shape: Array, lengths: Array) -> ImmutableList:
        if tensor.ndim == 0 or (lengths < 0).any() or lengths.sum() != len(tensor):
            raise errors.invalid(
                f"Lengths must not be negative, and add up to the first size: {lengths.tolist()}, "
                f"{tensor.shape}"
            )
        pieces = np.split(tensor, np.cumsum(lengths)[:-1]) if len(lengths) else []
        result = self.empty(element_shape)
        for piece in pieces:
            result.check(result.dtype, piece)
        return result.with_entries(pieces)
