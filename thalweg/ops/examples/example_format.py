"""Decoding of serialised Example and SequenceExample messages, without message classes.

Given serialised messages and a set of keys, it indexes the list of each wanted feature and decodes
the values of one feature over all messages. Invalid bytes raise an error that names the message and
the offset in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.dtypes import DType
from thalweg.ops.examples.example_code import CONTEXT_SIZE, code
from thalweg.ops.examples.example_values import (
    BAD_BYTES,
    FLOATS,
    INTS,
    MISSING,
    OTHER_KIND,
    STRINGS,
)
from thalweg.ops.text import text
from thalweg.platform.arrays import Array
from thalweg.platform.caches import memoized

#: The field of a Feature that holds values of a dtype.
KINDS = {dtypes.string: STRINGS, dtypes.float32: FLOATS, dtypes.int64: INTS}
FIELD_NAMES = {STRINGS: "bytes_list", FLOATS: "float_list", INTS: "int64_list", MISSING: ""}
_EVERYTHING = 1 << 62


class BadMessage(Exception):
    """Invalid bytes: the number of the message and the offset in it."""

    def __init__(self, message: int, place: int) -> None:
        super().__init__(message, place)
        self.message = message
        self.place = place


class OtherKind(Exception):
    """A feature whose values are of another kind than requested, by its row."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


class Keys:
    """A set of wanted keys, laid out for machine code."""

    def __init__(self, names: Sequence[bytes]) -> None:
        self.names = tuple(names)
        self._joined = b"".join(names)
        self._bounds = _bounds(names)
        self._address = np.frombuffer(self._joined or b"\0", np.uint8).ctypes.data

    def __len__(self) -> int:
        return len(self.names)

    def table(self, messages: int) -> Array:
        """An empty table [messages, keys, 3] of features: the kind of list, its begin and end."""
        return np.zeros((messages, len(self), 3), np.int64)

    def context(self, table: Array) -> list[int]:
        """The addresses of keys and table, for machine code."""
        places = [self._address, self._bounds.ctypes.data, len(self), table.ctypes.data]
        return places + [0] * (CONTEXT_SIZE - len(places))


@memoized(100)
def keys_of(names: tuple[bytes, ...]) -> Keys:
    """The key set of these names, cached."""
    return Keys(names)


def _bounds(pieces: Sequence[bytes]) -> Array:
    return np.cumsum([0, *map(len, pieces)], dtype=np.int64)


class Messages:
    """Serialised messages, contiguous in memory."""

    def __init__(self, serialized: Sequence[bytes]) -> None:
        self.count = len(serialized)
        self.data = serialized[0] if self.count == 1 else b"".join(serialized)
        self.bounds = _bounds(serialized)

    def index_examples(self, keys: Keys) -> Array:
        """The table of wanted features of each Example."""
        table = keys.table(self.count)
        self._walk(0, keys.context(table) + [0] * CONTEXT_SIZE)
        return table

    def index_sequences(self, context: Keys, lists: Keys) -> tuple[Array, Array]:
        """The tables of wanted context features and feature lists of each SequenceExample."""
        tables = context.table(self.count), lists.table(self.count)
        self._walk(1, context.context(tables[0]) + lists.context(tables[1]))
        return tables

    def _walk(self, function: int, context: list[int]) -> None:
        places = np.array(context, np.int64)
        result = code()[function](
            self.data, self.bounds.ctypes.data, self.count, places.ctypes.data
        )
        if result:
            number = int(places[4])
            raise BadMessage(number, result - 1 - int(self.bounds[number]))

    def features_of(self, entry: Array, number: int = 0) -> Array:
        """The table of the features of the feature list in a table entry of a message."""
        begin, end = int(entry[1]), int(entry[2])
        places = np.zeros(CONTEXT_SIZE, np.int64)
        result = code()[2](self.data, begin, end, places.ctypes.data)
        if result:
            raise BadMessage(number, result - 1 - int(self.bounds[number]))
        found = np.zeros((int(places[2]), 1, 3), np.int64)
        places[9] = found.ctypes.data
        code()[2](self.data, begin, end, places.ctypes.data)
        return found

    def counts(self, table: Array, column: int, dtype: DType) -> Array:
        """The number of values in each row of a table's column; -1 if there is no list."""
        return self._decode(table, column, dtype, None, np.zeros(len(table), np.int64), 0)

    def values(self, table: Array, column: int, dtype: DType, counts: Array) -> Array:
        """All values of a column, concatenated; `counts` are their numbers from `counts()`."""
        sizes = np.maximum(counts, 0)
        ends = np.cumsum(sizes)
        out = _room(int(ends[-1]) if len(ends) else 0, dtype)
        self._decode(table, column, dtype, out, ends - sizes, _EVERYTHING)
        return self._finished(out, dtype)

    def dense(self, table: Array, column: int, dtype: DType, size: int) -> tuple[Array, Array]:
        """(values [rows, size], counts): rows with another count than `size` are zero or empty."""
        rows = len(table)
        out = _room(rows * size, dtype)
        counts = self._decode(table, column, dtype, out, np.arange(rows) * size, size)
        if not are_all(counts, size):
            out.reshape(rows, size, *out.shape[1:])[counts != size] = 0
        return self._finished(out, dtype).reshape(rows, size), counts

    def _decode(
        self, table: Array, column: int, dtype: DType, out: Array | None, places: Array, room: int
    ) -> Array:
        rows, stride = len(table), table.shape[1] * 3
        counts = np.empty(rows, np.int64)
        bad = code()[3](
            self.data,
            table.ctypes.data + column * 3 * table.itemsize,
            rows,
            stride,
            KINDS[dtype],
            None if out is None else out.ctypes.data,
            places.ctypes.data,
            counts.ctypes.data,
            room,
        )
        if bad < rows:
            raise self._fault(int(bad), int(counts[bad]))
        return counts

    def _fault(self, row: int, status: int) -> Exception:
        if status == OTHER_KIND:
            return OtherKind(row)
        place = BAD_BYTES - status
        number = int(np.searchsorted(self.bounds, place, "right")) - 1
        return BadMessage(number, place - int(self.bounds[number]))

    def _finished(self, out: Array, dtype: DType) -> Array:
        if dtype is not dtypes.string:
            return out
        data = self.data
        return text.text_of(data[begin:end] for begin, end in out.tolist())


def are_all(counts: Array, size: int) -> bool:
    """Whether all counts are `size`. A Python list is faster than NumPy for few numbers."""
    return counts.tolist().count(size) == len(counts)


def _room(count: int, dtype: DType) -> Array:
    """Memory for decoded values; strings are decoded to their begin and end."""
    if dtype is dtypes.string:
        return np.empty((count, 2), np.int64)
    return np.empty(count, dtype.as_numpy_dtype)
