"""A higher recursion limit while deep expressions are traversed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager

from thalweg.platform.forks import freed_after_fork

_LIMIT = 20_000  # calls: about ten for each expression of the largest kernel
_saved_limits: list[int] = []  # the limit at the entry of each open block
_lock = freed_after_fork(threading.Lock())  # an entry must not see a limit that is being restored


@contextmanager
def deep_calls() -> Generator[None]:
    """Raise the recursion limit inside the block; the last of nested blocks restores it."""
    with _lock:
        _saved_limits.append(sys.getrecursionlimit())
        sys.setrecursionlimit(max(_LIMIT, _saved_limits[-1]))
    try:
        yield
    finally:
        with _lock:
            original = min(_saved_limits)
            _saved_limits.pop()
            if not _saved_limits:
                sys.setrecursionlimit(original)
