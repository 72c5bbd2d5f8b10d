"""Partitioners: functions that return the number of parts of a variable along each axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from thalweg.graph import dtypes
from thalweg.graph.dtypes import DType
from thalweg.graph.likes import Collections, DTypeLike
from thalweg.graph.shapes import TensorShape
from thalweg.public import public
from thalweg.variables.scope import get_variable_scope, variable_scope, variable_store
from thalweg.variables.variable import Variable

if TYPE_CHECKING:
    from thalweg.variables.initializers import InitializerLike
    from thalweg.variables.store import ReuseMode

Partitioner = Callable[..., list[int]]


def _element_bytes(dtype: DType, bytes_per_string_element: int) -> int:
    return bytes_per_string_element if dtype.base_dtype is dtypes.string else dtype.size


def _split_axis(shape: TensorShape, axis: int, count: int) -> list[int]:
    partitions = [1] * len(shape)
    partitions[axis] = count
    return partitions


@public("variable_axis_size_partitioner")
def variable_axis_size_partitioner(
    max_shard_bytes: int,
    axis: int = 0,
    bytes_per_string_element: int = 16,
    max_shards: int | None = None,
) -> Partitioner:
    """Parts along `axis` of at most `max_shard_bytes` each, and at most `max_shards` of them."""
    if max_shard_bytes < 1 or bytes_per_string_element < 1:
        raise ValueError(
            f"Both max_shard_bytes and bytes_per_string_element must be positive: "
            f"{max_shard_bytes} and {bytes_per_string_element}"
        )
    if max_shards is not None and max_shards < 1:
        raise ValueError(f"max_shards must be positive: {max_shards}")

    def partitioner(shape: Any, dtype: Any) -> list[int]:
        _check_arguments(shape, dtype)
        size = shape.as_list()[axis]
        element = _element_bytes(dtype, bytes_per_string_element)
        row_bytes = shape.num_elements() / size * element
        rows_per_shard = max(1, math.floor(max_shard_bytes / row_bytes))
        count = math.ceil(size / rows_per_shard)
        return _split_axis(shape, axis, min(count, max_shards or count))

    return partitioner


def _check_arguments(shape: Any, dtype: Any) -> None:
    if not isinstance(shape, TensorShape):
        raise ValueError(f"shape is not a TensorShape: {shape}")
    if not shape.is_fully_defined():
        raise ValueError(f"shape is not fully defined: {shape}")
    if not isinstance(dtype, DType):
        raise ValueError(f"dtype is not a DType: {dtype}")


@public("min_max_variable_partitioner")
def min_max_variable_partitioner(
    max_partitions: int = 1,
    axis: int = 0,
    min_slice_size: int = 256 << 10,
    bytes_per_string_element: int = 16,
) -> Partitioner:
    """The most parts along `axis` with at least `min_slice_size` bytes each, up to a maximum."""

    def partitioner(shape: TensorShape, dtype: DType) -> list[int]:
        if axis >= len(shape):
            raise ValueError(
                f"Cannot partition variable along axis {axis} when shape is only {shape}"
            )
        element = _element_bytes(dtype, bytes_per_string_element)
        slices = math.ceil((shape.num_elements() or 0) * element / min_slice_size)
        return _split_axis(shape, axis, max(1, min(int(shape[axis]), max_partitions, slices)))

    return partitioner


@public("fixed_size_partitioner")
def fixed_size_partitioner(num_shards: int, axis: int = 0) -> Partitioner:
    """`num_shards` parts along `axis`, or as many as there are rows.

    Args:
        num_shards: the number of parts.
        axis: the axis to split.

    Returns:
        A function for `partitioner=` of `tf.get_variable`.

    Example:
        >>> with tf.variable_scope("table", partitioner=tf.fixed_size_partitioner(2)):
        ...     parts = list(tf.get_variable("w", [4, 3]))
        >>> [part.shape.as_list() for part in parts]
        [[2, 3], [2, 3]]
    """

    def partitioner(shape: TensorShape, **_: Any) -> list[int]:
        return _split_axis(shape, axis, min(num_shards, int(shape[axis])))

    return partitioner


@public("create_partitioned_variables")
def create_partitioned_variables(
    shape: Sequence[int],
    slicing: Sequence[int],
    initializer: InitializerLike,
    dtype: DTypeLike = dtypes.float32,
    trainable: bool = True,
    collections: Collections = None,
    name: str | None = None,
    reuse: bool | ReuseMode | None = None,
) -> list[Variable]:
    """The parts of a variable of this shape, `slicing[i]` of them along axis i."""
    if len(shape) != len(slicing):
        raise ValueError(
            "The 'shape' and 'slicing' of a partitioned Variable must have the length: shape: "
            f"{shape}, slicing: {slicing}"
        )
    if not shape:
        raise ValueError(f"A partitioned Variable must have rank at least 1: shape: {shape}")

    def partitioner(**_: Any) -> Sequence[int]:
        return slicing

    with variable_scope(name, "PartitionedVariable", reuse=reuse):
        scope = get_variable_scope()
        whole = scope._get_partitioned_variable(  # pyright: ignore[reportPrivateUsage] - as in TensorFlow
            variable_store(),
            None,
            shape=shape,
            dtype=dtype,
            initializer=initializer,
            trainable=trainable,
            partitioner=partitioner,
            collections=collections,
        )
        return list(whole)
