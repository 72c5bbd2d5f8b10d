"""`TensorArray`: a list of tensors that loops read and write, as users have it.

Every method adds an op on the list (`list_ops`) to the graph; what is known of the entries' shape
is shared by all TensorArrays of one list.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

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
    row_shape,
)
from thalweg.control.lists import invalid, mismatch
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype, int32, int64
from thalweg.graph.graph import get_default_graph
from thalweg.graph.known import constant_value
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.origin import user_line
from thalweg.graph.shapes import TensorShape, as_shape, unknown_shape
from thalweg.ops.core import basic, casting
from thalweg.public import public

Array = NDArray[Any]


@dataclass
class _Facts:
    """What all the TensorArrays of one list know of it."""

    dtype: DType
    element_shape: TensorShape
    infer_shape: bool
    dynamic_size: bool = False
    size: int | None = None  # where it is fixed
    node: Node | None = None  # what made the list: the others run where it does
    follows_first_write: bool = False

    def learn(self, shape: TensorShape) -> None:
        """An entry has this shape: so have all, where shapes are inferred."""
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

    Every write gives a TensorArray; use that one from there on. Each entry is written once. With
    `clear_after_read` (the default) it is also read once, and its memory let go.

    Args:
        dtype: the dtype of the entries.
        size: how many there are.
        dynamic_size: whether writes behind the end make it longer.
        clear_after_read: False lets an entry be read again.
        tensor_array_name: a name for errors.
        handle, flow: what another TensorArray is made of.
        infer_shape: whether all entries have one shape.
        element_shape: the shape of an entry.
        colocate_with_first_write_call: whether it lives on the device of what is written first.
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
        self._facts = _Facts(
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
            dtype=self._facts.dtype,
            element_shape=self._facts.element_shape,
            dynamic_size=self._facts.dynamic_size,
            clear_after_read=clear_after_read is not False,
            tensor_array_name=tensor_array_name or "",
        )
        with _where(colocate_with_first_write_call):
            self._flow = make(size, name=name or "TensorArray")
        self._facts.node = self._flow.op
        if not dynamic_size:
            count = constant_value(self._flow.op.inputs[0])
            self._facts.size = None if count is None else int(count)

    def with_flow(self, flow: Tensor) -> TensorArray:
        """The same list at another point of its flow."""
        made = copy(self)
        made._flow = flow
        return made

    def components(self) -> list[Tensor]:
        """The tensors this is made of."""
        return [self._flow]

    def with_components(self, components: Sequence[Tensor]) -> TensorArray:
        """The same list with other tensors in the place of its `components`."""
        (flow,) = components
        return self.with_flow(flow)

    @property
    def flow(self) -> Tensor:
        """The list, as the uses up to here leave it."""
        return self._flow

    @property
    def handle(self) -> Tensor:
        """The list: as there is one tensor for it, the flow."""
        return self._flow

    @property
    def dtype(self) -> DType:
        """The dtype of the entries."""
        return self._facts.dtype

    @property
    def element_shape(self) -> TensorShape:
        """What is known of the shape of an entry."""
        return self._facts.element_shape

    @property
    def dynamic_size(self) -> bool:
        """Whether writing past the end makes the list longer."""
        return self._facts.dynamic_size

    def identity(self) -> TensorArray:
        """The same list, after what new nodes have to come after here."""
        with self._beside():
            return self.with_flow(basic.identity(self._flow))

    def grad(self, source: str, flow: Tensor | None = None, name: str | None = None) -> TensorArray:
        """The gradients of this list in the computation called `source`: writes add up."""
        with self._beside():
            gradient = TensorArrayGradient(source=source)
            return self.with_flow(gradient(self._flow if flow is None else flow, name=name))

    def read(self, index: TensorLike, name: str | None = None) -> Tensor:
        """The entry at `index`."""
        return self._reader(TensorArrayRead, index, name=name)

    def gather(self, indices: TensorLike, name: str | None = None) -> Tensor:
        """The entries at `indices` as the rows of a tensor."""
        return self._reader(TensorArrayGather, indices, name=name)

    def stack(self, name: str | None = None) -> Tensor:
        """All entries, which must have been written, as the rows of a tensor."""
        with self._beside():
            size = self._facts.size
            count = self.size() if size is None else basic.constant(size, int32, name="count")
        return self._reader(TensorArrayStack, count, name=name)

    pack = stack

    def concat(self, name: str | None = None) -> Tensor:
        """All entries joined along their first axis."""
        value, _ = self._reader(TensorArrayConcat, name=name)
        return value

    def _reader(self, kind: type[ListReader], *inputs: Any, name: str | None) -> Any:
        op = kind(dtype=self.dtype, element_shape=self.element_shape)
        with self._beside():
            return op(self._flow, *inputs, name=name)

    def write(self, index: TensorLike, value: Any, name: str | None = None) -> TensorArray:
        """The list with `value` at `index`."""
        tensor = self._tensor(value)
        return self._writer(TensorArrayWrite, tensor.shape, tensor, (index, tensor), name)

    def scatter(self, indices: TensorLike, value: Any, name: str | None = None) -> TensorArray:
        """The list with the rows of `value` at `indices`."""
        tensor = self._tensor(value)
        shape = row_shape(tensor.shape)
        return self._writer(TensorArrayScatter, shape, tensor, (indices, tensor), name)

    def unstack(self, value: Any, name: str | None = None) -> TensorArray:
        """The list with the rows of `value` as its entries, from the first on."""
        tensor = self._tensor(value)
        return self._writer(TensorArrayUnstack, row_shape(tensor.shape), tensor, (tensor,), name)

    unpack = unstack

    def split(self, value: Any, lengths: Any, name: str | None = None) -> TensorArray:
        """The list with pieces of `value` along its first axis, of these lengths, as entries."""
        tensor = self._tensor(value)
        counts = casting.cast(convert_to_tensor(lengths), int64)
        shape = _piece_shape(tensor.shape, constant_value(counts))
        return self._writer(TensorArraySplit, shape, tensor, (tensor, counts), name)

    def _writer(
        self,
        kind: type[ListWriter],
        shape: TensorShape,
        value: Tensor,
        inputs: Sequence[Any],
        name: str | None,
    ) -> TensorArray:
        """The list after an op that writes entries of this shape."""
        self._facts.learn(shape)
        with self._beside(value):
            return self.with_flow(kind(dtype=self.dtype)(self._flow, *inputs, name=name))

    def size(self, name: str | None = None) -> Tensor:
        """The number of entries, written or not."""
        with self._beside():
            return TensorArraySize()(self._flow, name=name)

    def close(self, name: str | None = None) -> Node:
        """Let go of the entries: the list cannot be used afterwards."""
        with self._beside():
            return TensorArrayClose()(self._flow, name=name)

    def _tensor(self, value: Any) -> Tensor:
        tensor = convert_to_tensor(value, name="value", preferred_dtype=self.dtype)
        if tensor.dtype.base_dtype is not self.dtype:
            problem = mismatch(self.dtype, tensor.dtype.base_dtype, TensorArrayWrite.use)
            raise invalid(f"{problem} {tensor.name} was made at {tensor.op.origin}")
        return tensor

    @contextmanager
    def _beside(self, first: Tensor | None = None) -> Generator[None]:
        """New nodes run where the list is; a list without a device goes where the `first` value
        that is written comes from."""
        node = self._facts.node
        if node is None:
            yield
            return
        if first is not None and self._facts.follows_first_write and not node.device:
            node.device = first.device
        graph = get_default_graph()
        with graph.colocate_with(node) if node.graph is graph else graph.device(node.device):
            yield

    def __repr__(self) -> str:
        return f"<tf.TensorArray of {self.dtype.name} {self.element_shape}: {self._flow.name}>"


def _check_options(handle: Any, options: dict[str, Any]) -> None:
    if handle is None:
        if options["size"] is None:
            raise ValueError("Size must be provided if handle is not provided")
        return
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise ValueError(f"Cannot provide both a handle and {given[0]} at the same time")
    if not isinstance(handle, Tensor):
        raise TypeError("Handle must be a Tensor")


@contextmanager
def _where(follows_first_write: bool) -> Generator[None]:
    """A list that goes where its first value comes from asks for no device before."""
    graph = get_default_graph()
    if not follows_first_write:
        yield
        return
    with graph.colocate_with(None, ignore_existing=True), graph.device(None):
        yield


def _piece_shape(shape: TensorShape, lengths: Array | None) -> TensorShape:
    """The shape of the pieces of a split tensor, if they all have the same."""
    if shape.rank is None or lengths is None or len(set(lengths.ravel().tolist())) != 1:
        return unknown_shape()
    return TensorShape.of((int(lengths.flat[0]),)).concatenate(shape[1:])
