"""The state of lookup tables: keys, each with a row of values.

Rows are stored in one array, so that looking up a batch of keys is one gather. A static table is
filled once, and reading it before is an error; a mutable one can be changed at any time. All
methods are thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from typing import Any, cast

import numpy as np

from thalweg import errors
from thalweg.graph.dtypes import DType, string
from thalweg.ops.text import text
from thalweg.platform.arrays import Array
from thalweg.platform.forks import renewed_after_fork

Sizes = tuple[int, ...]

_FIRST_ROWS = 16


def _failed_precondition(message: str) -> errors.FailedPreconditionError:
    return errors.FailedPreconditionError(None, None, message)


class Table:
    """A map from keys of one shape to values of another; in most tables both are scalars."""

    kind = "MutableHashTable"

    def __init__(
        self,
        name: str,
        key_dtype: DType,
        value_dtype: DType,
        key_shape: Sizes = (),
        value_shape: Sizes = (),
    ) -> None:
        self.name = name
        self.key_dtype, self.value_dtype = key_dtype, value_dtype
        self.key_shape, self.value_shape = key_shape, value_shape
        self.renew_locks()
        renewed_after_fork(self)
        self._clear()

    def renew_locks(self) -> None:
        """Replace the lock by one that is not held."""
        self._lock = threading.RLock()

    def _clear(self) -> None:
        self._places: dict[Hashable, int] = {}
        self._free: list[int] = []
        self._rows = self._new_rows(_FIRST_ROWS)

    def _new_rows(self, count: int) -> Array:
        return np.empty((count, *self.value_shape), self.value_dtype.as_numpy_dtype)

    # Reading

    @property
    def size(self) -> int:
        """The number of keys."""
        with self._lock:
            return len(self._places)

    def find(self, keys: Any, default: Any) -> Array:
        """The values of keys, or the default for keys that are missing."""
        flat, outer = self._flat_keys(keys)
        fallback = self._default(default, outer)
        with self._lock:
            get = self._places.get
            places = np.fromiter((get(key, -1) for key in flat), np.intp, len(flat))
            values = self._rows[places]
        missing = places < 0
        if missing.any():
            is_one = fallback.ndim == len(self.value_shape)
            values[missing] = fallback if is_one else fallback[missing]
        return values.reshape((*outer, *self.value_shape))

    def _default(self, default: Any, outer: Sizes) -> Array:
        """One value for all missing keys, or a row per requested key."""
        array = self._as_array(default, self.value_dtype)
        if array.shape == self.value_shape:
            return array
        if array.shape == (*outer, *self.value_shape):
            return array.reshape((-1, *self.value_shape))
        raise errors.invalid(
            f"Expected shape {list(self.value_shape)} for the default value of table "
            f"'{self.name}', got {list(array.shape)}"
        )

    def export(self) -> tuple[Array, Array]:
        """All keys and their values, in insertion order."""
        with self._lock:
            keys = list(self._places)
            values = self._rows[np.fromiter(self._places.values(), np.intp, len(keys))]
        return self._key_array(keys), values

    # Writing

    def insert(self, keys: Any, values: Any) -> None:
        """Insert keys with values, overwriting those of existing keys."""
        flat, outer = self._flat_keys(keys)
        rows = self._flat_values(values, outer)
        with self._lock:
            places = [self._place(key) for key in flat]
            self._reserve()
            self._rows[places] = rows  # of equal keys the last one wins

    def remove(self, keys: Any) -> None:
        """Remove keys; missing ones are ignored."""
        flat, _ = self._flat_keys(keys)
        with self._lock:
            for key in flat:
                place = self._places.pop(key, None)
                if place is not None:
                    self._free.append(place)

    def replace(self, keys: Any, values: Any) -> None:
        """Replace the whole content by these keys and values."""
        _, outer = self._flat_keys(keys)
        self._flat_values(values, outer)  # validate first: an error leaves the table unchanged
        with self._lock:
            self._clear()
            self.insert(keys, values)

    def _place(self, key: Hashable) -> int:
        known = self._places.get(key)
        if known is None:
            known = self._free.pop() if self._free else len(self._places)
            self._places[key] = known
        return known

    def _reserve(self) -> None:
        needed = len(self._places) + len(self._free)
        if needed > len(self._rows):
            rows = self._new_rows(max(needed, 2 * len(self._rows)))
            rows[: len(self._rows)] = self._rows
            self._rows = rows

    # Tensors to keys and rows

    def _as_array(self, value: Any, dtype: DType) -> Array:
        if dtype is string:
            return text.text_array(value)
        return np.asarray(value)

    def _flat_keys(self, keys: Any) -> tuple[Sequence[Hashable], Sizes]:
        """Keys as hashable values, and the shape that they were given in."""
        array = self._as_array(keys, self.key_dtype)
        rank = array.ndim - len(self.key_shape)
        if rank < 0 or array.shape[rank:] != self.key_shape:
            raise errors.invalid(
                f"Keys of table '{self.name}' must end in shape {list(self.key_shape)}, got "
                f"{list(array.shape)}"
            )
        outer = array.shape[:rank]
        if not self.key_shape:
            return cast("Sequence[Hashable]", array.ravel().tolist()), outer
        rows = array.reshape(-1, int(np.prod(self.key_shape)))
        return [tuple(row) for row in rows.tolist()], outer

    def _key_array(self, keys: Sequence[Any]) -> Array:
        result = np.empty((len(keys), *self.key_shape), self.key_dtype.as_numpy_dtype)
        for index, key in enumerate(keys):
            result[index] = np.reshape(key, self.key_shape) if self.key_shape else key
        return result

    def _flat_values(self, values: Any, outer: Sizes) -> Array:
        array = self._as_array(values, self.value_dtype)
        expected = (*outer, *self.value_shape)
        if array.shape != expected:
            raise errors.invalid(
                f"Expected shape {list(expected)} for the values of table '{self.name}', got "
                f"{list(array.shape)}"
            )
        return array.reshape((-1, *self.value_shape))


class StaticTable(Table):
    """A table of scalars that is filled once, by its initializer."""

    kind = "HashTable"
    is_initialized = False

    def initialize(self, keys: Any, values: Any) -> None:
        """Fill the table. It may be filled again only with the same data."""
        flat, outer = self._flat_keys(keys)
        entries = self._entries(flat, self._flat_values(values, outer).tolist())
        with self._lock:
            if not self.is_initialized:
                super().insert(keys, values)
                self.is_initialized = True
            elif entries != dict(zip(*(column.tolist() for column in self.export()), strict=True)):
                raise _failed_precondition(
                    f"Table '{self.name}' was already initialized with different data."
                )

    def _entries(self, keys: Sequence[Hashable], values: list[Any]) -> dict[Hashable, Any]:
        result: dict[Hashable, Any] = {}
        for key, value in zip(keys, values, strict=True):
            if result.setdefault(key, value) != value:
                raise _failed_precondition(
                    f"HashTable has different value for same key. Key {key!r} of table "
                    f"'{self.name}' has {result[key]!r} and trying to add value {value!r}."
                )
        return result

    @property
    def size(self) -> int:
        """The number of keys."""
        self._check_initialized()
        return super().size

    def find(self, keys: Any, default: Any) -> Array:
        self._check_initialized()
        return super().find(keys, default)

    def export(self) -> tuple[Array, Array]:
        self._check_initialized()
        return super().export()

    def insert(self, keys: Any, values: Any) -> None:
        raise self._is_static()

    def remove(self, keys: Any) -> None:
        raise self._is_static()

    def replace(self, keys: Any, values: Any) -> None:
        """Fill the table: initializers of later TensorFlow versions import into static tables."""
        self.initialize(keys, values)

    def _is_static(self) -> Exception:
        return _failed_precondition(
            f"Table '{self.name}' is a HashTable: only its initializer fills it."
        )

    def _check_initialized(self) -> None:
        if not self.is_initialized:
            raise _failed_precondition(
                f"Table not initialized: '{self.name}'. Run tf.tables_initializer() in this "
                "session first."
            )


class DenseTable(Table):
    """A mutable table with two reserved keys, which cannot be inserted or looked up."""

    kind = "MutableDenseHashTable"

    def __init__(
        self,
        name: str,
        key_dtype: DType,
        value_dtype: DType,
        value_shape: Sizes,
        empty_key: Any,
        deleted_key: Any,
    ) -> None:
        empty, deleted = (self._as_array(key, key_dtype) for key in (empty_key, deleted_key))
        super().__init__(name, key_dtype, value_dtype, empty.shape, value_shape)
        self._reserved: dict[Hashable, str] = {}
        for key, what in ((empty, "empty_key"), (deleted, "deleted_key")):
            (taken,), _ = super()._flat_keys(key)
            if taken in self._reserved:
                raise errors.invalid("Empty and deleted keys cannot be equal")
            self._reserved[taken] = what

    def _flat_keys(self, keys: Any) -> tuple[Sequence[Hashable], Sizes]:
        flat, outer = super()._flat_keys(keys)
        taken = next((self._reserved[key] for key in flat if key in self._reserved), None)
        if taken is not None:
            raise errors.invalid(
                f"Using the {taken} of table '{self.name}' as a table key is not allowed"
            )
        return flat, outer
