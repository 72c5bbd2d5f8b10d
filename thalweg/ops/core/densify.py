"""Conversions between dense tensors and composite values.

IndexedSlices are converted where a tensor is expected, with a warning if it may be large; the
`convert_to_tensor_or_*` functions return composite values unchanged.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from thalweg.graph.composite import IndexedSlices, SparseTensor, SparseTensorValue
from thalweg.graph.convert import convert_to_tensor, register_tensor_conversion_function
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.known import constant_value
from thalweg.graph.likes import SparseLike, TensorLike
from thalweg.graph.node import Tensor
from thalweg.ops.arrays import segment
from thalweg.public import public

_LARGE = 100_000_000  # elements; dense tensors of this size cause a warning


def dense(
    value: IndexedSlices, dtype: DType | None = None, name: str | None = None, as_ref: bool = False
) -> Tensor:
    """The dense tensor of IndexedSlices: rows with equal indices are summed."""
    if dtype is not None and not dtype.is_compatible_with(value.dtype):
        raise ValueError(
            f"Tensor conversion requested dtype {dtype.name} for IndexedSlices with dtype "
            f"{value.dtype.name}"
        )
    if value.dense_shape is None:
        raise ValueError(
            f"Tensor conversion requested for IndexedSlices without dense_shape: {value}"
        )
    _warn_if_large(value.dense_shape)
    return segment.unsorted_segment_sum(
        value.values, value.indices, value.dense_shape[0], name=name
    )


def _warn_if_large(dense_shape: Tensor) -> None:
    shape = constant_value(dense_shape)
    if shape is None:
        size = "of unknown shape"
    elif np.prod(shape, dtype=np.float64) >= _LARGE:
        size = f"with {int(np.prod(shape, dtype=np.float64))} elements"
    else:
        return
    warnings.warn(
        f"Converting sparse IndexedSlices to a dense Tensor {size}. "
        "This may consume a large amount of memory.",
        stacklevel=3,
    )


register_tensor_conversion_function(IndexedSlices, dense)


@public("convert_to_tensor_or_indexed_slices")
def convert_to_tensor_or_indexed_slices(
    value: Any, dtype: Any = None, name: str | None = None
) -> Tensor | IndexedSlices:
    """IndexedSlices unchanged, anything else as a tensor."""
    if not isinstance(value, IndexedSlices):
        return convert_to_tensor(value, dtype, name)
    if dtype is not None and not as_dtype(dtype).is_compatible_with(value.dtype):
        raise ValueError(
            f"Tensor conversion requested dtype {as_dtype(dtype).name} for Tensor with dtype "
            f"{value.dtype.name}"
        )
    return value


@public("convert_to_tensor_or_sparse_tensor")
def convert_to_tensor_or_sparse_tensor(
    value: TensorLike | SparseLike, dtype: Any = None, name: str | None = None
) -> Tensor | SparseTensor:
    """A SparseTensor (or its value) as a SparseTensor, anything else as a tensor."""
    if isinstance(value, SparseTensorValue):
        value = SparseTensor.from_value(value)
    if not isinstance(value, SparseTensor):
        return convert_to_tensor(value, dtype, name)
    if dtype is not None and not as_dtype(dtype).is_compatible_with(value.dtype):
        raise RuntimeError(
            f"Sparse dtype: requested = {as_dtype(dtype).name}, actual = {value.dtype.name}"
        )
    return value
