"""The ops on lists: a variant edge, the flow, passes a `ListValue` from use to use.

An op that writes modifies the list in place and returns it, so the flow orders the uses. The
gradient of a list is a list. The gradient of a read is a `ListEntry`, whose cost is that of the
entry alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg import errors
from thalweg.control.lists import ListValue
from thalweg.graph.composite import ListEntry
from thalweg.graph.dtypes import DType
from thalweg.graph.graph import get_default_graph
from thalweg.graph.known import constant_elements
from thalweg.graph.node import Node, Tensor, operators
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, scalar, unknown_shape
from thalweg.ops.core import basic, shaping
from thalweg.ops.core.buffer import Buffer
from thalweg.platform.arrays import Array


class ListOp(Op, abstract=True):
    """The base of ops on lists, which are mutable: never merged or folded."""

    stateful = True
    host_only = True
    step_local = True
    private = True

    def shape(self, *_: Tensor) -> Any:
        return scalar()


class TypedListOp(ListOp, abstract=True):
    """The base of ops on entries of one dtype."""

    dtype: DType
    use = "requested"  # the verb of error messages

    def checked(self, entries: ListValue) -> ListValue:
        """The list; raises unless its entries are of this op's dtype."""
        if entries.dtype is not self.dtype:
            problem = dtype_mismatch(entries.dtype, self.dtype, self.use)
            raise errors.invalid(f"TensorArray {entries.name}: {problem}")
        return entries


def dtype_mismatch(list_dtype: DType, op_dtype: DType, use: str) -> str:
    """The error text for an op of another dtype than its list."""
    return (
        f"TensorArray dtype is {list_dtype.traits.short_name} but Op {use} dtype "
        f"{op_dtype.traits.short_name}."
    )


class ListReader(TypedListOp, abstract=True):
    """The base of ops that read entries, of a static shape."""

    element_shape: TensorShape = unknown_shape()

    def of_known_shape(self, value: Any, rows: int) -> Any:
        """A value; raises unless its shape after `rows` axes has the static shape."""
        shape, known = np.shape(value)[rows:], self.element_shape
        if shape != known.sizes and not known.is_compatible_with(TensorShape.of(shape)):
            raise errors.invalid(
                f"TensorArray has an element of shape {shape} where the shape {known} was inferred "
                "(perhaps try setting infer_shape = false?)."
            )
        return value


class ListWriter(TypedListOp, abstract=True):
    """The base of ops that write entries."""

    use = "is trying to write"


class TensorArrayNew(TypedListOp):
    """A new list."""

    signature = "size: int32 -> list: variant"
    effects = ()
    not_differentiable = True
    element_shape: TensorShape = unknown_shape()
    dynamic_size: bool = False
    clear_after_read: bool = True
    tensor_array_name: str = ""

    def shape(self, size: Tensor) -> TensorShape:
        size.shape.with_rank(0)
        return scalar()

    def numpy(self, size: Array) -> ListValue:
        return ListValue(
            self.dtype,
            int(size),
            self.element_shape,
            dynamic_size=self.dynamic_size,
            clear_after_read=self.clear_after_read,
            name=self.tensor_array_name or "TensorArray",
        )


class TensorArrayGradient(ListOp):
    """The list of gradients of a list: a new one, or the one of a named source."""

    signature = "list: variant -> gradient: variant"
    not_differentiable = True
    source: str = ""

    def numpy(self, list: ListValue | None) -> ListValue | None:
        return None if list is None else list.gradient(self.source)  # of a branch not taken


class TensorArrayWrite(ListWriter):
    """The list with one more entry; a list of gradients adds the value to the entry."""

    signature = "list: variant, index: int32, value: dtype -> output: variant"

    def shape(self, list: Tensor, index: Tensor, value: Tensor) -> TensorShape:
        index.shape.with_rank(0)
        return scalar()

    def numpy(self, list: ListValue, index: Array, value: Array) -> ListValue:
        return self.checked(list).write(index, value)

    def gradient(self, node: Node, dlist: Tensor) -> Any:
        _, index, value = node.inputs
        read = TensorArrayRead(dtype=self.dtype, element_shape=value.shape)
        return [dlist, None, read(dlist, index)]


class TensorArrayAdd(TensorArrayWrite):
    """A list of gradients with a value added to one entry."""

    def numpy(self, list: ListValue, index: Array, value: Array | None) -> ListValue:
        if value is None:  # of a branch that was not taken
            return list
        return super().numpy(list, index, value)


class TensorArrayRead(ListReader):
    """One entry."""

    signature = "list: variant, index: int32 -> value: dtype"

    def shape(self, list: Tensor, index: Tensor) -> TensorShape:
        index.shape.with_rank(0)
        return self.element_shape

    def numpy(self, list: ListValue, index: Array) -> Any:
        value = self.checked(list).read(index, self.element_shape)
        return self.of_known_shape(value, 0) if self.dtype.is_numpy_compatible else value

    def gradient(self, node: Node, dy: Tensor) -> Any:
        entries, index = node.inputs
        return [ListEntry(entries, TensorArrayAdd(dtype=self.dtype), (index, dy)), None]


