"""Tensors made from a shape: fills, zeros and ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape
from thalweg.ops import basic, casting, reduce, shaping
from thalweg.public import public

Array = NDArray[Any]

_LARGEST_CONSTANT = 1024  # elements; larger fills are computed in the step, not kept in the graph


class Fill(Op):
    """y[…] = value"""

    signature = "dims: I, value: T -> output: T; I: index"

    def shape(self, dims: Tensor, value: Tensor) -> TensorShape:
        dims.shape.assert_has_rank(1)
        value.shape.assert_has_rank(0)
        return shaping.known_shape(dims)

    def numpy(self, dims: Array, value: Array) -> Array:
        if np.any(dims < 0):
            raise errors.InvalidArgumentError(
                None, None, f"dims must be a vector of sizes >= 0, got {dims.tolist()}"
            )
        return np.full(tuple(dims.tolist()), value)

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [None, reduce.reduce_sum(dy)]


@public("fill")
def fill(dims: Any, value: Any, name: str | None = None) -> Tensor:
    """A tensor of shape `dims` with every element `value`."""
    return Fill()(shaping.shape_tensor(dims), value, name=name)


@public("zeros")
def zeros(shape: Any, dtype: Any = dtypes.float32, name: str | None = None) -> Tensor:
    """A tensor of zeros (of empty strings, of False)."""
    kind = as_dtype(dtype).base_dtype
    return _filled(shape, _zero(kind), kind, name or "zeros")


@public("ones")
def ones(shape: Any, dtype: Any = dtypes.float32, name: str | None = None) -> Tensor:
    """A tensor of ones."""
    kind = as_dtype(dtype).base_dtype
    return _filled(shape, True if kind.is_bool else 1, kind, name or "ones")


def _zero(kind: DType) -> Any:
    if kind.is_bool:
        return False
    return "" if kind is dtypes.string else 0


def _filled(shape: Any, value: Any, kind: DType, name: str) -> Tensor:
    if not isinstance(shape, Tensor):
        try:
            static = TensorShape(shape)
        except (TypeError, ValueError):
            static = TensorShape(None)
        size = static.num_elements()
        if size is not None and size <= _LARGEST_CONSTANT:
            return basic.constant(value, kind, shape=static, name=name)
    return fill(shape, convert_to_tensor(value, kind), name=name)


class ZerosLike(Op):
    """y = 0, of the shape and dtype of x"""

    signature = "x: T -> y: T"
    not_differentiable = True

    def shape(self, x: Tensor) -> TensorShape:
        return x.shape

    def numpy(self, x: Array) -> Array:
        if np.asarray(x).dtype == object:
            return np.full(np.shape(x), b"", dtype=object)
        return np.zeros_like(x)


class OnesLike(Op):
    """y = 1, of the shape and dtype of x"""

    signature = "x: T -> y: T; T: numeric|bool"
    not_differentiable = True

    def shape(self, x: Tensor) -> TensorShape:
        return x.shape

    def numpy(self, x: Array) -> Array:
        return np.ones_like(x)


@public("zeros_like")
def zeros_like(
    tensor: Any, dtype: Any = None, name: str | None = None, optimize: bool = True
) -> Tensor:
    """Zeros of the shape (and, unless given, the dtype) of a tensor."""
    return _like(tensor, dtype, name or "zeros_like", optimize, ZerosLike(), zeros)


@public("ones_like")
def ones_like(
    tensor: Any, dtype: Any = None, name: str | None = None, optimize: bool = True
) -> Tensor:
    """Ones of the shape (and, unless given, the dtype) of a tensor."""
    return _like(tensor, dtype, name or "ones_like", optimize, OnesLike(), ones)


def _like(tensor: Any, dtype: Any, name: str, optimize: bool, op: Op, make: Any) -> Tensor:
    source = convert_to_tensor(tensor, name="tensor")
    kind = source.dtype.base_dtype if dtype is None else as_dtype(dtype).base_dtype
    size = source.shape.num_elements()
    if optimize and size is not None and size <= _LARGEST_CONSTANT:
        return make(source.shape, kind, name=name)
    if kind is source.dtype.base_dtype:
        return op(source, name=name)
    if kind is dtypes.string or source.dtype.base_dtype is dtypes.string:
        return make(shaping.shape(source), kind, name=name)
    return casting.cast(op(source, name=name), kind)
