"""A thread that sends what the I/O thread may not wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Courier:
    """Does one errand after the other; its thread starts with the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._errands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._given = self._done = 0
        self.is_busy = False  # whether there is something left to do
        self._lock = threading.Lock()

    def give(self, errand: Callable[[], None]) -> None:
        """Have something done; on one thread, the I/O thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        with self._lock:
            self._given += 1
            self.is_busy = True
        self._errands.put(errand)

    def close(self) -> None:
        """End once all is done."""
        self._errands.put(None)

    def _work(self) -> None:
        while (errand := self._errands.get()) is not None:
            try:
                errand()
            finally:
                with self._lock:
                    self._done += 1
                    self.is_busy = self._given != self._done
