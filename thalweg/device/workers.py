"""Threads that stay: an idle one takes the next task, so that none is started for each.

There are as many as tasks ever ran at once. They end with the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from thalweg.platform.forks import renewed_after_fork

Task = Callable[[], None]  # which must not raise


class Workers:
    """Threads, each of which runs one task after another."""

    def __init__(self) -> None:
        self.renew_locks()
        renewed_after_fork(self)

    def renew_locks(self) -> None:
        """Begin without threads, as in the child of a fork."""
        self._idle: list[SimpleQueue[Task]] = []  # the inbox of each idle thread

    def start(self, task: Task) -> None:
        """Have a thread run a task."""
        try:
            inbox = self._idle.pop()
        except IndexError:
            inbox = SimpleQueue[Task]()
            name = "thalweg-worker"
            threading.Thread(target=self._work, args=(inbox,), name=name, daemon=True).start()
        inbox.put(task)

    def _work(self, inbox: SimpleQueue[Task]) -> None:
        while True:
            inbox.get()()
            self._idle.append(inbox)


WORKERS = Workers()