class TensorArrayGather(ListReader):
    """Entries as the rows of a tensor."""

    signature = "list: variant, indices: int32 -> value: dtype"

    def shape(self, list: Tensor, indices: Tensor) -> TensorShape:
        return indices.shape.with_rank(1).concatenate(self.element_shape)

    def numpy(self, list: ListValue, indices: Array) -> Array:
        value = self.checked(list).gather(indices, self.element_shape)
        return self.of_known_shape(value, 1)

    def gradient(self, node: Node, dy: Tensor) -> Any:
        entries, indices = node.inputs
        return [ListEntry(entries, TensorArrayScatter(dtype=self.dtype), (indices, dy)), None]


class TensorArrayScatter(ListWriter):
    """The list with the rows of a tensor written to entries."""

    signature = "list: variant, indices: int32, value: dtype -> output: variant"

    def numpy(self, list: ListValue, indices: Array, value: Array) -> ListValue:
        return self.checked(list).scatter(indices, value)

    def gradient(self, node: Node, dlist: Tensor) -> Any:
        _, indices, value = node.inputs
        gather = TensorArrayGather(dtype=self.dtype, element_shape=value.shape[1:])
        return [dlist, None, gather(dlist, indices)]


class TensorArrayStack(ListReader):
    """The first entries as the rows of a tensor."""

    signature = "list: variant, count: int32 -> value: dtype"
    fills: bool = False  # entries never written to are zeros

    def shape(self, list: Tensor, count: Tensor) -> TensorShape:
        count.shape.with_rank(0)
        elements = constant_elements(count)
        return TensorShape.of(elements or (None,)).concatenate(self.element_shape)

    def numpy(self, list: ListValue, count: Array) -> Array | Buffer:
        value = self.checked(list).stack(int(count), self.element_shape, self.fills)
        return self.of_known_shape(value, 1)

    def gradient(self, node: Node, dy: Tensor) -> Any:
        return [ListEntry(node.inputs[0], TensorArrayUnstack(dtype=self.dtype), (dy,)), None]


class TensorArrayUnstack(ListWriter):
    """The list with the rows of a tensor as its first entries."""

    takes_buffers = True
    signature = "list: variant, value: dtype -> output: variant"

    def numpy(self, list: ListValue, value: Array | Buffer) -> ListValue:
        return self.checked(list).unstack(value)

    def gradient(self, node: Node, dlist: Tensor) -> Any:
        value = node.inputs[1]
        stack = TensorArrayStack(dtype=self.dtype, element_shape=value.shape[1:])
        return [dlist, stack(dlist, shaping.shape(value)[0])]


class TensorArrayConcat(ListReader):
    """The entries joined along their first axis, and the length of each."""

    signature = "list: variant -> value: dtype, lengths: int64"

    def shape(self, list: Tensor) -> list[TensorShape]:
        element = self.element_shape
        value = unknown_shape(1).concatenate(element[1:]) if element.rank else unknown_shape()
        return [value, unknown_shape(1)]

    def numpy(self, list: ListValue) -> tuple[Array, Array]:
        return self.checked(list).concat(shape=self.element_shape)

    def gradient(self, node: Node, dy: Tensor, _: Any) -> Any:
        split = TensorArraySplit(dtype=self.dtype)
        return [ListEntry(node.inputs[0], split, (dy, node.outputs[1]))]


class TensorArraySplit(ListWriter):
    """The list with pieces of a tensor, of these lengths, as its first entries."""

    signature = "list: variant, value: dtype, lengths: int64 -> output: variant"

    def numpy(self, list: ListValue, value: Array, lengths: Array) -> ListValue:
        return self.checked(list).split(value, lengths)

    def gradient(self, node: Node, dlist: Tensor) -> Any:
        _, value, lengths = node.inputs
        join = TensorArrayJoin(dtype=self.dtype, given_shape=value.shape)
        return [dlist, join(dlist, lengths), None]


class TensorArrayJoin(TypedListOp):
    """The first entries, of these lengths, joined: the inverse of a split."""

    signature = "list: variant, lengths: int64 -> value: dtype"
    given_shape: TensorShape = unknown_shape()

    def shape(self, list: Tensor, lengths: Tensor) -> TensorShape:
        return self.given_shape

    def numpy(self, list: ListValue, lengths: Array) -> Array:
        return self.checked(list).concat(len(lengths), self.given_shape)[0]

    def gradient(self, node: Node, dy: Tensor) -> Any:
        entries, lengths = node.inputs
        return [ListEntry(entries, TensorArraySplit(dtype=self.dtype), (dy, lengths)), None]


class TensorArrayMerge(ListOp):
    """A list of gradients with the entries of another one added."""

    signature = "list: variant, other: variant -> output: variant"

    def numpy(self, list: ListValue, other: ListValue) -> ListValue:
        return list.merge(other)

    def gradient(self, node: Node, dlist: Tensor) -> Any:
        # Each input gets its own list: later additions to one must not reach the other.
        copy = TensorArrayMerge()(TensorArrayGradient()(node.inputs[1]), dlist)
        with get_default_graph().control_dependencies([copy]):
            return [basic.identity(dlist), copy]


class TensorArraySize(ListOp):
    """The number of entries."""

    signature = "list: variant -> size: int32"
    not_differentiable = True

    def numpy(self, list: ListValue) -> Any:
        return np.int32(list.size())


class TensorArrayClose(ListOp):
    """Frees the entries of a list."""

    signature = "list: variant ->"
    not_differentiable = True

    def shape(self, list: Tensor) -> Any:
        return []

    def numpy(self, list: ListValue) -> Any:
        list.close()
        return ()


operators["list_gradient"] = TensorArrayGradient()
operators["list_merge"] = TensorArrayMerge()
