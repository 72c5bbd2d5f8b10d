"""Operations on the values of elements: rows, batches, padded batches.

A value is an array, a NumPy scalar, bytes, or a SparseTensorValue; string arrays hold objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from thalweg.errors import invalid
from thalweg.graph.composite import SparseTensorValue
from thalweg.ops.text import text
from thalweg.platform.arrays import Array


def as_array(value: Any) -> Array:
    """A dense value as an array."""
    if isinstance(value, np.ndarray):
        return cast("Array", value)
    return text.text_array(value) if isinstance(value, bytes) else np.asarray(value)


def frozen(element: tuple[Any, ...]) -> tuple[Any, ...]:
    """The element with read-only arrays, so that a stage can keep it after returning it."""
    for value in element:
        if isinstance(value, np.ndarray):
            cast("Array", value).flags.writeable = False
    return element


def stacked(values: Sequence[Any]) -> Any:
    """Stack values, which must have equal shapes, to a batch."""
    first = values[0]
    if isinstance(first, np.ndarray):
        return _stacked_arrays(cast("Sequence[Array]", values))
    if isinstance(first, np.generic):
        return np.array(values, cast("Any", first).dtype)
    if isinstance(first, bytes):
        return text.text_of(text.text_item(value) for value in values)
    if isinstance(first, SparseTensorValue):
        return _stacked_sparse(cast("Sequence[SparseTensorValue]", values))
    raise invalid("Batching of datasets is not possible: use flat_map to batch what they hold")


def _stacked_arrays(values: Sequence[Array]) -> Array:
    shape, dtype = values[0].shape, values[0].dtype
    batch = np.empty((len(values), *shape), dtype)
    for row, value in enumerate(values):
        if np.shape(value) != shape:
            raise invalid(
                f"Cannot batch tensors with different shapes. First element had shape "
                f"{list(shape)} and element {row} had shape {list(np.shape(value))}."
            )
        batch[row] = value[()]  # unwraps a string scalar
    return batch


def _stacked_sparse(values: Sequence[SparseTensorValue]) -> SparseTensorValue:
    ranks = {len(value.dense_shape) for value in values}
    if len(ranks) > 1:
        raise invalid(f"Cannot batch sparse tensors of different ranks: {sorted(ranks)}")
    indices = [
        np.insert(np.asarray(value.indices, np.int64), 0, row, axis=1)
        for row, value in enumerate(values)
    ]
    largest = np.max([value.dense_shape for value in values], axis=0)
    return SparseTensorValue(
        np.concatenate(indices),
        np.concatenate([as_array(value.values) for value in values]),
        np.concatenate([[len(values)], largest]).astype(np.int64),
    )


def joined(parts: Sequence[Any]) -> Any:
    """Concatenate columns."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def row(value: Any, place: int) -> Any:
    """One row of a value."""
    if isinstance(value, SparseTensorValue):
        return _sparse_row(value, place)
    return value[place]


def _sparse_row(value: SparseTensorValue, place: int) -> SparseTensorValue:
    indices = np.asarray(value.indices)
    chosen = indices[:, 0] == place
    return SparseTensorValue(
        indices[chosen, 1:], as_array(value.values)[chosen], np.asarray(value.dense_shape)[1:]
    )


def row_count(value: Any) -> int:
    """The number of rows of a value."""
    if isinstance(value, SparseTensorValue):
        return int(value.dense_shape[0])
    return len(value)


def padded(values: Sequence[Any], wanted: Sequence[int], filling: Any) -> Array:
    """Stack values to a batch, padded at their ends to `wanted` sizes; -1 is the largest size."""
    arrays = [as_array(value) for value in values]
    for array in arrays:
        _check_fits(array.shape, wanted)
    sizes = [
        max(array.shape[axis] for array in arrays) if size < 0 else size
        for axis, size in enumerate(wanted)
    ]
    batch = np.empty((len(arrays), *sizes), arrays[0].dtype)
    if any(array.shape != tuple(sizes) for array in arrays):
        batch[...] = filling
    for index, array in enumerate(arrays):
        batch[(index, *(slice(size) for size in array.shape))] = array
    return batch


def _check_fits(shape: Sequence[int], wanted: Sequence[int]) -> None:
    if len(shape) != len(wanted):
        raise invalid(
            "All elements in a batch must have the same rank as the padded shape for component: "
            f"expected rank {len(wanted)} got element with rank {len(shape)}"
        )
    for size, limit in zip(shape, wanted, strict=True):
        if 0 <= limit < size:
            raise invalid(
                f"Attempted to pad to a smaller size than the input element: {list(shape)} is "
                f"larger than {list(wanted)}"
            )
