"""A cached thread pool: an idle thread runs the next task, else a new one is started.

The number of threads is the maximum of tasks that ever ran at once. Threads are daemons, end with
the process and have NumPy's floating-point warnings ignored.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

import numpy as np

from thalweg.platform.forks import renewed_after_fork

Task = Callable[[], None]  # must not raise


class Workers:
    """Threads that run tasks, each one task at a time."""

    def __init__(self) -> None:
        self.renew_locks()
        renewed_after_fork(self)

    def renew_locks(self) -> None:
        """Forget all threads: the child of a fork has none of them."""
        self._idle: list[SimpleQueue[Task]] = []  # the inbox of each idle thread

    def start(self, task: Task) -> None:
        """Run a task on an idle or new thread."""
        try:
            inbox = self._idle.pop()
        except IndexError:
            inbox = SimpleQueue[Task]()
            name = "thalweg-worker"
            threading.Thread(target=self._run_tasks, args=(inbox,), name=name, daemon=True).start()
        inbox.put(task)

    def _run_tasks(self, inbox: SimpleQueue[Task]) -> None:
        np.seterr(all="ignore")  # of this thread
        while True:
            inbox.get()()
            self._idle.append(inbox)


WORKERS = Workers()
