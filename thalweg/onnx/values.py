"""What translations share: values that are known while a graph is built, dtypes, axes, shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.known import constant_value
from thalweg.graph.node import Tensor
from thalweg.onnx.registry import NodeView
from thalweg.ops.arrays import joining, slicing, transposing
from thalweg.ops.core import basic, casting, shaping
from thalweg.ops.math import arithmetic, compare
from thalweg.platform.arrays import Array


def static(value: Any) -> Array | None:
    """The value of a tensor where it is known now: a constant, or a tensor of eager code."""
    if value is None:
        return None
    if isinstance(value, np.ndarray):
        return cast("Array", value)
    numpy = getattr(value, "numpy", None)
    return np.asarray(numpy()) if callable(numpy) else constant_value(value)


def static_ints(value: Any) -> list[int] | None:
    """A vector of integers where it is known now."""
    found = static(value)
    return None if found is None else [int(each) for each in np.ravel(found)]


def required_ints(node: NodeView, value: Any, what: str) -> list[int]:
    """A vector of integers, which must be known while the graph is built."""
    found = static_ints(value)
    if found is None:
        raise node.unsupported(f"{what} must be a constant")
    return found


def rank_of(node: NodeView, value: Tensor) -> int:
    """How many axes a tensor has, which must be known."""
    if value.shape.rank is None:
        raise node.unsupported(f"the rank of its input {value.name} must be known")
    return value.shape.rank


def axis_of(node: NodeView, value: Tensor, default: int = 0, name: str = "axis") -> int:
    """An axis from an attribute, counted from the front."""
    axis = int(node.get(name, default))
    return axis + rank_of(node, value) if axis < 0 else axis


def sizes_of(value: Tensor) -> list[Any]:
    """The sizes of a tensor: numbers where they are known, scalars where not."""
    known = value.shape.sizes
    if known is not None and None not in known:
        return list(known)
    sizes = shaping.shape(value)
    if known is None:
        return [sizes]
    return [sizes[axis] if size is None else size for axis, size in enumerate(known)]


def known_sizes(node: NodeView, value: Tensor) -> list[int]:
    """The sizes of a tensor, which must be known while the graph is built."""
    sizes = [size for size in value.shape.sizes or () if size is not None]
    if len(sizes) != rank_of(node, value):
        raise node.unsupported(f"the sizes of its input {value.name} must be known")
    return sizes


def shape_vector(sizes: Sequence[Any]) -> Any:
    """Numbers and scalars as a vector of int32."""
    if all(isinstance(size, int | np.integer) for size in sizes):
        return np.array(sizes, np.int32)
    return joining.stack([casting.cast(size, dtypes.int32) for size in sizes])


def to_int32(value: Any) -> Tensor:
    """Integers as int32."""
    return cast_to(value, dtypes.int32)


def cast_to(value: Any, dtype: DType) -> Tensor:
    """A tensor in another dtype."""
    return cast("Tensor", casting.cast(value, dtype))


def like(value: Any, tensor: Tensor) -> Tensor:
    """A number of the dtype of a tensor."""
    return convert_to_tensor(value, tensor.dtype.base_dtype)


def elements(kind: int) -> DType:
    """The dtype of an ONNX element type."""
    import onnx

    if kind == onnx.TensorProto.STRING:
        return dtypes.string
    found: Any = onnx.helper.tensor_dtype_to_np_dtype(kind)
    return as_dtype(found)


def constant(value: Any) -> Tensor:
    """A constant."""
    return basic.constant(value)


def moved_last(value: Tensor, axis: int) -> Tensor:
    """A tensor with an axis put last."""
    rank = value.shape.rank or 0
    if axis == rank - 1:
        return value
    return transposing.transpose(value, [*(a for a in range(rank) if a != axis), axis])


def moved_back(value: Tensor, axis: int) -> Tensor:
    """A tensor with its last axis put at a place."""
    rank = value.shape.rank or 0
    if axis == rank - 1:
        return value
    order = list(range(rank - 1))
    order.insert(axis, rank - 1)
    return transposing.transpose(value, order)


def wrapped(indices: Tensor, size: Any) -> Tensor:
    """Indices, of which negative ones count from the end."""
    kind = indices.dtype.base_dtype
    negative = cast_to(compare.less(indices, like(0, indices)), kind)
    return arithmetic.add(indices, arithmetic.multiply(cast_to(size, kind), negative))


def at_axis(value: Tensor, axis: int, begin: Any, size: Any) -> Tensor:
    """A part of a tensor along one axis."""
    rank = value.shape.rank or 0
    begins = [begin if a == axis else 0 for a in range(rank)]
    sizes = [size if a == axis else -1 for a in range(rank)]
    return slicing.slice(value, shape_vector(begins), shape_vector(sizes))
