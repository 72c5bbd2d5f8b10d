"""Storage of a list's entries: one array, separate entries, or lists in one flat list.

A `ListValue` (`control/lists.py`) has one of these and accesses entries by index.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg.ops.core.buffer import Buffer
from thalweg.platform.arrays import Array

if TYPE_CHECKING:
    from thalweg.control.lists import ListValue

Shape = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Shapes:
    """The shapes of a list's entries: a common one, and exceptions. They outlive the entries, for
    the lists of gradients that are made later."""

    common: Shape | None = None
    others: dict[int, Shape] = field(default_factory=dict[int, Shape])

    def note(self, index: int, shape: Shape) -> None:
        """Record the shape of an entry."""
        if self.common is None:
            self.common = shape
        elif shape != self.common:
            self.others[index] = shape

    def of(self, index: int) -> Shape | None:
        """The shape of an entry; the common one if it was never written."""
        return self.others.get(index, self.common)


@dataclass(slots=True, eq=False)
class Stacked:
    """Entries of one shape as the rows of an array, which may be longer than the list, or of a
    device buffer."""

    rows: Any
    is_shared: bool = False  # copy-on-write: results refer to these rows

    @property
    def array(self) -> Array:
        """The rows on the host; a device buffer is copied."""
        if type(self.rows) is not np.ndarray and isinstance(self.rows, Buffer):
            self.rows, self.is_shared = self.rows.snapshot(), False
        return self.rows

    def get(self, index: int) -> Array:
        return self.array[index, ...]

    def put(self, index: int, value: Any) -> None:
        self._owned()[index, ...] = value

    def add(self, index: int, value: Any) -> None:
        self._owned()[index, ...] += value

    def grow(self, size: int) -> None:
        array = self.array
        capacity = len(array)
        if size <= capacity:
            return
        longer = np.zeros((max(size, 2 * capacity), *array.shape[1:]), array.dtype)
        longer[:capacity] = array
        self.rows, self.is_shared = longer, False

    def _owned(self) -> Array:
        """The array, copied on write."""
        array = self.array
        if self.is_shared:
            self.rows, self.is_shared = array.copy(), False
        return self.rows


@dataclass(slots=True, eq=False)
class Single:
    """Entries of any shape, as separate values."""

    entries: list[Any]

    def get(self, index: int) -> Any:
        return self.entries[index]

    def put(self, index: int, value: Any) -> None:
        self.entries[index] = value

    def add(self, index: int, value: Any) -> None:
        self.entries[index] = self.entries[index] + value  # not in place: readers keep the old sum

    def grow(self, size: int) -> None:
        self.entries += [None] * (size - len(self.entries))


@dataclass(slots=True, eq=False)
class Nested:
    """Lists as entries: the concatenation of their entries in one flat list, and the start of each
    list. A list ends at the latest where the next one starts."""

    starts: Array
    flat: ListValue
    each: int | None = None  # their common length, if it is known
    _sorted_starts: Array | None = None

    def get(self, index: int) -> ListValue:
        """A list with a view of the entries. Unknown lengths are rounded up, so that few differ."""
        start = int(self.starts[index])
        if self.each is not None:
            return self.flat.part(start, start + self.each)
        length = self._end(start) - start
        return self.flat.part(start, start + (1 << length.bit_length()))

    def _end(self, start: int) -> int:
        if self._sorted_starts is None:
            self._sorted_starts = np.unique(self.starts)
        after = int(np.searchsorted(self._sorted_starts, start, "right"))
        ends = self._sorted_starts[after : after + 1]
        return int(ends[0]) if len(ends) else self.flat.size()

    def grow(self, size: int) -> None:
        """Nothing to do: only loops make nested lists, and these do not grow."""
