"""What a task has done since it started: steps run, bytes of values sent and received."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Statistics(NamedTuple):
    """The counters of a task at one moment, as STATUS messages carry them."""

    steps: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


class Traffic:
    """Counts, from any thread. There is no lock: the interpreter changes threads at calls and jumps
    alone, and no counter is read and written with one of these in between."""

    def __init__(self) -> None:
        self.steps = self.bytes_sent = self.bytes_received = 0

    def snapshot(self) -> Statistics:
        """The counters now."""
        return Statistics(self.steps, self.bytes_sent, self.bytes_received)


def size_of(values: Sequence[Any]) -> int:
    """The bytes of values."""
    size = 0
    for value in values:
        size += getattr(value, "nbytes", 0)
    return size
