"""Lists of tensors: the run-time value of a TensorArray.

A `ListValue` is passed along a variant edge and modified in place: the graph orders its uses. The
entries are in one array [n, *element] if they have one shape, and separate otherwise. A list of
gradients accumulates what is written to an entry, and an entry never written to is zero.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any, Self, cast

import numpy as np

from thalweg import errors
from thalweg.control.list_storage import Nested, Shape, Shapes, Single, Stacked
from thalweg.graph.dtypes import DType, variant
from thalweg.graph.shapes import TensorShape, unknown_shape
from thalweg.ops.core.buffer import Buffer, read_only
from thalweg.platform.arrays import Array

_EMPTY, _WRITTEN, _CLEARED = range(3)  # the states of an entry
_READ, _WRITE = "read from", "write to"
_ids = itertools.count()


class ListValue:
    """A list of tensors, each written once, or of gradients, which accumulate."""

    def __init__(
        self,
        dtype: DType,
        size: int = 0,
        element_shape: TensorShape | None = None,
        *,
        dynamic_size: bool = False,
        clear_after_read: bool = False,
        accumulates: bool = False,
        name: str = "list",
    ) -> None:
        if size < 0:
            raise errors.invalid(f"Size should be >= 0, but is {size}")
        self.dtype = dtype
        self.element_shape = unknown_shape() if element_shape is None else element_shape
        self.dynamic_size = dynamic_size
        self.clear_after_read = clear_after_read
        self.accumulates = accumulates
        self.name = f"{name}_{next(_ids)}"
        self.shapes = Shapes(self.element_shape.whole)
        self._states = bytearray(size)
        self._storage: Stacked | Single | Nested | None = None
        self._is_closed = False
        self._gradients: dict[str, ListValue] = {}
        self._forward_list: ListValue | None = None  # of gradients of a list of lists: that list
        self._lock = threading.RLock()

    @property
    def on_device(self) -> Buffer | None:
        """The device buffer whose rows are the entries, if they are stored so."""
        storage = self._storage  # looked up once: another thread may clear it
        rows = storage.rows if isinstance(storage, Stacked) else None
        return rows if isinstance(rows, Buffer) else None

    def take_over(
        self, array: Array | Buffer, written: Array | None = None, is_shared: bool = False
    ) -> Self:
        """Replace the entries by the rows of an array, which the list then owns, or shares: then it
        is copied on write. `written` marks the rows that are entries (all, if None); other rows of
        gradients must be zeros."""
        is_shared = is_shared or not (isinstance(array, Buffer) or array.flags.writeable)
        with self._lock:
            self._check_shape(0, array.shape[1:])
            self.shapes.common, self.shapes.others = array.shape[1:], {}
            self._storage = Stacked(array, is_shared)
            if written is None:
                self._states = bytearray(bytes([_WRITTEN]) * array.shape[0])
            else:
                self._states = bytearray(written.astype(bool).tobytes())  # _EMPTY is 0, _WRITTEN 1
        return self

    @classmethod
    def of_nested(cls, starts: Array, flat: ListValue, each: int | None = None) -> ListValue:
        """A list of lists, whose entries are concatenated in a flat one; `each` is their common
        length, if it is known."""
        return cls(variant, accumulates=flat.accumulates)._set_nested(Nested(starts, flat, each))

    def _set_nested(self, nested: Nested) -> Self:
        self._storage = nested
        self._states = bytearray(bytes([_WRITTEN]) * len(nested.starts))
        return self

    def forget(self, indices: Array) -> None:
        """Mark entries as cleared after a read."""
        with self._lock:
            np.frombuffer(self._states, np.uint8)[indices] = _CLEARED

    def gradient(self, source: str = "") -> ListValue:
        """A list of gradients for this one: the one of a named `source`, or a new one."""
        with self._lock:
            if source in self._gradients:
                return self._gradients[source]
            gradient = ListValue(
                self.dtype,
                self.size(),
                self.element_shape,
                dynamic_size=self.dynamic_size,
                accumulates=True,
                name=f"{self.name}@{source or 'gradient'}",
            )
            gradient.shapes = self.shapes
            gradient._forward_list = None if self.dtype.is_numpy_compatible else self
            if source:
                self._gradients[source] = gradient
            return gradient

    def __repr__(self) -> str:
        return f"<list {self.name} of {len(self._states)} {self.dtype.name}>"

    # Contents

    def size(self) -> int:
        """The number of entries, written or not."""
        if self._is_closed:
            raise self._error("TensorArray has already been closed.")
        return len(self._states)

    @property
    def written(self) -> Array:
        """Which entries are written and not cleared, as an array of booleans."""
        return np.frombuffer(bytes(self._states), np.uint8) == _WRITTEN

    @property
    def stacked(self) -> Array | None:
        """The entries as rows of one array, if they are stored so. Read-only."""
        storage = self._storage
        return storage.array[: len(self._states)] if isinstance(storage, Stacked) else None

    def as_stacked(self) -> Array | None:
        """As `stacked`; the rows of a list without entries are zeros, if their shape is known."""
        with self._lock:
            is_empty = self._storage is None and self.dtype.is_numpy_compatible
            shape = self.shapes.common
            if is_empty and shape is not None and not self.shapes.others:
                self._storage = Stacked(self._zero_rows(shape))
            return self.stacked

    def _zero_rows(self, shape: Shape) -> Array:
        return np.zeros((len(self._states), *shape), self.dtype.as_numpy_dtype)

    def as_nested(self) -> Nested | None:
        """The nested storage of a list of lists; None if its entries are stored separately."""
        if self.dtype.is_numpy_compatible:
            return None
        with self._lock:
            if self._storage is None and self.accumulates and self._forward_list is not None:
                like = self._forward_list.as_nested()
                if like is not None:
                    self._set_nested(Nested(like.starts, like.flat.gradient(), like.each))
            return self._storage if isinstance(self._storage, Nested) else None

    def part(self, start: int, end: int) -> ListValue:
        """A list with a view of some of the entries."""
        nested = self.as_nested()
        if nested is not None:
            return ListValue.of_nested(nested.starts[start:end], nested.flat, nested.each)
        rows = read_only(cast("Array", self.as_stacked())[start:end])
        grows = self.accumulates
        return ListValue(self.dtype, accumulates=grows, dynamic_size=grows).take_over(rows)

    def _unpack_nested(self) -> None:
        """Store nested lists separately, so that each can be modified."""
        storage = self._storage
        if isinstance(storage, Nested):
            self._storage = Single([storage.get(index) for index in range(self.size())])

    # Writing

    def write(self, index: Any, value: Any) -> Self:
        """Set an entry; in a list of gradients, add to it."""
        with self._lock:
            self._unpack_nested()
            entry = self._in_range(int(index), _WRITE)
            self._check_writable(entry)
            if self._states[entry] == _WRITTEN:
                self._accumulate(entry, value)
            else:
                self._store(entry, value)
        return self

    def scatter(self, indices: Array, value: Array) -> Self:
        """Write row k of `value` to entry `indices[k]`."""
        _check_indices(indices)
        if np.ndim(value) == 0:
            raise errors.invalid("Input value for unpack must be at least a vector")
        if len(indices) != len(value):
            raise errors.invalid(
                f"Expected indices and rows of value to be as many, but there are {len(indices)} "
                f"indices and value's shape is: {_dims(value)}"
            )
        for index, row in zip(indices.tolist(), value, strict=True):
            self.write(index, row)
        return self

    def unstack(self, value: Array | Buffer) -> Self:
        """Write the rows of an array to the first entries; no copy if these are all entries."""
        shape = np.shape(cast("Any", value))
        if not shape:
            raise errors.invalid("Input value for unpack must be at least a vector")
        count: int = shape[0]
        with self._lock:
            if count == 0:
                return self
            self._in_range(count - 1, _WRITE)
            if count == self._states.count(_EMPTY) == len(self._states):
                return self.take_over(value, is_shared=True)
            rows = value.lease() if isinstance(value, Buffer) else value
            return self.scatter(np.arange(count), rows)

    def split(self, value: Array, lengths: Array) -> Self:
        """Write pieces of `value` along its first axis to the first entries."""
        ends = self._check_split(value, lengths)
        counts = lengths.tolist()
        if counts and len(set(counts)) == 1:
            return self.unstack(value.reshape((len(counts), counts[0], *value.shape[1:])))
        for index, (end, count) in enumerate(zip(ends, counts, strict=True)):
            self.write(index, value[end - count : end])
        return self

    def merge(self, other: ListValue) -> Self:
        """Add the entries of another list of gradients to this one's."""
        for index in np.flatnonzero(other.written).tolist():
            self.write(index, other.read(index))
        return self

    def grow(self, size: int) -> None:
        """Grow to at least `size` entries."""
        with self._lock:
            self._states.extend(bytes(max(0, size - len(self._states))))
            if self._storage is not None:
                self._storage.grow(len(self._states))

    def close(self) -> None:
        """Free the entries; the list cannot be used any more."""
        self._storage, self._is_closed = None, True

    def _store(self, index: int, value: Any) -> None:
        if self.dtype.is_numpy_compatible:
            shape = np.shape(value)
            self._check_shape(index, shape)
            self.shapes.note(index, shape)
            self._ensure_storage(shape)
        elif self._storage is None:
            self._storage = Single([None] * len(self._states))
        storage: Any = self._storage
        storage.put(index, value)
        self._states[index] = _WRITTEN

    def _accumulate(self, index: int, value: Any) -> None:
        storage: Any = self._storage
        if isinstance(value, ListValue):
            storage.get(index).merge(value)
            return
        old_shape, shape = np.shape(storage.get(index)), np.shape(value)
        if old_shape != shape:
            raise self._error(
                f"Could not aggregate to TensorArray index {index} because the existing shape is "
                f"{_dims(old_shape)} but the new input shape is {_dims(shape)}."
            )
        storage.add(index, value)

    def _ensure_storage(self, shape: Shape) -> None:
        """Make storage that can hold an entry of this shape."""
        storage = self._storage
        if storage is None and self.shapes.others:
            self._storage = Single([None] * len(self._states))
        elif storage is None:
            self._storage = Stacked(self._zero_rows(shape))
        elif isinstance(storage, Stacked) and storage.array.shape[1:] != shape:
            pairs = enumerate(self._states)
            entries = [storage.get(index) if state == _WRITTEN else None for index, state in pairs]
            self._storage = Single(entries)

    # Reading

    def read(self, index: Any, shape: TensorShape | None = None) -> Any:
        """An entry. `shape` is its static shape."""
        with self._lock:
            if self.accumulates:
                self._unpack_nested()
            return self._read_entry(self._in_range(int(index), _READ), shape)

    def gather(self, indices: Array, shape: TensorShape | None = None) -> Array:
        """Some entries as the rows of one array."""
        _check_indices(indices)
        with self._lock:
            if len(indices) == 0:
                return self._empty_rows(shape)
            entries = [self._in_range(index, _READ) for index in indices.tolist()]
            rows = None if self.clear_after_read else self._all_rows()
            if rows is not None:
                return rows[entries]
            values = [self._read_entry(entry, shape) for entry in entries]
            self._check_same_shape([np.shape(value) for value in values])
            return np.stack(values)

    def stack(
        self, count: int | None = None, shape: TensorShape | None = None, fills: bool = False
    ) -> Array | Buffer:
        """The first `count` entries (all, if None) as the rows of one array, which is not copied if
        they are stored so. With `fills`, entries never written to are zeros, and an unknown size
        is 0."""
        with self._lock:
            wanted = self.size() if count is None else count
            if wanted == 0 and fills and shape is not None and shape.rank is not None:
                sizes = [size or 0 for size in shape.as_list()]
                return np.zeros((0, *sizes), self.dtype.as_numpy_dtype)
            is_part = wanted < self.size() and not self.clear_after_read
            rows: Array | Buffer | None = None
            if self._is_readable(fills) and (wanted == self.size() or is_part):
                rows = self.on_device if wanted and self.on_device is not None else self.stacked
            if rows is None:
                return self.gather(np.arange(wanted), shape)
            self._share_rows()
            is_buffer = isinstance(rows, Buffer)
            return rows.first_rows(wanted) if is_buffer else read_only(rows[:wanted])

    def concat(
        self, count: int | None = None, shape: TensorShape | None = None
    ) -> tuple[Array, Array]:
        """The first `count` entries joined along their first axis, and the length of each."""
        with self._lock:
            wanted = self.size() if count is None else count
            if wanted == 0:
                return self._empty_rows(shape, concatenating=True), np.zeros(0, np.int64)
            rows = self._all_rows() if wanted == self.size() else None
            if rows is not None and rows.ndim > 1:
                self._share_rows()
                joined = rows.reshape((wanted * rows.shape[1], *rows.shape[2:]))
                return read_only(joined), np.full(wanted, rows.shape[1], np.int64)
            entries = [self.read(index, shape) for index in range(wanted)]
        scalars = [index for index, entry in enumerate(entries) if not np.shape(entry)]
        if scalars:
            raise self._error(
                f"Concat saw a scalar shape at index {scalars[0]} but requires at least vectors.  "
                "Did you mean to call stack?"
            )
        self._check_same_shape(
            [np.shape(entry)[1:] for entry in entries], "(excepting dimension 0) "
        )
        lengths = np.array([len(entry) for entry in entries], np.int64)
        return np.concatenate(entries), lengths

    def _all_rows(self) -> Array | None:
        """All entries as one array, if they are stored so and can all be read."""
        return self.stacked if self._is_readable() else None

    def _is_readable(self, fills: bool = False) -> bool:
        """Whether all entries can be read; in gradients, or if `fills`, unwritten ones as zeros."""
        is_full = self._states.count(_WRITTEN) == len(self._states)
        zeros_fit = (
            (self.accumulates or fills) and not self.shapes.others and _CLEARED not in self._states
        )
        return is_full or zeros_fit

    def _share_rows(self) -> None:
        """Share the array with the result of a read: copied before the next write."""
        if isinstance(self._storage, Stacked):
            self._storage.is_shared = True
        if self.clear_after_read:
            self._states[:] = bytes([_CLEARED]) * len(self._states)
            self._storage = None

    def _read_entry(self, index: int, shape: TensorShape | None) -> Any:
        state, storage = self._states[index], self._storage
        if state == _CLEARED:
            raise self._error(
                f"Could not read index {index} twice because it was cleared after a previous read "
                "(perhaps try setting clear_after_read = false?)."
            )
        if state == _EMPTY or storage is None:
            return self._zeros(index, shape)
        value: Any = storage.get(index)
        if self.clear_after_read:
            self._states[index] = _CLEARED
            if isinstance(storage, Single):
                storage.put(index, None)
        if not isinstance(storage, Stacked):
            return value
        return value.copy() if self.accumulates else read_only(value)

    def _zeros(self, index: int, known: TensorShape | None) -> Any:
        if not self.accumulates:
            raise self._error(
                f"Could not read from TensorArray index {index} because it has not yet been "
                "written to."
            )
        if self._forward_list is not None:
            like = self._forward_list.read(index)
            return None if like is None else like.gradient()  # of a branch not taken
        shape = self.shapes.of(index)
        if shape is None and known is not None:
            shape = known.whole
        if shape is None:
            raise self._error(
                f"Could not read from TensorArray index {index} because no gradient was written to "
                "it, and the shape of its zeros is not known."
            )
        return np.zeros(shape, self.dtype.as_numpy_dtype)

    def _empty_rows(self, known: TensorShape | None, concatenating: bool = False) -> Array:
        """The result for no entries; its shape comes from the static and the common shape."""
        shape = self.element_shape if known is None else self.element_shape.merge_with(known)
        if self.shapes.common is not None:
            shape = TensorShape.of(self.shapes.common)
        sizes = (shape[1:] if concatenating and shape.rank else shape).whole
        if sizes is None:
            error = self._error(
                f"TensorArray has size zero, but element shape {shape} is not fully defined. "
                "Currently only static shapes are supported when "
                f"{'concatenating' if concatenating else 'packing'} zero-size TensorArrays."
            )
            raise errors.UnimplementedError(None, None, error.message)
        return np.zeros((0, *sizes), self.dtype.as_numpy_dtype)

    # Checks

    def _in_range(self, index: int, use: str) -> int:
        """An index for a `use`, `_READ` or `_WRITE`. A list of dynamic size grows when it is
        written to, or read from if it is of gradients."""
        size = self.size()
        if index >= size and self.dynamic_size and (use is _WRITE or self.accumulates):
            self.grow(index + 1)
        elif not 0 <= index < size:
            fixed = "is not resizeable and " if use is _WRITE else ""
            raise self._error(f"Tried to {use} index {index} but array {fixed}size is: {size}")
        return index

    def _check_writable(self, index: int) -> None:
        state = self._states[index]
        if state == _EMPTY or (state == _WRITTEN and self.accumulates):
            return
        past = "read" if state == _CLEARED else "written to"
        raise self._error(
            f"Could not write to TensorArray index {index} because it has already been {past}."
        )

    def _check_shape(self, index: int, shape: Shape) -> None:
        if shape == self.shapes.common:  # already checked
            return
        if not self.element_shape.is_compatible_with(TensorShape.of(shape)):
            raise self._error(
                f"Could not write to TensorArray index {index} because the value shape is "
                f"{_dims(shape)} which is incompatible with the TensorArray's element shape: "
                f"{self.element_shape}."
            )

    def _check_split(self, value: Array, lengths: Array) -> list[int]:
        """The ends of the pieces."""
        if np.ndim(lengths) != 1:
            raise errors.invalid(
                f"Expected lengths to be a vector, received shape: {_dims(lengths)}"
            )
        if np.ndim(value) == 0:
            raise errors.invalid(
                f"Expected value to be at least a vector, but received shape: {_dims(value)}"
            )
        ends: list[int] = np.cumsum(lengths).tolist()
        if (ends[-1] if ends else 0) != len(value):
            raise errors.invalid(
                "Expected sum of lengths to be equal to values.shape[0], but sum of lengths is "
                f"{ends[-1] if ends else 0} and value's shape is: {_dims(value)}"
            )
        if not (self.dynamic_size or self.accumulates or len(ends) == self.size()):
            raise self._error(
                f"TensorArray's size is not equal to the size of lengths ({self.size()} vs. "
                f"{len(ends)}), and the TensorArray is not marked as dynamically resizeable"
            )
        return ends

    def _check_same_shape(self, shapes: Sequence[Shape], part: str = "") -> None:
        """Raise unless the shapes are equal; `part` names the dimensions in the error."""
        for index, shape in enumerate(shapes):
            if shape != shapes[0]:
                raise self._error(
                    f"TensorArray has inconsistent shapes.  Index 0 has {part}shape: "
                    f"{_dims(shapes[0])} but index {index} has {part}shape: {_dims(shape)}"
                )

    def _error(self, message: str) -> errors.InvalidArgumentError:
        return errors.invalid(f"TensorArray {self.name}: {message}")


def _check_indices(indices: Array) -> None:
    if np.ndim(indices) != 1:
        raise errors.invalid(
            f"Expected indices to be a vector, but received shape: {_dims(indices)}"
        )


def _dims(value: Any) -> str:
    """A shape, or the shape of a value, for errors."""
    shape = cast("Shape", value) if isinstance(value, tuple) else np.shape(value)
    return f"[{','.join(map(str, shape))}]"
