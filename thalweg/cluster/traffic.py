"""Counters of a task since it started: steps run, bytes of values sent and received."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Statistics(NamedTuple):
    """A snapshot of a task's counters, as replies to STATUS carry it."""

    steps: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


class Traffic:
    """Counters that any thread may increment, without a lock: the interpreter switches threads only
    at calls and backward jumps, and an increment has neither between its load and its store."""

    def __init__(self) -> None:
        self.steps = self.bytes_sent = self.bytes_received = 0

    def snapshot(self) -> Statistics:
        """The counters now."""
        return Statistics(self.steps, self.bytes_sent, self.bytes_received)


def size_of(values: Sequence[Any]) -> int:
    """The total bytes of some values."""
    size = 0
    for value in values:
        size += getattr(value, "nbytes", 0)
    return size
