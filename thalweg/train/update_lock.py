"""Keeps a chief's updates out of the checkpoints that it writes.

The chief of a synchronous job updates variables of many tasks on one thread and saves them on
another. A worker that was restarted may complete the gradients of an update while the chief saves;
a checkpoint written meanwhile would mix variables from before and after the update. Whoever saves
calls `guard_updates` before the chief starts: a job without checkpoints needs no lock, and its
chief waits for gradients and applies them in one step.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

_PATIENCE = 5.0  # seconds; an update that takes longer waits for a task that is gone
_locks: WeakKeyDictionary[Any, threading.Lock] = WeakKeyDictionary()  # by graph


def guard_updates(graph: Any) -> None:
    """Have a chief that starts later hold a lock while it updates the variables of a graph."""
    _locks.setdefault(graph, threading.Lock())


def update_lock(graph: Any) -> threading.Lock | None:
    """The lock that a chief holds during an update; None where nobody saves checkpoints."""
    return _locks.get(graph)


@contextmanager
def between_updates(graph: Any) -> Generator[None]:
    """Hold back the updates of a guarded graph; others are not held back."""
    lock = _locks.get(graph)
    is_held = lock is not None and lock.acquire(timeout=_PATIENCE)
    try:
        yield
    finally:
        if lock is not None and is_held:
            lock.release()
