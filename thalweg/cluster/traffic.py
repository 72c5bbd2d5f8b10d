"""What a task has done since it started: steps run, bytes of values sent and received."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Statistics(NamedTuple):
    """The counters of a task at one moment, as STATUS messages carry them."""

    steps: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


class Traffic:
    """Counts, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps = self._sent = self._received = 0

    def snapshot(self) -> Statistics:
        """The counters now."""
        with self._lock:
            return Statistics(self._steps, self._sent, self._received)

    def ran_step(self) -> None:
        """Count a step that this task had a part in."""
        with self._lock:
            self._steps += 1

    def sent(self, values: Sequence[Any]) -> None:
        """Count values that leave this process."""
        if values:
            size = _size(values)
            with self._lock:
                self._sent += size

    def received(self, values: Sequence[Any]) -> None:
        """Count values that came from another process."""
        if values:
            size = _size(values)
            with self._lock:
                self._received += size


def _size(values: Sequence[Any]) -> int:
    if len(values) == 1 and isinstance(values[0], np.ndarray):  # as nearly always
        return values[0].nbytes
    return sum([getattr(value, "nbytes", 0) for value in values])
