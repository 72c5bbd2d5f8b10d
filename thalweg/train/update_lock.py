"""Keeps the updates of a chief and its checkpoints apart.

The chief of a synchronous job updates variables of many tasks on a thread of its own, and saves
them on another. A worker that was started again may complete the gradients of an update while the
chief saves; a checkpoint that was written meanwhile would have some variables from before it.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

_PATIENCE = 5.0  # seconds; an update that takes longer waits for a task that is gone
_locks: WeakKeyDictionary[Any, threading.Lock] = WeakKeyDictionary()  # by graph


def update_lock(graph: Any) -> threading.Lock:
    """What a chief holds while it updates the variables of a graph."""
    return _locks.setdefault(graph, threading.Lock())


@contextmanager
def between_updates(graph: Any) -> Generator[None]:
    """Have no update begin meanwhile."""
    lock = update_lock(graph)
    is_held = lock.acquire(timeout=_PATIENCE)
    try:
        yield
    finally:
        if is_held:
            lock.release()
