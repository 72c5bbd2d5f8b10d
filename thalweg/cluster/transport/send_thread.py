"""A background thread for sends that would block the I/O thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class SendThread:
    """Runs tasks in FIFO order on a thread that starts with the first task."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._submitted = self._done = 0
        self.is_busy = False  # whether a task is queued or running
        self._lock = threading.Lock()

    def submit(self, task: Callable[[], None]) -> None:
        """Queue a task; only the I/O thread calls this."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        with self._lock:
            self._submitted += 1
            self.is_busy = True
        self._tasks.put(task)

    def close(self) -> None:
        """End the thread once the queue is empty."""
        self._tasks.put(None)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            finally:
                with self._lock:
                    self._done += 1
                    self.is_busy = self._submitted != self._done
