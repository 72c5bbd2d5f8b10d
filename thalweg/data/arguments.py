"""Conversion of stages' arguments to tensors: numbers, bools, seeds, padded shapes, paddings."""

from __future__ import annotations

from typing import Any

from thalweg.functions.traced.tensor_spec import TensorSpec
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, int64, string
from thalweg.graph.dtypes import bool as boolean
from thalweg.graph.known import constant_value
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import get_seed
from thalweg.graph.shapes import TensorShape, as_shape, scalar
from thalweg.ops.core import casting


def as_scalar(value: Any, dtype: DType) -> Tensor:
    """An argument as a scalar of a dtype."""
    tensor = convert_to_tensor(value, None if isinstance(value, Tensor) else dtype)
    return tensor if tensor.dtype is dtype else casting.cast(tensor, dtype)


def as_int64(value: Any) -> Tensor:
    """An argument as an int64."""
    return as_scalar(value, int64)


def as_bool(value: Any) -> Tensor:
    """An argument as a bool."""
    return convert_to_tensor(value, boolean)


def static_value(value: Any) -> int | None:
    """The static value of an argument, or None."""
    found = constant_value(as_int64(value))
    return None if found is None else int(found)


def seeds(seed: Any) -> tuple[Tensor, Tensor]:
    """The seeds of a stage; zeros if none are set."""
    if isinstance(seed, Tensor):
        return as_int64(0), as_int64(seed)
    first, second = get_seed(seed)
    return as_int64(first or 0), as_int64(second or 0)


def padded_shape(shape: Any, leaf: TensorSpec) -> Tensor:
    """The shape that a leaf is padded to; -1 is the largest size in the batch."""
    if isinstance(shape, Tensor):
        return as_int64(shape)
    wanted = leaf.shape if shape is None else as_shape(shape)
    if wanted.rank is None:
        raise ValueError(f"the rank of a component is not known: give its padded shape ({leaf!r})")
    if not _fits(leaf.shape, wanted):
        raise ValueError(
            f"The padded shape {wanted} is not compatible with the shape {leaf.shape} of the "
            "corresponding input component."
        )
    return convert_to_tensor([-1 if size is None else size for size in wanted.as_list()], int64)


def _fits(shape: TensorShape, wanted: TensorShape) -> bool:
    if shape.rank is None:
        return True
    pairs = zip(shape.as_list(), wanted.as_list(), strict=False)
    return shape.rank == wanted.rank and all(
        size is None or limit is None or size <= limit for size, limit in pairs
    )


def padding_value(value: Any, leaf: Any) -> Tensor:
    """The scalar that a leaf is padded with."""
    if value is None:
        value = "" if leaf.dtype is string else leaf.dtype.as_numpy_dtype(0)
    tensor = convert_to_tensor(value)
    if tensor.dtype is not leaf.dtype and isinstance(value, Tensor):
        raise TypeError(
            f"padding of type {tensor.dtype.name} for a component of type {leaf.dtype.name}"
        )
    if not tensor.shape.is_compatible_with(scalar()):
        raise ValueError(f"padding must be a scalar, not of shape {tensor.shape}")
    return tensor if tensor.dtype is leaf.dtype else convert_to_tensor(value, leaf.dtype)
