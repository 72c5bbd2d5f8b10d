"""Shuffling: each element is drawn at random from a buffer of the next ones.

If elements are rows of columns, so is the buffer, and many are drawn together. The order is the
same either way: it depends only on the seeds and the number of the pass.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.data.columns import joined
from thalweg.data.flow import Element, Pipeline, Rows, Stage, UnaryFlow
from thalweg.data.state_code import packed_elements, unpacked_elements
from thalweg.errors import invalid
from thalweg.ops.random import philox
from thalweg.platform.arrays import Array

_AT_ONCE = 1024  # random words that are drawn together
_MAX_CHUNK = 1 << 16  # rows that are read together to fill a buffer


class Draws:
    """The random numbers of one pass: determined by the seeds, the pass and the draws so far."""

    def __init__(self, seeds: tuple[int, int], number: int, drawn: int = 0) -> None:
        self._seeds, self._number = seeds, number
        self.drawn = drawn
        self._words: list[int] = []
        self._start = 0  # the draw that uses the first word of the block

    def below(self, limit: int) -> int:
        """Draw an integer in [0, limit)."""
        place = self.drawn - self._start
        if place >= len(self._words):
            place = self.drawn % _AT_ONCE
            self._start = self.drawn - place
            self._words = self._block(self._start)
        self.drawn += 1
        return self._words[place] * limit >> 32

    def _block(self, start: int) -> list[int]:
        mask = (1 << 64) - 1
        key = np.array([seed & mask for seed in self._seeds], np.uint64)
        generator = np.random.Philox(counter=[start // 4, 0, 0, self._number], key=key)
        return (generator.random_raw(_AT_ONCE) >> np.uint64(32)).tolist()


class ShuffleFlow(UnaryFlow):
    """The elements in random order."""

    def open(self, source: Pipeline, buffer_size: Any, seed: Any, seed2: Any) -> None:
        self._size = int(buffer_size)
        if self._size < 1:
            raise self.failed(invalid("buffer_size must be greater than zero."))
        self.source = source.start(self.puller)
        self._seeds = self._chosen(int(seed), int(seed2))
        self._draws = self._new_draws()
        self._is_over = False  # whether the source is exhausted
        self._hole: int | None = None  # the buffer slot that the next element fills
        self.gives_rows = self.source.gives_rows
        self._buffer = _RowBuffer() if self.gives_rows else _ElementBuffer()

    def _chosen(self, *seeds: int) -> tuple[int, int]:
        """The seeds; if both are 0, random ones, which all passes share."""
        memory = self.pipeline.memory
        if not any(seeds):
            memory.setdefault("seeds", [philox.fresh_seed() for _ in seeds])
        first, second = memory.get("seeds", seeds)
        return first, second

    def _new_draws(self) -> Draws:
        stage: Any = self.pipeline.stage
        memory = self.pipeline.memory
        number = self._pass = memory.get("pass", 0)
        memory["pass"] = number + bool(stage.reshuffle_each_iteration)
        return Draws(self._seeds, number)

    def next(self) -> Element | None:
        if self.gives_rows:
            rows = self.rows(1)
            return None if rows is None else tuple([column[0] for column in rows])
        buffer = self._buffer
        assert isinstance(buffer, _ElementBuffer)
        self._fill(buffer)
        place = self._next_place(len(buffer.elements))
        return None if place is None else buffer.elements[place]

    def _fill(self, buffer: _ElementBuffer) -> None:
        elements = buffer.elements
        while not self._is_over and (self._hole is not None or len(elements) < self._size):
            element = self.source.next()
            if element is None:
                self._is_over = True
            elif self._hole is None:
                elements.append(element)
            else:
                elements[self._hole], self._hole = element, None
        if self._hole is not None:
            _close(elements, self._hole)
            self._hole = None

    def _next_place(self, count: int) -> int | None:
        """Draw the slot of the next element; None if the buffer is empty."""
        self._hole = self._draws.below(count) if count else None
        return self._hole

    def rows(self, most: int) -> Rows | None:
        buffer = self._buffer
        assert isinstance(buffer, _RowBuffer)
        self._fill_rows(buffer)
        wanted = most if self._hole is not None else most - 1
        new = self.source.rows(wanted) if wanted and not self._is_over else None
        if new is None and wanted:
            self._is_over = True
        chosen, filled = self._drawn(buffer, most, new)
        return buffer.taken(chosen, new, filled)

    def _fill_rows(self, buffer: _RowBuffer) -> None:
        while not self._is_over and buffer.count < self._size:
            part = self.source.rows(min(self._size - buffer.count, _MAX_CHUNK))
            if part is None:
                self._is_over = True
            else:
                buffer.add(part)

    def _drawn(
        self, buffer: _RowBuffer, most: int, new: Rows | None
    ) -> tuple[list[int], list[int]]:
        """Draw the next rows. Returns their numbers, rows of the buffer before new ones, and the
        slots that new rows filled."""
        numbers, first = buffer.numbers, buffer.count
        fresh = iter(range(first, first + (0 if new is None else len(new[0]))))
        chosen: list[int] = []
        filled: list[int] = []
        hole, below = self._hole, self._draws.below
        while len(chosen) < most:
            if hole is not None:
                number = next(fresh, None)
                if number is not None:
                    numbers[hole] = number
                    filled.append(hole)
                elif self._is_over:
                    _close(numbers, hole)
                else:
                    break
            if not numbers:
                hole = None
                break
            hole = below(len(numbers))
            chosen.append(numbers[hole])
        self._hole = hole
        return chosen, filled

    def own_state(self) -> dict[str, Any]:
        return {
            "buffer": self._buffer.save(),
            "hole": self._hole,
            "over": self._is_over,
            "seeds": [str(seed) for seed in self._seeds],
            "pass": self._pass,
            "next pass": self.pipeline.memory["pass"],
            "drawn": self._draws.drawn,
        }

    def set_own_state(self, state: Any) -> None:
        first, second = (int(seed) for seed in state["seeds"])
        self._seeds = first, second
        self._pass = int(state["pass"])
        self.pipeline.memory.update({"seeds": self._seeds, "pass": int(state["next pass"])})
        self._draws = Draws(self._seeds, self._pass, int(state["drawn"]))
        self._is_over, self._hole = bool(state["over"]), state["hole"]
        self._buffer.load(state["buffer"])


def _close(items: list[Any], hole: int) -> None:
    """Move the last item into the hole."""
    last = items.pop()
    if hole < len(items):
        items[hole] = last


class _ElementBuffer:
    """A buffer of separate elements."""

    def __init__(self) -> None:
        self.elements: list[Element] = []

    def save(self) -> Any:
        return packed_elements(self.elements)

    def load(self, state: Any) -> None:
        self.elements = unpacked_elements(state)


class _RowBuffer:
    """A buffer of rows. Row n is in slot n until the source is exhausted."""

    def __init__(self) -> None:
        self.numbers: list[int] = []  # the row of each slot
        self.count = 0  # of rows
        self._parts: list[Rows] = []

    def add(self, rows: Rows) -> None:
        """Append rows."""
        self._parts.append(rows)
        self.numbers += range(self.count, self.count + len(rows[0]))
        self.count += len(rows[0])

    def _columns(self) -> Rows:
        if len(self._parts) > 1:
            self._parts = [tuple([joined(c) for c in zip(*self._parts, strict=True)])]
        return self._parts[0]

    def taken(self, chosen: list[int], new: Rows | None, filled: list[int]) -> Rows | None:
        """The chosen rows; new rows that were not chosen are stored in the slots they filled."""
        if not chosen:
            return None
        columns, numbers = self._columns(), np.array(chosen)
        if new is None:
            return tuple([column[numbers] for column in columns])
        is_old = numbers < self.count
        pairs = zip(columns, new, strict=True)
        result = tuple([_gathered(*pair, numbers, is_old, self.count) for pair in pairs])
        self._keep(new, filled)
        return result

    def _keep(self, new: Rows, filled: list[int]) -> None:
        kept = list(dict.fromkeys(filled))  # a slot may be filled more than once
        places = np.array(kept, np.int64)
        sources = np.array([self.numbers[place] - self.count for place in kept], np.int64)
        columns = tuple([_owned(column) for column in self._columns()])
        for column, fresh in zip(columns, new, strict=True):
            column[places] = fresh[sources]
        self._parts = [columns]
        for place in kept:
            self.numbers[place] = place

    def save(self) -> Any:
        numbers = np.array(self.numbers, np.int64)
        return [column[numbers] for column in self._columns()] if self._parts else []

    def load(self, state: Any) -> None:
        self._parts, self.numbers, self.count = [], [], 0
        if state:
            self.add(tuple(state))


def _gathered(old: Array, new: Array, numbers: Array, is_old: Array, first: int) -> Array:
    result = np.empty((len(numbers), *old.shape[1:]), old.dtype)
    result[is_old] = old[numbers[is_old]]
    result[~is_old] = new[numbers[~is_old] - first]
    return result


def _owned(column: Array) -> Array:
    """The column, or a copy if it is a view or read-only."""
    return column if column.base is None and column.flags.writeable else column.copy()


class ShuffleDataset(Stage):
    """A dataset of the elements in random order"""

    signature = (
        "input_dataset: variant, buffer_size: int64, seed: int64, seed2: int64 -> handle: variant"
    )
    flow = ShuffleFlow
    reshuffle_each_iteration: bool = True
