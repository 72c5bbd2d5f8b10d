"""`TensorArray`: the public class for lists of tensors that loops read and write.

Every method adds an op on the list (`list_ops`) to the graph. All TensorArrays of one list share
their static information.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from copy import copy
from dataclasses import dataclass
from typing import Any

from thalweg import errors
from thalweg.control.list_ops import (
    ListReader,
    ListWriter,
    TensorArrayClose,
    TensorArrayConcat,
    TensorArrayGather,
    TensorArrayGradient,
    TensorArrayNew,
    TensorArrayRead,
    TensorArrayScatter,
    TensorArraySize,
    TensorArraySplit,
    TensorArrayStack,
    TensorArrayUnstack,
    TensorArrayWrite,
    dtype_mismatch,
)
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype, int32, int64
from thalweg.graph.graph import get_default_graph
from thalweg.graph.known import constant_input, constant_value
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.origin import user_line
from thalweg.graph.shapes import TensorShape, as_shape, unknown_shape
from thalweg.ops.core import basic, casting
from thalweg.platform.arrays import Array
from thalweg.public import public


@dataclass
class _ListInfo:
    """The static information that all TensorArrays of one list share."""

    dtype: DType
    element_shape: TensorShape
    infer_shape: bool
    dynamic_size: bool = False
    size: int | None = None  # if it is static
    node: Node | None = None  # that made the list: the other ops are colocated with it
    follows_first_write: bool = False

    def merge_shape(self, shape: TensorShape) -> None:
        """Merge the shape of an entry into that of all, if shapes are inferred."""
        if not shape.is_compatible_with(self.element_shape):
            raise ValueError(
                f"Inconsistent shapes: saw {shape} but expected {self.element_shape} (and "
                f"infer_shape=True) (at {user_line()})"
            )
        if self.infer_shape:
            self.element_shape = self.element_shape.merge_with(shape)


@public("TensorArray")
class TensorArray:
    """A list of tensors that loops read and write: `array = array.write(i, value)`.

    Every write returns a TensorArray to use from then on. Each entry is written once. With
    `clear_after_read` (the default) it is also read once, and its memory is freed.

    Args:
        dtype: the dtype of the entries.
        size: the number of entries.
        dynamic_size: whether writes past the end extend it.
        clear_after_read: False lets an entry be read again.
        tensor_array_name: a name for errors.
        handle, flow: those of another TensorArray, to use its list.
        infer_shape: whether all entries have one shape.
        element_shape: the shape of an entry.
        colocate_with_first_write_call: whether it is on the device of the first value written.
        name: the name of the node.

    Example:
        >>> array = tf.TensorArray(tf.float32, size=2)
        >>> array = array.write(0, [1.0, 2.0]).write(1, [3.0, 4.0])
        >>> sess.run(array.stack())
        array([[1., 2.],
               [3., 4.]], dtype=float32)
    """

    def __init__(
        self,
        dtype: Any,
        size: Any = None,
        dynamic_size: bool | None = None,
        clear_after_read: bool | None = None,
        tensor_array_name: str | None = None,
        handle: Tensor | None = None,
        flow: Tensor | None = None,
        infer_shape: bool = True,
        element_shape: Any = None,
        colocate_with_first_write_call: bool = True,
        name: str | None = None,
    ) -> None:
        options = {
            "size": size,
            "element_shape": element_shape,
            "dynamic_size": dynamic_size,
            "clear_after_read": clear_after_read,
            "tensor_array_name": tensor_array_name,
        }
        _check_options(handle, options)
        self._info = _ListInfo(
            as_dtype(dtype).base_dtype,
            as_shape(element_shape),
            infer_shape or element_shape is not None,
            bool(dynamic_size),
            follows_first_write=colocate_with_first_write_call,
        )
        if handle is not None:
            self._flow: Tensor = handle if flow is None else flow
            return
        make = TensorArrayNew(
            dtype=self._info.dtype,
            element_shape=self._info.element_shape,
            dynamic_size=self._info.dynamic_size,
            clear_after_read=clear_after_read is not False,
            tensor_array_name=tensor_array_name or "",
        )
        with ExitStack() as scopes:
            if colocate_with_first_write_call:  # request no device: the first value has one
                graph = get_default_graph()
                scopes.enter_context(graph.colocate_with(None, ignore_existing=True))
                scopes.enter_context(graph.device(None))
            self._flow = make(size, name=name or "TensorArray")
        self._info.node = self._flow.op
        if not dynamic_size:
            count = constant_input(self._flow, 0)
            self._info.size = None if count is None else int(count)

    def with_flow(self, flow: Tensor) -> TensorArray:
        """The same list at another point of its flow."""
        array = copy(self)
        array._flow = flow
        return array

    @property
    def static_key(self) -> tuple[Any, ...]:
        """What is known of the list while a graph is built: functions are traced for it."""
        info = self._info
        shape = info.element_shape.sizes
        return info.dtype, shape, info.infer_shape, info.dynamic_size, info.size

    def components(self) -> list[Tensor]:
        """The tensors that represent the list: the flow."""
        return [self._flow]

    def with_components(self, components: Sequence[Tensor]) -> TensorArray:
        """The same list with its `components` replaced."""
        (flow,) = components
        return self.with_flow(flow)

    @property
    def flow(self) -> Tensor:
        """The list, after all uses so far."""
        return self._flow

    handle = flow  # one tensor represents the list

    @property
    def dtype(self) -> DType:
        """The dtype of the entries."""
        return self._info.dtype

    @property
    def element_shape(self) -> TensorShape:
        """The static shape of an entry."""
        return self._info.element_shape

    @property
    def dynamic_size(self) -> bool:
        """Whether writing past the end extends the list."""
        return self._info.dynamic_size

    def identity(self) -> TensorArray:
        """The same list, after the current control dependencies."""
        with self._colocated():
            return self.with_flow(basic.identity(self._flow))

    def grad(self, source: str, flow: Tensor | None = None, name: str | None = None) -> TensorArray:
        """The gradients of this list in the computation named `source`; writes accumulate."""
        with self._colocated():
            gradient = TensorArrayGradient(source=source)
            return self.with_flow(gradient(self._flow if flow is None else flow, name=name))

    def read(self, index: TensorLike, name: str | None = None) -> Tensor:
        """The entry at `index`."""
        return self._read_op(TensorArrayRead, index, name=name)

    def gather(self, indices: TensorLike, name: str | None = None) -> Tensor:
        """The entries at `indices` as the rows of a tensor."""
        return self._read_op(TensorArrayGather, indices, name=name)

    def stack(self, name: str | None = None) -> Tensor:
        """All entries, which must have been written, as the rows of a tensor."""
        with self._colocated():
            size = self._info.size
            count = self.size() if size is None else basic.constant(size, int32, name="count")
        return self._read_op(TensorArrayStack, count, name=name)

    pack = stack

    def concat(self, name: str | None = None) -> Tensor:
        """All entries joined along their first axis."""
        value, _ = self._read_op(TensorArrayConcat, name=name)
        return value

    def _read_op(self, kind: type[ListReader], *inputs: Any, name: str | None) -> Any:
        op = kind(dtype=self.dtype, element_shape=self.element_shape)
        with self._colocated():
            return op(self._flow, *inputs, name=name)

    def write(self, index: TensorLike, value: Any, name: str | None = None) -> TensorArray:
        """The list with `value` at `index`."""
        tensor = self._value_tensor(value)
        return self._write_op(TensorArrayWrite, tensor.shape, tensor, (index, tensor), name)

    def scatter(self, indices: TensorLike, value: Any, name: str | None = None) -> TensorArray:
        """The list with the rows of `value` at `indices`."""
        tensor = self._value_tensor(value)
        return self._write_op(TensorArrayScatter, tensor.shape[1:], tensor, (indices, tensor), name)

    def unstack(self, value: Any, name: str | None = None) -> TensorArray:
        """The list with the rows of `value` as its entries, from the first on."""
        tensor = self._value_tensor(value)
        return self._write_op(TensorArrayUnstack, tensor.shape[1:], tensor, (tensor,), name)

    unpack = unstack

    def split(self, value: Any, lengths: Any, name: str | None = None) -> TensorArray:
        """The list with pieces of `value` along its first axis, of these lengths, as entries."""
        tensor = self._value_tensor(value)
        counts = casting.cast(convert_to_tensor(lengths), int64)
        shape = _piece_shape(tensor.shape, constant_value(counts))
        return self._write_op(TensorArraySplit, shape, tensor, (tensor, counts), name)

    def _write_op(
        self,
        kind: type[ListWriter],
        shape: TensorShape,
        value: Tensor,
        inputs: Sequence[Any],
        name: str | None,
    ) -> TensorArray:
        """The list after an op that writes entries of a shape."""
        self._info.merge_shape(shape)
        with self._colocated(value):
            return self.with_flow(kind(dtype=self.dtype)(self._flow, *inputs, name=name))

    def size(self, name: str | None = None) -> Tensor:
        """The number of entries, written or not."""
        with self._colocated():
            return TensorArraySize()(self._flow, name=name)

    def close(self, name: str | None = None) -> Node:
        """Free the entries: the list cannot be used afterwards."""
        with self._colocated():
            return TensorArrayClose()(self._flow, name=name)

    def _value_tensor(self, value: Any) -> Tensor:
        tensor = convert_to_tensor(value, name="value", preferred_dtype=self.dtype)
        if tensor.dtype.base_dtype is not self.dtype:
            problem = dtype_mismatch(self.dtype, tensor.dtype.base_dtype, TensorArrayWrite.use)
            raise errors.invalid(f"{problem} {tensor.name} was made at {tensor.op.origin}")
        return tensor

    def _colocated(self, first: Tensor | None = None) -> AbstractContextManager[None]:
        """Colocate new nodes with the list. A list without a device takes that of the `first` value
        written."""
        node = self._info.node
        if node is None:
            return nullcontext()
        if first is not None and self._info.follows_first_write and not node.device:
            node.device = first.device
        graph = get_default_graph()
        return graph.colocate_with(node) if node.graph is graph else graph.device(node.device)

    def __repr__(self) -> str:
        return f"<tf.TensorArray of {self.dtype.name} {self.element_shape}: {self._flow.name}>"


def _check_options(handle: Any, options: dict[str, Any]) -> None:
    if handle is None:
        if options["size"] is None:
            raise ValueError("Size must be provided if handle is not provided")
        return
    conflicting = [name for name, value in options.items() if value is not None]
    if conflicting:
        raise ValueError(f"Cannot provide both a handle and {conflicting[0]} at the same time")
    if not isinstance(handle, Tensor):
        raise TypeError("Handle must be a Tensor")


def _piece_shape(shape: TensorShape, lengths: Array | None) -> TensorShape:
    """The common shape of the pieces of a split tensor, else unknown."""
    if lengths is None or len(set(lengths.ravel().tolist())) != 1:
        return unknown_shape()
    return TensorShape.of((int(lengths.flat[0]),)).concatenate(shape[1:])
