"""A cached thread pool: an idle thread runs the next task, else a new one is started.

The number of threads is the maximum of tasks that ever ran at once. Threads are daemons, end with
the process and have NumPy's floating-point warnings ignored.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

import numpy as np

Task = Callable[[], None]  # must not raise


_idle: list[SimpleQueue[Task]] = []  # the inbox of each idle thread
os.register_at_fork(after_in_child=_idle.clear)  # the child of a fork has none of the threads


def start(task: Task) -> None:
    """Run a task on an idle or new thread, which runs one task at a time."""
    try:
        inbox = _idle.pop()
    except IndexError:
        inbox = SimpleQueue[Task]()
        name = "thalweg-worker"
        threading.Thread(target=_run_tasks, args=(inbox,), name=name, daemon=True).start()
    inbox.put(task)


def _run_tasks(inbox: SimpleQueue[Task]) -> None:
    np.seterr(all="ignore")  # of this thread
    while True:
        inbox.get()()
        _idle.append(inbox)
