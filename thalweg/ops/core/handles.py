"""Tensors that are stored in a session between steps and accessed by handle.

`get_session_handle` stores a value and returns a `TensorHandle`; its text, fed to the placeholder
of `get_session_tensor`, retrieves the value in a later step, without a copy outside the session.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.analysis.effects import Resource, reads, writes
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.graph import get_default_graph
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, scalar, unknown_shape
from thalweg.ops.core import basic
from thalweg.ops.core.context import Context
from thalweg.ops.text import text
from thalweg.platform.arrays import Array
from thalweg.public import public

_CONTAINER = "session handles"
_DEVICE = "/job:localhost/replica:0/task:0/cpu:0"


class TensorHandle:
    """A value stored in a session. It is deleted with the handle unless `get_raw_handle` was
    called."""

    def __init__(self, handle: str, dtype: DType, value: Array, drop: Callable[[], Any]) -> None:
        self._handle = handle
        self._dtype = dtype
        self._value: Array | None = value
        self._drop = drop

    @property
    def handle(self) -> str:
        """The text to feed to the placeholder of `get_session_tensor`."""
        return self._handle

    @property
    def dtype(self) -> DType:
        """The dtype of the value."""
        return self._dtype

    def eval(self) -> Any:
        """The value."""
        return np.array(self._owned())[()]

    def delete(self) -> None:
        """Delete the value from the session."""
        self._owned()
        self._value = None
        self._drop()

    def get_raw_handle(self) -> str:
        """The text of the handle; the caller becomes responsible for deleting the value."""
        self._value = None
        return self._handle

    def to_numpy_array(self) -> Any:
        """The text of the handle as a NumPy array."""
        return np.array(self._handle.encode(), dtype=object)

    def _owned(self) -> Array:
        if self._value is None:
            raise TypeError(f"Persistent tensor {self._handle} may have already been deleted.")
        return self._value

    def __str__(self) -> str:
        return self._handle

    def __del__(self) -> None:
        if getattr(self, "_value", None) is not None:
            self._drop()


class GetSessionHandle(Op):
    """Stores a value in the session and outputs its handle."""

    signature = "value: T -> handle: string"
    effects = (writes(Resource.SESSION),)
    stateful = True
    host_only = True
    not_differentiable = True

    def shape(self, value: Tensor) -> TensorShape:
        return scalar()

    def kernel(self, context: Context, value: Array) -> TensorHandle:
        node, number = context.node, next(context.state(lambda: itertools.count()))
        name = f"{node.name};{number};{node.device or _DEVICE}"
        kept = context.resource(name, _CONTAINER, lambda: np.array(value))
        return TensorHandle(
            name,
            node.inputs[0].dtype.base_dtype,
            kept,
            lambda: context.delete_resource(name, _CONTAINER),
        )


@public("get_session_handle")
def get_session_handle(data: Any, name: str | None = None) -> Tensor:
    """A tensor that stores `data` in the session and is fetched as its TensorHandle."""
    if not isinstance(data, Tensor):
        raise TypeError("`data` must be of type Tensor.")
    with get_default_graph().colocate_with(data.op):
        return GetSessionHandle()(data, name=name)


class GetSessionTensor(Op):
    """The value of a handle"""

    signature = "handle: string -> value: dtype"
    effects = (reads(Resource.SESSION),)
    stateful = True
    host_only = True
    not_differentiable = True
    dtype: DType

    def shape(self, handle: Tensor) -> TensorShape:
        handle.shape.assert_has_rank(0)
        return unknown_shape()

    def kernel(self, context: Context, handle: Any) -> Array:
        name = _name(handle)

        def missing() -> Array:
            raise errors.invalid(f"The tensor with handle '{name}' is not in the session store.")

        return context.resource(name, _CONTAINER, missing)


def _name(handle: Any) -> str:
    return str(handle) if isinstance(handle, TensorHandle) else text.text_item(handle).decode()


@public("get_session_tensor")
def get_session_tensor(
    handle: TensorLike, dtype: Any, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """(placeholder for a handle, the value of the handle)."""
    with get_default_graph().device(_device(handle)):
        holder = basic.placeholder(dtypes.string, [])
        return holder, GetSessionTensor(dtype=as_dtype(dtype))(holder, name=name)


def _device(handle: Any) -> str:
    return str(handle).rpartition(";")[2]


class DeleteSessionTensor(Op):
    """Deletes the value of a handle."""

    signature = "handle: string ->"
    effects = (writes(Resource.SESSION),)
    stateful = True
    host_only = True
    not_differentiable = True

    def shape(self, handle: Tensor) -> list[TensorShape]:
        return []

    def kernel(self, context: Context, handle: Any) -> tuple[()]:
        if not context.delete_resource(_name(handle), _CONTAINER):
            raise errors.invalid(
                f"The tensor with handle '{_name(handle)}' is not in the session store."
            )
        return ()


@public("delete_session_tensor")
def delete_session_tensor(handle: TensorLike, name: str | None = None) -> tuple[Tensor, Node]:
    """(placeholder for a handle, the node that deletes the value of the handle)."""
    with get_default_graph().device(_device(handle)):
        holder = basic.placeholder(dtypes.string, [])
        return holder, DeleteSessionTensor()(holder, name=name)
