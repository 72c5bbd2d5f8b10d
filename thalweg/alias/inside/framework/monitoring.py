"""`tensorflow.python.eager.monitoring`: counters of use that nobody collects here."""

from __future__ import annotations

from typing import Any


class Metric:
    """A number by labels, kept in this process."""

    def __init__(self, *_: Any) -> None:
        self._cells: dict[tuple[Any, ...], Cell] = {}

    def get_cell(self, *labels: Any) -> Cell:
        """The number of some labels."""
        return self._cells.setdefault(labels, Cell())


class Cell:
    """One number."""

    def __init__(self) -> None:
        self._value: Any = 0

    def set(self, value: Any) -> None:
        """Set it."""
        self._value = value

    def increase_by(self, value: Any) -> None:
        """Add to it."""
        self._value += value

    def value(self) -> Any:
        """What it is."""
        return self._value


BoolGauge = IntGauge = StringGauge = Counter = Sampler = Metric
