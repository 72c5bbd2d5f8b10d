"""Elements of queues: tuples of arrays, validated when enqueued and stacked when dequeued.

Arrays are copied only into a batch, and out of memory that others may still write to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from thalweg import errors
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.shapes import TensorShape
from thalweg.platform.arrays import Array

Element = tuple[Array, ...]


def sizes_text(sizes: Sequence[int | None] | None) -> str:
    """A shape as TensorFlow's kernels print it: `[2,?]`."""
    if sizes is None:
        return "<unknown>"
    return f"[{','.join('?' if size is None else str(size) for size in sizes)}]"


class _Component(NamedTuple):
    dtype: np.dtype[Any]
    sizes: tuple[int | None, ...] | None  # None: any shape

    @property
    def varies(self) -> bool:
        """Whether elements may have components of different sizes."""
        return self.sizes is None or None in self.sizes


class Components:
    """The dtypes of an element's components and, if declared, their shapes."""

    def __init__(self, dtypes: Sequence[DType], shapes: Sequence[TensorShape] = ()) -> None:
        if shapes and len(shapes) != len(dtypes):
            raise errors.invalid(f"{len(shapes)} shapes were given for {len(dtypes)} components")
        self.dtypes = tuple(dtype.base_dtype for dtype in dtypes)
        self.shapes = tuple(shapes)
        self.has_shapes = bool(shapes) and all(shape.rank is not None for shape in shapes)
        sizes = [shape.sizes for shape in shapes] or [None] * len(dtypes)
        self._parts = [
            _Component(np.dtype(dtype.as_numpy_dtype), size)
            for dtype, size in zip(self.dtypes, sizes, strict=True)
        ]

    def element(self, values: Sequence[Any]) -> Element:
        """Validate the components of one element."""
        arrays = self._arrays(values)
        for position, (array, part) in enumerate(zip(arrays, self._parts, strict=True)):
            if part.sizes is not None and array.shape != part.sizes:
                _check_shape(position, part.sizes, array.shape)
        return tuple([frozen(array) for array in arrays])

    def elements(self, values: Sequence[Any]) -> list[Element]:
        """Validate values that hold one element per row, and split them."""
        arrays = self._arrays(values)
        for position, array in enumerate(arrays):
            if not array.ndim:
                raise errors.invalid(f"Component {position} has no rows: it is a scalar")
        count = len(arrays[0])
        for position, (array, part) in enumerate(zip(arrays, self._parts, strict=True)):
            if part.sizes is not None:
                _check_shape(position, (count, *part.sizes), array.shape)
            elif len(array) != count:
                raise errors.invalid(
                    "All input tensors must have the same size in the 0th dimension. Component "
                    f"{position} has {len(array)}, and should have {count}"
                )
        columns = [rows(frozen(array)) for array in arrays]
        return list(zip(*columns, strict=True))

    def batch(self, elements: Sequence[Element]) -> tuple[Array, ...]:
        """Stack elements along a new first dimension; components of varying sizes are padded."""
        columns = zip(*elements, strict=True) if elements else [()] * len(self._parts)
        return tuple(
            [_stack(column, part) for column, part in zip(columns, self._parts, strict=True)]
        )

    def _arrays(self, values: Sequence[Any]) -> list[Array]:
        if len(values) != len(self._parts):
            raise errors.invalid(
                f"Wrong number of components in tuple. Expected {len(self._parts)}, got "
                f"{len(values)}"
            )
        arrays: list[Array] = []
        for position, (value, part) in enumerate(zip(values, self._parts, strict=True)):
            array = value if type(value) is np.ndarray else np.array(value, part.dtype)
            if array.dtype != part.dtype:
                raise errors.invalid(
                    f"Type mismatch in tuple component {position}. Expected "
                    f"{self.dtypes[position].name}, got {as_dtype(array.dtype).name}"
                )
            arrays.append(array)
        return arrays


def _check_shape(position: int, wanted: Sequence[int | None], actual: tuple[int, ...]) -> None:
    fits = len(wanted) == len(actual) and all(
        size is None or size == given for size, given in zip(wanted, actual, strict=True)
    )
    if not fits:
        raise errors.invalid(
            f"Shape mismatch in tuple component {position}. Expected {sizes_text(wanted)}, got "
            f"{sizes_text(actual)}"
        )


def frozen(array: Array) -> Array:
    """The array, or a copy of it, with elements that never change again: it may outlive the step.

    An array that owns its memory was made by a kernel and is marked read-only. A view is of memory
    that was fed or belongs to a variable, and is copied unless that memory is read-only.
    """
    base: Any = array.base
    if base is None:
        array.flags.writeable = False
        return array
    if isinstance(base, np.ndarray) and not base.flags.writeable:
        return array
    return array.copy()


def rows(array: Array) -> list[Array]:
    """The rows of an array, as arrays even if they are scalars."""
    return list(array) if array.ndim > 1 else [array[row, ...] for row in range(len(array))]


def _stack(column: Sequence[Array], part: _Component) -> Array:
    shape = len(column), *_max_sizes(column, part.sizes or ())
    if part.varies:
        return _stack_padded(column, shape, part.dtype)
    batch = np.empty(shape, part.dtype)
    for index, array in enumerate(column):
        batch[index, ...] = array
    return batch


def _stack_padded(column: Sequence[Array], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    batch = np.full(shape, b"", dtype) if dtype.hasobject else np.zeros(shape, dtype)
    for index, array in enumerate(column):
        batch[(index, *map(slice, array.shape), ...)] = array
    return batch


def _max_sizes(column: Sequence[Array], sizes: Sequence[int | None]) -> tuple[int, ...]:
    """The elementwise maximum of the arrays' shapes."""
    if not column or None not in sizes:
        return tuple(size or 0 for size in sizes)
    return tuple(map(max, zip(*(array.shape for array in column), strict=True)))
