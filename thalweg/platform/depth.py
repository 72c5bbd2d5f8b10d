"""How deep Python's calls may go while deep expressions are walked."""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager

from thalweg.platform.forks import freed_after_fork

_DEPTH = 20_000  # calls: some ten for each of the parts that one kernel holds at most
_depths: list[int] = []  # what the limit was when those that are inside now began
_changing = freed_after_fork(
    threading.Lock()
)  # who comes in while the last one leaves must see the old limit


@contextmanager
def deep_calls() -> Generator[None]:
    """With room for deep expressions; the last to leave restores the limit."""
    with _changing:
        _depths.append(sys.getrecursionlimit())
        sys.setrecursionlimit(max(_DEPTH, _depths[-1]))
    try:
        yield
    finally:
        with _changing:
            before = min(_depths)
            _depths.pop()
            if not _depths:
                sys.setrecursionlimit(before)
