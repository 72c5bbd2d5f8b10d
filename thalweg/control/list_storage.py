"""How the entries of a list are kept: in one array, one by one, or as lists in one flat list.

A `ListValue` (`control/lists.py`) has one of these and asks it for entries by index.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from thalweg.control.lists import ListValue

Array = NDArray[Any]
Shape = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Shapes:
    """The shapes of a list's entries: one for most, and others. They outlive the entries, for the
    lists of gradients that are made like this one."""

    common: Shape | None = None
    others: dict[int, Shape] = field(default_factory=dict[int, Shape])

    def note(self, index: int, shape: Shape) -> None:
        """An entry got this shape."""
        if self.common is None:
            self.common = shape
        elif shape != self.common:
            self.others[index] = shape

    def of(self, index: int) -> Shape | None:
        """The shape of an entry; of one that was never written, the likeliest."""
        return self.others.get(index, self.common)


@dataclass(slots=True, eq=False)
class Stacked:
    """Entries of one shape in one array, which may be longer than the list; or as the rows of a
    buffer of a device. A list that is read or changed on the host has them there first."""

    array: Any
    is_shared: bool = False  # others see this array: it must not change

    def get(self, index: int) -> Array:
        return self.array[index, ...]

    def put(self, index: int, value: Any) -> None:
        self._copy_on_write()
        self.array[index, ...] = value

    def add(self, index: int, value: Any) -> None:
        self._copy_on_write()
        entry = self.array[index, ...]
        entry += value

    def grow(self, size: int) -> None:
        held = len(self.array)
        if size <= held:
            return
        longer = np.zeros((max(size, 2 * held), *self.array.shape[1:]), self.array.dtype)
        longer[:held] = self.array
        self.array, self.is_shared = longer, False

    def _copy_on_write(self) -> None:
        if self.is_shared:
            self.array, self.is_shared = self.array.copy(), False


@dataclass(slots=True, eq=False)
class Single:
    """Entries of any shape, one by one."""

    entries: list[Any]

    def get(self, index: int) -> Any:
        return self.entries[index]

    def put(self, index: int, value: Any) -> None:
        self.entries[index] = value

    def add(self, index: int, value: Any) -> None:
        self.entries[index] = self.entries[index] + value  # who has read the old sum keeps it

    def grow(self, size: int) -> None:
        self.entries += [None] * (size - len(self.entries))


@dataclass(slots=True, eq=False)
class Nested:
    """Lists as entries: their entries one after the other in one flat list, and where each list
    starts there. A list ends at the latest where the next one starts."""

    starts: Array
    flat: ListValue
    each: int | None = None  # how long all of them are, where that is known
    _places: Array | None = None

    def get(self, index: int) -> ListValue:
        """A list of its own, which sees the entries. Lengths are rounded up, to have few."""
        start = int(self.starts[index])
        if self.each is not None:
            return self.flat.part(start, start + self.each)
        length = self._end(start) - start
        return self.flat.part(start, start + (1 << length.bit_length()))

    def _end(self, start: int) -> int:
        if self._places is None:
            self._places = np.unique(self.starts)
        after = int(np.searchsorted(self._places, start, "right"))
        return int(self._places[after]) if after < len(self._places) else self.flat.size()

    def grow(self, size: int) -> None:
        """It never does: only loops make one, for as many iterations as there were."""
